"""Train one network for each fold: the jobs of a trial, and the joint record of its networks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from skuq.catalog._records import FoldedMember, Member
from skuq.networks._gaussian_head import GaussianHead
from skuq.networks._head_protocol import LikelihoodHead
from skuq.networks._plan import make_plan
from skuq.tables._training_data import TrainingData
from skuq.training._job import TrainingJob
from skuq.training._predict import predict_members

_LARGEST_STACK = 16  # folds trained by one program
# Largest difference between the mean row weights of stacked folds: a batch's loss is not divided
# by its weights, so that folds of other weights would train at other rates.
_LARGEST_SPREAD = 0.1

#: Rows of ``data.x`` to train on and to validate on.
Fold = tuple[np.ndarray, np.ndarray]


def fold_jobs(
    make_job: Callable[..., TrainingJob],
    data: TrainingData,
    folds: Sequence[Fold],
    seeds: Sequence[int],
) -> list[tuple[TrainingJob, TrainingData]]:
    """Make the training jobs of a trial with one network per fold.

    Parameters
    ----------
    make_job : callable
        ``make_job(seeds, **fields)`` makes one job.
    data : TrainingData
        All rows, without validation rows.
    folds : sequence of Fold
    seeds : sequence of int
        One for each fold.

    Returns
    -------
    list of (TrainingJob, TrainingData)
        Stacks where the folds can be stacked, otherwise one job a fold; networks come in the
        order of the folds.
    """
    alone = make_job(seeds[:1])
    if make_plan(alone.network) is not None and _are_alike(data, folds):
        return _stacks(make_job, data, folds, seeds)
    return [(make_job([seed]), data.split_rows(*fold)) for fold, seed in zip(folds, seeds)]


def _are_alike(data: TrainingData, folds: Sequence[Fold]) -> bool:
    """Tell whether folds agree enough in sizes and mean weights to train as one stack."""
    sizes = [[len(rows) for rows in fold] for fold in folds]
    weights = [data.weight[train].mean(dtype=float) for train, _ in folds]
    return bool((np.ptp(sizes, axis=0) <= 1).all() and np.ptp(weights) <= _LARGEST_SPREAD)


def _stacks(
    make_job: Callable[..., TrainingJob],
    data: TrainingData,
    folds: Sequence[Fold],
    seeds: Sequence[int],
) -> list[tuple[TrainingJob, TrainingData]]:
    """Make jobs whose stacks train up to 16 folds at once.

    All members of a stack have equally many rows, so smaller folds are padded with the number of
    an additional row, whose weight is zero.
    """
    # n is the number of the additional row, whose weight is 0.
    n, data = len(data.x), data.with_empty_row()
    largest = np.max([[len(rows) for rows in fold] for fold in folds], axis=0)
    splits = [
        tuple(
            np.pad(rows, (0, size - len(rows)), constant_values=n)
            for rows, size in zip(fold, largest)
        )
        for fold in folds
    ]
    # Stacks of nearly equal sizes, as few as possible.
    n_stacks = math.ceil(len(seeds) / _LARGEST_STACK)
    parts = np.array_split(np.arange(len(seeds)), n_stacks)
    return [
        (
            make_job([seeds[k] for k in part], stacked=True, splits=[splits[k] for k in part]),
            data,
        )
        for part in parts
    ]


def mean_score(head: LikelihoodHead, y: np.ndarray, raw: np.ndarray, weight: np.ndarray) -> float:
    """Compute the score that a search minimises, as a weighted mean over rows, in float64."""
    scores = head.scores(y.astype("float64"), raw.astype("float64"))
    return float(np.average(scores, weights=weight.astype("float64")))


def folded_member(
    networks: Sequence[Member],
    data: TrainingData,
    folds: Sequence[Fold],
    head: LikelihoodHead,
    held_out: Any = None,
) -> FoldedMember:
    """Make the record of a trial with one network per fold.

    Every row is a validation row of exactly one fold, and the record holds that fold's prediction
    of it. To the variance of normal predictions that of all networks' means is added: score and
    selection then judge the mixture that will predict. `center` is the mixture's mean.
    For further inputs, `held_out`, the record holds the prediction of all networks' mixture.
    """
    # Out-of-fold predictions (n_samples, n_raw). A stack's predictions may end with padding.
    raw = np.empty((len(data.x), head.n_raw), dtype="float32")
    for network, (_, valid) in zip(networks, folds):
        raw[valid] = np.asarray(network.held_out)[: len(valid)]
    center = None
    if isinstance(head, GaussianHead):
        mean, noise = head.distribution(raw.astype("float64"))
        loc, _ = head.distribution(predict_members(networks, data.x, cache=False))
        center = loc.mean(axis=0, dtype="float64").astype("float32")
        std = np.sqrt(noise**2 + loc.var(axis=0, dtype="float64"))
        raw = head.raw_of(mean, std).astype("float32")
    score = mean_score(head, data.y, raw, data.weight)
    if held_out is not None:
        # One normal that stands for the mixture of all networks, as raw numbers.
        mixture = head.pooled(predict_members(networks, held_out, cache=False))
        raw = np.concatenate([raw, mixture.astype("float32")])
    networks = [network.with_held_out(None) for network in networks]
    return FoldedMember(tuple(networks), raw, score, center)
