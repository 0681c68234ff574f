"""Rows and inputs of NOMU: rows held out to choose its readout, and artificial inputs."""

from __future__ import annotations

from collections.abc import Callable
from numbers import Integral, Real
from typing import Any

import numpy as np
import pandas as pd
from sklearn.model_selection import GroupKFold, KFold
from sklearn.utils.validation import check_array

from skuq._random import generator
from skuq.networks import ArtificialInputs
from skuq.tables._inputs import Rows, TableInputs
from skuq.tables._scaling import Scaling
from skuq.tables._splits import make_splits

_MIN_ROWS_FOR_EQUAL_FOLDS = 100  # with fewer rows, none is left out to make folds equal
_FOLDS_BELOW_ROWS = ((30, 10), (500, 5))  # validation="auto": (number of rows, folds below it)
_SHARE = 0.2  # of the rows that validation="auto" holds out with more rows
_N_GAPS = 5  # folds of each of the two kinds with validation="gaps"
# Smallest and largest default of `box_margin`, as a share of each range. Between them it is three
# mean distances of uniform rows: in 95 % of samples the gap beyond the outermost row is smaller.
_MIN_MARGIN, _MAX_MARGIN, _MARGIN_SPACINGS = 0.05, 1.0, 3

Part = tuple[np.ndarray, np.ndarray | None]


def split_parts(
    validation: Any, rows: Rows, entropy: int, groups: np.ndarray | None, *, refits: bool
) -> list[Part]:
    """List the rows of each network: positions to train on, and positions to choose on.

    Parameters
    ----------
    validation : float, int, cross-validation generator, "gaps" or "auto"
        The estimator's parameter: a share of the rows gives one network, folds one network each.
    rows : Rows
        Rows of positive weight.
    entropy : int
    groups : ndarray of shape (n,) or None
        Codes of groups that are not split.
    refits : bool
        Whether a network is trained on all rows afterwards. Folds need it.
    """
    n = len(rows.X)
    if isinstance(validation, str) and validation == "auto":
        units = n if groups is None else len(np.unique(groups))
        most = next((k for below, k in _FOLDS_BELOW_ROWS if n < below), None)
        # With many rows a single split is enough.
        validation = min(most, units) if most and refits and units > 1 else _SHARE
    # The number that numbered folds and those of gaps are shuffled with.
    seed = int(generator(entropy, "split").integers(2**31))
    if isinstance(validation, str):
        if groups is not None:
            raise ValueError(
                '`groups` cannot be kept together with validation="gaps". Drop one of them.'
            )
        folds = KFold(min(_N_GAPS, n), shuffle=True, random_state=seed)
        # Folds that hold out the middle third of the rows along features drawn at random, as the
        # UCI gap splits do (Foong et al. 2019).
        X, third = rows.X, len(rows.X) // 3
        if not third:
            raise ValueError(
                f'validation="gaps" holds out thirds of the rows. Got n_samples={len(X)}.'
            )
        features = np.flatnonzero(np.ptp(X, axis=0) > 0)  # constant ones have no middle
        gaps: list[Part] = []
        for feature in generator(entropy, "gaps").permutation(features)[:_N_GAPS]:
            order = np.argsort(X[:, feature], kind="stable")
            outside = np.concatenate([order[:third], order[-third:]])
            gaps.append((np.sort(outside), np.sort(order[third:-third])))
        return [*folds.split(rows.X), *gaps]
    if isinstance(validation, Real) and not isinstance(validation, Integral):
        splits = make_splits(rows, entropy, fraction=float(validation), groups=groups)
        held_out: Any = splits.positions
        return [(np.setdiff1d(np.arange(n), held_out), held_out)]
    if isinstance(validation, Integral):
        kind = KFold if groups is None else GroupKFold
        validation = kind(validation, shuffle=True, random_state=seed)
    # A splitter of the user's is checked to hold each row out once.
    parts: Any = make_splits(rows, entropy, cv=validation, groups=groups).parts
    if groups is None and n >= _MIN_ROWS_FOR_EQUAL_FOLDS:
        # Equal folds train in one program: leave out the few rows by which they differ.
        n_train, n_valid = (min(map(len, part)) for part in zip(*parts))
        parts = [(train[:n_train], valid[:n_valid]) for train, valid in parts]
    return list(parts)


