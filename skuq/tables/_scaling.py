"""Scales of X and y, and monotone transforms of y."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import optimize, special
from scipy.interpolate import PchipInterpolator
from scipy.optimize import elementwise
from sklearn.preprocessing import StandardScaler

from skuq._formulas import QUARTILES, SQUARABLE
from skuq.files._registry import saved_as

# Bound of standardised inputs. Outputs of deep networks can grow like powers of their inputs, and
# would overflow float64 for larger inputs.
FARTHEST = 1e6

_LEAST_STD = 1e-153  # smallest standard deviation of y; its square is normal in float64


def clip_columns(xp: Any, z: Any, low: Any, high: Any) -> Any:
    """Bound columns by arrays (d,), which `clip` of Keras could not save."""
    return xp.minimum(xp.maximum(z, low), high)


def hard_clip(xp: Any, z: Any) -> Any:
    """Clip standardised values (arrays or tensors) at a million standard deviations."""
    return xp.clip(z, -FARTHEST, FARTHEST)


def smooth_clip(xp: Any, z: Any, bound: int = 3) -> Any:
    """Bound standardised values smoothly: z / sqrt(1 + (z / bound)**2)."""
    z = hard_clip(xp, z)  # keeps squares finite
    return z / xp.sqrt(1 + (z / bound) ** 2)


def refuse_overflow(values: np.ndarray, sound: np.ndarray, names: Sequence[Any] | None) -> None:
    """Raise ValueError that names the first column of (n, d) that is not sound (d,)."""
    if not sound.all():
        k = int(np.argmin(sound))
        raise ValueError(
            f"Column {k if names is None else names[k]} has values so large that their variance "
            f"overflows float64, such as {values[abs(values[:, k]).argmax(), k]:.6g}. Rescale it, "
            "or drop the outliers."
        )


def target_names(n_outputs: int) -> list[str]:
    """Name the outputs of y, for messages."""
    return ["y"] if n_outputs == 1 else [f"{k} of y" for k in range(n_outputs)]


def standard(
    values: np.ndarray, weight: np.ndarray | None = None, names: Sequence[Any] | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Compute mean and standard deviation of each column of (n, d); 1 for a constant column.

    Raises ValueError if a variance overflows.
    """
    with np.errstate(over="ignore", invalid="ignore"):  # checked below
        spread = np.ptp(values, axis=0)
        # A large constant has a variance, by rounding, which can overflow.
        scaler = StandardScaler().fit(
            np.where(spread == 0, 0.0, values) if (spread == 0).any() else values,
            sample_weight=weight,
        )
    # The mean of a constant column is its value, without the rounding of a sum.
    mean, scale = np.where(spread == 0, values[0], scaler.mean_), scaler.scale_
    refuse_overflow(values, np.isfinite(mean) & np.isfinite(scaler.var_), names)
    # scikit-learn also takes columns for constant that vary little relative to their mean, or
    # whose variance underflows, and gives them the scale 1.
    varies = (scale == 1) & (scaler.var_ != 1) & (spread > 0)
    if varies.any():
        first, spread = values[0, varies], spread[varies]
        scaler.fit((values[:, varies] - first) / spread, sample_weight=weight)
        mean[varies], scale[varies] = first + spread * scaler.mean_, spread * scaler.scale_
    return mean, scale


@saved_as("tables.Scaling")
class Scaling:
    """Scale every column of X to zero mean and unit variance.

    Constant columns are only centred.

    Parameters
    ----------
    passthrough : sequence of int, default=()
        Columns of X that are not scaled, such as codes for an embedding.
    limits : pair of ndarray of shape (n_features,), optional
        Smallest and largest value of each column; values beyond are replaced by the nearer one.

    Attributes
    ----------
    mean_, scale_ : ndarray of shape (n_features,)
        Location and scale of each column: it becomes ``(x - mean_) / scale_``, clipped at a
        million.
    """

    #: Function ``clip(xp, z)`` that bounds standardised inputs.
    clip = staticmethod(hard_clip)

    #: Function ``(X, weight, names)`` that computes location and scale of each column.
    _learn: Any = staticmethod(standard)

    def __init__(
        self, passthrough: Sequence[int] = (), limits: tuple[np.ndarray, np.ndarray] | None = None
    ) -> None:
        self.passthrough = list(passthrough)
        self.limits = limits

    def fit(
        self,
        X: np.ndarray,
        sample_weight: np.ndarray | None = None,
        names: Sequence[Any] | None = None,
    ) -> Scaling:
        """Learn location and scale from finite rows X (n, d), with positive weights if given.

        Raise ValueError if values are too large; it names the column by `names` or its position.
        """
        X = X if self.limits is None else np.clip(X, *self.limits)
        self.mean_, self.scale_ = self._learn(X, sample_weight, names)
        self.mean_[self.passthrough], self.scale_[self.passthrough] = 0.0, 1.0
        return self

    def transform(self, X: Any, xp: Any = np) -> Any:
        """Standardise X, an array or a tensor with operations `xp`."""
        X = X if self.limits is None else clip_columns(xp, X, *self.limits)
        # Not by scikit-learn's transform, which would validate X again: for one row that costs
        # more than a small network.
        with np.errstate(over="ignore"):  # values that overflow are clipped
            z = self.clip(xp, (X - self.mean_) / self.scale_)
        if not self.passthrough:
            return z
        return xp.where(np.isin(np.arange(len(self.mean_)), self.passthrough), X, z)


