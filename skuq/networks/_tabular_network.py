"""Networks for tables (embeddings and an MLP), and their space.

The defaults of the search space are a good recipe without a search. Only NumPy is needed until a
model is built.

References
----------
D. Holzmueller, L. Grinsztajn and I. Steinwart, "Better by default: strong pre-tuned MLPs
and boosted trees on tabular data", NeurIPS 2024.
"""

import numbers
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from skuq import backend
from skuq._params import Interval, Settings, StrOptions, parameters
from skuq.files._registry import saved_as
from skuq.networks._operations import ACTIVATION_NAMES
from skuq.networks._space import Categorical, Integer, Space

_FLOAT32 = {"dtype": "float32"}

# Choices of the decisions about the network.
_MOST_LAYERS = 4
_WIDTHS = (32, 64, 128, 256)
_ACTIVATIONS = ("silu", "mish", "selu", "relu")
_EMBEDDINGS = ("periodic", "piecewise-linear", "none")
_EMBEDDING_DIMS = (2, 4, 8)
_DROPOUTS = (0.0, 0.05, 0.1, 0.2)
_CATEGORY_DIMS = 2, 16  # fewest and most numbers of the vector of a category

_AUTO = StrOptions({"auto"})


@parameters("networks.TabularNetwork")
class TabularNetwork(Settings):
    """Settings of the network of tabular ensembles, named as the decisions of `TabularSpace`.

    "auto" is the default of `TabularSpace`, the recipe that docs/methods/tabular.md describes. In
    classifiers members of several kinds are mixed, which differ in `embedding` and
    `frequency_scale` and in the decay of their weights.

    Parameters
    ----------
    n_layers : int or "auto", default="auto"
        Number of hidden layers, at least one. "auto" is 3.
    width : int or "auto", default="auto"
        Number of units of each hidden layer. "auto" is 64, or 128 from 4,000 rows on.
    activation : str, default="auto"
        Keras' name of the hidden layers' activation. "auto" is "silu".
    residual : bool or "auto", default="auto"
        Whether each hidden layer's input is added to its output. "auto" is False.
    embedding : {"periodic", "piecewise-linear", "none"} or "auto", default="auto"
        Embedding of numbers. "auto" is "periodic", in some members of classifiers "none".
    embedding_dim : int or "auto", default="auto"
        Length of each number's embedding, at least 2. "auto" is 4.
    frequency_scale : float or "auto", default="auto"
        Scale of the first frequencies of periodic embeddings. "auto" is 0.3, in some members of
        classifiers 3.
    dropout : float or "auto", default="auto"
        Share of hidden units dropped in training, falling to 0. "auto" is 0, for classes 0.1.

    Examples
    --------
    >>> from skuq import TabularEnsembleRegressor
    >>> from skuq.networks import TabularNetwork
    >>> TabularEnsembleRegressor(network=TabularNetwork(width=128))
    TabularEnsembleRegressor(network=TabularNetwork(width=128))
    """

    n_layers: Any = "auto"
    width: Any = "auto"
    activation: Any = "auto"
    residual: Any = "auto"
    embedding: Any = "auto"
    embedding_dim: Any = "auto"
    frequency_scale: Any = "auto"
    dropout: Any = "auto"

    _parameter_constraints = {
        "n_layers": [Interval(numbers.Integral, 1, None, closed="left"), _AUTO],
        "width": [Interval(numbers.Integral, 1, None, closed="left"), _AUTO],
        "activation": [StrOptions({"auto", *ACTIVATION_NAMES})],
        "residual": ["boolean", _AUTO],
        "embedding": [StrOptions({"auto", *_EMBEDDINGS})],
        "embedding_dim": [Interval(numbers.Integral, 2, None, closed="left"), _AUTO],
        "frequency_scale": [Interval(numbers.Real, 0, None, closed="neither"), _AUTO],
        "dropout": [Interval(numbers.Real, 0, 1, closed="left"), _AUTO],
    }

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
            if not (isinstance(value, str) and value == "auto")
        }


