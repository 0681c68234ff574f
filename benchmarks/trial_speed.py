"""Ten seeded random AutoDEUQ trials on concrete split 0: skuq against ``model.fit``.

    python benchmarks/trial_speed.py --data-dir DIR

Each side runs in a process of its own on one thread, and its whole life is timed: start,
import, building, compiling, training. Both train the same configurations on the same
rows, `fit` with the same callbacks and with the `jit_compile` and `steps_per_execution`
given (`--fit-settings` tries several; the best counts). A third side stops trials early
as a search does (`skuq.search.SuccessiveHalving`); how much worse its best trial is, is
printed too. `--tiers` times each configuration as a plain graph and through XLA, which is
where the engine's threshold comes from. Writes ``benchmarks/results/trial_speed.json``.
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
from _stored import STORED, read, write

RESULTS = STORED / "trial_speed.json"
ONE_THREAD = {
    "TF_NUM_INTRAOP_THREADS": "1",
    "TF_NUM_INTEROP_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "TF_CPP_MIN_LOG_LEVEL": "3",
}
EPOCHS = 100


def trials(n_trials):
    """The seeded configurations."""
    from skuq.networks import DenseSkipSpace

    space = DenseSkipSpace.benchmark()
    decisions = space.decisions()
    rng = np.random.default_rng(0)
    return space, (decisions.architecture + decisions.hyperparameters).sample_many(rng, n_trials)


def training_data(data_dir):
    from skuq.tables import Scaling, TargetScaling, TrainingData, split_rows

    X, y, *_ = uci(data_dir, "concrete", 0)
    y = y[:, None]
    train, valid = split_rows(len(X), 1 / 3, np.random.default_rng(0))
    inputs, targets = Scaling().fit(X[train]), TargetScaling().fit(y[train])
    parts = [
        (inputs.transform(X[part]), targets.forward(y[part]), np.ones(len(part)))
        for part in (train, valid)
    ]
    return TrainingData(*parts[0], *parts[1])


def run_skuq(data_dir, n_trials, jit=None):
    """(validation loss or None, epochs, seconds) of each trial."""
    from skuq.backend import keras  # noqa: F401  # before the clock starts
    from skuq.networks import GaussianHead
    from skuq.training import Recipe, train_member

    space, configurations = trials(n_trials)
    data, results = training_data(data_dir), []
    for seed, configuration in enumerate(configurations, start=1):
        started = time.perf_counter()
        model = space.build(configuration, (8,), 2)
        recipe = Recipe(epochs=EPOCHS, **space.recipe(configuration))
        try:
            member = train_member(model, GaussianHead(), recipe, data, seed, jit=jit)
            outcome = member.score, len(member.history["loss"])
        except FloatingPointError:
            outcome = None, 0
        results.append([*outcome, time.perf_counter() - started])
    return results


def run_discarding(data_dir, n_trials):
    """The same, where trials that are behind the others stop early; None is their loss."""
    from skuq.backend import keras  # noqa: F401  # before the clock starts
    from skuq.catalog import TrialBudget, TrialRecord
    from skuq.networks import GaussianHead
    from skuq.search import SuccessiveHalving
    from skuq.training import MemberTrainer

    space, configurations = trials(n_trials)
    trainer = MemberTrainer(space, training_data(data_dir), GaussianHead(), EPOCHS)
    halving, history, results = SuccessiveHalving(), [], []
    for seed, configuration in enumerate(configurations, start=1):
        started = time.perf_counter()
        score, n_epochs = None, 0
        try:
            outcome = trainer(configuration, seed, TrialBudget(halving.stages(history)))
        except FloatingPointError:
            pass
        else:
            history.append(TrialRecord(seed, stage_scores=outcome.stage_scores))
            n_epochs = round(outcome.share * EPOCHS)
            if outcome.result is not None:
                score, n_epochs = outcome.score, outcome.result.n_epochs
        results.append([score, n_epochs, time.perf_counter() - started])
    return results


def best_loss(results):
    """The lowest validation loss of all trials."""
    return min(loss for loss, *_ in results if loss is not None)


def run_fit(data_dir, n_trials, jit_compile, steps_per_execution):
    """The same through Keras' own training."""
    from skuq.backend import keras
    from skuq.networks import GaussianHead

    space, configurations = trials(n_trials)
    data, head, results = training_data(data_dir), GaussianHead(), []
    for seed, configuration in enumerate(configurations, start=1):
        started = time.perf_counter()
        keras.utils.set_random_seed(seed)
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
    """Whole-process seconds, and the trials' results."""
    command = [sys.executable, __file__, "--data-dir", str(arguments.data_dir)]
    command += ["--n-trials", str(arguments.n_trials), "--side", json.dumps(side)]
    started = time.perf_counter()
    output = subprocess.run(
        command, env={**os.environ, **ONE_THREAD}, capture_output=True, text=True, check=True
    ).stdout
    return time.perf_counter() - started, json.loads(output.splitlines()[-1])


