"""Train NEON with a conditioned prior: base networks first, then linear algebra.

A trained network is linearised in its weights. A random change of the weights then is a draw from
a Gaussian process whose kernel is the tangent kernel, the inner products of the outputs'
derivatives with respect to the weights. The draws and the network's residuals are conditioned on
the data in closed form.

Notation: K networks of P weights each; n values to condition on, one for each pair and output.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from scipy import stats

from skuq._utils._environment import generator, one_thread_if_small
from skuq._utils._messages import warn_user
from skuq.estimators._neon_prior import (
    PRIOR_SCALE,
    Prior,
    learn_prior,
    learn_scale,
    learn_scale_without_noise,
)
from skuq.estimators._network_estimator import find_completed, has_diverged
from skuq.estimators._operator_training import N_FOLDS
from skuq.estimators._tangent_process import ExactProcess, SparseProcess
from skuq.fitted._operator import ConditionedDraws
from skuq.networks._epinet import EpistemicNetwork
from skuq.predictive._posterior import quasi_random_normals
from skuq.training._predict import parts_of

# Values that are conditioned on exactly, and the largest number that is conditioned on through so
# many inducing ones. Of more values a random part is used. Where functions are left out, networks
# are conditioned again for each candidate, so that only the exact form is fast enough.
MAX_EXACT, MAX_VALUES = 1500, 20_000
# Largest number of steps of the networks that a scale is learnt from. With 500 their errors can be
# so much larger than those of full training that deviations come out more than twice too wide.
_SCALE_STEPS = 2000
#: Functions with a known noise from which on networks leave a fifth of them out, and functions from
#: which on the noise is learnt. Of 10 or 12 it sometimes comes out as 0, and means go astray.
FEWEST_WITH_NOISE, FEWEST_TO_LEARN = N_FOLDS, 15


def train_conditioned(job, *, n_index, n_draws, prior_scale, report):
    """Train base networks and condition a random prior on the data.

    Without a `prior_scale` it is learnt where the data allow.

    Returns
    -------
    draws : ConditionedDraws
    widths : tuple of two ndarrays, or None
        See `OperatorRegressor._train`.
    """
    members, left_out = _train_bases(job, report)
    rng, m = generator(job.entropy, "prior"), job.head.n_outputs
    rows = np.arange(len(job.data.x))
    most = MAX_VALUES if left_out is None else MAX_EXACT
    if len(rows) * m > most:
        rows = np.sort(rng.permutation(rows)[: max(1, most // m)])
    x, y = job.data.x[rows], job.data.y[rows].ravel()
    # A function of twice the weight counts as two.
    importance = np.repeat((job.weight / job.weight.mean())[rows // job.n_queries], m)
    known = job.noise[rows % len(job.noise)].ravel() ** 2
    with one_thread_if_small(len(y)):
        process, widths = _ProcessMaker(x, m, rng), None
        if left_out is None:
            scale = prior_scale
            if scale is None:
                learns = not known.any() and len(y) <= MAX_EXACT and job.can_leave_out
                scale = _learn_scale(job, process, rows, y, importance) if learns else PRIOR_SCALE
            prior = Prior.of_given(scale, known)
        else:
            unseen = np.repeat(left_out[:, rows // job.n_queries], m, axis=1)
            # Place of each value's noise: its output, and its column if columns have scales.
            place = np.add.outer(m * (rows % len(job.noise)), np.arange(m)).ravel()
            left_out_values = members, process, y, importance, unseen, place
            if job.learns_noise:
                prior, widths = learn_prior(*left_out_values, _limits_of_noise(job))
            else:
                prior, widths = learn_scale(*left_out_values, job.noise)
                if prior_scale is not None:
                    given = Prior.of_given(prior_scale, known)
                    mean_noise = np.minimum(prior.mean_noise, given.noise)
                    prior = given._replace(mean_noise=mean_noise)
                    widths = None
        n_functions = math.ceil(n_index / len(members))
        # Learnt or not, the prior is off if its scale is 0.
        amplitude = 0.0 if prior_scale == 0 else prior.scale / np.sqrt(n_functions * len(members))
        directions = [
            _conditioned_directions(
                *process(member), y, prior, importance, n_functions, amplitude, rng
            )
            for member in members
        ]
        rng = generator(job.entropy, "index")
        index = quasi_random_normals(n_draws, n_functions * len(members), rng)
        return ConditionedDraws(members, index, np.stack(directions).astype("float32")), widths


def _train_bases(job, report):
    """Train the base networks; return those that converged, and the functions each leaves out.

    With noise five networks each leave out a fifth, if there are enough functions, and stop early:
    a network that is trained to the end learns the noise.
    """
    network = EpistemicNetwork(job.base, job.head.n_raw)
    stops_early = job.noise.any() and job.n_functions >= FEWEST_WITH_NOISE and job.can_leave_out
    if not (job.learns_noise or stops_early):
        members = job.train(network, 1, report)
        return tuple(members[k] for k in find_completed(members)), None
    left_out = job.folds(N_FOLDS, N_FOLDS)
    # They start anew: the networks of a previous fit have seen what they leave out.
    job = replace(job, previous=())
    members = job.train(network, N_FOLDS, report, left_out=left_out, validate=True)
    kept = find_completed(members)
    return tuple(members[k] for k in kept), left_out[kept]


def _limits_of_noise(job):
    """Compute the least and the largest noise that repeated measurements allow, in each place.

    They are the ends of a confidence interval of 95 %. There are none, 0 and infinity, unless at
    least half of the functions repeat inputs of others: a few equal inputs can be copies of records
    and say nothing of the noise, and copies are no measurements either.
    """
    std, dof = job.noise_of_repeats()
    n_repeats, n_copies = job.n_functions - len(np.unique(job.groups)), job.n_copies
    if 2 * n_repeats < job.n_functions or 10 * n_copies > n_repeats:
        return np.zeros(std.shape), np.full(std.shape, np.inf)
    low, high = np.sqrt(dof / stats.chi2.ppf([0.975, 0.025], dof))
    return low * std, high * std


def _learn_scale(job, make_process, rows, y, importance):
    """Learn the prior's scale from the errors on functions left out, for data without noise.

    The network of the fit has seen all functions. Five others are trained briefly, each without a
    fifth of the functions. The scale is relative to standardised values.
    """
    epochs = math.ceil(_SCALE_STEPS / math.ceil(len(job.data.x) / job.recipe.batch_size))
    if not job.previous:  # the few steps of a warm start are not enough for those that start anew
        epochs = min(epochs, job.recipe.epochs)
    recipe = replace(job.recipe, epochs=epochs)
    # They start anew: the networks of a previous fit have seen what they leave out.
    job = replace(job, previous=(), refine=False)
    left_out = job.folds(N_FOLDS, N_FOLDS)
    network = EpistemicNetwork(job.base, job.head.n_raw)
    members = job.train(network, N_FOLDS, None, left_out=left_out, recipe=recipe)
    kept = [k for k, member in enumerate(members) if not has_diverged(member)]
    if not kept:
        warn_user(
            f"The scale of the random prior is {PRIOR_SCALE}: all networks that it would be learnt "
            "from have diverged. Lower `learning_rate`, or give `prior_scale`."
        )
        return PRIOR_SCALE
    unseen = np.repeat(left_out[kept][:, rows // job.n_queries], job.head.n_outputs, axis=1)
    scale, error = learn_scale_without_noise(
        [members[k] for k in kept], make_process, y, importance, unseen
    )
    if job.expects_none and error > 1:
        warn_user(
            f"{job.n_functions} functions are too few to learn the noise, and networks miss those "
            f"that they leave out by {error:.2g} times their standard deviation. If Y is noisy, "
            "means can be far off: give `noise`, or more functions."
        )
    return scale


class _ProcessMaker:
    """Makes the processes of networks at rows (N, d): exact for few values, else sparse."""

    def __init__(self, x, n_outputs, rng):
        # In single precision the kernel of rows that are close would have negative eigenvalues.
        self._x, self._inducing = x.astype("float64"), None
        if len(x) * n_outputs > MAX_EXACT:
            self._inducing = np.sort(rng.permutation(len(x))[: max(1, MAX_EXACT // n_outputs)])

    def __call__(self, member):
        """Make a network's derivatives at all rows, and its process."""
        network, variables, _ = parts_of(member)
        derivatives = network.network.base.derivatives(variables, self._x)
        if self._inducing is None:
            return derivatives, ExactProcess(derivatives)
        return derivatives, SparseProcess(derivatives, self._inducing)


def _conditioned_directions(
    derivatives, process, y, prior, importance, n_functions, amplitude, rng
):
    """Compute directions (1 + n_functions, P) in weight space, conditioned on the data.

    The first one corrects the mean: it interpolates the network's residuals. The others are draws
    from the posterior around 0 by Matheron's rule: random prior draws, minus the interpolation of
    their own values at the data.
    """
    shape = n_functions, derivatives.n_weights
    random = rng.standard_normal(shape) * amplitude / np.sqrt(process.unit)
    functions = derivatives.along(random)
    # Each draw meets the data up to noise of its own.
    functions += (
        rng.standard_normal(functions.shape) * amplitude * np.sqrt(prior.noise / importance)
    )
    residual = (y - derivatives.raw.ravel())[None]
    correction = process.condition(residual, prior.mean_noise, importance)
    return np.concatenate(
        [correction, random - process.condition(functions, prior.noise, importance)]
    )
