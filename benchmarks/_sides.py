"""The sides that benchmarks/engine.py times: functions, each run in a process of its own.

    python benchmarks/_sides.py DIR '{"name": .., ..}'

prints what the function of that name returns for the other settings, as JSON; `seconds`
in it count from after the import of the libraries.
"""

import contextlib
import importlib
import json
import math
import os
import resource
import sys
import time
from pathlib import Path
from unittest import mock

import _rivals
import numpy as np
from _data import uci

EPOCHS = 100  # of a trial
SEEDED = 30  # the configurations depend on how many are drawn: one number for all rows
SIDES = {}


def side(function):
    """Make a function of ``(data_dir, **settings)`` what a process of its own can run."""
    SIDES[function.__name__] = function
    return function


def concrete(data_dir):
    """(X, y) of the training and of the test rows of split 0."""
    X, y, X_test, y_test = uci(data_dir, "concrete", 0)
    return [(X, y), (X_test, y_test)]


def ensemble_data(data_dir):
    """All 927 training rows, standardised; the 103 test rows validate."""
    from skuq.tables import TrainingData
    from skuq.tables._scaling import Scaling, TargetScaling

    parts = [(X, y[:, None]) for X, y in concrete(data_dir)]
    inputs, targets = Scaling().fit(parts[0][0]), TargetScaling().fit(parts[0][1])
    parts = [(inputs.transform(X), targets.forward(y), np.ones(len(X))) for X, y in parts]
    return TrainingData(*parts[0], *parts[1])


def trials(n_trials):
    """The space and its seeded configurations."""
    from skuq.networks import DenseSpace

    space = DenseSpace()
    decisions = space.decisions()
    rng = np.random.default_rng(0)
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


def random_data(n_train, n_valid, n_features):
    from skuq.tables import TrainingData

    rng = np.random.default_rng(0)
    sizes = (n_train, n_valid)
    parts = [(rng.normal(size=(n, n_features)), rng.normal(size=(n, 1)), np.ones(n)) for n in sizes]
    return TrainingData(*parts[0], *parts[1])


def plain_recipe(**settings):
    from skuq.training import Recipe

    return Recipe(reduce_lr_patience=None, early_stopping_patience=None, **settings)


def seeded_recipe(space, configuration, **settings):
    from skuq.training import Recipe

    return Recipe(**{**space.recipe(configuration), **settings})


@contextlib.contextmanager
def program_seconds():
    """A list of the seconds of every call of a compiled program."""
    engine = importlib.import_module("skuq.training._train")
    get, seconds = engine.programs.get, []

    def timed(*arguments):
        program = get(*arguments)

        def call(*tensors):
            started = time.perf_counter()
            carry, history = program(*tensors)
            engine.to_host(history)  # waits for the program's end
            seconds.append(time.perf_counter() - started)
            return carry, history

        return call

    with mock.patch.object(engine.programs, "get", timed):
        yield seconds


def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def with_totals(results):
    """Sum up the (validation loss, epochs, seconds) of trials."""
    trials = [
        {"val_loss": loss, "epochs": n, "seconds": s, "seconds_per_epoch": s / n if n else None}
        for loss, n, s in results
    ]
    return {"seconds": sum(trial["seconds"] for trial in trials), "trials": trials}


@side
def trials_skuq(data_dir, n_trials):
    """Seconds, epochs and validation loss (None if diverged) of each trial."""
    from skuq.backend import keras  # noqa: F401  # before the clock starts
    from skuq.networks import GaussianHead
    from skuq.training import Recipe, TrainingJob, train

    space, configurations = trials(n_trials)
    data, results = training_data(data_dir), []
    for seed, configuration in enumerate(configurations, start=1):
        started = time.perf_counter()
        model = space.build(configuration, (8,), 2)
        recipe = Recipe(epochs=EPOCHS, **space.recipe(configuration))
        job = TrainingJob.of_model(model, GaussianHead(), recipe, [seed])
        (member,) = train(job, data)
        diverged = isinstance(member, FloatingPointError)
        outcome = (None, 0) if diverged else (member.score, len(member.history["loss"]))
        results.append([*outcome, time.perf_counter() - started])
    return with_totals(results)


@side
def trials_fit(data_dir, n_trials, jit_compile, steps_per_execution):
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
    return with_totals(results)


