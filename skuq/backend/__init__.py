"""The numerical backend: Keras, compiled TensorFlow programs, and libraries built on them.

Importing this package loads none of them; they are loaded when one of its names is first used.
No other module of skuq imports a backend directly.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
