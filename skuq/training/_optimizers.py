"""The update rules of seven optimisers, as pure functions on one flat weight vector.

All seven work element by element, so one fused update of concatenated weights is exact.
Constants are Keras' defaults, and tests hold every rule against Keras' own. Divisions and
roots are what an update costs on a CPU, and XLA computes each new array in a loop of its
own; so factors that are numbers are joined first, and no array is divided twice.

Notation: w weights, g gradient (both (n_weights,), or (n_members, n_weights)), t the
number of this step from 1, lr learning rate (a number, or an array that broadcasts over
w); m, v first and second moments. `init` gives the slots (the optimiser's state), `update` maps
``(w, slots, g, t, lr)`` to ``(w, slots)``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

from skuq.backend import ops

EPSILON, BETA_2 = 1e-7, 0.999
_BETA_1 = 0.9


#: A block, its slots, its gradient, the step's number and the learning rate are tensors.
Slots = tuple[Any, ...]


class Rule(NamedTuple):
    """An optimiser: how its slots begin, and one update."""

    init: Callable[[Any], Slots]
    update: Callable[..., tuple[Any, Slots]]


def _zeros(n: int) -> Callable[[Any], Slots]:
    def init(w: Any) -> Slots:
        return tuple(ops.zeros_like(w) for _ in range(n))

    return init


def _sgd(w: Any, slots: Slots, g: Any, t: Any, lr: Any) -> tuple[Any, Slots]:
    return w - lr * g, slots


def _momentum(w: Any, slots: Slots, g: Any, t: Any, lr: Any, momentum: float) -> tuple[Any, Slots]:
    (velocity,) = slots
    velocity = momentum * velocity - lr * g
    return w + velocity, (velocity,)


def _rmsprop(
    w: Any, slots: Slots, g: Any, t: Any, lr: Any, rho: float = 0.9, epsilon: float = EPSILON
) -> tuple[Any, Slots]:
    (v,) = slots
    v = rho * v + (1 - rho) * ops.square(g)
    return w - lr * g / ops.sqrt(v + epsilon), (v,)


def _adagrad(
    w: Any, slots: Slots, g: Any, t: Any, lr: Any, epsilon: float = EPSILON
) -> tuple[Any, Slots]:
    (total,) = slots
    total = total + ops.square(g)
    return w - lr * g / ops.sqrt(total + epsilon), (total,)


def _adadelta(
    w: Any, slots: Slots, g: Any, t: Any, lr: Any, rho: float = 0.95, epsilon: float = EPSILON
) -> tuple[Any, Slots]:
    squares, steps = slots
    squares = rho * squares + (1 - rho) * ops.square(g)
    ratio = (steps + epsilon) / (squares + epsilon)  # of squares: no root for the slot
    steps = rho * steps + (1 - rho) * ops.square(g) * ratio
    return w - lr * g * ops.sqrt(ratio), (squares, steps)


def _adam(
    w: Any,
    slots: Slots,
    g: Any,
    t: Any,
    lr: Any,
    beta_2: float = BETA_2,
    epsilon: float = EPSILON,
) -> tuple[Any, Slots]:
    m, v = slots
    m = m + (1 - _BETA_1) * (g - m)
    v = v + (1 - beta_2) * (ops.square(g) - v)
    rate = lr * ops.sqrt(1 - ops.power(beta_2, t)) / (1 - ops.power(_BETA_1, t))
    return w - rate * m / (ops.sqrt(v) + epsilon), (m, v)


def _adamax(
    w: Any,
    slots: Slots,
    g: Any,
    t: Any,
    lr: Any,
    beta_2: float = BETA_2,
    epsilon: float = EPSILON,
) -> tuple[Any, Slots]:
    m, u = slots
    m = m + (1 - _BETA_1) * (g - m)
    u = ops.maximum(beta_2 * u, ops.abs(g))
    return w - lr / (1 - ops.power(_BETA_1, t)) * m / (u + epsilon), (m, u)


def _nadam_init(w: Any) -> Slots:
    return (*_zeros(2)(w), ops.ones((), w.dtype))


def _nadam(
    w: Any,
    slots: Slots,
    g: Any,
    t: Any,
    lr: Any,
    beta_2: float = BETA_2,
    epsilon: float = EPSILON,
) -> tuple[Any, Slots]:
    m, v, product = slots  # product: of the momentum schedule's values so far
    now = _BETA_1 * (1 - 0.5 * ops.power(0.96, t))
    ahead = _BETA_1 * (1 - 0.5 * ops.power(0.96, t + 1))
    product = product * now
    m = m + (1 - _BETA_1) * (g - m)
    v = v + (1 - beta_2) * (ops.square(g) - v)
    m_hat = (ahead / (1 - product * ahead)) * m + ((1 - now) / (1 - product)) * g
    v_hat = v * (1 / (1 - ops.power(beta_2, t)))
    return w - lr * m_hat / (ops.sqrt(v_hat) + epsilon), (m, v, product)


RULES = {
    "sgd": Rule(_zeros(0), _sgd),
    "rmsprop": Rule(_zeros(1), _rmsprop),
    "adagrad": Rule(lambda w: (ops.full_like(w, 0.1),), _adagrad),
    "adam": Rule(_zeros(2), _adam),
    "adadelta": Rule(_zeros(2), _adadelta),
    "adamax": Rule(_zeros(2), _adamax),
    "nadam": Rule(_nadam_init, _nadam),
}


def rule_of(
    optimizer: str, momentum: float = 0.0, beta_2: float = BETA_2, epsilon: float = EPSILON
) -> Rule:
    """Give the rule of an optimiser.

    `momentum` is that of plain gradient descent, `beta_2` that of adam, adamax and nadam; plain
    gradient descent has no `epsilon`.
    """
    if optimizer == "sgd" and momentum:
        return Rule(_zeros(1), functools.partial(_momentum, momentum=momentum))
    changed = {}
    if beta_2 != BETA_2:
        changed["beta_2"] = beta_2
    if epsilon != EPSILON:
        changed["epsilon"] = epsilon
    init, update = RULES[optimizer]
    return Rule(init, functools.partial(update, **changed)) if changed else RULES[optimizer]
