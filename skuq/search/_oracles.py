"""Use skuq's proposers as a Keras-Tuner oracle."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from skuq._random import draw_entropy, generator
from skuq.backend import keras_tuner
from skuq.networks._given_spaces import space_from_keras_tuner
from skuq.networks._space import Decisions, Space, training_hyperparameters
from skuq.search._records import TrialRecord
from skuq.search._strategies import AUTODEUQ_STRATEGIES, SearchProblem, SearchStrategy

_STATUS = keras_tuner.engine.trial.TrialStatus


class AgEBOOracle(keras_tuner.Oracle):  # type: ignore[misc]
    """Keras-Tuner oracle of AutoDEUQ's search, for Keras-Tuner's own tuners.

    It combines ageing evolution over the architecture with Bayesian optimisation over the
    training hyperparameters, or is one of the paper's variants.

    Parameters
    ----------
    objective : str or keras_tuner.Objective, default="val_loss"
        Quantity that the tuner minimises or maximises.
    max_trials : int, default=100
        Number of trials.
    search : str or SearchStrategy, default="agebo"
        Strategy, such as `AgEBO` with other settings, or a short form as in `AutoDEUQRegressor`.
        Initial trials and objectives of skuq's searches are not used.
    hyperparameter_names : sequence of str, optional
        Names of the decisions that are training hyperparameters; all others belong to the
        architecture. By default the paper's: learning_rate, batch_size, optimizer,
        reduce_lr_patience, early_stopping_patience.
    seed : int or None, default=None
        Seed of the proposals; None draws one.
    **kwargs : dict
        Further arguments of ``keras_tuner.Oracle``.

    References
    ----------
    Egele et al., "AutoDEUQ", Algorithm 1, lines 1-26.

    Examples
    --------
    >>> import keras_tuner
    >>> from skuq.search import AgEBOOracle
    >>> space = keras_tuner.HyperParameters()
    >>> _ = space.Int("units", 8, 64), space.Float("learning_rate", 1e-4, 1e-1, sampling="log")
    >>> oracle = AgEBOOracle(max_trials=5, hyperparameters=space, seed=0)
    >>> sorted(oracle.populate_space("0")["values"])
    ['learning_rate', 'units']
    """

    def __init__(
        self,
        objective: Any = "val_loss",
        max_trials: int = 100,
        search: str | SearchStrategy = "agebo",
        hyperparameter_names: Sequence[str] | None = None,
        seed: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(objective=objective, max_trials=max_trials, seed=seed, **kwargs)
        self.search = AUTODEUQ_STRATEGIES[search]() if isinstance(search, str) else search
        self.search.validate()
        if hyperparameter_names is None:
            hyperparameter_names = training_hyperparameters().names
        self.hyperparameter_names = tuple(hyperparameter_names)
        self._entropy = draw_entropy(seed)

    def populate_space(self, trial_id: str) -> dict[str, Any]:
        """Propose the next configuration, in Keras-Tuner's form."""
        space = space_from_keras_tuner(self.hyperparameters.space)
        names = self.hyperparameter_names
        # Keras-Tuner has one list of decisions, the strategies have two.
        decisions = Decisions(
            architecture=Space(tuple(d for d in space.decisions if d.name not in names)),
            hyperparameters=Space(tuple(d for d in space.decisions if d.name in names)),
        )
        proposer = self.search.proposer(SearchProblem(decisions, self.max_trials))
        sign = -1 if self.objective.direction == "max" else 1
        history = [
            self._record(i, self.trials[key], space, sign) for i, key in enumerate(self.end_order)
        ]
        running = [
            self._configuration(trial, space)
            for key, trial in self.trials.items()
            if trial.status == _STATUS.RUNNING and key != trial_id
        ]
        values = proposer.ask(history, running, generator(self._entropy, "ask", len(self.trials)))
        return {"status": _STATUS.RUNNING, "values": values}

    def _record(self, number: int, trial: Any, space: Space, sign: int) -> TrialRecord:
        configuration = self._configuration(trial, space)
        if trial.status == _STATUS.COMPLETED and np.isfinite(trial.score):
            return TrialRecord(number, configuration, score=sign * trial.score)
        return TrialRecord(number, configuration, status="failed")

    def _configuration(self, trial: Any, space: Space) -> dict[str, Any]:
        # Decisions that were added after this trial started have their default.
        return {**space.default(), **trial.hyperparameters.values}
