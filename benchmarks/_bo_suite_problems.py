"""The problems of benchmarks/bo_suite.py, with the budgets of Li et al. 2023 (arXiv 2305.20028).

Everything is minimised.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from _bo_problems import coarse_cells, coarse_objective, solved
from problems import make_operator_problem
from problems.operators import PIXEL_WEIGHTS, coverage, visibility
from scipy.stats import qmc

N_STAGES, N_CHOICES = 25, 5  # of pest control


class Task(NamedTuple):
    """One problem: its domain, its budget, and what evaluating a point (d,) gives."""

    bounds: np.ndarray
    n_initial: int
    n_batches: int
    q: int
    evaluate: Callable  # to (outputs or None, value)
    best_value: float | None = None  # None: not known
    objective: Callable | None = None  # of outputs, to be maximised
    query_points: np.ndarray | None = None
    categories: tuple = ()


def plain(function):
    """Evaluate a function of numbers."""
    return lambda x: (None, float(function(x)))


def branin(x):
    hollow = x[1] - 5.1 * x[0] ** 2 / (4 * np.pi**2) + 5 * x[0] / np.pi - 6
    return hollow**2 + 10 * (1 - 1 / (8 * np.pi)) * np.cos(x[0]) + 10


_ALPHA = np.array([1.0, 1.2, 3.0, 3.2])
_A = np.array(
    [[10, 3, 17, 3.5, 1.7, 8], [0.05, 10, 17, 0.1, 8, 14]]
    + [[3, 3.5, 1.7, 10, 17, 8], [17, 8, 0.05, 10, 0.1, 14]]
)
_P = 1e-4 * np.array(
    [[1312, 1696, 5569, 124, 8283, 5886], [2329, 4135, 8307, 3736, 1004, 9991]]
    + [[2348, 1451, 3522, 2883, 3047, 6650], [4047, 8828, 8732, 5743, 1091, 381]]
)


def hartmann6(x):
    return -_ALPHA @ np.exp(-np.sum(_A * (x - _P) ** 2, axis=1))


def ackley(x):
    bowl = -20 * np.exp(-0.2 * np.sqrt(np.mean(x**2)))
    return bowl - np.exp(np.mean(np.cos(2 * np.pi * x))) + 20 + np.e


def pest_control(x):
    """Price of pesticides plus the share of stages above a threshold (Oh et al. 2019, COMBO).

    At each of 25 stages none or one of four pesticides is used. Its random numbers are fixed, the
    same at every stage, as in Li et al.'s runs (seed 1).
    """
    prices, discounts = (1.0, 0.8, 0.7, 0.5), (0.2, 0.3, 0.3, 0.0)
    tolerance = np.array([1.0, 2.5, 2.0, 0.5]) / 7 / N_STAGES
    control = np.array([2.0, 3.0, 3.0, 5.0]) / 7
    used = np.asarray(x, dtype=int)

    def fixed(a, b):
        return np.random.RandomState(1).beta(a, b, size=100)

    pests, spread, total = fixed(1.0, 30.0), fixed(1.0, 17 / 3), 0.0
    for choice in used:
        total += np.mean(pests > 0.1)
        if not choice:
            pests = spread * (1 - pests) + pests
            continue
        k = choice - 1
        share = np.sum(used == choice) / N_STAGES
        total += prices[k] * (1 - discounts[k] * share)
        pests = (1 - fixed(1.0, control[k])) * pests
        control[k] += tolerance[k]
    return total


@functools.cache
def on_few_cells(name, block):
    """Rows of the cells in the middle of square blocks, and the objective of these.

    Each cell stands for all that are nearest to it.
    """
    operator = make_operator_problem(name)
    side = round(len(operator.query_points) ** 0.5)
    numbers = np.minimum(np.arange(side) // block * block + block // 2, side - 1)
    rows = (numbers[:, None] * side + numbers).ravel()
    kept, nearest = np.unique(rows, return_inverse=True)
    if name == "interferometer":
        return kept, functools.partial(
            visibility, pixel_weights=np.bincount(nearest, PIXEL_WEIGHTS)
        )
    return kept, functools.partial(coverage, areas=np.bincount(nearest).astype(float))


def operator_task(name, n_initial, n_batches, q, block=None):
    """Surrogates learn few cells of a field, one of each block; values are those of all."""
    operator = make_operator_problem(name)
    rows, objective = slice(None), operator.objective
    if block is not None:
        rows, objective = on_few_cells(name, block)

    def evaluate(x):
        outputs = operator(x[None])[0]
        return outputs[rows], -float(operator.objective(outputs))

    best = None if operator.best_value is None else -operator.best_value
    return Task(
        *(operator.bounds, n_initial, n_batches, q, evaluate, best),
        *(objective, operator.query_points[rows]),
    )


def brusselator(cache_dir):
    """Surrogates learn few cells of the field; values are those of all."""
    operator = make_operator_problem("brusselator")
    rows, shares, weights = coarse_cells()

    def evaluate(x):
        field, _ = solved(x, cache_dir)
        return field[rows], -float(operator.objective(field))

    objective = coarse_objective(tuple(shares), tuple(weights))
    return Task(
        *(operator.bounds, 5, 30, 1, evaluate, None),
        *(objective, operator.query_points[rows]),
    )


def box(low, high, d):
    return np.tile([float(low), float(high)], (d, 1))


#: Name to a function of the cache's folder that makes the task.
TASKS = {
    "branin": lambda cache: Task(
        np.array([[-5.0, 10.0], [0.0, 15.0]]), 10, 9, 10, plain(branin), 0.39788735772973816
    ),
    "hartmann6": lambda cache: Task(box(0, 1, 6), 10, 19, 10, plain(hartmann6), -3.322368011415515),
    "ackley10": lambda cache: Task(box(-32.768, 32.768, 10), 10, 19, 10, plain(ackley), 0.0),
    "pest": lambda cache: Task(
        *(box(0, N_CHOICES - 1, N_STAGES), 20, 25, 4, plain(pest_control)),
        categories=tuple(range(N_STAGES)),
    ),
    "pde": brusselator,
    "optics": lambda cache: operator_task("interferometer", 10, 10, 10, block=4),
    "cells": lambda cache: operator_task("cell_towers", 10, 19, 5, block=4),
    "pollutants": lambda cache: operator_task("pollutants", 5, 35, 1),
}


def n_evaluations(task):
    """Count the evaluations of a whole search, initial points included."""
    return task.n_initial + task.n_batches * task.q


def best_known(task):
    """The value from which regret counts: 0 if the optimum is not known."""
    return 0.0 if task.best_value is None else task.best_value


def whole_searches(records, name, method):
    """Records of the searches of a problem that have reached their end."""
    end = n_evaluations(TASKS[name](None))
    of_suite = [r for r in records if r["part"] == "suite"]
    mine = [r for r in of_suite if (r["dataset"], r["method"]) == (name, method)]
    return [r for r in mine if len(r["values"]) == end]


def design(task, seed):
    """The initial points, the same for all methods: a Latin hypercube (n_initial, d)."""
    u = qmc.LatinHypercube(len(task.bounds), rng=np.random.default_rng(seed)).random(task.n_initial)
    low, high = task.bounds.T
    X = low + (high - low) * u
    for column in task.categories:
        X[:, column] = np.floor(u[:, column] * (high[column] + 1))
    return X
