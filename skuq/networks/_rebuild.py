"""A Keras model from its stored configuration."""

from __future__ import annotations

__all__ = ["rebuild"]


def rebuild(network: str):
    """The Keras model of a JSON configuration, with this package's own layers too."""
    import skuq.networks._tabular_layers  # noqa: F401 - registers them with Keras
    from skuq.backend import keras

    return keras.models.model_from_json(network)
