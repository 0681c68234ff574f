"""Learn calibrations of regressors from predictions of rows that a model has not seen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from skuq.fitted._calibrated import SMALLEST_UNCERTAINTY, Calibration
from skuq.predictive._calibration import fit_std_factor, shrink_std_factor


def learn_calibration(
    mixtures: Sequence[Any], y: np.ndarray, weight: np.ndarray, *, conformal: bool = False
) -> Calibration:
    """Learn the scale of each output and, if `conformal`, the scores.

    Parameters
    ----------
    mixtures : sequence of distributions
        Predictions, fold by fold.
    y : ndarray of shape (n[, m])
        Truths, in the order of the folds.
    weight : ndarray of shape (n,)
        Positive weights. Those of a row that repeated folds predict several times add up to the
        row's own.
    conformal : bool, default=False
    """
    single = y.ndim == 1
    ends = np.cumsum([len(mixture.mean) for mixture in mixtures])[:-1]
    outputs = [
        _learn_output(
            [m if single else m.output(k) for m in mixtures],
            np.split(y if single else y[:, k], ends),
            np.split(weight, ends),
            conformal,
        )
        for k in range(1 if single else y.shape[1])
    ]
    scale, *scores = (part[0] if single else np.stack(part, axis=-1) for part in zip(*outputs))
    return Calibration(float(scale) if single else scale, *scores)


def _learn_output(
    mixtures: Sequence[Any],
    ys: Sequence[np.ndarray],
    weights: Sequence[np.ndarray],
    conformal: bool,
) -> tuple[Any, ...]:
    """Learn the scale of one output and, if `conformal`, the scores and their coverage."""
    scale = fit_std_factor(mixtures, ys, weights)
    if not all((m.std == 1).all() for m in mixtures):
        scale = shrink_std_factor(mixtures, ys, weights, scale)
    elif not any((y != m.mean).any() for m, y in zip(mixtures, ys)):
        scale = SMALLEST_UNCERTAINTY  # a regressor without uncertainty that makes no errors
    if not conformal:
        return (scale,)
    scaled = [mixture.scaled(scale) for mixture in mixtures]
    errors = np.concatenate([abs(y - m.mean) / m.std for m, y in zip(scaled, ys)])
    weight, order = np.concatenate(weights), np.argsort(errors)
    # The new row has weight 1 and an unknown error: it counts as outside (Lei et al., 2018).
    return scale, errors[order], np.cumsum(weight[order]) / (weight.sum() + 1)
