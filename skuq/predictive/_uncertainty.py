"""Results of `predict_uncertainty`: standard deviations, or entropies of classes, by source."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Uncertainty(NamedTuple):
    """Mean and standard deviations by source, each (n_samples,) or (n_samples, n_outputs).

    All are in units of y, and ``total**2 == aleatoric**2 + epistemic**2``.

    Examples
    --------
    >>> import numpy as np
    >>> from skuq.predictive import GaussianMixture
    >>> two = GaussianMixture(np.array([[0.0], [6.0]]), np.full((2, 1), 4.0))
    >>> two.uncertainty()
    Uncertainty(mean=array([3.]), aleatoric=array([4.]), epistemic=array([3.]), total=array([5.]))
    """

    mean: np.ndarray
    aleatoric: np.ndarray
    epistemic: np.ndarray
    total: np.ndarray


class ClassUncertainty(NamedTuple):
    """Entropies of the predicted class, each of shape (n_samples,), in nats.

    `total` is the entropy of the averaged probabilities, at most log(n_classes). `aleatoric` is
    the members' average entropy. `epistemic` is the mutual information of class and member, which
    measures the members' disagreement. ``total == aleatoric + epistemic``.

    Examples
    --------
    >>> import numpy as np
    >>> from skuq.predictive import CategoricalMixture
    >>> proba = np.array([[[1.0, 0.0]], [[0.0, 1.0]]])  # two members that disagree
    >>> uncertainty = CategoricalMixture(proba).uncertainty()
    >>> uncertainty.total.round(3), uncertainty.aleatoric.round(3)
    (array([0.693]), array([0.]))
    """

    total: np.ndarray
    aleatoric: np.ndarray
    epistemic: np.ndarray
