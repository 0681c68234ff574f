"""Draws of a fitted regressor's function: of an ensemble's members, and of NOMU.

Networks with a plan give draws in NumPy and on tensors. Others give them in NumPy only, as do
networks whose inputs or targets are more than scaled. A frozen record holds the shape of the
computation; it is the posterior's function and its key. The arguments hold what a fit learnt.

Notation: n rows, K members, T draws, m outputs (the last axis is absent where y was 1-D).
"""

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import islice
from typing import Any

import numpy as np
from scipy import special

from skuq._random import quasi_random_normals
from skuq.networks import Member
from skuq.networks._heads import NomuHead
from skuq.networks._nomu_network import READOUTS
from skuq.networks._operations import ARRAYS, Run, tensors
from skuq.networks._plan import Plan, make_plan
from skuq.predictive import Posterior
from skuq.predictive._calibration import ROOT_FLOOR, NumberArrays, calibrated_moments
from skuq.predictive._distributions import correlate
from skuq.tables._scaling import ImageScaling, hard_clip

#: NOMU's smallest standard deviation of the standardised y: a distribution needs some width.
SMALLEST_STD = 1e-9


def member_posterior(ensemble: Any, n_draws: int, rng: np.random.Generator) -> Posterior:
    """Return the means of an ensemble's members as draws; its targets are numbers.

    Members count by how often they are drawn. Where weights are fractions of a small number, there
    are that many draws; `n_draws` is for other weights. With an uncertainty away from the training
    rows each is a member plus a random function of that size.
    """
    members, inputs, targets = ensemble.members, ensemble.inputs, ensemble.targets
    far, correlation = ensemble.far, np.eye(targets.head.n_outputs)
    if ensemble.calibration.correlation:
        correlation = np.array(ensemble.calibration.correlation)
    plans = _make_plans(members)
    scaled_only = inputs.scales_only and not targets.is_transformed
    if not scaled_only or plans is None or isinstance(inputs.scaling, ImageScaling):
        weights = ensemble.raw_weights
        counts, normals = _draw_normals(far, _count_draws(weights, n_draws), correlation, rng)
        drawn = np.repeat(np.arange(len(weights)), counts)
        # Unlike a closure, this pickles.
        predicted = functools.partial(_member_means, ensemble, drawn, normals)
        return Posterior(predicted, (), None, len(drawn), targets.output_shape)
    groups = {plan: [k for k in range(len(members)) if plans[k] == plan] for plan in plans}
    variables = [
        _stack_variables([members[k] for k in group], plan) for plan, group in groups.items()
    ]
    masks = _collect_masks(ensemble.passes, plans[0], variables[0])
    # Members of one plan run together: draws are in their order, not in the ensemble's.
    order = np.arange(len(masks[0])) if masks else np.concatenate(list(groups.values()))
    counts = _count_draws(ensemble.raw_weights[order], n_draws)
    weights = counts / counts.sum()
    counts, normals = _draw_normals(far, counts, correlation, rng)
    calibration = ensemble.calibration.arrays
    repeats = [] if (counts == 1).all() else [np.repeat(np.eye(len(counts)), counts, axis=0)]
    function = _MemberMeans(
        tuple(groups),
        targets.is_1d,
        n_masks=len(masks),
        repeats=bool(repeats),
        calibrated=calibration is not None,
        clip=type(inputs.scaling).clip,
        head=targets.head.without_noise(),
        far=None if far is None else type(far),
    )
    scalers = _scalers(inputs, targets)
    if calibration is not None:
        scalers += [weights, *calibration]
    if far is not None:
        scalers += [normals, *(np.asarray(getattr(far, field.name)) for field in fields(far))]
    arguments = [*scalers, *repeats, *masks, *sum(variables, [])]
    return Posterior(
        function,
        tuple(arguments),
        key=function,
        n_draws=int(counts.sum()),
        output_shape=targets.output_shape,
    )


