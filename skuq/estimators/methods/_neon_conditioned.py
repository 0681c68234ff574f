"""NEON's conditioned prior: random changes of trained networks' weights, conditioned on the data.

A trained network is linearised in its weights. A random normal change of the weights then changes
its prediction by a draw of a Gaussian process whose kernel is the tangent kernel J J^T (Jacot et
al. 2018), where J are the derivatives of the outputs with respect to the weights. Conditioning this
process on data has a closed form, and the result is again a change of the weights. It is used
twice: the network's residuals at the data correct the mean, and random draws lose what they differ
by at the data.

The sizes of prior and noise are learnt from functions that networks leave out. Each process
predicts them from all others; its errors there are as large as noise and epistemic uncertainty
together should be. How to divide them between the two takes a second prediction. A trained network
has fitted part of the noise, so that the residuals at the values it has seen are small and mostly
noise. A prior fitted to these residuals would be nearly certain everywhere. How uncertainty varies
over the inputs is therefore taken from the same Gaussian process when it predicts the values
themselves instead of the network's residuals, as in the Laplace approximation of a Bayesian network
(Immer et al. 2021).

Notation: K networks of P weights each; n values, one for each pair of function and query point and
for each output; S targets or draws; m outputs, or values at inducing rows. The prior has variance
``scale**2``. Candidate noise variances are in units of that variance, so that one factorisation
serves all scales. Values that share one noise level and one scale form a *noise group*: those of
one output or, where query points have scales of their own, those of one output at one query point.

References
----------
A. Immer, M. Korzepa, M. Bauer. "Improving predictions of Bayesian neural nets via local
linearization", AISTATS 2021.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from scipy import linalg, optimize, stats

from skuq._messages import warn_user
from skuq._random import generator, quasi_random_normals
from skuq.backend._scopes import one_thread_if_small
from skuq.estimators.methods._neon_training import train_bases, train_briefly
from skuq.fitted._fitted_operator import ConditionedDraws
from skuq.networks._dense import Derivatives
from skuq.networks._operator_network import PRIOR_SCALE
from skuq.predictive._calibration import fit_factor_and_floor, minimise, root_mean_square
from skuq.training._predict import parts_of

# Largest number of values that are conditioned on exactly, and largest number that are conditioned
# on through inducing values. Of more values a random part is used. Where functions are left out,
# each candidate noise needs a factorisation, and only the exact form is fast enough.
MAX_EXACT, MAX_VALUES = 1500, 20_000
# A warm start keeps the scale until there are so many times the functions that it was learnt from.
_MOST_GROWTH = 1.5
_N_NEW = 256  # pairs of new inputs and query points at which networks are compared
_RATIOS = 1e-3, 1e3  # bounds of the ratio of their variance to that of the draws
# Power of this ratio: deviations become the geometric mean of both estimates.
_WEIGHT = 1 / 4
#: Fewest functions from which the noise is learnt. From 10 or 12 it sometimes comes out as 0, and
#: means are far off.
FEWEST_TO_LEARN = 15
#: Added to the kernel's diagonal, whose mean is 1; rounding makes eigenvalues of -1e-12. With 1e-7
#: the mean missed data without noise by 2e-5 of their spread, too much for the end of a search.
JITTER = 1e-10

# Candidate noise variances in units of the prior's variance, two in each power of ten. Smaller ones
# would need more precision than float32 weights have: intervals became far too narrow with them.
_NOISES = tuple(np.logspace(-5, 2, 15))
_N_SMALL = sum(noise <= 1 for noise in _NOISES)  # candidates up to the prior's variance
# The same for values without noise: what networks miss is their own error, smallest at data.
_NOISELESS = (1e-10, *np.logspace(-9, -3, 13))
# Standard deviation of the logarithm of a group's relative noise variance around the overall one.
_LOG_NOISE_STD = 1.0
# Least difference in log likelihood that decides between candidates, where the values of a function
# count as one, because they depend on each other.
_NOISELESS_ADVANTAGE = 3.0
_LARGEST_SCALE = 10.0  # of such values; where only larger ones would do, noise is likelier
_NEGLIGIBLE_NOISE = 1e-3  # share of the variance at left-out values
_SCALES = tuple(np.logspace(-2, 1.5, 15))  # candidate scales where the noise is known
_MAX_LOG_FACTOR = 6.0  # bound on the logarithm of a factor of variances
_TINY = 1e-12  # smallest variance, and scale, that is divided by
_SMALLEST = 1e-300  # number of which a logarithm is taken
_LOG_FACTORS = np.linspace(-8, 1, 40)  # candidates; the largest errors alone decide those above
_LEAST_SCALE = 1e-6  # of values that are all equal


class Prior(NamedTuple):
    """Scale of the random prior, and variances of the noise in units of the prior's variance.

    `noise` (n,) is the noise up to which draws meet each value. `mean_noise` (n,) is the noise with
    which the mean is corrected towards the data. It can differ: a network that stopped early has
    learnt most of what the data say, and the rest of its residuals is mostly noise. `draw_noise`
    (n,) is the variance of the noise that is drawn for each value: 0 where values have none, and
    `noise` only says how closely networks can meet them. `by_group` (4, n_groups) holds the same of
    each noise group, as learnt without noise from `n_functions`.
    """

    scale: float
    noise: np.ndarray
    mean_noise: np.ndarray
    draw_noise: np.ndarray
    by_group: np.ndarray | None = None
    n_functions: int = 0

    @classmethod
    def of_given(cls, scale: float, variance: np.ndarray) -> Prior:
        """Make the prior of a given scale, and of a given variance of the noise of each value."""
        noise = variance / max(scale, _TINY) ** 2
        return cls(scale, noise, noise.copy(), noise)


class _Values(NamedTuple):
    """Values that the prior is conditioned on.

    Attributes
    ----------
    rows : ndarray of int of shape (n_rows,)
        Rows of the training data that hold them, each with m values.
    y : ndarray of shape (n,)
    importance : ndarray of shape (n,)
        Weights of their functions, with mean 1. A function of twice the weight counts as two.
    """

    rows: np.ndarray
    y: np.ndarray
    importance: np.ndarray


def train_conditioned(trainer, *, prior, n_draws):
    """Train base networks and condition random changes of their weights on the data.

    `prior` is a `ConditionedPrior`; see `train_epinet` for the other parameters and the results.
    """
    members, left_out = train_bases(trainer, learns_scale=prior.scale == "auto")
    rng, m = generator(trainer.entropy, "prior"), trainer.head.n_outputs
    # Condition on all values, or on those of random rows if there are too many.
    rows, most = np.arange(len(trainer.data.x)), MAX_VALUES if left_out is None else MAX_EXACT
    if len(rows) * m > most:
        rows = np.sort(rng.permutation(rows)[: max(1, most // m)])
    weight = (trainer.weight / trainer.weight.mean())[rows // trainer.n_queries]
    values = _Values(rows, trainer.data.y[rows].ravel(), np.repeat(weight, m))
    with one_thread_if_small(len(values.y)):
        # In single precision the kernel of rows that are close would have negative eigenvalues.
        x, inducing = trainer.data.x[values.rows].astype("float64"), None
        if len(x) * m > MAX_EXACT:
            inducing = np.sort(rng.permutation(len(x))[: max(1, MAX_EXACT // m)])
        make_process = functools.partial(_make_process, x, inducing)
        choice, widths = _choose_prior(
            trainer, prior.scale, make_process, members, left_out, values
        )
        # Draws combine equally many random changes of each network.
        n_functions = math.ceil(prior.n_index / len(members))
        n_index = n_functions * len(members)
        # A scale of 0 disables the prior, also where another one has been learnt.
        amplitude = 0.0 if prior.scale == 0 else choice.scale / np.sqrt(n_index)
        directions = [
            _conditioned_directions(
                *make_process(member), values, choice, n_functions, amplitude, rng
            )
            for member in members
        ]
    index = quasi_random_normals(n_draws, n_index, generator(trainer.entropy, "index"))
    draws = ConditionedDraws(
        members, index, np.stack(directions), choice.by_group, choice.n_functions
    )
    if left_out is not None and widths is not None and not widths[1].any() and choice.scale:
        gain = _compare_with_disagreement(trainer, draws, widths[0])
        draws.directions[:, 1:] *= gain
        if choice.by_group is not None:  # warm starts keep the factor
            draws = replace(draws, prior=choice.by_group * [[gain], [1], [1], [1]])
    return draws, widths


def _compare_with_disagreement(trainer, draws, factor):
    """Compute a factor of the deviations of draws from how far the networks' means disagree.

    What networks miss where they have left functions out, and how far they disagree at new inputs
    once they are conditioned on all functions, are two estimates of the same errors. The second one
    knows how much is gained by averaging networks, and by the functions that each had left out.
    """
    x, rng = trainer.data.x, generator(trainer.entropy, "disagreement")
    rows = rng.integers(len(x), size=_N_NEW)
    new = x[rows].astype("float64")  # query points stay as they are
    for k in np.flatnonzero(np.ptp(x[: trainer.n_queries], axis=0) == 0):
        new[:, k] = np.quantile(x[:, k], rng.random(_N_NEW))
    means = [
        replace(draws, members=draws.members[k : k + 1], directions=draws.directions[k : k + 1, :1])
        for k in range(len(draws.members))
    ]
    no_index = np.zeros((1, 0))
    spread = np.var([mean.raw(new, no_index)[0] for mean in means], axis=0).mean()
    deviations = draws.raw(new, draws.index).std(axis=0) * factor[rows % len(factor)]
    variance = np.square(deviations).mean()
    ratio = np.clip(spread / variance, *_RATIOS) if spread > 0 < variance else 1.0
    return float(ratio**_WEIGHT)


def _choose_prior(trainer, scale, make_process, members, left_out, values):
    """Take the given scale of the prior, or learn it; learn the noise if the trainer says so.

    Parameters
    ----------
    trainer : OperatorTrainer
    scale : float or "auto"
    make_process : callable
        Makes a member's derivatives and its process.
    members : sequence of Member
    left_out : ndarray of bool of shape (n_members, n_functions), or None
        Functions that each member leaves out.
    values : _Values

    Returns
    -------
    prior : Prior
    widths : tuple of two ndarrays, or None
        See `train_conditioned`.
    """
    rows, y, importance = values
    variance = trainer.noise[rows % len(trainer.noise)].ravel() ** 2
    is_noisy = variance.any()
    learns = scale == "auto" and not is_noisy and len(y) <= MAX_EXACT and trainer.can_leave_out
    m = trainer.head.n_outputs
    # Noise group of each value: its output, and its query point if these have their own scales.
    groups = np.add.outer(m * (rows % len(trainer.noise)), np.arange(m)).ravel()
    if left_out is None and learns:
        known = trainer.previous
        few_are_new = known and trainer.n_functions < _MOST_GROWTH * known.n_functions
        if few_are_new and known.prior.shape[1] == trainer.noise.size:
            return recall_prior(known.prior, groups, trainer.noise, known.n_functions)
        # Other networks tell the scale, since those of a warm start have seen all functions.
        members, left_out = train_briefly(trainer)
    if left_out is None or not len(members):
        return Prior.of_given(PRIOR_SCALE if scale == "auto" else scale, variance), None
    unseen = np.repeat(left_out[:, rows // trainer.n_queries], m, axis=1)
    arguments = members, make_process, y, importance, unseen, groups
    if trainer.learns_noise:
        return learn_prior(*arguments, _limits_of_noise(trainer), trainer.n_functions)
    if not is_noisy:
        prior, widths, error = learn_noiseless_prior(*arguments, trainer.noise, trainer.n_functions)
        if trainer.expects_none and error > 1:
            warn_user(
                f"{trainer.n_functions} functions are too few to learn the noise, and networks "
                f"miss those that they leave out by {error:.2g} times their standard deviation. "
                "If Y is noisy, means can be far off: give `noise_std`, or more functions."
            )
        return prior, widths
    prior, widths = learn_scale(*arguments, trainer.noise)
    if scale == "auto":
        return prior, widths
    # Keep the given scale. The mean is near the data at least as the draws are.
    given = Prior.of_given(scale, variance)
    return given._replace(mean_noise=np.minimum(prior.mean_noise, given.noise)), None


def _limits_of_noise(trainer):
    """Compute the smallest and the largest noise that repeated measurements allow, in each group.

    They are the ends of a 95 % confidence interval. The limits are 0 and infinity unless at least
    half of the functions repeat inputs of others and few of these are exact copies: a few equal
    inputs can be copies of records, and copies say nothing about the noise.
    """
    std, dof = trainer.noise_of_repeats()
    n_repeats = trainer.n_functions - len(np.unique(trainer.groups))
    both = np.column_stack([trainer.groups, trainer.data.y.reshape(trainer.n_functions, -1)])
    n_copies = trainer.n_functions - len(np.unique(both, axis=0))
    if 2 * n_repeats < trainer.n_functions or 10 * n_copies > n_repeats:
        return np.zeros(std.shape), np.full(std.shape, np.inf)
    low, high = np.sqrt(dof / stats.chi2.ppf([0.975, 0.025], dof))
    return low * std, high * std


def _make_process(x, inducing, member):
    """Make a network's derivatives at rows x (N, d), and its process, sparse with inducing rows."""
    network, variables, _ = parts_of(member)
    derivatives = network.network.base.derivatives(variables, x)
    if inducing is None:
        return derivatives, ExactProcess(derivatives)
    return derivatives, SparseProcess(derivatives, inducing)


