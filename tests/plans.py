"""Networks as functions of their weights: what tests of layers, of plans and of training need."""

import numpy as np

from skuq.backend import keras, ops
from skuq.networks import _keras_models, _operations, _plan, _tabular_network
from skuq.training import _network_checks as _networks

ACTIVATIONS, SLOPES = _operations.ACTIVATIONS, _operations.SLOPES
ARRAYS, tensors, Run = _operations.ARRAYS, _operations.tensors, _operations.Run
make_plan, without_names = _plan.make_plan, _plan.without_names
draw_variables, keras_model = _networks.draw_variables, _networks.keras_model
bin_edges = _tabular_network.bin_edges
rebuild, wrong_sum = _keras_models.rebuild, _keras_models.wrong_sum


def sequential(input_shape, *layers):
    """Make a Keras model of inputs of one shape and these layers."""
    return keras.Sequential([keras.Input(input_shape), *layers])


def float32(values):
    return [ops.convert_to_tensor(np.asarray(value, dtype="float32")) for value in values]


def numpy_of(tensor):
    return ops.convert_to_numpy(tensor)
