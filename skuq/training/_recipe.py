"""How one network is trained."""

from __future__ import annotations

from dataclasses import dataclass, fields
from numbers import Integral, Real

from skuq.networks._search_space import OPTIMIZERS

__all__ = ["Recipe"]


@dataclass(frozen=True)
class Recipe:
    """Everything that decides a training run besides network, data and seed.

    Parameters
    ----------
    optimizer : str, default="adam"
        One of sgd, rmsprop, adagrad, adam, adadelta, adamax, nadam, with Keras' defaults.
    learning_rate : float, default=1e-3
    batch_size : int, default=32
        Larger than the number of rows means full batches.
    epochs : int, default=100
        Largest number of epochs.
    reduce_lr_patience : int, default=15
        Epochs without a better validation loss (by 1e-4) before the learning rate is
        multiplied by `reduce_lr_factor`.
    reduce_lr_factor : float, default=0.1
        Keras' default; the paper does not give one.
    early_stopping_patience : int, default=25
        Epochs without a better validation loss before training ends. The weights of
        the best epoch are kept in any case.
    """

    optimizer: str = "adam"
    learning_rate: float = 1e-3
    batch_size: int = 32
    epochs: int = 100
    reduce_lr_patience: int = 15
    reduce_lr_factor: float = 0.1
    early_stopping_patience: int = 25

    def __post_init__(self):
        if self.optimizer not in OPTIMIZERS:
            raise ValueError(f"`optimizer` must be one of {OPTIMIZERS}. Got {self.optimizer!r}.")
        for name in ("batch_size", "epochs", "reduce_lr_patience", "early_stopping_patience"):
            value = getattr(self, name)
            if not isinstance(value, Integral) or value < 1:
                raise ValueError(f"`{name}` must be an integer >= 1. Got {value!r}.")
        if not isinstance(self.learning_rate, Real) or not 0 < self.learning_rate < float("inf"):
            raise ValueError(
                f"`learning_rate` must be a positive number. Got {self.learning_rate!r}."
            )
        if not isinstance(self.reduce_lr_factor, Real) or not 0 < self.reduce_lr_factor <= 1:
            raise ValueError(
                f"`reduce_lr_factor` must be a number in (0, 1]. Got {self.reduce_lr_factor!r}."
            )

    @classmethod
    def field_names(cls) -> list[str]:
        return [field.name for field in fields(cls)]
