"""Search spaces that users give: names, objects, and functions of Keras-Tuner's hyperparameters."""

import contextlib
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import numpy as np

from skuq import backend
from skuq._messages import warn_user
from skuq._params import Interval, Settings
from skuq.exceptions import SearchSpaceError
from skuq.networks import _space
from skuq.networks._cells import CellSpace, NASBench201Space
from skuq.networks._dense import DenseSpace, WidthDepthSpace
from skuq.networks._keras_models import check_builder, unpack_hypermodel
from skuq.networks._tabular_network import TabularSpace

# How conditional decisions are found: values of a number that are all tried, random configurations,
# and networks built in all.
_MOST_TRIED, _N_RANDOM, _MOST_BUILDS = 8, 16, 100


@dataclass(eq=False, repr=False)
class KerasTunerSpace(Settings):
    """A search space made of functions that take a ``keras_tuner.HyperParameters``.

    Parameters
    ----------
    build_model : callable
        ``build_model(hp, input_shape, n_outputs) -> keras.Model``, where the model maps
        `input_shape` to `n_outputs` raw numbers. Each decision that it declares through `hp` is
        part of the architecture. Decisions that exist only for some values of others, such as
        ``units_2`` of the third layer, are found by building some dozen networks.
    training : callable, optional
        ``training(hp) -> dict`` returns fields of a recipe (learning_rate, batch_size,
        optimizer, epochs, reduce_lr_patience, reduce_lr_factor,
        early_stopping_patience). By default these are the AutoDEUQ paper's hyperparameters.
    max_batch_size : int, default=256
        Largest batch size of the default `training`.

    Examples
    --------
    >>> import keras
    >>> def build(hp, input_shape, n_outputs):
    ...     units = hp.Int("units", 16, 128, sampling="log")
    ...     return keras.Sequential(
    ...         [
    ...             keras.Input(input_shape),
    ...             keras.layers.Dense(units, activation="relu"),
    ...             keras.layers.Dense(n_outputs),
    ...         ]
    ...     )
    >>> KerasTunerSpace(build).decisions((3,), 2).architecture.names
    ['units']
    """

    _supplied_by_user = True  # files store its name; the user gives it again on loading

    build_model: Callable
    training: Callable | None = None
    max_batch_size: int = 256

    _parameter_constraints = {
        "build_model": [callable],
        "training": [callable, None],
        "max_batch_size": [Interval(Integral, 1, None, closed="left")],
    }

    def decisions(self, input_shape, n_outputs) -> _space.Decisions:
        """Collect the decisions that the two callables declare."""
        # The callable declares its decisions while it builds a model, which is not used.
        architecture = _find_decisions(
            lambda hp: _call("space", self.build_model, hp, input_shape, n_outputs)
        )
        if self.training is None:
            hyperparameters = _space.training_hyperparameters(self.max_batch_size)
            return _space.Decisions(architecture, hyperparameters)
        return _space.Decisions(architecture, _find_decisions(self._training))

    def build(self, configuration: Mapping, input_shape, n_outputs):
        """Build the user's model for a configuration."""
        hp = _hyperparameters(configuration)
        model = self.build_model(hp, input_shape, n_outputs)
        if unknown := sorted(set(hp.values) - set(configuration)):
            warn_user(
                f"`build` declares {unknown} only for rare values of other decisions. These are "
                "not searched and keep their default: declare them always."
            )
        return model

    def recipe(self, configuration: Mapping) -> dict:
        """Get the user's training settings for a configuration."""
        if self.training is None:
            return _space.training_hyperparameters(self.max_batch_size).restrict(configuration)
        return self._training(_hyperparameters(configuration))

    def _training(self, hp):
        recipe = _call("training callable of the space", self.training, hp)
        if not isinstance(recipe, Mapping):
            raise SearchSpaceError(
                "The training callable of the search space must return a dict. "
                f"Got {type(recipe).__name__}."
            )
        return dict(recipe)


def _call(name, function, *arguments):
    """Call a user's function, and raise its errors as SearchSpaceError."""
    try:
        with backend.keep_random_state():
            return function(*arguments)
    except Exception as error:
        raise SearchSpaceError(f"The {name} raised {type(error).__name__}: {error}") from error


def _hyperparameters(configuration):
    hp = backend.keras_tuner.HyperParameters()
    # Decisions that the user's function declares then return these values.
    hp.values = dict(configuration)
    return hp


def _find_decisions(declare: Callable) -> _space.Space:
    """Find the decisions that a function of hyperparameters declares, conditional ones included.

    Each value of a decision is tried together with the values for which the decision was found.
    Random configurations follow, for decisions that need certain values of several others.
    """
    found, rng, n_random = dict[str, Any](), np.random.default_rng(0), 0
    to_try = [dict[str, Any]()]  # values that are not the defaults
    for values in itertools.islice(to_try, _MOST_BUILDS):  # `to_try` grows meanwhile
        hp = _hyperparameters(values)
        # Networks of some values may be impossible: trials that take them fail and say so.
        with contextlib.suppress(*[SearchSpaceError] if found else []):
            declare(hp)
        for decision in space_from_keras_tuner(hp.space).decisions:
            if found.setdefault(decision.name, decision) is decision:
                to_try += [{**values, decision.name: v} for v in _values_to_try(decision)]
        if len(found) > 1 and values is to_try[-1] and n_random < _N_RANDOM:
            to_try.append(_space.Space(tuple(found.values())).sample(rng))
            n_random += 1
    return _space.Space(tuple(found.values()))


