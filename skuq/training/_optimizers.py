"""Update rules of seven optimisers, as pure functions of one block of weights.

All seven work element by element, so that one fused update of concatenated weights is exact.
Constants are Keras' defaults, and tests compare every rule with Keras' own. Divisions and roots
dominate the time of an update on a CPU, and XLA computes each new array in a loop of its own.
Therefore scalar factors are multiplied first, and no array is divided twice.

Notation: w weights and g gradient, both (n_weights,) or (n_members, n_weights); t number of the
step, from 1; lr learning rate, a number or an array that broadcasts over w; m and v first and
second moments; c the optimiser's constants. `init` makes the slots (the optimiser's state), and
`update` maps ``(w, slots, g, t, lr)`` to ``(w, slots)``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

from skuq.backend import ops
from skuq.training._recipe import BETA_2, EPSILON

_BETA_1 = 0.9


#: The state of an optimiser for one block of weights, as tensors.
Slots = tuple[Any, ...]


class Constants(NamedTuple):
    """Constants of the rules: momentum is sgd's, and sgd has no other."""

    momentum: float
    beta_2: float
    epsilon: float


class Rule(NamedTuple):
    """An optimiser: the functions that make its slots and apply one update."""

    init: Callable[[Any], Slots]
    update: Callable[..., tuple[Any, Slots]]


def _zeros(n: int) -> Callable[[Any], Slots]:
    """Make the function that starts n slots at zero."""
    return lambda w: tuple(ops.zeros_like(w) for _ in range(n))


def _momentum(w: Any, slots: Slots, g: Any, t: Any, lr: Any, c: Constants) -> tuple[Any, Slots]:
    (velocity,) = slots  # velocity <- momentum * velocity - lr * g;  w <- w + velocity
    velocity = c.momentum * velocity - lr * g
    return w + velocity, (velocity,)


def _rmsprop(w: Any, slots: Slots, g: Any, t: Any, lr: Any, c: Constants) -> tuple[Any, Slots]:
    """Apply a step of RMSprop."""
    (v,) = slots  # v <- 0.9 v + 0.1 g^2;  w <- w - lr g / sqrt(v + eps)
    v = 0.9 * v + (1 - 0.9) * ops.square(g)
    return w - lr * g / ops.sqrt(v + c.epsilon), (v,)


def _adagrad(w: Any, slots: Slots, g: Any, t: Any, lr: Any, c: Constants) -> tuple[Any, Slots]:
    (total,) = slots  # sum of all squared gradients;  w <- w - lr g / sqrt(total + eps)
    total = total + ops.square(g)
    return w - lr * g / ops.sqrt(total + c.epsilon), (total,)


def _adadelta(w: Any, slots: Slots, g: Any, t: Any, lr: Any, c: Constants) -> tuple[Any, Slots]:
    """Apply a step of Adadelta."""
    # Moving averages of squared gradients and of squared steps; the step is
    # g * sqrt((steps + eps) / (squares + eps)), times lr (Zeiler 2012, Algorithm 1).
    (squares, steps), rho = slots, 0.95
    squares = rho * squares + (1 - rho) * ops.square(g)
    # The squared step is g^2 * ratio, so that the slot needs no second root.
    ratio = (steps + c.epsilon) / (squares + c.epsilon)
    steps = rho * steps + (1 - rho) * ops.square(g) * ratio
    return w - lr * g * ops.sqrt(ratio), (squares, steps)


def _adam(w: Any, slots: Slots, g: Any, t: Any, lr: Any, c: Constants) -> tuple[Any, Slots]:
    """Apply a step of Adam."""
    # m <- b1 m + (1 - b1) g;  v <- b2 v + (1 - b2) g^2 (Kingma & Ba 2015, Algorithm 1).
    m, v = slots
    m = m + (1 - _BETA_1) * (g - m)
    v = v + (1 - c.beta_2) * (ops.square(g) - v)
    # Both bias corrections in one number: lr * sqrt(1 - b2^t) / (1 - b1^t).
    rate = lr * ops.sqrt(1 - ops.power(c.beta_2, t)) / (1 - ops.power(_BETA_1, t))
    return w - rate * m / (ops.sqrt(v) + c.epsilon), (m, v)


def _adamax(w: Any, slots: Slots, g: Any, t: Any, lr: Any, c: Constants) -> tuple[Any, Slots]:
    """Apply a step of Adamax."""
    # u is the decayed maximum of |g|, in place of sqrt(v) (Kingma & Ba 2015, Algorithm 2).
    m, u = slots
    m = m + (1 - _BETA_1) * (g - m)
    u = ops.maximum(c.beta_2 * u, ops.abs(g))
    # Only m needs a bias correction: the maximum is not drawn towards its start.
    return w - lr / (1 - ops.power(_BETA_1, t)) * m / (u + c.epsilon), (m, u)


def _nadam(w: Any, slots: Slots, g: Any, t: Any, lr: Any, c: Constants) -> tuple[Any, Slots]:
    """Apply a step of Nadam."""
    # Adam with Nesterov momentum: m_hat looks one step ahead. The momentum of step t is
    # b1 (1 - 0.5 * 0.96^t), and `product` is that of all steps so far (Dozat 2016).
    m, v, product = slots
    now = _BETA_1 * (1 - 0.5 * ops.power(0.96, t))
    ahead = _BETA_1 * (1 - 0.5 * ops.power(0.96, t + 1))
    product = product * now
    m = m + (1 - _BETA_1) * (g - m)
    v = v + (1 - c.beta_2) * (ops.square(g) - v)
    # With momenta b_t and their products P_t:
    # m_hat = b_{t+1} m / (1 - P_{t+1}) + (1 - b_t) g / (1 - P_t).
    m_hat = (ahead / (1 - product * ahead)) * m + ((1 - now) / (1 - product)) * g
    v_hat = v * (1 / (1 - ops.power(c.beta_2, t)))
    return w - lr * m_hat / (ops.sqrt(v_hat) + c.epsilon), (m, v, product)


_RULES = {
    "sgd": Rule(_zeros(0), lambda w, slots, g, t, lr, c: (w - lr * g, slots)),
    "momentum": Rule(_zeros(1), _momentum),
    "rmsprop": Rule(_zeros(1), _rmsprop),
    "adagrad": Rule(lambda w: (ops.full_like(w, 0.1),), _adagrad),
    "adam": Rule(_zeros(2), _adam),
    "adadelta": Rule(_zeros(2), _adadelta),
    "adamax": Rule(_zeros(2), _adamax),
    # Both moments start at zero, and the product of the momentum schedule at one.
    "nadam": Rule(lambda w: (*_zeros(2)(w), ops.ones((), w.dtype)), _nadam),
}


def rule_of(
    optimizer: str, momentum: float = 0.0, beta_2: float = BETA_2, epsilon: float = EPSILON
) -> Rule:
    """Look up the update rule of an optimiser by its name."""
    init, update = _RULES["momentum" if optimizer == "sgd" and momentum else optimizer]
    return Rule(init, functools.partial(update, c=Constants(momentum, beta_2, epsilon)))
