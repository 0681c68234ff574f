"""Transform targets so that their noise is closer to normal, and transform them back.

The map of one output works element by element, on arrays of any shape. All maps are strictly
increasing, differentiable, and map the real numbers onto themselves. Therefore any predicted
density of transformed targets gives a density of the targets.
"""

from __future__ import annotations

import functools
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import optimize, special
from scipy.interpolate import PchipInterpolator
from scipy.optimize import elementwise
from sklearn.base import clone

from skuq._params import HasMethods, StrOptions
from skuq.files._registry import saved_as
from skuq.tables._scaling import check_target_sizes, scale_of_equal_values

# Knots of the quantile map: smallest number of rows between two knots, and most intervals.
_ROWS_EACH, _MOST_INTERVALS = 10, 100
_CLOSEST = 1e-6  # smallest distance of two knots, relative to the central 90% of the values
_PLACES = 1000  # of the range of the data, at which a transformer is read off
_SMALLEST_LEVEL = 1e-9  # levels are clipped, so that normal scores are finite


@saved_as("tables.TargetTransform")
class TargetTransform:
    """Transform each output of y by a strictly increasing map.

    Parameters
    ----------
    kind : {"yeo-johnson", "quantile", transformer}
        "yeo-johnson", for skewed targets, applies a power transform, with the power of maximum
        likelihood under normality, and scales to mean 0 and variance 1. "quantile" maps about 100
        quantiles of y (fewer for small data) to those of a normal distribution, with a smooth curve
        between them. A transformer of scikit-learn with `inverse_transform`, such as
        ``FunctionTransformer(np.log1p, np.expm1)``, is cloned and fitted to each output.

    Attributes
    ----------
    outputs_ : tuple
        The maps, one for each output.

    Notes
    -----
    "yeo-johnson" subtracts the median and divides by half the interquartile range before the power
    is applied, so that the result does not depend on the unit of y or on a constant added to it.
    The power lies in [0, 2], where the map is onto. All maps continue as straight lines far from
    the data: "quantile" beyond the range of the data, and "yeo-johnson" at a distance of one range
    from it. Equal values are only centred, until `rescale_equal` is called.

    A transformer is fitted without the weights, and read off at 3,001 places: the range of the
    transformed y, and as much again on either side, unless its inverse ends there.

    References
    ----------
    I. Yeo, R. Johnson. "A new family of power transformations to improve normality or
    symmetry", Biometrika 2000.
    """

    def __init__(self, kind: Any) -> None:
        self.kind = kind

    def fit(self, y: np.ndarray, sample_weight: np.ndarray | None = None) -> TargetTransform:
        """Learn the maps.

        Parameters
        ----------
        y : ndarray of shape (n, m)
            Finite targets.
        sample_weight : ndarray of shape (n,), optional
            Positive weights of the rows.

        Returns
        -------
        self

        Raises
        ------
        ValueError
            If y has values so large that their variance overflows, or so small that it
            underflows, or if a transformer is not increasing and invertible at them.
        """
        weight = np.ones(len(y)) if sample_weight is None else np.asarray(sample_weight)
        weight = weight / weight.sum()
        check_target_sizes(y)
        learn: Any = functools.partial(_Scores.of_transformer, self.kind)
        learn = _KINDS[self.kind] if isinstance(self.kind, str) else learn
        is_constant = np.ptp(y, axis=0) == 0
        scales = np.array([moments(column, weight)[1] for column in y.T])
        check_target_sizes(y, np.where(is_constant, 1.0, scales))
        self.outputs_ = tuple(
            _Line(column[0], 1.0) if constant else learn(column, weight)
            for column, constant in zip(y.T, is_constant)
        )
        return self

    def rescale_equal(self, is_equal: np.ndarray, n: int) -> None:
        """Scale outputs whose `n` values are equal (m,) by `scale_of_equal_values`."""
        self.outputs_ = tuple(
            _Line(output.mean, scale_of_equal_values(output.mean, n)) if equal else output
            for output, equal in zip(self.outputs_, is_equal)
        )

    def forward(self, y) -> np.ndarray:
        """Transform targets (.., m)."""
        return self._each("forward", y)

    def inverse(self, z) -> np.ndarray:
        """Transform (.., m) back to targets."""
        return self._each("inverse", z)

    def log_derivative(self, y) -> np.ndarray:
        """Compute the logarithm of the derivative of `forward`, (.., m)."""
        return self._each("log_derivative", y)

    def output(self, k: int) -> Any:
        """Select the map of one output, for arrays without the output axis."""
        return self.outputs_[k]

    def _each(self, what, values):
        """Call a method of each output's map on its part of the last axis."""
        values = np.asarray(values, dtype="float64")
        return np.stack(
            [getattr(output, what)(values[..., k]) for k, output in enumerate(self.outputs_)],
            axis=-1,
        )


