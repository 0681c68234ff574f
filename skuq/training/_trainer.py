"""What a search calls for each configuration.

Importing this module loads no backend: a trainer is made in the caller's process and
often used only in its workers.
"""

from __future__ import annotations

from collections.abc import Mapping

from skuq.catalog._records import Member
from skuq.exceptions import SearchSpaceError
from skuq.networks._plan import make_plan
from skuq.networks._search_space import SearchSpace
from skuq.tables._training_data import TrainingData
from skuq.training._recipe import Recipe

__all__ = ["MemberTrainer"]


class MemberTrainer:
    """``(configuration, seed) -> Member``; can be pickled and sent to a worker once.

    Parameters
    ----------
    search_space : SearchSpace
        Builds the network and decides the recipe.
    data : TrainingData
    head : object
        From raw outputs to a distribution: `n_raw` and ``loss(y, raw)``.
    epochs : int
        Largest number of epochs, unless the configuration decides it.
    """

    def __init__(self, search_space: SearchSpace, data: TrainingData, head, epochs: int):
        self.search_space = search_space
        self.data = data
        self.head = head
        self.epochs = epochs
        self._padded = None  # the data as tensors, made once a process
        self._cancelled = False

    needs_backend = True  # a worker process should import it before all else

    def cancel(self):
        """Let trainings that run in other threads end at their next slice."""
        self._cancelled = True

    def __getstate__(self):
        return {**self.__dict__, "_padded": None}

    def __call__(self, configuration: Mapping, seed: int) -> Member:
        """Build, train, predict the validation rows.

        Raises
        ------
        SearchSpaceError
            If the space gives no usable network or recipe.
        FloatingPointError
            If training diverged before its first epoch had ended.
        """
        from skuq.training._engine import pad, train_member

        model, recipe = self.build(configuration), self.recipe(configuration)
        if self._padded is None:
            self._padded = pad(self.data)
        return train_member(
            model,
            self.head,
            recipe,
            self.data,
            seed,
            padded=self._padded,
            cancelled=lambda: self._cancelled,
        )

    def recipe(self, configuration: Mapping) -> Recipe:
        """The training recipe of a configuration."""
        decided = self.search_space.recipe(configuration)
        unknown = sorted(set(decided) - set(Recipe.field_names()))
        if unknown:
            raise SearchSpaceError(
                f"The search space decides {unknown}, which a recipe does not have. "
                f"It may decide {Recipe.field_names()}."
            )
        return Recipe(**{"epochs": self.epochs, **decided})

    def build(self, configuration: Mapping):
        """The network of a configuration, checked."""
        from skuq._keras import keras

        shape, n_raw = self.data.x.shape[1:], self.head.n_raw
        try:
            model = self.search_space.build(configuration, shape, n_raw)
        except Exception as error:
            raise SearchSpaceError(
                f"The search space raised {type(error).__name__} while building: {error}"
            ) from error
        if not isinstance(model, keras.Model):
            raise SearchSpaceError(
                f"The search space must return a keras.Model. Got {type(model).__name__}."
            )
        _check_model(model, shape, n_raw)
        return model


def _check_model(model, input_shape, n_raw):
    """Refuse in words, and before training, what cannot be trained or stored."""
    from skuq._keras import keras

    try:
        if not model.built:
            model.build((None, *input_shape))
        inputs, outputs = model.input_shape, model.output_shape
    except Exception as error:
        raise SearchSpaceError(
            f"The search space must return a Sequential or functional model. Got a "
            f"{type(model).__name__} whose shapes are unknown ({type(error).__name__}: {error})."
        ) from error
    for name, got, wanted in (
        ("input", inputs, (None, *input_shape)),
        ("output", outputs, (None, n_raw)),
    ):
        if got != wanted:
            raise SearchSpaceError(
                f"The search space must return a model with one {name} of shape {wanted} "
                f"(its arguments are `input_shape` and `n_outputs`). Got {got}."
            )
    if not model.trainable_variables:
        raise SearchSpaceError("The search space returned a model without trainable weights.")
    layers = list(model._flatten_layers())
    types = {str(v.dtype) for v in model.trainable_variables}
    types |= {layer.compute_dtype for layer in layers}
    if types != {"float32"}:
        raise SearchSpaceError(
            "The search space must return a model that holds and computes float32. "
            f"Got {sorted(types)}; is a global dtype policy set?"
        )
    for layer in layers:
        for name in ("kernel_constraint", "bias_constraint"):
            if getattr(layer, name, None) is not None:
                raise SearchSpaceError(
                    f"Layer {layer.name!r} has a {name}: training programs apply no constraints."
                )
    if make_plan(model.to_json()) is not None:
        return
    try:  # members are stored as this configuration, and rebuilt from it to predict
        keras.models.model_from_json(model.to_json())
    except Exception as error:
        raise SearchSpaceError(
            "The search space returned a model that cannot be rebuilt from its configuration "
            f"({type(error).__name__}: {error}). Use Keras' own layers."
        ) from error
