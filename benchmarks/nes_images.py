"""Neural ensemble search on images: DARTS cells on a subset of Fashion-MNIST.

    python benchmarks/nes_images.py --data-dir DIR [--n-trials 40] [--seed 0]

Far smaller than the paper's: 2000 images to train on and 1000 to validate on, of 14 x 14
pixels (the mean of four), networks of three cells and eight channels, 15 epochs. NES-RE looks
at clean and shifted validation images; NES-RS has a pool of the same size. Ensembles are chosen
and judged clean and on severities 1, 3 and 5, of the paper's validation and test families of
corruptions, and once more on MNIST digits, which are of no class. DeepEns (RS) repeats the
architecture that is best in NES-RS at the severity it is judged on. Adds to
``nes_images.json`` in `--results-dir` after each method; what it holds is not run again.
"""

import argparse
import gzip
import time
from pathlib import Path

import numpy as np
from _stored import STORED, add, read
from nes import (
    CELL,
    SIZES,
    log_likelihood,
    pool_proba,
    scores,
)
from problems import corrupt_images
from scipy.stats import entropy

from skuq import NESClassifier
from skuq.ensembles._selection import likelihood_statistics, select_by
from skuq.networks import CellSpace

SEVERITIES = (1, 3, 5)  # 0, the clean images, comes before them
N_TRAIN, N_VALID, N_TEST = 2000, 1000, 5000


def load(path, n_bytes):
    """The numbers of a gzipped idx file, behind its header."""
    return np.frombuffer(gzip.decompress(path.read_bytes()), np.uint8)[n_bytes:]


def images(path):
    """(n, 14, 14, 1) in 0..255: each pixel the mean of four."""
    full = load(path, 16).reshape(-1, 14, 2, 14, 2)
    return full.mean(axis=(2, 4)).round().astype("uint8")[..., None]


def data(folder, seed):
    fashion = folder / "fashion_mnist"
    X, y = (
        images(fashion / "train-images-idx3-ubyte.gz"),
        load(fashion / "train-labels-idx1-ubyte.gz", 8),
    )
    rows = np.random.default_rng(seed).permutation(len(X))[: N_TRAIN + N_VALID]
    train, valid = rows[:N_TRAIN], rows[N_TRAIN:]
    X_test = images(fashion / "t10k-images-idx3-ubyte.gz")[:N_TEST]
    y_test = load(fashion / "t10k-labels-idx1-ubyte.gz", 8)[:N_TEST]
    shifted = [
        (corrupt_images(X[valid], "validation", s, random_state=s), y[valid]) for s in SEVERITIES
    ]
    tests = [X_test, *(corrupt_images(X_test, "test", s, random_state=s) for s in SEVERITIES)]
    digits = images(folder / "mnist_t10k" / "t10k-images-idx3-ubyte.gz")[:N_TEST]
    return (X[train], y[train]), (X[valid], y[valid]), shifted, tests, y_test, digits


def fit(model, parts):
    """The model and its seconds."""
    train, valid, shifted, *_ = parts
    started = time.perf_counter()
    model.fit(*train, validation_data=valid, shift_validation=shifted)
    return model, time.perf_counter() - started


def deep_ensembles(search, parts):
    """A deep ensemble for each severity, and their seconds; equal architectures share one."""
    fitted, each, seconds = {}, [], 0
    for k in range(1 + len(SEVERITIES)):
        model = search.baseline("deep-ensemble", severity=k)
        key = tuple(model.fixed.items())
        if key not in fitted:
            fitted[key], more = fit(model, parts)
            seconds += more
        each.append(fitted[key])
    return each, seconds


def judge(models, parts, chooses):
    """Scores by severity and size, of a model for each severity.

    `chooses` is False where members are as good as each other.
    """
    _, valid, shifted, tests, y_test, digits = parts
    found, sets = {}, [valid, *shifted]
    on_digits = pool_proba(models[0], digits)
    for severity, model, held_out, X in zip((0, *SEVERITIES), models, sets, tests):
        likelihood = log_likelihood(pool_proba(model, held_out[0]), held_out[1])
        proba = pool_proba(model, X)
        found[str(severity)] = {}
        for size in SIZES:
            part = likelihood if chooses else likelihood[:size]
            chosen = select_by(*likelihood_statistics(part), min(size, len(part)))
            cell = scores(y_test, proba[chosen.indices], chosen.weights)
            if severity == 0:
                for name, members in (("entropy", proba), ("entropy_ood", on_digits)):
                    mixture = members[chosen.indices].mean(axis=0)
                    cell[name] = round(float(entropy(mixture, axis=1).mean()), 4)
            found[str(severity)][str(size)] = cell
    return found


def run(arguments):
    parts = data(arguments.data_dir, arguments.seed)
    settings = {
        "n_trials": arguments.n_trials, "epochs": arguments.epochs, "channels": 8, "n_cells": 3,
        "n_train": N_TRAIN, "n_valid": N_VALID,
    }  # fmt: skip
    base = NESClassifier(
        arguments.n_trials,
        n_members=max(SIZES),
        space=CellSpace(settings["channels"], settings["n_cells"]),
        epochs=arguments.epochs,
        n_jobs=arguments.n_jobs,
        random_state=arguments.seed,
        verbose=1,
    )
    cell = settings, arguments.seed
    done = {r["dataset"] for r in read(arguments.path) if (r["settings"], r["seed"]) == cell}

    def keep(name, models, seconds, n_networks, chooses=True):
        record = {"part": "images", "dataset": name, "seed": arguments.seed, "settings": settings}
        record |= {"seconds": round(seconds), "networks": n_networks}
        record["severities"] = judge(models, parts, chooses)
        add(arguments.path, record, CELL)
        print(name, {s: v[str(max(SIZES))]["nll"] for s, v in record["severities"].items()})

    if not {"NES-RS", "DeepEns (RS)"} <= done:
        random, seconds = fit(base.set_params(search="random"), parts)
        keep("NES-RS", [random] * (1 + len(SEVERITIES)), seconds, arguments.n_trials)
        deep, more = deep_ensembles(random, parts)
        keep("DeepEns (RS)", deep, seconds + more, arguments.n_trials + max(SIZES), chooses=False)
    if "NES-RE" not in done:
        evolved, seconds = fit(base.set_params(search="re"), parts)
        keep("NES-RE", [evolved] * (1 + len(SEVERITIES)), seconds, arguments.n_trials)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--results-dir", type=Path, default=STORED)
    parser.add_argument("--n-trials", type=int, default=40)
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--n-jobs", type=int)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    arguments.path = arguments.results_dir / "nes_images.json"
    run(arguments)


if __name__ == "__main__":
    main()
