"""Hierarchical diversity pruning: find the diverse and strong teams of a pool of models.

It follows "Deep ensembles with hierarchical diversity pruning" (HQ). It needs only the rows on
which each model is wrong, and a function that computes the strength of teams, so that it works
for labels, probabilities and regression.

Notation: M models, N rows, teams of S models as index arrays (n_teams, S). Low Q and HQ scores
mean diverse teams.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from numbers import Integral, Real
from typing import Any, NamedTuple, Self

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from scipy.stats import rankdata
from sklearn.cluster import KMeans

from skuq import _params
from skuq.ensembles import _teams
from skuq.ensembles._selection import Selection, normal_nll, normal_statistics
from skuq.ensembles._teams import DIGITS, MEASURES, PairCounts, Strength, all_teams, n_teams
from skuq.files._registry import saved_as, saved_record

FILTERS = ("alpha", "kmeans", "mean")

_MOST_SCORED = 2**20  # most teams of one size, or of all sizes without the alpha filter
_MOST_MODELS = 256  # pairs are counted for every focal model: three arrays of M ** 3 numbers
_MOST_LISTED = 100_000  # with more possible teams, `teams_` omits those that were never scored


@dataclass(frozen=True, eq=False)
class Pool:
    """Errors and strengths of a pool of models, as pruning needs them.

    `wrong` (M, N) is True where a model errs, and `weight` (N,) weighs the rows. `strength` maps
    teams (n_teams, S) to their strengths (n_teams,), for which more is better; `model_strength`
    (M,) holds those of single models.
    """

    wrong: np.ndarray
    weight: np.ndarray
    strength: Strength
    model_strength: np.ndarray


#: What the settings of pruning accept.
CONSTRAINTS: dict[str, list[Any]] = {
    "metric": [_params.StrOptions(set(MEASURES)), list, tuple],
    "diversity": [_params.StrOptions({"hq", "q"})],
    "filters": [list, tuple],
    "beta": [_params.Interval(Real, 0, 1, closed="left")],
    "max_team_size": [_params.Interval(Integral, 2, None, closed="left"), None],
    "empty_sizes": [_params.StrOptions({"keep", "drop"})],
    "choose": [_params.StrOptions({"accuracy"}), callable],
    "voting": [_params.StrOptions({"soft", "hard", "majority"}), None],
    "weights": [_params.StrOptions({"accuracy"}), None],
}


@dataclass(frozen=True)
class Rules:
    """Settings of pruning, as documented in `HQEnsembleSelector`."""

    metric: str | Sequence[str] = "gd"
    diversity: str = "hq"
    filters: Sequence[str] = ("alpha", "kmeans")
    beta: float = 0.1
    max_team_size: int | None = None
    empty_sizes: str = "keep"
    choose: str | Callable[..., Any] = "accuracy"
    voting: str | None = None
    weights: str | None = None

    def __post_init__(self) -> None:
        _params.validate_parameter_constraints(CONSTRAINTS, vars(self), "select_teams")
        for name, given, known in (
            ("metric", self.measures, MEASURES),
            ("filters", self.filters, FILTERS),
        ):
            if not all(g in known for g in given) or len(set(given)) < len(given):
                raise ValueError(
                    f"`{name}` must have distinct names out of {list(known)}. "
                    f"Got {getattr(self, name)!r}."
                )
        if not self.measures:
            raise ValueError("`metric` must name at least one measure.")
        # A setting that would have no effect.
        if self.beta != Rules.beta and "alpha" not in self.filters:
            raise ValueError(
                f"`beta` is for the alpha filter. Got beta={self.beta} and `filters`="
                f'{self.filters!r}: add "alpha" to `filters`, or leave out `beta`.'
            )

    def check_pool(
        self, n_models: int, *, most_without_limit: int = 25, advised_size: int = 4
    ) -> Self:
        """Return these rules, or raise ValueError if they cannot prune a pool of `n_models`."""
        if n_models < 2:
            raise ValueError(f"A team needs at least two models. Got a pool of {n_models}.")
        if n_models > _MOST_MODELS:
            raise ValueError(
                f"A pool can have at most {_MOST_MODELS} models. Got {n_models}. Leave out the "
                "weakest ones."
            )
        if self.max_team_size is None and n_models > most_without_limit:
            raise ValueError(
                f"A pool of {n_models} models has {n_teams(n_models, n_models):,} teams. Set "
                f"`max_team_size`, for example to {advised_size}: that leaves "
                f"{n_teams(n_models, advised_size):,}."
            )
        possible = n_teams(n_models, self.largest(n_models))
        if "alpha" not in self.filters and possible > _MOST_SCORED:
            raise ValueError(
                f"Without the alpha filter all {possible:,} teams of up to "
                f"{self.largest(n_models)} of {n_models} models would be scored, and at most "
                f'{_MOST_SCORED:,} can be. Set `max_team_size`, or add "alpha" to `filters`.'
            )
        return self

    def largest(self, n_models: int) -> int:
        """Return the size of the largest teams."""
        return min(n_models, self.max_team_size or n_models)

    @property
    def measures(self) -> tuple[str, ...]:
        """The metrics, one or several."""
        return (self.metric,) if isinstance(self.metric, str) else tuple(self.metric)


@saved_as("ensembles.TeamSelection.Threshold")
class Threshold(NamedTuple):
    """Threshold of a filter: teams with a score of at least `value` were pruned.

    `size` is the size of the teams that it was applied to, or None for all sizes.
    """

    filter: str
    score: str
    size: int | None
    value: float


@saved_record("ensembles.TeamSelection")
class TeamSelection:
    """Result of pruning: the teams of a pool with their scores, and the selected team.

    Attributes
    ----------
    teams_ : DataFrame
        One row for each team: `team` (model indices), `size`, `q` and `hq` (low means diverse),
        `accuracy` (of the team's vote; for regression minus its loss), `alpha` (whether it
        passed the alpha filter), `kept` (whether it passed all filters) and `reason`. Teams that
        contain a pruned team are never scored: their `hq` and `accuracy` are NaN. They are not
        listed if more than 100 000 teams are possible.
    selected_ : tuple of int
        Model numbers of the selected team.
    support_ : ndarray of bool of shape (n_models,)
        The selected team as a mask.
    accuracies_ : ndarray of shape (n_models,)
        Accuracies of the single models.
    weights_ : ndarray of shape (n_members,)
        Weights of the votes of the selected team, summing to 1.
    n_possible_ : int
        Number of possible teams, up to the largest size allowed.
    n_scored_ : int
        Number of teams that were scored.
    thresholds_ : tuple of Threshold
        Thresholds of the filters.

    Examples
    --------
    >>> import numpy as np
    >>> from skuq.ensembles import select_teams
    >>> y = np.array([0, 0, 0, 1, 1, 1])
    >>> labels = np.array([[0, 0, 0, 1, 1, 0], [0, 0, 1, 1, 1, 1],
    ...                    [1, 0, 0, 1, 1, 1], [1, 0, 1, 1, 0, 0]])
    >>> chosen = select_teams(labels, y)
    >>> chosen.selected_, chosen.support_.tolist(), chosen.n_possible_
    ((0, 1, 2), [True, True, True, False], 11)
    """

    teams_: pd.DataFrame
    selected_: tuple[int, ...]
    support_: np.ndarray
    accuracies_: np.ndarray
    weights_: np.ndarray
    n_possible_: int
    n_scored_: int
    thresholds_: tuple[Threshold, ...]

    @property
    def selection(self) -> Selection:
        """The selected team with its weights, as a `Selection`."""
        strength = self.teams_["accuracy"][self.teams_["team"] == self.selected_].item()
        return Selection(np.array(self.selected_), self.weights_, -strength)


def prune(pool: Pool, rules: Rules) -> TeamSelection:
    """Score the teams of a pool, filter them, and choose one."""
    n_models = len(pool.wrong)
    max_size = rules.check_pool(n_models).largest(n_models)
    # A negative sample of the pool is a row on which any model is wrong. Rows on which all are
    # right say nothing about how errors are shared. An HQ score takes each member of a team in
    # turn as its focal model, and counts on the rows on which this one is wrong.
    used = pool.weight > 0
    negatives = [np.flatnonzero(pool.wrong.any(axis=0) & used)]
    wrong_rows = [np.flatnonzero(wrong & used) for wrong in pool.wrong]
    of_pool, focal = (
        _teams.count_pairs(pool.wrong, sets, pool.weight) for sets in (negatives, wrong_rows)
    )
    scored = _score_teams(pool, rules, of_pool, focal)
    # The other filters then see the teams of all sizes together.
    scored["kept"] = scored["alpha"]
    scored["reason"] = np.where(scored["alpha"], "", "alpha: among the least diverse of its size")
    thresholds, score = [], rules.diversity
    for name in rules.filters:
        if name == "kmeans":
            thresholds += _kmeans_filter(scored, rules)
        elif name == "mean":  # below the mean of all teams kept so far (HQ, Algorithm 1)
            kept = scored.index[scored["kept"]]
            mean = scored.loc[kept, score].mean()
            thresholds += _cut(scored, kept, Threshold("mean", score, size=None, value=mean))
    selected = _choose(scored, rules)
    n_possible = n_teams(n_models, max_size)
    frame = scored
    if n_possible <= _MOST_LISTED:
        frame = _with_unscored(scored, of_pool, n_models, max_size, rules)
    support = np.zeros(n_models, bool)
    support[list(selected)] = True
    return TeamSelection(
        teams_=frame,
        selected_=selected,
        support_=support,
        accuracies_=pool.model_strength,
        weights_=_teams.vote_weights(pool.model_strength[list(selected)], rules.weights),
        n_possible_=n_possible,
        n_scored_=len(scored),
        thresholds_=tuple(thresholds),
    )


def _score_teams(pool: Pool, rules: Rules, of_pool: PairCounts, focal: PairCounts) -> pd.DataFrame:
    """Score the teams of each size, and apply the alpha filter to them.

    It works from small teams to large ones (Algorithm 3): teams of S + 1 models are only made of
    teams of S models that passed it.
    """
    n_models = len(pool.wrong)
    rounds, alive = [], None
    for size in range(2, rules.largest(n_models) + 1):
        teams = (
            all_teams(n_models, size) if alive is None else _teams.extend_teams(alive, _MOST_SCORED)
        )
        if not len(teams):
            break
        scored = pd.DataFrame({"team": list(map(tuple, teams.tolist())), "size": size})
        scored["q"] = _q(of_pool, rules, teams)
        scored["hq"] = _hq(focal, rules, teams, pool.model_strength)
        scored["accuracy"] = np.round(pool.strength(teams), DIGITS)
        # The alpha filter prunes the share `beta` of the highest scores. Algorithm 3 leaves ties
        # open. Among teams with equal scores the least accurate is pruned first; among equally
        # accurate ones the first in order.
        pruned = np.zeros(len(scored), bool)
        if "alpha" in rules.filters:
            score = scored[rules.diversity]
            worst = np.lexsort((np.arange(len(scored)), scored["accuracy"], -score))
            pruned[worst[: int(rules.beta * len(scored) + 1e-9)]] = True
        scored["alpha"] = ~pruned
        rounds.append(scored)
        alive = teams[~pruned] if "alpha" in rules.filters else None
    return pd.concat(rounds, ignore_index=True)


def _q(of_pool: PairCounts, rules: Rules, teams: np.ndarray) -> np.ndarray:
    """Compute Q scores of teams, (n_teams,): means over measures, on the pool's negatives."""
    return np.mean([of_pool.scores(measure, teams, 0) for measure in rules.measures], axis=0)


