"""Search spaces as sets of named decisions that can be sampled, mutated and encoded.

A configuration is a plain dictionary ``{decision name: value}`` of JSON types, so that it can be
stored, compared and sent to a worker. This module needs only NumPy: proposing a configuration
needs no Keras, but building it does.
"""

import math
import numbers
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from skuq._params import HasMethods, Settings, parameters
from skuq.files._registry import saved_as, saved_record

# Categories with up to this many choices are one-hot encoded for a forest. For larger ones the
# code is the position of the choice.
_MAX_ONE_HOT = 12


@saved_record("networks.Categorical", eq=True)
class Categorical:
    """A decision for one of several JSON values, uniform.

    Examples
    --------
    >>> from skuq.networks import Categorical
    >>> Categorical("activation", ("relu", "tanh")).default
    'relu'
    """

    name: str
    choices: tuple
    default: Any = None

    def __post_init__(self):
        # Without repeats, which would be drawn more often than others.
        object.__setattr__(self, "choices", tuple(dict.fromkeys(self.choices)))
        if not self.choices:
            raise ValueError(f"Decision {self.name!r} has no choices.")
        if self.default is None:
            object.__setattr__(self, "default", self.choices[0])
        _check_default(self, self.default in self.choices)

    size = property(lambda self: len(self.choices))

    def sample(self, rng, n: int) -> list:
        return [self.choices[i] for i in rng.integers(len(self.choices), size=n)]

    def other(self, value):
        """Get a value that differs from this one."""
        return next(choice for choice in self.choices if choice != value)

    def contains(self, value) -> bool:
        return value in self.choices

    def encode(self, values) -> np.ndarray:
        """Encode values as one-hot rows, or by one column of positions for many choices."""
        position = {choice: i for i, choice in enumerate(self.choices)}
        codes = np.array([position[value] for value in values])
        if len(self.choices) > _MAX_ONE_HOT:
            return codes[:, None].astype(float)
        return (codes[:, None] == np.arange(len(self.choices))).astype(float)


def _check_default(decision, is_sound) -> None:
    if not is_sound:
        raise ValueError(f"The default {decision.default!r} does not lie in {decision}.")


@dataclass(frozen=True)
class _Number:
    """A decision for a number in ``[low, high]``; uniform or log-uniform."""

    name: str
    low: Any
    high: Any
    log: bool = False
    default: Any = None
    _kind = numbers.Real

    def __post_init__(self):
        if not (self.low <= self.high and (self.low > 0 or not self.log)):
            raise ValueError(
                f"Decision {self.name!r} needs low <= high, and low > 0 on a log scale. "
                f"Got low={self.low}, high={self.high}, log={self.log}."
            )
        if self.default is None:
            object.__setattr__(self, "default", self.low)
        _check_default(self, self.low <= self.default <= self.high)

    def other(self, value):
        """Get a value that differs from this one."""
        return self.low if value != self.low else self.high

    def contains(self, value) -> bool:
        is_number = isinstance(value, self._kind) and not isinstance(value, bool)
        return is_number and bool(self.low <= value <= self.high)

    def encode(self, values) -> np.ndarray:
        values = np.asarray(values, dtype=float)[:, None]
        # As they are sampled: a surrogate then sees equal steps where draws are equally likely.
        return np.log(values) if self.log else values


@saved_record("networks.Integer", eq=True)
class Integer(_Number):
    """A decision for a whole number in ``low..high``, both included; uniform or log-uniform.

    Log-uniform means P(k) proportional to log((k + 1) / k).

    Examples
    --------
    >>> from skuq.networks import Integer
    >>> Integer("units", 1, 64).size
    64
    """

    _kind = numbers.Integral

    size = property(lambda self: self.high - self.low + 1)

    def sample(self, rng, n: int) -> list:
        if not self.log:
            return rng.integers(self.low, self.high + 1, size=n).tolist()
        # Rounding down gives k the interval [k, k + 1), hence the stated probability.
        drawn = np.exp(rng.uniform(np.log(self.low), np.log(self.high + 1), size=n))
        return np.clip(np.floor(drawn), self.low, self.high).astype(int).tolist()


@saved_record("networks.Real", eq=True)
class Real(_Number):
    """A decision for a number in ``[low, high]``; uniform or log-uniform.

    Examples
    --------
    >>> from skuq.networks import Real
    >>> Real("learning_rate", 1e-4, 1e-1, log=True).default
    0.0001
    """

    size = property(lambda self: np.inf if self.low < self.high else 1)

    def sample(self, rng, n: int) -> list:
        if self.log:
            drawn = np.exp(rng.uniform(np.log(self.low), np.log(self.high), size=n))
        else:
            drawn = rng.uniform(self.low, self.high, size=n)
        return np.clip(drawn, self.low, self.high).tolist()


