"""Search space of modern networks for tables; its defaults are a good recipe without a search."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from skuq._registry import saved_as
from skuq._space import Categorical, Integer, Real, Space
from skuq.networks._search_space import Decisions
from skuq.networks._tabular import bin_edges, build_tabular

_MANY_ROWS = 4_000  # from here on, wider networks are better
_STEPS_OF_FEW, _STEPS_OF_MANY = 6_000, 5_000  # training steps of a run with few, or many, rows
_MORE_STEPS = 0.035  # additional steps for each row, if there are many
_MOST_EPOCHS = 512  # for tables of very few rows

# Changes of the default. Which one is best differs from table to table.
_KNOWN_RECIPES: tuple[dict, ...] = (
    {},
    {"frequency_scale": 3.0},
    {"embedding": "piecewise-linear"},
    {"residual": True, "dropout": 0.1},
    {"loss": "nll"},
    {"embedding": "none"},
)
_KNOWN_CLASS_RECIPES: tuple[dict, ...] = (
    {},
    {"embedding": "none"},
    {"frequency_scale": 3.0},
    {"residual": True},
    {"embedding": "piecewise-linear"},
)
_MOST_STEPS_PER_EPOCH = 512  # an epoch of a large table trains on a part of its rows


@saved_as("networks.TabularSpace")
@dataclass(frozen=True, eq=False)
class TabularSpace:
    """Search space of fully connected networks on embedded columns, with their training.

    The parts are those of RealMLP: numbers have periodic embeddings, every feature has a trained
    scale, dense layers use the neural tangent parametrisation, activations are blended with the
    identity by a trained weight, and the learning rate runs through cycles. The default
    configuration is the recipe of `TabularEnsembleRegressor` and `TabularEnsembleClassifier`;
    docs/methods/tabular.md describes how it was found.

    Parameters
    ----------
    x : ndarray of shape (n_samples, n_features)
        Inputs of the networks, after preprocessing. Columns with more than two values are
        embedded, and bins of piecewise-linear embeddings are quantiles of these rows.
    categories : mapping of int to int, default={}
        Columns of codes, and the number of codes of each.
    n_rows : int, optional
        Number of training rows, which determines batch size and number of epochs. By default the
        number of rows of x.
    classes : bool, default=False
        Whether y are classes, for which the default has some dropout.
    losses : tuple of {"crps", "nll"}, default=()
        Choices of a further decision about the loss of a `GaussianHead`; the first is the default.

    References
    ----------
    D. Holzmueller, L. Grinsztajn and I. Steinwart, "Better by default: strong pre-tuned MLPs
    and boosted trees on tabular data", NeurIPS 2024.

    Examples
    --------
    >>> import numpy as np
    >>> from skuq.networks import TabularSpace
    >>> decisions = TabularSpace(np.random.default_rng(0).normal(size=(100, 3))).decisions()
    >>> decisions.architecture.names
    ['n_layers', 'width', 'activation', 'residual', 'embedding', 'embedding_dim']
    """

    x: np.ndarray = field(repr=False)
    categories: Mapping[int, int] = field(default_factory=dict)
    n_rows: int | None = None
    classes: bool = False
    losses: tuple[str, ...] = ()

    takes_images = False

    def decisions(self, input_shape=None, n_outputs=None) -> Decisions:
        """List six decisions about the network, four about its training, and the loss if asked."""
        width = 64 if self._n_rows < _MANY_ROWS else 128
        architecture = Space(
            (
                Integer("n_layers", 1, 4, default=3),
                Categorical("width", (32, 64, 128, 256), default=width),
                Categorical("activation", ("silu", "mish", "selu", "relu")),
                Categorical("residual", (False, True)),
                Categorical("embedding", ("periodic", "piecewise-linear", "none")),
                Categorical("embedding_dim", (2, 4, 8), default=4),
            )
        )
        loss = (Categorical("loss", self.losses),) if self.losses else ()
        hyperparameters = Space(
            (
                Real("learning_rate", 0.02, 0.3, log=True, default=0.1),
                Real("weight_decay", 1e-3, 0.2, log=True, default=0.02),
                Real("frequency_scale", 0.02, 10.0, log=True, default=0.3),
                Categorical("dropout", (0.0, 0.05, 0.1, 0.2), default=0.1 if self.classes else 0.0),
                *loss,
            )
        )
        return Decisions(architecture, hyperparameters)

    def known_recipes(self) -> list[dict]:
        """List configurations that are good on many tables, from which a search starts.

        Each entry holds the changes of the default; the first is empty, the default itself.
        """
        changes = _KNOWN_CLASS_RECIPES if self.classes else _KNOWN_RECIPES
        return [change for change in changes if self.losses or "loss" not in change]

    def head(self, configuration: Mapping, head):
        """Select the head that a configuration trains with, if the loss is a decision."""
        if "loss" not in configuration:
            return head
        return replace(head, score="crps" if configuration["loss"] == "crps" else "log")

    def build(
        self, configuration: Mapping, input_shape: tuple, n_outputs: int, *, n_copies: int = 1
    ):
        """Build the Keras model, with `n_outputs` linear outputs for all copies together."""
        return build_tabular(
            input_shape,
            n_outputs,
            hidden_units=[int(configuration["width"])] * int(configuration["n_layers"]),
            activation=configuration["activation"],
            parametric_activation=True,
            embedding=self._embedding(configuration),
            categories=self.categories,
            # Vectors of about sqrt(number of codes) entries, from 2 to 16.
            category_dim=[int(np.clip(round(n**0.5), 2, 16)) for n in self._cardinalities()],
            feature_scale=True,
            dropout=0.0 if configuration["dropout"] else None,  # the recipe sets the rate
            residual=configuration["residual"],
            parametrization="ntk",
            n_copies=n_copies,
        )

    def _cardinalities(self):
        """List the numbers of codes, in the order of the columns."""
        return [self.categories[column] for column in sorted(self.categories)]

    @property
    def _n_rows(self):
        return self.n_rows or len(self.x)

    @cached_property
    def _numeric_columns(self):
        """Columns with more than two values: an embedding of others would add no information."""
        between = ((self.x > self.x.min(axis=0)) & (self.x < self.x.max(axis=0))).any(axis=0)
        return [int(k) for k in np.flatnonzero(between) if k not in self.categories]

    def _embedding(self, configuration):
        """Make the settings of the configuration's `NumericEmbedding`, or None."""
        kind, columns = configuration["embedding"], self._numeric_columns
        if kind == "none" or not columns:
            return None
        settings = {"kind": kind, "dim": configuration["embedding_dim"], "columns": columns}
        if kind == "periodic":
            return {**settings, "scale": configuration["frequency_scale"]}
        return {**settings, "edges": bin_edges(self.x[:, columns])}

    def recipe(self, configuration: Mapping) -> dict:
        """Make the recipe of RealMLP's training; its batches and epochs depend on the rows."""
        n_rows = self._n_rows
        # Batches of about an eighth of the rows, a power of two from 32 to 256.
        batch_size = int(np.clip(2 ** round(np.log2(n_rows / 8)), 32, 256))
        n_steps = min(math.ceil(n_rows / batch_size), _MOST_STEPS_PER_EPOCH)
        # The number of training steps is given; that of epochs follows from it.
        all_steps = _STEPS_OF_FEW
        if n_rows >= _MANY_ROWS:
            all_steps = _STEPS_OF_MANY + _MORE_STEPS * n_rows
        # Factors of the learning rate, by layer.
        factors = [("scale", 6.0), ("activation_*", 0.1), ("*/bias", 0.1)]
        if configuration["embedding"] != "none" and self._numeric_columns:
            factors.insert(0, ("embedding", 0.1))
        return {
            "optimizer": "adam",
            "beta_2": 0.95,
            "schedule": "coslog4",
            "batch_size": batch_size,
            "epochs": int(np.clip(all_steps // n_steps, 1, _MOST_EPOCHS)),
            "steps_per_epoch": _MOST_STEPS_PER_EPOCH,
            "reduce_lr_patience": None,
            "early_stopping_patience": None,
            "weight_decay_schedule": "flat-cosine",
            "dropout_schedule": "flat-cosine",
            "rate_factors_of_layers": tuple(factors),
            "learning_rate": configuration["learning_rate"],
            "weight_decay": configuration["weight_decay"],
            "dropout": configuration["dropout"] or None,
        }