def _conditioned_directions(derivatives, process, values, prior, n_functions, amplitude, rng):
    """Compute directions (1 + n_functions, P) in weight space, conditioned on the data.

    The first one corrects the mean: it interpolates the network's residuals. The others are draws
    from the posterior around 0 by Matheron's rule: random changes of the weights, minus the
    changes that interpolate their own values at the data.
    """
    shape, importance = (n_functions, derivatives.n_weights), values.importance
    random = rng.standard_normal(shape) * amplitude / np.sqrt(process.unit)
    functions = derivatives.along(random)
    # Each draw meets the data up to noise of its own.
    noise = np.sqrt(prior.draw_noise / importance)
    functions += rng.standard_normal(functions.shape) * amplitude * noise
    residual = (values.y - derivatives.raw.ravel())[None]
    correction = process.condition(residual, prior.mean_noise, importance)
    change = random - process.condition(functions, prior.noise, importance)
    return np.concatenate([correction, change])


class _Errors(NamedTuple):
    """Errors at left-out values, for each of several candidate noises.

    Attributes
    ----------
    network : ndarray of shape (n_noises, n)
        Squared errors of the networks, corrected by their processes.
    process : ndarray of shape (n_noises, n)
        Squared errors of the processes when they predict the values themselves.
    variances : ndarray of shape (n_noises, n)
        Variances that the processes predict, noise included, in units of the prior's variance.
    noiseless : ndarray of shape (n_noises, n)
        The same without noise, and of draws without noise of their own.
    weight : ndarray of shape (n,)
        Weights of the values.
    """

    network: np.ndarray
    process: np.ndarray
    variances: np.ndarray
    noiseless: np.ndarray
    weight: np.ndarray

    def at(self, candidates: slice) -> _Errors:
        """Return the errors of some of the candidate noises."""
        return _Errors._make([*(values[candidates] for values in self[:4]), self.weight])

    def of_group(self, members: np.ndarray) -> _Errors:
        """Return the errors of one noise group, given as a mask (n,)."""
        return _Errors(*(values[..., members] for values in self))


