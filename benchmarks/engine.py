"""The training engine against Keras, PyTorch and scikit-learn, used well.

Each side runs in a process of its own on one thread and times itself from after the import of the
libraries: building, tracing and compiling count. The median of the seeds (repeats) counts.

The ensemble is everywhere the same: networks with one hidden layer of 50 relu units and a Gaussian
head (softplus and a floor), Adam 0.01 with epsilon 1e-7, batches of 100 in an order of its own for
every member and epoch, a validation pass after each epoch, no callbacks. `nll` is the members' mean
training NLL in the last epoch. "torch kernel" is PyTorch's fused Adam called without torch.optim
around it.
"""

import functools
import math
import time

import numpy as np
from data import uci
from runner import Benchmark, each

HIDDEN, BATCH, LEARNING_RATE, EPSILON = 50, 100, 0.01, 1e-7
MIN_SCALE = 1e-3  # the default of skuq.networks.GaussianHead
EPOCHS = 100  # of a trial
SEEDED = 30  # the configurations depend on how many are drawn: one number for all
ONE_THREAD = dict.fromkeys(
    ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "OMP_NUM_THREADS")
    + ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"),
    "1",
) | {"TF_CPP_MIN_LOG_LEVEL": "3"}


# Data and networks


def training_data(train, valid):
    """Standardised (X, y) to train and to validate on."""
    from skuq.tables import TrainingData
    from skuq.tables._scaling import Scaling, TargetScaling

    (X, y), _ = train, valid
    inputs, targets = Scaling().fit(X), TargetScaling().fit(y[:, None])
    parts = [
        (inputs.transform(X), targets.forward(y[:, None]), np.ones(len(X)))
        for X, y in (train, valid)
    ]
    return TrainingData(*parts[0], *parts[1])


def ensemble_data():
    """All 927 training rows of concrete; the 103 test rows validate."""
    X, y, X_test, y_test = uci("concrete", 0)
    return training_data((X, y), (X_test, y_test))


def trial_data():
    from skuq.tables._splits import split_rows

    X, y, *_ = uci("concrete", 0)
    parts = split_rows(len(X), 1 / 3, np.random.default_rng(0))
    return training_data(*((X[part], y[part]) for part in parts))