def asked_sides(tiers, fit_settings):
    """The sides to run, by name: what `in_own_process` gets."""
    sides = {"skuq": {"name": "skuq"}}
    if tiers:
        return sides | {f"skuq, jit={jit}": {"name": "skuq", "jit": jit} for jit in (False, True)}
    sides["skuq, discarding"] = {"name": "discarding"}
    for setting in fit_settings:
        jit, steps = setting.split(":")
        sides[f"fit, jit_compile={jit}, steps_per_execution={steps}"] = {
            "name": "fit",
            "jit_compile": {"true": True, "false": False, "auto": "auto"}[jit],
            "steps_per_execution": int(steps),
        }
    return sides


def print_trials(n_trials, results):
    """Print the seconds, epochs and losses of each trial by each side."""
    _, configurations = trials(n_trials)
    print(f"{'seconds a trial':>24s}  " + "  ".join(results))
    for i, configuration in enumerate(configurations):
        label = f"{configuration['optimizer']}, batch {configuration['batch_size']}"
        cells = (
            f"{r[i][2]:6.1f} s ({r[i][1]} ep., {np.nan if r[i][0] is None else r[i][0]:.2f})"
            for _, r in results.values()
        )
        print(f"{label:>24s}  " + "  ".join(cells))
    print("whole process:", {name: round(seconds, 1) for name, (seconds, _) in results.items()})


def against_fit(results):
    """Ratios of the best `fit` to skuq, and the best losses; nothing if `fit` has not run."""
    rivals = [seconds for name, (seconds, _) in results.items() if name.startswith("fit")]
    if not rivals:
        return {}
    ratio = min(rivals) / results["skuq"][0]
    discarding, found = results["skuq, discarding"]
    print(f"ratio of fit's best to skuq: {ratio:.1f}")
    print(
        f"with discarding: {min(rivals) / discarding:.1f}; best validation loss "
        f"{best_loss(found):.4f}, without discarding {best_loss(results['skuq'][1]):.4f}"
    )
    return {
        "ratio": ratio,
        "ratio, discarding": min(rivals) / discarding,
        "best losses": {name: best_loss(r) for name, (_, r) in results.items()},
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--n-trials", type=int, default=10)
    parser.add_argument(
        "--fit-settings",
        nargs="+",
        default=["false:1"],
        help="jit_compile:steps_per_execution, each, e.g. auto:1 true:16 false:16",
    )
    parser.add_argument("--tiers", action="store_true", help="time graph and XLA apart")
    parser.add_argument("--side", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.side:
        side = json.loads(arguments.side)
        sides = {"skuq": run_skuq, "discarding": run_discarding, "fit": run_fit}
        run = sides[side.pop("name")]
        print(json.dumps(run(arguments.data_dir, arguments.n_trials, **side)))
        return

    sides = asked_sides(arguments.tiers, arguments.fit_settings)
    results = {name: in_own_process(arguments, side) for name, side in sides.items()}
    print_trials(arguments.n_trials, results)
    record = {name: {"seconds": seconds, "trials": r} for name, (seconds, r) in results.items()}
    record |= against_fit(results)
    part = "tiers" if arguments.tiers else "against fit"
    write(RESULTS, {**read(RESULTS, dict), part: record})


if __name__ == "__main__":
    main()
