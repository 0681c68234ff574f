"""Networks for tables (embeddings and an MLP), and their space.

The defaults of the search space are a good recipe without a search. Only NumPy is needed until a
model is built.

References
----------
D. Holzmueller, L. Grinsztajn and I. Steinwart, "Better by default: strong pre-tuned MLPs
and boosted trees on tabular data", NeurIPS 2024.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from skuq import backend
from skuq._params import Interval, Options, Settings, StrOptions
from skuq.files._registry import saved_as
from skuq.networks._dense import add_linear
from skuq.networks._space import Categorical, Decisions, Integer, Real, Space

_FLOAT32 = {"dtype": "float32"}

_AUTO = StrOptions({"auto"})


@saved_as("networks.TabularNetwork")
@dataclass(eq=False, repr=False, kw_only=True)
class TabularNetwork(Settings):
    """Settings of the network of tabular ensembles, by the decisions of `TabularSpace`.

    "auto" is the default of `TabularSpace`, the recipe that docs/methods/tabular.md describes. In
    classifiers members of several kinds are mixed, which differ in `embedding` and
    `frequency_scale` and in the decay of their weights; some are logistic regressions.

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
        "n_layers": [Interval(numbers.Integral, 1, 4, closed="both"), _AUTO],
        "width": [Options(numbers.Integral, {32, 64, 128, 256}), _AUTO],
        "activation": [StrOptions({"auto", "silu", "mish", "selu", "relu"})],
        "residual": ["boolean", _AUTO],
        "embedding": [StrOptions({"auto", "periodic", "piecewise-linear", "none"})],
        "embedding_dim": [Options(numbers.Integral, {2, 4, 8}), _AUTO],
        "frequency_scale": [Interval(numbers.Real, 0.02, 10, closed="both"), _AUTO],
        "dropout": [Options(numbers.Real, {0.0, 0.05, 0.1, 0.2}), _AUTO],
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
    category_dim: int | Sequence[int] = 8,
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
    category_dim : int or sequence of int, default=8
        Length of the categories' vectors, for all columns or for each.
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
    x = embed_categories(inputs, categories or {}, category_dim)
    if embedding is not None:
        # The columns of codes are gone now, so that the other columns have new positions.
        numbers = [column for column in range(input_shape[0]) if column not in (categories or {})]
        columns = [numbers.index(column) for column in embedding["columns"]]
        x = _tabular_layers.NumericEmbedding(
            **{**embedding, "columns": columns}, name="embedding", **_FLOAT32
        )(x)
    if hidden_units:
        x = _tabular_layers.FeatureScale(name="scale", **_FLOAT32)(x)
    for i, units in enumerate(hidden_units, start=1):
        entered = x
        x = _tabular_layers.NTKDense(units, name=f"hidden_{i}", **_FLOAT32)(x)
        activate = _tabular_layers.ParametricActivation(
            activation, name=f"activation_{i}", **_FLOAT32
        )
        x = activate(x)
        if dropout is not None:
            x = layers.Dropout(dropout, name=f"dropout_{i}", **_FLOAT32)(x)
        if residual and i > 1 and entered.shape == x.shape:
            x = layers.Add(name=f"residual_{i}", **_FLOAT32)([entered, x])
    zero = not hidden_units or linear is not None
    outputs = _tabular_layers.NTKDense(n_outputs, zero, name="output", **_FLOAT32)(x)
    if linear is not None:
        outputs = add_linear(_tabular_layers.Unclip(**_FLOAT32)(inputs), outputs, linear)
    return backend.keras.Model(inputs, outputs, name="tabular", **_FLOAT32)


def embed_categories(x: Any, categories: Mapping[int, int], dims: int | Sequence[int]) -> Any:
    """Replace columns of codes by vectors, which follow after the other columns."""
    from skuq.networks import _tabular_layers

    columns = sorted(categories)
    if not columns:
        return x
    n_codes = [categories[column] for column in columns]
    return _tabular_layers.CategoryEmbedding(columns, n_codes, dims, name="categories", **_FLOAT32)(
        x
    )


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
            distinct = np.unique(np.quantile(column, np.linspace(0, 1, n_bins + 1)))
        row[: len(distinct)], row[len(distinct) :] = distinct, distinct[-1]
    return edges


_MANY_ROWS = 4_000  # from here on, wider networks are better
_STEPS_OF_FEW, _STEPS_OF_MANY = 6_000, 5_000  # training steps of a run with few, or many, rows
_MORE_STEPS = 0.035  # additional steps for each row, if there are many
_MOST_EPOCHS = 512  # for tables of very few rows

