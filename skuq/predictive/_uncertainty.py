"""A prediction's uncertainty, by source: standard deviations, or entropies of classes."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Uncertainty(NamedTuple):
    """Mean and standard deviations, each (n_samples,) or (n_samples, n_outputs).

    All are in units of y; ``total**2 == aleatoric**2 + epistemic**2``.
    """

    mean: np.ndarray
    aleatoric: np.ndarray
    epistemic: np.ndarray
    total: np.ndarray


class ClassUncertainty(NamedTuple):
    """Entropies of the predicted class, each of shape (n_samples,), in nats.

    `total` is the entropy of the averaged probabilities, at most log(n_classes);
    `aleatoric` the members' average entropy; `epistemic` the mutual information of class
    and member, what they disagree on. ``total == aleatoric + epistemic``.
    """

    total: np.ndarray
    aleatoric: np.ndarray
    epistemic: np.ndarray
