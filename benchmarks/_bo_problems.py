"""What benchmarks/bo.py optimises. Here everything is minimised, as in the papers' tables."""

import functools
import hashlib
import re
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from _bo_published import brusselator_start, pollutants_start, reference_runs
from problems import make_bnn_function, make_function, make_operator_problem
from scipy.optimize import differential_evolution
from scipy.stats import qmc

NAMES = ("levy", "rosenbrock", "bnn", "g_function", "perm")
FUNCTIONS = tuple(f"{name}{d}d" for d in (5, 10, 20) for name in NAMES)
# Cells along the Brusselator's side, its border, and a block of which one cell is kept. Of blocks
# of 6 some patterns lose half their variance, of 4 some percent.
SIDE, EDGE, BLOCK = 64, 2, 4


class Evaluation(NamedTuple):
    outputs: np.ndarray | None  # what a composite surrogate learns
    value: float
    seconds: float


class Problem(NamedTuple):
    """One search: where it starts, and what evaluating a point (d,) gives."""

    bounds: np.ndarray
    start: np.ndarray
    evaluate: Callable
    objective: Callable | None = None  # of outputs, to be maximised
    query_points: np.ndarray | None = None


def problem(part, dataset, seed, arguments):
    if part == "pollutants":
        return pollutants(seed, arguments)
    if part == "brusselator":
        return brusselator(dataset, seed, arguments)
    return function(dataset, seed)


def pollutants(seed, arguments):
    operator = make_operator_problem("pollutants")

    def evaluate(x):
        started = time.perf_counter()
        outputs = operator(x[None])[0]
        value = -float(operator.objective(outputs))
        return Evaluation(outputs, value, time.perf_counter() - started)

    start = pollutants_start(reference_runs(arguments.data_dir), seed)
    start = np.clip(start, *operator.bounds.T)  # they are kept in float32
    return Problem(operator.bounds, start, evaluate, operator.objective, operator.query_points)


# Brusselator: the surrogate sees few cells, the value is that of the whole field.


def brusselator(dataset, seed, arguments):
    """From five points of a Latin hypercube, or from the five that the NEON authors give."""
    operator = make_operator_problem("brusselator")
    low, high = operator.bounds.T
    if dataset == "brusselator_authors":
        start = brusselator_start(arguments.data_dir)
    else:
        start = low + (high - low) * qmc.LatinHypercube(len(low), rng=seed).random(5)
    rows, shares, weights = coarse_cells()

    def evaluate(x):
        field, seconds = solved(x, arguments.cache_dir)
        return Evaluation(field[rows], -float(operator.objective(field)), seconds)

    objective = coarse_objective(tuple(shares), tuple(weights))
    return Problem(operator.bounds, start, evaluate, objective, operator.query_points[rows])


def solved(x, cache_dir):
    """Field (4096, 2) of an input (d,), and the seconds it took; kept, as it takes many."""
    name = hashlib.sha256(np.asarray(x, dtype="float64").tobytes()).hexdigest()[:20]
    path = cache_dir / f"brusselator-{name}.npz"
    if not path.exists():
        started = time.perf_counter()
        field = make_operator_problem("brusselator")(x[None])[0]
        seconds = time.perf_counter() - started
        cache_dir.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(".tmp")
        with open(unfinished, "wb") as file:
            np.savez(file, field=field.astype("float32"), seconds=seconds)
        unfinished.replace(path)
    with np.load(path) as kept:
        return kept["field"].astype(float), float(kept["seconds"])


@functools.cache
def coarse_cells():
    """Cells that stand for blocks of others: their rows among 4096, shares of all and weights.

    The border, which has ten times the weight of the inside, is blocks of its own.
    """
    inside = np.arange(EDGE, SIDE - EDGE, BLOCK) + BLOCK // 2
    nodes = np.array([EDGE - 1, *inside, SIDE - EDGE])
    lengths = np.array([EDGE, *np.full(len(inside), BLOCK), EDGE]) / SIDE
    rows = (nodes[:, None] * SIDE + nodes).ravel()
    at_border = (nodes < EDGE) | (nodes >= SIDE - EDGE)
    weights = np.where(at_border[:, None] | at_border, 1.0, 0.1)
    return rows, np.outer(lengths, lengths).ravel(), weights.ravel()


@functools.cache
def coarse_objective(shares, weights):
    """Minus the weighted variance of the fields, from their coarse cells."""
    shares = np.array(shares, dtype="float32")[:, None] / 2  # two components
    weights = np.array(weights, dtype="float32")[:, None]

    def objective(outputs):
        xp = np
        if not isinstance(outputs, np.ndarray):
            from skuq.backend import ops as xp
        weighted = outputs * weights
        mean = xp.sum(weighted * shares, axis=(-2, -1), keepdims=True)
        return -xp.sum(xp.square(weighted - mean) * shares, axis=(-2, -1))

    return objective


# Functions of NOMU's paper


def function(dataset, seed):
    """A function from [-1, 1]^d to [-1, 1], and 8 uniform points, the same for all methods."""
    name, d = re.fullmatch(r"(\w+?)(\d+)d", dataset).groups()
    if name == "bnn":
        f, low, high = scaled_bnn(seed, int(d))
    else:
        f, low, high = make_function(name, int(d)), -1.0, 1.0

    def evaluate(x):
        started = time.perf_counter()
        value = float(2 * (f(x[None])[0] - low) / (high - low) - 1)
        return Evaluation(None, value, time.perf_counter() - started)

    start = np.random.default_rng([seed, FUNCTIONS.index(dataset)]).uniform(-1, 1, (8, int(d)))
    return Problem(f.bounds, start, evaluate)


@functools.cache
def scaled_bnn(seed, d):
    """A draw, and the least and the greatest value that some 20 000 evaluations find.

    The paper searches with DIRECT; differential evolution takes many points at once.
    """
    f = make_bnn_function(d, random_state=seed)
    ends = [
        differential_evolution(
            lambda X, sign=sign: sign * f(X.T),
            f.bounds,
            popsize=40,
            maxiter=100,
            init="sobol",
            rng=seed,
            polish=False,
            vectorized=True,
            updating="deferred",
        ).fun
        for sign in (1, -1)
    ]
    return f, ends[0], -ends[1]
