"""Keras models from their stored configurations."""

from __future__ import annotations

from skuq import backend, networks


def rebuild(network: str):
    """Rebuild a Keras model, of which this package's layers may be part, from its JSON."""
    # Keras knows the layers of `skuq.networks` once the module that defines them is loaded.
    networks.Repeat  # noqa: B018
    return backend.keras.models.model_from_json(network)
