"""Build the plain network of deep ensembles: hidden layers with one activation."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any

import numpy as np

from skuq._params import Interval, Settings, StrOptions
from skuq._registry import saved_as
from skuq.networks._activations import ACTIVATIONS
from skuq.networks._gaussian_head import GaussianHead

_SCALE_L2 = 1e-2


@saved_as("networks.MLP")
class MLP(Settings):
    """Settings of a plain fully connected network, for the parameter `network` of ensembles.

    Parameters
    ----------
    hidden_units : int or sequence of int, default=(50,)
        Number of units of each hidden layer.
    activation : str, default="relu"
        Activation of the hidden layers, by its Keras name.
    dropout : float, default=0.0
        Share of hidden units dropped in training; predictions drop none. Hyper deep ensembles and
        MC dropout set their own rates, and refuse this one.
    scale_l2 : float or "auto", default="auto"
        L2 penalty on the last layer of the standard deviations. "auto" is 0.01 for losses that
        train means and standard deviations of normals; networks for small data are far too
        confident without it. Other losses have no such layer, and refuse a number.

    Examples
    --------
    >>> from skuq import DeepEnsembleRegressor
    >>> from skuq.networks import MLP
    >>> DeepEnsembleRegressor(network=MLP(hidden_units=(100, 100), activation="silu"))
    DeepEnsembleRegressor(network=MLP(activation='silu', hidden_units=(100, 100)))
    >>> DeepEnsembleRegressor().set_params(network__hidden_units=20)
    DeepEnsembleRegressor(network=MLP(hidden_units=20))
    """

    _parameter_constraints: dict = {
        "hidden_units": ["array-like", Interval(Integral, 1, None, closed="left")],
        "activation": [StrOptions({*ACTIVATIONS, "swish"})],
        "dropout": [Interval(Real, 0, 1, closed="left")],
        "scale_l2": [Interval(Real, 0, None, closed="left"), StrOptions({"auto"})],
    }

    def __init__(self, hidden_units=(50,), activation="relu", dropout=0.0, scale_l2="auto"):
        self.hidden_units = hidden_units
        self.activation = activation
        self.dropout = dropout
        self.scale_l2 = scale_l2

    def validate(self) -> None:
        """Raise ValueError if a parameter is invalid."""
        super().validate()
        check_units("hidden_units", self.hidden_units)

    def build(self, input_shape: tuple, head: Any, dropout: float | None = None):
        """Build the Keras model for a head; `dropout` replaces the rate of the settings."""
        # Only normals have a layer of standard deviations that can be penalised.
        has_scales, scale_l2 = isinstance(head, GaussianHead), self.scale_l2
        if isinstance(scale_l2, str):
            scale_l2 = _SCALE_L2 if has_scales else 0.0
        elif not has_scales:
            raise ValueError(
                '`scale_l2` needs a loss that trains standard deviations of normals: "nll", '
                f'"beta-nll" or "crps". Got MLP(scale_l2={scale_l2!r}): leave it out.'
            )
        return build_mlp(
            input_shape,
            head.n_raw,
            check_units("hidden_units", self.hidden_units),
            activation=self.activation,
            dropout=(self.dropout or None) if dropout is None else dropout,
            scale_l2=float(scale_l2),
        )


def check_units(name: str, given: Any) -> list[int]:
    """Check a parameter with the number of units of each hidden layer."""
    try:
        units = np.atleast_1d(given)
        usable = units.ndim == 1 and units.dtype.kind in "iu" and (units >= 1).all()
    except ValueError:  # nested sequences of different lengths
        usable = False
    if not usable or not len(units):
        raise ValueError(
            f"`{name}` must be positive integers, one for each hidden layer. Got {given!r}."
        )
    return units.tolist()


def build_mlp(
    input_shape: tuple,
    n_outputs: int,
    hidden_units: Sequence[int] = (50,),
    *,
    activation: str = "relu",
    dropout: float | None = None,
    scale_l2: float = 0.0,
):
    """Build a fully connected Keras model with linear outputs.

    Parameters
    ----------
    input_shape : tuple
        ``(n_features,)``.
    n_outputs : int
        Number of raw outputs: the head's `n_raw`.
    hidden_units : sequence of int, default=(50,)
        Widths of the hidden layers.
    activation : str, default="relu"
        Keras' name of the activation.
    dropout : float, optional
        Rate of a dropout layer after each hidden layer. None adds no such layers; 0 adds them for
        a recipe to set their rate.
    scale_l2 : float, default=0.0
        L2 penalty on the kernel of the second half of the outputs, from which a Gaussian head
        computes its standard deviations.

    Examples
    --------
    >>> from skuq.networks import build_mlp
    >>> model = build_mlp((3,), 2, hidden_units=(8,))
    >>> model.count_params()  # (3 + 1) * 8 + (8 + 1) * 2
    50
    """
    from skuq.backend import keras

    layers = keras.layers
    inputs = x = keras.Input(shape=input_shape, name="input", dtype="float32")
    for i, units in enumerate(hidden_units, start=1):
        x = layers.Dense(units, activation=activation, dtype="float32", name=f"hidden_{i}")(x)
        if dropout is not None:
            x = layers.Dropout(dropout, dtype="float32", name=f"dropout_{i}")(x)
    if not scale_l2:
        outputs = layers.Dense(n_outputs, dtype="float32", name="output")(x)
    else:
        # The second half gets a layer of its own, so that the penalty is on its kernel alone.
        half = n_outputs // 2
        mean = layers.Dense(half, dtype="float32", name="mean")(x)
        penalty = keras.regularizers.L2(scale_l2)
        scale = layers.Dense(half, kernel_regularizer=penalty, dtype="float32", name="scale")(x)
        outputs = layers.Concatenate(dtype="float32", name="output")([mean, scale])
    return keras.Model(inputs, outputs, name="mlp", dtype="float32")