# Changes of the default for numbers, from which searches start. Which one is best differs from
# table to table. The first list is for many rows.
_KNOWN_RECIPES: tuple[dict, ...] = (
    {"loss": "nll"},
    {},
    {"frequency_scale": 3.0},
    {"embedding": "piecewise-linear"},
    {"residual": True, "dropout": 0.1},
    {"embedding": "none"},
)
# For few rows: configurations ordered so that the first ones give the best ensembles on average.
_ONE_LAYER = {"n_layers": 1, "loss": "nll"}
_PORTFOLIO: tuple[dict, ...] = (
    {"loss": "nll"},
    {"loss": "nll", "embedding": "none"},
    {"frequency_scale": 3.0},
    {"loss": "nll", "frequency_scale": 3.0},
    {"n_layers": 1, "activation": "relu", "embedding": "none"}
    | {"learning_rate": 0.035, "weight_decay": 0.1},
    {"n_layers": 2, "width": 32, "activation": "relu", "embedding_dim": 8}
    | {"learning_rate": 0.06, "weight_decay": 0.01, "frequency_scale": 2.0},
    _ONE_LAYER
    | {"learning_rate": 0.022, "weight_decay": 0.12, "frequency_scale": 1.1, "dropout": 0.05},
    _ONE_LAYER | {"learning_rate": 0.05, "weight_decay": 0.07, "dropout": 0.2},
)
# Classes: how columns are embedded, the network without hidden layers, and the lengths and decays
# of the training. Few rows need few epochs, and a decay that leaves no noise learnt; some classes
# can be told apart exactly, with little decay, which is enough for many rows.
_CLASS_EMBEDDINGS: tuple[dict, ...] = (
    {"frequency_scale": 0.3},
    {"embedding": "none"},
    {"frequency_scale": 3.0},
)
_LINEAR: dict = {"n_layers": 0, "embedding": "none", "weight_decay": 0.1}
_FEWEST_ROWS, _FEW_ROWS = 200, 2_000
_TRAININGS_OF_FEWEST: tuple[dict, ...] = (
    {"epochs": 128, "weight_decay": 0.1},
    {"epochs": 64, "weight_decay": 1.0},
)
_TRAININGS: tuple[dict, ...] = (
    {"epochs": 64, "weight_decay": 0.3},
    {"epochs": 256, "weight_decay": 0.02},
)
_LONG, _PATIENCE = 128, 64  # early stopping of trainings that have more epochs
# Further recipes of classes, which searches try.
_OTHER_CLASS_RECIPES: tuple[dict, ...] = ({"residual": True}, {"embedding": "piecewise-linear"})


def numeric_columns(x: np.ndarray, categories: Container[int]) -> list[int]:
    """List the columns to embed as numbers: without codes, and with more than two values."""
    # Strictly between the extremes: a column of two values has no such row.
    between = ((x > x.min(axis=0)) & (x < x.max(axis=0))).any(axis=0)
    return [int(k) for k in np.flatnonzero(between) if k not in categories]


def class_recipes(n_rows: int, has_numbers: bool = True) -> list[dict]:
    """List recipes of classes that are mixed, the default first, as configurations of the space.

    Which ones are best differs between tables; no table of few rows tells it beforehand. The
    first recipes differ in their embeddings, the others in their training.

    Parameters
    ----------
    n_rows : int
        Number of rows, those for validation included.
    has_numbers : bool, default=True
        Whether there are `numeric_columns`. Without them different embeddings are the same network.

    Returns
    -------
    list of dict
        Changes of the defaults of `TabularSpace`. Recipes without hidden layers have 0 `n_layers`.
    """
    if n_rows > _FEW_ROWS:
        if not has_numbers:
            return list(_TRAININGS[::-1])
        return [{**_TRAININGS[-1], **embedding} for embedding in _CLASS_EMBEDDINGS]
    first, *others = _TRAININGS if n_rows > _FEWEST_ROWS else _TRAININGS_OF_FEWEST
    embeddings = _CLASS_EMBEDDINGS[:2] if has_numbers else ({},)
    return [
        *({**first, **embedding} for embedding in embeddings),
        {**first, **_LINEAR},
        *({**training, **embedding} for training in others for embedding in embeddings),
    ]


_MOST_STEPS_PER_EPOCH = 512  # an epoch of a large table trains on a part of its rows


