"""Pickle estimators that hold Keras-Tuner oracles, or use Keras layers defined in a script."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

import cloudpickle
from sklearn.base import BaseEstimator

from skuq.networks._keras_models import register_again, registered_in_main


class _ByValue:
    """Wrapper that pickles its value by value, also if that holds lambdas.

    Unpickling gives the value.
    """

    def __init__(self, value: Any) -> None:
        self.value = value

    def __reduce__(self) -> tuple[Any, ...]:
        return cloudpickle.loads, (cloudpickle.dumps(self.value),)


def reduce_estimator(self: Any, protocol: Any) -> Any:
    """Pickle an estimator with Keras-Tuner's oracles, and with the layers of a script.

    Oracles hold lambdas. Layers of a script or notebook reach the workers of joblib by value,
    together with the function that builds networks of them, but without the decorators that have
    registered them with Keras.
    """
    reduced = BaseEstimator.__reduce_ex__(self, protocol)
    if not isinstance(reduced, tuple) or len(reduced) < 3 or not isinstance(reduced[2], dict):
        return reduced  # a subclass with a form of its own
    make, arguments, state, *rest = reduced
    params = {name: state[name] for name in self._get_param_names() if name in state}
    oracles = {name: _ByValue(value) for name, value in params.items() if _is_oracle(value)}
    if any(map(_is_of_script, params.values())) and (layers := _layers_of_script()):
        make, arguments = _make_with_layers, (layers, make, arguments)
    return make, arguments, {**state, **oracles}, *rest


def copy_estimator(self: Any) -> Any:
    """Copy an estimator: the copy has the same parameters and fitted attributes."""
    copied = object.__new__(type(self))
    copied.__setstate__(self.__getstate__())
    return copied


def _is_oracle(value: Any) -> bool:
    keras_tuner = sys.modules.get("keras_tuner")  # without it, there can be no oracle
    return keras_tuner is not None and isinstance(value, keras_tuner.Oracle)


def _layers_of_script() -> dict[str, Any]:
    """Find the registered classes of ``__main__`` that a pickle can refer to by name."""
    main = sys.modules["__main__"]
    registered = registered_in_main().items()
    return {name: c for name, c in registered if getattr(main, c.__qualname__, None) is c}


def _is_of_script(value: Any) -> bool:
    """Tell whether a function or object, or a direct part of it, is of ``__main__``."""
    parts = (value, *_parts_of(value))
    return any(getattr(part, "__module__", None) == "__main__" for part in parts)


def _parts_of(value: Any) -> Iterable[Any]:
    """List the elements of a collection, or the attributes and the function of an object."""
    if isinstance(value, tuple | list):
        return value
    if isinstance(value, dict):
        return value.values()
    function = getattr(value, "func", getattr(value, "__func__", None))  # partials, methods
    return (function, *getattr(value, "__dict__", {}).values())


def _make_with_layers(layers: dict[str, Any], make: Any, arguments: tuple[Any, ...]) -> Any:
    """Register layers, and make an empty estimator."""
    register_again(layers)
    return make(*arguments)
