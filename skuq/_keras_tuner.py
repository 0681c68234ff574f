"""Keras-Tuner, imported after the quiet import of Keras and its backend."""

import skuq._keras  # noqa: F401
import keras_tuner

__all__ = ["keras_tuner"]
