"""Operator regression for benchmarks/bo.py: errors and likelihoods on held-out functions."""

import time

import numpy as np
from _bo_problems import SIDE, solved
from problems import make_operator_problem

from skuq import NEONRegressor, OperatorEnsembleRegressor
from skuq.networks import OperatorNetwork
from skuq.predictive._calibration import fit_epistemic_scale
from skuq.training import Training

METHODS = ("neon", "neon_epinet", "ensemble", "rpn")
#: Functions to train on, to calibrate on, to test on.
SIZES = {
    "pollutants_40": (40, 20, 200),
    "pollutants_100": (100, 20, 200),
    "brusselator_20": (20, 5, 10),
}
SMOKE_SIZES = {
    "pollutants_40": (10, 5, 5),
    "pollutants_100": (10, 5, 5),
    "brusselator_20": (3, 2, 2),
}
N_FIELDS = 70  # all seeds split these, as each takes seconds
KEPT = np.arange(2, SIDE, 4)  # of the Brusselator's rows and columns: 16 x 16 cells
N_MEMBERS = 10  # with networks as NEON's base they have 7 times NEON's parameters


def functions(dataset, seed, arguments):
    """Query points, and (U, H) to train, to calibrate and to test on."""
    sizes = (SMOKE_SIZES if arguments.smoke else SIZES)[dataset]
    name = dataset.split("_")[0]
    operator = make_operator_problem(name)
    low, high = operator.bounds.T
    if name == "pollutants":
        U = np.random.default_rng(seed).uniform(low, high, (sum(sizes), len(low)))
        H, queries = operator(U), operator.query_points
    else:
        drawn = np.random.default_rng(0).uniform(low, high, (N_FIELDS, len(low)))
        U = drawn[np.random.default_rng(seed).permutation(N_FIELDS)[: sum(sizes)]]
        cells = (KEPT[:, None] * SIDE + KEPT).ravel()
        H = np.stack([solved(u, arguments.cache_dir)[0][cells] for u in U])
        queries = operator.query_points[cells]
    ends = np.cumsum(sizes)[:-1]
    return queries, list(zip(np.split(U, ends), np.split(H, ends)))


def unfitted(dataset, method, queries, seed, arguments):
    settings = {"query_points": queries, "random_state": seed}
    if dataset.startswith("brusselator"):  # the paper's base network
        settings["network"] = OperatorNetwork(fourier_scale=5.0, latent=96, decoder_units=(64,) * 3)
    if arguments.training_steps is not None:
        settings["training"] = Training(steps=arguments.training_steps)
    if method == "neon":
        return NEONRegressor(**settings)
    settings["noise_std"] = 0.0
    if method == "neon_epinet":
        return NEONRegressor(prior="epinet", **settings)
    return OperatorEnsembleRegressor(N_MEMBERS, prior_scale=float(method == "rpn"), **settings)


def judge(dataset, method, seed, arguments):
    """One fit and its scores."""
    queries, (train, calibration, test) = functions(dataset, seed, arguments)
    model = unfitted(dataset, method, queries, seed, arguments)
    started = time.perf_counter()
    model.fit(*train)
    seconds = time.perf_counter() - started
    error, std = error_and_std(model, *calibration)
    c, _ = fit_epistemic_scale(error, std, None, np.ones(len(error)))
    at_data = error_and_std(model, *train)[1].mean()
    error, std = error_and_std(model, *test)
    truth = test[1].reshape(len(error), -1)
    return {
        "n_parameters": int(model.n_parameters_),
        "relative_l2": np.mean(np.linalg.norm(error, axis=1) / np.linalg.norm(truth, axis=1)),
        "nll": normal_nll(error, c * std),
        "nll_uncalibrated": normal_nll(error, std),
        "c": c,
        "std_ratio": at_data / std.mean(),
        "seconds": seconds,
    }


def error_and_std(model, U, H):
    """Of every value of each function: (n, q * d_s)."""
    found = model.predict_uncertainty(U)
    return (H - found.mean).reshape(len(U), -1), found.total.reshape(len(U), -1)


def normal_nll(error, std):
    return np.mean(np.log(std) + 0.5 * (error / std) ** 2) + 0.5 * np.log(2 * np.pi)