def learn_prior(members, make_process, y, importance, unseen, groups, limits, n_functions):
    """Learn the prior and the noise of each noise group.

    A group whose left-out values are far more likely without noise has none, see
    `learn_noiseless_prior`.

    Parameters
    ----------
    members : sequence of Member
    make_process : callable
        Makes a member's derivatives and its process.
    y, importance : ndarray of shape (n_values,)
        Values, and their weights.
    unseen : ndarray of bool of shape (n_members, n_values)
        Values that each member leaves out.
    groups : ndarray of int of shape (n_values,)
        Number of each value's noise group.
    limits : tuple of two ndarrays
        Smallest and largest standard deviation that the noise of each group can have.
    n_functions : int

    Returns
    -------
    prior : Prior
    widths : tuple of two ndarrays of the shape of the limits
        Factor of the epistemic standard deviation, and standard deviation of the noise.
    """
    candidates = *_NOISELESS, *_NOISES
    both, seen = _errors_left_out(members, make_process, y, importance, unseen, candidates)
    n_noiseless, groups_seen = len(_NOISELESS), groups[seen]
    errors = both.at(slice(n_noiseless, None))
    noiseless = both.at(slice(n_noiseless))
    shape, limits = limits[0].shape, np.reshape(limits, (2, -1))
    priors, std = _GroupPriors(groups, limits.shape[1]), limits[0].copy()
    overall, _ = _likeliest_process(errors)
    for k in np.unique(groups_seen):
        of_group = errors.of_group(groups_seen == k)
        scale, std[k], mean_noise, loss = _learn_group(of_group, overall, *limits[:, k])
        without = _learn_noiseless(noiseless, groups_seen == k, n_functions)
        is_likelier = (loss - without.loss) * n_functions / 2 > _NOISELESS_ADVANTAGE
        if limits[0, k] == 0 and is_likelier and without.scale < _LARGEST_SCALE:
            std[k] = 0.0
            priors.put_noiseless(k, without)
        else:
            priors.put(k, scale, std[k] ** 2, mean_noise)
    prior, factors = priors.joined(shape)
    return prior, (factors, std.reshape(shape))


