"""Convert the search spaces that users can give (names, objects, callables) to objects."""

from __future__ import annotations

from skuq.networks._builders import check_builder, unpack_hypermodel
from skuq.networks._cells import CellSpace
from skuq.networks._dense import DenseSkipSpace
from skuq.networks._keras_tuner import KerasTunerSpace
from skuq.networks._nas_bench import NASBench201Space
from skuq.networks._search_space import SearchSpace
from skuq.networks._tabular_space import TabularSpace
from skuq.networks._width_depth import WidthDepthSpace
from skuq.networks._with_training import table_training

#: The spaces of `NESClassifier` by name.
NES_SPACES = ("dense", "width-depth", "darts", "nas-bench-201")

_NES_NODES = 3  # nodes of the dense space: 9 decisions, and deep enough for tables
_KERAS_TUNER_ADVICE = (
    " To change a `build(hp)` of Keras-Tuner: begin with keras.Input(input_shape), end with "
    "Dense(n_outputs) without an activation, and leave `compile` out. A second function, "
    "`training(hp)`, decides the learning rate and its like: `search_space=(build, training)`."
)
_PRESETS = {"benchmark": DenseSkipSpace.benchmark, "toy": DenseSkipSpace.toy}


def resolve_search_space(space, n_nodes: int = 5, max_batch_size: int = 256) -> SearchSpace:
    """Convert a name, an object, a callable or a pair of callables to a search space.

    Parameters
    ----------
    space : "dense", "benchmark", "toy", SearchSpace, callable or (callable, callable)
        "dense" is `DenseSkipSpace` with the two arguments below. Callables take Keras-Tuner's
        hyperparameters, see `KerasTunerSpace`. A `HyperModel` stands for its method `build`.
    n_nodes, max_batch_size : int
        Arguments of `DenseSkipSpace` for "dense"; callables use `max_batch_size`, too.

    Raises
    ------
    ValueError
        If `space` is none of these, or a function with other arguments.
    """
    if isinstance(space, str) and space == "dense":
        return DenseSkipSpace(n_nodes, max_batch_size)
    if isinstance(space, TabularSpace):
        raise ValueError(
            "A TabularSpace depends on the preprocessed rows of a fit and cannot be given as an "
            'object. Use `search_space="tabular"`.'
        )
    if isinstance(space, str) and space in _PRESETS:
        return _PRESETS[space]()
    if isinstance(space, SearchSpace) and not isinstance(space, type):
        return space
    callables = space if isinstance(space, tuple) else (space,)
    callables = tuple(map(unpack_hypermodel, callables))
    if len(callables) not in (1, 2) or not all(
        callable(part) and not isinstance(part, type) for part in callables
    ):
        raise ValueError(
            "`search_space` must be an object with `decisions`, `build` and `recipe`, a "
            f"callable, or a pair (build, training) of callables. Got {space!r}."
        )
    build, training = callables if len(callables) == 2 else (*callables, None)
    check_builder("`search_space`", build, "hp, input_shape, n_outputs", _KERAS_TUNER_ADVICE)
    return KerasTunerSpace(build, training, max_batch_size)


def resolve_nes_space(space, images: bool, n_rows: int) -> SearchSpace:
    """Convert None, a name in `NES_SPACES` or any other form to a search space.

    None means "darts" for images and "dense" for tables. For tables, batch sizes depend on
    `n_rows`.
    """
    if space is None:
        space = "darts" if images else "dense"
    if space == "dense":
        return table_training(DenseSkipSpace(_NES_NODES), n_rows)
    if space == "width-depth":
        return CellSpace.width_depth() if images else table_training(WidthDepthSpace(), n_rows)
    if space == "darts":
        return CellSpace()
    if space == "nas-bench-201":
        return NASBench201Space()
    return resolve_search_space(space)
