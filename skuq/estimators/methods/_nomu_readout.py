"""NOMU's readout: hold rows out, choose it by their likelihood, and read it as affine functions.

The readout maps the raw uncertainty r to standard deviations. Its parameters are c, l_min, l_max
and a factor of the noise. The rules for few rows were chosen on toy functions of eight rows; see
"Few rows" in docs/methods/nomu.md.
"""

import types
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any, NamedTuple

import numpy as np
from scipy import spatial, stats
from sklearn.model_selection import GroupKFold, KFold

from skuq._messages import warn_user
from skuq._params import first_true
from skuq._random import generator
from skuq.estimators._task import warn_if_worse
from skuq.estimators.methods._nomu_training import Part
from skuq.exceptions import SmallValidationWarning
from skuq.fitted._fitted_nomu import FittedNomu, Readout, TrainedNomu, split_sides
from skuq.networks import NOMUReadout
from skuq.networks._nomu_network import L_MAXS, L_MINS, READOUTS
from skuq.networks._operations import Namespace, Run
from skuq.networks._plan import make_plan
from skuq.predictive._calibration import fit_correlation
from skuq.predictive._epistemic_scale import fit_epistemic_scale, fit_readout
from skuq.tables._inputs import Rows, TableInputs
from skuq.tables._splits import make_splits
from skuq.tables._targets import NumberTargets

_MIN_ROWS_FOR_EQUAL_FOLDS = 100  # with fewer rows, none is left out to make folds equal
_FOLDS_BELOW_ROWS = ((30, 10), (500, 5))  # validation="auto": (number of rows, folds below it)
_SHARE = 0.2  # of the rows that validation="auto" holds out with more rows, as the paper on UCI
_N_GAPS = 5  # folds of each of the two kinds with validation="gaps"

_FEW_ROWS = 30  # held-out rows; with fewer the likelihood chooses neither l_min nor l_max
_L_MIN, _L_MAX = 0.005, 2.0  # used if the likelihood does not choose them; l_min only at first
_SHARES = np.geomspace(0.001, 0.2, 30)  # of l_max, compared as l_min if it follows the rule
# Log likelihood, for each held-out row, that the band may lose by closing at the rows if the data
# are known to have no noise.
_MOST_LOST = 0.5
_AT_ROWS = 0.15  # mean widths of the band: more is not asked for at the rows where f meets them
_WIDEST = 5.0  # mean width of bands that are compared, in held-out errors or deviations of y
_MOST_DISTANCES = 256  # of held-out rows of a network to the nearest of its own rows
_QUANTILE = 0.95  # the upper end of 90 % intervals
_PRIOR_ROWS = 8  # with at most so many held-out rows the band is on average as wide as y varies


def split_parts(
    validation: Any, rows: Rows, entropy: int, groups: Any, units: Any = None, *, refits: bool
) -> list[Part]:
    """List positions among the rows of positive weight to train and to choose on, of each network.

    Parameters
    ----------
    validation : float, int, cross-validation generator, "gaps" or "auto"
        The estimator's parameter: a share of the rows gives one network, folds one network each.
    rows : Rows
    entropy : int
    groups : ndarray of shape (n,) or None
        Codes of groups that are not split.
    units : ndarray of shape (n,) or None
        Numbers that equal rows share, which are not split, either.
    refits : bool
        Whether a network is trained on all rows afterwards. Folds need it.
    """
    used, n = rows.used, len(rows.used)
    if isinstance(validation, str) and validation == "auto":
        together = units if groups is None else groups
        n_units = n if together is None else len(np.unique(together[used]))
        most = next((k for below, k in _FOLDS_BELOW_ROWS if n < below), None)
        # With many rows a single split is enough.
        validation = min(most, n_units) if most and refits and n_units > 1 else _SHARE
    # The number that numbered folds and those of gaps are shuffled with.
    seed = int(generator(entropy, "split").integers(2**31))
    if isinstance(validation, str):
        if groups is not None:
            raise ValueError(
                '`groups` cannot be kept together with validation="gaps". Drop one of them.'
            )
        folds = KFold(min(_N_GAPS, n), shuffle=True, random_state=seed)
        parts: Any = make_splits(rows, entropy, folds, units=units).parts
        # Folds that hold out the middle third of the rows along features drawn at random, as the
        # UCI gap splits do (Foong et al. 2019).
        X, third = rows.X[used], n // 3
        units = None if units is None else units[used]
        if not third:
            raise ValueError(
                f'validation="gaps" holds out thirds of the rows. Got n_samples={len(X)}.'
            )
        features = np.flatnonzero(np.ptp(X, axis=0) > 0)  # constant ones have no middle
        gaps: list[Part] = []
        for feature in generator(entropy, "gaps").permutation(features)[:_N_GAPS]:
            order = np.argsort(X[:, feature], kind="stable")
            outside, gap = np.concatenate([order[:third], order[-third:]]), order[third:-third]
            if units is not None:  # rows that equal one in the gap do not train
                others = outside[~np.isin(units[outside], units[gap])]
                outside = others if len(others) else outside
            gaps.append((np.sort(outside), np.sort(gap)))
        return [*parts, *gaps]
    if isinstance(validation, Integral):
        kind = KFold if groups is None else GroupKFold
        validation = kind(validation, shuffle=True, random_state=seed)
    # A splitter of the user's is checked to hold each row out once.
    splits = make_splits(rows, entropy, validation, groups=groups, units=units)
    parts = splits.parts
    if parts is None:  # a share of the rows
        held_out = np.searchsorted(used, np.asarray(splits.positions))
        return [(np.setdiff1d(np.arange(n), held_out), held_out)]
    if groups is None and units is None and n >= _MIN_ROWS_FOR_EQUAL_FOLDS:
        # Equal folds train in one program: leave out the few rows by which they differ.
        n_train, n_valid = (min(map(len, part)) for part in zip(*parts))
        parts = [(train[:n_train], valid[:n_valid]) for train, valid in parts]
    return list(parts)