def wide_table(n_rows=100_000, n_features=13):
    """(X, y) to fit quickly, and many rows to predict."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((300, n_features))
    return X, X[:, 0] + 0.1 * rng.standard_normal(300), rng.standard_normal((n_rows, n_features))


def trials(n_trials):
    """The space and its seeded configurations."""
    from skuq.networks import DenseSpace

    space = DenseSpace()
    decisions = space.decisions()
    rng = np.random.default_rng(0)
    return space, (decisions.architecture + decisions.hyperparameters).sample_many(rng, n_trials)


def dense_network(n_features, hidden_units, n_raw=2):
    """A Keras network of relu layers, for us and for `fit`."""
    from skuq.backend import keras

    layers = [keras.layers.Dense(units, activation="relu") for units in hidden_units]
    return keras.Sequential([keras.Input((n_features,)), *layers, keras.layers.Dense(n_raw)])


def train(model, recipe, data, seeds, head=None, **settings):
    """Train networks, and raise the error if one diverges."""
    from skuq.networks import GaussianHead
    from skuq.training import TrainingJob, train

    job = TrainingJob.of_model(model, head or GaussianHead(), recipe, seeds, **settings)
    members = train(job, data)
    for member in members:
        if isinstance(member, FloatingPointError):
            raise member
    return members


# Measuring


def median_seconds(call, n_calls):
    for _ in range(1 + n_calls // 10):
        call()
    times = []
    for _ in range(n_calls):
        started = time.perf_counter()
        call()
        times.append(time.perf_counter() - started)
    return float(np.median(times))


def with_totals(results):
    """Sum up the (validation loss, epochs, seconds) of trials."""
    trials = [
        {"val_loss": loss, "epochs": n, "seconds": s, "seconds_per_epoch": s / n if n else None}
        for loss, n, s in results
    ]
    return {"seconds": sum(trial["seconds"] for trial in trials), "trials": trials}


# Trials of a search: seconds, epochs and validation loss (None if diverged) of each


def trials_skuq():
    from skuq.backend import keras  # noqa: F401  # before the clock starts
    from skuq.training import Recipe, TrainingRun  # noqa: F401

    space, configurations = trials(SEEDED)
    data, results = trial_data(), []
    for seed, configuration in enumerate(configurations, start=1):
        started = time.perf_counter()
        model = space.build(configuration, (8,), 2)
        recipe = Recipe(epochs=EPOCHS, **space.recipe(configuration))
        try:
            (member,) = train(model, recipe, data, [seed])
            outcome = member.score, len(member.history["loss"])
        except FloatingPointError:
            outcome = None, 0
        results.append([*outcome, time.perf_counter() - started])
    return with_totals(results)


def trials_fit(jit_compile):
    """The same through Keras' own training."""
    from skuq.backend import keras
    from skuq.networks import GaussianHead

    space, configurations = trials(SEEDED)
    data, head, results = trial_data(), GaussianHead(), []
    for seed, configuration in enumerate(configurations, start=1):
        started = time.perf_counter()
        keras.utils.set_random_seed(seed)
        model = space.build(configuration, (8,), 2)
        rate = {"learning_rate": configuration["learning_rate"]}
        optimizer = {"class_name": configuration["optimizer"], "config": rate}
        model.compile(
            keras.optimizers.get(optimizer),
            loss=head.loss,
            jit_compile=jit_compile,
            steps_per_execution=16,
        )
        patience = configuration["early_stopping_patience"]
        history = model.fit(
            data.x,
            data.y,
            validation_data=(data.x_valid, data.y_valid),
            batch_size=configuration["batch_size"],
            epochs=EPOCHS,
            verbose=0,
            callbacks=[
                keras.callbacks.ReduceLROnPlateau(patience=configuration["reduce_lr_patience"]),
                keras.callbacks.EarlyStopping(patience=patience, restore_best_weights=True),
                keras.callbacks.TerminateOnNaN(),
            ],
        ).history
        best = np.nanmin(history["val_loss"]) if np.isfinite(history["val_loss"]).any() else None
        seconds = time.perf_counter() - started
        results.append([best and float(best), len(history["loss"]), seconds])
    return with_totals(results)


# The ensemble


def ensemble_skuq(epochs, n_members=5):
    """Our ensemble, in one vectorised program."""
    from skuq.backend import keras  # noqa: F401  # before the clock starts
    from skuq.networks import GaussianHead
    from skuq.training import Recipe, TrainingRun  # noqa: F401

    data = ensemble_data()
    started = time.perf_counter()
    model = dense_network(data.x.shape[1], (HIDDEN,))
    recipe = Recipe(
        optimizer="adam",
        learning_rate=LEARNING_RATE,
        batch_size=BATCH,
        epochs=epochs,
        reduce_lr_patience=None,
        early_stopping_patience=None,
    )
    head = GaussianHead(min_scale=MIN_SCALE)
    members = train(model, recipe, data, range(n_members), head, stacked=True)
    seconds = time.perf_counter() - started
    losses = [member.history["loss"] for member in members]
    assert {len(loss) for loss in losses} == {epochs}, "not the same work"
    return {
        "seconds": seconds,
        "nll": float(np.mean([loss[-1] for loss in losses])),
        "tier": members[0].tier,
    }


def ensemble_fit(epochs, jit_compile):
    """A loop over `model.fit`."""
    from skuq.backend import keras
    from skuq.networks import GaussianHead

    data, head, losses = ensemble_data(), GaussianHead(min_scale=MIN_SCALE), []
    started = time.perf_counter()
    for seed in range(5):
        keras.utils.set_random_seed(seed)
        model = dense_network(data.x.shape[1], (HIDDEN,))
        model.compile(
            keras.optimizers.Adam(LEARNING_RATE, epsilon=EPSILON),
            loss=head.loss,
            jit_compile=jit_compile,
            steps_per_execution=16,
        )
        history = model.fit(
            data.x,
            data.y,
            validation_data=(data.x_valid, data.y_valid),
            batch_size=BATCH,
            epochs=epochs,
            verbose=0,
        ).history
        losses.append(history["loss"][-1])
    return {"seconds": time.perf_counter() - started, "nll": float(np.mean(losses))}


