"""Bayesian optimisation with NEON and NOMU, beside their papers' figures and beside rivals.

- bo: pollutants, from 5 points of the NEON authors' own runs and 35 more (section 3.1), also with 2
  and 3 points at once (section 7); the Brusselator with 30 more points (3.2), which needs py-pde,
  "brusselator_authors" from the points that come with the authors' program; the interferometer from
  15 stored points and 85 more (3.3); functions of NOMU's paper (section 4.2), 8 initial points and
  64 more.
- bo_functions: the least value of each of those functions, and regrets of random points.
- bo_suite: seven problems beside BoTorch and Optuna (``pip install botorch optuna``).
- operators: error and likelihood on functions held out, beside ensembles of NEON's base network
  with seven times its parameters.

The row of a search grows with every batch.
"""

import dataclasses
import time
from functools import partial

import numpy as np
from bo_peers import PEERS, Uniform
from bo_problems import FUNCTIONS, PROBLEMS, SUITE, known, with_ends
from nomu import gaussian_process, nomu, rival
from problems import make_operator_problem
from runner import Benchmark, each, growing
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from skuq import NEONRegressor, NOMURegressor, OperatorEnsembleRegressor
from skuq.bayesopt import BayesianOptimizer, MultiStart, OutputwiseRegressor, UpperConfidenceBound
from skuq.networks import (
    ArtificialInputs,
    ConditionedPrior,
    EpiNet,
    NOMUNetwork,
    NOMUReadout,
    OperatorNetwork,
)
from skuq.predictive._epistemic_scale import fit_epistemic_scale

# sqrt(0.1): the paper's kappa is under the root
LCB = {"acquisition": UpperConfidenceBound(0.316, deviation="absolute")}
FIELDS = OperatorNetwork(fourier_scale=5.0, latent=96, decoder_units=(64,) * 3)  # the paper's
WIDTH = 128  # units of NOMU's layers, 1024 in the paper


# Surrogates, and what of the search differs from the defaults. Simulations have no noise.


def matern(d):
    """A Gaussian process with a length scale for each input, all inputs scaled."""
    kernel = ConstantKernel() * Matern(np.ones(d), (1e-2, 1e2), nu=2.5)
    kernel += WhiteKernel(1e-6, (1e-9, 1e-3))
    process = GaussianProcessRegressor(kernel, normalize_y=True, n_restarts_optimizer=2)
    return make_pipeline(StandardScaler(), process)


def process(task):
    return matern(len(task.bounds)), {"acquisition": "ei"}


def processes(task):
    """A Gaussian process for each output."""
    return OutputwiseRegressor(matern(len(task.bounds))), {}


def neon(task, prior, **settings):
    """NEON on outputs; fields have the paper's network."""
    model = NEONRegressor(query_points=task.query_points, noise_std=0.0, prior=prior)
    if np.size(task.query_points) > 100:
        model.set_params(network=FIELDS, prior=EpiNet(scale=1.0))
        settings |= {"n_draws": 64, "maximizer": MultiStart(n_restarts=100)}
    return model, settings


def neon_of_paper(task):
    """From 11 to 36 s a fit."""
    return NEONRegressor.from_paper("pollutants", query_points=task.query_points), {}


def neon_of_numbers(task):
    """NEON of few numbers, trained for a sixth of its steps."""
    model = NEONRegressor(noise_std=0.0, prior=ConditionedPrior(scale=0.75))
    model.set_params(training__steps=2000)
    return model, {"maximizer": MultiStart(n_restarts=100)}


def neon_of_suite(task):
    """NEON on numbers, too. A learnt scale explores more: too much in ten dimensions."""
    model = NEONRegressor(noise_std=0.0, prior=ConditionedPrior(scale=0.75))
    settings = {"acquisition": "lei", "maximizer": MultiStart(n_restarts=200)}
    if task.objective is not None:
        model.set_params(query_points=task.query_points)
        if np.size(task.query_points) > 100:
            model.set_params(network=FIELDS)
            settings |= {"n_draws": 32, "maximizer": MultiStart(n_restarts=8)}
    return model, settings


def bound(width):
    """NOMU's protocol (section 4.2)."""
    return UpperConfidenceBound(mean_width=width, dynamic_c=True)


def paper_nomu(width, task):
    settings = {"acquisition": bound(width), "maximizer": "direct"}
    return nomu("bayesopt", len(task.bounds), 0, WIDTH), settings


