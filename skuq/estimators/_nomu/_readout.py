"""NOMU's readout: choose it by the likelihood of held-out rows, and read it as affine functions.

The readout maps the raw uncertainty r to standard deviations. Its parameters are c, l_min, l_max
and a factor of the noise.
"""

from __future__ import annotations

import types
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from skuq._utils._messages import warn_user
from skuq.bayesopt._milp import ReluReadout
from skuq.estimators._task import warn_if_worse
from skuq.exceptions import SmallValidationWarning
from skuq.fitted._nomu import FittedNomu, Readout, TrainedNomu, split_sides
from skuq.networks import NOMUReadout
from skuq.networks._nomu import READOUTS
from skuq.networks._nomu_settings import L_MAXS, L_MINS
from skuq.networks._plan import make_plan
from skuq.networks._plan_parts import Namespace, Run
from skuq.predictive._calibration import fit_epistemic_scale, fit_readout
from skuq.tables._inputs import Rows, TableInputs
from skuq.tables._targets import NumberTargets

_FEW_ROWS = 30  # held-out rows; with fewer the likelihood chooses neither l_min nor l_max
_L_MIN, _L_MAX = 0.005, 2.0  # l_min at first, and l_max, if the likelihood does not choose them
# In the end, where f meets its rows. Next to a row f errs by a little: without a floor, errors
# there are many times the width of the band. Unless the data are known to have no noise, the
# floor is higher for few rows: between these r may be hardly larger than at them.
_LEAST_L_MIN, _LEAST_OF_ROWS = 0.002, 0.04  # the second is divided by the number of rows
# The raw uncertainty is not 0 at a network's own rows. These shares of it there are tried as the
# zero of the band; the likelihood of held-out rows chooses one, usually 0 where values are noisy.
# If the data are known to have no noise, the band closes at the rows: the largest share is taken
# that lowers the log likelihood by at most _MOST_LOST for each held-out row.
_SHARES, _MOST_LOST = (1.0, 0.5, 0.0), 0.5
_MOST_STEPS = 50  # in which c and l_min are made to agree
_WIDEST = 3.0  # band that they may agree on, in errors at held-out rows or deviations of y
_PRIOR_ROWS = 8  # with at most so many held-out rows the band is on average as wide as y varies


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
    """

    held_out: list[tuple[TrainedNomu, Rows, Rows]]
    network: TrainedNomu
    rows: Rows
    raw: np.ndarray
    distance: np.ndarray


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


def choose_readout(
    settings: NOMUReadout,
    band: str,
    evidence: Evidence,
    inputs: TableInputs,
    targets: NumberTargets,
    *,
    noiseless: bool = False,
    learns_noise: bool = False,
) -> Readout:
    """Choose those of l_min, l_max, c and the noise's factor that the settings do not give.

    Parameters
    ----------
    settings : NOMUReadout
    band : {"symmetric", "asymmetric"}
    evidence : Evidence
    inputs, targets : TableInputs, NumberTargets
        Fitted.
    noiseless : bool
        Whether the data have no noise: then l_min and l_max follow rules, however many rows.
    learns_noise : bool
        Whether the noise is learnt: then it may get a factor.
    """
    level = _level(evidence.network, evidence.rows, inputs, targets)
    found = []
    # Numbers that are given refer to the raw uncertainty as it is.
    shares = _SHARES if settings.c == settings.l_min == "auto" else (0.0,)
    held_out, levels = _collect_rows(band, evidence, inputs, targets)
    # Few rows cannot tell l_min and l_max; without noise l_min is fixed at the error of f.
    few = len(held_out.error) < _FEW_ROWS or noiseless
    of_rows = 0.0 if noiseless else _LEAST_OF_ROWS / len(evidence.rows.X)
    least_l_min = max(_LEAST_L_MIN, of_rows)
    for share in shares if few else (0.0,):
        near, far = held_out.near - share * levels, held_out.far - share * levels
        if share and np.median(near) <= 0:  # it would count as none at most held-out rows, too
            continue
        rows = held_out._replace(near=near, far=far)
        shifted = evidence._replace(raw=evidence.raw - share * level)
        readout = _choose(
            settings, band, shifted, inputs, targets, rows, few, learns_noise, least_l_min
        )
        found.append((_log_likelihood(readout, rows), replace(readout, level=share * level)))
    # The band closes at the rows as far as errors at held-out rows allow.
    lost = _MOST_LOST * len(held_out.error) * noiseless
    least = max(likelihood for likelihood, _ in found) - lost
    readout = next(readout for likelihood, readout in found if likelihood >= least)
    if settings.c == "auto":
        # Outside the box it widens as fast as it does between the rows.
        band_std = readout.c * readout.std(evidence.raw)
        size = np.sqrt(np.mean(evidence.distance**2))
        growth = np.sqrt(np.mean(band_std**2)) / size if size > 0 else 0.0
        readout = replace(readout, growth=float(growth))
    return readout


def _level(network, rows, inputs, targets) -> float:
    """Compute the raw uncertainty of a network at its own rows: the median, at least 0."""
    _, raw, _ = network.predict(rows.X, inputs, targets)
    return float(max(np.median(raw), 0.0))


def _log_likelihood(readout: Readout, rows: _HeldOut) -> float:
    """Compute the log likelihood of held-out rows, without constants."""
    near, far = (readout.c * readout.std(raw) for raw in (rows.near, rows.far))
    if rows.noise is not None:
        near, far = (np.hypot(side, readout.noise_factor * rows.noise) for side in (near, far))
    loss = np.log(near + far) + 0.5 * (rows.error / near) ** 2
    return float(-(rows.weight @ loss.sum(axis=1)) * len(loss) / rows.weight.sum())


def _choose(
    settings, band, evidence, inputs, targets, rows, few, learns_noise, least_l_min
) -> Readout:
    """Choose the readout for held-out rows whose raw uncertainty may have lost a share."""
    error, _, noise, weight = _errors(evidence.network, evidence.rows, inputs, targets)
    # Root mean square error of f at its own rows, with the noise's variance taken off.
    square = error**2 if noise is None else error**2 - noise**2
    training_error = float(np.sqrt(max(np.average(square.mean(axis=1), weights=weight), 0.0)))
    readout, highest_l_min = _choose_limits(settings, band, rows, training_error, few)
    c, noise_factor = settings.c, 1.0
    square = np.average(np.square(rows.error).mean(axis=1), weights=rows.weight)

    def floor(c):
        """Return the l_min at which c * l_min is the training error, if few rows choose it."""
        if settings.l_min != "auto" or not few:
            return readout.l_min
        return float(np.clip(training_error / c, least_l_min, highest_l_min))

    if isinstance(c, str):
        # A few steps find the best factor c with the l_min that follows from it.
        found = []
        for _ in range(_MOST_STEPS):
            c, noise_factor = fit_epistemic_scale(
                rows.error,
                readout.std(rows.near),
                rows.noise,
                rows.weight,
                fit_noise=learns_noise,
                beyond=readout.std(rows.far),
            )
            found.append((c, noise_factor, readout))
            former, readout = readout.l_min, replace(readout, l_min=floor(c))
            if np.isclose(former, readout.l_min, rtol=1e-3):
                break
        # At held-out rows where r counts as none, the band is c * l_min: a smaller l_min asks for a
        # larger c, and so on, until the band is far too wide everywhere else.
        width = np.sqrt(np.mean(readout.std(evidence.raw) ** 2))
        if rows.near.min() <= 0 and c * width > _WIDEST * max(1, np.sqrt(square)):
            c, noise_factor, readout = found[0]
    if settings.c == "auto":
        # c**2 = c_nll**2 + (share / width)**2: 1 / width makes the band as wide as y varies.
        width = np.sqrt(np.mean(readout.std(evidence.raw) ** 2))
        # A constant y has no errors to choose by: the prior counts in full.
        share = min(_PRIOR_ROWS / len(rows.error), 1) if np.ptp(evidence.rows.y) else 1
        if few:
            # A constant would err by 1. Where f errs by more, y varies faster than rows can show,
            # and errors between them are as large as those at held-out rows.
            share = np.sqrt(share**2 + max(square - 1, 0))
        c = float(np.hypot(c, share / width) * _factor_of_few(len(rows.error)))
    l_min = floor(c)
    return replace(readout, l_min=l_min, c=c, noise_factor=noise_factor)


def _factor_of_few(n_rows: int) -> float:
    """Compute the factor by which few held-out rows widen 90 % intervals, as Student's t does.

    Errors at neighbours resemble each other: two rows count as one. Fewer than eight rows count as
    eight, because with them the band is as wide as y varies anyway.
    """
    return float(stats.t.ppf(0.95, max(n_rows / 2 - 1, 3)) / stats.norm.ppf(0.95))


def _collect_rows(
    band: str, evidence: Evidence, inputs: TableInputs, targets: NumberTargets
) -> tuple[_HeldOut, np.ndarray]:
    """Collect the held-out rows of all networks, and the levels (n, 1) of r at their own rows."""
    parts = [_errors(network, rows, inputs, targets) for network, rows, _ in evidence.held_out]
    errors, raws, noises, weights = zip(*parts)
    levels = [
        np.full((len(rows.X), 1), _level(network, own, inputs, targets))
        for network, rows, own in evidence.held_out
    ]
    error = np.concatenate(errors)
    mean = np.average(evidence.rows.y, axis=0, weights=evidence.rows.weight)
    of_constant = np.concatenate([rows.y - mean for _, rows, _ in evidence.held_out])
    own, constant = (
        np.square(v).sum(axis=1) for v in (error, of_constant / targets.scaling.scale_)
    )
    warn_if_worse(own, constant, np.concatenate(weights))
    up, down = split_sides(np.concatenate(raws), band)
    held_out = _HeldOut(
        error,
        np.where(error > 0, up, down),
        np.where(error > 0, down, up),
        None if noises[0] is None else np.concatenate(noises),
        np.concatenate(weights),
    )
    return held_out, np.concatenate(levels)


def _errors(network: TrainedNomu, rows: Rows, inputs: TableInputs, targets: NumberTargets):
    """Compute errors, raw uncertainty and noise of rows, standardised, and their weights."""
    mean, raw, noise = network.predict(rows.X, inputs, targets)
    unit = targets.scaling.scale_
    return (rows.y - mean) / unit, raw, None if noise is None else noise / unit, rows.weight


def _choose_limits(
    settings: NOMUReadout, band: str, rows: _HeldOut, training_error: float, few: bool
) -> tuple[Readout, float]:
    """Choose l_min and l_max: by likelihood, or with `few` rows by rule.

    Returns the readout, and the largest l_min that is below all candidates for l_max.
    """

    def candidates(given, fixed, grid):
        # The given value, the one of the rule, or all of the grid.
        if given == "nll" or (given == "auto" and not few):
            return grid
        return np.array([fixed if given == "auto" else given])

    # l_min stays below every l_max, whichever pair is chosen.
    l_maxs = candidates(settings.l_max, _L_MAX, L_MAXS)
    highest = min(L_MINS[-1], 0.5 * l_maxs[0])
    floor = min(max(training_error, _L_MIN), highest)
    l_mins = candidates(settings.l_min, floor, L_MINS)
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
    return Readout(settings.kind, band, l_min, l_max), highest


# Weights for mixed integer programmes: a network's plan needs only products, sums and
# concatenation. Here it runs on affine expressions of the inputs and of the units so far, in place
# of arrays, and records every ReLU layer it meets.


def read_relu_readout(fitted: FittedNomu) -> ReluReadout:
    """Read the weights of a `FittedNomu` of one output, in units of X and of y.

    Raises ValueError if a mixed integer programme cannot hold its bound.
    """
    network, head, readout = fitted.network, fitted.network.head, fitted.readout
    n_outputs, wrong = fitted.targets.n_outputs, None
    if readout.kind != "linear":
        wrong = f'readout="linear" (Remark 3.2). Got {readout.kind!r}'
    elif readout.band != "symmetric":
        wrong = f'band="symmetric". Got {readout.band!r}'
    elif network.given is not None:
        wrong = "a prediction of its own: `pretrained` is some other model"
    elif fitted.inputs.encodes:
        wrong = "the columns of X as they are, and `preprocess` makes others of them"
    elif n_outputs != 1:
        wrong = f"one output. Got {n_outputs}"
    if wrong is not None:
        raise ValueError(f"A mixed integer programme needs {wrong}.")
    x, y = fitted.inputs.scaling, fitted.targets.scaling
    # The network standardises X; its affine functions are those of X itself.
    trace = _Trace(len(x.mean_))
    inputs = (trace.inputs - x.mean_) * (1 / x.scale_)
    output = trace.run(network.member, inputs)
    raw = output[head.n_outputs * head.with_mean :] - readout.level
    mean = output if network.mean_member is None else trace.run(network.mean_member, inputs)
    mean = mean[:1] * y.scale_ + y.mean_
    return ReluReadout(
        tuple(trace.hidden),
        trace.row(mean),
        trace.row(raw),
        float(readout.l_min),
        float(readout.l_max),
        float(readout.c * y.scale_[0]),
    )


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
