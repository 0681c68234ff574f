"""Targets on a scale where their noise is nearer to normal, and the way back.

A map of one output works element by element, on arrays of any shape. All maps are strictly
increasing, from all numbers onto all numbers, with a derivative everywhere: a density of
transformed targets is then one of the targets, whatever networks predict.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import optimize, special
from scipy.interpolate import PchipInterpolator
from scipy.optimize import elementwise

from skuq._registry import saved_as
from skuq.tables._scaling import constant_scale

# Of the normal scores: rows that an interval between two of them holds, and most of these.
_ROWS_EACH, _MOST_INTERVALS = 10, 100
_CLOSEST = 1e-6  # knots, of the range that holds most values
_SMALLEST_LEVEL = 1e-9


@saved_as("tables.TargetTransform")
class TargetTransform:
    """A strictly increasing map for each output of y; where networks are trained, and back.

    Parameters
    ----------
    kind : {"standard", "yeo-johnson", "quantile"}, default="standard"
        "standard" has mean 0 and variance 1. "yeo-johnson" bends y by a power first, the one
        under which it is likeliest to be normal, for skewed targets. "quantile" makes y
        normal through about 100 of its quantiles, fewer of small data, with a smooth curve
        between them.

    Attributes
    ----------
    outputs_ : tuple
        The maps, one an output.

    Notes
    -----
    The power of "yeo-johnson" is kept in [0, 2], where the map is onto. Farther beyond the
    data than their range is wide, the curve goes on as a straight line; that of "quantile" does
    so beyond the data. A constant y is centred only, until `narrow`.

    References
    ----------
    I. Yeo, R. Johnson. "A new family of power transformations to improve normality or
    symmetry", Biometrika 2000.

    Examples
    --------
    >>> import numpy as np
    >>> from skuq.tables import TargetTransform
    >>> y = np.exp(np.random.default_rng(0).normal(size=(500, 1)))
    >>> transform = TargetTransform("yeo-johnson").fit(y)
    >>> z = transform.forward(y)
    >>> bool(np.allclose(transform.inverse(z), y))
    True
    """

    def __init__(self, kind: str = "standard") -> None:
        if kind not in _KINDS:
            raise ValueError(f"`kind` must be one of {sorted(_KINDS)}. Got {kind!r}.")
        self.kind = kind

    def fit(self, y: np.ndarray, sample_weight: np.ndarray | None = None) -> TargetTransform:
        """Learn the maps.

        Parameters
        ----------
        y : ndarray of shape (n, m)
            Finite.
        sample_weight : ndarray of shape (n,), optional
            Positive.

        Returns
        -------
        self

        Raises
        ------
        ValueError
            If y has values so large that their variance overflows.
        """
        weight = np.ones(len(y)) if sample_weight is None else np.asarray(sample_weight)
        weight = weight / weight.sum()
        self.outputs_ = tuple(_learn(_KINDS[self.kind], column, weight) for column in y.T)
        return self

    def narrow(self, constant: np.ndarray) -> None:
        """Scale outputs that are constant (m,) by `constant_scale` instead of 1."""
        self.outputs_ = tuple(
            _Line(own.mean, constant_scale(own.mean)) if is_constant else own
            for own, is_constant in zip(self.outputs_, constant)
        )

    def forward(self, y) -> np.ndarray:
        """Transformed targets, of the same shape (.., m)."""
        return self._each("forward", y)

    def inverse(self, z) -> np.ndarray:
        """Targets, from transformed ones (.., m)."""
        return self._each("inverse", z)

    def log_derivative(self, y) -> np.ndarray:
        """Logarithm of the derivative of `forward` (.., m)."""
        return self._each("log_derivative", y)

    def output(self, k: int) -> Any:
        """The map of one output, for arrays without the output axis."""
        return self.outputs_[k]

    def _each(self, what, values):
        values = np.asarray(values, dtype="float64")
        return np.stack(
            [getattr(own, what)(values[..., k]) for k, own in enumerate(self.outputs_)], axis=-1
        )


def _learn(kind, y, weight):
    if np.ptp(y) == 0:
        return _Line(y[0], 1.0)
    with np.errstate(over="ignore", invalid="ignore"):  # seen below
        line = _Line(*_moments(y, weight))
    if line.scale == 0:  # values differ by less than squares can say
        return _Line(line.mean, np.ptp(y))
    if not np.isfinite([line.mean, line.scale]).all():
        raise ValueError(
            "y has values so large that their variance overflows float64. Rescale them, or "
            "drop the outliers."
        )
    return line if kind is _Line else kind.learn(y, weight)


def _moments(y, weight):
    mean = weight @ y
    return mean, np.sqrt(weight @ (y - mean) ** 2)


@saved_as("tables.TargetTransform.Line")
class _Line:
    """(y - mean) / scale."""

    def __init__(self, mean, scale):
        self.mean, self.scale = float(mean), float(scale)

    def forward(self, y):
        return (y - self.mean) / self.scale

    def inverse(self, z):
        return z * self.scale + self.mean

    def log_derivative(self, y):
        return np.full(np.shape(y), -np.log(self.scale))


_NOTICEABLE = 1e-6  # nats a row


@saved_as("tables.TargetTransform.Power")
class _Power:
    """Yeo and Johnson's power of y, standardised; straight far beyond the data.

    Parameters
    ----------
    power : float
        In [0, 2].
    mean, scale : float
        Of the powers.
    low, high : float
        Where the curve ends.
    """

    def __init__(self, power, mean, scale, low, high):
        self.power, self.mean, self.scale = power, mean, scale
        self.low, self.high = low, high

    @classmethod
    def learn(cls, y, weight):
        logs = weight @ (np.sign(y) * np.log1p(abs(y)))

        def loss(power):
            """Of the likelihood, maximal over mean and variance: their Eq. 3.1."""
            return np.log(_moments(_power(y, power), weight)[1]) - (power - 1) * logs

        with np.errstate(over="ignore", invalid="ignore"):
            found = optimize.minimize_scalar(
                lambda power: np.nan_to_num(loss(power), nan=np.inf),
                bounds=(0.0, 2.0),
                method="bounded",
                options={"xatol": 1e-8},
            )
        # Where powers hardly bend y, the likelihoods of all are equal but for rounding.
        rounding = 4 * np.finfo(float).eps * abs(y).max() / _moments(y, weight)[1]
        if not loss(found.x) < loss(1.0) - _NOTICEABLE - rounding:
            return _Line(*_moments(y, weight))  # what the power 1 is
        power = float(found.x)
        reach = np.ptp(y)
        mean, scale = _moments(_power(y, power), weight)
        if not (np.isfinite([mean, scale]).all() and scale > 0):
            return _Line(*_moments(y, weight))
        return cls(power, mean, scale, y.min() - reach, y.max() + reach)

    def forward(self, y):
        on_curve = np.clip(y, self.low, self.high)
        straight = (y - on_curve) * np.exp(self._log_slope(on_curve))
        return (_power(on_curve, self.power) - self.mean) / self.scale + straight

    def inverse(self, z):
        z_low, z_high = (self.forward(end) for end in (self.low, self.high))
        on_curve = np.clip(z, z_low, z_high)
        y = _inverse_power(on_curve * self.scale + self.mean, self.power)
        return y + (z - on_curve) * np.exp(-self._log_slope(y))

    def log_derivative(self, y):
        return self._log_slope(np.clip(y, self.low, self.high))

    def _log_slope(self, y):
        return (self.power - 1) * np.sign(y) * np.log1p(abs(y)) - np.log(self.scale)


def _power(y, power):
    """Their Eq. 2.1."""
    up, down = np.maximum(y, 0), np.maximum(-np.asarray(y), 0)
    return special.boxcox1p(up, power) - special.boxcox1p(down, 2 - power)


def _inverse_power(values, power):
    up, down = np.maximum(values, 0), np.maximum(-np.asarray(values), 0)
    return special.inv_boxcox1p(up, power) - special.inv_boxcox1p(down, 2 - power)


@saved_as("tables.TargetTransform.Scores")
class _Scores:
    """Normal scores of quantiles, as a curve from scores to y; straight beyond the data.

    The curve is y as a function of the score, since this way is gone far more often.

    Parameters
    ----------
    scores, values : ndarray of shape (n_knots,)
        Both increasing.
    """

    def __init__(self, scores, values):
        # One more knot on either side: the curve meets its straight ends with their slope.
        ends = [2 * scores[0] - scores[1], 2 * values[0] - values[1]]
        beyond = [2 * scores[-1] - scores[-2], 2 * values[-1] - values[-2]]
        self.scores = np.concatenate([ends[:1], scores, beyond[:1]])
        self.values = np.concatenate([ends[1:], values, beyond[1:]])
        self._interpolate()

    def _interpolate(self):
        self._curve = PchipInterpolator(self.scores, self.values)
        self._slope = self._curve.derivative()

    def __getstate__(self):
        # The curve follows from its knots, and the state of SciPy's objects is its own affair.
        return {"scores": self.scores, "values": self.values}

    def __setstate__(self, state):
        self.scores, self.values = state["scores"], state["values"]
        self._interpolate()

    @classmethod
    def learn(cls, y, weight):
        values, index = np.unique(y, return_inverse=True)
        mass = np.bincount(index, weight)
        # A value's level lies in the middle of its own mass: ties are no trouble.
        level = np.cumsum(mass) - mass / 2
        n_rows = 1 / (weight @ weight)  # Kish's, of uneven weights
        n_intervals = int(np.clip(n_rows // _ROWS_EACH, 1, _MOST_INTERVALS))
        levels = np.linspace(level[0], level[-1], n_intervals + 1)
        knots = np.interp(levels, level, values)
        scores = special.ndtri(np.clip(levels, _SMALLEST_LEVEL, 1 - _SMALLEST_LEVEL))
        most = np.interp(0.95, level, values) - np.interp(0.05, level, values)
        kept = _apart(scores, knots, _CLOSEST * (most if most > 0 else np.ptp(y)))
        return cls(scores[kept], knots[kept])

    def forward(self, y):
        y = np.asarray(y, dtype="float64")
        on_curve = np.clip(y, self.values[0], self.values[-1])
        return self._score(on_curve) + (y - on_curve) / self._end_slope(y > on_curve)

    def inverse(self, z):
        on_curve = np.clip(z, self.scores[0], self.scores[-1])
        return self._curve(on_curve) + (z - on_curve) * self._end_slope(z > on_curve)

    def log_derivative(self, y):
        on_curve = np.clip(y, self.values[0], self.values[-1])
        return -np.log(self._slope(self._score(on_curve)))

    def _end_slope(self, upper):
        slopes = np.diff(self.values[[0, 1, -2, -1]]) / np.diff(self.scores[[0, 1, -2, -1]])
        return np.where(upper, slopes[2], slopes[0])

    def _score(self, y):
        """Where the curve is at y, between its ends."""
        k = np.clip(np.searchsorted(self.values, y, "right"), 1, len(self.values) - 1)
        low, high = self.scores[k - 1], self.scores[k]
        root = elementwise.find_root(lambda z, y: self._curve(z) - y, (low, high), args=(y,))
        # At a knot rounding may leave no change of sign: the nearer end is the root.
        nearer = np.where(y - self.values[k - 1] < self.values[k] - y, low, high)
        return np.where(root.success, root.x, nearer)


def _apart(scores, values, gap):
    """Positions of knots with at least `gap` between values, both ends among them."""
    kept = [0]
    for k in range(1, len(values)):
        if values[k] - values[kept[-1]] > gap and scores[k] > scores[kept[-1]]:
            kept.append(k)
    last = len(values) - 1
    if kept[-1] != last:
        if len(kept) > 1:
            kept.pop()
        kept.append(last)
    return kept


_KINDS = {"standard": _Line, "yeo-johnson": _Power, "quantile": _Scores}
