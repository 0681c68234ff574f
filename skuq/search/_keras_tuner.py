"""Use skuq's proposers as Keras-Tuner oracles, and Keras-Tuner's oracles as proposers."""

from __future__ import annotations

import itertools
import shutil
import tempfile
import threading
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np

from skuq._utils._environment import draw_entropy, generator
from skuq.backend import keras_tuner
from skuq.catalog._records import TrialRecord
from skuq.networks._given_spaces import space_from_keras_tuner, space_to_keras_tuner
from skuq.networks._space import Decisions, Space, training_hyperparameters
from skuq.search._proposers import (
    AUTODEUQ_STRATEGIES,
    History,
    Running,
    SearchProblem,
    SearchStrategy,
)

# Keras-Tuner ends a search after a few failures in a row; skuq records them and continues.
_UNLIMITED = 10**9
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
        Early discarding, initial trials and objectives of skuq's searches are not used.
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
        self.hyperparameter_names = tuple(
            training_hyperparameters().names
            if hyperparameter_names is None
            else hyperparameter_names
        )
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
        rng = generator(self._entropy, "ask", len(self.trials))
        values = proposer.ask(history, running, rng)
        return {"status": _STATUS.RUNNING, "values": values}

    def _record(self, number: int, trial: Any, space: Space, sign: int) -> TrialRecord:
        """Make skuq's record of one of Keras-Tuner's trials."""
        completed = trial.status == _STATUS.COMPLETED and np.isfinite(trial.score)
        return TrialRecord(
            trial_number=number,
            configuration=self._configuration(trial, space),
            status="completed" if completed else "failed",
            score=sign * trial.score if completed else float("nan"),
        )

    def _configuration(self, trial: Any, space: Space) -> dict[str, Any]:
        # Decisions that were added after this trial started have their default.
        return {**space.default(), **trial.hyperparameters.values}


class OracleProposer:
    """Use any ``keras_tuner.Oracle`` as the proposer of a search.

    Unlike skuq's own proposers it has a state: that of the oracle. To repeat a search, use a new
    oracle with the same seed.

    Parameters
    ----------
    oracle : keras_tuner.Oracle
        Oracle that proposes the configurations.
    decisions : Decisions
        Decisions, which are declared to the oracle unless it knows them already.
    n_trials : int, default=1
        Number of proposals that the search will ask for.

    Raises
    ------
    ValueError
        If the oracle's own `max_trials` is smaller.

    Examples
    --------
    >>> import keras_tuner
    >>> import numpy as np
    >>> from skuq.networks import WidthDepthSpace
    >>> from skuq.search import OracleProposer
    >>> oracle = keras_tuner.oracles.RandomSearchOracle("val_loss", max_trials=5, seed=1)
    >>> proposer = OracleProposer(oracle, WidthDepthSpace().decisions())
    >>> sorted(proposer.ask([], [], np.random.default_rng(0)))[:3]
    ['batch_size', 'depth', 'early_stopping_patience']
    """

    def __init__(self, oracle: Any, decisions: Decisions, n_trials: int = 1) -> None:
        self._oracle = oracle
        folder = tempfile.mkdtemp(prefix="skuq-oracle-")  # oracles store their trials
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        self._trials: dict[int, Any] = {}  # Keras-Tuner's trials, by skuq's trial number
        self._n_told = 0
        self._space = decisions.architecture + decisions.hyperparameters
        if oracle.max_trials is not None and oracle.max_trials < n_trials:
            raise ValueError(
                f"The oracle's max_trials must be at least n_trials={n_trials}. "
                f"Got {oracle.max_trials}."
            )
        oracle.max_consecutive_failed_trials = _UNLIMITED
        oracle.verbose = 0
        oracle._set_project_dir(folder, "search")
        oracle.update_space(space_to_keras_tuner(self._space))

    def ask(self, history: History, running: Running, rng: np.random.Generator) -> dict[str, Any]:
        """Tell the oracle the finished trials, then take its next trial."""
        self.tell(history)
        # The loop asks for the lowest number without a trial.
        number = next(k for k in itertools.count() if k not in self._trials)
        trial = self._trials[number] = self._create_trial()
        return self._space.restrict(trial.hyperparameters.values)

    def _create_trial(self) -> Any:
        """Ask the oracle for a trial; raise RuntimeError if it proposes none."""
        tuner_id = f"skuq-{threading.get_ident()}-{len(self._trials)}"
        trial = self._oracle.create_trial(tuner_id)
        if trial.status != _STATUS.RUNNING or not trial.hyperparameters.values:
            raise RuntimeError(
                f"The oracle proposed no configuration (status {trial.status}) at trial "
                f"{len(self._trials)}. The space may have fewer configurations than n_trials."
            )
        return trial

    def tell(self, history: Sequence[TrialRecord]) -> None:
        """Tell the oracle the trials it does not know yet, also those of an earlier search."""
        for record in history[self._n_told :]:
            if record.trial_number not in self._trials:
                # Let the oracle propose, to advance its state, and replace the proposal by the
                # configuration that was evaluated.
                trial = self._trials[record.trial_number] = self._create_trial()
                trial.hyperparameters.values.update(record.configuration)
            self._tell(record)
        self._n_told = len(history)

    def _tell(self, record: TrialRecord) -> None:
        """Report a finished trial to the oracle."""
        trial = self._trials[record.trial_number]
        if not record.failed:
            sign = -1 if self._oracle.objective.direction == "max" else 1
            metrics = {self._oracle.objective.name: sign * record.score}
            self._oracle.update_trial(trial.trial_id, metrics)
        trial = self._oracle.trials[trial.trial_id]
        trial.status = _STATUS.FAILED if record.failed else _STATUS.COMPLETED
        trial.message = record.message
        self._oracle.end_trial(trial)
