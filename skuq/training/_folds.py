"""Trials of one network a fold: their jobs, and the record of their networks together."""

from __future__ import annotations

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

_LARGEST_STACK = 16  # folds of one program
_LARGEST_SPREAD = 0.1  # of the mean weights of stacked folds: losses are not divided by them

#: Rows of ``data.x`` to train on and to validate on.
Fold = tuple[np.ndarray, np.ndarray]


def fold_jobs(
    make_job: Callable[..., TrainingJob],
    data: TrainingData,
    folds: Sequence[Fold],
    seeds: Sequence[int],
) -> list[tuple[TrainingJob, TrainingData]]:
    """Make the jobs of one network a fold, each with its data, in the order of the folds.

    ``make_job(seeds, **fields)`` makes a job. `data` has no validation rows of its own, and `seeds`
    one entry for each fold.
    """
    alone = make_job(seeds[:1])
    if make_plan(alone.network) is not None and _are_alike(data, folds):
        return _stacks(make_job, data, folds, seeds)
    return [(make_job([seed]), data.divided(*fold)) for fold, seed in zip(folds, seeds)]


def _are_alike(data: TrainingData, folds: Sequence[Fold]) -> bool:
    """Tell whether sizes and weights of folds differ so little that a stack can train them."""
    sizes = [[len(rows) for rows in fold] for fold in folds]
    weights = [data.weight[train].mean(dtype=float) for train, _ in folds]
    return bool((np.ptp(sizes, axis=0) <= 1).all() and np.ptp(weights) <= _LARGEST_SPREAD)


def _stacks(
    make_job: Callable[..., TrainingJob],
    data: TrainingData,
    folds: Sequence[Fold],
    seeds: Sequence[int],
) -> list[tuple[TrainingJob, TrainingData]]:
    # Smaller folds are filled up with a row of no weight.
    n, data = len(data.x), data.with_empty_row()
    largest = np.max([[len(rows) for rows in fold] for fold in folds], axis=0)
    splits = [
        tuple(
            np.pad(rows, (0, size - len(rows)), constant_values=n)
            for rows, size in zip(fold, largest)
        )
        for fold in folds
    ]
    parts = np.array_split(np.arange(len(seeds)), -(-len(seeds) // _LARGEST_STACK))
    return [
        (
            make_job([seeds[k] for k in part], stacked=True, splits=[splits[k] for k in part]),
            data,
        )
        for part in parts
    ]


def mean_score(head: LikelihoodHead, y: np.ndarray, raw: np.ndarray, weight: np.ndarray) -> float:
    """Return the weighted mean over rows of what a search minimises, in float64."""
    scores = head.scores(y.astype("float64"), raw.astype("float64"))
    return float(np.average(scores, weights=weight.astype("float64")))


def folded_member(
    networks: Sequence[Member],
    data: TrainingData,
    folds: Sequence[Fold],
    head: LikelihoodHead,
    held_out: Any = None,
    with_moments: bool = True,
) -> FoldedMember:
    """Make the record of a trial of one network a fold.

    The validation rows of the folds are all rows, each once. Of further inputs, `held_out`, it
    holds what the mixture of all networks predicts. `with_moments` adds `center` and `variance`.
    """
    raw = np.empty((len(data.x), head.n_raw), dtype="float32")
    for network, (_, valid) in zip(networks, folds):
        raw[valid] = np.asarray(network.held_out)[: len(valid)]
    score = mean_score(head, data.y, raw, data.weight)
    center = variance = None
    if with_moments and isinstance(head, GaussianHead):
        _, noise = head.distribution(raw.astype("float64"))
        loc, _ = head.distribution(predict_members(networks, data.x, once=True))
        center = loc.mean(axis=0, dtype="float64").astype("float32")
        variance = (noise**2 + loc.var(axis=0, dtype="float64")).astype("float32")
    if held_out is not None:
        mixture = head.pooled(predict_members(networks, held_out, once=True))
        raw = np.concatenate([raw, mixture.astype("float32")])
    networks = [network.with_held_out(None) for network in networks]
    return FoldedMember(tuple(networks), raw, score, center, variance)