def learn_noiseless_prior(members, make_process, y, importance, unseen, groups, std, n_functions):
    """Learn the prior of each noise group of values without noise.

    The scale, and how closely networks meet the data, are chosen so that the errors at left-out
    values are most likely. Exact conditioning would trust the linearised networks more than their
    errors allow. See `learn_prior` for the other parameters; `std` are the zeros of
    the noise.

    Returns
    -------
    prior : Prior
    widths : tuple of two ndarrays of the shape of `std`
    error : float
        Root mean square of the networks' errors, divided by that of the values.
    """
    errors, seen = _errors_left_out(members, make_process, y, importance, unseen, _NOISELESS)
    priors, squares = _GroupPriors(groups, std.size), 0.0
    for k in np.unique(groups[seen]):
        here = groups[seen] == k
        found = _learn_noiseless(errors, here, n_functions)
        priors.put_noiseless(k, found)
        squares += errors.weight[here] @ errors.network[found.mean][here]
    error = float(np.sqrt(squares / (importance[seen] @ y[seen] ** 2 or 1.0)))
    return *recall_prior(priors.by_group, groups, std, n_functions), error


def recall_prior(by_group, groups, std, n_functions):
    """Make the prior and the widths of `learn_noiseless_prior` from those of each noise group.

    If all values were equal, nothing was learnt from them, and `n_functions` is 0.
    """
    priors = _GroupPriors(groups, std.size)
    priors.by_group = by_group
    known = n_functions if (by_group[0] > _LEAST_SCALE).any() else 0
    prior, factors = priors.joined(std.shape)
    prior = prior._replace(by_group=by_group, n_functions=known)
    return prior, (factors, np.zeros(std.shape))


