"""Recipes, which hold all settings of a training run, and `Training`, those that users give."""

import fnmatch
import math
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, fields
from numbers import Integral, Real
from typing import Any

import numpy as np

from skuq._params import Interval, Settings, StrOptions, parameters, validate_parameter_constraints
from skuq.networks._space import OPTIMIZERS

SCHEDULES = ("constant", "cosine", "exponential", "flat-cosine", "coslog4")
BETA_2, EPSILON = 0.999, 1e-7  # Keras' defaults
#: Temperatures at which classes are validated whose ensemble is calibrated later.
TEMPERATURES = tuple(np.geomspace(0.6, 4.0, 9).tolist())

_POSITIVE = Interval(Real, 0, None, closed="neither")
_NOT_NEGATIVE = Interval(Real, 0, None, closed="left")
_SHARE = Interval(Real, 0, 1, closed="right")
_BELOW_1 = Interval(Real, 0, 1, closed="left")
_COUNT = Interval(Integral, 1, None, closed="left")
_REGULARIZATION_SCHEDULE = StrOptions({"constant", "flat-cosine"})
_CONSTRAINTS: dict[str, list[Any]] = {
    **dict.fromkeys(("batch_size", "epochs"), [_COUNT]),
    **dict.fromkeys(("reduce_lr_patience", "steps_per_epoch"), [_COUNT, None]),
    **dict.fromkeys(("n_artificial", "n_draws"), [Interval(Integral, 0, None, closed="left")]),
    **dict.fromkeys(("learning_rate", "epsilon"), [_POSITIVE]),
    **dict.fromkeys(("clip_norm", "largest_input_step"), [_POSITIVE, None]),
    **dict.fromkeys(("l2", "weight_decay", "adversarial_epsilon"), [_NOT_NEGATIVE]),
    **dict.fromkeys(("reduce_lr_factor", "final_lr_factor"), [_SHARE]),
    **dict.fromkeys(("momentum", "beta_2"), [_BELOW_1]),
    **dict.fromkeys(("weight_decay_schedule", "dropout_schedule"), [_REGULARIZATION_SCHEDULE]),
    "optimizer": [StrOptions(set(OPTIMIZERS))],
    "early_stopping_patience": [_COUNT, StrOptions({"cycle"}), None],
    "keep": [StrOptions({"best", "last", "best-jointly", "best-calibrated"})],
    "schedule": [StrOptions(set(SCHEDULES))],
    "warmup": [Interval(Real, 0, 1, closed="both")],
    "dropout": [_BELOW_1, None],
    "rate_factors_of_layers": [Mapping, tuple, list],
    "epoch_rates": [tuple, list],
}
# Fields that may differ between the recipes of one stack.
_STACKABLE_FIELDS = (
    "learning_rate",
    "reduce_lr_patience",
    "reduce_lr_factor",
    "early_stopping_patience",
    "clip_norm",
    "l2",
    "weight_decay",
    "dropout",
    "loss_settings",
    "rate_factors_of_layers",
)