def _hq(
    focal: PairCounts, rules: Rules, teams: np.ndarray, model_strength: np.ndarray
) -> np.ndarray:
    """Compute HQ scores of all unpruned teams of one size, (n_teams,) (Algorithm 2)."""
    scores = np.zeros(teams.shape)  # (n_teams, S): one score for each member as focal model
    for measure in rules.measures:
        # Lines 7-14: the team's score on the negatives of each of its members.
        unscaled = np.stack([focal.scores(measure, teams, members) for members in teams.T], axis=1)
        # Lines 15-18: scale to [0, 1] over the teams of each focal model. Scores that are equal
        # for all of them stay, for example those of the only team that has all models.
        low, high = np.full((2, len(model_strength)), [[np.inf], [-np.inf]])
        np.minimum.at(low, teams, unscaled)
        np.maximum.at(high, teams, unscaled)
        spread = (high - low)[teams]
        varied = spread > 0
        scaled = (unscaled - low[teams]) / np.where(varied, spread, 1.0)
        scores += np.where(varied, scaled, unscaled)
    # Lines 26-27: a mean weighted by the members' ranks by accuracy, the best with most weight.
    ranks = rankdata(model_strength[teams], axis=1)
    # A model that is never wrong has no negatives: its score as focal model says nothing.
    sees = focal.n[teams] > 0
    weights = np.where(sees, ranks, 0.0)
    # Teams without any positive weight: equal weights for members with negatives, or for all.
    blind = ~(weights > 0).any(axis=1)
    weights[blind] = np.where(sees[blind].any(axis=1, keepdims=True), sees[blind], 1.0)
    means = (scores * weights).sum(axis=1) / weights.sum(axis=1) / len(rules.measures)
    return np.round(means, DIGITS)