class _NoiselessPrior(NamedTuple):
    """Prior of a noise group without noise.

    `mean` and `draws` are positions among the candidate noises: how closely the mean and the draws
    meet the data. `loss` is twice the mean negative log likelihood of the errors.
    """

    mean: int
    draws: int
    scale: float
    loss: float


def _closest(losses, n_functions):
    """Find the smallest candidate that is not clearly worse than the best one."""
    advantage = (losses - losses.min()) * n_functions / 2
    return int(np.argmax(advantage <= _NOISELESS_ADVANTAGE))


def _learn_noiseless(errors, members, n_functions):
    """Learn the prior of a group, given as a mask (n,), as if there were no noise.

    `errors` are those of all groups, for each of the candidates `_NOISELESS`.
    """
    # Networks miss left-out values by more where they have to meet all others exactly. Mean and
    # draws meet the data as closely as does not clearly cost them anything elsewhere.
    sizes = np.maximum(np.average(errors.network, axis=1, weights=errors.weight), _SMALLEST)
    mean, errors = _closest(np.log(sizes), n_functions), errors.of_group(members)
    # Losses of all candidates of the draws, each at its best scale.
    ratios = errors.network[mean] / errors.noiseless
    squares = np.maximum(np.average(ratios, axis=1, weights=errors.weight), _SMALLEST)
    logs = np.average(np.log(errors.noiseless), axis=1, weights=errors.weight)
    losses = np.log(squares) + logs + 1
    # Draws never meet the data more closely than the mean, which could otherwise miss a value on
    # which all draws agree.
    best = max(mean, _closest(losses, n_functions))
    scale = _fit_spread(
        np.sqrt(errors.network[mean]), np.sqrt(errors.noiseless[best]), errors.weight
    )
    return _NoiselessPrior(mean, best, scale, losses[best])


def _fit_spread(errors, std, weight):
    """Find the factor of standard deviations (n,) that absolute errors (n,) ask for.

    It has the smallest continuous ranked probability score of errors divided by their standard
    deviations. The likeliest factor would be decided by the largest of these. Where errors are
    larger than all deviations say in the root mean square, it is the geometric mean of both.
    """
    if not errors.any():
        return 0.0
    z, unit = errors / std, root_mean_square(errors / std, weight)

    def score(log_factor):
        factor = np.exp(log_factor) * unit
        of = z / factor
        parts = of * (2 * stats.norm.cdf(of) - 1) + 2 * stats.norm.pdf(of) - 1 / np.sqrt(np.pi)
        return factor / unit * np.average(parts, weights=weight)

    factor = np.exp(minimise(score, _LOG_FACTORS)) * unit
    pooled = root_mean_square(errors, weight) / root_mean_square(std, weight)
    return float(factor * np.sqrt(max(1.0, pooled / factor)))


