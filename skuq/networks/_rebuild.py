"""Rebuild Keras models from their stored configurations."""

from __future__ import annotations

from skuq import backend, networks


def rebuild(network: str):
    """Rebuild a Keras model from its JSON. It may have layers of this package."""
    # Accessing a layer loads the module in which the layers are registered with Keras.
    networks.Repeat  # noqa: B018
    return backend.keras.models.model_from_json(network)
