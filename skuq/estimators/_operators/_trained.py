"""Train networks whose epistemic part is trained, too: with an EpiNet, or as an ensemble.

The functions return what `FittedOperator` needs: the draws and, if they are learnt, the widths of
the epistemic part and the noise.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from skuq._utils._environment import generator
from skuq.estimators._operators._training import N_FOLDS, fit_widths
from skuq.fitted._operator import IndexDraws, MemberDraws
from skuq.networks._epinet import EpistemicNetwork
from skuq.networks._keras_models import rebuild
from skuq.networks._plan import ARRAYS
from skuq.predictive._posterior import quasi_random_normals
from skuq.training._engine import find_completed
from skuq.training._predict import predict_draws


def train_epinet(job, report, *, epinet, n_draws):
    """Train a network and its EpiNet together by gradient steps, as in the paper.

    To learn the noise, a twin is trained on four fifths of the functions, and its errors at the
    others are compared with its draws.

    Parameters
    ----------
    job : OperatorJob
    report : callable
        Told of finished epochs.
    epinet : skuq.networks.EpiNet
    n_draws : int
        Number of draws that predictions average over.

    Returns
    -------
    draws : IndexDraws
    widths : tuple of two ndarrays of the shape of the noise, or None
        Factor of the epistemic part and standard deviation of the noise; None if not learnt.
    """
    layers = epinet.describe(_n_features(job), job.head.n_raw)
    network = EpistemicNetwork(job.base, job.head.n_raw, layers)
    recipe = replace(job.recipe, n_draws=epinet.n_index_samples)
    index = quasi_random_normals(n_draws, epinet.n_index, generator(job.entropy, "index"))
    n_members, left_out = 1, None
    if job.learns_noise:
        n_members = 2
        left_out = np.stack([np.zeros(job.n_functions, dtype=bool), *job.folds(1, N_FOLDS)])
    members = job.train(network, n_members, report, left_out=left_out, recipe=recipe)
    find_completed(members[:1])  # raises an error if the network itself has diverged
    if find_completed(members) != [0, 1]:  # no twin, or one that has diverged
        return IndexDraws(members[0], index), None
    others = np.flatnonzero(left_out[1])
    rows = job.rows_of(others)
    raw = predict_draws(members[1], job.data.x[rows], index)
    values, _ = job.head.values(ARRAYS, raw)
    error = job.data.y[rows] - values.mean(axis=0)
    widths = fit_widths(error**2, values.var(axis=0), job.weight[others], job.noise.shape)
    return IndexDraws(members[0], index), widths


def _n_features(job) -> int:
    """Compute the number of features that the EpiNet sees of a row."""
    if job.base is None:  # rows are the features of a given model
        return job.data.x.shape[1]
    if isinstance(job.base, str):  # a Keras model gives raw outputs, then features
        return rebuild(job.base).output_shape[-1] - job.head.n_raw
    return job.base.n_features


def train_ensemble(job, report, *, n_members, prior_scale, subsample):
    """Train an ensemble, and learn widths from the functions that its members leave out.

    Parameters
    ----------
    job : OperatorJob
    report : callable
        Told of finished epochs.
    n_members, prior_scale, subsample
        See `OperatorEnsembleRegressor`.

    Returns
    -------
    draws : MemberDraws
    widths : tuple of two ndarrays of the shape of the noise, or None
        Factor of the epistemic part and standard deviation of the noise; None if not learnt.
    """
    network = EpistemicNetwork(job.base, job.head.n_raw, prior_scale=float(prior_scale))
    # A function's error needs a member that has not seen it, and another for the spread.
    learns, left_out = job.learns_noise and n_members > 1, None
    if subsample is not None:
        size = max(1, round(subsample * job.n_functions))
        order = [
            generator(job.entropy, "bootstrap", k).permutation(job.n_functions)
            for k in range(n_members)
        ]
        left_out = ~np.stack([np.isin(np.arange(job.n_functions), o[:size]) for o in order])
        learns = learns and left_out.any(axis=1).all()
    elif learns:
        left_out = job.folds(n_members, N_FOLDS)
    members = job.train(network, n_members, report, left_out=left_out, validate=learns)
    kept = find_completed(members)
    draws = MemberDraws(tuple(members[k] for k in kept))
    if not learns or len(kept) < 2:
        return draws, None
    return draws, _widths_of_members(job, draws, left_out[kept])


def _widths_of_members(job, draws, left_out):
    """Fit the epistemic factor and the noise to functions that members have left out."""
    values, _ = job.head.values(ARRAYS, draws.raw(job.data.x, draws.index))
    unseen = np.repeat(left_out, job.n_queries, axis=1)[..., None]
    # The mean over the members that have not seen a value predicts it.
    n_unseen = unseen.sum(axis=0)
    mean = (values * unseen).sum(axis=0) / np.maximum(n_unseen, 1)
    weight = job.weight * left_out.any(axis=0)
    error = job.data.y - mean
    return fit_widths(error**2, values.var(axis=0), weight, job.noise.shape)
