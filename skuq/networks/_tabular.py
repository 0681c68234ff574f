"""Networks for tables: embeddings before an MLP, whose hidden layers may hold several copies.

NumPy only until a model is built.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Integral

import numpy as np

__all__ = ["bin_edges", "build_tabular"]

_NORMALIZATIONS = {"batch": "BatchNormalization", "layer": "LayerNormalization"}


def build_tabular(
    input_shape: tuple,
    n_outputs: int,
    *,
    hidden_units: Sequence[int] = (256, 256, 256),
    activation: str = "relu",
    parametric_activation: bool = False,
    embedding: str | Mapping | None = None,
    categories: Mapping[int, int] | None = None,
    category_dim: int | Sequence[int] = 8,
    feature_scale: bool = False,
    dropout: float | None = None,
    residual: bool = False,
    normalization: str | None = None,
    parametrization: str = "standard",
    zero_output: bool = False,
    n_copies: int = 1,
    shared: bool = True,
):
    """A Keras model for tables, with linear outputs, out of parts of RealMLP and TabM.

    In order: vectors for categories, embeddings of numbers, a scale for each feature, hidden
    layers (product, normalisation, activation, dropout, sum with what came in), outputs.

    Layers are called "categories", "embedding", "scale", "repeat", "hidden_1" ..,
    "normalization_1" .., "activation_1" .., "dropout_1" .., "residual_2" .. and "output", which is
    what a recipe's `rate_factors_of_layers` are for.

    Parameters
    ----------
    input_shape : tuple
        ``(n_features,)``.
    n_outputs : int
        Raw numbers a head asks for: of all copies together where there are several.
    hidden_units : sequence of int, default=(256, 256, 256)
        Of one copy.
    activation : str, default="relu"
    parametric_activation : bool, default=False
        RealMLP's `ParametricActivation`.
    embedding : str or mapping, optional
        The kind of a `NumericEmbedding`, or its arguments; `columns` are positions in the
        input, by default all that are not of `categories`.
    categories : mapping of int to int, optional
        Position of each column of codes in the input, and how many codes it has: see
        `CategoryEmbedding`.
    category_dim : int or sequence of int, default=8
        Length of the categories' vectors, of all or of each column.
    feature_scale : bool, default=False
    dropout : float, optional
        Rate after each hidden layer; None leaves the layers out, 0 keeps them in place for a
        recipe to set their rate.
    residual : bool, default=False
        Hidden layers add what came in, where it has as many features.
    normalization : {"batch", "layer"}, optional
        Between product and activation. Normalising a layer would mix copies.
    parametrization : {"standard", "ntk"}, default="standard"
        Of dense layers: Keras' `Dense`, or `NTKDense`.
    zero_output : bool, default=False
        Outputs are 0 at first, whatever the input.
    n_copies : int, default=1
        More than one make a network of so many (TabM), whose outputs stand copy after copy, as
        `PackedHead` takes them.
    shared : bool, default=True
        Whether the copies' hidden layers share their kernels.

    Raises
    ------
    ValueError
        If settings do not go together.

    References
    ----------
    D. Holzmueller, L. Grinsztajn and I. Steinwart, "Better by default: strong pre-tuned MLPs
    and boosted trees on tabular data", NeurIPS 2024; Y. Gorishniy, A. Kotelnikov and A. Babenko,
    "TabM: advancing tabular deep learning with parameter-efficient ensembling", ICLR 2025.
    """
    _check(input_shape, n_outputs, normalization, parametrization, n_copies)
    from skuq.backend import keras
    from skuq.networks import _tabular_layers as own

    layers, named = keras.layers, {"dtype": "float32"}
    (n_features,) = input_shape
    inputs = x = keras.Input(shape=input_shape, name="input", dtype="float32")
    code_columns = sorted(categories or {})
    if code_columns:
        if not 0 <= code_columns[0] <= code_columns[-1] < n_features:
            raise ValueError(
                f"`categories` must be of columns 0 .. {n_features - 1}. Got {code_columns}."
            )
        n_codes = [categories[column] for column in code_columns]
        x = own.CategoryEmbedding(code_columns, n_codes, category_dim, name="categories", **named)(
            x
        )
    if embedding is not None:
        settings = {"kind": embedding} if isinstance(embedding, str) else dict(embedding)
        columns = _embedded(settings.pop("columns", None), code_columns, n_features)
        if columns:
            x = own.NumericEmbedding(columns=columns, name="embedding", **settings, **named)(x)
    if feature_scale:
        x = own.FeatureScale(name="scale", **named)(x)
    if n_copies > 1:
        x = own.Repeat(n_copies, name="repeat", **named)(x)

    def dense(units, name, first=False, last=False):
        zero = last and zero_output
        use_bias = last or normalization != "batch"  # which has one, and takes off any other
        if n_copies > 1:
            signs = "normal" if embedding is not None else "random-signs"
            return own.EnsembleDense(
                units // n_copies if last else units,
                n_copies,
                shared=shared and not last,
                input_initializer=signs if first else "ones",
                use_bias=use_bias,
                ntk=parametrization == "ntk",
                zero=zero,
                name=name,
                **named,
            )
        zeros = {"kernel_initializer": "zeros", "bias_initializer": "zeros"} if zero else {}
        kind = own.NTKDense if parametrization == "ntk" else layers.Dense
        return kind(units, use_bias=use_bias, name=name, **zeros, **named)

    for i, units in enumerate(hidden_units, start=1):
        entered = x
        x = dense(units, f"hidden_{i}", first=i == 1)(x)
        if normalization is not None:
            kind = getattr(layers, _NORMALIZATIONS[normalization])
            x = kind(name=f"normalization_{i}", **named)(x)
        if parametric_activation:
            x = own.ParametricActivation(activation, name=f"activation_{i}", **named)(x)
        else:
            x = layers.Activation(activation, name=f"activation_{i}", **named)(x)
        if dropout is not None:
            x = layers.Dropout(dropout, name=f"dropout_{i}", **named)(x)
        if residual and i > 1 and entered.shape == x.shape:
            x = layers.Add(name=f"residual_{i}", **named)([entered, x])
    outputs = dense(n_outputs, "output", first=not hidden_units, last=True)(x)
    return keras.Model(inputs, outputs, name="tabular", **named)


def _check(input_shape, n_outputs, normalization, parametrization, n_copies):
    if len(input_shape) != 1:
        raise ValueError(f"`input_shape` must be (n_features,). Got {input_shape!r}.")
    if normalization not in (None, *_NORMALIZATIONS):
        raise ValueError(
            f"`normalization` must be None or one of {tuple(_NORMALIZATIONS)}. "
            f"Got {normalization!r}."
        )
    if parametrization not in ("standard", "ntk"):
        raise ValueError(f'`parametrization` must be "standard" or "ntk". Got {parametrization!r}.')
    if not isinstance(n_copies, Integral) or n_copies < 1:
        raise ValueError(f"`n_copies` must be an integer >= 1. Got {n_copies!r}.")
    if n_outputs % n_copies:
        raise ValueError(
            f"`n_outputs` must be a multiple of `n_copies`. Got {n_outputs} and {n_copies}."
        )
    if normalization == "layer" and n_copies > 1:
        raise ValueError('`normalization="layer"` would mix the copies: use "batch" or None.')


def _embedded(columns, code_columns, n_features):
    """Positions of embedded columns where the codes' columns are gone."""
    numbers = [column for column in range(n_features) if column not in set(code_columns)]
    position = {column: k for k, column in enumerate(numbers)}
    columns = numbers if columns is None else list(columns)
    if not set(columns) <= set(numbers):
        raise ValueError(
            "`columns` of the embedding must be numeric columns of the input. Got "
            f"{columns} of {n_features} columns, with codes in {code_columns}."
        )
    return [position[column] for column in columns]


def bin_edges(x, n_bins: int = 32) -> np.ndarray:
    """Edges of bins with equally many rows, for a piecewise linear `NumericEmbedding`.

    Parameters
    ----------
    x : ndarray of shape (n_samples, n_features)
        Inputs as the network sees them.
    n_bins : int, default=32
        At most. A feature of few distinct values gets fewer, of one value none.

    Returns
    -------
    ndarray of shape (n_features, n_bins + 1)
        Increasing; the last edge of a feature with fewer bins repeats.

    References
    ----------
    Gorishniy, Rubachev and Babenko, NeurIPS 2022, section 3.2.1.
    """
    x = np.asarray(x)
    edges = np.empty((x.shape[1], n_bins + 1), dtype="float32")
    for own, column in zip(edges, x.T.astype("float32")):
        distinct = np.unique(column)
        if len(distinct) > n_bins + 1:
            distinct = np.unique(np.quantile(column, np.linspace(0, 1, n_bins + 1)))
        own[: len(distinct)], own[len(distinct) :] = distinct, distinct[-1]
    return edges
