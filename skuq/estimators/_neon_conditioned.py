"""Training of NEON with a conditioned prior: base networks, then linear algebra.

Notation: K base networks, n rows that are conditioned on, m outputs.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from skuq import training
from skuq._seeds import generator, trial_seed
from skuq.estimators._network_estimator import completed
from skuq.estimators._operator import N_FOLDS
from skuq.fitted._conditioned import (
    MAX_ROWS,
    ConditionedDraws,
    Conditioning,
    FeatureKernel,
    random_features,
)
from skuq.networks._epinet import EpistemicNetwork
from skuq.predictive._posterior import normal_indices
from skuq.training._draws import predict_bases

_LENGTH = 1.0  # where nothing is held out to choose it by
_LENGTHS = (0.5, 1.0, 2.0, 4.0)
_NOISES = (0.0, 1e-3, 1e-2, 0.1, 1.0, 10.0)  # variances in units of the prior's
_CHOICE_ROWS = 1000  # for which lengths and noises are compared


def train_conditioned(job, *, n_index, n_draws, prior_scale, report):
    """Train base networks and condition a random prior on the data.

    Returns
    -------
    draws : ConditionedDraws
    widths : tuple of two ndarrays, or None
        As `OperatorRegressor._train` has it.
    """
    members, left_out = _train_bases(job, report)
    rng = generator(job.entropy, "prior")
    rows = np.arange(len(job.data.x))
    if len(rows) > MAX_ROWS:
        rows = np.sort(rng.permutation(rows)[:MAX_ROWS])
    raw, features = predict_bases(members, job.data.x[rows])
    y, m = job.data.y[rows], job.head.n_outputs
    length, widths = _LENGTH, None
    scale = np.full(m, prior_scale)
    noise = np.mean(job.noise**2, axis=0) / max(prior_scale, 1e-12) ** 2
    if left_out is not None:
        unseen = left_out[:, rows // job.n_queries]
        own = unseen.argmax(axis=0)
        error = y - raw[own, np.arange(len(rows))]
        error, own, seen = (v[unseen.any(axis=0)] for v in (error, own, features))
        columns = rows[unseen.any(axis=0)] % job.n_queries
        length, scale, noise, factor = _choose(
            seen, error, own, columns % len(job.noise), len(job.noise), rng
        )
        widths = factor, factor * scale * np.sqrt(noise)
    kernel = FeatureKernel.of(features, length, rng)
    conditioning = Conditioning(kernel, features)
    weights = rng.standard_normal((len(kernel.phases), n_index, m)) * scale
    functions = random_features(np, kernel.frequencies, kernel.phases, conditioning.rows)
    functions = np.einsum("nr,rim->nim", functions, weights)
    # Draws meet the data up to noise of their own.
    functions += rng.standard_normal(functions.shape) * scale * np.sqrt(noise)
    targets = np.concatenate([(y - raw.mean(axis=0))[:, None], functions], axis=1)
    coefficients = np.stack(
        [conditioning.solve(noise[c], targets[..., c]) for c in range(m)], axis=-1
    )
    index = normal_indices(n_draws, n_index, generator(job.entropy, "index"))
    flat = weights.reshape(len(weights), -1), coefficients.reshape(len(rows), -1)
    draws = ConditionedDraws(members, index, kernel, flat[0], conditioning.rows, flat[1])
    return draws, widths


def _train_bases(job, report):
    """Train the base networks; return those that have not diverged, and what they leave out."""
    learns, n_members = job.learns_noise, N_FOLDS if job.learns_noise else 1
    left_out = job.folds(n_members, n_members) if learns else None
    members = training.train_stack(
        EpistemicNetwork(job.base, job.head.n_raw),
        job.head,
        replace(job.recipe, keep="best") if learns else job.recipe,
        job.data,
        [trial_seed(job.entropy, k) for k in range(n_members)],
        splits=job.splits(left_out) if learns else None,
        permutations=([job.row_order(k) for k in range(n_members)] if job.by_function else None),
        report=report,
    )
    kept = completed(members)
    return tuple(members[k] for k in kept), left_out[kept] if learns else None


def _choose(features, error, groups, columns, n_columns, rng):
    """Choose length scale, prior's scales (m,), noises (m,) and factors by errors of rows left out.

    `columns` (n,) are the numbers of rows' columns, for factors (n_columns, m) of columns of
    different scales.

    Errors are most likely under normals of the variance that the conditioned prior has if the
    rows of their group are left out of the conditioning.
    """
    if len(error) > _CHOICE_ROWS:
        chosen = rng.permutation(len(error))[:_CHOICE_ROWS]
        features, error, groups = features[chosen], error[chosen], groups[chosen]
        columns = columns[chosen]
    square, best = error**2, None
    for length in _LENGTHS:
        kernel = FeatureKernel.of(features, length, rng)
        conditioning = Conditioning(kernel, features)
        losses, scales = [], []
        for noise in _NOISES:
            total = (conditioning.left_out(noise, groups) + noise)[:, None]
            scale = np.mean(square / total, axis=0)
            scales.append(scale)
            losses.append(0.5 * np.log(np.maximum(scale, 1e-300)) + 0.5 * np.log(total).mean())
        least = np.argmin(losses, axis=0)
        loss = np.min(losses, axis=0).sum()
        if best is None or loss < best[0]:
            scale = np.take_along_axis(np.array(scales), least[None], axis=0)[0]
            best = loss, length, np.sqrt(scale), np.take(_NOISES, least), conditioning
    _, length, scale, noise, conditioning = best
    if n_columns == 1:
        return length, scale, noise, np.ones((1, len(scale)))
    total = [conditioning.left_out(own, groups) + own for own in noise]
    ratio = square / np.transpose(total) / np.maximum(scale, 1e-150) ** 2
    # As if ten more rows of each column had the scale of all columns.
    found = [ratio[columns == k] for k in range(n_columns)]
    factor = np.stack([(own.sum(axis=0) + 10) / (len(own) + 10) for own in found])
    return length, scale, noise, np.sqrt(factor)
