"""The scale of y, which becomes a transform where y has heavy tails."""

from __future__ import annotations

from typing import Any

import numpy as np

from skuq.estimators.tabular import _recipes as tuned
from skuq.tables._scaling import TargetScaling, check_target_sizes
from skuq.tables._transforms import Power, TargetTransform, moments


class ScalingByTails(TargetScaling):
    """Scale of y that becomes a transform, when it is fitted, where y has heavy tails."""

    def fit(self, y: np.ndarray, sample_weight: np.ndarray | None = None) -> Any:
        """Return the fitted scale or transform that suits the tails of y (n, m)."""
        kind = transform_of_tails(y, sample_weight)
        chosen: Any = TargetScaling() if kind == "standard" else TargetTransform(kind)
        return chosen.fit(y, sample_weight)


def transform_of_tails(y: np.ndarray, sample_weight: np.ndarray | None = None) -> str:
    """Choose the transform of targets (n, m) by their tails: the parameter's "auto".

    "standard" is for outputs without heavy tails. One with them takes "yeo-johnson", which bends a
    skewed y and keeps its order of sizes, or "quantile" if its tails are heavy even so, as those of
    far values on both sides.
    """
    kinds = {"standard"}
    if len(y) >= tuned.FEWEST_ROWS_WITH_TAILS:
        check_target_sizes(y)
        weight = np.ones(len(y)) if sample_weight is None else np.asarray(sample_weight)
        weight = weight / weight.sum()
        for column in y.T:
            if _tail(column, weight) > tuned.HEAVY_TAILS:
                bent = Power.learn(column, weight).forward(column)
                kinds.add("quantile" if _tail(bent, weight) > tuned.HEAVY_TAILS else "yeo-johnson")
    return next(kind for kind in ("quantile", "yeo-johnson", "standard") if kind in kinds)


def _tail(y, weight):
    """Compute the standard deviation over that of a normal with the same middle half.

    If this half has one value, it is the middle 90 %; the ratio is 1 if that has one, too.
    """
    order = np.argsort(y)
    at = np.searchsorted(np.cumsum(weight[order]), [0.05, 0.25, 0.75, 0.95])
    low, first, third, high = y[order[np.minimum(at, len(y) - 1)]]
    normal = (third - first) / 1.349 or (high - low) / 3.29
    return moments(y, weight)[1] / normal if normal else 1.0
