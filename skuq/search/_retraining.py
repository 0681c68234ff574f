"""Train selected trials again after a search: refits on all rows, and repeats with other seeds.

Their networks are stored beside the trials of the search, and a resumed fit takes them from there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from skuq._utils._messages import warn_user
from skuq.catalog._records import TrialRecord
from skuq.search._limits import RunOptions
from skuq.search._proposers import FixedSequence
from skuq.search._search import Search, SearchResult, join_trials
from skuq.search._trials import RetrainingStore

_NEARLY_WHOLE = 0.9  # smallest share of a full training with which a network is used

_FAILED = {
    "refit": "{} of {} networks could not be refitted on all rows; the networks of the search are "
    "used instead ({}).",
    "repeat": "{} of {} repeats of the chosen trials failed; the others and the networks of the "
    "search predict ({}).",
}


@dataclass(frozen=True)
class Retraining:
    """Trials of a search that are trained again, in one or more rounds.

    Parameters
    ----------
    kind : {"refit", "repeat"}
        Refits replace the networks of a trial, and repeats join them.
    result : SearchResult
        Result of the search.
    indices : sequence of int
        Positions of the trials in the catalog, the most important first.
    n_rounds : int, default=1
        Number of times that each trial is trained again.
    head : object, optional
        Head of the targets, which joins the predictions of repeats.
    """

    kind: str
    result: SearchResult
    indices: Sequence[int]
    n_rounds: int = 1
    head: Any = None

    @property
    def trials(self) -> list[TrialRecord]:
        """The records of the trials."""
        return [self.result.catalog[k] for k in self.indices]

    @property
    def requests(self) -> list[dict[str, int]]:
        """The trainings to run, in their order: number of the trial and of the round."""
        rounds = range(self.n_rounds)
        return [{"trial": t.trial_number, "round": k} for k in rounds for t in self.trials]

    def train(
        self,
        search: Search,
        make_evaluation: Callable[..., Any],
        options: RunOptions,
        store: RetrainingStore | None = None,
    ) -> SearchResult:
        """Train the networks that the store does not have.

        Trainings that fail, or are shortened because time runs out, are left out; failures with a
        warning. Errors are not raised, so that the search is not lost.

        Parameters
        ----------
        search : Search
            The search, which has run.
        make_evaluation : callable
            ``make_evaluation(evaluate, trials)`` returns an evaluation of
            ``{"trial": trial_number, "round": k}``.
        options : RunOptions
        store : RetrainingStore, optional
            Place for the networks.
        """
        # Every trial is repeated once before any is repeated twice, as time may run out.
        requests, reason = self.requests, ""
        rounds = None if store is None else _Rounds(self, store)
        records: Sequence[TrialRecord] = [] if rounds is None else rounds.records
        try:
            # A search of its own: slots, limits and interrupts then work as in the first one.
            again = Search(
                make_evaluation(search.evaluate, self.trials),
                FixedSequence(requests),
                len(requests),
                search.entropy,
                store=rounds,
                options=options,
                seconds=search.seconds,
            )
            records = again.run().catalog
        except (Exception, KeyboardInterrupt) as error:
            reason = f"{type(error).__name__}: {error}"
        failures = [record.message for record in records if record.failed]
        if reason:
            # The whole run failed: all that is missing has failed with it.
            failures = [reason] * (len(requests) - len(records))
        if failures:
            warn_user(_FAILED[self.kind].format(len(failures), len(requests), failures[0]))
        return self.join(records)

    def read_stored(self, read: Callable[[str], Sequence[TrialRecord]]) -> list[TrialRecord]:
        """Read the networks that are stored, with their position in `requests` as trial number.

        ``read(name)`` returns the records of one round, see `skuq.catalog.CatalogFolder`.
        """
        rounds = [read(self.name(k)) for k in range(self.n_rounds)]
        known = {(r.trial_number, k): r for k, records in enumerate(rounds) for r in records}
        configurations = {trial.trial_number: trial.configuration for trial in self.trials}
        records = []
        for number, request in enumerate(self.requests):
            record = known.get((request["trial"], request["round"]))
            # Another search may have stored other trials under the same numbers.
            if record is not None and record.configuration == configurations[request["trial"]]:
                records.append(replace(record, trial_number=number, configuration=request))
        return records

    def join(self, records: Sequence[TrialRecord]) -> SearchResult:
        """Join trained networks to the result of the search."""
        found: dict[int, list[Any]] = {}
        # Records come as they finish; joined in their order, results repeat exactly.
        for record in sorted(records, key=lambda record: record.trial_number):
            if is_whole(record):
                found.setdefault(record.configuration["trial"], []).append(record.result)
        trained = {
            k: (trial, found[trial.trial_number])
            for k, trial in zip(self.indices, self.trials)
            if trial.trial_number in found
        }
        if self.kind == "refit":
            return replace(
                self.result, refitted={k: results[0] for k, (_, results) in trained.items()}
            )
        repeated = {
            k: join_trials([trial.result, *results], self.head)
            for k, (trial, results) in trained.items()
        }
        return replace(self.result, repeated=repeated)

    def name(self, number: int) -> str:
        """Return the name under which a round is stored."""
        return f"{self.kind}-{number:03d}"


def is_whole(record: TrialRecord) -> bool:
    """Tell whether a training succeeded and was not shortened."""
    return record.completed and record.share >= _NEARLY_WHOLE


class _Rounds:
    """The stored networks of a retraining, with the interface of a search's `Store`.

    Failed and shortened trainings are not stored, so that a later fit tries them again.
    """

    def __init__(self, retraining: Retraining, store: RetrainingStore) -> None:
        self._retraining, self._store = retraining, store
        self._trials = {trial.trial_number: trial for trial in retraining.trials}
        self.records = retraining.read_stored(store.retrained)

    def add(self, record: TrialRecord) -> None:
        if is_whole(record):
            trial = self._trials[record.configuration["trial"]]
            name = self._retraining.name(record.configuration["round"])
            # Stored by the number of its trial, by which a later fit finds it.
            number, configuration = trial.trial_number, trial.configuration
            renumbered = replace(record, trial_number=number, configuration=configuration)
            self._store.add_retrained(name, renumbered)