def _draw_normals(
    far: Any, counts: np.ndarray, correlation: np.ndarray, rng: np.random.Generator
) -> tuple[np.ndarray, Any]:
    """Draw normal numbers (T, r, m) of r random functions, and count the draws of members (K,).

    Each member is drawn with every number and its negative, and columns are orthogonal: the draws
    have exactly the variance of the members plus that of the functions, of which outputs have
    exactly this correlation (m, m).
    """
    if far is None:
        return counts, None
    n_columns = 2 * far.frequencies.shape[1] * len(correlation)
    n_half = counts.sum() * math.ceil(n_columns / counts.sum())
    columns = np.linalg.qr(rng.standard_normal((n_half, n_columns)))[0] * math.sqrt(n_half)
    columns = correlate(columns.reshape(n_half, -1, len(correlation)), correlation)
    normals = np.stack([columns, -columns], axis=1).reshape(2 * n_half, *columns.shape[1:])
    return counts * (2 * n_half // counts.sum()), normals


def _member_means(
    ensemble: Any, drawn: np.ndarray, normals: Any, xp: Any, arguments: Any, X: np.ndarray
) -> np.ndarray:
    """Predict means (T, n[, m]) with the members at positions `drawn` (T,), in NumPy."""
    mixture = ensemble.distribution_of_encoded(ensemble.inputs.encode_array(X, mark_unseen=True))
    means: np.ndarray = mixture.member_means[drawn]
    functions = None if normals is None else mixture.spread
    if functions is None:
        return means
    # They are missing where no row is far.
    functions = functions.reshape(*functions.shape[:2], -1)  # with an axis of outputs
    return means + _combine(np, normals[:, : len(functions)], functions).reshape(means.shape)


def _combine(xp: Any, normals: Any, functions: Any) -> Any:
    """Sum functions (r, n, m), each times its number of each draw (T, r, m), to (T, n, m)."""
    return xp.einsum("trm,rnm->tnm", normals, functions)


def nomu_posterior(fitted: Any, n_draws: int, rng: np.random.Generator) -> Posterior:
    """Return at least 2 draws of NOMU: the prediction plus multiples of the model's uncertainty.

    Draws have no noise. Each draw has one multiple for every output, the same for all rows, and
    multiples are correlated as outputs are. With
    asymmetric bounds it has a level instead of a multiple, and is the quantile of that level, as
    in `TwoPieceNormal`.
    """
    network, inputs, targets = fitted.network, fitted.inputs, fitted.targets
    indices = quasi_random_normals(n_draws, targets.n_outputs, rng)  # (T, m)
    indices = correlate(indices, fitted.readout.correlation or None)
    indices /= indices.std(axis=0)  # exactly 1 again, which correlation leaves to chance
    indices = special.ndtr(indices) if network.head.n_sides == 2 else indices
    members = [member for member in (network.member, network.mean_member) if member is not None]
    plans, output_shape = _make_plans(members), targets.output_shape
    # Without a plan, or with more than scaling before it, draws are for NumPy only.
    if network.given is not None or plans is None or not inputs.scales_only:
        predicted = functools.partial(_predicted_draws, fitted, indices)
        return Posterior(predicted, (), None, n_draws, output_shape, joint=False)

    readout = fitted.readout
    function = _NomuDraws(
        tuple(plans), network.head, readout.kind, targets.is_1d, fitted.box is not None
    )
    numbers = np.array([readout.l_min, readout.l_max, readout.c, readout.level, readout.growth])
    box = [] if fitted.box is None else [inputs.scaling.transform(fitted.box.T.copy())]
    arguments = [*_scalers(inputs, targets), numbers, indices, *box]
    for member, plan in zip(members, plans):
        arguments += _stack_variables([member], plan)
    return Posterior(function, tuple(arguments), function, n_draws, output_shape, joint=False)


@dataclass(frozen=True)
class _MemberMeans:
    """``(xp, arguments, X) -> (T, n[, m])``; see `member_posterior`."""

    plans: tuple[Plan, ...]  # each of one or more members
    y_is_1d: bool
    n_masks: int  # of dropout layers
    repeats: bool
    calibrated: bool
    clip: Callable[[Any, Any], Any]  # of `Scaling`
    head: Any
    far: Any = None  # class of the uncertainty away from the training rows

    def __call__(self, xp: Any, arguments: Any, X: Any) -> Any:
        (x_mean, x_scale, y_mean, y_scale), rest = arguments[:4], iter(arguments[4:])
        x, run = self.clip(xp, (X - x_mean) / x_scale), Run(ARRAYS if xp is np else tensors())
        if self.calibrated:
            weights, arrays = next(rest), NumberArrays(*islice(rest, len(NumberArrays._fields)))
        if self.far is not None:
            normals, far_arrays = next(rest), list(islice(rest, len(fields(self.far))))
        repeats = next(rest) if self.repeats else None
        if self.n_masks:
            masks = list(islice(rest, self.n_masks))
            run = replace(run, dropout_mask=lambda number, rate, shape: masks[number])
        # Members of one plan together, (K_plan, n, n_raw), or a single one, (n, n_raw).
        raws = [_output(plan, rest, x, run) for plan in self.plans]
        means = xp.concatenate([raw if len(raw.shape) == 3 else raw[None] for raw in raws], axis=0)
        if self.calibrated:
            means, _ = calibrated_moments(self.head.normals(means, xp), weights, arrays, xp)
        else:
            means = self.head.means(means, xp)  # (K, n, m)
        # (T, K) times (K, n, m): members of larger weight are several draws.
        means = xp.tensordot(repeats, means, axes=1) if repeats is not None else means
        if self.far is not None:
            means = means + _combine(xp, normals, self.far.draws(xp, far_arrays, X))
        means = means * y_scale + y_mean
        return means[..., 0] if self.y_is_1d else means


@dataclass(frozen=True)
class _NomuDraws:
    """``(xp, arguments, X) -> (T, n[, m])``; see `nomu_posterior`."""

    plans: tuple[Plan, ...]  # of the network, and of the mean's where that has its own
    head: NomuHead
    readout: str
    y_is_1d: bool
    has_box: bool

    def __call__(self, xp: Any, arguments: Any, X: Any) -> Any:
        x_mean, x_scale, y_mean, y_scale, readout, indices, *rest = arguments
        box, rest, m = rest[0], iter(rest[self.has_box :]), self.head.n_outputs
        x, run = hard_clip(xp, (X - x_mean) / x_scale), Run(ARRAYS if xp is np else tensors())
        side_rest, rest = itertools.tee(rest)
        mean, raw = self.head.split(_output(self.plans[0], rest, x, run))
        # A mean that was trained first may have learnt noise in its further columns.
        if len(self.plans) == 2:
            mean = _output(self.plans[1], rest, x, run)[:, :m]
        mean = mean * y_scale + y_mean
        l_min, l_max, c, level, growth = (readout[k] for k in range(5))
        reach = 0.0
        if self.has_box:  # outside of the box the raw uncertainty is that of its nearest point
            nearest = xp.minimum(xp.maximum(x, box[0]), box[1])
            _, raw = self.head.split(_output(self.plans[0], side_rest, nearest, run))
            reach = growth * xp.sqrt(xp.sum((x - nearest) ** 2, axis=1) + ROOT_FLOOR)[:, None]
        # NOMU's Eq. 2, with least widths before and after the factor c as in `Readout`.
        spread = xp.maximum(READOUTS[self.readout](raw - level, l_min, l_max, xp), SMALLEST_STD)
        # (n, m) upwards and, with two sides, (n, m) downwards, in units of y.
        sides = [
            y_scale
            * xp.maximum(xp.sqrt((c * spread[:, start : start + m]) ** 2 + reach**2), SMALLEST_STD)
            for start in range(0, self.head.n_sides * m, m)
        ]
        draws = _draws(xp, mean, indices, *sides)
        return draws[..., 0] if self.y_is_1d else draws


def _draws(xp: Any, mean: Any, indices: Any, up: Any, down: Any = None) -> Any:
    """Compute draws (T, n, m) from means and widths (n, m), and normals or levels (T, m)."""
    indices = indices[:, None, :]
    if down is None:
        return mean + up * indices
    # As in `TwoPieceNormal.inverse_cdf`: one of the two terms is 0.
    below = xp.minimum(indices * ((down + up) / (2 * down)), 0.5)
    above = xp.minimum((1 - indices) * ((down + up) / (2 * up)), 0.5)
    # Standard normal quantiles of these levels.
    below, above = (
        special.ndtri(p) if xp is np else math.sqrt(2) * xp.erfinv(2 * p - 1)
        for p in (below, above)
    )
    return mean + down * below - up * above


def _predicted_draws(
    fitted: Any, indices: np.ndarray, xp: Any, arguments: Any, X: np.ndarray
) -> np.ndarray:
    """Compute draws (T, n[, m]) from the distribution that a NOMU model predicts."""
    distribution = fitted.distribution_of_encoded(fitted.inputs.encode_array(X, mark_unseen=True))
    parts = distribution.mean, *distribution.sides
    mean, *spreads = (part.reshape(len(part), -1) for part in parts)
    draws = _draws(np, mean, indices, *spreads)
    return draws.reshape(*draws.shape[:2], *fitted.targets.output_shape)


def _count_draws(weights: np.ndarray, n_draws: int) -> np.ndarray:
    """Compute how often each of K members is drawn (K,), by their weights (K,), which sum to 1.

    The total is the smallest one for which the shares of the draws are the weights. If it would be
    larger than `n_draws` and K, so many draws are made, with shares near the weights.
    """
    most = max(n_draws, len(weights))
    # Row t - 1 holds t * weights: exact draws exist if all of them are whole numbers.
    shares = np.arange(1, most + 1)[:, None] * weights
    exact = np.abs(shares - np.round(shares)).max(axis=1) < 1e-9 * most
    if exact.any():
        return np.round(shares[exact.argmax()]).astype(int)
    # Otherwise round down, and give the rest to the largest remainders.
    counts = np.floor(shares[-1]).astype(int)
    largest = np.argsort(counts - shares[-1], kind="stable")[: most - counts.sum()]
    counts[largest] += 1
    return counts


def _make_plans(members: Sequence[Member]) -> list[Plan] | None:
    """Make the plans of the members' networks; return None if some network has no plan."""
    plans = [make_plan(member.network) for member in members]
    known = [plan for plan in plans if plan is not None]
    return known if len(known) == len(plans) else None


def _stack_variables(members: Sequence[Member], plan: Plan) -> list[np.ndarray]:
    """Stack the weights and states of a plan's members, with a leading axis (K, ..) if K > 1."""
    values_of_members = [
        [*plan.split(np.asarray(member.weights, dtype="float64")), *member.state]
        for member in members
    ]
    if len(values_of_members) == 1:
        return [np.asarray(value, dtype="float64") for value in values_of_members[0]]
    return [np.stack(values).astype("float64") for values in zip(*values_of_members)]


def _collect_masks(passes: Any, plan: Plan, variables: list[np.ndarray]) -> list[np.ndarray]:
    """List the masks (K, 1, units) of each dropout layer in all passes; empty without dropout."""
    if passes is None:
        return []
    masks: dict[int, np.ndarray] = {}
    record = Run(dropout_mask=lambda k, *of: masks.setdefault(k, passes(k, *of)))
    _output(plan, iter(variables), np.zeros((1, *plan.input_shape)), record)
    return [masks[number] for number in sorted(masks)]


def _scalers(inputs: Any, targets: Any) -> list[np.ndarray]:
    x, y = inputs.scaling, targets.scaling
    return [x.mean_, x.scale_, y.mean_, y.scale_]


def _output(plan: Plan, arguments: Iterator[Any], x: Any, run: Run) -> Any:
    """Run a plan with the next arguments as its weights and state."""
    weights = list(islice(arguments, len(plan.weights)))
    return plan(weights, list(islice(arguments, plan.n_state)), x, run)[0]
