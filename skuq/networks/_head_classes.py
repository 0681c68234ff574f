"""Head of class probabilities."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import special

from skuq import backend
from skuq.files._registry import saved_as
from skuq.networks._head_base import Head
from skuq.predictive import CategoricalMixture
from skuq.predictive._calibration import UNCALIBRATED, Calibration

_LEAST_PROBABILITY = 1e-300  # of which a logarithm is taken


@saved_as("networks.CategoricalHead")
@dataclass(frozen=True)
class CategoricalHead(Head):
    """Class probabilities from one raw number, the logit, for each class.

    Parameters
    ----------
    n_classes : int
        Number of classes.

    Examples
    --------
    >>> import numpy as np
    >>> from skuq.networks._head_classes import CategoricalHead
    >>> CategoricalHead(3).probabilities(np.log([[1.0, 1.0, 2.0]]))
    array([[0.25, 0.25, 0.5 ]])
    """

    n_classes: int

    classifies = True

    @property
    def n_raw(self) -> int:
        """Number of raw outputs of the network."""
        return self.n_classes

    def probabilities(self, raw: Any, xp: Any = np, calibration: Calibration = UNCALIBRATED) -> Any:
        """Compute class probabilities (.., n_classes) from raw numbers of that shape.

        Every member is calibrated alike, and so is their average.
        """
        raw = raw if calibration.temperature == 1 else raw / calibration.temperature
        proba = (special if xp is np else xp).softmax(raw, axis=-1)
        if not calibration.constant:
            return proba
        constant = np.array(calibration.constant)
        return proba * (1 - constant.sum()) + constant

    means = probabilities

    def mean(
        self, raw: np.ndarray, weights: np.ndarray, calibration: Calibration = UNCALIBRATED
    ) -> np.ndarray:
        """Compute the average probabilities (n, n_classes) of the members."""
        proba = self.probabilities(raw, calibration=calibration)
        return np.tensordot(weights, proba, axes=1)

    def mixture(
        self, raw: np.ndarray, weights: np.ndarray, targets: Any, calibration: Calibration
    ) -> CategoricalMixture:
        """Mix the members' probabilities."""
        return CategoricalMixture(self.probabilities(raw, calibration=calibration), weights)

    def error(self, y: np.ndarray, mean: np.ndarray) -> np.ndarray:
        """Compute minus the log probability (n,) of the rows' classes."""
        codes = y[:, :1].astype(int)
        chosen = np.take_along_axis(np.broadcast_to(mean, (len(y), self.n_classes)), codes, axis=1)
        return -np.log(np.maximum(chosen[:, 0], _LEAST_PROBABILITY))

    def constant(self, y: np.ndarray, weight: np.ndarray) -> np.ndarray:
        """Compute the shares (n_classes,) of the classes."""
        share = np.bincount(y[:, 0].astype(int), weight, minlength=self.n_classes)
        return share / share.sum()

    def pooled(self, raw) -> np.ndarray:
        """Compute raw numbers (.., n_classes) of the averaged probabilities of K networks.

        `raw` is (K, .., n_classes).
        """
        # Log of the mean probability, which softmax maps back to it.
        return special.logsumexp(special.log_softmax(raw, axis=-1), axis=0) - np.log(len(raw))

    def loss(self, y, raw):
        """Compute the cross-entropy (..,) of each row in nats, from tensors.

        `y` holds class codes (.., 1), and `raw` is (.., n_classes).
        """
        ops = backend.ops
        codes = ops.cast(y[..., 0], "int32")
        chosen = ops.sum(ops.one_hot(codes, self.n_classes, dtype=raw.dtype) * raw, axis=-1)
        return ops.logsumexp(raw, axis=-1) - chosen

    def log_likelihood(self, y, raw) -> np.ndarray:
        """Compute log probabilities (..,) of codes (.., 1), from raw numbers (.., n_classes)."""
        codes = np.broadcast_to(np.asarray(y).astype(int), (*raw.shape[:-1], 1))
        chosen = np.take_along_axis(raw, codes, axis=-1)[..., 0]
        return chosen - special.logsumexp(raw, axis=-1)
