"""Predict with networks that give several draws a row, in float64 from float32 weights.

This runs in NumPy without a backend, as `_predict` does, except for a base that is a Keras model.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from skuq.catalog._records import Member
from skuq.networks._epinet import EpistemicNetwork
from skuq.networks._plan import ARRAYS, Run
from skuq.training._drawing import DrawingNetwork
from skuq.training._predict import predict_members

_CHUNK_ENTRIES = 2**19  # numbers of one layer held at a time: 4 MB
# For each member its network, and its variables and state in float64.
_parts: WeakKeyDictionary[Member, tuple[DrawingNetwork, list[Any], list[Any]]] = WeakKeyDictionary()


@functools.lru_cache(maxsize=64)
def read_network(network: str) -> EpistemicNetwork:
    """Parse the network in a member's configuration."""
    return EpistemicNetwork.from_json(network)


def predict_draws(member: Member, x: np.ndarray, index: np.ndarray | None = None) -> np.ndarray:
    """Predict raw draws of shape (n_draws, n_samples, n_raw).

    Parameters
    ----------
    member : Member
        Trained `EpistemicNetwork`.
    x : ndarray of shape (n_samples, n)
        Standardised rows.
    index : ndarray of shape (n_draws, n_index), optional
        Epistemic indices of the draws. Only networks with an EpiNet need them; others give one
        draw.
    """
    network, variables, state = _parts_of(member)
    x, run = np.asarray(x, dtype="float64"), Run(ARRAYS, index=index)
    epinet = network.network.epinet
    # Chunks of rows bound the memory of the widest layer, (n_draws, rows, widest).
    n_draws, widest = 1, 64
    if epinet is not None:
        n_draws, widest = len(run.index), max(64, *epinet.units)
    rows = max(16, _CHUNK_ENTRIES // (n_draws * widest))
    draws = np.empty((n_draws, len(x), network.network.n_raw))
    for start in range(0, len(x), rows):
        part = slice(start, start + rows)
        draws[:, part] = network.forward(variables, state, x[part], run)[0]
    return draws


def variables_of(member: Member) -> tuple[DrawingNetwork, list[Any]]:
    """Look up a member's network and its variables in float64."""
    network, variables, _ = _parts_of(member)
    return network, variables


def _parts_of(member: Member) -> tuple[DrawingNetwork, list[Any], list[Any]]:
    """Look up a member's network, its variables and its state in float64."""
    if member not in _parts:
        predicting = _Predicting(member)
        variables = predicting.split(np.asarray(member.weights, dtype="float64"))
        state = [v.astype("float64") if v.dtype.kind == "f" else v for v in member.state]
        _parts[member] = predicting, variables, state
    return _parts[member]


class _Predicting(DrawingNetwork):
    """A `DrawingNetwork` whose base runs in float64 also where it is a Keras model."""

    def __init__(self, member: Member):
        super().__init__(read_network(member.network))
        # A copy without arrays, so that the weak table above does not keep the member alive.
        self._record = member.without_arrays()

    def base(self, variables: Any, state: Any, x: Any, run: Run) -> tuple[Any, Any, Any, Any]:
        """Predict with the base; a Keras model runs in float64, through `predict_members`."""
        if self.keras_base is None:
            return super().base(variables, state, x, run)
        flat = np.concatenate([np.ravel(part) for part in variables])
        base: Any = self.network.base
        record = replace(self._record, network=base, weights=flat, state=tuple(state))
        raw = predict_members([record], x)[0]
        n_raw = self.network.n_raw
        return raw[:, :n_raw], raw[:, n_raw:], state, 0.0
