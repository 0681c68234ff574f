"""The distributions of TensorFlow Probability.

TensorFlow Probability asks for `tf-keras`, the old Keras. Importing Keras first keeps the
process on the new one.
"""

from skuq.backend import _keras  # noqa: F401

# isort: split
from tensorflow_probability import distributions as tfd

__all__ = ["tfd"]
