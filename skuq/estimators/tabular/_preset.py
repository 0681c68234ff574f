"""What AutoDEUQ and NES do in the recommended space where their parameters do not say."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from joblib import effective_n_jobs
from sklearn.base import is_classifier

from skuq.estimators._task import Task
from skuq.estimators.methods._search_plan import SearchDefaults, is_splitter
from skuq.estimators.tabular import _recipes as tuned
from skuq.estimators.tabular._far_learning import with_far_uncertainty
from skuq.estimators.tabular._linear_part import linear_tasks
from skuq.estimators.tabular._scaling_by_tails import make_targets
from skuq.estimators.tabular._tuned_space import TunedSpace, bind_space
from skuq.search import RandomSearch, SearchStrategy


@dataclass(frozen=True)
class TunedDefaults(SearchDefaults):
    """Defaults of searches in a `TabularSpace`; the base class has the papers'."""

    n_nes_trials: int = tuned.N_NES_TRIALS
    embeds: bool = True
    varies: str = "both"
    strategy: Callable[[], SearchStrategy] | None = RandomSearch  # after recipes none was better
    # Trials of earlier versions learnt y itself.
    identity: Mapping[str, str] = field(
        default_factory=lambda: {
            "targets of trials": "what ridge regression leaves, where y is linear"
        }
    )

    def targets(self, estimator: Any) -> Any:
        """Make the encoding of y: numbers are mixtures of normals."""
        return make_targets(estimator, "gaussian-mixture")

    def n_repeats(self, estimator: Any) -> int:
        """Return the number of repeats: a refit has no folds to repeat, a splitter no others."""
        if estimator.refit or is_splitter(estimator.validation):
            return 0
        return tuned.N_REPEATS if estimator.max_time is None else tuned.MOST_REPEATS

    def validation(self, estimator: Any, task: Task, search_share: float) -> tuple[Any, int | None]:
        """Return the number of folds, fewer for large data, and how many are used if not all."""
        if task.n_units < 2 * tuned.N_SEARCH_FOLDS:
            return max(2, task.n_units // 2), None
        n_folds = tuned.N_SEARCH_FOLDS
        if task.n_units > tuned.MANY_SEARCH_ROWS:
            n_folds = tuned.N_SEARCH_FOLDS_OF_MANY
        is_large = is_classifier(estimator) and task.n_units > tuned.LARGE_ROWS
        if is_large and estimator.max_time is not None:
            # Several recipes in a few folds are better than one or two in all of them. Stored
            # trials keep their folds: a later fit may have more time.
            is_stored = estimator.catalog_dir is not None or estimator.warm_start
            n_trials = tuned.FEWEST_TRIALS
            if not isinstance(estimator.n_trials, str):
                n_trials = min(n_trials, estimator.n_trials)
            seconds = search_share * estimator.max_time * effective_n_jobs(estimator.n_jobs)
            n_in_time = int(seconds / (n_trials * tuned.SECONDS_OF_NETWORK))
            if n_in_time < n_folds and not is_stored:
                return tuned.N_SMALL_FOLDS, max(1, n_in_time)
        return n_folds, None

    def prepare(self, task: Task) -> Task:
        """Give all networks a frozen linear part, where it is clear that y is linear in X."""
        return linear_tasks(task)[0]

    def bind(self, space: Any, task: Task) -> TunedSpace:
        """Bind the space to the rows; of numbers the loss is a decision."""
        return bind_space(task, decides_loss=not task.targets.head.classifies)

    def finish(self, ensemble: Any, task: Task) -> Any:
        """Add the uncertainty away from the rows."""
        return with_far_uncertainty(ensemble, task)
