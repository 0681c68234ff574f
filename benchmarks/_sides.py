"""The sides that benchmarks/engine.py times: functions, each run in a process of its own.

    python benchmarks/_sides.py DIR '{"name": .., ..}'

prints what the function of that name returns for the other settings, as JSON; `seconds`
in it count from after the import of the libraries.
"""

import contextlib
import functools
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
from trial_speed import run_fit, run_skuq, training_data, trials

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
    engine = importlib.import_module("skuq.training._engine")
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
    """Sum up the (validation loss, epochs, seconds) of trial_speed.py's trials."""
    trials = [
        {"val_loss": loss, "epochs": n, "seconds": s, "seconds_per_epoch": s / n if n else None}
        for loss, n, s in results
    ]
    return {"seconds": sum(trial["seconds"] for trial in trials), "trials": trials}


@side
def trials_skuq(data_dir, **settings):
    return with_totals(run_skuq(data_dir, **settings))


@side
def trials_fit(data_dir, **settings):
    return with_totals(run_fit(data_dir, **settings))


@side
def search(data_dir, n_trials, n_jobs):
    """A whole fit in warm workers."""
    from skuq import AutoDEUQRegressor

    X, y = concrete(data_dir)[0]
    settings = {"search": "random", "space": "dense", "n_jobs": n_jobs}
    # Few trials of one job would run in this process and leave the worker cold.
    slots = importlib.import_module("skuq.search._slots")
    with mock.patch.object(slots, "_MANY_TRIALS", 0):
        AutoDEUQRegressor(n_trials=2, epochs=1, random_state=1, **settings).fit(X, y)
        started = time.perf_counter()
        model = AutoDEUQRegressor(n_trials=n_trials, random_state=0, **settings).fit(X, y)
        seconds = time.perf_counter() - started
    completed = [model.catalog_.member(index) for index in model.catalog_.completed]
    return {
        "seconds": seconds,
        "completed": len(completed),
        "epochs": sum(len(member.history["loss"]) for member in completed),
        "seconds_in_trials": sum(member.seconds for member in completed),
    }


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
def both_tiers(data_dir, n_trials, epochs):
    """Seconds a step as a graph and through XLA, and what compiling took longer."""
    from skuq.backend import keras  # noqa: F401  # before the clock starts
    from skuq.networks import GaussianHead

    space, configurations = trials(SEEDED)
    data, results = training_data(data_dir), []
    for seed, configuration in enumerate(configurations[:n_trials], start=1):
        model = space.build(configuration, (8,), 2)
        recipe = seeded_recipe(space, configuration, epochs=epochs)
        steps = epochs * math.ceil(len(data.x) / recipe.batch_size)
        result = {"n_weights": model.count_params(), "batch_size": recipe.batch_size}
        for jit in (False, True):
            runs = []
            with contextlib.suppress(FloatingPointError):  # diverged: too short to time
                for _ in range(2):  # the second finds its program compiled
                    with program_seconds() as seconds:
                        started = time.perf_counter()
                        train_alone(model, GaussianHead(), recipe, data, seed, jit=jit)
                    runs.append((time.perf_counter() - started, sum(seconds)))
            if len(runs) == 2:
                result["xla" if jit else "graph"] = runs[1][1] / steps
                result["xla_start" if jit else "graph_start"] = runs[0][0] - runs[1][0]
        results.append(result)
    return {"seconds": 0.0, "trials": results}


@side
def prediction_paths(data_dir, n_rows):
    """Milliseconds of the NumPy pass and of a compiled float64 graph, same members."""
    from skuq.backend import compile_forward
    from skuq.catalog import Member
    from skuq.networks import build_mlp
    from skuq.training import predict_members
    from skuq.training._networks import draw_variables
    from skuq.training._predict import _keras_forward

    space, configurations = trials(SEEDED)
    models = {
        "1x50": build_mlp((8,), 2),
        "3x128 tanh": build_mlp((8,), 2, (128,) * 3, activation="tanh"),
    }
    models |= {f"searched {i}": space.build(configurations[i], (8,), 2) for i in (0, 3, 9, 25)}
    rng, results = np.random.default_rng(0), {}
    for name, model in models.items():
        weights, state = draw_variables(model, 1)
        member = Member(model.to_json(), weights, tuple(state), {}, 0, None, 1, 0.0, "graph")
        _, forward = _keras_forward(member.network, "float64")
        compiled = compile_forward(forward, weights.size, (), (8,))
        weights = weights.astype(float)

        def in_numpy(x, member=member):
            return predict_members([member], x)

        def in_a_graph(x, compiled=compiled, weights=weights):  # in chunks, as it would have to be
            chunks = range(0, len(x), 2**14)
            return np.concatenate(
                [np.asarray(compiled(weights, (), x[i : i + 2**14])) for i in chunks]
            )

        for n in n_rows:
            x, n_calls = rng.normal(size=(n, 8)), max(3, min(200, 20_000 // n))
            results[f"{name}, {n} rows"] = [
                1e3 * _rivals.median_seconds(functools.partial(path, x), n_calls)
                for path in (in_numpy, in_a_graph)
            ]
    return {"seconds": 0.0, "milliseconds": results}


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