class Evidence(NamedTuple):
    """Networks and rows by which a readout is chosen.

    Attributes
    ----------
    held_out : list of (TrainedNomu, Rows, Rows)
        Networks, each with rows that it was not trained on, and the rows that it was trained on.
    network : TrainedNomu
        Final network.
    rows : Rows
        Training rows of the final network.
    raw : ndarray of shape (n, n_sides * m)
        Raw uncertainty of the final network at artificial inputs.
    distance : ndarray of shape (n,)
        Distances of these inputs to the nearest row, standardised.
    inputs, targets : TableInputs, NumberTargets
        Fitted.
    """

    held_out: list[tuple[TrainedNomu, Rows, Rows]]
    network: TrainedNomu
    rows: Rows
    raw: np.ndarray
    distance: np.ndarray
    inputs: TableInputs
    targets: NumberTargets

    def errors(self, network: TrainedNomu, rows: Rows) -> tuple[Any, ...]:
        """Compute errors, raw uncertainty and noise of rows, standardised, and their weights."""
        mean, raw, noise = network.predict(rows.X, self.inputs, self.targets)
        unit = self.targets.scaling.scale_
        return (rows.y - mean) / unit, raw, None if noise is None else noise / unit, rows.weight

    def level(self, network: TrainedNomu, rows: Rows) -> float:
        """Compute the raw uncertainty of a network at its own rows: the median, at least 0."""
        _, raw, _ = network.predict(rows.X, self.inputs, self.targets)
        return float(max(np.median(raw), 0.0))

    def training_error(self) -> float:
        """Compute the root mean square error of f at its rows, without the noise's variance."""
        error, _, noise, weight = self.errors(self.network, self.rows)
        square = error**2 if noise is None else error**2 - noise**2
        return float(np.sqrt(max(np.average(square.mean(axis=1), weights=weight), 0.0)))


def warn_of_few_rows(settings: NOMUReadout, n_rows: int) -> None:
    """Warn if the likelihood of few held-out rows is to choose the readout."""
    chosen = [name for name in ("c", "l_min", "l_max") if getattr(settings, name) == "nll"]
    if chosen and n_rows < _FEW_ROWS:
        better = f"{' and '.join(chosen)} at" if len(chosen) < 3 else "all three at"
        warn_user(
            f"The likelihood of {n_rows} held-out rows is too uncertain to choose "
            f'{", ".join(chosen)}. Leave {better} "auto". If the data have no noise, set '
            "noise_std=0.0.",
            SmallValidationWarning,
        )