def _values_to_try(decision: Any) -> list:
    """List the values of a decision but for its default; of many numbers the first and the last."""
    if isinstance(decision, _space.Categorical):
        values: Sequence[Any] = decision.choices
    else:
        ends = decision.low, decision.high
        values = range(ends[0], ends[1] + 1) if isinstance(decision, _space.Integer) else ends
    if len(values) > _MOST_TRIED and not isinstance(values[0], str):
        values = values[0], values[-1]
    return [value for value in values if value != decision.default]


def space_from_keras_tuner(declared) -> _space.Space:
    """Convert Keras-Tuner's decisions to a `Space`; stepped numbers become choices."""
    decisions: dict[str, Any] = {}
    for hp in declared:
        # A name declared under several conditions is one decision.
        decisions.setdefault(hp.name, _from_keras_tuner(hp))
    return _space.Space(tuple(decisions.values()))


def _from_keras_tuner(hp):
    kind, config = type(hp).__name__, hp.get_config()
    if kind == "Boolean":
        return _space.Categorical(hp.name, (False, True), default=hp.default)
    if kind in ("Choice", "Fixed"):
        return _space.Categorical(hp.name, tuple(hp.values), default=hp.default)
    if kind not in ("Int", "Float") or config["sampling"] not in ("linear", "log"):
        raise SearchSpaceError(
            f"Decision {hp.name!r} is a {kind} with sampling {config.get('sampling')!r}, which "
            "cannot be searched. Use Choice, Boolean, Fixed, or Int and Float with linear "
            "or log sampling."
        )
    step = config["step"]
    # A step of 1 is what `Integer` has; other steps become choices.
    if step is not None and not (kind == "Int" and step == 1 and config["sampling"] == "linear"):
        cast = int if kind == "Int" else float
        choices = [cast(value) for value in hp.values]
        # Steps of floats differ from the declared default by rounding: take the nearest.
        default = min(choices, key=lambda choice: abs(choice - hp.default))
        return _space.Categorical(hp.name, tuple(choices), default=default)
    domain = _space.Integer if kind == "Int" else _space.Real
    low, high = config["min_value"], config["max_value"]
    default = min(max(hp.default, low), high)  # Keras-Tuner takes any
    return domain(hp.name, low, high, log=config["sampling"] == "log", default=default)


def space_to_keras_tuner(space: _space.Space):
    """Convert a space to Keras-Tuner's hyperparameters."""
    hp = backend.keras_tuner.HyperParameters()
    for d in space.decisions:
        if isinstance(d, _space.Categorical):
            hp.Choice(d.name, list(d.choices), default=d.default)
            continue
        declare = hp.Int if isinstance(d, _space.Integer) else hp.Float
        # Ranges keep their scale, which Keras-Tuner calls sampling.
        declare(d.name, d.low, d.high, sampling="log" if d.log else "linear", default=d.default)
    return hp


#: Short forms of the parameter `space` of AutoDEUQ. "toy" is the paper's one-dimensional example.
AUTODEUQ_SPACES = {
    "auto": TabularSpace,
    "tabular": TabularSpace,
    "dense": DenseSpace,
    "benchmark": DenseSpace,
    "toy": lambda: DenseSpace(n_nodes=3, max_batch_size=32),
}


#: Short forms of the parameter `space` of NES, for tables.
NES_SPACES = {
    "auto": TabularSpace,
    # Three nodes make 9 decisions, and are deep enough for tables.
    "dense": lambda: _space.WithTraining(DenseSpace(n_nodes=3)),
    "width-depth": lambda: _space.WithTraining(WidthDepthSpace()),
    "darts": CellSpace,
    "nas-bench-201": NASBench201Space,
    "tabular": TabularSpace,
}

#: Short forms of NES that stand for another space with images.
NES_IMAGE_SPACES = {"auto": CellSpace, "width-depth": CellSpace.width_depth}

_KERAS_TUNER_ADVICE = (
    " To change a `build(hp)` of Keras-Tuner: begin with keras.Input(input_shape), end with "
    "Dense(n_outputs) without an activation, and leave `compile` out. A second function, "
    "`training(hp)`, decides the learning rate and its like: `space=(build, training)`."
)


def resolve_search_space(space: Any) -> _space.SearchSpace:
    """Convert an object, a callable or a pair of callables to a search space.

    Parameters
    ----------
    space : SearchSpace, TabularSpace, callable or (callable, callable)
        Callables take Keras-Tuner's hyperparameters, see `KerasTunerSpace`. A `HyperModel` stands
        for its method `build`.

    Raises
    ------
    ValueError
        If `space` is none of these, or a function with other arguments.
    """
    # A class has these methods, too, but must be called first.
    if isinstance(space, _space.SearchSpace | TabularSpace) and not isinstance(space, type):
        return space
    # Everything else is a function of Keras-Tuner's hyperparameters, or two of them.
    callables = space if isinstance(space, tuple) else (space,)
    callables = tuple(map(unpack_hypermodel, callables))
    if len(callables) not in (1, 2) or not all(
        callable(part) and not isinstance(part, type) for part in callables
    ):
        raise ValueError(
            "`space` must be an object with `decisions`, `build` and `recipe`, a "
            f"callable, or a pair (build, training) of callables. Got {space!r}."
        )
    build, training = callables if len(callables) == 2 else (*callables, None)
    check_builder("`space`", build, "hp, input_shape, n_outputs", _KERAS_TUNER_ADVICE)
    return KerasTunerSpace(build, training)