def _kmeans_filter(scored: pd.DataFrame, rules: Rules) -> list[Threshold]:
    """Keep the teams of each size that score below the weak one of two clusters (section 2.2).

    Clusters are found by K-means in the plane of diversity score and accuracy, both scaled to
    [0, 1]. The threshold is the lowest score in the cluster of low accuracy. `scored` is changed in
    place. Where no team of any size would be left, sizes without one below are kept.
    """
    thresholds, score, before = [], rules.diversity, scored[["kept", "reason"]].copy()
    may_empty = rules.empty_sizes == "drop"
    # HQ scores are scaled within each size, so that each has its own clusters and threshold.
    for size, group in scored[scored["kept"]].groupby("size"):
        points = np.stack([_scale_to_unit(group[score]), _scale_to_unit(group["accuracy"])], axis=1)
        if len(group) < 3:
            _skip(scored, group.index, "kmeans", "fewer than three teams")
        elif len(np.unique(points, axis=0)) < 2:
            _skip(scored, group.index, "kmeans", "all teams have equal scores and accuracies")
        else:
            # Start from the ideal corner (diverse, strong) and its opposite.
            corners = np.array([[0.0, 1.0], [1.0, 0.0]])
            clusters = KMeans(2, init=corners, n_init=1).fit(points)
            strong, weak = clusters.cluster_centers_[:, 1]  # accuracies, in the corners' order
            weak = clusters.labels_ == (0 if strong < weak else 1)
            threshold = group[score][weak].min()
            cut = Threshold("kmeans", score, size, threshold)
            thresholds += _cut(scored, group.index, cut, may_empty)
    if not scored["kept"].any():
        scored[["kept", "reason"]] = before
        return _kmeans_filter(scored, replace(rules, empty_sizes="keep"))
    return thresholds


