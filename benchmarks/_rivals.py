"""The rivals of benchmarks/engine.py: Keras, PyTorch and scikit-learn, used well.

The ensemble is everywhere the same: `n_members` networks with one hidden layer of 50 relu
units and a Gaussian head (softplus and a floor), Adam 0.01 with epsilon 1e-7, batches of
100 in an order of its own for every member and epoch, a validation pass after each epoch,
no callbacks. Every `*_ensemble` returns the seconds after the libraries' import (building,
tracing and compiling included) and the members' mean training NLL in the last epoch.
"""

import functools
import math
import time
import warnings

import numpy as np

HIDDEN, BATCH, LEARNING_RATE, EPSILON = 50, 100, 0.01, 1e-7
MIN_SCALE = 1e-3  # the default of skuq.networks.GaussianHead


def median_seconds(call, n_calls):
    """Median time of a warm call."""
    for _ in range(1 + n_calls // 10):
        call()
    times = []
    for _ in range(n_calls):
        started = time.perf_counter()
        call()
        times.append(time.perf_counter() - started)
    return float(np.median(times))


def dense_network(n_features, hidden_units, n_raw=2):
    """A Keras network of relu layers, for us and for `fit`."""
    from skuq.backend import keras

    layers = [keras.layers.Dense(units, activation="relu") for units in hidden_units]
    return keras.Sequential([keras.Input((n_features,)), *layers, keras.layers.Dense(n_raw)])


def fit_ensemble(data, epochs, n_members, jit_compile, steps_per_execution):
    """A loop over `model.fit`."""
    from skuq.backend import keras
    from skuq.networks import GaussianHead

    head, losses = GaussianHead(min_scale=MIN_SCALE), []
    started = time.perf_counter()
    for seed in range(n_members):
        keras.utils.set_random_seed(seed)
        model = dense_network(data.x.shape[1], (HIDDEN,))
        model.compile(
            keras.optimizers.Adam(LEARNING_RATE, epsilon=EPSILON),
            loss=head.loss,
            jit_compile=jit_compile,
            steps_per_execution=steps_per_execution,
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


def keras_predict(networks, x, batch_size, n_calls):
    """Seconds of `model.predict` over several networks; None is Keras' own batch size."""

    def predict():
        return [model.predict(x, batch_size=batch_size, verbose=0) for model in networks]

    return median_seconds(predict, n_calls)


def sklearn_predict_one_row(X, y, n_calls):
    """Seconds of scikit-learn's own network for one row."""
    from sklearn.neural_network import MLPRegressor

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # not converged: irrelevant to its speed
        model = MLPRegressor(hidden_layer_sizes=(HIDDEN,), random_state=0).fit(X, y)
    return median_seconds(lambda: model.predict(X[:1]), n_calls)


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


def torch_loop_ensemble(data, epochs, n_members):
    """The loop over members that one writes by hand."""
    torch = _torch()
    started = time.perf_counter()
    x, y = torch.from_numpy(data.x), torch.from_numpy(data.y)
    x_valid, y_valid = torch.from_numpy(data.x_valid), torch.from_numpy(data.y_valid)
    losses = []
    for _ in range(n_members):
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


def torch_stack_ensemble(data, epochs, n_members, variant):
    """All members in one: batched products and one Adam over the stacked parameters.

    `variant` is "fused" or "foreach" (torch.optim.Adam's two ways), "kernel" (PyTorch's
    fused Adam called without torch.optim around it, which is faster still) or "vmap"
    (torch.func over one member's network, then the same kernel).
    """
    torch = _torch()
    started = time.perf_counter()
    xy = torch.from_numpy(np.hstack([data.x, data.y]))
    x_valid, y_valid = torch.from_numpy(data.x_valid), torch.from_numpy(data.y_valid)
    n, d = data.x.shape
    networks = [_torch_network(torch, d) for _ in range(n_members)]
    make = _vmap_member if variant == "vmap" else _stacked
    parameters, gradients, total_nll = make(torch, networks)
    if variant in ("fused", "foreach"):
        options = {"lr": LEARNING_RATE, "eps": EPSILON, variant: True}
        optimizer = torch.optim.Adam(parameters, **options)

        def update(grads):
            for parameter, gradient in zip(parameters, grads):
                parameter.grad = gradient
            optimizer.step()
    else:
        update = _adam_kernel(torch, parameters)

    # Each member's own rows in its own order, gathered once an epoch: (members, rows, d).
    x_valid, y_valid = (v.expand(n_members, *v.shape) for v in (x_valid, y_valid))
    validation = []
    for _ in range(epochs):
        total = torch.zeros(())
        shuffled = xy[torch.rand(n_members, n).argsort(1)]
        for x, y in zip(shuffled[..., :d].split(BATCH, 1), shuffled[..., d:].split(BATCH, 1)):
            loss, grads = gradients(x, y)
            update(grads)
            total += loss * x.shape[1]
        with torch.no_grad():
            validation.append(total_nll(x_valid, y_valid).item() / n_members)
    return {
        "seconds": time.perf_counter() - started,
        "nll": total.item() / n / n_members,
    }


def _stacked(torch, networks):
    """(parameters, gradients(x, y), NLL(x, y)) by batched products."""
    parameters = []
    for k in (0, 2):
        parameters.append(torch.stack([net[k].weight.detach().T for net in networks]))
        parameters.append(torch.stack([net[k].bias.detach()[None] for net in networks]))
    parameters = [p.contiguous().requires_grad_() for p in parameters]
    w1, b1, w2, b2 = parameters

    def total_nll(x, y):
        hidden = torch.relu(torch.baddbmm(b1, x, w1))
        return _nll(torch, torch.baddbmm(b2, hidden, w2), y)

    def gradients(x, y):
        loss = total_nll(x, y)
        return loss.detach(), torch.autograd.grad(loss, parameters)

    return parameters, gradients, total_nll


def _vmap_member(torch, networks):
    """The same from a function of one member."""
    stacked, _ = torch.func.stack_module_state(networks)
    stacked = {name: value.detach() for name, value in stacked.items()}
    template = networks[0]

    def member_nll(parameters, x, y):
        return _nll(torch, torch.func.functional_call(template, parameters, (x,)), y)

    nll = torch.func.vmap(member_nll)
    both = torch.func.vmap(torch.func.grad_and_value(member_nll))

    def gradients(x, y):
        grads, loss = both(stacked, x, y)
        return loss.sum(), list(grads.values())

    return list(stacked.values()), gradients, lambda x, y: nll(stacked, x, y).sum()


def _adam_kernel(torch, parameters):
    """PyTorch's fused Adam without torch.optim's Python around it."""
    first, second = ([torch.zeros_like(p) for p in parameters] for _ in range(2))
    steps = [torch.zeros(()) for _ in parameters]
    kernel = functools.partial(
        torch._fused_adam_,
        lr=LEARNING_RATE,
        beta1=0.9,
        beta2=0.999,
        weight_decay=0.0,
        eps=EPSILON,
        amsgrad=False,
        maximize=False,
    )

    def update(grads):
        torch._foreach_add_(steps, 1)
        kernel(parameters, grads, first, second, [], steps)

    return update