def _learn_group(errors, overall, least, most):
    """Learn the scale, the noise's standard deviation and the mean's noise of one noise group.

    `overall` is the position of the candidate noise that is most likely for all groups together.
    The noise stays between `least` and `most`; larger errors are attributed to the epistemic part.
    Also returns the loss of the errors: twice the mean negative log likelihood, or infinity if the
    noise is negligible.
    """
    # The mean is corrected with the noise under which the networks' errors are most likely.
    mean_noise, _ = _most_likely(errors.network, errors.variances, errors.weight)
    squares = errors.network[mean_noise]
    # The process that predicts the values themselves says how epistemic variances vary.
    best, scale = _likeliest_process(errors, overall)
    epistemic = scale**2 * np.maximum(errors.variances[best] - _NOISES[best], _TINY)
    # The networks' errors say how large these variances are, and how large the noise is.
    factor, std = fit_factor_and_floor(squares, epistemic, errors.weight, fewest_rows=1)
    if not least <= std <= most:
        std = np.clip(std, least, most)
        factor = _likeliest_factor(squares, epistemic, std**2, errors.weight)
    total = factor**2 * epistemic + std**2
    scale *= factor
    if std**2 > _NOISES[0] * scale**2:
        # With this noise each candidate stands for a scale: relative noise = (std / scale)^2.
        scales = std / np.sqrt(_NOISES[:_N_SMALL])
        totals = scales[:, None] ** 2 * errors.variances[:_N_SMALL]
        scale = _refit_scale(squares, totals, scales, scale, std**2, errors.weight)
    else:
        # Draws meet the data up to the smallest candidate, whose variances can be far smaller.
        epistemic = np.maximum(errors.variances[0] - _NOISES[0], _TINY)
        totals = scale**2 * epistemic[None] + std**2
        scale = _refit_scale(squares, totals, [scale], scale, std**2, errors.weight)
        total = scale**2 * epistemic + std**2
    loss = np.average(np.log(total) + squares / total, weights=errors.weight)
    if std**2 < _NEGLIGIBLE_NOISE * np.average(total, weights=errors.weight):
        loss = np.inf  # there is no noise, and other candidates meet the data more closely
    return scale, std, _NOISES[mean_noise], loss


def _refit_scale(squares, totals, scales, guess, variance, weight):
    """Find the scale that makes the networks' errors most likely, near a `guess` and not below it.

    Multiplying epistemic variances by a factor is not the same as a larger scale: with a larger
    scale the same noise counts less when the process is conditioned. So each of the candidate
    `scales` has its own predicted variances in `totals` (n_scales, n), noise included.
    """
    losses = (weight * (np.log(totals) + squares / totals)).sum(axis=1)
    best = np.argmin(losses + np.log(np.divide(scales, guess) ** 2) ** 2)
    epistemic = np.maximum(totals[best] - variance, _TINY)
    return max(guess, scales[best] * _likeliest_factor(squares, epistemic, variance, weight))


class _GroupPriors:
    """Collects the priors of all noise groups, and joins them to one prior.

    Parameters
    ----------
    groups : ndarray of int of shape (n_values,)
        Number of each value's noise group.
    n_groups : int
    """

    def __init__(self, groups, n_groups):
        self._groups = groups
        # Rows are the scale and the noises of `Prior`.
        self.by_group = np.full((4, n_groups), _NOISES[0])
        self.by_group[0] = PRIOR_SCALE

    def put(self, k, scale, variance, mean_noise):
        """Store the scale of group k, the variance of its noise, and its relative mean noise.

        The mean's noise is at most that of the draws: a correction that trusted values less than
        the draws do would miss values on which all draws agree.
        """
        scale = max(scale, _LEAST_SCALE)
        noise = max(variance / scale**2, _NOISES[0])
        self.by_group[:, k] = scale, noise, min(mean_noise, noise), noise

    def put_noiseless(self, k, found):
        """Store a prior without noise of group k."""
        noises = (_NOISELESS[position] for position in (found.draws, found.mean))
        self.by_group[:, k] = max(found.scale, _LEAST_SCALE), *noises, 0.0

    def joined(self, shape):
        """Make one prior, whose scale is the geometric mean of the groups' scales.

        Also returns each group's scale divided by it, the factors of epistemic deviations.
        """
        scale = np.exp(np.log(self.by_group[0]).mean())
        prior = Prior(scale, *self.by_group[1:, self._groups])
        return prior, (self.by_group[0] / scale).reshape(shape)


def learn_scale(members, make_process, y, importance, unseen, groups, std):
    """Learn the prior where the noise is known, from its standard deviations in each noise group.

    Each group has its own scale: in a joint fit a group without noise would decide for all. See
    `learn_prior` for the other parameters and the result; the shape of `std` is that of the widths.
    """
    variances = std.ravel() ** 2
    of_values = variances[groups]
    noises = [np.maximum(of_values / scale**2, _NOISES[0]) for scale in _SCALES]
    errors, seen = _errors_left_out(members, make_process, y, importance, unseen, noises)
    # Predicted variances in units of the values: the larger the scale, the less the noise counts.
    totals = errors.variances * np.square(_SCALES)[:, None]
    priors = _GroupPriors(groups, std.size)
    for k in np.unique(groups[seen]):
        here = groups[seen] == k
        group, total, variance = errors.of_group(here), totals[:, here], variances[k]
        losses = (group.weight * (np.log(total) + group.process / total)).sum(axis=1)
        # Values under large noise say little about the scale. A log-normal prior around the default
        # scale keeps it from being chosen by chance.
        best = np.argmin(losses + np.log(np.square(np.divide(_SCALES, PRIOR_SCALE))) ** 2)
        # The correction with the smallest errors relative to the predicted variances.
        ratios = np.average(group.network / total[best], axis=1, weights=group.weight)
        corrected = ratios.argmin()
        squares, epistemic = group.network[corrected], np.maximum(total[best] - variance, _TINY)
        factor = _likeliest_factor(squares, epistemic, variance, group.weight)
        mean_noise = max(variance / _SCALES[corrected] ** 2, _NOISES[0])
        priors.put(k, factor * _SCALES[best], variance, mean_noise)
    prior, factors = priors.joined(std.shape)
    return prior, (factors, std)


