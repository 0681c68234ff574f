"""Warnings about what a search has found."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from skuq._warnings import warn_user
from skuq.catalog import Catalog
from skuq.ensembles import Selection
from skuq.tables import Splits
from skuq.tables._rows import warn_of_few_rows

# Share of their epochs for which networks have to be trained to count as trained.
_MIN_SHARE_TRAINED = 0.1
_MOST_FAILURES = 0.25  # share of trials that may fail without a warning


def warn_of_few_validation_rows(splits: Splits, shifted: Any) -> None:
    """Warn if members are chosen on few rows, clean or shifted."""
    n_shifted = sum(len(rows.used) for rows in shifted)
    if shifted and n_shifted < splits.n_valid:
        warn_of_few_rows(n_shifted, "More rows in `shift_validation` may help.")
        return
    advice = "Folds or a larger share as `validation`, or `validation_data`, may help."
    warn_of_few_rows(splits.n_valid, advice if splits.parts is None else "")


@dataclass(frozen=True)
class Review:
    """A selected ensemble, and what may be wrong with it.

    Attributes
    ----------
    catalog : Catalog
        The trials.
    selection : Selection
        The ensemble that predicts.
    n_networks : int
        Number of its networks.
    n_members : int
        Number of members asked for.
    min_members : int
        Least number of members that the rule of the selection aims at.
    """

    catalog: Catalog
    selection: Selection
    n_networks: int
    n_members: int
    min_members: int

    def warn_of_few_members(self) -> None:
        """Warn if the ensemble has fewer members than epistemic uncertainty needs."""
        found, wanted = len(self.selection), min(self.min_members, self.n_members)
        is_zero = self.n_networks == 1 < self.n_members
        if found >= wanted and not is_zero:
            return
        described, consequence = f"{found} members", ""
        if found == 1:
            n = self.n_networks
            value = "0" if n == 1 else f"that of {n} networks of one configuration"
            described, consequence = "1 member", f": its epistemic uncertainty is {value}"
        cause, advice = "no more trials succeeded", "Give the search more trials or more time."
        if len(self.catalog.completed) > found:
            cause, advice = "`selection` chose no more", "Another `selection` may choose more."
            if wanted == 1:
                advice = "Set `selection__min_members=2`, which `reselect` takes, too."
        warn_user(f"The ensemble has {described}, as {cause}{consequence}. {advice}")

    def warn_of_short_training(self, max_time: float | None) -> None:
        """Warn if `max_time` has left no trial of the ensemble a real part of its training."""
        share = max(self.catalog[k].share for k in self.selection.indices)
        if share < _MIN_SHARE_TRAINED:
            warn_user(
                f"No network of the ensemble got more than {100 * share:.2g} % of its epochs "
                f"within max_time={max_time}. Most of a short first fit goes into loading and "
                "compiling, some seconds for each process. Give it more time."
            )

    def warn_of_failures(self) -> None:
        """Warn if many trials have failed: some networks diverge, but this has another cause."""
        failed = [record.message for record in self.catalog if record.failed]
        if len(failed) > _MOST_FAILURES * len(self.catalog):
            (message, count), *_ = Counter(failed).most_common(1)
            warn_user(
                f"{len(failed)} of {len(self.catalog)} trials failed, {count} of them with: "
                f"{message} `leaderboard` has the reasons."
            )