@saved_record("networks.Space", eq=True)
class Space:
    """An ordered set of decisions.

    Parameters
    ----------
    decisions : sequence of Categorical, Integer or Real
        Their names must differ.

    Examples
    --------
    >>> from skuq.networks import Categorical, Integer, Space
    >>> space = Space([Integer("units", 1, 64), Categorical("activation", ("relu", "tanh"))])
    >>> space.size, space.default()
    (128, {'units': 1, 'activation': 'relu'})
    """

    decisions: tuple = field(default=())

    def __post_init__(self):
        object.__setattr__(self, "decisions", tuple(self.decisions))
        names = self.names
        if len(set(names)) < len(names):
            raise ValueError(f"Decision names must differ. Got {names}.")

    def __len__(self):
        return len(self.decisions)

    def __add__(self, other: "Space") -> "Space":
        return Space(self.decisions + other.decisions)

    @property
    def size(self) -> float:
        """Number of configurations; infinite if a decision is a real number."""
        return math.prod(decision.size for decision in self.decisions)

    names = property(lambda self: [decision.name for decision in self.decisions])

    def sample(self, rng) -> dict:
        """Draw one configuration; decisions are independent."""
        return self.sample_many(rng, 1)[0]

    def sample_many(self, rng, n: int) -> list[dict]:
        """Draw `n` configurations."""
        # Decision by decision, so that n configurations cost one draw of each.
        columns = [decision.sample(rng, n) for decision in self.decisions]
        return [dict(zip(self.names, row)) for row in zip(*columns)] or [{}] * n

    def pin(self, configuration: Mapping) -> "Space":
        """Fix the decisions that are in `configuration` to their values there."""
        return Space(
            tuple(
                Categorical(d.name, (configuration[d.name],)) if d.name in configuration else d
                for d in self.decisions
            )
        )

    def mutate(self, configuration: Mapping, rng) -> dict:
        """Copy a configuration and change one decision, drawn uniformly, to a different value.

        Decisions with only one value are never changed.
        """
        free = [decision for decision in self.decisions if decision.size > 1]
        child = self.restrict(configuration)
        if not free:
            return child
        decision = free[rng.integers(len(free))]
        current = child[decision.name]
        # Sample the decision's distribution given that the value differs. Some dozen draws nearly
        # always hold another value; if one value has almost all the mass, take any other.
        drawn = [value for value in decision.sample(rng, 64) if value != current]
        return {**child, decision.name: drawn[0] if drawn else decision.other(current)}

    def restrict(self, configuration: Mapping) -> dict:
        """Get the part of a configuration that belongs to these decisions."""
        return {name: configuration[name] for name in self.names}

    def default(self) -> dict:
        return {decision.name: decision.default for decision in self.decisions}

    def encode(self, configurations: Sequence[Mapping]) -> np.ndarray:
        """Encode configurations as features for a forest, (n_configurations, n_columns).

        Log-scaled numbers become logarithms. Categories with up to 12 choices are one-hot encoded,
        larger ones become the position of the choice.
        """
        columns = [
            decision.encode([c[decision.name] for c in configurations])
            for decision in self.decisions
        ]
        return np.hstack(columns) if columns else np.empty((len(configurations), 0))

    def check(self, configuration: Mapping, name: str) -> dict:
        """Validate a user's configuration and fill in defaults."""
        # A misspelt decision would silently keep its default.
        unknown = sorted(set(configuration) - set(self.names))
        if unknown:
            raise ValueError(f"`{name}` has unknown decisions {unknown}. Known are {self.names}.")
        for decision in self.decisions:
            value = configuration.get(decision.name, decision.default)
            if decision.name in configuration and not decision.contains(value):
                raise ValueError(
                    f"`{name}[{decision.name!r}]` must lie in {decision}. Got {value!r}."
                )
        return {**self.default(), **configuration}


#: The paper's seven optimisers (AutoDEUQ III.A), by Keras' names.
OPTIMIZERS = ("sgd", "rmsprop", "adagrad", "adam", "adadelta", "adamax", "nadam")


@saved_as("networks.Decisions")
class Decisions(NamedTuple):
    """Decisions of a joint search: about the architecture, and about its training.

    Examples
    --------
    >>> from skuq.networks import Decisions, Integer, Real, Space
    >>> rate = Real("learning_rate", 1e-4, 1e-1, log=True)
    >>> Decisions(Space([Integer("units", 1, 64)]), Space([rate])).hyperparameters.names
    ['learning_rate']
    """

    architecture: Space
    hyperparameters: Space


@runtime_checkable
class SearchSpace(Protocol):
    """An object that lists decisions, and builds and trains networks by them.

    Examples
    --------
    >>> from skuq.networks import DenseSpace, SearchSpace
    >>> isinstance(DenseSpace(), SearchSpace)
    True
    """

    def decisions(self, input_shape: tuple, n_outputs: int) -> Decisions:
        """List the decisions, if possible without building a Keras model."""

    def build(self, configuration: Mapping, input_shape: tuple, n_outputs: int):
        """Build the Keras model from `input_shape` to `n_outputs` raw numbers."""

    def recipe(self, configuration: Mapping) -> dict:
        """Return the fields of a training recipe that the configuration sets."""


