"""Keras-Tuner, imported after the quiet import of Keras and its backend."""

import keras_tuner

import skuq._keras  # noqa: F401

__all__ = ["keras_tuner"]