def train_alone(model, head, recipe, data, seed, jit=None):
    """Train one network, and raise the error if it diverges."""
    from skuq.training import TrainingJob, train

    (member,) = train(TrainingJob.of_model(model, head, recipe, [seed], jit=jit), data)
    if isinstance(member, FloatingPointError):
        raise member
    return member


@side
def stack(data_dir, epochs, n_members):
    """Our ensemble, in one vectorised program."""
    from skuq.backend import keras  # noqa: F401  # before the clock starts
    from skuq.networks import GaussianHead
    from skuq.training import TrainingJob, train

    data = ensemble_data(data_dir)
    with program_seconds() as seconds_in_programs:
        started = time.perf_counter()
        model = _rivals.dense_network(data.x.shape[1], (_rivals.HIDDEN,))
        head = GaussianHead(min_scale=_rivals.MIN_SCALE)
        recipe = plain_recipe(
            optimizer="adam",
            learning_rate=_rivals.LEARNING_RATE,
            batch_size=_rivals.BATCH,
            epochs=epochs,
        )
        job = TrainingJob.of_model(model, head, recipe, range(n_members), stacked=True)
        members = train(job, data)
        seconds = time.perf_counter() - started
    for member in members:
        if isinstance(member, FloatingPointError):
            raise member
    losses = [member.history["loss"] for member in members]
    assert {len(loss) for loss in losses} == {epochs}, "not the same work"
    return {
        "seconds": seconds,
        "nll": float(np.mean([loss[-1] for loss in losses])),
        "seconds_in_programs": sum(seconds_in_programs),
        "tier": members[0].tier,
    }


@side
def fit_ensemble(data_dir, **settings):
    return _rivals.fit_ensemble(ensemble_data(data_dir), **settings)


@side
def torch_loop_ensemble(data_dir, **settings):
    return _rivals.torch_loop_ensemble(ensemble_data(data_dir), **settings)


@side
def torch_stack_ensemble(data_dir, **settings):
    return _rivals.torch_stack_ensemble(ensemble_data(data_dir), **settings)


@side
def seeds_one_after_the_other(data_dir, n_seeds, epochs):
    """One architecture, built anew for every seed as in a search."""
    from skuq.backend import keras  # noqa: F401  # before the clock starts
    from skuq.networks import GaussianHead

    space, configurations = trials(SEEDED)
    data, recipe = training_data(data_dir), seeded_recipe(space, configurations[3], epochs=epochs)
    seeds = []
    for seed in range(n_seeds):
        started = time.perf_counter()
        model = space.build(configurations[3], (8,), 2)
        build = time.perf_counter() - started
        with program_seconds() as runs:
            started = time.perf_counter()
            member = train_alone(model, GaussianHead(), recipe, data, seed)
            seconds = time.perf_counter() - started
        seeds.append(
            {
                "seconds": seconds,
                "overhead": seconds - sum(runs),
                "build_seconds": build,
                "epochs": len(member.history["loss"]),
                "tier": member.tier,
            }
        )
    return {"seconds": sum(s["seconds"] for s in seeds), "seeds": seeds}


def deep_ensemble(X, y):
    from skuq import DeepEnsembleRegressor
    from skuq.networks import MLP

    network = MLP((_rivals.HIDDEN,))
    model = DeepEnsembleRegressor(n_members=5, network=network, random_state=0)
    return model.fit(X, y)