@saved_as("tables.RobustScaling")
class RobustScaling(Scaling):
    """Scale columns of X to zero median and unit interquartile range, smoothly bounded by 3.

    If half of the rows have the median itself, quartiles may be much closer than the other values.
    Half the median distance of these from the median is used if it is larger; for columns with two
    values this is half the range, as in the paper. A column that is constant in training always
    becomes 0. A single outlier among several values does not change the scale. Sample weights are
    ignored.

    References
    ----------
    D. Holzmüller, L. Grinsztajn, I. Steinwart. "Better by Default: Strong Pre-Tuned MLPs and
    Boosted Trees on Tabular Data", NeurIPS 2024.
    """

    clip = staticmethod(smooth_clip)

    @staticmethod
    def _learn(columns: np.ndarray, weight: Any, names: Any) -> tuple[np.ndarray, np.ndarray]:
        """Learn medians and interquartile ranges, or distances of values other than the median."""
        with np.errstate(over="ignore", invalid="ignore"):  # checked below
            first, median, third = np.quantile(columns, QUARTILES, axis=0)
            scale = third - first
        for k in np.flatnonzero((columns == median).mean(axis=0) >= 0.5):
            others = columns[columns[:, k] != median[k], k]
            # Halve first, since the distance of two numbers can overflow.
            if len(others):
                scale[k] = max(scale[k], np.median(abs(others / 2 - median[k] / 2)))
        refuse_overflow(columns, np.isfinite(scale), names)
        # Divide constant columns by infinity, so that they are 0 in prediction, too.
        return median, np.where(scale > 0, scale, np.inf)


