"""Train NEON with a conditioned prior: base networks first, then linear algebra.

A trained network is linearised in its weights. A random change of the weights then is a draw from
a Gaussian process whose kernel is the tangent kernel, the inner products of the outputs'
derivatives with respect to the weights. The draws and the network's residuals are conditioned on
the data in closed form.

Notation: K networks of P weights each; n values to condition on, one for each pair and output.
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

MAX_VALUES = 1500  # with more values, a random part is conditioned on
_N_FOLDS = 5  # networks that learn the noise; each leaves out one fold
_JITTER = 1e-7  # added to the kernel's diagonal, whose mean is 1
# Candidates for the noise variance, in units of the prior variance. Smaller ones ask for more
# precision than float32 weights have, and intervals become far too narrow.
_NOISES = (1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1.0, 10.0, 100.0)
_OWN_SHARE = 0.5  # assumed share of a network's squared error that averages out over networks
_PRIOR_VALUES = 2  # pseudo-values at the common scale, which stabilise each column's factor


def train_conditioned(job, *, n_index, n_draws, prior_scale, report):
    """Train base networks and condition a random prior on the data.

    Returns
    -------
    draws : ConditionedDraws
    widths : tuple of two ndarrays, or None
        See `OperatorRegressor._train`.
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
        # Position of each value's factor: its output, and its column if columns have scales.
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
    # The part of the errors that networks do not share averages out in their mean.
    directions[:, 1:] *= np.sqrt(1 - _OWN_SHARE * (1 - 1 / len(members)))
    rng = generator(job.entropy, "index")
    index = normal_indices(n_draws, n_functions * len(members), rng)
    return ConditionedDraws(members, index, directions.astype("float32")), widths


def _train_bases(job, report):
    """Train the base networks; return those that converged, and the functions each leaves out."""
    learns, n_members = job.learns_noise, _N_FOLDS if job.learns_noise else 1
    left_out = job.folds(n_members, n_members) if learns else None
    network = EpistemicNetwork(job.base, job.head.n_raw)
    members = job.train(network, n_members, report, left_out=left_out, validate=learns)
    kept = completed(members)
    return tuple(members[k] for k in kept), left_out[kept] if learns else None


class _Tangents:
    """Values (n,), derivatives and tangent kernel (n, n) of a network at rows (N, d).

    The kernel `gram` is divided by `unit`, its mean diagonal.
    """

    def __init__(self, member, x):
        network, variables = variables_of(member)
        self.derivatives = network.network.base.derivatives(variables, x)
        self.values = self.derivatives.raw.ravel()
        gram = self.derivatives.gram()
        self.unit = np.trace(gram) / len(gram) or 1.0
        self.gram = gram / self.unit


def _conditioned_directions(tangents, y, noise, n_functions, amplitude, n_weights, rng):
    """Compute directions (1 + n_functions, P) in weight space, conditioned on the data.

    The first one corrects the mean: it interpolates the network's residuals. The others are draws
    from the posterior around 0 by Matheron's rule: random prior draws, minus the interpolation of
    their own values at the data.
    """
    derivatives, unit = tangents.derivatives, tangents.unit
    random = rng.standard_normal((n_functions, n_weights)) * amplitude / np.sqrt(unit)
    functions = derivatives.along(random)
    # Each draw meets the data up to noise of its own.
    functions += rng.standard_normal(functions.shape) * amplitude * np.sqrt(noise)
    targets = np.concatenate([(y - tangents.values)[None], -functions])
    noisy = tangents.gram + np.diag(np.broadcast_to(noise + _JITTER, len(y)))
    solution = linalg.cho_solve(linalg.cho_factor(noisy, lower=True), targets.T)
    directions = derivatives.back(solution.T) / unit
    directions[1:] += random
    return directions


def _choose(members, x, y, unseen, place, n_places):
    """Choose the prior's scale and noise variance by maximum likelihood on held-out values.

    Each network predicts the values that it has left out, conditioned on all others; their errors
    are normal with the predicted variances times the squared scale. The noise variance is in units
    of the prior's. Factors (n_places,) correct the scale in each place, such as a column.
    """
    squares, variances = np.zeros((2, len(_NOISES), len(y)))
    for member, own in zip(members, unseen):
        tangents = _Tangents(member, x)
        for k, noise in enumerate(_NOISES):
            squares[k, own], variances[k, own] = _left_out(tangents, y, own, noise)
    seen = unseen.any(axis=0)  # the networks of some folds may have diverged
    squares, variances, place = squares[:, seen], variances[:, seen], place[seen]
    ratios = squares / variances
    scales = np.maximum(ratios.mean(axis=1), 1e-300)
    best = np.argmin(np.log(scales) + np.log(variances).mean(axis=1))
    sums = np.bincount(place, ratios[best] / scales[best], n_places)
    counts = np.bincount(place, minlength=n_places)
    factors = np.sqrt((sums + _PRIOR_VALUES) / (counts + _PRIOR_VALUES))
    return np.sqrt(scales[best]), np.full(1, _NOISES[best]), factors


def _left_out(tangents, y, own, noise):
    """Compute squared errors and predictive variances of the values `own`, given all others."""
    others, residual = ~own, y - tangents.values
    gram = tangents.gram[np.ix_(others, others)]
    gram[np.diag_indices_from(gram)] += noise + _JITTER
    cross = tangents.gram[np.ix_(own, others)]
    targets = np.concatenate([residual[others, None], cross.T], axis=1)
    solution = linalg.cho_solve(linalg.cho_factor(gram, lower=True, overwrite_a=True), targets)
    error = residual[own] - cross @ solution[:, 0]
    variance = np.diag(tangents.gram)[own] - np.einsum("ij,ji->i", cross, solution[:, 1:])
    return error**2, np.maximum(variance, 0) + noise + _JITTER