class _HeldOut(NamedTuple):
    """Held-out rows as standardised arrays (n, m), and their weights (n,).

    The likelihood depends on the widths on both sides of the prediction, and on the side where y
    lies: `near` is the raw uncertainty on that side, `far` on the other. `noise` can be None.
    """

    error: np.ndarray
    near: np.ndarray
    far: np.ndarray
    noise: np.ndarray | None
    weight: np.ndarray

    @property
    def square(self) -> float:
        """Mean square error."""
        return float(np.average(np.square(self.error).mean(axis=1), weights=self.weight))


def choose_readout(
    settings: NOMUReadout, band: str, evidence: Evidence, *, noiseless: bool, learns_noise: bool
) -> Readout:
    """Choose those of l_min, l_max, c and the noise's factor that the settings do not give.

    Parameters
    ----------
    settings : NOMUReadout
    band : {"symmetric", "asymmetric"}
    evidence : Evidence
    noiseless : bool
        Whether the data have no noise: then l_min and l_max follow rules, however many rows.
    learns_noise : bool
        Whether the noise is learnt: then it may get a factor.
    """
    held_out, levels = _collect_rows(band, evidence)
    # Few rows cannot tell l_min and l_max; without noise the band is to close at the rows.
    few, level = len(held_out.error) < _FEW_ROWS or noiseless, 0.0
    if few and settings.c == settings.l_min == "auto":
        # Subtract the raw uncertainty that a network has at its own rows. Given numbers refer to
        # the raw uncertainty as it is: nothing is subtracted where c or l_min is a number.
        level = evidence.level(evidence.network, evidence.rows)
        near, far = held_out.near - levels, held_out.far - levels
        held_out = held_out._replace(near=near, far=far)
    raw, readout = evidence.raw - level, _choose_limits(settings, band, held_out, few)
    if follows_rule := few and settings.l_min == "auto":
        readouts = [
            _fit_factors(replace(readout, l_min=float(l_min)), settings.c, held_out, learns_noise)
            for l_min in readout.l_max * _SHARES
        ]
        at_rows = evidence.training_error()
        next_to_rows = _error_next_to_rows(evidence, held_out, raw)
        readout = _choose_l_min(readouts, held_out, raw, at_rows, next_to_rows, noiseless)
    else:
        readout = _fit_factors(readout, settings.c, held_out, learns_noise)
    if settings.c == "auto":
        # A constant y has no errors to choose by: the prior counts in full.
        share = min(_PRIOR_ROWS / len(held_out.error), 1) if np.ptp(evidence.rows.y) else 1.0
        # A constant would err by 1. Where f errs by more, y varies faster than few rows can show,
        # and errors between them are as large as those at held-out rows.
        prior = np.sqrt(share**2 + few * max(held_out.square - 1, 0))
        readout = _widen(readout, raw, prior, len(held_out.error), follows_rule)
        # Outside the box it widens as fast as it does between the rows.
        size = np.sqrt(np.mean(evidence.distance**2))
        readout = replace(readout, growth=float(_width(readout, raw) / size) if size > 0 else 0.0)
    near, _ = _widths(readout, held_out)
    correlation = fit_correlation(held_out.error / near, held_out.weight)
    return replace(readout, level=level, correlation=correlation)


def _choose_l_min(
    readouts: list[Readout],
    rows: _HeldOut,
    raw: np.ndarray,
    at_rows: float,
    next_to_rows: float,
    noiseless: bool,
) -> Readout:
    """Choose the smallest l_min of readouts under which the band at the rows is wide enough.

    The band there is ``c * l_min``. It is to be as wide as f errs at its rows (`at_rows`) and where
    r counts as none (`next_to_rows`), and held-out rows are to be most likely. If the data are
    known to have no noise, half of `next_to_rows` is enough, and they may be less likely.
    """
    factor, lost = (0.5, _MOST_LOST * len(rows.error)) if noiseless else (1.0, 0.0)
    widest, allowed = _WIDEST * max(1.0, np.sqrt(rows.square)), []
    for readout in readouts:
        width = _width(readout, raw)
        least = max(at_rows, factor * min(next_to_rows, _AT_ROWS * width))
        if readout.c * readout.l_min >= least and width <= widest:
            allowed.append(readout)
    allowed = allowed or readouts[-1:]
    likelihood = np.array([_log_likelihood(readout, rows) for readout in allowed])
    return allowed[int(np.argmax(likelihood >= likelihood.max() - lost))]


