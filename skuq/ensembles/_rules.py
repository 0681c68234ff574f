"""Rules that select an ensemble, given to estimators as one object; and what they select from."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from numbers import Integral
from typing import Any

import numpy as np

from skuq._params import Interval, Settings, StrOptions, parameters
from skuq.ensembles import _selection
from skuq.ensembles._pruning import POOL_SIZE, select_hq, select_teams
from skuq.ensembles._selection import MOMENT_LOSSES, Loss, Selection, Statistics
from skuq.ensembles._stacking import drop_light, fit_class_mixture, stack, stacking_prior
from skuq.files._registry import saved_as
from skuq.predictive._calibration import Calibration, fit_correlation

#: Losses of the selection, for numbers and for classes.
NUMBER_LOSSES = (*MOMENT_LOSSES, "mixture")
CLASS_LOSSES = ("nll", "brier", "mixture")

_MOST_STACKED_ROWS = 5_000
_LOSS = StrOptions({"auto", *NUMBER_LOSSES, *CLASS_LOSSES})


@dataclass(frozen=True, eq=False)
class Candidates:
    """Predictions of candidates for rows that ensembles are selected on.

    Attributes
    ----------
    raw : sequence of ndarray of shape (n, n_raw)
        Raw outputs of networks, one array for each candidate.
    y : ndarray of shape (n, n_outputs)
        Standardised targets, or codes of classes (n, 1).
    head : Head
        Maps raw outputs to distributions.
    sample_weight : ndarray of shape (n,) or None
        Weights of the rows.
    rows, groups : ndarray of shape (n,) or None
        Numbers that versions of one row share, and those of rows that stay together in splits.
    centers : sequence of ndarray or None
        `center` of trials with folds, see `FoldedMember` of ``skuq/search/_records.py``.
    is_unseen : bool
        Whether no network has seen these rows in its training, not even to stop it: they are
        predicted out of folds that share their best epoch, or they are new.
    calibrates : bool
        Whether classes can be calibrated by these rows: they are unseen, or many validation rows.
    """

    raw: Sequence[np.ndarray]
    y: np.ndarray
    head: Any
    sample_weight: np.ndarray | None = None
    rows: np.ndarray | None = None
    centers: Sequence[np.ndarray] | None = None
    is_unseen: bool = False
    calibrates: bool = False
    groups: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.raw)

    classifies = property(lambda self: self.head.classifies, doc="If y are classes.")
    codes = property(lambda self: self.y[:, 0].astype(int), doc="True classes, (n,).")
    loc = property(lambda self: self._normal[0], doc="Means, (n_candidates, n, n_outputs).")
    scale = property(lambda self: self._normal[1], doc="Standard deviations, as `loc`.")

    @cached_property
    def _normal(self) -> tuple[np.ndarray, np.ndarray]:
        loc, scale = zip(*(self.head.moments(raw.astype("float64")) for raw in self.raw))
        return np.stack(loc), np.stack(scale)

    @cached_property
    def proba(self) -> np.ndarray:
        """Probabilities of classes, (n_candidates, n, n_classes)."""
        return self.head.probabilities(np.stack(self.raw).astype("float64"))

    @cached_property
    def log_likelihood(self) -> np.ndarray:
        """Log likelihoods of y, (n_candidates, n)."""
        # Candidate by candidate, to save memory.
        return np.stack([self.head.log_likelihood(self.y, r.astype("float64")) for r in self.raw])

    def fit_class_mixture(
        self,
        indices: Any = slice(None),
        *,
        n_first: int | None = None,
        weights: np.ndarray | None = None,
    ) -> tuple[np.ndarray, Calibration]:
        """Fit weights of classifiers, and the calibration of their mixture.

        See `skuq.ensembles._stacking.fit_class_mixture`, which this calls for the candidates at
        `indices`.
        """
        proba, codes, weight = self.proba[indices], self.codes, self.sample_weight
        weight = np.ones(len(codes)) if weight is None else weight / weight.mean()
        shares = np.bincount(codes, weight, minlength=proba.shape[-1]) + 0.5
        shares /= shares.sum()
        rows = np.flatnonzero(weight)
        if len(rows) > _MOST_STACKED_ROWS:  # drawn at random: more change little
            rows = np.random.default_rng(0).choice(rows, _MOST_STACKED_ROWS, replace=False)
        logits = np.log(np.maximum(proba[:, rows], np.finfo(float).tiny))
        return fit_class_mixture(logits, codes[rows], weight[rows], shares, n_first, weights)

    def fit_correlation(self, selection: Selection) -> tuple[tuple[float, ...], ...]:
        """Fit the correlation of the outputs of an ensemble, see `Calibration`."""
        weight = np.ones(len(self.y)) if self.sample_weight is None else self.sample_weight
        pairs = zip(selection.indices, selection.weights)
        levels = sum(self.head.levels(self.y, self.raw[k][None], np.array([w])) for k, w in pairs)
        return fit_correlation(np.asarray(levels), weight, self.rows)

    def statistics(self, loss: str) -> tuple[Statistics, Loss]:
        """Make the statistics that an ensemble averages, and the loss of their average.

        Parameters
        ----------
        loss : {"auto", "nll", "crps", "mse", "brier", "mixture"}
            See `GreedySelection`.

        Returns
        -------
        statistics, loss :
            The arguments of `select_forward`.
        """
        loss = self.head.selection_loss if loss == "auto" else loss
        if self.classifies and loss == "brier":
            # The difference from the one-hot true class, and its square, summed over classes.
            error = self.proba.copy()
            error[:, np.arange(len(self.y)), self.codes] -= 1
            return (error,), lambda mean: (mean**2).sum(axis=-1)
        if self.classifies or loss == "mixture":
            return _selection.likelihood_statistics(self.log_likelihood)
        return _selection.normal_statistics(self.y, self.loc, self.scale), MOMENT_LOSSES[loss]


class SelectionRule(Settings):
    """Base class of rules for the parameter `selection` of searches.

    A rule of your own is a subclass with a method `choose`.

    Examples
    --------
    >>> import numpy as np
    >>> from skuq.ensembles import Selection, SelectionRule
    >>> class First(SelectionRule):
    ...     def choose(self, candidates, n_members):
    ...         n = min(n_members, len(candidates))
    ...         return Selection(np.arange(n), np.full(n, 1 / n))
    """

    #: Loss by which searches compare ensembles while they run.
    loss = "mixture"
    #: Number of distinct members below which `fit` warns.
    min_members = 2
    #: Whether cross-validation chooses the number of members.
    use_best = False

    def choose(self, candidates: Candidates, n_members: int) -> Selection:
        """Select an ensemble.

        Parameters
        ----------
        candidates : Candidates
            Predictions of the completed trials.
        n_members : int
            Maximum number of distinct members.

        Returns
        -------
        Selection
            Positions among the candidates, and their weights.
        """
        raise NotImplementedError

    def _select_by(self, candidates: Candidates, n_members: int, method: str) -> Selection:
        return _selection.select_by(
            *candidates.statistics(self.loss),
            n_members,
            method,
            use_best=self.use_best,
            sample_weight=candidates.sample_weight,
            groups=candidates.groups,
        )

    def check(self, n_members: int, classifies: bool) -> None:
        """Raise ValueError if the rule cannot select so many members, or from such predictions."""
        check_min_members(self.min_members, n_members)
        losses = CLASS_LOSSES if classifies else NUMBER_LOSSES
        if self.loss not in ("auto", *losses):
            raise ValueError(
                f"`loss` of `selection` must be one of {losses} for "
                f"{'classifiers' if classifies else 'regressors'}. Got {self.loss!r}."
            )


def check_min_members(min_members: int, n_members: int) -> None:
    """Raise ValueError if an ensemble can never have `min_members` members.

    2, the default, does not stand in the way of who wants a single member.
    """
    if min_members > max(n_members, 2):
        raise ValueError(
            f"`min_members` must be at most `n_members`. Got min_members={min_members} and "
            f"n_members={n_members}."
        )


@parameters("ensembles.GreedySelection", kw_only=False)
class GreedySelection(SelectionRule):
    """Add members one by one, with repeats, as long as the loss falls: AutoDEUQ's rule.

    Parameters
    ----------
    loss : {"auto", "nll", "crps", "mse", "brier", "mixture"}, default="auto"
        Loss to minimise. For numbers, "nll" (the paper's) and "crps" score the normal with the
        mixture's mean and variance, "mse" its mean, and "mixture" is minus log of the averaged
        densities. For classes, "nll" and "mixture" are minus log of the averaged probability of
        the true class, and "brier" is the Brier score. "auto" is "nll" of networks that predict
        normals, and "mixture" of all others, whose shape counts.
    min_members : int, default=2
        Minimum number of distinct members, if there are so many. A single member has no epistemic
        uncertainty; 1 is the paper's rule.
    max_size : int, "auto" or None, default="auto"
        Maximum number of members with their repeats, so that no weight is below ``1 / max_size``.
        "auto" is four times `n_members`. None sets no limit, which is the paper's rule.

    See Also
    --------
    select_forward : Selection from arrays, by any loss.

    Examples
    --------
    >>> from skuq.ensembles import GreedySelection
    >>> GreedySelection(loss="crps")
    GreedySelection(loss='crps')
    """

    loss: str = "auto"
    min_members: int = 2
    max_size: int | str | None = "auto"

    _parameter_constraints = {
        "loss": [_LOSS],
        "min_members": [Interval(Integral, 1, None, closed="left")],
        "max_size": [Interval(Integral, 1, None, closed="left"), StrOptions({"auto"}), None],
    }

    def choose(self, candidates: Candidates, n_members: int) -> Selection:
        max_size = math.inf if self.max_size is None else self.max_size
        return _selection.select_forward(
            *candidates.statistics(self.loss),
            n_members,
            max_size=None if isinstance(max_size, str) else max_size,
            min_members=self.min_members,
            min_weight=0.5 / self.min_members,  # half of an equal share among them
            sample_weight=candidates.sample_weight,
        )


@parameters("ensembles.StackingSelection", kw_only=False)
class StackingSelection(SelectionRule):
    """Weigh all candidates by stacking, with a prior for the first ones.

    The prior counts as 20 rows beside those that were held out, and divides the weight evenly among
    the first `n_members` candidates, in a tabular space the recipes that are known to be good: few
    rows do not pick another one by chance. The heaviest `n_members` are kept, and of these the
    lightest, which have at most a fifth of the weight together, are dropped. Of classifiers the
    temperature of the mixture is found with the weights.

    Parameters
    ----------
    min_members : int, default=2
        Minimum number of members, if there are so many.

    References
    ----------
    Y. Yao, A. Vehtari, D. Simpson and A. Gelman, "Using Stacking to Average Bayesian Predictive
    Distributions", Bayesian Analysis 2018.

    Examples
    --------
    >>> from skuq.ensembles import StackingSelection
    >>> StackingSelection(min_members=3)
    StackingSelection(min_members=3)
    """

    min_members: int = 2

    _parameter_constraints = {"min_members": [Interval(Integral, 1, None, closed="left")]}

    def choose(self, candidates: Candidates, n_members: int) -> Selection:
        if candidates.classifies:
            weights, *_ = candidates.fit_class_mixture(n_first=n_members)
        else:
            prior = stacking_prior(len(candidates), n_members)
            weights = stack(candidates.log_likelihood, candidates.sample_weight, prior)
        weights[np.argsort(weights)[:-n_members]] = 0
        weights = drop_light(weights / weights.sum(), min(self.min_members, n_members))
        indices = np.argsort(-weights, kind="stable")[: np.count_nonzero(weights)]
        statistics, loss = candidates.statistics(self.loss)
        mean = [np.tensordot(weights, s, 1)[None] for s in statistics]
        value = float(np.average(loss(*mean)[0], weights=candidates.sample_weight))
        return Selection(indices, weights[indices], value)


@dataclass(eq=False, repr=False)
class AutomaticSelection(SelectionRule):
    """Stack candidates if they have not seen the rows, and otherwise select by the method's rule.

    Parameters
    ----------
    rule : SelectionRule
        Rule of the method, AutoDEUQ or NES.
    """

    rule: SelectionRule

    def choose(self, candidates: Candidates, n_members: int) -> Selection:
        rule = StackingSelection() if candidates.is_unseen else self.rule
        return rule.choose(candidates, n_members)


@parameters("ensembles.ForwardSelection", kw_only=False)
class ForwardSelection(SelectionRule):
    """Add members one by one until there are `n_members`: the rule of NES.

    Parameters
    ----------
    method : {"forward", "replacement", "quick"}, default="forward"
        "forward" adds the candidate that lowers the ensemble's loss most, each at most once.
        "replacement" can add a candidate again, which increases its weight. "quick" goes through
        the candidates once, from the best, and adds each that improves the ensemble; it can end
        with fewer members.
    loss : str, default="mixture"
        Loss to minimise, see `GreedySelection`. For "mixture" the paper's Proposition 3.1 holds.
    use_best : bool, default=False
        Choose the number of members by cross-validation on the held-out rows, from 2 to
        `n_members`, repeats counted.

    Examples
    --------
    >>> from skuq.ensembles import ForwardSelection
    >>> ForwardSelection(use_best=True)
    ForwardSelection(use_best=True)
    """

    method: str = "forward"
    loss: str = "mixture"
    use_best: bool = False

    _parameter_constraints = {
        "method": [StrOptions({"forward", "replacement", "quick"})],
        "loss": [_LOSS],
        "use_best": ["boolean"],
    }

    def choose(self, candidates: Candidates, n_members: int) -> Selection:
        return self._select_by(candidates, n_members, self.method)


@parameters("ensembles.TopSelection", kw_only=False)
class TopSelection(SelectionRule):
    """Take the candidates with the lowest single losses, equally weighted.

    Parameters
    ----------
    loss : str, default="nll"
        Loss to minimise, see `GreedySelection`.
    use_best : bool, default=False
        Choose the number of members by cross-validation on the held-out rows, from 2 to
        `n_members`.

    Examples
    --------
    >>> from skuq.ensembles import TopSelection
    >>> TopSelection("mse")
    TopSelection(loss='mse')
    """

    loss: str = "nll"
    use_best: bool = False

    _parameter_constraints = {"loss": [_LOSS], "use_best": ["boolean"]}

    def choose(self, candidates: Candidates, n_members: int) -> Selection:
        return self._select_by(candidates, n_members, "top")


@saved_as("ensembles.HQSelection")
class HQSelection(SelectionRule):
    """Prune the teams of the 20 best candidates by diversity; members have equal weights.

    See Also
    --------
    select_teams : Choose a team from the predictions of classifiers.

    Examples
    --------
    >>> from skuq.ensembles import HQSelection
    >>> HQSelection()
    HQSelection()
    """

    def choose(self, candidates: Candidates, n_members: int) -> Selection:
        weight = candidates.sample_weight
        if not candidates.classifies:
            return select_hq(candidates.y, candidates.loc, candidates.scale, n_members, weight)
        statistics = candidates.statistics("nll")
        # The best single candidates by NLL: the number of teams grows as a power of the pool.
        pool = _selection.select_best(*statistics, POOL_SIZE, sample_weight=weight).indices
        if len(pool) > 1:  # otherwise there is no team of two
            proba, codes = candidates.proba[pool], candidates.codes
            teams = select_teams(proba, codes, max_team_size=n_members, sample_weight=weight)
            pool = pool[teams.selection.indices]
        # A team is chosen by accuracy; its loss is the NLL that other selections report.
        return _selection.ensemble_of(pool, *statistics, weight)

    def check(self, n_members: int, classifies: bool) -> None:
        super().check(n_members, classifies)
        if n_members < 2:
            raise ValueError(
                f'`n_members` must be at least 2 with `selection="hq"`. Got {n_members}.'
            )


@dataclass(eq=False, repr=False)
class FunctionSelection(SelectionRule):
    """A user's function as a rule.

    Parameters
    ----------
    function : callable
        ``function(*arrays, n_members, sample_weight=...)`` returns a `Selection`.
    arrays : sequence of str
        Attributes of the candidates that it gets.
    """

    function: Callable[..., Any]
    arrays: Sequence[str]

    def choose(self, candidates: Candidates, n_members: int) -> Selection:
        given = [getattr(candidates, name) for name in self.arrays]
        return self.function(*given, n_members, sample_weight=candidates.sample_weight)


#: Short forms of the parameter `selection`. In NES, "top" minimises the loss of the mixture.
SELECTIONS = {
    "auto": GreedySelection,
    "greedy": GreedySelection,
    "forward": ForwardSelection,
    "replacement": lambda: ForwardSelection("replacement"),
    "quick": lambda: ForwardSelection("quick"),
    "top": TopSelection,
    "hq": HQSelection,
    "stacking": StackingSelection,
}
NES_SELECTIONS = {**SELECTIONS, "auto": ForwardSelection, "top": lambda: TopSelection("mixture")}