def small_nomu(width, task):
    """NOMU whose mean is refined to interpolate its rows after a few epochs.

    The bound is climbed by gradients, not by DIRECT.
    """
    model = NOMURegressor(
        NOMUNetwork((64, 64, 64), activation="gelu"),
        artificial=ArtificialInputs(box=[(-1.0, 1.0)] * len(task.bounds)),
        readout=NOMUReadout(l_min=1e-6, l_max=2.0, c=1.0),
        noise_std=0.0,
        refine=True,
        epochs=250,
    )
    return model, {"acquisition": bound(width), "maximizer": "lbfgs"}


def paper_process(acquisition, task):
    """The plain Gaussian process has neither rule of NOMU's protocol."""
    return gaussian_process(0), {"acquisition": acquisition, "maximizer": "direct"}


def paper_rival(kind, width, task):
    """The paper's settings of optimisation: fewer passes, and fewer settings to choose from."""
    model = rival(kind, WIDTH, task.n_evaluations, 0)
    changes = {"mc_dropout": {"n_passes": 10}, "hyper_deep_ensemble": {"n_trials": 20}}
    model.set_params(**changes.get(kind, {}))
    return model, {"acquisition": bound(width), "maximizer": "direct"}


class Own:
    """A search of skuq."""

    def __init__(self, make, task, seed, steps, composite=True, transform=float):
        model, settings = make(task)
        self.composite = composite and task.objective is not None
        self.transform = transform
        rule = settings.get("acquisition")
        if steps and getattr(rule, "mean_width", None) is not None:  # beta was chosen once
            beta = steps[0]["beta"] / 2 ** steps[0]["n_doublings"]
            settings["acquisition"] = UpperConfidenceBound(beta, dynamic_c=rule.dynamic_c)
        self.search = BayesianOptimizer(
            model,
            task.bounds,
            objective=task.objective if self.composite else None,
            categories=task.categories or None,
            n_initial=len(task.start),
            random_state=seed,
            **settings,
        )

    def tell(self, x, found):
        y = [outputs if self.composite else self.transform(-value) for outputs, value in found]
        self.search.tell(x, np.array(y))

    def ask(self, q):
        return np.array(self.search.ask(q))

    def step(self):
        """Return the numbers stored for the last step."""
        return dataclasses.asdict(self.search.history_[-1])


def search(task, method, seed, kept):
    """Go on with a search; yield its row after every batch."""
    make, q = method
    row = kept or {"x": task.start.tolist(), "seconds": [], "steps": {}}
    x, seconds = np.array(row["x"]), list(row["seconds"])
    steps = [dict(zip(row["steps"], values)) for values in zip(*row["steps"].values())]
    found = [task.evaluate(point) for point in x]
    loop = make(task, seed, steps)
    loop.tell(x, found)
    while len(x) < task.n_evaluations:
        started = time.perf_counter()
        batch = loop.ask(min(q or task.q, task.n_evaluations - len(x)))
        seconds.append(round(time.perf_counter() - started, 3))
        results = [task.evaluate(point) for point in batch]
        loop.tell(batch, results)
        x, found = np.vstack([x, batch]), found + results
        steps.append(loop.step())
        # Points exactly, so that a search goes on as if it had not stopped.
        row = {"x": x.tolist(), "values": [float(f"{value:.7g}") for _, value in found]}
        row |= {"seconds": seconds, "steps": {k: [s[k] for s in steps] for k in steps[0]}}
        yield row | ({} if len(x) == task.n_evaluations else {"unfinished": True})


def own(make, q=None, **told):
    return partial(Own, make, **told), q


RANDOM = {"random": (Uniform, None)}
OPERATORS = {
    "conditioned_lei": own(partial(neon, prior=ConditionedPrior(scale=0.75))),
    "conditioned_lcb": own(partial(neon, prior=ConditionedPrior(scale=0.75), **LCB)),
    "neon_paper_lei": own(neon_of_paper),
    "neon_lei": own(partial(neon, prior="epinet")),
    "neon_lcb": own(partial(neon, prior="epinet", **LCB)),
    "neon_lei, q=2": own(partial(neon, prior="epinet"), 2),
    "neon_lei, q=3": own(partial(neon, prior="epinet"), 3),
    "gp": own(process, composite=False),
    "gp_composite": own(processes),
    # For the interferometer, whose visibility is 0.0001 nearly everywhere: they learn logarithms.
    "gp_log": own(process, composite=False, transform=np.log),
    "neon_log": own(neon_of_numbers, composite=False, transform=np.log),
}
ON_FUNCTIONS = {
    "nomu_smooth_0.005": own(partial(small_nomu, 0.005)),
    "nomu_0.5": own(partial(paper_nomu, 0.5)),
    "gp_0.05": own(partial(paper_process, bound(0.05))),
    "pgp": own(partial(paper_process, "ucb")),
    "mc_dropout_0.05": own(partial(paper_rival, "mc_dropout", 0.05)),
    "deep_ensemble_0.05": own(partial(paper_rival, "deep_ensemble", 0.05)),
    "hyper_deep_ensemble_0.5": own(partial(paper_rival, "hyper_deep_ensemble", 0.5)),
}
OF_SUITE = {
    "neon": own(neon_of_suite),
    "gp": own(process, composite=False),
    **{name: (peer, None) for name, peer in PEERS.items()},
}


