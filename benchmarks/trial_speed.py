"""Random AutoDEUQ trials on concrete split 0: skuq against ``model.fit``.

    python benchmarks/trial_speed.py --data-dir DIR --n-trials 20 --fit-settings false:16 --seed 0

Each side runs in a process of its own on one thread, and its whole life is timed: start,
import, building, compiling, training. Both train the same configurations, drawn with `--seed`, on
the same rows, `fit` with the same callbacks and with the `jit_compile` and `steps_per_execution`
given (`--fit-settings` tries several; the best counts). Compared are the seconds of all trials, and
the seconds until a side has the best score that both have. `--tiers` times each configuration as a
plain graph and through XLA, which is where the engine's threshold comes from. Adds to
``benchmarks/results/trial_speed.json``; `--summary` prints what it holds.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from _data import uci
from _stored import STORED, add, read

AGAINST_FIT = "against fit"
ONE_THREAD = {
    "TF_NUM_INTRAOP_THREADS": "1",
    "TF_NUM_INTEROP_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "TF_CPP_MIN_LOG_LEVEL": "3",
}
EPOCHS = 100


def trials(n_trials, seed=0):
    """The space and its seeded configurations."""
    from skuq.networks import DenseSpace

    space = DenseSpace()
    decisions = space.decisions()
    rng = np.random.default_rng(seed)
    return space, (decisions.architecture + decisions.hyperparameters).sample_many(rng, n_trials)


def training_data(data_dir):
    from skuq.tables import TrainingData
    from skuq.tables._scaling import Scaling, TargetScaling
    from skuq.tables._splits import split_rows

    X, y, *_ = uci(data_dir, "concrete", 0)
    y = y[:, None]
    train, valid = split_rows(len(X), 1 / 3, np.random.default_rng(0))
    inputs, targets = Scaling().fit(X[train]), TargetScaling().fit(y[train])
    parts = [
        (inputs.transform(X[part]), targets.forward(y[part]), np.ones(len(part)))
        for part in (train, valid)
    ]
    return TrainingData(*parts[0], *parts[1])


def seeded(n_trials, seed):
    """The space, and pairs of a trial's seed and its configuration."""
    space, configurations = trials(n_trials, seed)
    return space, list(enumerate(configurations, start=1 + 1000 * seed))


def run_skuq(data_dir, n_trials, seed=0, jit=None):
    """(validation loss or None, epochs, seconds) of each trial."""
    from skuq.backend import keras  # noqa: F401  # before the clock starts
    from skuq.networks import GaussianHead
    from skuq.training import Recipe, TrainingJob, train

    space, asked = seeded(n_trials, seed)
    data, results = training_data(data_dir), []
    for trial_seed, configuration in asked:
        started = time.perf_counter()
        model = space.build(configuration, (8,), 2)
        recipe = Recipe(epochs=EPOCHS, **space.recipe(configuration))
        job = TrainingJob.of_model(model, GaussianHead(), recipe, [trial_seed], jit=jit)
        (member,) = train(job, data)
        diverged = isinstance(member, FloatingPointError)
        outcome = (None, 0) if diverged else (member.score, len(member.history["loss"]))
        results.append([*outcome, time.perf_counter() - started])
    return results


def run_fit(data_dir, n_trials, seed=0, *, jit_compile, steps_per_execution):
    """The same through Keras' own training."""
    from skuq.backend import keras
    from skuq.networks import GaussianHead

    space, asked = seeded(n_trials, seed)
    data, head, results = training_data(data_dir), GaussianHead(), []
    for trial_seed, configuration in asked:
        started = time.perf_counter()
        keras.utils.set_random_seed(trial_seed)
        model = space.build(configuration, (8,), 2)
        model.compile(
            keras.optimizers.get(
                {
                    "class_name": configuration["optimizer"],
                    "config": {"learning_rate": configuration["learning_rate"]},
                }
            ),
            loss=head.loss,
            jit_compile=jit_compile,
            steps_per_execution=steps_per_execution,
        )
        callbacks = keras.callbacks
        history = model.fit(
            data.x,
            data.y,
            validation_data=(data.x_valid, data.y_valid),
            batch_size=configuration["batch_size"],
            epochs=EPOCHS,
            verbose=0,
            callbacks=[
                callbacks.ReduceLROnPlateau(patience=configuration["reduce_lr_patience"]),
                callbacks.EarlyStopping(
                    patience=configuration["early_stopping_patience"], restore_best_weights=True
                ),
                callbacks.TerminateOnNaN(),
            ],
        ).history
        best = np.nanmin(history["val_loss"]) if np.isfinite(history["val_loss"]).any() else None
        seconds = time.perf_counter() - started
        results.append([best and float(best), len(history["loss"]), seconds])
    return results