def moments(y, weight):
    """Compute weighted mean and standard deviation."""
    mean = weight @ y
    return mean, np.sqrt(weight @ (y - mean) ** 2)


@saved_as("tables.TargetTransform.Line")
class _Line:
    """Standardising map (y - mean) / scale."""

    def __init__(self, mean, scale):
        self.mean, self.scale = float(mean), float(scale)

    def forward(self, y):
        return (y - self.mean) / self.scale

    def inverse(self, z):
        return z * self.scale + self.mean

    def log_derivative(self, y):
        return np.full(np.shape(y), -np.log(self.scale))


_NOTICEABLE = 1e-6  # smallest gain of a power over the identity, in nats for each row


@saved_as("tables.TargetTransform.Power")
@dataclass(eq=False, repr=False)
class Power:
    """Standardised power transform of Yeo and Johnson, which is linear far beyond the data.

    Parameters
    ----------
    unit : _Line
        Map that makes y independent of its unit and its zero, before the power is applied.
    power : float
        Power in [0, 2]; 1 is the identity.
    mean, scale : float
        Mean and standard deviation of the transformed values.
    low, high : float
        Ends of the curve in the units of `unit`, beyond which the map is linear.
    """

    unit: Any
    power: float
    mean: float
    scale: float
    low: float
    high: float

    @classmethod
    def learn(cls, y, weight):
        """Find the power of the highest likelihood; a line if no power is noticeably better."""
        line = _Line(*moments(y, weight))  # equal to the power 1
        # The curve bends where values are about 1. Median and quartiles put the bulk of y there,
        # where mean and standard deviation of a skewed y would follow its tail.
        order = np.argsort(y)
        quartiles = np.searchsorted(np.cumsum(weight[order]), [0.25, 0.5, 0.75])
        first, median, third = y[order[quartiles]]
        unit = _Line(median, (third - first) / 2 or line.scale)
        y = unit.forward(y)
        # Mean over rows of the log derivative, divided by power - 1.
        logs = weight @ (np.sign(y) * np.log1p(abs(y)))

        def loss(power):
            """Compute minus the profile log likelihood of a power, up to a constant (Eq. 3.1)."""
            value = np.log(moments(_power(y, power), weight)[1]) - (power - 1) * logs
            return np.nan_to_num(value, nan=np.inf)

        with np.errstate(over="ignore", invalid="ignore"):
            found = optimize.minimize_scalar(
                loss, bounds=(0.0, 2.0), method="bounded", options={"xatol": 1e-8}
            )
        if not loss(found.x) < loss(1.0) - _NOTICEABLE:
            return line
        power, reach = float(found.x), np.ptp(y)
        mean, scale = moments(_power(y, power), weight)
        if not (np.isfinite([mean, scale]).all() and scale > 0):
            return line
        return cls(unit, power, mean, scale, y.min() - reach, y.max() + reach)

    def forward(self, y):
        # Outside [low, high]: the value at the end, plus distance times slope.
        y = self.unit.forward(y)
        on_curve = np.clip(y, self.low, self.high)
        straight = (y - on_curve) * np.exp(self._log_slope(on_curve))
        return (_power(on_curve, self.power) - self.mean) / self.scale + straight

    def inverse(self, z):
        ends = _power(np.array([self.low, self.high]), self.power)
        on_curve = np.clip(z, *((ends - self.mean) / self.scale))
        y = _power(on_curve * self.scale + self.mean, self.power, special.inv_boxcox1p)
        return self.unit.inverse(y + (z - on_curve) * np.exp(-self._log_slope(y)))

    def log_derivative(self, y):
        on_curve = np.clip(self.unit.forward(y), self.low, self.high)
        return self._log_slope(on_curve) + self.unit.log_derivative(y)

    def _log_slope(self, y):
        """Compute the log of the derivative inside the curve, for y in the units of `unit`.

        It is ``(power - 1) sign(y) log(1 + |y|) - log(scale)``.
        """
        return (self.power - 1) * np.sign(y) * np.log1p(abs(y)) - np.log(self.scale)