def _widen(
    readout: Readout, raw: np.ndarray, prior: float, n_rows: int, follows_rule: bool
) -> Readout:
    """Raise c by the width that the band has a priori, and by a factor for few held-out rows.

    ``c**2 = factor**2 * (c_nll**2 + (prior / width)**2)``, where 1 / width makes the band as wide
    as y varies. If l_min follows the rule, the band at the rows then becomes `factor` times what it
    was: the prior widens the band between the rows only.
    """
    # Widen intervals as Student's t does. Errors at neighbours resemble each other: two rows
    # count as one. Fewer than eight count as eight; with them the prior counts in full anyway.
    factor = stats.t.ppf(_QUANTILE, max(n_rows / 2 - 1, 3)) / stats.norm.ppf(_QUANTILE)
    width = _width(readout, raw) / readout.c
    c = float(factor * np.hypot(readout.c, prior / width))
    if follows_rule:
        least, largest = readout.l_max * _SHARES[[0, -1]]
        l_min = factor * readout.c * readout.l_min / c
        readout = replace(readout, l_min=float(np.clip(l_min, least, largest)))
    return replace(readout, c=c)


def _log_likelihood(readout: Readout, rows: _HeldOut) -> float:
    """Compute the log likelihood of held-out rows, without constants."""
    near, far = _widths(readout, rows)
    loss = np.log(near + far) + 0.5 * (rows.error / near) ** 2
    return float(-(rows.weight @ loss.sum(axis=1)) * len(loss) / rows.weight.sum())


def _widths(readout: Readout, rows: _HeldOut) -> list[np.ndarray]:
    """Compute standard deviations (n, m) on the side on which y lies, and on the other one."""
    noise = 0.0 if rows.noise is None else readout.noise_factor * rows.noise
    return [np.hypot(readout.c * readout.std(raw), noise) for raw in (rows.near, rows.far)]


def _width(readout: Readout, raw: np.ndarray) -> float:
    """Compute the root mean square of the band's width over artificial inputs."""
    return float(readout.c * np.sqrt(np.mean(readout.std(raw) ** 2)))


def _fit_factors(readout: Readout, c: Any, rows: _HeldOut, learns_noise: bool) -> Readout:
    """Fit the factors c and of the noise by the likelihood of held-out rows, unless c is given."""
    if not isinstance(c, str):
        return replace(readout, c=c)
    near, far = readout.std(rows.near), readout.std(rows.far)
    c, noise_factor = fit_epistemic_scale(
        rows.error, near, rows.noise, rows.weight, fit_noise=learns_noise, beyond=far
    )
    return replace(readout, c=c, noise_factor=noise_factor)


