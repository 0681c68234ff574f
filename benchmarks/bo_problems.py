"""Problems of Bayesian optimisation. Here everything is minimised, as in the papers' tables.

- Those of the NEON paper: pollutants from the authors' own initial points, and the Brusselator.
- Functions of NOMU's paper.
- A suite with the budgets of Li et al. 2023 (arXiv 2305.20028), and the pollutants, too.
"""

import functools
import hashlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from data import folder
from problems import make_bnn_function, make_function, make_operator_problem
from problems.operators import coverage
from scipy.optimize import differential_evolution
from scipy.stats import qmc

CACHE = Path.home() / ".cache" / "skuq-benchmarks"  # fields of the Brusselator
NAMES = ("levy", "rosenbrock", "bnn", "g_function", "perm")
FUNCTIONS = tuple(f"{name}{d}d" for d in (5, 10, 20) for name in NAMES)
# Cells along the Brusselator's side, its border, and a block of which one cell is kept. Of blocks
# of 6 some patterns lose half their variance, of 4 some percent.
SIDE, EDGE, BLOCK = 64, 2, 4
N_EVALUATIONS = 72  # of NOMU's functions
N_STAGES, N_CHOICES = 25, 5  # of pest control


class Task(NamedTuple):
    """One search: where it starts, its budget, and what evaluating a point (d,) gives."""

    bounds: np.ndarray
    start: np.ndarray
    n_evaluations: int  # those of the start included
    evaluate: Callable  # to (outputs or None, value)
    q: int = 1
    best_value: float | None = None  # None: not known
    objective: Callable | None = None  # of outputs, to be maximised
    query_points: np.ndarray | None = None
    categories: tuple = ()

    @property
    def best_known(self):
        """The value from which regret counts: 0 if the optimum is not known."""
        return 0.0 if self.best_value is None else self.best_value


def design(bounds, n, seed, categories=()):
    """Initial points, the same for all methods: a Latin hypercube (n, d)."""
    u = qmc.LatinHypercube(len(bounds), rng=np.random.default_rng(seed)).random(n)
    return scaled(u, bounds, categories)


def scaled(u, bounds, categories=()):
    """Points (n, d) of a box from those of the unit cube; codes of categories."""
    low, high = bounds.T
    x = low + (high - low) * u
    for column in categories:
        x[:, column] = np.floor(u[:, column] * (high[column] + 1))
    return x


def pollutants_start(seed):
    """The first five inputs of one of the ten runs of the NEON authors: (5, 4)."""
    with np.load(folder() / "neon" / "reference_runs.npz") as runs:
        return runs["pollutants_u_ei_leaky"][seed, :5].astype(float)


def brusselator_start():
    """The five inputs of the Brusselator that come with the authors' program: (5, 4)."""
    with np.load(folder() / "neon" / "brusselator_initial.npz") as stored:
        return stored["u"].astype(float)


# Composite problems


def stored_start(seed):
    """The first fifteen inputs of one of five stored runs of others: (15, 4)."""
    with np.load(folder() / "neon" / "interferometer_rpnbo.npz") as runs:
        return runs["u_init"][seed].astype(float)


def operator_task(name, start, n_evaluations, seed, q=1, block=None):
    """Surrogates learn few cells of a field, one of each block; values are those of all.

    `start` is the number of points of a Latin hypercube, or the points.
    """
    operator = make_operator_problem(name)
    queries, reduced, objective = operator.query_points, np.asarray, operator.objective
    if block is not None:
        rows, objective = on_few_cells(name, block)
        queries, reduced = queries[rows], lambda outputs: outputs[rows]
    start = design(operator.bounds, start, seed) if isinstance(start, int) else start

    def evaluate(x):
        outputs = solved(x) if name == "brusselator" else operator(x[None])[0]
        return reduced(outputs), -float(operator.objective(outputs))

    best = None if operator.best_value is None else -operator.best_value
    return Task(
        operator.bounds,
        np.clip(start, *operator.bounds.T),  # some are kept in float32
        n_evaluations,
        evaluate,
        q,
        best,
        objective,
        queries,
    )


