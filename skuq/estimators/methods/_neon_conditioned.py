"""Train NEON with a conditioned prior: base networks first, then linear algebra.

A trained network is linearised in its weights. A random normal change of the weights then changes
its prediction by a draw of a Gaussian process whose kernel is the tangent kernel J J^T (Jacot et
al. 2018), where J are the derivatives of the outputs with respect to the weights. Conditioning this
process on data has a closed form, and the result is again a change of the weights. It is used
twice: the network's residuals at the data correct the mean, and random draws lose what they differ
by at the data.

Notation: K networks of P weights each; n values to condition on, one for each pair of function and
query point and for each output; S targets or draws; m outputs, or values at inducing rows.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from scipy import linalg, stats

from skuq._messages import warn_user
from skuq._random import generator
from skuq._threads import one_thread_if_small
from skuq.estimators.methods._neon_prior import (
    Prior,
    learn_noiseless_prior,
    learn_prior,
    learn_scale,
    recall_prior,
)
from skuq.estimators.methods._neon_training import N_FOLDS
from skuq.fitted._fitted_operator import ConditionedDraws
from skuq.networks._dense import Derivatives
from skuq.networks._epinet import PRIOR_SCALE, EpistemicNetwork
from skuq.predictive._posterior import quasi_random_normals
from skuq.training._network_checks import find_completed, has_diverged
from skuq.training._predict import parts_of

# Largest number of values that are conditioned on exactly, and largest number that are conditioned
# on through inducing values. Of more values a random part is used. Where functions are left out,
# each candidate noise needs a factorisation, and only the exact form is fast enough.
MAX_EXACT, MAX_VALUES = 1500, 20_000
# Largest number of steps of the networks that a warm start learns a scale from. With 500 steps
# their errors can be so much larger than after full training that deviations are twice too wide.
_SCALE_STEPS = 2000
# A warm start keeps the scale until there are so many times the functions that it was learnt from.
_MOST_GROWTH = 1.5
# Number of pairs of new inputs and query points at which networks are compared, bounds of the ratio
# of variances, and its power: in the logarithm of deviations disagreement has half the weight of
# errors on functions left out, since it does not show what all networks miss alike.
_N_NEW, _RATIOS, _WEIGHT = 256, (1e-3, 1e3), 1 / 6
#: Fewest functions with a known noise of which networks leave out a fifth, and fewest functions
#: from which the noise is learnt. From 10 or 12 it sometimes comes out as 0, and means are far off.
FEWEST_WITH_NOISE, FEWEST_TO_LEARN = N_FOLDS, 15
#: Added to the kernel's diagonal, whose mean is 1; rounding makes eigenvalues of -1e-12. With 1e-7
#: the mean missed data without noise by 2e-5 of their spread, too much for the end of a search.
JITTER = 1e-10


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


def train_conditioned(trainer, report, *, prior, n_draws):
    """Train base networks and condition random changes of their weights on the data.

    Parameters
    ----------
    trainer : OperatorTrainer
    report : callable
        Told of finished epochs.
    prior : skuq.networks.ConditionedPrior
    n_draws : int
        Number of draws that predictions average over.

    Returns
    -------
    draws : ConditionedDraws
    widths : tuple of two ndarrays of the shape of the noise, or None
        Factor of the epistemic part and standard deviation of the noise; None if not learnt.
    """
    members, left_out = _train_bases(trainer, report, learns_scale=prior.scale == "auto")
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
                *make_process(member),
                values.y,
                choice,
                values.importance,
                n_functions,
                amplitude,
                rng,
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


def _train_bases(trainer, report, learns_scale):
    """Train the base networks; return those that converged, and the functions each leaves out.

    Five networks are trained where errors at left-out functions teach the noise or the scale. Each
    leaves out a fifth of the functions and keeps the epoch that is best there, because a network
    that is trained to the end learns noise. Otherwise one network is trained on all functions to
    the end. A warm start without noise goes on with the networks of the previous fit.
    """
    network, is_noisy = EpistemicNetwork(trainer.base, trainer.head.n_raw), trainer.noise.any()
    enough = trainer.can_leave_out and trainer.n_functions >= FEWEST_WITH_NOISE
    if not trainer.learns_noise and not (
        enough and (is_noisy or (learns_scale and trainer.previous is None))
    ):
        n_members = 1 if trainer.previous is None else len(trainer.previous.members)
        members = trainer.train(network, n_members, report)
        return tuple(members[k] for k in find_completed(members)), None
    left_out = trainer.folds(N_FOLDS, N_FOLDS)
    # They start from random weights: networks of a previous fit have seen what they leave out.
    trainer = replace(trainer, previous=None)
    members = trainer.train(network, N_FOLDS, report, left_out=left_out, validate=True)
    kept = find_completed(members)
    return tuple(members[k] for k in kept), left_out[kept]


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
        members, left_out = _train_briefly(trainer)
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


def _train_briefly(trainer):
    """Train five networks, each without a fifth of the functions, for few steps.

    Returns those that converged, and the functions (n_members, n_functions) that each leaves out.
    """
    # The few steps of a warm start are not enough from random weights.
    epochs = math.ceil(_SCALE_STEPS / math.ceil(len(trainer.data.x) / trainer.recipe.batch_size))
    recipe = replace(trainer.recipe, epochs=epochs)
    # They start from random weights: networks of a previous fit have seen what they leave out.
    trainer = replace(trainer, previous=None, refine=False)
    left_out = trainer.folds(N_FOLDS, N_FOLDS)
    network = EpistemicNetwork(trainer.base, trainer.head.n_raw)
    members = trainer.train(network, N_FOLDS, None, left_out=left_out, recipe=recipe)
    kept = [k for k, member in enumerate(members) if not has_diverged(member)]
    if not kept:
        warn_user(
            f"The scale of the random prior is {PRIOR_SCALE}: all networks that it would be learnt "
            "from have diverged. Lower `learning_rate`, or give the `scale` of the prior."
        )
    return [members[k] for k in kept], left_out[kept]


def _make_process(x, inducing, member):
    """Make a network's derivatives at rows x (N, d), and its process, sparse with inducing rows."""
    network, variables, _ = parts_of(member)
    derivatives = network.network.base.derivatives(variables, x)
    if inducing is None:
        return derivatives, ExactProcess(derivatives)
    return derivatives, SparseProcess(derivatives, inducing)


def _conditioned_directions(
    derivatives, process, y, prior, importance, n_functions, amplitude, rng
):
    """Compute directions (1 + n_functions, P) in weight space, conditioned on the data.

    The first one corrects the mean: it interpolates the network's residuals. The others are draws
    from the posterior around 0 by Matheron's rule: random changes of the weights, minus the
    changes that interpolate their own values at the data.
    """
    shape = n_functions, derivatives.n_weights
    random = rng.standard_normal(shape) * amplitude / np.sqrt(process.unit)
    functions = derivatives.along(random)
    # Each draw meets the data up to noise of its own.
    functions += (
        rng.standard_normal(functions.shape) * amplitude * np.sqrt(prior.draw_noise / importance)
    )
    residual = (y - derivatives.raw.ravel())[None]
    correction = process.condition(residual, prior.mean_noise, importance)
    return np.concatenate(
        [correction, random - process.condition(functions, prior.noise, importance)]
    )


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
