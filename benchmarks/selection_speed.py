"""Greedy selection of 5 out of many candidates: vectorised against one at a time.

    python benchmarks/selection_speed.py

500 candidates, 10 000 rows. The rival scores the same steps with one pass of NumPy per
candidate. Both choose the same ensemble.
"""

import argparse
import time

import numpy as np

from skuq.ensembles import select_greedy


def candidate_by_candidate(y, loc, scale, n_members, max_size):
    """Algorithm 1 with a Python loop over the candidates."""
    chosen, current = [], np.inf
    mean, moment = np.zeros_like(y), np.zeros_like(y)
    while len(set(chosen)) < n_members and len(chosen) < max_size:
        best, best_loss = None, np.inf
        for c in range(len(loc)):
            size = len(chosen) + 1
            m = (mean + loc[c]) / size
            variance = (moment + loc[c] ** 2 + scale[c] ** 2) / size - m**2
            loss = np.mean(0.5 * np.log(2 * np.pi * variance) + 0.5 * (y - m) ** 2 / variance)
            if loss < best_loss:
                best, best_loss = c, loss
        if not best_loss < current:
            break
        current = best_loss
        chosen.append(best)
        mean, moment = mean + loc[best], moment + loc[best] ** 2 + scale[best] ** 2
    return chosen


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--n-candidates", type=int, default=500)
    parser.add_argument("--n-rows", type=int, default=10_000)
    arguments = parser.parse_args()
    rng = np.random.default_rng(0)
    y = rng.normal(size=arguments.n_rows)
    shape = (arguments.n_candidates, arguments.n_rows)
    # Errors shared by a candidate's rows make members complement each other.
    loc = y + rng.normal(0, 0.3, (shape[0], 1)) + rng.normal(0, 0.4, shape)
    scale = np.full(shape, 0.5)
    started = time.perf_counter()
    selection = select_greedy(y, loc, scale, 5, min_members=1)
    ours = time.perf_counter() - started
    started = time.perf_counter()
    chosen = candidate_by_candidate(y, loc, scale, 5, 20)
    theirs = time.perf_counter() - started
    assert [step[0] for step in selection.path] == chosen
    print(
        f"{shape[0]} candidates x {shape[1]} rows, {len(chosen)} steps, {len(selection)} members: "
        f"select_greedy {ours:.2f} s, one at a time {theirs:.2f} s, ratio {theirs / ours:.1f}"
    )


if __name__ == "__main__":
    main()