def _torch():
    """PyTorch on one thread, with what it would otherwise import in the first step."""
    import torch
    import torch._dynamo

    torch.set_num_threads(1)
    torch.manual_seed(0)
    return torch


def _nll(torch, raw, y):
    """Mean over the rows, then the sum over members (if any): their gradients are apart."""
    mean, r = raw.split(1, -1)
    scale = torch.nn.functional.softplus(r) + MIN_SCALE
    z = (y - mean) / scale
    rows = torch.addcmul(torch.log(scale), z, z, value=0.5)
    return rows.sum() / y.shape[-2] + 0.5 * math.log(2 * math.pi) * (rows.numel() / y.shape[-2])


def _torch_network(torch, n_features):
    network = torch.nn.Sequential(
        torch.nn.Linear(n_features, HIDDEN), torch.nn.ReLU(), torch.nn.Linear(HIDDEN, 2)
    )
    for layer in (network[0], network[2]):  # as Keras draws them
        torch.nn.init.xavier_uniform_(layer.weight)
        torch.nn.init.zeros_(layer.bias)
    return network


def torch_loop(epochs):
    """The loop over members that one writes by hand."""
    torch, data = _torch(), ensemble_data()
    started = time.perf_counter()
    x, y = torch.from_numpy(data.x), torch.from_numpy(data.y)
    x_valid, y_valid = torch.from_numpy(data.x_valid), torch.from_numpy(data.y_valid)
    losses = []
    for _ in range(5):
        network = _torch_network(torch, x.shape[1])
        optimizer = torch.optim.Adam(network.parameters(), lr=LEARNING_RATE, eps=EPSILON)
        validation = []
        for _ in range(epochs):
            total = 0.0
            for rows in torch.randperm(len(x)).split(BATCH):
                optimizer.zero_grad()
                loss = _nll(torch, network(x[rows]), y[rows])
                loss.backward()
                optimizer.step()
                total += loss.item() * len(rows)
            with torch.no_grad():
                validation.append(_nll(torch, network(x_valid), y_valid).item())
        losses.append(total / len(x))
    return {"seconds": time.perf_counter() - started, "nll": float(np.mean(losses))}


def torch_stack(epochs, n_members=5):
    """All members in one: batched products and one Adam over the stacked parameters."""
    torch, data = _torch(), ensemble_data()
    started = time.perf_counter()
    xy = torch.from_numpy(np.hstack([data.x, data.y]))
    x_valid, y_valid = torch.from_numpy(data.x_valid), torch.from_numpy(data.y_valid)
    n, d = data.x.shape
    networks = [_torch_network(torch, d) for _ in range(n_members)]
    parameters = []
    for k in (0, 2):
        parameters.append(torch.stack([net[k].weight.detach().T for net in networks]))
        parameters.append(torch.stack([net[k].bias.detach()[None] for net in networks]))
    parameters = [p.contiguous().requires_grad_() for p in parameters]
    w1, b1, w2, b2 = parameters
    update = _adam(torch, parameters)

    def total_nll(x, y):
        hidden = torch.relu(torch.baddbmm(b1, x, w1))
        return _nll(torch, torch.baddbmm(b2, hidden, w2), y)

    # Each member's own rows in its own order, gathered once an epoch: (members, rows, d).
    x_valid, y_valid = (v.expand(n_members, *v.shape) for v in (x_valid, y_valid))
    validation = []
    for _ in range(epochs):
        total = torch.zeros(())
        shuffled = xy[torch.rand(n_members, n).argsort(1)]
        for x, y in zip(shuffled[..., :d].split(BATCH, 1), shuffled[..., d:].split(BATCH, 1)):
            loss = total_nll(x, y)
            update(torch.autograd.grad(loss, parameters))
            total += loss.detach() * x.shape[1]
        with torch.no_grad():
            validation.append(total_nll(x_valid, y_valid).item() / n_members)
    return {"seconds": time.perf_counter() - started, "nll": total.item() / n / n_members}


