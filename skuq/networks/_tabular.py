"""Build networks for tables: embeddings and an MLP, which can hold several copies of a network.

Only NumPy is needed until a model is built.

References
----------
D. Holzmueller, L. Grinsztajn and I. Steinwart, "Better by default: strong pre-tuned MLPs
and boosted trees on tabular data", NeurIPS 2024; Y. Gorishniy, A. Kotelnikov and A. Babenko,
"TabM: advancing tabular deep learning with parameter-efficient ensembling", ICLR 2025.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Integral, Real
from typing import Any

import numpy as np

from skuq import backend, networks
from skuq._checks import check_count
from skuq._params import Interval, Options, Settings, StrOptions
from skuq._registry import saved_as

_FLOAT32 = {"dtype": "float32"}
_NORMALIZATIONS = {"batch": "BatchNormalization", "layer": "LayerNormalization"}

_AUTO = StrOptions({"auto"})


@saved_as("networks.TabularNetwork")
class TabularNetwork(Settings):
    """Settings of the network of tabular ensembles, by the decisions of `TabularSpace`.

    "auto" is the default of `TabularSpace`, the recipe that docs/methods/tabular.md describes. In
    classifiers it is one of three kinds of network for `embedding` and `frequency_scale`: members
    of several kinds are mixed.

    Parameters
    ----------
    n_layers : int or "auto", default="auto"
        Number of hidden layers, 1 to 4. "auto" is 3.
    width : {32, 64, 128, 256} or "auto", default="auto"
        Number of units of each hidden layer. "auto" is 64, or 128 from 4,000 rows on.
    activation : {"silu", "mish", "selu", "relu"} or "auto", default="auto"
        Activation of the hidden layers. "auto" is "silu".
    residual : bool or "auto", default="auto"
        Whether each hidden layer's input is added to its output. "auto" is False.
    embedding : {"periodic", "piecewise-linear", "none"} or "auto", default="auto"
        Embedding of numbers. "auto" is "periodic", in some members of classifiers "none".
    embedding_dim : {2, 4, 8} or "auto", default="auto"
        Length of each number's embedding. "auto" is 4.
    frequency_scale : float or "auto", default="auto"
        Scale of the first frequencies of periodic embeddings, 0.02 to 10. "auto" is 0.3, in some
        members of classifiers 3.
    dropout : {0.0, 0.05, 0.1, 0.2} or "auto", default="auto"
        Share of hidden units dropped in training, falling to 0. "auto" is 0, for classes 0.1.
    n_copies : int, default=1
        Number of copies of each network that share all but a few of their weights (TabM,
        BatchEnsemble). There are ``n_members * n_copies`` members in all.

    Examples
    --------
    >>> from skuq import TabularEnsembleRegressor
    >>> from skuq.networks import TabularNetwork
    >>> TabularEnsembleRegressor(network=TabularNetwork(width=128, n_copies=4))
    TabularEnsembleRegressor(network=TabularNetwork(n_copies=4, width=128))
    """

    _parameter_constraints: dict = {
        "n_layers": [Interval(Integral, 1, 4, closed="both"), _AUTO],
        "width": [Options(Integral, {32, 64, 128, 256}), _AUTO],
        "activation": [StrOptions({"auto", "silu", "mish", "selu", "relu"})],
        "residual": ["boolean", _AUTO],
        "embedding": [StrOptions({"auto", "periodic", "piecewise-linear", "none"})],
        "embedding_dim": [Options(Integral, {2, 4, 8}), _AUTO],
        "frequency_scale": [Interval(Real, 0.02, 10, closed="both"), _AUTO],
        "dropout": [Options(Real, {0.0, 0.05, 0.1, 0.2}), _AUTO],
        "n_copies": [Interval(Integral, 1, None, closed="left")],
    }

    def __init__(
        self,
        *,
        n_layers="auto",
        width="auto",
        activation="auto",
        residual="auto",
        embedding="auto",
        embedding_dim="auto",
        frequency_scale="auto",
        dropout="auto",
        n_copies=1,
    ):
        self.n_layers = n_layers
        self.width = width
        self.activation = activation
        self.residual = residual
        self.embedding = embedding
        self.embedding_dim = embedding_dim
        self.frequency_scale = frequency_scale
        self.dropout = dropout
        self.n_copies = n_copies

    def validate(self) -> None:
        """Raise ValueError if a parameter is invalid, or has no effect beside another one."""
        super().validate()
        # A setting of embeddings that there are none of would change nothing.
        given, kind = self.decisions(), self.embedding
        for name, kinds in (
            ("frequency_scale", ("auto", "periodic")),
            ("embedding_dim", ("auto", "periodic", "piecewise-linear")),
        ):
            if name in given and kind not in kinds:
                raise ValueError(
                    f"`{name}` has no effect with embedding={kind!r}. Got {given[name]!r}: leave "
                    f"it out, or use another `embedding`: {kinds}."
                )

    def decisions(self) -> dict[str, Any]:
        """Return the decisions that are not "auto", by name."""
        return {
            name: value
            for name, value in self.get_params(deep=False).items()
            if name != "n_copies" and not (isinstance(value, str) and value == "auto")
        }


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
    """Build a Keras model for tables, with linear outputs, from parts of RealMLP and TabM.

    The layers are, in order: embeddings of categories, embeddings of numbers, a scale for each
    feature, hidden blocks (dense layer, normalisation, activation, dropout, residual connection)
    and outputs. Their names, as used in `rate_factors_of_layers`, are "categories", "embedding",
    "scale", "repeat", "hidden_1", "normalization_1", "activation_1", "dropout_1", "residual_2" ..
    and "output".

    Parameters
    ----------
    input_shape : tuple (n_features,)
        Shape of one row.
    n_outputs : int
        Number of raw outputs, of all copies together.
    hidden_units : sequence of int, default=(256, 256, 256)
        Widths of the hidden layers of one copy.
    activation : str, default="relu"
        Keras' name of the activation.
    parametric_activation : bool, default=False
        Use RealMLP's `ParametricActivation`.
    embedding : str or mapping, optional
        Kind of a `NumericEmbedding`, or its arguments. Its `columns` are positions in the input,
        by default all that are not in `categories`. None adds no such layer.
    categories : mapping of int to int, optional
        Position in the input and number of codes of each `CategoryEmbedding` column.
    category_dim : int or sequence of int, default=8
        Length of the categories' vectors, for all columns or for each.
    feature_scale : bool, default=False
        Add a `FeatureScale` layer.
    dropout : float, optional
        Rate of dropout after hidden layers. None adds no dropout layers; 0 adds them for a recipe
        to set their rate.
    residual : bool, default=False
        Add a hidden block's input to its output, where both have the same width.
    normalization : {"batch", "layer"}, optional
        Normalisation before the activation. "layer" needs a single copy, since it would mix
        copies.
    parametrization : {"standard", "ntk"}, default="standard"
        Use Keras' `Dense` or `NTKDense` for dense layers.
    zero_output : bool, default=False
        Initialise the output layer to 0.
    n_copies : int, default=1
        Number of members in one network (TabM). Their outputs are concatenated, see `PackedHead`.
    shared : bool, default=True
        Whether the copies' hidden layers share their kernels.

    Raises
    ------
    ValueError
        If settings do not agree.

    References
    ----------
    Holzmueller et al., "Better by default", NeurIPS 2024. Gorishniy et al., "TabM", ICLR 2025.

    Examples
    --------
    >>> from skuq.networks import build_tabular
    >>> model = build_tabular((3,), 2, hidden_units=(8,), embedding="periodic", feature_scale=True)
    >>> [layer.name for layer in model.layers]
    ['input', 'embedding', 'scale', 'hidden_1', 'activation_1', 'output']
    """
    _check_settings(input_shape, n_outputs, normalization, parametrization, n_copies)
    dense = _Dense(n_copies, shared, parametrization == "ntk", embedding is not None)
    blocks = _Blocks(
        dense,
        activation,
        parametric_activation=parametric_activation,
        dropout=dropout,
        residual=residual,
        normalization=normalization,
    )
    inputs = backend.keras.Input(shape=input_shape, name="input", dtype="float32")
    x = _encode(inputs, embedding, categories or {}, category_dim, feature_scale)
    x = dense.repeat(x)
    for i, units in enumerate(hidden_units, start=1):
        x = blocks.apply(x, units, i)
    outputs = dense.output(x, n_outputs, first=not hidden_units, zero=zero_output)
    return backend.keras.Model(inputs, outputs, name="tabular", **_FLOAT32)


def _encode(x, embedding, categories, category_dim, feature_scale):
    """Replace codes by vectors and numbers by their embeddings, then scale each feature."""
    n_features = x.shape[-1]
    code_columns = sorted(categories)
    if code_columns:
        if not 0 <= code_columns[0] <= code_columns[-1] < n_features:
            raise ValueError(
                f"`categories` must have columns in 0 .. {n_features - 1}. Got {code_columns}."
            )
        n_codes = [categories[column] for column in code_columns]
        x = networks.CategoryEmbedding(
            code_columns, n_codes, category_dim, name="categories", **_FLOAT32
        )(x)
    # The columns of codes are gone now, so that the other columns have new positions.
    if embedding is not None:
        settings = {"kind": embedding} if isinstance(embedding, str) else dict(embedding)
        columns = _embedded_positions(settings.pop("columns", None), code_columns, n_features)
        if columns:
            x = networks.NumericEmbedding(
                columns=columns, name="embedding", **settings, **_FLOAT32
            )(x)
    return networks.FeatureScale(name="scale", **_FLOAT32)(x) if feature_scale else x


@dataclass(frozen=True)
class _Dense:
    """Factory of dense layers, for one network or for several copies of it."""

    n_copies: int
    shared: bool
    ntk: bool
    embedded: bool  # whether an embedding precedes: it decides the copies' first factors

    def repeat(self, x):
        """Repeat the features for each copy, if there are several copies."""
        if self.n_copies == 1:
            return x
        return networks.Repeat(self.n_copies, name="repeat", **_FLOAT32)(x)

    def hidden(self, x, units, i, use_bias):
        """Apply hidden layer `i`, counted from 1."""
        return self._make(units, f"hidden_{i}", first=i == 1, use_bias=use_bias)(x)

    def output(self, x, n_outputs, *, first, zero):
        """Apply the output layer, which copies do not share; `zero` initialises it to 0."""
        separate = replace(self, shared=False)
        return separate._make(n_outputs // self.n_copies, "output", first=first, zero=zero)(x)

    def _make(self, units, name, *, first, use_bias=True, zero=False):
        """Make a dense layer; in the first one, copies get different factors of their inputs."""
        if self.n_copies > 1:
            signs = "normal" if self.embedded else "random-signs"
            return networks.EnsembleDense(
                units,
                self.n_copies,
                shared=self.shared,
                input_initializer=signs if first else "ones",
                use_bias=use_bias,
                ntk=self.ntk,
                zero=zero,
                name=name,
                **_FLOAT32,
            )
        zeros = {"kernel_initializer": "zeros", "bias_initializer": "zeros"} if zero else {}
        kind = networks.NTKDense if self.ntk else backend.keras.layers.Dense
        return kind(units, use_bias=use_bias, name=name, **zeros, **_FLOAT32)


@dataclass(frozen=True)
class _Blocks:
    """Factory of hidden blocks, with fields as in `build_tabular`."""

    dense: _Dense
    activation: str
    parametric_activation: bool
    dropout: float | None
    residual: bool
    normalization: str | None

    def apply(self, x, units, i):
        """Apply block `i`, counted from 1."""
        layers, entered = backend.keras.layers, x
        # Batch normalisation has a bias of its own, and subtracts any other.
        x = self.dense.hidden(x, units, i, use_bias=self.normalization != "batch")
        if self.normalization is not None:
            normalize = getattr(layers, _NORMALIZATIONS[self.normalization])
            x = normalize(name=f"normalization_{i}", **_FLOAT32)(x)
        activate = (
            networks.ParametricActivation if self.parametric_activation else layers.Activation
        )
        x = activate(self.activation, name=f"activation_{i}", **_FLOAT32)(x)
        if self.dropout is not None:
            x = layers.Dropout(self.dropout, name=f"dropout_{i}", **_FLOAT32)(x)
        if self.residual and i > 1 and entered.shape == x.shape:
            x = layers.Add(name=f"residual_{i}", **_FLOAT32)([entered, x])
        return x


def _check_settings(input_shape, n_outputs, normalization, parametrization, n_copies):
    """Raise ValueError if settings of `build_tabular` are invalid or do not agree."""
    if len(input_shape) != 1:
        raise ValueError(f"`input_shape` must be (n_features,). Got {input_shape!r}.")
    if normalization not in (None, *_NORMALIZATIONS):
        raise ValueError(
            f"`normalization` must be None or one of {tuple(_NORMALIZATIONS)}. "
            f"Got {normalization!r}."
        )
    if parametrization not in ("standard", "ntk"):
        raise ValueError(f'`parametrization` must be "standard" or "ntk". Got {parametrization!r}.')
    check_count("n_copies", n_copies)
    if n_outputs % n_copies:
        raise ValueError(
            f"`n_outputs` must be a multiple of `n_copies`. Got n_outputs={n_outputs} and "
            f"n_copies={n_copies}."
        )
    if normalization == "layer" and n_copies > 1:
        raise ValueError(
            '`normalization="layer"` would mix the copies of a network with '
            f'n_copies={n_copies}. Use "batch" or None.'
        )


def _embedded_positions(columns, code_columns, n_features):
    """Convert columns of the input to positions after the removal of the codes' columns."""
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
    """Compute edges of bins with equally many rows, for a piecewise linear `NumericEmbedding`.

    Parameters
    ----------
    x : ndarray of shape (n_samples, n_features)
        Inputs of the network, after preprocessing.
    n_bins : int, default=32
        Maximum number of bins. A feature with few distinct values gets fewer bins, and a constant
        feature none.

    Returns
    -------
    ndarray of shape (n_features, n_bins + 1)
        Increasing edges. A feature with fewer bins repeats its last edge.

    References
    ----------
    Gorishniy, Rubachev and Babenko, NeurIPS 2022, section 3.2.1.

    Examples
    --------
    >>> from skuq.networks import bin_edges
    >>> bin_edges([[0.0], [1.0], [2.0], [3.0], [9.0]], n_bins=2)
    array([[0., 2., 9.]], dtype=float32)
    """
    x = np.asarray(x)
    edges = np.empty((x.shape[1], n_bins + 1), dtype="float32")
    for row, column in zip(edges, x.T.astype("float32")):
        # With few distinct values each of them is an edge.
        distinct = np.unique(column)
        if len(distinct) > n_bins + 1:
            # Quantiles coincide at frequent values, which leaves fewer bins.
            distinct = np.unique(np.quantile(column, np.linspace(0, 1, n_bins + 1)))
        row[: len(distinct)], row[len(distinct) :] = distinct, distinct[-1]
    return edges