def _cut(
    scored: pd.DataFrame, index: pd.Index, threshold: Threshold, may_empty: bool = False
) -> list[Threshold]:
    """Drop the teams at or above a threshold, and return it; keep all if none would be left."""
    name, score, _, value = threshold
    dropped = index[scored.loc[index, score] >= value]
    if len(dropped) == len(index) and not may_empty:
        _skip(scored, index, name, "nothing would be left")
        return []
    scored.loc[dropped, "kept"] = False
    scored.loc[dropped, "reason"] = f"{name}: {score} not below {value:.4g}"
    return [threshold]


def _skip(scored: pd.DataFrame, index: pd.Index, name: str, why: str) -> None:
    """Note for these teams that a filter was skipped, and why."""
    note = f"{name} skipped: {why}"
    before = scored.loc[index, "reason"]
    scored.loc[index, "reason"] = np.where(before == "", note, before + "; " + note)


def _scale_to_unit(values: Any) -> Any:
    """Scale values to [0, 1]; equal values become 0."""
    spread = values.max() - values.min()
    return (values - values.min()) / spread if spread > 0 else values * 0.0


def _choose(scored: pd.DataFrame, rules: Rules) -> tuple[int, ...]:
    """Choose one of the teams kept: the most accurate one, or the choice of a user's function."""
    survivors = scored[scored["kept"]].drop(columns=["alpha", "kept", "reason"])
    if not callable(rules.choose):  # "accuracy"; ties go to smaller, then to more diverse teams
        order = survivors.sort_values(
            ["accuracy", "size", rules.diversity], ascending=[False, True, True], kind="stable"
        )
        return order["team"].iloc[0]
    label = rules.choose(survivors.copy())
    if not np.isscalar(label) or label not in survivors.index:
        raise ValueError(
            "`choose` must return a label of the index of the DataFrame that it gets. "
            f"Got {label!r}; the first labels are {survivors.index[:5].tolist()}."
        )
    return survivors["team"][label]


