"""Import the distributions of TensorFlow Probability.

TensorFlow Probability requires `tf-keras`, the old Keras. Importing Keras first makes sure that
the process uses the new Keras.
"""

from skuq.backend import _keras  # noqa: F401

# isort: split
from tensorflow_probability import distributions as tfd

__all__ = ["tfd"]