@functools.cache
def on_few_cells(name, block):
    """Rows of the cells in the middle of square blocks, and the objective of these.

    Each cell stands for all that are nearest to it.
    """
    if name == "brusselator":
        return coarse_cells()
    operator = make_operator_problem(name)
    side = round(len(operator.query_points) ** 0.5)
    numbers = np.minimum(np.arange(side) // block * block + block // 2, side - 1)
    kept, nearest = np.unique((numbers[:, None] * side + numbers).ravel(), return_inverse=True)
    return kept, functools.partial(coverage, areas=np.bincount(nearest).astype(float))


def coarse_cells():
    """The same for the Brusselator.

    The border, which has ten times the weight of the inside, is blocks of its own.
    """
    inside = np.arange(EDGE, SIDE - EDGE, BLOCK) + BLOCK // 2
    nodes = np.array([EDGE - 1, *inside, SIDE - EDGE])
    lengths = np.array([EDGE, *np.full(len(inside), BLOCK), EDGE]) / SIDE
    at_border = (nodes < EDGE) | (nodes >= SIDE - EDGE)
    shares = np.outer(lengths, lengths).reshape(-1, 1).astype("float32") / 2  # two components
    weights = np.where(at_border[:, None] | at_border, 1.0, 0.1).reshape(-1, 1).astype("float32")

    def objective(outputs):
        """Minus the weighted variance of the fields, from their coarse cells."""
        xp = np
        if not isinstance(outputs, np.ndarray):
            from skuq.backend import ops as xp
        weighted = outputs * weights
        mean = xp.sum(weighted * shares, axis=(-2, -1), keepdims=True)
        return -xp.sum(xp.square(weighted - mean) * shares, axis=(-2, -1))

    return (nodes[:, None] * SIDE + nodes).ravel(), objective


def solved(x):
    """Field (4096, 2) of the Brusselator; kept, as it takes many seconds."""
    name = hashlib.sha256(np.asarray(x, dtype="float64").tobytes()).hexdigest()[:20]
    path = CACHE / f"brusselator-{name}.npz"
    if not path.exists():
        field = make_operator_problem("brusselator")(x[None])[0]
        CACHE.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(".tmp")
        with open(unfinished, "wb") as file:
            np.savez(file, field=field.astype("float32"))
        unfinished.replace(path)
    with np.load(path) as kept:
        return kept["field"].astype(float)


# Functions of NOMU's paper


def function(dataset, seed):
    """A function from [-1, 1]^d to [-1, 1], and 8 uniform points, the same for all methods."""
    f, low, high = with_ends(dataset, seed)

    def evaluate(x):
        return None, float(2 * (f(x[None])[0] - low) / (high - low) - 1)

    rng = np.random.default_rng([seed, FUNCTIONS.index(dataset)])
    start = rng.uniform(-1, 1, (8, f.n_features))
    return Task(f.bounds, start, N_EVALUATIONS, evaluate, best_value=-1.0)


def with_ends(dataset, seed):
    """A function, and the values of it that are scaled to -1 and 1."""
    name, d = re.fullmatch(r"(\w+?)(\d+)d", dataset).groups()
    return scaled_bnn(seed, int(d)) if name == "bnn" else (make_function(name, int(d)), -1.0, 1.0)


@functools.cache
def scaled_bnn(seed, d):
    """A draw, and the least and the greatest value that some 20 000 evaluations find.

    The paper searches with DIRECT; differential evolution takes many points at once. Regrets are
    measured from lower values, which gradients find (`lowest`).
    """
    f = make_bnn_function(d, random_state=seed)
    settings = {"popsize": 40, "maxiter": 100, "init": "sobol", "rng": seed, "polish": False}
    settings |= {"vectorized": True, "updating": "deferred"}
    ends = [
        differential_evolution(lambda X, sign=sign: sign * f(X.T), f.bounds, **settings).fun
        for sign in (1, -1)
    ]
    return f, ends[0], -ends[1]


def known(ends, _, seed):
    """The least value and its scale, and the mean regret of 400 searches at random."""
    f, low, high = ends
    least = f.minimum or lowest(f, seed)
    points = np.random.default_rng(seed).uniform(-1, 1, (400, N_EVALUATIONS, f.n_features))
    found = np.array([f(x).min() for x in points])
    return {"least": least, "low": low, "high": high, "random": np.mean(found - least) / -least}


def lowest(f, seed):
    """The least value of a network that 256 descents by the signs of its gradients find."""
    import tensorflow as tf

    X, least = np.random.default_rng(seed).uniform(-1, 1, (256, f.n_features)), np.inf
    for step in np.linspace(0.2, 0, 200):
        hidden = X = tf.constant(X, "float32")
        with tf.GradientTape() as tape:
            tape.watch(X)
            for kernel, bias in f.layers[:-1]:
                hidden = tf.nn.relu(hidden @ kernel + bias)
            values = hidden @ f.layers[-1][0] + f.layers[-1][1]
        least = min(least, float(values.numpy().min()))
        X = np.clip(X - step * tf.sign(tape.gradient(values, X)), -1, 1)
    return least


# The suite


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


def plain(f, low, high, n_initial, n_batches, q, best, seed, categories=()):
    """A function of numbers."""
    bounds = np.stack([low, high], axis=1).astype(float)
    return Task(
        bounds,
        design(bounds, n_initial, seed, categories),
        n_initial + n_batches * q,
        lambda x: (None, float(f(x))),
        q,
        best,
        categories=categories,
    )


PROBLEMS = {
    "pollutants": lambda k: operator_task("pollutants", pollutants_start(k), 40, k),
    "brusselator": lambda k: operator_task("brusselator", 5, 35, k, block=BLOCK),
    "brusselator_authors": lambda k: operator_task(
        "brusselator", brusselator_start(), 35, k, block=BLOCK
    ),
    "interferometer": lambda k: operator_task("interferometer", stored_start(k), 100, k),
    **{name: functools.partial(function, name) for name in FUNCTIONS},
}
_STAGES = np.zeros(N_STAGES), np.full(N_STAGES, N_CHOICES - 1)
SUITE = {
    "branin": lambda k: plain(branin, [-5, 0], [10, 15], 10, 9, 10, 0.39788735772973816, k),
    "hartmann6": lambda k: plain(
        hartmann6, np.zeros(6), np.ones(6), 10, 19, 10, -3.322368011415515, k
    ),
    "ackley10": lambda k: plain(
        ackley, np.full(10, -32.768), np.full(10, 32.768), 10, 19, 10, 0.0, k
    ),
    "pest": lambda k: plain(
        pest_control, *_STAGES, 20, 25, 4, None, k, categories=tuple(range(N_STAGES))
    ),
    "pde": PROBLEMS["brusselator"],
    "cells": lambda k: operator_task("cell_towers", 10, 105, k, q=5, block=4),
    "pollutants": lambda k: operator_task("pollutants", 5, 40, k),
}
