"""Networks as functions of their weights: what tests of layers, of plans and of training need."""

from skuq.backend import keras
from skuq.networks import _keras_models, _plan, _plan_parts, _tabular
from skuq.training import _networks

__all__ = [
    "ACTIVATIONS",
    "ARRAYS",
    "SLOPES",
    "Run",
    "bin_edges",
    "class_recipes",
    "draw_variables",
    "keras_model",
    "make_plan",
    "rebuild",
    "sequential",
    "tensors",
    "without_names",
    "wrong_sum",
]

ACTIVATIONS, SLOPES = _plan_parts.ACTIVATIONS, _plan_parts.SLOPES
ARRAYS, tensors, Run = _plan_parts.ARRAYS, _plan_parts.tensors, _plan_parts.Run
make_plan, without_names = _plan.make_plan, _plan.without_names
draw_variables, keras_model = _networks.draw_variables, _networks.keras_model
bin_edges, class_recipes = _tabular.bin_edges, _tabular.class_recipes
rebuild, wrong_sum = _keras_models.rebuild, _keras_models.wrong_sum


def sequential(input_shape, *layers):
    """Make a Keras model of inputs of one shape and these layers."""
    return keras.Sequential([keras.Input(input_shape), *layers])
