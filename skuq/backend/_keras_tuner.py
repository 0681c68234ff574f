"""Import Keras-Tuner after the quiet import of Keras and TensorFlow."""

from skuq.backend import _keras  # noqa: F401

# isort: split
import keras_tuner

__all__ = ["keras_tuner"]