def build_tabular(
    input_shape: tuple,
    n_outputs: int,
    *,
    hidden_units: Sequence[int],
    activation: str = "silu",
    embedding: Mapping | None = None,
    categories: Mapping[int, int] | None = None,
    dropout: float | None = None,
    residual: bool = False,
    linear: tuple[np.ndarray, np.ndarray] | None = None,
):
    """Build a Keras model for inputs (n_features,), with linear outputs, from parts of RealMLP.

    The layers are, in order: embeddings of categories, embeddings of numbers, a scale for each
    feature, hidden blocks (dense layer in the neural tangent parametrisation, parametric
    activation, dropout, residual connection) and outputs. Their names, as used in
    `rate_factors_of_layers`, are "categories", "embedding", "scale", "hidden_1", "activation_1",
    "dropout_1", "residual_2" .. and "output". Without hidden layers there is no scale either, and
    outputs start at 0: training up to the best epoch is a penalty then.

    Parameters
    ----------
    activation : str, default="silu"
        Keras' name of the activation f in ``x + alpha * (f(x) - x)``.
    embedding : mapping, optional
        Arguments of a `NumericEmbedding`. Its `columns` are positions in the input.
    categories : mapping of int to int, optional
        Position in the input and number of codes of each `CategoryEmbedding` column.
    dropout : float, optional
        Rate of dropout after hidden layers. None adds no dropout layers; 0 adds them for a recipe
        to set their rate.
    residual : bool, default=False
        Add a hidden block's input to its output, where both have the same width.
    linear : tuple of kernel (n_features, n_outputs) and bias (n_outputs,), optional
        Frozen linear part, which is added to the outputs. It reads inputs as they were before the
        smooth clip of `RobustScaling`. The other part of the outputs starts at 0.
    """
    from skuq.networks import _tabular_layers  # its layers load the backend

    layers = backend.keras.layers
    inputs = backend.keras.Input(shape=input_shape, name="input", dtype="float32")
    x, categories = inputs, categories or {}
    if categories:  # vectors follow after the other columns
        columns = sorted(categories)
        n_codes = [categories[column] for column in columns]
        # Vectors of about sqrt(number of codes) entries.
        dims = [int(np.clip(round(n**0.5), *_CATEGORY_DIMS)) for n in n_codes]
        embed = _tabular_layers.CategoryEmbedding
        x = embed(columns, n_codes, dims, name="categories", **_FLOAT32)(x)
    if embedding is not None:
        # The columns of codes are gone now, so that the other columns have new positions.
        numbers = [column for column in range(input_shape[0]) if column not in categories]
        columns = [numbers.index(column) for column in embedding["columns"]]
        x = _tabular_layers.NumericEmbedding(
            **{**embedding, "columns": columns}, name="embedding", **_FLOAT32
        )(x)
    if hidden_units:
        x = _tabular_layers.FeatureScale(name="scale", **_FLOAT32)(x)
    for i, units in enumerate(hidden_units, start=1):
        entered = x
        x = _tabular_layers.NTKDense(units, name=f"hidden_{i}", **_FLOAT32)(x)
        x = _tabular_layers.ParametricActivation(activation, name=f"activation_{i}", **_FLOAT32)(x)
        if dropout is not None:
            x = layers.Dropout(dropout, name=f"dropout_{i}", **_FLOAT32)(x)
        if residual and i > 1 and entered.shape == x.shape:
            x = layers.Add(name=f"residual_{i}", **_FLOAT32)([entered, x])
    zero = not hidden_units or linear is not None
    outputs = _tabular_layers.NTKDense(n_outputs, zero, name="output", **_FLOAT32)(x)
    if linear is not None:
        part = layers.Dense(n_outputs, name="linear", trainable=False, **_FLOAT32)
        linear_outputs = part(_tabular_layers.Unclip(**_FLOAT32)(inputs))
        outputs = layers.Add(**_FLOAT32)([outputs, linear_outputs])
        part.set_weights(linear)
    return backend.keras.Model(inputs, outputs, name="tabular", **_FLOAT32)


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
    >>> from skuq.networks._tabular_network import bin_edges
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
            levels = np.linspace(0, 1, n_bins + 1)
            distinct = np.unique(np.quantile(column, levels).astype("float32"))
        row[: len(distinct)], row[len(distinct) :] = distinct, distinct[-1]
    return edges


