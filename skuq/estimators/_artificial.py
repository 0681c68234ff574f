"""Artificial inputs of NOMU, at which the model is trained to be uncertain."""

from __future__ import annotations

import numpy as np
from sklearn.utils.validation import check_array


class ArtificialInputs:
    """Sampler of inputs in standardised units: ``inputs(n, rng) -> (n, n_features)``.

    Parameters
    ----------
    source : {"uniform", "grid"}, callable or array-like of shape (n_unlabelled, n_features)
        The estimator's parameter `artificial_inputs`.
    n_each : int
        Number of inputs of one step.
    box : array-like of shape (n_features, 2) or None
        Box for "uniform" and "grid", in units of X. None takes the range of the rows,
        extended by `margin`.
    margin : float
        Distance by which the default box extends beyond the rows, as a share of each range.
    X : ndarray of shape (n, n_features)
        Rows to train on.
    scaling : Scaling
        Fitted standardisation of X.

    Attributes
    ----------
    box : ndarray of shape (n_features, 2) or None
        Box in units of X; None if the source is a function or rows.
    n_each : int
        Number of inputs of one step; for a grid at most the given number.

    Raises
    ------
    ValueError
        If the box holds no row or has no volume, or the source gives inputs of a wrong form.
    """

    def __init__(self, source, n_each, box, margin, X, scaling):
        self.n_each, self.box = n_each, None
        self._scaling, self._n_features = scaling, X.shape[1]
        if callable(source):
            self._draw = self._make_checked_sampler(source)
        elif isinstance(source, str):
            self.box = _default_box(X, margin) if box is None else _check_box(box, X)
            ends = scaling.transform(self.box.T.copy())
            self._draw = (
                self._make_grid_sampler(ends) if source == "grid" else _make_uniform_sampler(ends)
            )
        else:
            rows = check_array(source, dtype="float64", input_name="artificial_inputs")
            if rows.shape[1] != self._n_features:
                raise ValueError(
                    f"`artificial_inputs` must have {self._n_features} columns, like X. "
                    f"Got {rows.shape[1]}."
                )
            rows = scaling.transform(rows)
            self._draw = lambda n, rng: rows[rng.integers(len(rows), size=n)]

    def __call__(self, n, rng):
        return self._draw(n, rng)

    def _make_grid_sampler(self, ends):
        """Make a sampler that gives every training step all points of an equidistant grid.

        `ends` (2, n_features) are the grid's lowest and highest values. Set `n_each` to the number
        of its points.
        """
        varied = np.ptp(ends, axis=0) > 0
        n_axis = int(np.floor(self.n_each ** (1 / max(varied.sum(), 1)) + 1e-9))
        if n_axis < 2:
            raise ValueError(
                f"A grid of at most `n_artificial`={self.n_each} points in {varied.sum()} "
                'dimensions has one point an axis. Use artificial_inputs="uniform", or more points.'
            )
        axes = [np.linspace(*end, n_axis if wide else 1) for end, wide in zip(ends.T, varied)]
        points = np.stack([axis.ravel() for axis in np.meshgrid(*axes)], axis=1)
        self.n_each = len(points)
        return lambda n, rng: np.resize(points, (n, points.shape[1]))

    def _make_checked_sampler(self, sampler):
        """Make a sampler of the user's function that checks its results, one step at a time."""

        def draw(n, rng):
            """Draw each step by itself: a function may return ordered or evenly spread inputs."""
            n_steps = -(-n // self.n_each)
            return np.concatenate([draw_step(self.n_each, rng) for _ in range(n_steps)])

        def draw_step(n, rng):
            drawn = np.asarray(sampler(n, rng), dtype="float64")
            if drawn.shape != (n, self._n_features) or not np.isfinite(drawn).all():
                finite = "" if np.isfinite(drawn).all() else ", not all finite"
                raise ValueError(
                    "`artificial_inputs` must be a function (n, rng) that gives finite inputs of "
                    f"shape (n, n_features), here {(n, self._n_features)}. "
                    f"Got shape {drawn.shape}{finite}."
                )
            return self._scaling.transform(drawn)

        return draw


def _make_uniform_sampler(ends):
    low, width = ends[0], ends[1] - ends[0]
    return lambda n, rng: low + width * rng.random((n, len(low)))


def _default_box(X, margin):
    """Compute the default bounds (n_features, 2): the range of the rows and a margin around it."""
    low, high = X.min(axis=0), X.max(axis=0)
    if (low == high).all():
        raise ValueError(
            f"The rows of X (n_samples={len(X)}) are all alike, so that they have no range to draw "
            "artificial inputs from. Give `box`, the lowest and highest value of each feature."
        )
    reach = margin * (high - low)
    return np.stack([low - reach, high + reach], axis=1)


def _check_box(box, X):
    """Check the user's box, and that it holds at least one row of X."""
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
