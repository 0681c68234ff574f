"""TensorFlow Probability's distributions, imported only where one is handed out.

TFP asks for `tf-keras`, the old Keras; importing the quiet backend first keeps the
process' Keras the new one.
"""

from tensorflow_probability import distributions as tfd

import skuq._keras  # noqa: F401

__all__ = ["tfd"]
