"""Convert the search spaces that users can give (names, objects, callables) to objects."""

from __future__ import annotations

from typing import Any

from skuq.networks._builders import check_builder, unpack_hypermodel
from skuq.networks._cells import CellSpace
from skuq.networks._dense import DenseSpace
from skuq.networks._keras_tuner import KerasTunerSpace
from skuq.networks._nas_bench import NASBench201Space
from skuq.networks._search_space import SearchSpace
from skuq.networks._tabular_space import BoundTabularSpace, TabularSpace
from skuq.networks._width_depth import WidthDepthSpace
from skuq.networks._with_training import WithTraining

#: Short forms of the parameter `space` of AutoDEUQ. "toy" is the paper's one-dimensional example.
AUTODEUQ_SPACES = {
    "auto": TabularSpace,
    "tabular": TabularSpace,
    "dense": DenseSpace,
    "benchmark": DenseSpace,
    "toy": lambda: DenseSpace(n_nodes=3, max_batch_size=32),
}


def _table_space() -> WithTraining:
    # Three nodes make 9 decisions, and are deep enough for tables.
    return WithTraining(DenseSpace(n_nodes=3))


#: Short forms of the parameter `space` of NES, for tables.
NES_SPACES = {
    "auto": _table_space,
    "dense": _table_space,
    "width-depth": lambda: WithTraining(WidthDepthSpace()),
    "darts": CellSpace,
    "nas-bench-201": NASBench201Space,
    "tabular": TabularSpace,
}

#: Short forms of NES that stand for another space with images.
NES_IMAGE_SPACES = {
    "auto": CellSpace,
    "width-depth": CellSpace.width_depth,
}

_KERAS_TUNER_ADVICE = (
    " To change a `build(hp)` of Keras-Tuner: begin with keras.Input(input_shape), end with "
    "Dense(n_outputs) without an activation, and leave `compile` out. A second function, "
    "`training(hp)`, decides the learning rate and its like: `space=(build, training)`."
)


def resolve_search_space(space: Any) -> SearchSpace:
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
    if isinstance(space, BoundTabularSpace):
        raise ValueError(
            "`space` must not be bound to rows: `fit` binds it. Give TabularSpace() or "
            '`space="tabular"`.'
        )
    if isinstance(space, SearchSpace | TabularSpace) and not isinstance(space, type):
        return space
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