@saved_as("networks.TabularSpace")
class TabularSpace(Settings):
    """Search space of fully connected networks on embedded columns, with their training.

    The parts are those of RealMLP: numbers have periodic embeddings, every feature has a trained
    scale, dense layers use the neural tangent parametrisation, activations are blended with the
    identity by a trained weight, and the learning rate runs through cycles. The default
    configuration is the recipe of `TabularEnsembleRegressor`; docs/methods/tabular.md describes
    how it was found. Decisions and networks depend on the rows, to which `bind` binds the space.

    References
    ----------
    D. Holzmueller, L. Grinsztajn and I. Steinwart, "Better by default: strong pre-tuned MLPs
    and boosted trees on tabular data", NeurIPS 2024.

    Examples
    --------
    >>> import numpy as np
    >>> from skuq.networks import TabularSpace
    >>> space = TabularSpace().bind(np.random.default_rng(0).normal(size=(100, 3)))
    >>> space.decisions().architecture.names
    ['n_layers', 'width', 'activation', 'residual', 'embedding', 'embedding_dim', 'dropout']
    """

    takes_images = False

    def bind(
        self,
        x: np.ndarray,
        categories: Mapping[int, int] | None = None,
        n_rows: int | None = None,
        classes: bool = False,
        losses: tuple[str, ...] = (),
        linear: tuple[np.ndarray, np.ndarray] | None = None,
    ) -> BoundTabularSpace:
        """Bind the space to the rows of a training.

        Parameters
        ----------
        x : ndarray of shape (n_samples, n_features)
            Inputs of the networks, after preprocessing. Columns with more than two values are
            embedded, and bins of piecewise-linear embeddings are quantiles of these rows.
        categories : mapping of int to int, optional
            Columns of codes, and the number of codes of each.
        n_rows : int, optional
            Number of training rows, which determines batch size and number of epochs. By default
            the number of rows of x.
        classes : bool, default=False
            Whether y are classes, for which the default has some dropout.
        losses : tuple of {"crps", "nll"}, default=()
            Choices of a further decision about the loss of a `GaussianMixtureHead`; the first is
            the default.
        linear : tuple of ndarray, optional
            Frozen linear part of all networks, which is added to their outputs.

        Returns
        -------
        SearchSpace
        """
        return BoundTabularSpace(x, categories or {}, n_rows or len(x), classes, losses, linear)


