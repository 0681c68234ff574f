"""How different the members of an ensemble are."""

from __future__ import annotations

import numpy as np
from scipy.spatial.distance import pdist

__all__ = ["architecture_diversity"]


def architecture_diversity(embeddings) -> float:
    """Diversity score of a set of architectures (AutoDEUQ III.B.2).

    Parameters
    ----------
    embeddings : array-like of shape (n_members, n_decisions)
        One integer a decision: the position of the value taken.

    Returns
    -------
    float
        The Euclidean distances of all pairs of *distinct* rows, divided by the norm of
        the vector they make, summed. Between 1 (one pair) and sqrt(n (n - 1) / 2) (all
        pairs equally far apart); 0 for fewer than two distinct architectures.

    Notes
    -----
    The paper prints scores above sqrt(10), the bound for five members counted once, so
    it must have counted repeated members; we do not.

    References
    ----------
    Egele et al., "AutoDEUQ", section III.B.2.

    Examples
    --------
    >>> architecture_diversity([[0, 0], [3, 4], [0, 0]])
    1.0
    """
    distances = pdist(np.unique(np.asarray(embeddings, dtype=float), axis=0))
    norm = np.linalg.norm(distances)
    return float(distances.sum() / norm) if norm > 0 else 0.0
