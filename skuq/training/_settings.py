"""Settings of trainings that users seldom change, given to estimators as one object."""

from __future__ import annotations

from collections.abc import Collection, Hashable
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

from skuq._params import Interval, Settings, StrOptions
from skuq._utils._records import saved_as
from skuq.networks._space import OPTIMIZERS
from skuq.training._recipe import SCHEDULES

_AUTO = StrOptions({"auto"})
_NOT_NEGATIVE = Interval(Real, 0, None, closed="left")
_POSITIVE = Interval(Real, 0, None, closed="neither")


@saved_as("training.Training")
@dataclass(eq=False, repr=False, kw_only=True)
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
        "optimizer": [StrOptions({"auto", *OPTIMIZERS})],
        "schedule": [StrOptions({"auto", *SCHEDULES})],
        "final_lr_factor": [Interval(Real, 0, 1, closed="right"), callable, _AUTO],
        "warmup": [Interval(Real, 0, 1, closed="both"), _AUTO],
        "l2": [_NOT_NEGATIVE, _AUTO],
        "weight_decay": [_NOT_NEGATIVE, _AUTO],
        "clip_norm": [_POSITIVE, None, _AUTO],
        "adversarial_epsilon": [_NOT_NEGATIVE, _AUTO],
        "epsilon": [_POSITIVE, _AUTO],
        "steps": [Interval(Integral, 1, None, closed="left"), callable, _AUTO],
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
