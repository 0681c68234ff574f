"""Operator regression for benchmarks/bo.py: errors and likelihoods on held-out functions."""

import time

import numpy as np
from problems import make_operator_problem

from skuq import NEONRegressor, OperatorEnsembleRegressor
from skuq.predictive._epistemic_scale import fit_epistemic_scale

METHODS = ("neon", "neon_epinet", "ensemble", "rpn")
#: Functions to train on, to calibrate on, to test on.
SIZES = {"pollutants_40": (40, 20, 200)}
N_MEMBERS = 10  # with networks as NEON's base they have 7 times NEON's parameters


def functions(seed):
    """Query points, and (U, H) to train, to calibrate and to test on."""
    sizes = SIZES["pollutants_40"]
    operator = make_operator_problem("pollutants")
    low, high = operator.bounds.T
    U = np.random.default_rng(seed).uniform(low, high, (sum(sizes), len(low)))
    ends = np.cumsum(sizes)[:-1]
    return operator.query_points, list(zip(np.split(U, ends), np.split(operator(U), ends)))


def unfitted(method, queries, seed):
    settings = {"query_points": queries, "random_state": seed}
    if method == "neon":
        return NEONRegressor(**settings)
    settings["noise_std"] = 0.0
    if method == "neon_epinet":
        return NEONRegressor(prior="epinet", **settings)
    return OperatorEnsembleRegressor(N_MEMBERS, prior_scale=float(method == "rpn"), **settings)


def judge(method, seed):
    """One fit and its scores."""
    queries, (train, calibration, test) = functions(seed)
    model = unfitted(method, queries, seed)
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