def wide_table(n_rows, n_features):
    """(X, y) to fit quickly, and many rows to predict."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((300, n_features))
    return X, X[:, 0] + 0.1 * rng.standard_normal(300), rng.standard_normal((n_rows, n_features))


@side
def one_row_ours(data_dir, n_calls):
    X, y = concrete(data_dir)[0]
    model = deep_ensemble(X, y)
    seconds = _rivals.median_seconds(lambda: model.predict(X[:1]), n_calls)
    with_std = _rivals.median_seconds(lambda: model.predict(X[:1], return_std=True), n_calls)
    return {"seconds": seconds, "seconds_with_std": with_std}


@side
def one_row_sklearn(data_dir, n_calls):
    return {"seconds": _rivals.sklearn_predict_one_row(*concrete(data_dir)[0], n_calls)}


@side
def many_rows_ours(data_dir, n_rows, n_features, n_calls, searched):
    """`searched`: five architectures of the search space instead of five equal networks."""
    X, y, many = wide_table(n_rows, n_features)
    if not searched:
        model = deep_ensemble(X, y)
        return {"seconds": _rivals.median_seconds(lambda: model.predict(many), n_calls)}
    from skuq.networks import GaussianHead
    from skuq.training import Recipe, predict_members

    space, configurations = trials(SEEDED)
    recipe, data = Recipe(epochs=1, learning_rate=1e-4), random_data(200, 100, n_features)
    members = [
        train_alone(space.build(c, (n_features,), 2), GaussianHead(), recipe, data, seed)
        for seed, c in enumerate(configurations[:5])
    ]
    return {"seconds": _rivals.median_seconds(lambda: predict_members(members, many), n_calls)}


@side
def many_rows_keras(data_dir, n_rows, n_features, n_calls, searched, batch_size):
    if searched:
        space, configurations = trials(SEEDED)
        networks = [space.build(c, (n_features,), 2) for c in configurations[:5]]
    else:
        networks = [_rivals.dense_network(n_features, (_rivals.HIDDEN,)) for _ in range(5)]
    x = wide_table(n_rows, n_features)[2].astype("float32")
    return {"seconds": _rivals.keras_predict(networks, x, batch_size, n_calls)}


@side
def memory_of_trials(data_dir, checkpoints):
    """Resident bytes after so many trials of different architectures."""
    from skuq.backend import keras  # noqa: F401  # before the clock starts
    from skuq.networks import GaussianHead

    space, configurations = trials(checkpoints[-1])
    data, resident, n_failed = random_data(134, 66, 8), {}, 0
    started = time.perf_counter()
    for n, configuration in enumerate(configurations, start=1):
        model, recipe = (
            space.build(configuration, (8,), 2),
            seeded_recipe(space, configuration, epochs=2),
        )
        try:
            train_alone(model, GaussianHead(), recipe, data, n)
        except FloatingPointError:
            n_failed += 1
        if n in checkpoints:
            resident[n] = resident_bytes()
    seconds = time.perf_counter() - started
    return {"seconds": seconds, "resident_bytes": resident, "n_failed": n_failed}


@side
def memory_of_prediction(data_dir, n_rows, n_features):
    """Peak while predicting, beyond what the process held with its input, and the output."""
    X, y, many = wide_table(n_rows, n_features)
    model = deep_ensemble(X, y)
    model.predict(many[:10], return_std=True)
    # Resident now rather than the peak so far, which may lie higher and hide something.
    before, peak_before = resident_bytes(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.perf_counter()
    output = model.predict(many, return_std=True)
    seconds = time.perf_counter() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    output = sum(part.nbytes for part in output)
    return {
        "seconds": seconds,
        "extra_bytes": peak - before - output,
        "extra_bytes_over_earlier_peak": peak - peak_before * 1024 - output,
    }


@side
def step_time(data_dir, n_rows, jit, n_steps, n_calls):
    """Seconds a step of an already compiled program: the fastest of several trainings."""
    from skuq.networks import GaussianHead

    steps_per_epoch = math.ceil(n_rows / 256)
    epochs = max(1, round(n_steps / steps_per_epoch))
    # Few validation rows: the step is measured, not the pass after each epoch.
    data, model = random_data(n_rows, 8, 20), _rivals.dense_network(20, (64, 64))
    recipe, totals = plain_recipe(batch_size=256, epochs=epochs), []
    for _ in range(1 + n_calls):
        with program_seconds() as runs:
            train_alone(model, GaussianHead(), recipe, data, 0, jit=jit)
        totals.append(sum(runs))
    per_step = [total / (epochs * steps_per_epoch) for total in totals[1:]]
    return {"seconds": min(per_step), "all_seconds_per_step": per_step, "first": totals[0]}


@side
def floor(data_dir):
    """Measure the current speed of the machine on one thread."""
    rng = np.random.default_rng(0)
    a, b = rng.random((2, 512, 512), dtype="float32")
    c, d, out = rng.random((3, 2_000_000))
    return {
        "gflops_float32": 2 * 512**3 / _rivals.median_seconds(lambda: a @ b, 50) / 1e9,
        "gigabytes_per_second": 3
        * c.nbytes
        / _rivals.median_seconds(lambda: np.add(c, d, out=out), 50)
        / 1e9,
    }


if __name__ == "__main__":
    given = json.loads(sys.argv[2])
    print(json.dumps(SIDES[given.pop("name")](Path(sys.argv[1]), **given)))