def _adam(torch, parameters):
    """PyTorch's fused Adam without torch.optim's Python around it."""
    first, second = ([torch.zeros_like(p) for p in parameters] for _ in range(2))
    steps = [torch.zeros(()) for _ in parameters]
    settings = {"beta1": 0.9, "beta2": 0.999, "weight_decay": 0.0, "lr": LEARNING_RATE}
    settings |= {"eps": EPSILON, "amsgrad": False, "maximize": False}

    def update(grads):
        torch._foreach_add_(steps, 1)
        torch._fused_adam_(parameters, list(grads), first, second, [], steps, **settings)

    return update


# Prediction


def deep_ensemble(X, y):
    from skuq import DeepEnsembleRegressor
    from skuq.networks import MLP

    network = MLP((HIDDEN,))
    return DeepEnsembleRegressor(n_members=5, network=network, random_state=0).fit(X, y)


def one_row_skuq(n_calls=1000):
    X, y, *_ = uci("concrete", 0)
    model = deep_ensemble(X, y)
    seconds = median_seconds(lambda: model.predict(X[:1]), n_calls)
    with_std = median_seconds(lambda: model.predict(X[:1], return_std=True), n_calls)
    return {"seconds": seconds, "seconds_with_std": with_std}


def many_rows_skuq():
    X, y, many = wide_table()
    model = deep_ensemble(X, y)
    return {"seconds": median_seconds(lambda: model.predict(many), 3)}


def many_rows_keras(batch_size):
    x = wide_table()[2].astype("float32")
    networks = [dense_network(x.shape[1], (HIDDEN,)) for _ in range(5)]

    def predict():
        return [model.predict(x, batch_size=batch_size, verbose=0) for model in networks]

    return {"seconds": median_seconds(predict, 3)}


def one_row_sklearn(n_calls=1000):
    from sklearn.neural_network import MLPRegressor

    X, y, *_ = uci("concrete", 0)
    model = MLPRegressor(hidden_layer_sizes=(HIDDEN,), random_state=0).fit(X, y)
    return {"seconds": median_seconds(lambda: model.predict(X[:1]), n_calls)}


FITS = {"fit true:16": True, "fit false:16": False}  # through XLA or not, 16 steps a call
SIDES = {
    "30 trials": {"skuq": trials_skuq}
    | {name: functools.partial(trials_fit, jit) for name, jit in FITS.items()},
    "one row": {"skuq": one_row_skuq, "scikit-learn": one_row_sklearn},
}
for _n in (40, 400):
    _ours = {"skuq": functools.partial(ensemble_skuq, _n)}
    SIDES[f"ensemble beside fit, {_n} epochs"] = _ours | {
        name: functools.partial(ensemble_fit, _n, jit) for name, jit in FITS.items()
    }
    SIDES[f"ensemble beside loop, {_n} epochs"] = _ours | {
        "torch loop": functools.partial(torch_loop, _n)
    }
    SIDES[f"ensemble beside stack, {_n} epochs"] = _ours | {
        "torch kernel": functools.partial(torch_stack, _n)
    }
    SIDES[f"fifty members, {_n} epochs"] = _ours | {
        "skuq, 50": functools.partial(ensemble_skuq, _n, 50)
    }
SIDES["many rows, five 1x50"] = {"skuq": many_rows_skuq} | {
    f"keras, batch {size or 'default'}": functools.partial(many_rows_keras, size)
    for size in (None, 8192)
}


def timed(sides, method, seed):
    return sides[method]()


METHODS = {name: name for sides in SIDES.values() for name in sides}
BENCHMARKS = {
    "engine": Benchmark(
        {name: lambda seed, sides=sides: sides for name, sides in SIDES.items()},
        METHODS,
        each(timed),
        {name: 3 if name.startswith(("ensemble beside", "fifty")) else 1 for name in SIDES},
        lambda problem, method: method in SIDES[problem],
        ONE_THREAD,
    )
}