def _with_unscored(
    scored: pd.DataFrame, of_pool: PairCounts, n_models: int, max_size: int, rules: Rules
) -> pd.DataFrame:
    """Add the teams that were never scored, and sort by size and members."""
    known, missing = set(scored["team"]), []
    for size in range(2, max_size + 1):
        teams = [team for team in all_teams(n_models, size).tolist() if tuple(team) not in known]
        if teams:
            # Q needs no focal models and is cheap; HQ and the accuracy stay unknown, NaN.
            q = _q(of_pool, rules, np.array(teams))
            missing.append(pd.DataFrame({"team": list(map(tuple, teams)), "size": size, "q": q}))
    if not missing:
        return scored
    reason = "alpha: contains a pruned team, never scored"
    missing = pd.concat(missing).assign(alpha=False, kept=False, reason=reason)
    frame = pd.concat([scored, missing], ignore_index=True)
    return frame.sort_values(["size", "team"], ignore_index=True)


# Number of candidates that searches build teams from: 20 have 21 679 teams of up to five.
POOL_SIZE = 20
# Share of the rows on which the best regressor counts as wrong. For normal errors these are the
# rows with an error above about one standard deviation.
_WRONG_SHARE = 1 / 3


def prune_classifiers(
    codes: np.ndarray, proba: np.ndarray | None, y: np.ndarray, weight: np.ndarray, rules: Rules
) -> TeamSelection:
    """Prune the teams of a pool of classifiers. The arguments must have been checked before.

    `codes` (M, N) are the models' classes. `proba` (M, N, C) are their probabilities if teams
    average these, or None if teams vote by labels. `y` (N,) are the true classes, with -1 for a
    class that no model knows.
    """
    wrong = codes != y
    # Rounded, so that models of equal accuracy stay equal: ties are broken by accuracy.
    accuracy = np.round(~wrong @ weight / weight.sum(), DIGITS)
    votes = None if rules.weights is None else _teams.vote_weights(accuracy, rules.weights)
    if proba is None:
        majority = rules.voting == "majority"
        strength = _teams.hard_vote_accuracy(codes, y, weight, accuracy, votes, majority)
    else:
        strength = _teams.soft_vote_accuracy(proba, y, weight, votes)
    return prune(Pool(wrong, weight, strength, accuracy), rules)


