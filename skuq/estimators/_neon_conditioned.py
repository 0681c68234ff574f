"""Training of NEON with a conditioned prior: base networks, then linear algebra.

A network is taken as linear in its weights, around those that it has been trained to. Random
changes of the weights are then functions of a Gaussian process, whose kernel is the tangent kernel:
products of the outputs' derivatives by the weights. Both the functions and what the network leaves
of the data are conditioned on the data in closed form.

Notation: K networks of P weights, n values (of pairs and outputs) that are conditioned on.
"""

from __future__ import annotations

import numpy as np
from scipy import linalg

from skuq._seeds import generator
from skuq.estimators._network_estimator import completed
from skuq.fitted._conditioned import ConditionedDraws
from skuq.networks._epinet import EpistemicNetwork
from skuq.predictive._posterior import normal_indices
from skuq.training._draws import variables_of

MAX_VALUES = 1500  # conditioned on; of more so many are drawn
_N_FOLDS = 5  # networks where noise is learnt, each of which leaves out one
_JITTER = 1e-7  # variance that is added to the prior's of 1
# Variances of the noise to choose among, in units of the prior's. With less, conditioning asks for
# more than the single precision of predictions can meet: intervals are then far too narrow.
_NOISES = (1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1.0, 10.0, 100.0)
_OWN_SHARE = 0.5  # of a network's squared errors that other networks do not share
_PRIOR_VALUES = 2  # with the scale of all, that are added to those of each column


def train_conditioned(job, *, n_index, n_draws, prior_scale, report):
    """Train base networks and condition a random prior on the data.

    Returns
    -------
    draws : ConditionedDraws
    widths : tuple of two ndarrays, or None
        As `OperatorRegressor._train` has it.
    """
    members, left_out = _train_bases(job, report)
    rng, m = generator(job.entropy, "prior"), job.head.n_outputs
    rows = np.arange(len(job.data.x))
    if len(rows) * m > MAX_VALUES:
        rows = np.sort(rng.permutation(rows)[: max(1, MAX_VALUES // m)])
    y = job.data.y[rows].ravel()
    scale, noise, widths = prior_scale, np.zeros(1), None
    if left_out is not None:
        unseen = np.repeat(left_out[:, rows // job.n_queries], m, axis=1)
        # Each value's place among the scales: its column, if columns have their own, and output.
        place = np.add.outer(m * (rows % len(job.noise)), np.arange(m)).ravel()
        scale, noise, factor = _choose(members, job.data.x[rows], y, unseen, place, job.noise.size)
        factor = factor.reshape(job.noise.shape)
        widths = factor, factor * scale * np.sqrt(noise)
    elif job.noise.any():
        noise = np.tile(job.noise**2, (job.n_functions * job.n_queries // len(job.noise), 1))
        noise = noise[rows].ravel() / max(prior_scale, 1e-12) ** 2
    n_functions = -(-n_index // len(members))
    amplitude = scale / np.sqrt(n_functions * len(members))
    directions = np.stack(
        [
            _conditioned_directions(
                _Tangents(member, job.data.x[rows]),
                y,
                noise,
                n_functions,
                amplitude,
                len(member.weights),
                rng,
            )
            for member in members
        ]
    )
    # What is each network's own of its errors averages out in the mean of all.
    directions[:, 1:] *= np.sqrt(1 - _OWN_SHARE * (1 - 1 / len(members)))
    rng = generator(job.entropy, "index")
    index = normal_indices(n_draws, n_functions * len(members), rng)
    return ConditionedDraws(members, index, directions.astype("float32")), widths


def _train_bases(job, report):
    """Train the base networks; return those that have not diverged, and what they leave out."""
    learns, n_members = job.learns_noise, _N_FOLDS if job.learns_noise else 1
    left_out = job.folds(n_members, n_members) if learns else None
    network = EpistemicNetwork(job.base, job.head.n_raw)
    members = job.train(network, n_members, report, left_out=left_out, validate=learns)
    kept = completed(members)
    return tuple(members[k] for k in kept), left_out[kept] if learns else None


class _Tangents:
    """A network at rows (N, d): its values (n,), their derivatives and tangent kernel.

    The kernel `gram` (n, n) is divided by `unit`, such that it is 1 on average for a value with
    itself.
    """

    def __init__(self, member, x):
        network, variables = variables_of(member)
        self.derivatives = network.network.base.derivatives(variables, x)
        self.values = self.derivatives.raw.ravel()
        gram = self.derivatives.gram()
        self.unit = np.trace(gram) / len(gram) or 1.0
        self.gram = gram / self.unit


def _conditioned_directions(tangents, y, noise, n_functions, amplitude, n_weights, rng):
    """Compute a change of the weights that meets the data, and random ones that the data allow.

    The first, of (1 + n_functions, P), interpolates what the network leaves of the data. The others
    are random, less the changes that interpolate their own values at the data: a posterior's draws
    around 0 (Matheron's rule).
    """
    derivatives, unit = tangents.derivatives, tangents.unit
    random = rng.standard_normal((n_functions, n_weights)) * amplitude / np.sqrt(unit)
    functions = derivatives.along(random)
    # Draws meet the data up to noise of their own.
    functions += rng.standard_normal(functions.shape) * amplitude * np.sqrt(noise)
    targets = np.concatenate([(y - tangents.values)[None], -functions])
    noisy = tangents.gram + np.diag(np.broadcast_to(noise + _JITTER, len(y)))
    solution = linalg.cho_solve(linalg.cho_factor(noisy, lower=True), targets.T)
    directions = derivatives.back(solution.T) / unit
    directions[1:] += random
    return directions


def _choose(members, x, y, unseen, place, n_places):
    """Choose the prior's scale, the noise in its units, and factors, by values left out.

    The errors of each network on the values that it has left out, after conditioning on the others,
    are most likely under normals of the variances that they have then. Factors (n_places,) are
    those of the values of each place, such as a column.
    """
    squares, variances = np.zeros((2, len(_NOISES), len(y)))
    for member, own in zip(members, unseen):
        tangents = _Tangents(member, x)
        for k, noise in enumerate(_NOISES):
            squares[k, own], variances[k, own] = _left_out(tangents, y, own, noise)
    seen = unseen.any(axis=0)  # the members of some folds may have diverged
    squares, variances, place = squares[:, seen], variances[:, seen], place[seen]
    ratios = squares / variances
    scales = np.maximum(ratios.mean(axis=1), 1e-300)
    best = np.argmin(np.log(scales) + np.log(variances).mean(axis=1))
    sums = np.bincount(place, ratios[best] / scales[best], n_places)
    counts = np.bincount(place, minlength=n_places)
    factors = np.sqrt((sums + _PRIOR_VALUES) / (counts + _PRIOR_VALUES))
    return np.sqrt(scales[best]), np.full(1, _NOISES[best]), factors


def _left_out(tangents, y, own, noise):
    """Squared errors of the values `own`, and their variances with noise, given all others."""
    others, residual = ~own, y - tangents.values
    gram = tangents.gram[np.ix_(others, others)]
    gram[np.diag_indices_from(gram)] += noise + _JITTER
    cross = tangents.gram[np.ix_(own, others)]
    targets = np.concatenate([residual[others, None], cross.T], axis=1)
    solution = linalg.cho_solve(linalg.cho_factor(gram, lower=True, overwrite_a=True), targets)
    error = residual[own] - cross @ solution[:, 0]
    variance = np.diag(tangents.gram)[own] - np.einsum("ij,ji->i", cross, solution[:, 1:])
    return error**2, np.maximum(variance, 0) + noise + _JITTER
