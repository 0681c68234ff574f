"""Results of `predict_uncertainty`: standard deviations, or entropies of classes, by source."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Uncertainty(NamedTuple):
    """Mean and standard deviations by source, each (n_samples,) or (n_samples, n_outputs).

    All are in units of y, and ``total**2 == aleatoric**2 + epistemic**2``.
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
    """

    total: np.ndarray
    aleatoric: np.ndarray
    epistemic: np.ndarray