def numeric_columns(x: np.ndarray, categories: Container[int]) -> list[int]:
    """List the columns to embed as numbers: without codes, and with more than two values."""
    # Strictly between the extremes: a column of two values has no such row.
    between = ((x > x.min(axis=0)) & (x < x.max(axis=0))).any(axis=0)
    return [int(k) for k in np.flatnonzero(between) if k not in categories]


@saved_as("networks.TabularSpace")
class TabularSpace(Settings):
    """Search space of fully connected networks on embedded columns, with their training.

    The parts are those of RealMLP: numbers have periodic embeddings, every feature has a trained
    scale, dense layers use the neural tangent parametrisation, activations are blended with the
    identity by a trained weight, and the learning rate runs through cycles. The default
    configuration is the recipe of `TabularEnsembleRegressor`; docs/methods/tabular.md describes
    it. Decisions and networks depend on the rows of `fit`.

    References
    ----------
    D. Holzmueller, L. Grinsztajn and I. Steinwart, "Better by default: strong pre-tuned MLPs
    and boosted trees on tabular data", NeurIPS 2024.

    Examples
    --------
    >>> from skuq import AutoDEUQRegressor
    >>> from skuq.networks import TabularSpace
    >>> AutoDEUQRegressor(space=TabularSpace())
    AutoDEUQRegressor(space=TabularSpace())
    """

    takes_images = False


@dataclass(frozen=True, eq=False)
class TabularArchitectures:
    """Architectures of a `TabularSpace`, for the rows of one training.

    Attributes
    ----------
    x : ndarray of shape (n_samples, n_features)
        Inputs of the networks, after preprocessing. Columns with more than two values are embedded,
        and bins of piecewise-linear embeddings are quantiles of these rows.
    categories : mapping of int to int
        Columns of codes, and the number of codes of each.
    linear : tuple of kernel (n_features, n_raw) and bias (n_raw,), or None
        Frozen linear part of all networks, which is added to their outputs.
    """

    x: np.ndarray = field(repr=False)
    categories: Mapping[int, int]
    linear: tuple[np.ndarray, np.ndarray] | None = field(repr=False)

    def architecture(self, fewest_layers: int, defaults: Mapping[str, Any]) -> Space:
        """List the seven decisions about the network, with these defaults of four of them."""
        return Space(
            (
                Integer("n_layers", fewest_layers, _MOST_LAYERS, default=defaults["n_layers"]),
                Categorical("width", _WIDTHS, default=defaults["width"]),
                Categorical("activation", _ACTIVATIONS),
                Categorical("residual", (False, True)),
                Categorical("embedding", _EMBEDDINGS),
                Categorical("embedding_dim", _EMBEDDING_DIMS, default=defaults["embedding_dim"]),
                # Without dropout there are no such layers.
                Categorical("dropout", _DROPOUTS, default=defaults["dropout"]),
            )
        )

    def build(self, configuration: Mapping, input_shape: tuple, n_outputs: int):
        """Build the Keras model, with `n_outputs` linear outputs."""
        kind, columns = configuration["embedding"], self.numeric_columns
        embedding = None
        if kind != "none" and columns:
            embedding = {"kind": kind, "dim": configuration["embedding_dim"], "columns": columns}
            if kind == "periodic":
                embedding["scale"] = configuration["frequency_scale"]
            else:
                embedding["edges"] = bin_edges(self.x[:, columns])
        return build_tabular(
            input_shape,
            n_outputs,
            hidden_units=[int(configuration["width"])] * int(configuration["n_layers"]),
            activation=configuration["activation"],
            embedding=embedding,
            categories=self.categories,
            dropout=0.0 if configuration["dropout"] else None,  # the recipe sets the rate
            residual=configuration["residual"],
            linear=self.linear,
        )

    @cached_property
    def numeric_columns(self):
        """Columns to embed as numbers."""
        return numeric_columns(self.x, self.categories)
