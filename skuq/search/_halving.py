"""Discard poor trials early, by successive halving."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from numbers import Integral

from skuq._registry import saved_as
from skuq.catalog._records import TrialRecord


@saved_as("search.SuccessiveHalving")
@dataclass(frozen=True)
class SuccessiveHalving:
    """Discard trials that are worse than others after the same share of their training.

    A trial passes a stage if its score is among the best ``1 / reduction_factor`` of all trials
    that have reached the stage so far. The scores that it has to reach are fixed when it starts,
    so that a trial depends only on its configuration, seed and budget.

    Parameters
    ----------
    shares : tuple of float, default=(1 / 15, 1 / 5, 7 / 15)
        Shares of the full training at which trials are compared (stages). The default are the ends
        of the learning rate's cycles in the schedule "coslog4", at which networks are as good as
        at the end of a shorter training.
    reduction_factor : float, default=2
        The share of trials that pass a stage is one over this factor, which is larger than 1.
    min_trials : int, default=4
        Number of scores that a stage must have before it discards a trial.

    References
    ----------
    L. Li, K. Jamieson, A. Rostamizadeh, E. Gonina, J. Ben-tzur, M. Hardt, B. Recht and
    A. Talwalkar, "A System for Massively Parallel Hyperparameter Tuning", MLSys 2020, in the
    variant that stops trials instead of pausing them.

    Examples
    --------
    >>> from skuq.catalog import TrialRecord
    >>> from skuq.search import SuccessiveHalving
    >>> history = [TrialRecord(k, score=0.1, stage_scores=(k / 10,)) for k in range(5)]
    >>> SuccessiveHalving(shares=(0.2,)).stages(history)
    ((0.2, 0.2),)
    """

    shares: tuple[float, ...] = (1 / 15, 1 / 5, 7 / 15)
    reduction_factor: float = 2.0
    min_trials: int = 4

    def __post_init__(self) -> None:
        if not isinstance(self.shares, Iterable):
            raise TypeError(f"`shares` must be numbers between 0 and 1. Got {self.shares!r}.")
        # Numbers of Python, as records of trials hold them.
        object.__setattr__(self, "shares", tuple(map(float, self.shares)))
        shares = (0.0, *self.shares, 1.0)
        if not all(a < b for a, b in zip(shares, shares[1:])):
            raise ValueError(f"`shares` must increase strictly between 0 and 1. Got {self.shares}.")
        if not 1 < self.reduction_factor < math.inf:
            raise ValueError(
                f"`reduction_factor` must be a number larger than 1. Got {self.reduction_factor}."
            )
        if not isinstance(self.min_trials, Integral) or self.min_trials < 1:
            raise ValueError(f"`min_trials` must be an integer >= 1. Got {self.min_trials!r}.")

    def stages(self, history: Sequence[TrialRecord]) -> tuple[tuple[float, float], ...]:
        """Return each stage's share, and the score that a trial has to reach to pass it."""
        reached = [
            sorted(r.stage_scores[k] for r in history if len(r.stage_scores) > k)
            for k in range(len(self.shares))
        ]
        return tuple(zip(self.shares, map(self._threshold, reached)))

    def _threshold(self, scores: list[float]) -> float:
        """Compute the largest score with which one more trial would still be among the best."""
        n_passing = math.ceil((len(scores) + 1) / self.reduction_factor)
        if len(scores) < max(self.min_trials, n_passing):
            return math.inf
        return scores[n_passing - 1]
