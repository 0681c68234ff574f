"""From what networks give to the predictive record of a target, by the kind of head."""

from __future__ import annotations

import numpy as np

from skuq.networks import (
    GaussianHead,
    GaussianMixtureHead,
    PackedHead,
    QuantileHead,
    SquaredErrorHead,
    StudentTHead,
)
from skuq.predictive import (
    GaussianMixture,
    NestedGaussianMixture,
    QuantileMixture,
    StudentTMixture,
)

__all__ = ["HEADS", "mixture_of", "unpacked"]

#: What a network predicts for each value of the parameter `loss`.
HEADS = {
    "nll": GaussianHead,
    "beta-nll": lambda n_outputs: GaussianHead(n_outputs, beta=0.5),
    "mse": SquaredErrorHead,
    "student-t": StudentTHead,
    "gaussian-mixture": GaussianMixtureHead,
    "quantiles": QuantileHead,
}


def unpacked(head, raw, weights):
    """A head of one copy, raw numbers (K, n, n_raw) and weights (K,) of all copies as members."""
    if not isinstance(head, PackedHead):
        return head, raw, weights
    n = head.n_copies
    return head.head, head.unpack(raw), np.repeat(weights, n) / n


def mixture_of(head, raw, weights, restore, one_output: bool):
    """The record of members' predictions.

    Parameters
    ----------
    head : object
        Any but a `PackedHead`.
    raw : ndarray of shape (K, n, n_raw)
    weights : ndarray of shape (K,)
    restore : callable
        ``restore(loc, scale)``: locations and scales (.., m) in the units of the record.
    one_output : bool
        Whether the record has no axis of outputs.
    """

    def own(*arrays):
        return [array[..., 0] if one_output else array for array in arrays]

    if isinstance(head, StudentTHead):
        loc, scale, df = head.distribution(raw)
        return StudentTMixture(*own(*restore(loc, scale), df), weights)
    if isinstance(head, GaussianMixtureHead):
        loc, scale, log_probability = head.distribution(raw)  # (K, n, J, m)
        arrays = own(*restore(loc, scale), np.exp(log_probability))
        return NestedGaussianMixture(*(np.moveaxis(array, 2, 1) for array in arrays), weights)
    if isinstance(head, QuantileHead):
        values, _ = restore(head.quantiles(raw), 1.0)  # (K, n, q, m)
        (values,) = own(values)
        return QuantileMixture(np.asarray(head.levels), np.moveaxis(values, 2, 1), weights)
    return GaussianMixture(*own(*restore(*head.distribution(raw))), weights)
