"""Proposers of configurations: pure functions of the finished and the running trials.

A proposer keeps no state, except for `OracleProposer`. Its answer depends only on the history, the
running configurations and the random generator it is given, so that a search can be repeated,
resumed and extended.
"""

from __future__ import annotations

import itertools
import shutil
import tempfile
import threading
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from skuq._space import Space
from skuq.catalog._records import TrialRecord
from skuq.networks._keras_tuner import space_to_keras_tuner
from skuq.networks._search_space import Decisions

# Keras-Tuner ends a search after a few failures in a row; skuq records them and continues.
_UNLIMITED = 10**9

#: Finished trials, in the order in which they finished. Scores are minimised.
History = Sequence[TrialRecord]
#: Configurations that are being evaluated.
Running = Sequence[Mapping[str, Any]]


class Proposer(Protocol):
    """An object that proposes the next configuration of a search.

    A proposer with a state of its own can also have ``tell(history)``, which is called when the
    search has ended.
    """

    def ask(self, history: History, running: Running, rng: np.random.Generator) -> dict[str, Any]:
        """Propose a configuration; the generator belongs to this proposal alone."""


@dataclass(frozen=True)
class RandomProposer:
    """Propose random configurations, independent of the history."""

    space: Space

    def ask(self, history: History, running: Running, rng: np.random.Generator) -> dict[str, Any]:
        return self.space.sample(rng)


@dataclass(frozen=True)
class Fixed:
    """Propose the same configuration every time: only the seeds of the trials differ."""

    configuration: Mapping[str, Any]

    def ask(self, history: History, running: Running, rng: np.random.Generator) -> dict[str, Any]:
        return dict(self.configuration)


def _first_untried(
    configurations: Sequence[Mapping[str, Any]], history: History, running: Running
) -> dict[str, Any] | None:
    """Return the first configuration that no trial has; each trial stands for one of its equals.

    Trials are not counted, since a stored search may lack any of them.
    """
    tried = [*(record.configuration for record in history), *running]
    for configuration in configurations:
        if configuration not in tried:
            return dict(configuration)
        tried.remove(configuration)
    return None


@dataclass(frozen=True)
class FixedSequence:
    """Propose the configurations of a list in order, each once."""

    configurations: Sequence[Mapping[str, Any]]

    def ask(self, history: History, running: Running, rng: np.random.Generator) -> dict[str, Any]:
        untried = _first_untried(self.configurations, history, running)
        assert untried is not None, "every configuration has been proposed"
        return untried


@dataclass(frozen=True)
class StartingWith:
    """Propose given configurations first, then those of another proposer.

    Parameters
    ----------
    configurations : sequence of mapping
        First configurations, in order.
    proposer : Proposer
        Proposer of all others. It learns from the first trials as from its own.

    Examples
    --------
    >>> import numpy as np
    >>> from skuq.networks import WidthDepthSpace
    >>> from skuq.search import RandomSearch, SearchProblem, StartingWith
    >>> decisions = WidthDepthSpace().decisions()
    >>> others = RandomSearch().proposer(SearchProblem(decisions, n_trials=10))
    >>> first = {**decisions.architecture.default(), **decisions.hyperparameters.default()}
    >>> StartingWith([first], others).ask([], [], np.random.default_rng(0)) == first
    True
    """

    configurations: Sequence[Mapping[str, Any]]
    proposer: Proposer

    def ask(self, history: History, running: Running, rng: np.random.Generator) -> dict[str, Any]:
        untried = _first_untried(self.configurations, history, running)
        return self.proposer.ask(history, running, rng) if untried is None else untried


@dataclass(frozen=True)
class Joint:
    """Combine two independent proposers, each for its own decisions.

    With ageing evolution for the architecture and a Bayesian optimiser for the
    hyperparameters this is AgEBO.
    """

    first: Proposer
    second: Proposer

    def ask(self, history: History, running: Running, rng: np.random.Generator) -> dict[str, Any]:
        first_rng, second_rng = rng.spawn(2)
        return {
            **self.first.ask(history, running, first_rng),
            **self.second.ask(history, running, second_rng),
        }


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
        if trial.status != "RUNNING" or not trial.hyperparameters.values:
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
        trial.status = "FAILED" if record.failed else "COMPLETED"
        trial.message = record.message
        self._oracle.end_trial(trial)
