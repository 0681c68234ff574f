"""The numerical backend: Keras, compiled TensorFlow programs, and the libraries built on them.

Importing this package loads none of them; they load when one of its names is first used.
No other module of skuq imports a backend by its own name.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
