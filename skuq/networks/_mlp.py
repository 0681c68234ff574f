"""Build the plain network of deep ensembles: hidden layers with one activation."""

from __future__ import annotations

from collections.abc import Sequence


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
