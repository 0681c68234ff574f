"""The recommended space with its recipes, and what searches do in it by default."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from sklearn.base import is_classifier

from skuq.estimators._task import Task, make_targets
from skuq.estimators.methods._search_plan import SearchDefaults
from skuq.estimators.tabular import _recipes as tuned
from skuq.estimators.tabular._far import with_far_uncertainty
from skuq.estimators.tabular._linear import with_linear_part
from skuq.estimators.tabular._targets import ScalingByTails
from skuq.networks import Decisions
from skuq.networks._space import Space
from skuq.networks._tabular_network import TabularArchitectures
from skuq.search import RandomSearch, SearchStrategy


def bind_space(task: Task, *, decides_loss: bool) -> TunedSpace:
    """Make the space for the rows of a task; with `decides_loss`, the loss is a decision of it."""
    return TunedSpace(
        task.data.x,
        task.inputs.n_codes,
        task.linear,
        n_rows=task.splits.n_train,
        classes=task.targets.head.classifies,
        decides_loss=decides_loss,
    )


def held_out_share(n_rows: int) -> float:
    """Return the share of the rows that a member holds out: a tenth, or less of many rows."""
    return min(tuned.VALIDATION, tuned.MOST_VALIDATION_ROWS / n_rows)


def class_recipes(n_rows: int, has_numbers: bool = True) -> list[dict]:
    """List recipes of classes that are mixed, the default first, as configurations of the space.

    Which ones are best differs between tables; no table of few rows tells it beforehand. The
    first recipes differ in their embeddings, the others in their training.

    Parameters
    ----------
    n_rows : int
        Number of rows, those for validation included.
    has_numbers : bool, default=True
        Whether there are `numeric_columns`. Without them different embeddings are the same network.

    Returns
    -------
    list of dict
        Changes of the defaults of `TunedSpace`. Recipes without hidden layers have 0 `n_layers`.
    """
    if n_rows > tuned.FEW_ROWS_OF_CLASSES:
        if not has_numbers:
            return list(tuned.CLASS_TRAININGS[::-1])
        return [{**tuned.CLASS_TRAININGS[-1], **change} for change in tuned.CLASS_EMBEDDINGS]
    trainings = tuned.CLASS_TRAININGS
    if n_rows <= tuned.FEWEST_ROWS_OF_CLASSES:
        trainings = tuned.CLASS_TRAININGS_OF_FEWEST_ROWS
    embeddings = tuned.CLASS_EMBEDDINGS[:2] if has_numbers else ({},)
    return [{**training, **embedding} for training in trainings for embedding in embeddings]


@dataclass(frozen=True, eq=False)
class TunedSpace(TabularArchitectures):
    """A `TabularSpace` for the rows of one training: a search space with tuned defaults.

    Attributes
    ----------
    n_rows : int
        Number of training rows, which determines batch size and number of epochs.
    classes : bool
        Whether y are classes, for which the default has some dropout.
    decides_loss : bool
        Whether the loss of a `GaussianMixtureHead` is a further decision.
    """

    n_rows: int
    classes: bool = False
    decides_loss: bool = False

    takes_images = False
    n_trainings = tuned.TRAININGS_OF_AN_ARCHITECTURE

    @property
    def _has_many_rows(self) -> bool:
        return self.n_rows >= tuned.MANY_ROWS

    def decisions(self, input_shape: Any = None, n_outputs: Any = None) -> Decisions:
        """List seven decisions about the network, three about its training, and further ones.

        These are the loss if asked, and for classes the number of epochs.
        """
        defaults = {
            "n_layers": tuned.N_LAYERS,
            "width": tuned.WIDTHS["many" if self._has_many_rows else "few"],
            "embedding_dim": tuned.EMBEDDING_DIM,
            "dropout": tuned.DROPOUTS["classes" if self.classes else "numbers"],
        }
        # Classes may have networks without hidden layers.
        architecture = self.architecture(0 if self.classes else 1, defaults)
        decay, further = tuned.WEIGHT_DECAY, list[Any]([tuned.LOSS] if self.decides_loss else [])
        if self.classes:
            first, epochs = self._class_recipes[0], tuned.EPOCHS_OF_CLASSES
            decay = replace(tuned.DECAY_OF_CLASSES, default=first["weight_decay"])
            further = [*further, replace(epochs, default=first["epochs"])]
        training = (tuned.LEARNING_RATE, decay, tuned.FREQUENCY_SCALE, *further)
        return Decisions(architecture, Space(training))

    def known_recipes(self) -> list[dict]:
        """List configurations that are good on many tables, from which a search starts.

        Each entry holds the changes of the default. The first is the default itself, trained by
        the likelihood if the loss is a decision. Those for numbers, and the order of those for
        classes, are learnt from trials on tables of few rows; docs/results/equal_time.md says what
        they are worth.
        """
        if self.classes:
            _, *others = self._class_recipes
            if tuned.FEWEST_ROWS_OF_CLASSES < len(self.x) <= tuned.FEW_ROWS_OF_CLASSES:
                # The one that differs most comes second: two trials are then nearly as good as all.
                others.insert(0, others.pop())
            return [{}, *others, *tuned.OTHER_CLASS_RECIPES]
        recipes: Sequence[dict] = tuned.RECIPES_OF_FEW_ROWS
        if self._has_many_rows:
            recipes = tuned.RECIPES_OF_MANY_ROWS
        if not self.decides_loss:
            recipes = [{k: v for k, v in r.items() if k != "loss"} for r in recipes]
        return [recipe for k, recipe in enumerate(recipes) if recipe not in recipes[:k]]

    def head(self, configuration: Mapping, head: Any) -> Any:
        """Select the head that a configuration trains with, if the loss is a decision.

        The recipe has the weights of both losses, so that one program trains either.
        """
        return replace(head, weighs_losses=True) if "loss" in configuration else head

    def recipe(self, configuration: Mapping) -> dict:
        """Make the recipe of RealMLP's training; its batches and epochs depend on the rows."""
        batches, most_steps = tuned.BATCHES_PER_EPOCH, tuned.TRAINING["steps_per_epoch"]
        power_of_two = 2 ** round(np.log2(self.n_rows / batches))
        batch_size = int(np.clip(power_of_two, *tuned.BATCH_SIZES))
        n_steps = min(math.ceil(self.n_rows / batch_size), most_steps)
        # The number of training steps is given; that of epochs follows from it.
        all_steps: float = tuned.STEPS_OF_FEW_ROWS
        if self._has_many_rows:
            all_steps = tuned.STEPS_OF_MANY_ROWS + tuned.STEPS_OF_A_ROW * self.n_rows
        epochs = int(np.clip(all_steps // n_steps, 1, tuned.MOST_EPOCHS))
        embeds = configuration["embedding"] != "none" and self.numeric_columns
        rates: tuple[Any, ...] = tuned.EMBEDDING_RATES if embeds else ()
        rates += tuned.HIDDEN_RATES if configuration["n_layers"] else ()
        of_targets: dict = {}
        if "loss" in configuration:
            of_targets["loss_settings"] = (("crps", float(configuration["loss"] == "crps")),)
        if self.classes:  # their mixture is calibrated
            of_targets["keep"] = "best-calibrated"
            epochs = min(epochs, configuration["epochs"])
            if configuration["epochs"] > tuned.LONG_TRAINING:
                of_targets["early_stopping_patience"] = tuned.PATIENCE
        return {
            **tuned.TRAINING,
            "batch_size": batch_size,
            "epochs": epochs,
            "rate_factors_of_layers": tuple(rates),
            "learning_rate": configuration["learning_rate"],
            "weight_decay": configuration["weight_decay"],
            "dropout": (configuration["n_layers"] > 0 and configuration["dropout"]) or None,
            **of_targets,
        }

    @cached_property
    def _class_recipes(self) -> list[dict]:
        return class_recipes(len(self.x), bool(self.numeric_columns))


@dataclass(frozen=True)
class TunedDefaults(SearchDefaults):
    """Defaults of searches in a `TabularSpace`; the base class has the papers'."""

    n_nes_trials: int = tuned.N_NES_TRIALS
    embeds: bool = True
    varies: str = "both"
    pack_size: int = tuned.PACK_SIZE
    strategy: Callable[[], SearchStrategy] | None = RandomSearch  # after recipes none was better

    def targets(self, estimator: Any) -> Any:
        """Make the encoding of y: numbers are mixtures of normals."""
        return make_targets(estimator, "gaussian-mixture", ScalingByTails())

    def validation(self, estimator: Any, task: Task) -> tuple[Any, int | None]:
        """Return the number of folds, and how many are used: those of a kind of the ensemble."""
        if task.n_units < 2 * tuned.FEWEST_FOLDED:
            return max(2, task.n_units // 2), None
        n_folds = round(1 / held_out_share(task.n_units))
        if not is_classifier(estimator):
            return n_folds, tuned.N_MEMBERS // len(tuned.MIXTURE_KINDS)
        few = task.n_units <= tuned.FEW_ROWS_OF_CLASSES
        return (tuned.N_FOLDS, None) if few else (n_folds, tuned.N_TENTHS)

    def prepare(self, task: Task) -> Task:
        """Give all networks a frozen linear part, where y is linear in X."""
        return with_linear_part(task)

    def bind(self, space: Any, task: Task) -> TunedSpace:
        """Bind the space to the rows; of numbers the loss is a decision."""
        return bind_space(task, decides_loss=not task.targets.head.classifies)

    def finish(self, ensemble: Any, task: Task) -> Any:
        """Add the uncertainty away from the rows."""
        return with_far_uncertainty(ensemble, task)
