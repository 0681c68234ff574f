"""Maximising an acquisition function: 500 restarts at once against SciPy one by one.

    python benchmarks/acquisition.py [--only ROW ...]
    python benchmarks/acquisition.py --summary

Both sides have the same posterior, the same starts (the best 500 of 2000 of a Latin hypercube)
and compiled exact gradients, and have run once before they are timed. Ours is all of
`maximize_acquisition`, the screening included; the rival climbs from every start with SciPy's
L-BFGS-B. `all converge` lets ours climb from all the starts to the end, too. Rows are written
to ``benchmarks/results/acquisition.json`` as they end. `--quick` runs few restarts to see that
it works, and writes nothing.
"""

import argparse
import os
import sys
import time

import numpy as np
from _stored import STORED, read, write
from engine import figure, print_table

from skuq.backend import ops
from skuq.bayesopt import LeakyExpectedImprovement, _maximize
from skuq.bayesopt._acquisition import AcquisitionTask, CompiledAcquisition
from skuq.bayesopt._maximize import maximize_acquisition
from skuq.predictive import Posterior
from skuq.predictive._posterior import quasi_random_normals

RESULTS = STORED / "acquisition.json"
N_DRAWS, N_INDEX, N_QUERIES, WIDTH = 128, 16, 12, 32


def network(xp, arguments, X):
    """An EpiNet's shape: an encoder of the inputs, then two layers for every draw and query."""
    encoder, latent, queries, inner, index, hidden, outer, z = arguments
    n = X.shape[0]
    features = xp.tanh(xp.matmul(xp.tanh(xp.matmul(X, encoder)), latent))  # (n, 64)
    features = xp.reshape(features[:, None] + queries[None], (-1, 64))  # (n * 12, 64)
    drawn = xp.matmul(features, inner)[None] + xp.matmul(z, index)[:, None]
    drawn = xp.tanh(xp.matmul(xp.tanh(drawn), hidden))  # (128, n * 12, 32)
    weights = xp.matmul(z, outer)[:, :, None]  # (128, 32, 1)
    return xp.reshape(xp.matmul(drawn, weights), (N_DRAWS, n, N_QUERIES))


def network_posterior(seed, n_features):
    rng = np.random.default_rng(seed)
    shapes = {
        "encoder": (n_features, 64),
        "latent": (64, 64),
        "queries": (N_QUERIES, 64),
        "inner": (64, WIDTH),
        "index": (N_INDEX, WIDTH),
        "hidden": (WIDTH, WIDTH),
        "outer": (N_INDEX, WIDTH),
    }
    weights = [2 * rng.normal(size=shape) / np.sqrt(shape[0]) for shape in shapes.values()]
    z = quasi_random_normals(N_DRAWS, N_INDEX, rng)
    return Posterior(network, (*weights, z), "network", N_DRAWS, (N_QUERIES,))


def waves(xp, arguments, X):
    frequencies, phases, weights = arguments
    return xp.matmul(weights, xp.transpose(xp.cos(xp.matmul(X, frequencies) + phases)))


def wave_posterior(seed, n_features, n_waves=100):
    rng = np.random.default_rng(seed)
    weights = rng.normal(size=n_waves) + 0.4 * rng.normal(size=(N_DRAWS, n_waves))
    frequencies = 2 * rng.normal(size=(n_features, n_waves))
    arguments = frequencies, rng.uniform(0, 2 * np.pi, n_waves), weights / np.sqrt(n_waves)
    return Posterior(waves, arguments, "waves", N_DRAWS)


def squared_distance(values):
    return -ops.mean(ops.square(values - 1.0), axis=-1)


ROWS = {
    "network, 4 inputs, 12 queries": (network_posterior, 4, squared_distance),
    "waves, 6 inputs": (wave_posterior, 6, None),
}


def timed(function, *arguments):
    started, spent = time.perf_counter(), time.process_time()
    _, values = function(*arguments)
    return {
        "seconds": time.perf_counter() - started,
        "processor_seconds": time.process_time() - spent,
        "value": float(np.nanmax(values)),
    }


def compare(make_posterior, n_features, objective, n_restarts, seed):
    """Seconds and best values of each side."""
    posterior = make_posterior(seed, n_features)
    bounds = np.array([[0.0, 1.0]] * n_features)
    draws = posterior(np.random.default_rng(seed).random((100, n_features)))
    known = draws if objective is None else np.asarray(objective(draws))
    best = float(known.mean(axis=0).max())
    acquisition = LeakyExpectedImprovement()
    task = AcquisitionTask(posterior, acquisition, objective, bounds, best, 1)
    rng, no_starts = np.random.default_rng(seed), np.empty((0, n_features))
    u = _maximize._starts(rng, n_restarts, no_starts, task)
    starts = u[np.argsort(-CompiledAcquisition(task)(u))[:n_restarts]]

    def ours():
        settings = {"n_restarts": n_restarts, "random_state": seed}
        return maximize_acquisition(*task[:5], **settings)

    def converge():
        kept, _maximize._SURVIVORS = _maximize._SURVIVORS, {}
        try:
            return _maximize._climb_together(task, u, n_restarts, u[:0])
        finally:
            _maximize._SURVIVORS = kept

    def rival(n):
        return _maximize._climb_one_by_one(task, starts[:n], n, starts[:0])

    ours(), rival(1)  # compiled here
    return {
        "ours": timed(ours),
        "all converge": timed(converge),
        "rival": timed(rival, n_restarts),
    }


def figures_of(sides):
    def median(side):
        return float(np.median([run[side]["seconds"] for run in sides]))

    reached = sum(
        s["ours"]["value"] >= s["rival"]["value"] - 1e-4 * abs(s["rival"]["value"]) for s in sides
    )
    note = f"as good a maximum in {reached} of {len(sides)} runs"
    rival = median("rival")
    return [
        figure(f"s, {label}", median(side), rival, rival / median(side), goal, note)
        for label, side, goal, note in (
            ("a step's maximisation", "ours", ">= 20", note),
            ("all converge", "all converge", "", ""),
        )
    ]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", nargs="+", choices=list(ROWS), default=list(ROWS))
    parser.add_argument("--restarts", type=int, default=500)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="few restarts; nothing is written")
    parser.add_argument("--summary", action="store_true", help="print what is kept")
    arguments = parser.parse_args()
    if arguments.summary:
        print_table(read(RESULTS, dict))
        return
    n_restarts, n_seeds = (8, 1) if arguments.quick else (arguments.restarts, arguments.seeds)
    done = {}
    for name in arguments.only:
        print(f"{name} ..", file=sys.stderr, flush=True)
        sides = [compare(*ROWS[name], n_restarts, seed) for seed in range(n_seeds)]
        settings = {"n_restarts": n_restarts, "n_draws": N_DRAWS, "cores": os.cpu_count()}
        done[name] = {"figures": figures_of(sides), "sides": sides, "settings": settings}
        if not arguments.quick:
            write(RESULTS, {**read(RESULTS, dict), name: done[name]})
    print_table(done)


if __name__ == "__main__":
    main()