@dataclass(frozen=True)
class Recipe:
    """Settings of a training run: everything except network, data and seed.

    Parameters
    ----------
    optimizer : str, default="adam"
        One of sgd, rmsprop, adagrad, adam, adadelta, adamax, nadam, with Keras' defaults.
    learning_rate : float, default=1e-3
        Learning rate before any schedule or reduction.
    largest_input_step : float or None, default=None
        Bound of the change of a unit by one step of the optimiser, for the dense layers that read
        X. One step moves the weights of all columns alike that vary together, as in spectra: if
        these are many, the layers get a lower rate. None sets no bound.
    momentum : float, default=0.0
        Momentum of sgd; 0 is plain gradient descent. Other optimisers do not use it.
    beta_2 : float, default=0.999
        Decay of the second moment from one step to the next in adam, adamax and nadam.
        RealMLP uses 0.95.
    rate_factors_of_layers : mapping or tuple of (str, float) pairs, default=()
        Factors of the learning rate for some of the weights, by the name of a layer ("scale")
        or of a variable ("output/bias"), or by a pattern of names (``"hidden_*"``, ``"*/bias"``).
        If several match a weight, the first is used. They may differ within a stack.
    batch_size : int, default=32
        Rows in a batch. A size larger than the number of rows means full batches.
    epochs : int, default=100
        Largest number of epochs.
    steps_per_epoch : int or None, default=None
        Number of batches in an epoch, which ends with a validation; each epoch draws other rows.
        None, or more batches than the rows give, uses all rows in each epoch.
    reduce_lr_patience : int or None, default=15
        Number of epochs without a better validation loss (by 1e-4) after which the learning rate
        is multiplied by `reduce_lr_factor`; None disables the reduction. Without validation rows
        the training loss is watched, here and in `early_stopping_patience`.
    reduce_lr_factor : float, default=0.1
        Factor in (0, 1] of the learning rate on a plateau. The default is Keras'; the AutoDEUQ
        paper does not give one.
    early_stopping_patience : int, "cycle" or None, default=25
        Number of epochs without a better validation loss after which training ends; None disables
        early stopping. "cycle" is for stacks that keep an epoch jointly: training ends with a cycle
        of ``schedule="coslog4"`` whose best epoch has a larger loss than the best one before, on
        average over the members and by more than the standard error of this difference.
    keep : {"best", "last", "best-jointly", "best-calibrated"}, default="best"
        Epoch whose weights are kept: the one with the best loss, or the last. "best-jointly" is the
        epoch with the best mean loss of all members of a stack, for folds of few rows: the best
        epoch of each fold would be one of chance, and its loss far too low. Plateaus and early
        stopping then go by the mean, too. "best-calibrated", only for classes, divides the logits
        by the temperature that is best for all members in each epoch: probabilities become too
        sure long before the classes that they separate stop to be better ones (Berta et al. 2025).
    schedule : {"constant", "cosine", "exponential", "flat-cosine", "coslog4"}, default="constant"
        Change of the learning rate from step to step over all `epochs`, in addition to any
        reduction on a plateau: it stays constant; falls along half a cosine; falls
        geometrically; stays constant for one half and falls along half a cosine to 0 in the
        other; or runs through RealMLP's four cycles from 0 to 0, each twice as long as the one
        before (Holzmueller et al. 2024).
    final_lr_factor : float, default=0.01
        Last rate of cosine and exponential schedules, as a share of `learning_rate`.
    epoch_rates : sequence of float, default=()
        Factors of the learning rate in each epoch, multiplied with the schedule. Epochs beyond
        the last entry use that entry.
    warmup : float, default=0.0
        Share of all steps, from the first, during which the rate rises linearly.
    clip_norm : float or None, default=None
        Largest norm of the gradient of all weights together; None does not clip.
    l2 : float, default=0.0
        Penalty ``l2 * sum(w**2)`` on all weights and biases, in the training loss.
    weight_decay : float, default=0.0
        Decoupled weight decay: every step subtracts ``learning_rate * weight_decay * w``.
    weight_decay_schedule : {"constant", "flat-cosine"}, default="constant"
        Change of `weight_decay` from step to step, as in `schedule`.
    dropout : float or None, default=None
        Rate of all of the network's dropout layers; None keeps each layer's own rate.
    dropout_schedule : {"constant", "flat-cosine"}, default="constant"
        Change of the dropout rates from step to step, as in `schedule`.
    adversarial_epsilon : float, default=0.0
        Step of adversarial training, as a share of each feature's range: half of the loss is
        taken at inputs moved by it along the sign of the loss' gradient (Lakshminarayanan et al.
        2017, who use 0.01). 0 disables it.
    n_artificial : int, default=0
        Number of inputs without targets drawn for every step, for heads whose loss has terms for
        them.
    loss_settings : tuple of (str, float) pairs, default=()
        Weights of these terms, or of the losses that a head averages, by name. They may differ
        within a stack, unlike the fields of the head.
    n_draws : int, default=0
        Number of epistemic indices drawn for every step, for networks that take them.
    epsilon : float, default=1e-7
        Number added to the divisor of each step, in all optimisers but sgd; Optax uses 1e-8. If
        gradients are clipped to a norm far below it, steps become smaller.

    Examples
    --------
    >>> from skuq.training import Recipe
    >>> recipe = Recipe(learning_rate=0.01, epochs=50, early_stopping_patience=None)
    >>> recipe.batch_size
    32
    """

    optimizer: str = "adam"
    learning_rate: float = 1e-3
    largest_input_step: float | None = None
    momentum: float = 0.0
    beta_2: float = BETA_2
    rate_factors_of_layers: tuple[tuple[str, float], ...] = ()
    batch_size: int = 32
    epochs: int = 100
    steps_per_epoch: int | None = None
    reduce_lr_patience: int | None = 15
    reduce_lr_factor: float = 0.1
    early_stopping_patience: int | str | None = 25
    keep: str = "best"
    schedule: str = "constant"
    final_lr_factor: float = 0.01
    epoch_rates: tuple[float, ...] = ()
    warmup: float = 0.0
    clip_norm: float | None = None
    l2: float = 0.0
    weight_decay: float = 0.0
    weight_decay_schedule: str = "constant"
    dropout: float | None = None
    dropout_schedule: str = "constant"
    adversarial_epsilon: float = 0.0
    n_artificial: int = 0
    loss_settings: tuple[tuple[str, float], ...] = ()
    n_draws: int = 0
    epsilon: float = EPSILON

    def __post_init__(self) -> None:
        validate_parameter_constraints(_CONSTRAINTS, vars(self), "Recipe")
        # NumPy's small integers would overflow.
        vars(self).update({k: int(v) for k, v in vars(self).items() if isinstance(v, np.integer)})
        given: Any = self.rate_factors_of_layers
        try:
            items = given.items() if isinstance(given, Mapping) else given
            pairs = tuple((str(name), float(factor)) for name, factor in items)
            rates = tuple(map(float, self.epoch_rates))
            are_factors = all(0 <= v < math.inf for v in (*rates, *(v for _, v in pairs)))
        except (TypeError, ValueError):
            are_factors = False
        if not are_factors:
            raise ValueError(
                "`rate_factors_of_layers` must be names with numbers >= 0, and `epoch_rates` "
                f"numbers >= 0. Got {given!r} and {self.epoch_rates!r}."
            )
        # Both are stored as tuples, so that recipes can be hashed whatever was given.
        vars(self).update(rate_factors_of_layers=pairs, epoch_rates=rates)
        if self.momentum and self.optimizer != "sgd":
            raise ValueError(
                f'`momentum` can only be set with optimizer="sgd". Got {self.optimizer!r}.'
            )
        if self.beta_2 != BETA_2 and self.optimizer not in ("adam", "adamax", "nadam"):
            raise ValueError(
                "`beta_2` can only be set with the optimizers adam, adamax and nadam. "
                f"Got {self.optimizer!r}."
            )
        if self.epsilon != EPSILON and self.optimizer == "sgd":
            raise ValueError(f'`epsilon` has no effect with optimizer="sgd". Got {self.epsilon!r}.')

    @property
    def keeps_jointly(self) -> bool:
        """Whether one epoch is kept, the best one for all members of a stack together."""
        return self.keep in ("best-jointly", "best-calibrated")

    @property
    def stops_by_cycles(self) -> bool:
        """Whether a cycle of the schedule that brings nothing ends the training of a stack."""
        return self.early_stopping_patience == "cycle" and self.keeps_jointly

    def cycle_ends(self, n_epochs: int) -> list[int]:
        """Return the epochs after which cycles of the learning rate end, in so many epochs."""
        if self.schedule != "coslog4":
            return [n_epochs]
        shares = (2 ** np.arange(1, _N_CYCLES + 1) - 1) / (2**_N_CYCLES - 1)
        return np.ceil(n_epochs * shares).astype(int).tolist()

    def scheduled_steps(
        self, steps: np.ndarray, n_planned: int, n_steps: int
    ) -> tuple[np.ndarray, int]:
        """Return the steps of a schedule that steps of a training stand for, and their number.

        A training with time for `n_planned` epochs, of `n_steps` steps each, has the schedule in
        these. If the end of a cycle can end it, the cycles that fit are those of a whole training,
        and the last one is shortened.
        """
        if not self.stops_by_cycles:
            return steps, n_planned * n_steps
        ends = [0, *self.cycle_ends(self.epochs)]
        last = int(np.searchsorted(ends, n_planned))
        start, end = ends[last - 1], ends[last]
        if n_planned < end:
            shortened = (steps - start * n_steps) * (end - start) / (n_planned - start)
            steps = np.where(steps < start * n_steps, steps, start * n_steps + shortened)
        return steps, self.epochs * n_steps

    def rate_factors(self, steps: np.ndarray, total: int) -> np.ndarray:
        """Compute factors of the learning rate for these steps of `total`, counted from 0."""
        n_warm = self.warmup * total
        # The schedule runs over the steps after the warmup, from 0 to 1.
        rest = np.clip((steps - n_warm) / max(total - n_warm, 1), 0, 1)
        factors: np.ndarray = _schedule_factors(self.schedule, rest, self.final_lr_factor)
        if n_warm:  # steps + 1, because a first step with a rate of zero would be wasted
            factors = factors * np.minimum((steps + 1) / n_warm, 1)
        if self.epoch_rates:
            epochs = (steps * self.epochs // total).astype(int)
            factors = factors * np.take(self.epoch_rates, epochs, mode="clip")
        return factors

    def regularization_factors(self, name: str, steps: np.ndarray, total: int) -> np.ndarray:
        """Compute factors of "weight_decay" or "dropout" for some steps, as `rate_factors` does."""
        # Without `warmup` and `epoch_rates`, which are of the learning rate alone.
        return _schedule_factors(getattr(self, f"{name}_schedule"), steps / total)

    def factors_of(self, names: Sequence[str]) -> list[float]:
        """Look up each variable's factor of the learning rate by its name ("layer/variable").

        Raises
        ------
        ValueError
            If an entry of `rate_factors_of_layers` matches none of the names.
        """
        # A pattern without effect is a spelling mistake, and would silently train another network.
        patterns = self.rate_factors_of_layers
        unused = [p for p, _ in patterns if not any(_matches(p, name) for name in names)]
        if unused:
            raise ValueError(
                f"`rate_factors_of_layers` has names that match no weight of the network: "
                f"{unused}. The network's weights are {list(names)}."
            )
        return [next((f for p, f in patterns if _matches(p, name)), 1.0) for name in names]


def stack_conflict(recipes: Sequence[Recipe]) -> str:
    """Explain why recipes cannot train in one stack; an empty string means that they can."""
    for name in sorted({field.name for field in fields(Recipe)} - set(_STACKABLE_FIELDS)):
        values = {getattr(recipe, name) for recipe in recipes}
        if len(values) > 1:
            return f"The recipes of a stack must have the same `{name}`. Got {values}."
    # None is another program, which has no such operation. Numbers are arguments of one program.
    for name, value in (
        ("clip_norm", None),
        ("dropout", None),
        ("early_stopping_patience", "cycle"),
    ):
        if len({getattr(recipe, name) == value for recipe in recipes}) > 1:
            return f"Either all recipes of a stack must have {name}={value!r}, or none."
    if len({tuple(name for name, _ in recipe.loss_settings) for recipe in recipes}) > 1:
        return "The recipes of a stack must have `loss_settings` with the same names."
    return ""


def _matches(pattern: str, name: str) -> bool:
    """Tell whether a pattern matches a variable's name, or that of a layer or model around it."""
    parts = name.split("/")
    wholes = ("/".join(parts[:k]) for k in range(1, len(parts) + 1))
    return any(fnmatch.fnmatchcase(whole, pattern) for whole in wholes)


_N_CYCLES = 4  # of the schedule "coslog4"


def _schedule_factors(schedule: str, t: np.ndarray, end: float = 0.0) -> Any:
    """Compute a schedule at shares t of a run in [0, 1].

    The cosine and the exponential schedule end at the factor `end`, "flat-cosine" and "coslog4"
    at 0.
    """
    if schedule == "cosine":
        return end + (1 - end) * 0.5 * (1 + np.cos(np.pi * t))
    if schedule == "exponential":
        return end**t
    # 1 in the first half, then half a cosine.
    if schedule == "flat-cosine":
        return 0.5 * (1 + np.cos(np.pi * np.maximum(2 * t - 1, 0)))
    # Cycles from 0 to 1 and back, each twice as long as the one before.
    if schedule == "coslog4":
        return 0.5 * (1 - np.cos(2 * np.pi * np.log2(1 + (2**_N_CYCLES - 1) * t)))
    return np.ones_like(t)


_AUTO = StrOptions({"auto"})


@parameters("training.Training")
class Training(Settings):
    """Settings of the training of networks, for the parameter `training` of estimators.

    Every setting is "auto" by default: the value that the estimator uses itself. An estimator
    refuses settings that have no effect on its training.

    Parameters
    ----------
    optimizer : str, default="auto"
        Keras' name of the optimiser: sgd, rmsprop, adagrad, adam, adadelta, adamax or nadam.
    schedule : {"auto", "constant", "cosine", "exponential", "flat-cosine", "coslog4"}, \
            default="auto"
        Change of the learning rate from step to step, see `skuq.training.Recipe`.
    final_lr_factor : float or "auto", default="auto"
        Last learning rate of cosine and exponential schedules, as a share of the first.
    warmup : float or "auto", default="auto"
        Share of all steps during which the learning rate first rises linearly.
    l2 : float or "auto", default="auto"
        Factor of the penalty ``l2 * sum(w**2)`` on all weights and biases.
    weight_decay : float or "auto", default="auto"
        Factor of decoupled weight decay.
    clip_norm : float, None or "auto", default="auto"
        Maximum norm of a gradient; None does not clip.
    adversarial_epsilon : float or "auto", default="auto"
        Adversarial training: half of the loss is taken at inputs moved by this share of each
        feature's range in the direction that increases the loss (Lakshminarayanan et al. 2017,
        whose regressions use 0.01). 0 disables it.
    epsilon : float or "auto", default="auto"
        Number added to the divisor of each step, in all optimisers but sgd. Keras has 1e-7.
    steps : int, callable or "auto", default="auto"
        Number of optimiser steps in place of `epochs`, or ``steps(n_functions)``. For regressors
        of functions only.

    Examples
    --------
    >>> from skuq.training import Training
    >>> Training(weight_decay=0.01).set_params(clip_norm=1.0)
    Training(clip_norm=1.0, weight_decay=0.01)
    """

    optimizer: str = "auto"
    schedule: str = "auto"
    final_lr_factor: Any = "auto"
    warmup: Any = "auto"
    l2: Any = "auto"
    weight_decay: Any = "auto"
    clip_norm: Any = "auto"
    adversarial_epsilon: Any = "auto"
    epsilon: Any = "auto"
    steps: Any = "auto"

    _parameter_constraints = {
        **{name: [*constraints, _AUTO] for name, constraints in _CONSTRAINTS.items()},
        "final_lr_factor": [_SHARE, callable, _AUTO],
        "steps": [_COUNT, callable, _AUTO],
    }

    def fields(self, known: Collection[str]) -> dict[str, Any]:
        """Return the settings that are not "auto", by name.

        Raises
        ------
        ValueError
            If a setting is given that is not among `known`.
        """
        params = self.get_params(deep=False)
        given = {k: v for k, v in params.items() if not (isinstance(v, str) and v == "auto")}
        if unknown := [name for name in given if name not in known]:
            raise ValueError(
                f"`training` must only have settings that this estimator uses: {sorted(known)}. "
                f"Got {unknown[0]}={given[unknown[0]]!r}: leave it out."
            )
        return given


#: Short forms of the parameter `training`.
TRAINING: dict[Hashable, type[Training]] = {"auto": Training}
