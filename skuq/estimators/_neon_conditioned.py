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

from skuq._seeds import generator
from skuq._threads import one_thread_if_small
from skuq._warnings import warn_user
from skuq.estimators._network_estimator import find_completed
from skuq.estimators._operator_training import N_FOLDS
from skuq.estimators._tangent_process import ExactProcess, SparseProcess
from skuq.fitted._conditioned import ConditionedDraws
from skuq.networks._epinet import EpistemicNetwork
from skuq.predictive._posterior import quasi_random_normals
from skuq.training._draws import variables_of

# Values that are conditioned on exactly, and the largest number that is conditioned on through so
# many inducing ones. Of more values a random part is used. Where noise is learnt, networks are
# conditioned again for each candidate, so that only the exact form is fast enough.
MAX_EXACT, MAX_VALUES = 1500, 20_000
# Candidates for the noise variance, in units of the prior variance. Smaller ones ask for more
# precision than float32 weights have, and intervals become far too narrow.
_NOISES = (1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1.0, 10.0, 100.0)
_OWN_SHARE = 0.5  # assumed share of a network's squared error that averages out over networks
_PRIOR_VALUES = 2  # pseudo-values at the usual scale, which stabilise estimates from few values
#: Scale of the random prior where none is learnt; that of the paper.
PRIOR_SCALE = 0.75
# Largest number of steps of the networks that a scale is learnt from. With 500 their errors can be
# so much larger than those of full training that deviations come out more than twice too wide.
_SCALE_STEPS = 2000
# Noise variance that a scale is learnt with where there is no noise. Errors below one per cent of
# the prior's scale come from the linearisation, and would widen predictions everywhere.
_LEAST_NOISE = 1e-4


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
    with one_thread_if_small(len(y)):
        process = _ProcessMaker(x, m, rng)
        scale, noise, widths = prior_scale, np.zeros(1), None
        if scale is None:
            scale = PRIOR_SCALE
            is_exact = left_out is None and not job.noise.any()
            if is_exact and len(y) <= MAX_EXACT and job.n_functions >= N_FOLDS:
                scale = _learn_scale(job, process, rows, y, importance)
        if left_out is not None:
            unseen = np.repeat(left_out[:, rows // job.n_queries], m, axis=1)
            # Position of each value's factor: its output, and its column if columns have scales.
            place = np.add.outer(m * (rows % len(job.noise)), np.arange(m)).ravel()
            scale, noise, factor = _choose(
                members, process, y, importance, unseen, place, job.noise.size
            )
            factor = factor.reshape(job.noise.shape)
            widths = factor, factor * scale * np.sqrt(noise)
        elif job.noise.any():
            noise = np.tile(job.noise**2, (job.n_functions * job.n_queries // len(job.noise), 1))
            noise = noise[rows].ravel() / max(scale, 1e-12) ** 2
        n_functions = math.ceil(n_index / len(members))
        # Learnt or not, the prior is off if its scale is 0.
        amplitude = 0.0 if prior_scale == 0 else scale / np.sqrt(n_functions * len(members))
        directions = np.stack(
            [
                _conditioned_directions(
                    *process(member), y, noise, importance, n_functions, amplitude, rng
                )
                for member in members
            ]
        )
        # The part of the errors that networks do not share averages out in their mean.
        directions[:, 1:] *= np.sqrt(1 - _OWN_SHARE * (1 - 1 / len(members)))
        rng = generator(job.entropy, "index")
        index = quasi_random_normals(n_draws, n_functions * len(members), rng)
        return ConditionedDraws(members, index, directions.astype("float32")), widths


def _train_bases(job, report):
    """Train the base networks; return those that converged, and the functions each leaves out."""
    learns, n_members = job.learns_noise, N_FOLDS if job.learns_noise else 1
    left_out = job.folds(n_members, n_members) if learns else None
    network = EpistemicNetwork(job.base, job.head.n_raw)
    members = job.train(network, n_members, report, left_out=left_out, validate=learns)
    kept = find_completed(members)
    return tuple(members[k] for k in kept), left_out[kept] if learns else None


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
    kept = [k for k, member in enumerate(members) if not isinstance(member, FloatingPointError)]
    if not kept:
        warn_user(
            f"The scale of the random prior is {PRIOR_SCALE}: all networks that it would be learnt "
            "from have diverged. Lower `learning_rate`, or give `prior_scale`."
        )
        return PRIOR_SCALE
    unseen = np.repeat(left_out[kept][:, rows // job.n_queries], job.head.n_outputs, axis=1)
    squares, variances, seen = _errors_left_out(
        [members[k] for k in kept], make_process, y, importance, unseen, (_LEAST_NOISE,)
    )
    weight = importance[seen]
    total = (weight * squares[0] / variances[0]).sum() + _PRIOR_VALUES * PRIOR_SCALE**2
    return float(np.sqrt(total / (weight.sum() + _PRIOR_VALUES)))


class _ProcessMaker:
    """Makes the processes of networks at rows (N, d): exact for few values, else sparse."""

    def __init__(self, x, n_outputs, rng):
        # In single precision the kernel of rows that are close would have negative eigenvalues.
        self._x, self._inducing = x.astype("float64"), None
        if len(x) * n_outputs > MAX_EXACT:
            self._inducing = np.sort(rng.permutation(len(x))[: max(1, MAX_EXACT // n_outputs)])

    def __call__(self, member):
        """Make a network's derivatives at all rows, and its process."""
        network, variables = variables_of(member)
        derivatives = network.network.base.derivatives(variables, self._x)
        if self._inducing is None:
            return derivatives, ExactProcess(derivatives)
        return derivatives, SparseProcess(derivatives, self._inducing)


def _conditioned_directions(
    derivatives, process, y, noise, importance, n_functions, amplitude, rng
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
    functions += rng.standard_normal(functions.shape) * amplitude * np.sqrt(noise / importance)
    targets = np.concatenate([(y - derivatives.raw.ravel())[None], -functions])
    directions = process.condition(targets, noise, importance)
    directions[1:] += random
    return directions


def _choose(members, make_process, y, importance, unseen, place, n_places):
    """Choose the prior's scale and noise variance by maximum likelihood on held-out values.

    Each network predicts the values that it has left out, conditioned on all others; their errors
    are normal with the predicted variances times the squared scale. The noise variance is in units
    of the prior's. Values count by their `importance`. Factors (n_places,) correct the scale in
    each place, such as a column.
    """
    squares, variances, seen = _errors_left_out(
        members, make_process, y, importance, unseen, _NOISES
    )
    place, weight = place[seen], importance[seen]
    ratios = squares / variances
    scales = np.maximum(np.average(ratios, axis=1, weights=weight), 1e-300)
    best = np.argmin(np.log(scales) + np.average(np.log(variances), axis=1, weights=weight))
    sums = np.bincount(place, weight * ratios[best] / scales[best], n_places)
    counts = np.bincount(place, weight, n_places)
    factors = np.sqrt((sums + _PRIOR_VALUES) / (counts + _PRIOR_VALUES))
    return np.sqrt(scales[best]), np.full(1, _NOISES[best]), factors


def _errors_left_out(members, make_process, y, importance, unseen, noises):
    """Compute the errors of what networks leave out, for each noise variance.

    Returns
    -------
    squares, variances : ndarray of shape (n_noises, n_seen)
        Squared errors, and the predicted variances in units of the prior's.
    seen : ndarray of bool of shape (n,)
        Values that a network leaves out; the networks of some folds may have diverged.
    """
    squares, variances = np.zeros((2, len(noises), len(y)))
    for member, left_out in zip(members, unseen):
        derivatives, process = make_process(member)
        residual = y - derivatives.raw.ravel()
        means, variances[:, left_out] = process.predict_left_out(
            residual, left_out, noises, importance
        )
        squares[:, left_out] = (residual[left_out] - means) ** 2
    seen = unseen.any(axis=0)
    return squares[:, seen], variances[:, seen], seen