def select_teams(
    predictions: ArrayLike,
    y: ArrayLike,
    *,
    metric: str | Sequence[str] = "gd",
    diversity: str = "hq",
    filters: Sequence[str] = ("alpha", "kmeans"),
    beta: float = 0.1,
    max_team_size: int | None = None,
    empty_sizes: str = "keep",
    voting: str | None = None,
    weights: str | None = None,
    choose: str | Callable[..., Any] = "accuracy",
    classes: ArrayLike | None = None,
    sample_weight: ArrayLike | None = None,
) -> TeamSelection:
    """Choose a small, diverse, strong team from the predictions of a pool of classifiers.

    Parameters
    ----------
    predictions : array-like of shape (n_models, n_samples) or (n_models, n_samples, n_classes)
        Labels or probabilities, on rows that the models were not trained on.
    y : array-like of shape (n_samples,)
        True labels. With probabilities, these are class numbers 0 to n_classes - 1 or labels in
        `classes`.
    metric, diversity, filters, beta, max_team_size, empty_sizes, choose
        See `HQEnsembleSelector`.
    voting : {"soft", "hard", "majority"}, optional
        Rule by which a team votes; by default "soft" for probabilities and "hard" for labels.
    weights : {"accuracy"}, optional
        Weights of the votes, equal by default. See `HQEnsembleSelector`.
    classes : array-like of shape (n_classes,), optional
        Labels of the columns of probabilities. By default the class numbers if y has
        no other labels, otherwise the sorted labels of y.
    sample_weight : array-like of shape (n_samples,), optional
        Non-negative weights of the rows.

    Returns
    -------
    TeamSelection

    Raises
    ------
    ValueError
        If the shapes of predictions and y do not agree, there is only one model, or there are
        too many teams.

    References
    ----------
    Anonymous authors, "Deep Ensembles with Hierarchical Diversity Pruning", under review at ICLR
    2021, Algorithms 1 to 3.

    Examples
    --------
    >>> import numpy as np
    >>> y = np.array([0, 0, 0, 1, 1, 1])
    >>> labels = np.array([[0, 0, 0, 1, 1, 0], [0, 0, 1, 1, 1, 1],
    ...                    [1, 0, 0, 1, 1, 1], [1, 0, 1, 1, 0, 0]])
    >>> chosen = select_teams(labels, y)
    >>> chosen.selected_
    (0, 1, 2)
    """
    pruning = metric, diversity, filters, beta, max_team_size, empty_sizes
    rules = Rules(*pruning, choose, voting, weights)
    predictions = np.asarray(_params.fill_masked(predictions))
    if predictions.ndim not in (2, 3) or not predictions.size:
        raise ValueError(
            "`predictions` must be labels (n_models, n_samples) or probabilities (n_models, "
            "n_samples, n_classes), on the same rows for all models, with at least one row. "
            f"Got shape {predictions.shape}."
        )
    y = np.asarray(_params.fill_masked(y))
    if y.shape != predictions.shape[1:2] or not len(y):
        raise ValueError(
            f"`predictions` have {predictions.shape[1]} rows, so `y` must have shape "
            f"({predictions.shape[1]},). Got {y.shape}."
        )
    weight = _teams.row_weights(sample_weight, len(y))
    if any(pd.isna(of[weight > 0]).any() for of in (y, *predictions)):
        raise ValueError("`predictions` and `y` must have no missing values: leave out their rows.")
    proba = None  # to average; without them teams vote by labels
    if predictions.ndim == 3:
        codes, y = _probability_codes(predictions, y, classes)
        if voting in (None, "soft"):
            proba = predictions.astype(float)
    elif voting == "soft":
        raise ValueError(
            '`voting="soft"` needs probabilities (n_models, n_samples, n_classes). Got labels '
            f'of shape {predictions.shape}; use `voting="hard"` or "majority".'
        )
    else:
        # Number predicted and true labels by one common list of labels.
        textual = [isinstance(array.ravel()[0], str) for array in (predictions, y)]
        if textual[0] != textual[1]:
            raise ValueError(
                f"`predictions` are labels of type {predictions.dtype}, `y` of type {y.dtype}: no "
                "label could be right. Convert one of them."
            )
        _, numbers = np.unique(np.concatenate([predictions.ravel(), y]), return_inverse=True)
        codes = numbers[: predictions.size].reshape(predictions.shape)
        y = numbers[predictions.size :]
    return prune_classifiers(codes, proba, y, weight, rules)


