"""The numerical backend: Keras, compiled TensorFlow programs, and libraries built on them.

Importing this package loads none of them; they are loaded when one of its names is first used.
No other module of skuq imports a backend directly.
"""

from typing import Any

import lazy_loader

from skuq.backend import _scopes

_load, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> Any:
    if name in __all__ and not hasattr(_scopes, name):  # it needs TensorFlow
        _scopes.check_fork()
        return _scopes.import_locked(_load, name)
    return _load(name)