def training_hyperparameters(max_batch_size: int = 256) -> Space:
    """Make the space of training hyperparameters of AutoDEUQ (section III.A).

    Parameters
    ----------
    max_batch_size : int, default=256
        Largest batch size: 256 in the paper's benchmark, 32 in its toy example.

    Returns
    -------
    Space
        Learning rate (log-uniform in 1e-4..1e-1), batch size (log-uniform in
        1..max_batch_size), one of seven optimisers, and the patience of the learning rate's
        reduction (10..20 epochs) and of early stopping (20..30 epochs).

    Examples
    --------
    >>> from skuq.networks._space import training_hyperparameters
    >>> training_hyperparameters().names
    ['learning_rate', 'batch_size', 'optimizer', 'reduce_lr_patience', 'early_stopping_patience']
    """
    return Space(
        (
            Real("learning_rate", 1e-4, 1e-1, log=True, default=1e-3),
            Integer("batch_size", 1, max_batch_size, log=True, default=min(32, max_batch_size)),
            Categorical("optimizer", OPTIMIZERS, default="adam"),
            Integer("reduce_lr_patience", 10, 20, default=15),
            Integer("early_stopping_patience", 20, 30, default=25),
        )
    )


# NES' training of networks for tables: learning rate and L2 regularisation are searched, as in
# hyper ensembles (NES, appendix C.4). Tuned on training parts of pendigits and letter; see
# docs/methods/nes.md.
_TABLE_HYPERPARAMETERS = Space(
    (
        Real("learning_rate", 3e-4, 3e-2, log=True, default=3e-3),
        Real("l2", 1e-7, 1e-3, log=True, default=1e-5),
    )
)
_TABLE_SETTINGS = {
    "optimizer": "adam",
    "schedule": "cosine",
    "reduce_lr_patience": None,
    "early_stopping_patience": None,
}


@parameters("networks.WithTraining", kw_only=False)
class WithTraining(Settings):
    """Architectures of another space, with these training hyperparameters.

    Without them it is the training that `NESClassifier` and `NESRegressor` use for tables: one
    recipe for all architectures, with a cosine schedule.

    Parameters
    ----------
    space : SearchSpace
        Space of the architectures; its own training hyperparameters are not used.
    hyperparameters : Space or None, default=None
        Fields of a training recipe that can be searched, with their defaults. None is NES'
        learning rate and L2 regularisation.
    settings : mapping or None, default=None
        Fields of a training recipe that are the same for all configurations. None is NES' recipe.
        Its batches have 128 rows, and down to 16 for small tables, for which an epoch would
        otherwise have only one or two steps.

    Examples
    --------
    >>> from skuq.networks import DenseSpace, Real, Space
    >>> from skuq.networks import WithTraining
    >>> rate = Space((Real("learning_rate", 1e-3, 1e-2, log=True),))
    >>> space = WithTraining(DenseSpace(3), rate, {"epochs": 50, "batch_size": 32})
    >>> space.recipe({"learning_rate": 0.005})
    {'epochs': 50, 'batch_size': 32, 'learning_rate': 0.005}
    """

    space: SearchSpace
    hyperparameters: Space | None = None
    settings: Mapping | None = None

    _parameter_constraints = {
        "space": [HasMethods(["decisions", "build", "recipe"])],
        "hyperparameters": [Space, None],
        "settings": [Mapping, None],
    }

    def validate(self) -> None:
        super().validate()
        if isinstance(self.space, Settings):
            self.space.validate()

    def bind(self, n_rows: int) -> "WithTraining":
        """Return the space for a table of `n_rows` rows, on which the size of batches depends."""
        settings = self.settings
        if settings is None:
            settings = {**_TABLE_SETTINGS, "batch_size": int(np.clip(n_rows // 32, 16, 128))}
        return WithTraining(self.space, self._searched, settings)

    @property
    def _searched(self):
        """Training decisions that are searched."""
        return _TABLE_HYPERPARAMETERS if self.hyperparameters is None else self.hyperparameters

    takes_images = property(lambda self: getattr(self.space, "takes_images", None))

    def decisions(self, input_shape=None, n_outputs=None) -> Decisions:
        """List the space's architecture decisions and these hyperparameters."""
        return Decisions(self.space.decisions(input_shape, n_outputs).architecture, self._searched)

    def build(self, configuration: Mapping, input_shape: tuple, n_outputs: int):
        """Build the Keras model of a configuration in the space."""
        return self.space.build(configuration, input_shape, n_outputs)

    def recipe(self, configuration: Mapping) -> dict:
        """Join the fixed settings with the configuration's hyperparameters."""
        settings = _TABLE_SETTINGS if self.settings is None else self.settings
        return {**settings, **self._searched.restrict(configuration)}
