"""Pickle estimators together with what plain pickles of their parameters lack."""

from __future__ import annotations

from typing import Any

import cloudpickle
from sklearn.base import BaseEstimator

from skuq.networks._rebuild import register_again, registered_in_main


class _ByValue:
    """Object that pickles by value, also where it holds lambdas; it is unpickled as itself."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __reduce__(self) -> tuple[Any, ...]:
        return cloudpickle.loads, (cloudpickle.dumps(self.value),)


def reduce_estimator(self: Any, protocol: Any) -> tuple[Any, ...]:
    """Pickle an estimator with Keras-Tuner's oracles, and with the layers of a script.

    Oracles hold lambdas. Layers of a script or notebook reach the workers of joblib by value,
    together with the function that builds networks of them, but without the decorators that have
    registered them with Keras.
    """
    make, arguments, state, *rest = BaseEstimator.__reduce_ex__(self, protocol)
    params = self.get_params(deep=False)
    oracles = {name: _ByValue(v) for name, v in params.items() if hasattr(v, "create_trial")}
    registered = registered_in_main()
    if registered and any(map(_is_of_script, params.values())):
        make, arguments = _make_with_layers, (registered, make, arguments)
    return make, arguments, {**state, **oracles}, *rest


def _is_of_script(value: Any) -> bool:
    """Tell whether a function or object, or a direct part of it, is of ``__main__``."""
    parts = value if isinstance(value, tuple) else getattr(value, "__dict__", {}).values()
    return any(getattr(part, "__module__", None) == "__main__" for part in (value, *parts))


def _make_with_layers(registered: dict[str, Any], make: Any, arguments: tuple[Any, ...]) -> Any:
    """Register layers, and make an empty estimator."""
    register_again(registered)
    return make(*arguments)
