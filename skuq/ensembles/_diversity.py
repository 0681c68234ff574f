"""Diversity of the members of an ensemble.

Notation: M models, N rows, teams of S models as index arrays (n_teams, S); F sets of rows
(Q measures have one, HQ measures one a focal model).

All Q measures of a team follow from how often *pairs* of its models are wrong together:
with l of S models right on a row, l (S - l) is the number of its pairs that disagree, and
(S - l)(S - l - 1) / 2 the number of pairs that are both wrong. So the rows are read once,
into one matrix a set, and a team of any size costs S (S - 1) / 2 look-ups.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.spatial.distance import pdist

from skuq.ensembles._teams import check_teams, row_weights

#: Cohen's kappa, Formula 1 of the HQ paper, Q statistics, binary disagreement (averaged over
#: pairs); Fleiss' kappa, Kohavi-Wolpert variance, generalised diversity.
MEASURES = ("ck", "ck-formula-1", "qs", "bd", "fk", "kw", "gd")

# Share of the rows below which a denominator counts as 0: rounding of weighted counts.
_ROUNDING = 1e-12


@dataclass(frozen=True, eq=False)
class PairCounts:
    """Counts of what models do alone and in pairs, over F sets of rows.

    Attributes
    ----------
    n : ndarray of shape (F,)
        Weight of the rows of a set.
    wrong : ndarray of shape (F, M)
        Weight of the rows on which a model is wrong.
    both : ndarray of shape (F, M, M)
        Weight of the rows on which two models are wrong.
    agree : ndarray of shape (F, M, M)
        Weight of the rows on which two raters agree: on being right or wrong, or on labels.
    chance : ndarray of shape (F, M, M)
        ``n ** 2`` times the share on which raters with these habits agree by chance.
    """

    n: np.ndarray
    wrong: np.ndarray
    both: np.ndarray
    agree: np.ndarray
    chance: np.ndarray

    def scores(self, measure: str, teams: np.ndarray, sets: np.ndarray | int) -> np.ndarray:
        """Score each team (n_teams, S) on its set (n_teams,) or 0; low is diverse.

        Scores are rounded to twelve digits, so that equal teams stay equal.
        """
        sets = np.broadcast_to(sets, len(teams))
        n, size = self.n[sets], teams.shape[1]
        n_pairs = size * (size - 1) / 2
        if measure in _TABLES:
            score = _pair_sum(_TABLES[measure](self), teams, sets) / n_pairs
        elif measure in ("bd", "kw"):
            disagree = _pair_sum(self._disagree(), teams, sets)
            score = 1 - _ratio(disagree, n * (n_pairs if measure == "bd" else size**2), 0.0, n)
        elif measure == "gd":
            alone = self.wrong[sets[:, None], teams].mean(axis=1)  # n p(1)
            together = _pair_sum(self.both, teams, sets) / n_pairs  # n p(2)
            score = _ratio(together, alone, 1.0, n)
        else:
            agree = _pair_sum(self.agree, teams, sets) / n_pairs
            own = sum(self.chance[sets, model, model] for model in teams.T)
            chance = (2 * _pair_sum(self.chance, teams, sets) + own) / size**2
            score = _ratio(n * agree - chance, n**2 - chance, 1.0, n**2)
        return np.round(score, 12) + 0.0  # without -0

    def _disagree(self) -> np.ndarray:
        return self.wrong[:, :, None] + self.wrong[:, None, :] - 2 * self.both

    def _cohen(self) -> np.ndarray:
        n2 = self.n[:, None, None] ** 2
        return _ratio(self.n[:, None, None] * self.agree - self.chance, n2 - self.chance, 0.0, n2)

    def _formula_1(self) -> np.ndarray:
        n, first = self.n[:, None, None], self.wrong[:, :, None]
        second = np.swapaxes(first, 1, 2)
        product = n * self.both - first * second  # N11 N00 - N01 N10
        return _ratio(2 * product, first * (n - first) + second * (n - second), 0.0, n**2)

    def _yule(self) -> np.ndarray:
        n = self.n[:, None, None]
        only = self.wrong[:, :, None] - self.both  # the first is wrong, the second right
        neither = n - only - self.wrong[:, None, :]
        # Cells are differences: what is left of rounding is 0.
        cells = (neither, self.both, only, np.swapaxes(only, 1, 2))
        n11, n00, n10, n01 = (np.where(cell > _ROUNDING * n, cell, 0.0) for cell in cells)
        alike, apart = n11 * n00, n10 * n01
        return _ratio(alike - apart, alike + apart, 0.0, 0.0)


_TABLES = {
    "ck": PairCounts._cohen,
    "ck-formula-1": PairCounts._formula_1,
    "qs": PairCounts._yule,
}


def _ratio(
    numerator: np.ndarray, denominator: np.ndarray, undefined: float, size: Any
) -> np.ndarray:
    """Divide; `undefined` where the denominator is 0 compared to `size`."""
    defined = denominator > _ROUNDING * size
    return np.divide(
        numerator, denominator, out=np.full(np.shape(denominator), undefined), where=defined
    )


def _pair_sum(table: np.ndarray, teams: np.ndarray, sets: np.ndarray) -> np.ndarray:
    """Sum of a table (F, M, M) over the pairs of each team: (n_teams,)."""
    total = np.zeros(len(teams))
    for first in range(teams.shape[1]):
        for second in range(first + 1, teams.shape[1]):
            total += table[sets, teams[:, first], teams[:, second]]
    return total


def count_pairs(
    wrong: np.ndarray,
    sets: Sequence[np.ndarray],
    weight: np.ndarray,
    labels: np.ndarray | None = None,
) -> PairCounts:
    """Count what models do alone and in pairs over sets of rows.

    `wrong` (M, N) says where each model errs, `sets` holds positions of rows, and `labels` (M, N)
    are ratings for `agree` and `chance`, by default being right or wrong.
    """
    n_models = len(wrong)
    ratings = wrong if labels is None else labels
    n, single, both, agree, chance = [], [], [], [], []
    for rows in sets:
        w = weight[rows]
        fails = wrong[:, rows].astype(float)
        n.append(w.sum())
        single.append(fails @ w)
        both.append((fails * w) @ fails.T)
        pairs = np.zeros((2, n_models, n_models))
        for category in np.unique(ratings[:, rows]):
            gives = (ratings[:, rows] == category).astype(float)
            pairs += (gives * w) @ gives.T, np.multiply.outer(gives @ w, gives @ w)
        agree.append(pairs[0])
        chance.append(pairs[1])
    return PairCounts(*map(np.array, (n, single, both, agree, chance)))


def diversity_score(
    predictions: ArrayLike,
    y: ArrayLike | None = None,
    *,
    measure: str = "gd",
    teams: Sequence[Sequence[int]] | None = None,
    on: str = "correctness",
    sample_weight: ArrayLike | None = None,
) -> float | np.ndarray:
    """Compute a Q measure of teams' diversity; low means diverse.

    Parameters
    ----------
    predictions : array-like of shape (n_models, n_samples)
        Whether each model is right (booleans), or the labels it gives if `y` is given or
        ``on="labels"``.
    y : array-like of shape (n_samples,), optional
        The true labels.
    measure : {"ck", "ck-formula-1", "qs", "bd", "fk", "kw", "gd"}, default="gd"
        Cohen's kappa, the HQ paper's Formula 1 for it (see Notes), Q statistics and binary
        disagreement, averaged over pairs; Fleiss' kappa, Kohavi-Wolpert variance and
        generalised diversity. "bd", "kw" and "gd" are one minus the measure, so that low means
        diverse for all.
    teams : sequence of sequences of int, optional
        Which models make a team; by default all of them make one.
    on : {"correctness", "labels"}, default="correctness"
        Ratings that "ck" and "fk" compare: being right or wrong, as in the paper, or the labels
        themselves, as in its released code. The other measures use correctness only.
    sample_weight : array-like of shape (n_samples,), optional
        Non-negative.

    Returns
    -------
    float or ndarray of shape (n_teams,)
        A number if `teams` is not given. Never NaN: where a measure is 0/0 it is 0 for a pair of
        "ck", "ck-formula-1" or "qs" (no agreement beyond chance can be seen) and 1 for "fk" and
        "gd" (members that never differ are not diverse); without rows "bd" and "kw" are 1 too.

    Raises
    ------
    ValueError
        If shapes, a team or the measure cannot be used.

    Notes
    -----
    The rows are used as given. The HQ paper measures on negative samples: rows on which
    at least one model is wrong (Q), or the focal model is (HQ).

    "ck" is Cohen's kappa: 2 (N11 N00 - N01 N10) / ((N11 + N10)(N10 + N00) + (N11 + N01)(N01 +
    N00)). "ck-formula-1" is the paper's Formula 1 to the letter, which pairs the brackets of the
    denominator otherwise: (N11 + N10)(N01 + N00) + (N11 + N01)(N10 + N00). The two are the same
    only for models of equal accuracy or without correlation; otherwise Formula 1 is farther
    from 0.

    References
    ----------
    "Deep ensembles with hierarchical diversity pruning", appendix C, Formulas 1 to 7.

    Examples
    --------
    >>> right = [[True, True, False, False], [True, False, True, False]]
    >>> diversity_score(right, measure="bd"), diversity_score(right, measure="gd")
    (0.5, 0.5)
    """
    if measure not in MEASURES:
        raise ValueError(f"`measure` must be one of {list(MEASURES)}. Got {measure!r}.")
    if on not in ("correctness", "labels"):
        raise ValueError(f"`on` must be 'correctness' or 'labels'. Got {on!r}.")
    predictions = np.asarray(predictions)
    if predictions.ndim != 2 or not predictions.shape[0]:
        raise ValueError(
            f"`predictions` must be (n_models, n_samples). Got shape {predictions.shape}."
        )
    n_models, n_samples = predictions.shape
    if on == "labels":
        labels, wrong = _number_labels(predictions, measure), np.zeros(predictions.shape, bool)
    else:
        labels, wrong = None, _wrong(predictions, y)
    weight = row_weights(sample_weight, n_samples)
    counts = count_pairs(wrong, [np.arange(n_samples)], weight, labels)
    members = check_teams([range(n_models)] if teams is None else list(teams), n_models)
    scores = np.array([counts.scores(measure, team[None], 0)[0] for team in members])
    return float(scores[0]) if teams is None else scores


def _number_labels(labels: np.ndarray, measure: str) -> np.ndarray:
    """Number labels (M, N), for a measure that can be taken on labels."""
    if measure not in ("ck", "fk"):
        raise ValueError(f'Only "ck" and "fk" can be taken on labels. Got {measure!r}.')
    return np.unique(labels, return_inverse=True)[1].reshape(labels.shape)


def _wrong(predictions: np.ndarray, y: ArrayLike | None) -> np.ndarray:
    """Whether each model is wrong on each row, from labels and `y` or from booleans."""
    if y is None:
        if predictions.dtype == bool:
            return ~predictions
        raise ValueError(
            "Without `y`, `predictions` must be booleans: is the model right? "
            f"Got {predictions.dtype}."
        )
    y = np.asarray(y)
    if y.shape != predictions.shape[1:]:
        raise ValueError(f"`y` must have shape {predictions.shape[1:]}. Got {y.shape}.")
    if (y.dtype.kind in "US") != (predictions.dtype.kind in "US"):
        raise ValueError(
            f"`predictions` are of type {predictions.dtype}, `y` of type {y.dtype}: no label "
            "could be right."
        )
    return predictions != y


def architecture_diversity(embeddings: ArrayLike) -> float:
    """Diversity score of a set of architectures (AutoDEUQ III.B.2).

    Parameters
    ----------
    embeddings : array-like of shape (n_members, n_decisions)
        One integer a decision: the position of the value taken.

    Returns
    -------
    float
        The Euclidean distances of all pairs of *distinct* rows, divided by the norm of
        the vector they make, summed. Between 1 (one pair) and sqrt(n (n - 1) / 2) (all
        pairs equally far apart); 0 for fewer than two distinct architectures.

    Notes
    -----
    The paper prints scores above sqrt(10), the bound for five members counted once, so
    it must have counted repeated members; we do not.

    References
    ----------
    Egele et al., "AutoDEUQ", section III.B.2.

    Examples
    --------
    >>> architecture_diversity([[0, 0], [3, 4], [0, 0]])
    1.0
    """
    distances = pdist(np.unique(np.asarray(embeddings, dtype=float), axis=0))
    norm = np.linalg.norm(distances)
    return float(distances.sum() / norm) if norm > 0 else 0.0