def _likeliest_factor(squares, epistemic, variance, weight):
    """Find the factor of epistemic deviations that makes errors most likely, for a known noise.

    Parameters
    ----------
    squares, epistemic, weight : ndarray of shape (n,)
        Squared errors, epistemic variances and weights of values.
    variance : float
        Variance of the noise.
    """

    def loss(log_factor):
        total = np.exp(log_factor) * epistemic + variance
        nll = (weight * (np.log(total) + squares / total)).sum()
        return nll + log_factor**2  # standard normal prior, as in `fit_factor_and_floor`

    bounds = (-_MAX_LOG_FACTOR, _MAX_LOG_FACTOR)
    return np.exp(optimize.minimize_scalar(loss, bounds=bounds, method="bounded").x / 2)


def _errors_left_out(members, make_process, y, importance, unseen, noises):
    """Compute the errors at left-out values for each candidate noise.

    Returns
    -------
    errors : _Errors
    seen : ndarray of bool of shape (n_values,)
        Values that have errors: not all of them if the networks of some folds have diverged.
    """
    of_network, of_process, variances, noiseless = np.zeros((4, len(noises), len(y)))
    for member, left_out in zip(members, unseen):
        derivatives, process = make_process(member)
        residual = y - derivatives.raw.ravel()
        # One factorisation predicts both targets: residuals of the network, and values.
        means, variances[:, left_out], noiseless[:, left_out] = process.predict_left_out(
            np.stack([residual, y]), left_out, noises, importance
        )
        of_network[:, left_out] = (residual[left_out] - means[:, 0]) ** 2
        of_process[:, left_out] = (y[left_out] - means[:, 1]) ** 2
    seen = unseen.any(axis=0)
    found = (part[:, seen] for part in (of_network, of_process, variances, noiseless))
    return _Errors(*found, importance[seen]), seen


def _likeliest_process(errors, overall=None):
    """Find the process under which values are most likely: position of its noise, and its scale.

    Only noises up to the prior's variance are candidates: where all is noise, a smaller prior would
    be certain of the mean level, too. `overall`, the position of the noise of all groups, adds a
    log-normal prior around it, since few values hardly tell a large scale from a small one.
    """
    squares, variances = errors.process[:_N_SMALL], errors.variances[:_N_SMALL]
    penalty = 0.0
    if overall is not None:
        penalty = (np.log(np.divide(_NOISES[:_N_SMALL], _NOISES[overall])) / _LOG_NOISE_STD) ** 2
    return _most_likely(squares, variances, errors.weight, penalty)


def _most_likely(squares, variances, weight, penalty=0.0):
    """Find the candidate noise and the scale under which errors are most likely.

    Errors are normal with the predicted variances times the squared scale, whose best value has a
    closed form for each candidate. The `penalty` of each candidate counts like twice the negative
    log likelihood.

    Returns
    -------
    best : int
        Position of the candidate.
    scale : float
    """
    scales = np.maximum(np.average(squares / variances, axis=1, weights=weight), _SMALLEST)
    losses = np.log(scales) + np.average(np.log(variances), axis=1, weights=weight)
    best = np.argmin(losses * weight.sum() + penalty)
    return best, np.sqrt(scales[best])