def _power(y, power, box_cox=special.boxcox1p):
    """Apply the power transform of Yeo and Johnson (their Eq. 2.1), or its inverse.

    It is ((1 + y)^power - 1) / power for y >= 0, and -((1 - y)^(2 - power) - 1) / (2 - power) for
    y < 0, with logarithms as limits. With ``box_cox=special.inv_boxcox1p`` it is the inverse.
    """
    up, down = np.maximum(y, 0), np.maximum(-np.asarray(y), 0)
    return box_cox(up, power) - box_cox(down, 2 - power)


@saved_as("tables.TargetTransform.Scores")
class _Scores:
    """Map from quantiles of y to normal scores, which is linear beyond the data.

    The curve is stored as y as a function of the score, because `inverse` is called far more often
    than `forward`.

    Parameters
    ----------
    scores, values : ndarray of shape (n_knots,)
        Increasing normal scores, and values of y at them.
    """

    def __init__(self, scores, values):
        self.scores, self.values = scores, values
        self._curve = PchipInterpolator(scores, values)
        self._slope = self._curve.derivative()

    def __getstate__(self):
        # Only the knots: the curve follows from them, and SciPy's state can change.
        return {"scores": self.scores, "values": self.values}

    def __setstate__(self, state):
        self.__init__(state["scores"], state["values"])

    @classmethod
    def learn(cls, y, weight):
        """Place knots at quantiles of y, whose scores are those of a standard normal."""
        values, index = np.unique(y, return_inverse=True)
        mass = np.bincount(index, weight)
        # The level of a value is the middle of its mass, also for ties.
        level = np.cumsum(mass) - mass / 2
        n_rows = 1 / (weight @ weight)  # Kish's effective number of rows
        n_intervals = int(np.clip(n_rows // _ROWS_EACH, 1, _MOST_INTERVALS))
        levels = np.linspace(level[0], level[-1], n_intervals + 1)
        knots = np.interp(levels, level, values)
        scores = special.ndtri(np.clip(levels, _SMALLEST_LEVEL, 1 - _SMALLEST_LEVEL))
        # Drop knots that are too close, at which the curve would be too steep.
        spread = np.interp(0.95, level, values) - np.interp(0.05, level, values)
        gap = _CLOSEST * (spread if spread > 0 else np.ptp(y))
        positions, last = [0], n_intervals
        for k in range(1, last + 1):
            before = positions[-1]
            if knots[k] - knots[before] > gap and scores[k] > scores[before]:
                positions.append(k)
        # Both ends are knots: the last one replaces a knot that is too close to it.
        if positions[-1] != last:
            positions[1 if len(positions) == 1 else -1 :] = [last]
        return cls._with_straight_ends(scores[positions], knots[positions])

    @classmethod
    def of_transformer(cls, transformer, y, weight):
        """Read off a fitted clone of a transformer, and standardise what it makes of y."""
        fitted = clone(transformer).fit(y[:, None])
        forward, inverse = (
            lambda values, method=method: np.asarray(method(values[:, None]), "float64")[:, 0]
            for method in (fitted.transform, fitted.inverse_transform)
        )
        rows, index = np.unique(y, return_inverse=True)
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # ends of the map, and what is refused, are told below
            z = forward(rows)
            near = {"rtol": 1e-6, "atol": 1e-6 * np.ptp(rows)}
            is_increasing = np.isfinite(z).all() and (np.diff(z) >= 0).all()
            if not (is_increasing and np.allclose(inverse(z), rows, **near)):
                raise ValueError(
                    "`target_transform` must have an increasing `transform`, finite on all rows' "
                    "y, that its `inverse_transform` inverts. This does not hold for "
                    f"{transformer!r} and y from {rows[0]:.6g} to {rows[-1]:.6g}."
                )
            step = (z[-1] - z[0]) / _PLACES
            values = inverse(z[0] + step * np.arange(-_PLACES, 2 * _PLACES + 1))
            # Near a bound, where the inverse ends, its slope would be any.
            low, high = np.where(np.isfinite(values[[0, -1]]), 0, _PLACES)
            values = np.unique(values[low : len(values) - high])
            scores = forward(values)
        # One knot at a place at most: rounding, and ends of the map, give several values of one.
        place, knots = np.unique(np.round((scores - z[0]) / step), return_index=True)
        knots = knots[np.isfinite(place)]
        mean, scale = moments(z[index], weight)
        return cls._with_straight_ends((scores[knots] - mean) / scale, values[knots])

    @classmethod
    def _with_straight_ends(cls, scores, values):
        """Add a knot on either side, so that the curve has the slope of its straight ends there."""
        ends = [2 * scores[0] - scores[1], 2 * values[0] - values[1]]
        beyond = [2 * scores[-1] - scores[-2], 2 * values[-1] - values[-2]]
        return cls(
            np.concatenate([ends[:1], scores, beyond[:1]]),
            np.concatenate([ends[1:], values, beyond[1:]]),
        )

    def forward(self, y):
        y = np.asarray(y, dtype="float64")
        on_curve = np.clip(y, self.values[0], self.values[-1])
        return self._score(on_curve) + (y - on_curve) / self._end_slope(y > on_curve)

    def inverse(self, z):
        on_curve = np.clip(z, self.scores[0], self.scores[-1])
        return self._curve(on_curve) + (z - on_curve) * self._end_slope(z > on_curve)

    def log_derivative(self, y):
        return -np.log(self._slope(self._score(np.clip(y, self.values[0], self.values[-1]))))

    def _end_slope(self, upper):
        """Compute the slope dy/dscore of the straight lower or upper end."""
        slopes = np.diff(self.values[[0, 1, -2, -1]]) / np.diff(self.scores[[0, 1, -2, -1]])
        return np.where(upper, slopes[2], slopes[0])

    def _score(self, y):
        """Find the scores at which the curve has the values y, between its ends."""
        k = np.clip(np.searchsorted(self.values, y, "right"), 1, len(self.values) - 1)
        low, high = self.scores[k - 1], self.scores[k]
        root = elementwise.find_root(lambda z, y: self._curve(z) - y, (low, high), args=(y,))
        # At a knot, rounding can leave no change of sign: take the nearer end of the interval.
        nearer = np.where(y - self.values[k - 1] < self.values[k] - y, low, high)
        return np.where(root.success, root.x, nearer)


_KINDS = {"yeo-johnson": Power.learn, "quantile": _Scores.learn}

#: Constraints of the parameter `target_transform`.
TARGET_TRANSFORMS = [
    StrOptions({"standard", *_KINDS}),
    HasMethods(["fit", "transform", "inverse_transform"]),
]