def _error_next_to_rows(evidence: Evidence, rows: _HeldOut, raw: np.ndarray) -> float:
    """Estimate the root mean square error of f where its raw uncertainty counts as none.

    These are the artificial inputs with ``raw <= 0``. Errors are taken to grow in proportion to the
    distance from the rows, as fast as to held-out rows. Those above the deviation of y count as it.
    """
    distances, inputs = [], evidence.inputs
    for _, held_out, own in evidence.held_out:
        some = held_out.X[:: -(-len(held_out.X) // _MOST_DISTANCES)]
        tree = spatial.cKDTree(inputs.transform(own.X))
        distances.append(tree.query(inputs.transform(some))[0])
    square = np.average(np.minimum(rows.error**2, 1).mean(axis=1), weights=rows.weight)
    square_distance = np.mean(np.concatenate(distances) ** 2)
    closed = np.broadcast_to(evidence.distance[:, None], raw.shape)[raw <= 0]
    if not len(closed) or square_distance == 0:
        return 0.0
    return float(np.sqrt(square / square_distance * np.mean(closed**2)))


def _collect_rows(band: str, evidence: Evidence) -> tuple[_HeldOut, np.ndarray]:
    """Collect the held-out rows of all networks, and the levels (n, 1) of r at their own rows."""
    parts = [evidence.errors(network, rows) for network, rows, _ in evidence.held_out]
    errors, raws, noises, weights = zip(*parts)
    levels = [
        np.full((len(rows.X), 1), evidence.level(network, own))
        for network, rows, own in evidence.held_out
    ]
    error, weight = np.concatenate(errors), np.concatenate(weights)
    mean = np.average(evidence.rows.y, axis=0, weights=evidence.rows.weight)
    unit = evidence.targets.scaling.scale_
    of_constant = np.concatenate([rows.y - mean for _, rows, _ in evidence.held_out])
    own, constant = (np.square(v).sum(axis=1) for v in (error, of_constant / unit))
    warn_if_worse(own, constant, weight)
    up, down = split_sides(np.concatenate(raws), band)
    near, far = np.where(error > 0, up, down), np.where(error > 0, down, up)
    noise = None if noises[0] is None else np.concatenate(noises)
    return _HeldOut(error, near, far, noise, weight), np.concatenate(levels)


def _choose_limits(settings: NOMUReadout, band: str, rows: _HeldOut, few: bool) -> Readout:
    """Choose l_min and l_max: by likelihood, or fixed ones with `few` rows."""

    def candidates(given, fixed, grid):
        # The given value, the one of the rule, or all of the grid.
        if given == "nll" or (given == "auto" and not few):
            return grid
        return np.array([fixed if given == "auto" else given])

    least = 0.0 if isinstance(settings.l_min, str) else 2 * settings.l_min
    l_maxs = candidates(settings.l_max, max(_L_MAX, least), L_MAXS)
    l_mins = candidates(settings.l_min, min(_L_MIN, 0.5 * l_maxs[0]), L_MINS)
    # With one candidate each there is nothing to choose.
    l_min, l_max = l_mins[0], l_maxs[0]
    if len(l_mins) > 1 or len(l_maxs) > 1:
        l_min, l_max, _ = fit_readout(
            rows.error,
            rows.near,
            READOUTS[settings.kind],
            rows.weight,
            l_mins,
            l_maxs,
            aleatoric=rows.noise,
            raw_beyond=rows.far,
        )
    return Readout(settings.kind, band, l_min, l_max)


@dataclass(frozen=True, eq=False)
class ReluReadout:
    """Mean and standard deviation of a network whose outputs are affine in ReLU units.

    ``readout(X)`` computes both for rows X (n, d): two arrays (n,) in units of y. With
    v = (x, h_1, h_2, ..), hidden layer k is ``h_k = max(0, v_<k W_k + b_k)``: it may use x and
    every unit before it.

    Attributes
    ----------
    hidden : tuple of (ndarray of shape (n_before, n_units), ndarray of shape (n_units,))
        Weights and biases of each hidden layer; ``n_before`` counts the inputs and all units
        before it.
    mean : tuple of (ndarray of shape (n_all,), float)
        Weights of inputs and units for the mean, and an offset; in units of y.
    raw : tuple of (ndarray of shape (n_all,), float)
        Weights and offset for the raw uncertainty r.
    l_min, l_max : float
        Range of the readout: the standard deviation is ``unit * clip(r, l_min, l_max)``.
    unit : float
        Scale of y.
    """

    hidden: tuple[tuple[np.ndarray, np.ndarray], ...]
    mean: tuple[np.ndarray, float]
    raw: tuple[np.ndarray, float]
    l_min: float
    l_max: float
    unit: float

    def __call__(self, X):
        values = np.asarray(X, dtype="float64")
        for kernel, bias in self.hidden:
            values = np.hstack([values, np.maximum(values @ kernel + bias, 0)])
        mean, raw = (values @ weights + offset for weights, offset in (self.mean, self.raw))
        return mean, self.unit * np.clip(raw, self.l_min, self.l_max)


# Weights for mixed integer programmes: a network's plan needs only products, sums and
# concatenation. Here it runs on affine expressions of the inputs and of the units so far, in place
# of arrays, and records every ReLU layer it meets.


def read_relu_readout(fitted: FittedNomu) -> ReluReadout:
    """Read the weights of a `FittedNomu` of one output, in units of X and of y.

    Raises ValueError if a mixed integer programme cannot hold its bound.
    """
    network, head, readout = fitted.network, fitted.network.head, fitted.readout
    encodes, n_outputs = fitted.inputs.encodes, fitted.targets.n_outputs
    needs = {
        f'readout="linear" (Remark 3.2). Got {readout.kind!r}': readout.kind != "linear",
        f'band="symmetric". Got {readout.band!r}': readout.band != "symmetric",
        "a prediction of its own: `pretrained` is some other model": network.given is not None,
        "the columns of X as they are, and `preprocess` makes others of them": encodes,
        f"one output. Got {n_outputs}": n_outputs != 1,
    }
    if missing := first_true(needs):
        raise ValueError(f"A mixed integer programme needs {missing}.")
    x, y = fitted.inputs.scaling, fitted.targets.scaling
    # The network standardises X; its affine functions are those of X itself.
    trace = _Trace(len(x.mean_))
    inputs = (trace.inputs - x.mean_) * (1 / x.scale_)
    output = trace.run(network.member, inputs)
    raw = output[head.n_outputs * head.with_mean :] - readout.level
    mean = output if network.mean_member is None else trace.run(network.mean_member, inputs)
    mean = mean[:1] * y.scale_ + y.mean_
    l_min, l_max, unit = map(float, (readout.l_min, readout.l_max, readout.c * y.scale_[0]))
    hidden, of_mean, of_raw = tuple(trace.hidden), trace.row(mean), trace.row(raw)
    return ReluReadout(hidden, of_mean, of_raw, l_min, l_max, unit)


class _Trace:
    """Record of the ReLU layers met so far; `hidden` is as in `ReluReadout`."""

    def __init__(self, n_inputs):
        self.hidden, self._n = [], n_inputs
        self.inputs = _Affine(np.eye(n_inputs), np.zeros(n_inputs))

    def run(self, member, inputs):
        """Run a member's network on expressions."""
        plan = make_plan(member.network)
        if plan is None:
            raise ValueError("A mixed integer programme needs a network of dense layers.")
        weights = plan.split(np.asarray(member.weights, dtype="float64"))
        state = [np.asarray(value, dtype="float64") for value in member.state]
        xp = types.SimpleNamespace(
            matmul=lambda x, kernel: x @ kernel, concatenate=_concatenate, sqrt=np.sqrt
        )
        try:
            return plan(weights, state, inputs, Run(Namespace(xp, self._activation)))[0]
        except (AttributeError, TypeError) as error:
            raise ValueError(
                "A mixed integer programme needs networks of dense layers with ReLUs. Some layer "
                f"is another: {error}."
            ) from error

    def row(self, expression):
        """Get the weights (n_all,) and the offset of an expression of one column."""
        return expression.padded(self._n)[:, 0], float(expression.bias[0])

    def _activation(self, name):
        if name == "linear":
            return lambda x: x
        if name != "relu":
            raise ValueError(
                'A mixed integer programme needs activation="relu" in all hidden layers. '
                f"Got {name!r}."
            )
        return self._relu

    def _relu(self, x):
        """Record a ReLU layer, unless it is known, and return its units as expressions."""
        first = len(self.inputs.bias)
        for kernel, bias in self.hidden:  # frozen copies of the mean's layers are the same units
            if np.array_equal(x.bias, bias) and np.array_equal(x.padded(len(kernel)), kernel):
                return self._units(first, len(bias))
            first += len(bias)
        self.hidden.append((x.padded(self._n), x.bias))
        self._n += len(x.bias)
        return self._units(first, len(x.bias))

    @staticmethod
    def _units(first, n):
        return _Affine(np.eye(first + n)[:, first:], np.zeros(n))


class _Affine:
    """Affine expression ``v @ kernel + bias``, in place of an array (n_samples, n_columns)."""

    __array_ufunc__ = None  # `array * expression` calls the expression's method

    def __init__(self, kernel, bias):
        self.kernel, self.bias = kernel, bias

    dtype = np.dtype("float64")

    @property
    def shape(self) -> tuple[Any, int]:
        return None, len(self.bias)

    def padded(self, n):
        """Pad the kernel with zeros to (n, n_columns), for the first n entries of v."""
        return np.pad(self.kernel, ((0, n - len(self.kernel)), (0, 0)))

    def __matmul__(self, matrix):
        return _Affine(self.kernel @ matrix, self.bias @ matrix)

    def __mul__(self, factor):
        return _Affine(self.kernel * factor, self.bias * factor)

    def __add__(self, other):
        if isinstance(other, _Affine):
            n = max(len(self.kernel), len(other.kernel))
            return _Affine(self.padded(n) + other.padded(n), self.bias + other.bias)
        return _Affine(self.kernel, self.bias + other)

    def __sub__(self, offset):
        return _Affine(self.kernel, self.bias - offset)

    def __getitem__(self, columns):
        return _Affine(self.kernel[:, columns], self.bias[columns])


def _concatenate(expressions, axis):
    n = max(len(expression.kernel) for expression in expressions)
    return _Affine(
        np.hstack([expression.padded(n) for expression in expressions]),
        np.concatenate([expression.bias for expression in expressions]),
    )