def _probability_codes(
    proba: np.ndarray, y: np.ndarray, classes: ArrayLike | None
) -> tuple[np.ndarray, np.ndarray]:
    """Return predicted (M, N) and true classes (N,) as column numbers of the probabilities."""
    n_classes = proba.shape[2]
    usable = proba.dtype.kind in "fiu" and (proba >= 0).all()  # NaN >= 0 is False, too
    if not usable or not np.allclose(proba.sum(axis=2), 1, atol=1e-3):
        raise ValueError(
            "`predictions` with three axes must be probabilities: non-negative, with sums of 1 "
            "over the last axis. Convert logits by `scipy.special.softmax(logits, axis=-1)`."
        )
    # Whole numbers from 0 to C - 1 are column numbers already.
    numbers = y.dtype.kind in "iu" and y.min() >= 0 and y.max() < n_classes
    if classes is None and numbers:
        return proba.argmax(axis=2), y.astype(int)
    known = np.unique(y) if classes is None else np.asarray(classes)
    if known.shape != (n_classes,):
        raise ValueError(
            f"The probabilities have {n_classes} columns, and "
            f"{'`y`' if classes is None else '`classes`'} has {len(known)} classes. Give "
            f"{n_classes} `classes`, in the order of the columns."
        )
    problem = "`y` has labels that are not in `classes`"
    return proba.argmax(axis=2), _params.class_codes(y, known, problem)


def select_hq(
    y: np.ndarray,
    loc: np.ndarray,
    scale: np.ndarray,
    n_members: int,
    sample_weight: ArrayLike | None = None,
) -> Selection:
    """Select a regressor's members by hierarchical diversity (HQ) pruning.

    A candidate is *wrong* on a row if its error is larger than a tolerance, which the best
    candidate exceeds on a third of the rows. For normal errors the tolerance is about one standard
    deviation, and the best candidate has enough wrong rows for any distribution of its errors.
    Among the diverse teams that pruning keeps, the one whose moment-matched mixture has the lowest
    NLL is chosen; its members have equal weights.

    Parameters
    ----------
    y : ndarray of shape (n_samples,) or (n_samples, n_outputs)
        Targets of rows that the candidates were not trained on. The error of a row is the root
        mean square over outputs.
    loc, scale : ndarray of shape (n_candidates, n_samples) or (.., n_outputs), as y
        Means and standard deviations of the candidates, in the units of y.
    n_members : int
        Maximum number of members of a team; at least 2.
    sample_weight : ndarray of shape (n_samples,), optional
        Non-negative weights of the rows.
    """
    statistics = normal_statistics(y, loc, scale)
    weight = _teams.row_weights(sample_weight, len(statistics[0][0]))
    # The pool: the best single candidates that have a finite loss.
    # A single candidate's strength is that of a team of one.
    strength = _teams.negative_loss(statistics, normal_nll, weight)(np.arange(len(loc))[:, None])
    best = np.argsort(np.where(np.isfinite(strength), -strength, np.inf), kind="stable")
    best = best[: min(POOL_SIZE, int(np.isfinite(strength).sum()))]
    if not len(best):
        raise ValueError("No candidate has a finite loss on the rows to select on.")
    # A team needs two models: with one candidate there is nothing to prune.
    if len(best) == 1:
        return Selection(best, np.ones(1), -float(strength[best[0]]))
    error, second_moment = (s[best] for s in statistics)
    # Root mean square errors over outputs, (n_pool, n_samples).
    squares = np.square(error)
    errors = np.sqrt(squares.reshape(*squares.shape[:2], -1).mean(axis=2))
    # The tolerance: the error that the best candidate exceeds on a third of the rows, by weight.
    order = np.argsort(-errors[0])
    beyond = np.cumsum(weight[order]) > _WRONG_SHARE * weight.sum()
    tolerance = errors[0][order][np.argmax(beyond)]
    pool = Pool(
        errors > tolerance,
        weight,
        _teams.negative_loss((error, second_moment), normal_nll, weight),
        strength[best],
    )
    chosen = prune(pool, Rules(max_team_size=n_members)).selection
    # From positions in the pool to numbers of candidates.
    return Selection(np.sort(best[chosen.indices]), chosen.weights, chosen.loss)