def in_own_process(arguments, side):
    """Seconds of the whole process, and the trials' results."""
    command = [sys.executable, __file__, "--data-dir", str(arguments.data_dir)]
    command += ["--n-trials", str(arguments.n_trials)]
    command += ["--seed", str(arguments.seed), "--side", json.dumps(side)]
    started = time.perf_counter()
    output = subprocess.run(
        command, env={**os.environ, **ONE_THREAD}, capture_output=True, text=True, check=True
    ).stdout
    seconds = time.perf_counter() - started
    return {"seconds": seconds, "trials": json.loads(output.splitlines()[-1])}


def asked_sides(tiers, fit_settings):
    """The sides to run, by name: what `in_own_process` gets."""
    sides = {"skuq": {"name": "skuq"}}
    if tiers:
        return sides | {f"skuq, jit={jit}": {"name": "skuq", "jit": jit} for jit in (False, True)}
    for setting in fit_settings:
        jit, steps = setting.split(":")
        sides[f"fit, jit_compile={jit}, steps_per_execution={steps}"] = {
            "name": "fit",
            "jit_compile": {"true": True, "false": False, "auto": "auto"}[jit],
            "steps_per_execution": int(steps),
        }
    return sides


def print_trials(n_trials, seed, sides):
    """Print the seconds, epochs and losses of each trial by each side."""
    _, configurations = trials(n_trials, seed)
    print(f"{'seconds a trial':>24s}  " + "  ".join(sides))
    for i, configuration in enumerate(configurations):
        label = f"{configuration['optimizer']}, batch {configuration['batch_size']}"
        results = [side["trials"][i] for side in sides.values()]
        cells = (
            f"{seconds:6.1f} s ({epochs} ep., {np.nan if loss is None else loss:.2f})"
            for loss, epochs, seconds in results
        )
        print(f"{label:>24s}  " + "  ".join(cells))


def best_so_far(side):
    """Best loss after each trial, and the seconds since the start of the process."""
    losses, _, seconds = np.array(side["trials"], dtype=float).T
    start = side["seconds"] - seconds.sum()
    return np.fmin.accumulate(losses), start + seconds.cumsum()


def seconds_to_level(record):
    """Seconds in which each side has the best score that all have, and this score.

    Where `fit` ran with several settings, the fastest counts.
    """
    sides = record["sides"]
    fits = [name for name in sides if name.startswith("fit")]
    fastest = min(fits, key=lambda name: sides[name]["seconds"])
    curves = {name: best_so_far(sides[name]) for name in ("skuq", fastest)}
    level = max(losses[-1] for losses, _ in curves.values())
    reached = {
        "fit" if name == fastest else name: float(seconds[np.argmax(losses <= level)])
        for name, (losses, seconds) in curves.items()
    }
    return reached, level


def print_summary(records):
    """Print the seconds of each seed: all trials, and until the score that all sides reach."""
    for record in records:
        whole = {name: round(side["seconds"], 1) for name, side in record["sides"].items()}
        print(f"{record['part']}, seed {record['seed']}: whole process {whole}")
        if record["part"] == AGAINST_FIT:
            reached, level = seconds_to_level(record)
            print(f"    to {level:.4f}", {name: round(s, 1) for name, s in reached.items()})


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--n-trials", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0, help="of configurations and of training")
    parser.add_argument(
        "--fit-settings",
        nargs="+",
        default=["false:1"],
        help="jit_compile:steps_per_execution, each, e.g. auto:1 true:16 false:16",
    )
    parser.add_argument("--tiers", action="store_true", help="time graph and XLA apart")
    parser.add_argument("--results-dir", type=Path, default=STORED)
    parser.add_argument("--summary", action="store_true")
    parser.add_argument("--side", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    path = arguments.results_dir / "trial_speed.json"
    if arguments.summary:
        print_summary(read(path))
        return
    if arguments.data_dir is None:
        parser.error("--data-dir is needed")
    n_trials, seed = arguments.n_trials, arguments.seed
    if arguments.side:
        side = json.loads(arguments.side)
        sides = {"skuq": run_skuq, "fit": run_fit}
        run = sides[side.pop("name")]
        print(json.dumps(run(arguments.data_dir, n_trials, seed, **side)))
        return

    sides = {
        name: in_own_process(arguments, side)
        for name, side in asked_sides(arguments.tiers, arguments.fit_settings).items()
    }
    print_trials(n_trials, seed, sides)
    record = {
        "part": "tiers" if arguments.tiers else AGAINST_FIT,
        "seed": seed,
        "n_trials": n_trials,
        "sides": sides,
    }
    print_summary([record])
    add(path, record, ("part", "seed"))


if __name__ == "__main__":
    main()