class ArtificialSampler:
    """Sampler of artificial inputs in standardised units: ``sampler(n, rng) -> (n, n_features)``.

    Parameters
    ----------
    settings : ArtificialInputs
        Validated settings; a table among them is encoded.
    X : ndarray of shape (n, n_features)
        Encoded rows to train on.
    scaling : Scaling
        Fitted standardisation of X.

    Attributes
    ----------
    box : ndarray of shape (n_features, 2) or None
        Box in units of X; None if the inputs are the user's own.
    n_each : int
        Number of inputs of one step; for a grid at most the given number.

    Raises
    ------
    ValueError
        If the box holds no row or has no volume, or the inputs are not like X.
    """

    def __init__(self, settings: ArtificialInputs, X: np.ndarray, scaling: Scaling) -> None:
        self.n_each, self.box = settings.n, None
        self._scaling, self._n_features = scaling, X.shape[1]
        kind = settings.kind
        if callable(kind):
            self._draw = self._make_checked_sampler(kind)
        elif isinstance(kind, str):
            self.box = _read_box(settings, X)
            ends = scaling.transform(self.box.T.copy())
            low, width = ends[0], ends[1] - ends[0]
            if kind == "grid":  # every training step gets all points of an equidistant grid
                # A constant column has one value; the others share the number of points equally.
                varied = np.ptp(ends, axis=0) > 0
                n_axis = int(np.floor(self.n_each ** (1 / max(varied.sum(), 1)) + 1e-9))
                if n_axis < 2:
                    raise ValueError(
                        f"A grid of at most `n`={self.n_each} artificial inputs in {varied.sum()} "
                        'dimensions has one point an axis. Use kind="uniform", or more inputs.'
                    )
                sizes = np.where(varied, n_axis, 1).tolist()
                axes = [np.linspace(low, high, size) for (low, high), size in zip(ends.T, sizes)]
                points = np.stack([axis.ravel() for axis in np.meshgrid(*axes)], axis=1)
                self.n_each = len(points)
                self._draw = lambda n, rng: np.resize(points, (n, points.shape[1]))
            else:
                self._draw = lambda n, rng: low + width * rng.random((n, len(low)))
        else:
            rows = check_array(kind, dtype="float64", input_name="artificial")
            if rows.shape[1] != self._n_features:
                raise ValueError(
                    f"`artificial` must have {self._n_features} columns, like X. "
                    f"Got {rows.shape[1]}."
                )
            rows = scaling.transform(rows)
            self._draw = lambda n, rng: rows[rng.integers(len(rows), size=n)]

    def __call__(self, n: int, rng: np.random.Generator) -> np.ndarray:
        return self._draw(n, rng)

    def _make_checked_sampler(self, function: Callable) -> Callable:
        """Make a sampler of the user's function that checks its results, one step at a time."""

        def draw_step(n, rng):
            drawn = np.asarray(function(n, rng), dtype="float64")
            if drawn.shape != (n, self._n_features) or not np.isfinite(drawn).all():
                finite = "" if np.isfinite(drawn).all() else ", not all finite"
                raise ValueError(
                    "`artificial` must be a function (n, rng) that gives finite inputs of shape "
                    f"(n, n_features), here {(n, self._n_features)}. "
                    f"Got shape {drawn.shape}{finite}."
                )
            return self._scaling.transform(drawn)

        def draw(n, rng):
            # Each step by itself: a function may return ordered or evenly spread inputs.
            n_steps = -(-n // self.n_each)
            return np.concatenate([draw_step(self.n_each, rng) for _ in range(n_steps)])

        return draw


def encode_artificial(kind: Any, inputs: TableInputs, estimator: Any) -> Any:
    """Encode a table of artificial inputs as the rows of X; return other values as they are."""
    has_names, is_table = hasattr(kind, "columns"), np.ndim(kind) == 2
    if is_table and not has_names and inputs.encodes and inputs.feature_names is not None:
        kind = pd.DataFrame(kind, columns=inputs.feature_names)
    if hasattr(kind, "columns") or (is_table and inputs.encodes):
        return inputs.encode(inputs.validate(kind, estimator))
    return kind


def _read_box(settings: ArtificialInputs, X: np.ndarray) -> np.ndarray:
    """Return the bounds (n_features, 2) of artificial inputs: the user's, or those of the rows."""
    if settings.box is not None:
        box = settings.box
        try:
            box = np.asarray(box, dtype="float64")
        except (TypeError, ValueError):
            box = np.empty(0)
        if box.shape != (X.shape[1], 2) or not np.isfinite(box).all():
            raise ValueError(
                f"`box` must be {X.shape[1]} finite pairs (low, high), one per feature. Got {box}."
            )
        empty = np.flatnonzero(box[:, 0] >= box[:, 1])
        if len(empty):
            raise ValueError(
                f"`box` must have low < high for every feature. Got {box[empty[0]]} for feature "
                f"{empty[0]}: a box without volume."
            )
        # A box in other units than X, such as standardised ones, usually holds no row.
        within = np.clip(X, *box.T) == X
        if within.all(axis=1).any():
            return box
        missed = np.flatnonzero(~within.any(axis=0))
        if len(missed):
            k = missed[0]
            reason = f"feature {k} has values from {X[:, k].min():.4g} to {X[:, k].max():.4g}, and "
            reason += f"the box has {box[k]}"
        else:
            reason = "each row is outside of it in some feature"
        raise ValueError(
            f"`box` must hold training rows, and holds none: {reason}. `box` is in units of X."
        )
    low, high = X.min(axis=0), X.max(axis=0)
    if (low == high).all():
        raise ValueError(
            f"The rows of X (n_samples={len(X)}) are all alike, so that they have no range to draw "
            "artificial inputs from. Give `box` to ArtificialInputs: the lowest and highest value "
            "of each feature."
        )
    margin = settings.box_margin
    if isinstance(margin, str):
        # Of n uniform rows the outermost are about 1 / (n - 1) of the range away from its ends.
        margin = min(_MARGIN_SPACINGS / max(len(X) - 1, 1), _MAX_MARGIN)
        margin = max(_MIN_MARGIN, margin)
    reach = margin * (high - low)
    return np.stack([low - reach, high + reach], axis=1)
