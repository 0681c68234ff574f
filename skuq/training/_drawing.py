"""Networks of several predictions a row, as pure functions of their weights.

They serve training (tensors) and prediction (arrays); only a base that is a Keras model needs
the backend for the latter too.
"""

from __future__ import annotations

import math

import numpy as np

from skuq.networks._epinet import EpistemicNetwork
from skuq.networks._plan import Run

__all__ = ["DrawingNetwork"]


class DrawingNetwork:
    """Draws (.., S, N, n_raw) for the S indices of a run; without an EpiNet there is one.

    Parameters
    ----------
    network : EpistemicNetwork
    n_members : int, default=0
        Of a program of many networks at once; 0 for one network, without a member axis.
    """

    chunk = 8192  # rows of one pass without gradients

    def __init__(self, network: EpistemicNetwork, n_members: int = 0):
        self.network, base, self.keras_base = network, network.base, None
        if isinstance(base, str):
            from skuq.networks._rebuild import rebuild
            from skuq.training._network import KerasNetwork

            self.keras_base = KerasNetwork(rebuild(base), n_members)
            shapes = self.keras_base.shapes
        else:
            shapes = base.shapes if base is not None else []
        self.n_base = len(shapes)
        self.shapes = shapes + (network.epinet.shapes if network.epinet is not None else [])

    @property
    def _n_base_state(self):
        """Variables of the base's own state."""
        return len(self.keras_base.model.non_trainable_variables) if self.keras_base else 0

    def split(self, flat) -> list:
        """Variables (.., *shape) of flat weights (.., n_weights)."""
        ends = np.cumsum([math.prod(shape) for shape in self.shapes])[:-1]
        parts = np.split(flat, ends, axis=-1)
        return [part.reshape(flat.shape[:-1] + shape) for part, shape in zip(parts, self.shapes)]

    def draw(self, seed: int):
        """First weights (n_weights,) and state: as `draw_variables` does for a Keras model."""
        rng = np.random.default_rng(seed)
        weights, state = self._draw_base(rng)
        epinet = self.network.epinet
        if epinet is not None:
            own, prior = epinet.draw(rng)
            weights = np.concatenate([weights, *map(np.ravel, own)])
            state = [*state, *prior]
        elif self.network.prior_scale:
            prior, prior_state = self._draw_base(rng)
            state = [*state, *self.split(prior), *prior_state]
        state = [v.astype("float32") if v.dtype.kind == "f" else v for v in map(np.asarray, state)]
        return weights.astype("float32"), state

    def _draw_base(self, rng):
        if self.keras_base is not None:
            from skuq.training._weights import draw_variables

            return draw_variables(self.keras_base.model, int(rng.integers(1, 2**31 - 1)))
        parts = self.network.base.draw(rng) if self.network.base is not None else []
        return np.concatenate([np.zeros(0), *map(np.ravel, parts)]), []

    def forward(self, variables, state, x, run: Run):
        """``(draws, new state, penalty)`` for rows (.., N, n)."""
        xp, epinet = run.namespace.xp, self.network.epinet
        lead = tuple(variables[0].shape[: -len(self.shapes[0])])
        if lead and len(x.shape) == 2:  # rows that all members share
            x = xp.broadcast_to(x, (*lead, *x.shape))
        n_state = self._n_base_state
        own, held = list(state[:n_state]), list(state[n_state:])
        mean, features, own, penalty = self.base(variables[: self.n_base], own, x, run)
        draws = mean[..., None, :, :]
        if epinet is not None:
            # While it trains, gradients of the EpiNet stop where it meets the base (sg in
            # Eq. 3); a posterior's, by its inputs, do not.
            seen = xp.stop_gradient(features) if run.training else features
            draws = draws + epinet(run.namespace, variables[self.n_base :], held, seen, run.index)
        elif held:
            n = self.n_base
            prior = self.base(held[:n], held[n:], x, Run(run.namespace))[0]
            draws = draws + self.network.prior_scale * prior[..., None, :, :]
        return draws, own + held, penalty

    def base(self, variables, state, x, run: Run):
        """Raw outputs (.., N, n_raw), features, new state and penalty of the base."""
        n_raw = self.network.n_raw
        if self.network.base is None:
            return run.namespace.xp.zeros((*x.shape[:-1], n_raw), x.dtype), x, state, 0.0
        if self.keras_base is None:
            return *self.network.base(run.namespace, variables, x), state, 0.0
        raw, state, penalty = self.keras_base.forward(variables, state, x, run)
        return raw[..., :n_raw], raw[..., n_raw:], list(state), penalty
