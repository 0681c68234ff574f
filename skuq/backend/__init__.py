"""The numerical backend: Keras, compiled TensorFlow programs, and the libraries built on them.

Importing this package loads none of them; they load when one of its names is first used.
No other module of skuq imports a backend by its own name.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "_cache": ["BoundedCache"],
        "_keras": ["keras", "ops", "quiet_stderr"],
        "_keras_tuner": ["keras_tuner"],
        "_tensorflow": [
            "BACKEND",
            "Backend",
            "compile_forward",
            "compile_program",
            "to_host",
            "to_tensors",
        ],
        "_tfp": ["tfd"],
    },
)