@saved_as("tables.ImageScaling")
class ImageScaling(Scaling):
    """Scale every channel of images to zero mean and unit variance, over all pixels.

    A scale for each pixel would amplify pixels that are nearly always black.

    Parameters
    ----------
    shape : tuple of int
        Shape (height, width, channels) of the images, which are given as flat rows.
    """

    def __init__(self, shape: Sequence[int]) -> None:
        super().__init__()
        self.shape = tuple(shape)

    def fit(
        self,
        X: np.ndarray,
        sample_weight: np.ndarray | None = None,
        names: Sequence[Any] | None = None,
    ) -> ImageScaling:
        """Learn location and scale of each channel from flat rows or images."""
        pixels = X.reshape(-1, self.shape[-1])
        if sample_weight is not None:
            sample_weight = np.repeat(sample_weight, len(pixels) // len(X))
        super().fit(pixels, sample_weight, [f"{k} of the channels" for k in range(self.shape[-1])])
        return self

    def transform(self, X: Any, xp: Any = np) -> Any:
        """Standardise flat rows or images, and return images (n, height, width, channels)."""
        return super().transform(X if xp is not np else X.reshape(len(X), *self.shape), xp)


@saved_as("tables.NoScaling")
class NoScaling(Scaling):
    """Leave columns unscaled, for data that already have a suitable scale."""

    @staticmethod
    def _learn(columns: np.ndarray, weight: Any, names: Any) -> tuple[np.ndarray, np.ndarray]:
        """Check the size of the values; means are 0 and scales 1."""
        mean, scale = standard(columns, weight, names)  # raises an error if values overflow
        if abs(columns).max() > FARTHEST:
            raise ValueError(
                f"X that is not standardised must lie within {FARTHEST:g} of 0; networks train "
                f"best within 1. Got {columns.flat[abs(columns).argmax()]:.6g}. Scale it, or set "
                "`standardize=True`."
            )
        return np.zeros_like(mean), np.ones_like(scale)


def check_target_sizes(y: np.ndarray, scale: np.ndarray | None = None) -> None:
    """Raise ValueError if squares of y (n, m), or of its scale (m,), leave the range of floats."""
    names = target_names(y.shape[1])
    refuse_overflow(y, abs(y).max(axis=0) <= SQUARABLE, names)
    if scale is not None and scale.min() < _LEAST_STD:
        raise ValueError(
            f"Column {names[scale.argmin()]} has values so small that their variance underflows "
            f"float64. Rescale y. Its standard deviation is below {_LEAST_STD}."
        )


@saved_as("tables.TargetScaling")
class TargetScaling:
    """Scale every output of y to zero mean and unit variance, and convert predictions back.

    An output of equal values is only centred, until `rescale_equal` is called.

    Parameters
    ----------
    standardize : bool, default=True
        Standardise y. False leaves it unchanged.

    Attributes
    ----------
    mean_, scale_ : ndarray of shape (n_outputs,)
        Mean and scale of each output.
    """

    def __init__(self, standardize: bool = True) -> None:
        self.standardize = standardize

    def fit(self, y: np.ndarray, sample_weight: np.ndarray | None = None) -> TargetScaling:
        """Learn mean and scale from finite targets y (n, m), with positive weights if given."""
        check_target_sizes(y)
        self.mean_, self.scale_ = standard(y, sample_weight)
        check_target_sizes(y, self.scale_)
        if not self.standardize:
            self.mean_, self.scale_ = np.zeros_like(self.mean_), np.ones_like(self.scale_)
        return self

    def rescale_equal(self, is_equal: np.ndarray, n: int) -> None:
        """Scale outputs whose `n` values are equal (m,) by `scale_of_equal_values`."""
        self.scale_ = np.where(is_equal, scale_of_equal_values(self.mean_, n), self.scale_)

    def forward(self, y: np.ndarray) -> np.ndarray:
        """Standardise y (.., m)."""
        return (y - self.mean_) / self.scale_

    def restore(self, loc: Any, scale: Any) -> tuple[Any, Any]:
        """Convert means and standard deviations (.., m) to units of y; arrays or tensors."""
        return loc * self.scale_ + self.mean_, scale * self.scale_


# Fewest equal values that show a constant. After n equal values the next one is another with
# probability 1 / (n + 2), by Laplace's rule of succession. With 20 it is below the 5 % that an
# interval of 95 % may miss.
_VALUES_OF_A_CONSTANT = 20


def scale_of_equal_values(value: Any, n: int) -> Any:
    """Return the scale of `n` targets that all have one value.

    Below 20 targets, the next one may differ: with probability 1 / (n + 2), and by about the size
    of the value (by 1, if that is 0). The scale is the standard deviation of that difference.
    From 20 targets on they count as a constant. The scale is then the precision of float32 at the
    value, so that small errors of the networks, which compute in float32, vanish.
    """
    # Squares of it are not 0.
    size = np.where(np.equal(value, 0), 1.0, np.maximum(np.abs(value), 1e-100))
    return size * ((n + 2) ** -0.5 if n < _VALUES_OF_A_CONSTANT else np.finfo("float32").eps)


# Knots of the quantile map: smallest number of rows between two knots, and most intervals.
_ROWS_EACH, _MOST_INTERVALS = 10, 100
_CLOSEST = 1e-6  # smallest distance of two knots, relative to the central 90% of the values
_SMALLEST_LEVEL = 1e-9  # levels are clipped, so that normal scores are finite


@saved_as("tables.TargetTransform")
class TargetTransform:
    """Transform each output of y by a strictly increasing map.

    Parameters
    ----------
    kind : {"standard", "yeo-johnson", "quantile"}, default="standard"
        "standard" scales to mean 0 and variance 1. "yeo-johnson", for skewed targets, applies a
        power transform first, with the power of maximum likelihood under normality. "quantile"
        maps about 100 quantiles of y (fewer for small data) to those of a normal distribution,
        with a smooth curve between them.

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

    References
    ----------
    I. Yeo, R. Johnson. "A new family of power transformations to improve normality or
    symmetry", Biometrika 2000.
    """

    def __init__(self, kind: str = "standard") -> None:
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
            underflows.
        """
        weight = np.ones(len(y)) if sample_weight is None else np.asarray(sample_weight)
        weight = weight / weight.sum()
        check_target_sizes(y)
        kind: Any = _KINDS[self.kind]
        outputs = [_Line(*moments(column, weight)) for column in y.T]
        is_constant = np.ptp(y, axis=0) == 0
        scales = np.array([line.scale for line in outputs])
        check_target_sizes(y, np.where(is_constant, 1.0, scales))
        for k, column in enumerate(y.T):
            if is_constant[k]:
                outputs[k] = _Line(column[0], 1.0)
            elif kind is not _Line:
                outputs[k] = kind.learn(column, weight)
        self.outputs_ = tuple(outputs)
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
            return np.log(moments(_power(y, power), weight)[1]) - (power - 1) * logs

        with np.errstate(over="ignore", invalid="ignore"):
            found = optimize.minimize_scalar(
                lambda power: np.nan_to_num(loss(power), nan=np.inf),
                bounds=(0.0, 2.0),
                method="bounded",
                options={"xatol": 1e-8},
            )
        if not loss(found.x) < loss(1.0) - _NOTICEABLE:
            return line
        power = float(found.x)
        reach = np.ptp(y)
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
        scores, values = scores[positions], knots[positions]
        # Add a knot on either side, so that the curve has the slope of its straight ends there.
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
        on_curve = np.clip(y, self.values[0], self.values[-1])
        return -np.log(self._slope(self._score(on_curve)))

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


_KINDS = {"standard": _Line, "yeo-johnson": Power, "quantile": _Scores}
