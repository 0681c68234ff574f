"""Our proposers as Keras-Tuner oracles, and Keras-Tuner's oracles as proposers."""

from __future__ import annotations

import itertools
import tempfile
import threading

from skuq._seeds import draw_entropy, generator
from skuq._space import Space
from skuq.backend import keras_tuner
from skuq.catalog._records import TrialRecord
from skuq.networks._keras_tuner import space_from_keras_tuner, space_to_keras_tuner
from skuq.networks._search_space import Decisions, training_hyperparameters
from skuq.search._strategies import make_proposer

__all__ = ["AgEBOOracle", "OracleProposer"]

# Keras-Tuner ends a search after a few failures in a row; we record them and go on.
_NEVER = 10**9
_STATUS = keras_tuner.engine.trial.TrialStatus


class AgEBOOracle(keras_tuner.Oracle):
    """AutoDEUQ's search for Keras-Tuner's own tuners.

    Ageing evolution over the architecture, Bayesian optimisation with a forest over the
    training hyperparameters, or one of the paper's variants of it.

    Parameters
    ----------
    objective : str, keras_tuner.Objective, default="val_loss"
    max_trials : int, default=100
    strategy : str, default="agebo"
        One of `skuq.search.STRATEGIES`.
    hyperparameter_names : sequence of str, optional
        Decisions that are training hyperparameters; all others are architecture. By
        default the paper's: learning_rate, batch_size, optimizer, reduce_lr_patience,
        early_stopping_patience.
    population_size, sample_size : int, optional
        P and S of the evolution, by default from `max_trials`.
    kappa : float, default=0.001
        Exploration of the Bayesian optimiser.
    seed : int or None, default=None
    **kwargs : dict
        Further arguments of ``keras_tuner.Oracle``.

    References
    ----------
    Egele et al., "AutoDEUQ", Algorithm 1, lines 1-26.
    """

    def __init__(
        self,
        objective="val_loss",
        max_trials=100,
        strategy="agebo",
        hyperparameter_names=None,
        population_size=None,
        sample_size=None,
        kappa=0.001,
        seed=None,
        **kwargs,
    ):
        super().__init__(objective=objective, max_trials=max_trials, seed=seed, **kwargs)
        self.strategy = strategy
        self.hyperparameter_names = tuple(
            training_hyperparameters().names
            if hyperparameter_names is None
            else hyperparameter_names
        )
        self.population_size = population_size
        self.sample_size = sample_size
        self.kappa = kappa
        self._entropy = draw_entropy(seed)

    def populate_space(self, trial_id):
        """The next configuration, in Keras-Tuner's form."""
        space = space_from_keras_tuner(self.hyperparameters.space)
        is_training = [d.name in self.hyperparameter_names for d in space.decisions]
        decisions = Decisions(
            Space(d for d, training in zip(space.decisions, is_training) if not training),
            Space(d for d, training in zip(space.decisions, is_training) if training),
        )
        proposer = make_proposer(
            self.strategy,
            decisions,
            self.max_trials,
            population_size=self.population_size,
            sample_size=self.sample_size,
            kappa=self.kappa,
        )
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

    def _record(self, number, trial, space, sign):
        completed = trial.status == _STATUS.COMPLETED
        return TrialRecord(
            trial_number=number,
            configuration=self._configuration(trial, space),
            status="completed" if completed else "failed",
            score=sign * trial.score if completed else float("nan"),
        )

    def _configuration(self, trial, space):
        # Decisions that appeared after this trial had started have their default.
        return {**space.default(), **trial.hyperparameters.values}


class OracleProposer:
    """Any ``keras_tuner.Oracle`` as the proposer of a search.

    Unlike our own proposers it has a state: the oracle's. A search with it repeats if
    the oracle is new and seeded.

    Parameters
    ----------
    oracle : keras_tuner.Oracle
    decisions : Decisions
        Declared to the oracle, unless it knows them already.
    n_trials : int, default=1
        How many proposals it will be asked for.

    Raises
    ------
    ValueError
        If the oracle's own budget is smaller.
    """

    def __init__(self, oracle, decisions: Decisions, n_trials: int = 1):
        self._oracle = oracle
        self._folder = tempfile.TemporaryDirectory(prefix="skuq-oracle-")
        self._trials = {}  # Keras-Tuner's trials, by our trial number
        self._n_told = 0
        self._space = decisions.architecture + decisions.hyperparameters
        if oracle.max_trials is not None and oracle.max_trials < n_trials:
            raise ValueError(
                f"The oracle's max_trials is {oracle.max_trials}: it must be at least "
                f"n_trials, {n_trials}."
            )
        oracle.max_consecutive_failed_trials = _NEVER
        oracle.verbose = 0
        oracle._set_project_dir(self._folder.name, "search")
        oracle.update_space(space_to_keras_tuner(self._space))

    def ask(self, history, running, rng):
        """Tell the oracle what has finished, then take its next trial."""
        self.tell(history)
        # The loop asks for the lowest number that there is no trial of.
        number = next(k for k in itertools.count() if k not in self._trials)
        trial = self._trials[number] = self._create()
        return self._space.restrict(trial.hyperparameters.values)

    def _create(self):
        tuner_id = f"skuq-{threading.get_ident()}-{len(self._trials)}"
        trial = self._oracle.create_trial(tuner_id)
        if trial.status != _STATUS.RUNNING or not trial.hyperparameters.values:
            raise RuntimeError(
                f"The oracle proposed nothing (status {trial.status}) at trial "
                f"{len(self._trials)}: has the space fewer configurations than n_trials?"
            )
        return trial

    def tell(self, history):
        """Tell the oracle what it has not heard of yet, of an earlier search too."""
        for record in history[self._n_told :]:
            if record.trial_number not in self._trials:
                # Proposing moves an oracle's state on; what was evaluated is then put in.
                trial = self._trials[record.trial_number] = self._create()
                trial.hyperparameters.values.update(record.configuration)
            self._tell(record)
        self._n_told = len(history)

    def _tell(self, record):
        trial = self._trials[record.trial_number]
        if record.completed:
            sign = -1 if self._oracle.objective.direction == "max" else 1
            metrics = {self._oracle.objective.name: sign * record.score}
            self._oracle.update_trial(trial.trial_id, metrics)
        trial = self._oracle.trials[trial.trial_id]
        trial.status = _STATUS.COMPLETED if record.completed else _STATUS.FAILED
        trial.message = record.message
        self._oracle.end_trial(trial)