def usual(problem, method):
    if problem in FUNCTIONS:
        return problem in FUNCTIONS[:3] and method in ON_FUNCTIONS | RANDOM
    if problem == "interferometer":
        return method in ("gp_log", "neon_log", "gp", "random")
    if problem == "pollutants":
        return method in OPERATORS | RANDOM and not method.endswith("_log")
    return problem == "brusselator" and method in ("neon_lei", "neon_lcb", "random")


# Operator regression

#: Functions to train on, to calibrate on, to test on.
SIZES = (40, 20, 200)
LEARNERS = {
    "neon": NEONRegressor,
    "neon_epinet": partial(NEONRegressor, prior="epinet", noise_std=0.0),
    # With networks as NEON's base they have 7 times NEON's parameters.
    "ensemble": partial(OperatorEnsembleRegressor, 10, prior_scale=0.0, noise_std=0.0),
    "rpn": partial(OperatorEnsembleRegressor, 10, prior_scale=1.0, noise_std=0.0),
}


def drawn_functions(seed):
    """Return query points, and (U, H) for training, calibration and testing."""
    operator = make_operator_problem("pollutants")
    low, high = operator.bounds.T
    U = np.random.default_rng(seed).uniform(low, high, (sum(SIZES), len(low)))
    ends = np.cumsum(SIZES)[:-1]
    return operator.query_points, list(zip(np.split(U, ends), np.split(operator(U), ends)))


def learned(data, make, seed):
    """One fit and its scores."""
    queries, (train, calibration, test) = data
    model = make(query_points=queries, random_state=seed)
    started = time.perf_counter()
    model.fit(*train)
    seconds = time.perf_counter() - started
    error, std = error_and_std(model, *calibration)
    c, _ = fit_epistemic_scale(error, std, None, np.ones(len(error)))
    error, std = error_and_std(model, *test)
    truth = test[1].reshape(len(error), -1)
    relative = np.linalg.norm(error, axis=1) / np.linalg.norm(truth, axis=1)
    return {
        "n_parameters": int(model.n_parameters_),
        "relative_l2": np.mean(relative),
        "nll": normal_nll(error, c * std),
        "nll_uncalibrated": normal_nll(error, std),
        "c": c,
        "seconds": seconds,
    }


def error_and_std(model, U, H):
    """Compute errors and standard deviations (n, q * d_s) of all values of each function."""
    found = model.predict_uncertainty(U)
    return (H - found.mean).reshape(len(U), -1), found.total.reshape(len(U), -1)


def normal_nll(error, std):
    return np.mean(np.log(std) + 0.5 * (error / std) ** 2) + 0.5 * np.log(2 * np.pi)


N_SEARCHES = dict.fromkeys(PROBLEMS, 3) | {"pollutants": 5, "interferometer": 5}
N_OF_SUITE = dict.fromkeys(SUITE, 10) | dict.fromkeys(("pde", "cells"), 3)
BENCHMARKS = {
    "bo": Benchmark(
        PROBLEMS, OPERATORS | ON_FUNCTIONS | RANDOM, growing(search), N_SEARCHES, usual
    ),
    "bo_functions": Benchmark(
        {name: partial(with_ends, name) for name in FUNCTIONS},
        {"known": None},
        each(known),
        {name: 3 if name.startswith("bnn") else 1 for name in FUNCTIONS},
    ),
    "bo_suite": Benchmark(SUITE, OF_SUITE, growing(search), N_OF_SUITE),
    "operators": Benchmark({"pollutants_40": drawn_functions}, LEARNERS, each(learned), 3),
}
