"""Run networks that give several predictions (draws) a row, as pure functions of their weights.

The same code trains (on tensors) and predicts (on arrays). Only a base network that is a Keras
model needs the backend to predict.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from skuq.networks._epinet import EpistemicNetwork
from skuq.networks._plan import ARRAYS, Namespace, Run
from skuq.networks._rebuild import rebuild
from skuq.training._keras_network import MAX_PASS_ROWS, KerasNetwork
from skuq.training._weights import draw_variables


class DrawingNetwork:
    """Base network plus EpiNet, or plus a fixed random prior network.

    It computes draws (.., S, N, n_raw) for N rows and the S epistemic indices of a run, or one
    draw without an EpiNet. `n_members` is 0 for one network, without a member axis.

    The variables are those of the base, then those of the EpiNet's trainable part. The state is
    that of the base, then the frozen weights of the prior.
    """

    chunk = MAX_PASS_ROWS

    def __init__(self, network: EpistemicNetwork, n_members: int = 0):
        self.network, base = network, network.base
        self.keras_base: KerasNetwork | None = None
        shapes: list[tuple[int, ...]] = []
        if isinstance(base, str):
            self.keras_base = KerasNetwork(rebuild(base), n_members)
            shapes = self.keras_base.shapes
        elif base is not None:
            shapes = base.shapes
        self.n_base = len(shapes)
        self.shapes = shapes + (network.epinet.shapes if network.epinet is not None else [])

    @property
    def _n_base_state(self) -> int:
        """Number of variables in the state of the base network."""
        return len(self.keras_base.model.non_trainable_variables) if self.keras_base else 0

    def split(self, flat: np.ndarray) -> list[np.ndarray]:
        """Split flat weights (.., n_weights) into variables (.., *shape)."""
        ends = np.cumsum([math.prod(shape) for shape in self.shapes])[:-1]
        parts = np.split(flat, ends, axis=-1)
        return [part.reshape(flat.shape[:-1] + shape) for part, shape in zip(parts, self.shapes)]

    def draw(self, seed: int) -> tuple[np.ndarray, list[np.ndarray]]:
        """Draw first weights (n_weights,) and state, as `draw_variables` does for Keras models."""
        rng = np.random.default_rng(seed)
        weights, state = self._draw_base(rng)
        epinet = self.network.epinet
        if epinet is not None:
            trainable, prior = epinet.draw(rng)
            weights = np.concatenate([weights, *map(np.ravel, trainable)])
            state = [*state, *prior]
        elif self.network.prior_scale:
            # The prior is a second network of the base's architecture, with frozen weights.
            prior_weights, prior_state = self._draw_base(rng)
            state = [*state, *self.split(prior_weights), *prior_state]
        state = [v.astype("float32") if v.dtype.kind == "f" else v for v in map(np.asarray, state)]
        return weights.astype("float32"), state

    def _draw_base(self, rng: np.random.Generator) -> tuple[np.ndarray, list[np.ndarray]]:
        if self.keras_base is not None:
            return draw_variables(self.keras_base.model, int(rng.integers(1, 2**31 - 1)))
        base: Any = self.network.base
        parts = base.draw(rng) if base is not None else []
        return np.concatenate([np.zeros(0), *map(np.ravel, parts)]), []

    def forward(self, variables: Any, state: Any, x: Any, run: Run) -> tuple[Any, Any, Any]:
        """Compute draws (.., S, N, n_raw), new state and weight penalty for rows (.., N, n).

        An EpiNet adds its output, given the base's features, to the base's output (NEON, Eq. 3).
        """
        xp, epinet = run.namespace.xp, self.network.epinet
        lead = tuple(variables[0].shape[: -len(self.shapes[0])])  # (n_members,) or ()
        if lead and len(x.shape) == 2:  # all members share the rows: (N, n) -> (n_members, N, n)
            x = xp.broadcast_to(x, (*lead, *x.shape))
        n_state = self._n_base_state
        base_state, frozen = list(state[:n_state]), list(state[n_state:])
        base_variables = variables[: self.n_base]
        mean, features, base_state, penalty = self.base(base_variables, base_state, x, run)
        draws = mean[..., None, :, :]  # (.., N, n_raw) -> (.., 1, N, n_raw)
        if epinet is not None:
            # In training, the EpiNet's gradients stop at the base's features: "sg" of Eq. 3.
            # Gradients of a posterior with respect to its inputs pass through them.
            inputs = xp.stop_gradient(features) if run.training else features
            own_variables = variables[self.n_base :]
            draws = draws + epinet(run.namespace, own_variables, frozen, inputs, run.index)
        elif frozen:
            prior = self.prior(state, x, run.namespace) if run.prior is None else run.prior
            draws = draws + self.network.prior_scale * prior[..., None, :, :]
        return draws, base_state + frozen, penalty

    def prior(self, state: Any, x: Any, namespace: Namespace = ARRAYS) -> Any:
        """Compute the raw outputs (.., N, n_raw) of a random prior without an EpiNet."""
        frozen, n = state[self._n_base_state :], self.n_base
        return self.base(frozen[:n], frozen[n:], x, Run(namespace))[0]

    def base(self, variables: Any, state: Any, x: Any, run: Run) -> tuple[Any, Any, Any, Any]:
        """Compute the base network: raw outputs (.., N, n_raw), features, new state, penalty."""
        n_raw, base = self.network.n_raw, self.network.base
        if base is None:
            return run.namespace.xp.zeros((*x.shape[:-1], n_raw), x.dtype), x, state, 0.0
        if self.keras_base is None:
            function: Any = base
            return *function(run.namespace, variables, x), state, 0.0
        # A Keras base returns its features as further columns of its output.
        raw, state, penalty = self.keras_base.forward(variables, state, x, run)
        return raw[..., :n_raw], raw[..., n_raw:], list(state), penalty