@dataclass(frozen=True, eq=False)
class BoundTabularSpace:
    """A `TabularSpace` for the rows of one training; see `TabularSpace.bind`."""

    x: np.ndarray = field(repr=False)
    categories: Mapping[int, int]
    n_rows: int
    classes: bool
    losses: tuple[str, ...]
    linear: tuple[np.ndarray, np.ndarray] | None = field(repr=False)

    takes_images = False
    #: Number of trials of random search that share an architecture, see `SearchProblem`. A small
    #: table takes two to seven times as long to compile as to train.
    n_trainings = 3

    def decisions(self, input_shape=None, n_outputs=None) -> Decisions:
        """List seven decisions about the network, three about its training, and further ones.

        These are the loss if asked, and for classes the number of epochs.
        """
        width = 64 if self.n_rows < _MANY_ROWS else 128
        training = self._class_recipes[0] if self.classes else {}
        architecture = Space(
            (
                Integer("n_layers", 0 if self.classes else 1, 4, default=3),
                Categorical("width", (32, 64, 128, 256), default=width),
                Categorical("activation", ("silu", "mish", "selu", "relu")),
                Categorical("residual", (False, True)),
                Categorical("embedding", ("periodic", "piecewise-linear", "none")),
                Categorical("embedding_dim", (2, 4, 8), default=4),
                # Without dropout there are no such layers.
                Categorical("dropout", (0.0, 0.05, 0.1, 0.2), default=0.1 if self.classes else 0.0),
            )
        )
        further: tuple = (Categorical("loss", self.losses),) if self.losses else ()
        most_decay = 0.2
        if self.classes:
            most_decay = 3.0
            epochs = training["epochs"]
            further += (Integer("epochs", 32, _MOST_EPOCHS, log=True, default=epochs),)
        hyperparameters = Space(
            (
                Real("learning_rate", 0.02, 0.3, log=True, default=0.1),
                Real(
                    "weight_decay",
                    1e-3,
                    most_decay,
                    log=True,
                    default=training.get("weight_decay", 0.02),
                ),
                Real("frequency_scale", 0.02, 10.0, log=True, default=0.3),
                *further,
            )
        )
        return Decisions(architecture, hyperparameters)

    def known_recipes(self) -> list[dict]:
        """List configurations that are good on many tables, from which a search starts.

        Each entry holds the changes of the default. The first is the default itself, trained by
        the likelihood if the loss is a decision. Those for numbers, and the order of those for
        classes, are learnt from trials on tables of few rows; docs/results/equal_time.md says what
        they are worth.
        """
        if self.classes:
            _, *others = self._class_recipes
            if _FEWEST_ROWS < len(self.x) <= _FEW_ROWS:
                # The one that differs most comes second: two trials are then nearly as good as all.
                others.insert(0, others.pop())
            return [{}, *others, *_OTHER_CLASS_RECIPES]
        recipes: Sequence[dict] = _PORTFOLIO if self.n_rows < _MANY_ROWS else _KNOWN_RECIPES
        if not self.losses:
            recipes = [{k: v for k, v in r.items() if k != "loss"} for r in recipes]
        return [recipe for k, recipe in enumerate(recipes) if recipe not in recipes[:k]]

    def head(self, configuration: Mapping, head):
        """Select the head that a configuration trains with, if the loss is a decision.

        The recipe has the weights of both losses, so that one program trains either.
        """
        return replace(head, weighs_losses=True) if "loss" in configuration else head

    def build(self, configuration: Mapping, input_shape: tuple, n_outputs: int):
        """Build the Keras model, with `n_outputs` linear outputs."""
        kind, columns = configuration["embedding"], self._numeric_columns
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
            # Vectors of about sqrt(number of codes) entries, from 2 to 16, column by column.
            category_dim=[
                int(np.clip(round(self.categories[column] ** 0.5), 2, 16))
                for column in sorted(self.categories)
            ],
            dropout=0.0 if configuration["dropout"] else None,  # the recipe sets the rate
            residual=configuration["residual"],
            linear=self.linear,
        )

    @cached_property
    def _numeric_columns(self):
        return numeric_columns(self.x, self.categories)

    @cached_property
    def _class_recipes(self):
        return class_recipes(len(self.x), bool(self._numeric_columns))

    def recipe(self, configuration: Mapping) -> dict:
        """Make the recipe of RealMLP's training; its batches and epochs depend on the rows."""
        n_rows = self.n_rows
        # Batches of about an eighth of the rows, a power of two from 32 to 256.
        batch_size = int(np.clip(2 ** round(np.log2(n_rows / 8)), 32, 256))
        n_steps = min(math.ceil(n_rows / batch_size), _MOST_STEPS_PER_EPOCH)
        # The number of training steps is given; that of epochs follows from it.
        all_steps: float = _STEPS_OF_FEW
        if n_rows >= _MANY_ROWS:
            all_steps = _STEPS_OF_MANY + _MORE_STEPS * n_rows
        # Factors of the learning rate, by layer.
        epochs = int(np.clip(all_steps // n_steps, 1, _MOST_EPOCHS))
        factors = []
        if configuration["n_layers"]:
            factors = [("scale", 6.0), ("activation_*", 0.1), ("*/bias", 0.1)]
        if configuration["embedding"] != "none" and self._numeric_columns:
            factors.insert(0, ("embedding", 0.1))
        # On few rows the best epochs of single members would be those of chance, and the rows on
        # which they validate would seem too easy to the selection and the calibration.
        of_targets: dict = {"early_stopping_patience": None, "keep": "best-jointly"}
        if "loss" in configuration:
            of_targets["loss_settings"] = (("crps", float(configuration["loss"] == "crps")),)
        if self.classes:  # their mixture is calibrated
            of_targets["keep"] = "best-calibrated"
            epochs = min(epochs, configuration["epochs"])
            if configuration["epochs"] > _LONG:
                of_targets["early_stopping_patience"] = _PATIENCE
        return {
            "optimizer": "adam",
            "beta_2": 0.95,
            "schedule": "coslog4",
            "batch_size": batch_size,
            "epochs": epochs,
            "steps_per_epoch": _MOST_STEPS_PER_EPOCH,
            "reduce_lr_patience": None,
            "weight_decay_schedule": "flat-cosine",
            "dropout_schedule": "flat-cosine",
            "rate_factors_of_layers": tuple(factors),
            "learning_rate": configuration["learning_rate"],
            "weight_decay": configuration["weight_decay"],
            "dropout": (configuration["n_layers"] > 0 and configuration["dropout"]) or None,
            **of_targets,
        }