class ExactProcess:
    """Process that is conditioned on all values; its time grows with n^3.

    Parameters
    ----------
    derivatives : Derivatives
        Derivatives J at the data. The kernel is J J^T / unit, with a mean diagonal of 1.
    """

    def __init__(self, derivatives: Derivatives):
        self._derivatives = derivatives
        self.unit = derivatives.diagonal().mean() or 1.0
        self._gram = derivatives.gram() / self.unit

    def condition(
        self, targets: np.ndarray, noise: np.ndarray | float, importance: np.ndarray | float = 1.0
    ) -> np.ndarray:
        """Find the smallest changes of the weights (S, P) that give the targets (S, n) up to noise.

        `noise` is the variance of all values, or of each, in units of the kernel. A value of
        `importance` 2 counts as two equal ones, each with this noise.
        """
        noisy = self._gram.copy()
        noisy[np.diag_indices_from(noisy)] += (noise + JITTER) / importance
        solution = linalg.cho_solve(linalg.cho_factor(noisy, lower=True), targets.T)
        # J^T alpha / unit: the posterior mean of the change of the weights, (S, P).
        return self._derivatives.back(solution.T) / self.unit

    def predict_left_out(
        self,
        targets: np.ndarray,
        left_out: np.ndarray,
        noises: Sequence[float | np.ndarray],
        importance: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Predict targets (T, n) of the values `left_out` from those of all others.

        Returns the means (n_noises, T, n_left_out) and variances (n_noises, n_left_out) for each
        noise, noise included; one is a variance, or those of all values (n,). The third array
        holds the variances of draws that have no noise of their own. `importance` (n,) is as in
        `condition`, of the other values.
        """
        others = ~left_out
        roots = np.sqrt(importance[others])
        cross, diagonal = self._gram[np.ix_(left_out, others)], np.diag(self._gram)[left_out]
        gram, cross, targets = self._gram[np.ix_(others, others)], cross * roots, targets[:, others]
        gram, targets = gram * roots * roots[:, None], targets * roots
        means, totals, noiseless = [], [], []
        if np.ndim(noises[0]) == 0:
            # One decomposition K = U w U^T serves all noises that are equal for all values.
            values, vectors = linalg.eigh(gram)
            squares, targets = (cross @ vectors) ** 2, targets @ vectors
            cross = cross @ vectors
        for noise in noises:
            of_others = np.broadcast_to(noise, len(left_out))[others] + JITTER
            if np.ndim(noise) == 0:
                inverse = 1 / (np.maximum(values, 0) + of_others)
                mean, explained = (targets * inverse) @ cross.T, squares @ inverse
                of_noise = squares @ (inverse**2 * of_others)
            else:
                noisy = gram.copy()
                noisy[np.diag_indices_from(noisy)] += of_others
                solution = linalg.cho_solve(linalg.cho_factor(noisy, lower=True), cross.T)
                mean, explained = targets @ solution, np.einsum("ij,ji->i", cross, solution)
                of_noise = of_others @ solution**2
            # Variance k** - k A^-1 k^T, with A the noisy kernel of the others. Rounding can make it
            # slightly negative where others determine a value.
            variance = np.maximum(diagonal - explained, 0)
            means.append(mean)
            noiseless.append(np.maximum(variance - of_noise, 0) + JITTER)
            totals.append(variance + np.broadcast_to(noise, len(left_out))[left_out] + JITTER)
        return np.array(means), np.array(totals), np.array(noiseless)


class SparseProcess:
    """Process that is conditioned on all values through inducing rows (FITC).

    Changes of the weights are restricted to the span of the derivatives at the inducing rows. What
    the kernel has beyond that counts as independent noise of each value. The time grows with n m^2.

    Parameters
    ----------
    derivatives : Derivatives
        See `ExactProcess`.
    inducing : ndarray of int
        Numbers of the inducing rows.

    References
    ----------
    Snelson and Ghahramani (2006), "Sparse Gaussian processes using pseudo-inputs".
    """

    def __init__(self, derivatives: Derivatives, inducing: np.ndarray):
        self._inducing = derivatives.rows(inducing)
        diagonal = derivatives.diagonal()
        self.unit = diagonal.mean() or 1.0
        gram = self._inducing.gram() / self.unit
        gram[np.diag_indices_from(gram)] += JITTER
        self._root = linalg.cholesky(gram, lower=True)
        cross = self._inducing.gram(derivatives) / self.unit
        # In these coordinates (m, n) the inner products of the span are those of vectors.
        self._span = linalg.solve_triangular(self._root, cross, lower=True)
        # FITC keeps the exact diagonal: what the span lacks of it is noise of each value.
        self._beyond = np.maximum(diagonal / self.unit - (self._span**2).sum(axis=0), 0)

    def condition(
        self, targets: np.ndarray, noise: np.ndarray | float, importance: np.ndarray | float = 1.0
    ) -> np.ndarray:
        """Find the changes of the weights (S, P); see `ExactProcess.condition`."""
        # Solve (I + span D^-1 span^T) a = span D^-1 targets, with D the diagonal of variances.
        weighted = self._span / ((noise + JITTER) / importance + self._beyond)
        inner = weighted @ self._span.T
        inner[np.diag_indices_from(inner)] += 1.0
        solution = linalg.cho_solve(linalg.cho_factor(inner, lower=True), weighted @ targets.T)
        # From coordinates in the span back to coefficients (m, S) of the inducing derivatives.
        alpha = linalg.solve_triangular(self._root, solution, lower=True, trans="T")
        return self._inducing.back(alpha.T) / self.unit
