"""Enumerate the teams of a pool of models, and compute their strengths and their diversity.

Notation: M models, N rows, C classes. Teams of one size S are an array of sorted model
indices (n_teams, S), in lexicographic order. A strength is a number for each team or model, for
which more is better. F sets of rows; a Q measure of diversity uses one set, and an HQ measure one
set for each focal model.

All Q measures of a team follow from how often *pairs* of its models are wrong together:
if l of S models are right on a row, l (S - l) pairs disagree on it, and (S - l)(S - l - 1) / 2
pairs are both wrong. Therefore the rows are read once, into one matrix for each set, and a team
of any size costs S (S - 1) / 2 look-ups.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations, groupby
from math import comb
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from skuq._params import check_weights
from skuq.ensembles._selection import Loss, Statistics

_CHUNK_BYTES = 2**22  # size of one temporary array
_TIE = 1e-6  # share of the votes by which weights are changed to break ties

#: Function from teams (n_teams, S) to their strengths (n_teams,).
Strength = Callable[[np.ndarray], np.ndarray]


def n_teams(n_models: int, max_size: int) -> int:
    """Count the teams of 2 to `max_size` models."""
    return sum(comb(n_models, size) for size in range(2, max_size + 1))


def all_teams(n_models: int, size: int) -> np.ndarray:
    """List all teams of one size, (n_teams, size)."""
    return np.array(list(combinations(range(n_models), size)), dtype=int).reshape(-1, size)


def extend_teams(alive: np.ndarray, most: int) -> np.ndarray:
    """List the teams of S + 1 models of which every subset of S models is in `alive`.

    `alive` (n_teams, S) are the teams that were not pruned. By induction the new teams contain no
    team that was pruned at any size. Raise ValueError if there are more than `most`.
    """
    size, teams = alive.shape[1], list(map(tuple, alive.tolist()))
    known, extended = set(teams), []
    # As in the Apriori algorithm, two teams that differ only in the last model are joined.
    for prefix, group in groupby(teams, key=lambda team: team[:-1]):
        for pair in combinations([team[-1] for team in group], 2):
            team = prefix + pair
            # Check the other subsets; the two without one of the last models are the joined teams.
            if all(team[:k] + team[k + 1 :] in known for k in range(size - 1)):
                extended.append(team)
        if len(extended) > most:
            raise ValueError(
                f"More than {most:,} teams of {size + 1} models are left to score, and at most "
                f"{most:,} can be. Set `max_team_size` to {size}, or raise `beta`."
            )
    return np.array(extended, dtype=int).reshape(-1, size + 1)


def row_weights(sample_weight: ArrayLike | None, n: int) -> np.ndarray:
    """Check row weights (n,), and scale them to at most 1, since squares of huge sums overflow."""
    return check_weights(sample_weight, np.empty(n), relative=True) if n else np.empty(0)


def vote_weights(accuracy: np.ndarray, weights: str | None) -> np.ndarray:
    """Compute the weights (S,) of members' votes, summing to 1.

    With None they are equal, and with "accuracy" proportional to `accuracy` (S,). A member that
    is always wrong keeps 1e-9 of the best member's weight, since mixtures need positive weights.
    If all members are always wrong, their weights are equal.
    """
    votes = np.ones(len(accuracy))
    if weights == "accuracy" and accuracy.any():
        votes = np.maximum(accuracy / accuracy.max(), 1e-9)
    return votes / votes.sum()


def break_ties(votes: np.ndarray, accuracy: np.ndarray) -> np.ndarray:
    """Change vote weights (..., S) slightly so that no vote is tied, and scale them to sum to 1.

    Shares of votes change by less than 1e-6. The additions halve from one rank by `accuracy` to
    the next, so that a member's addition exceeds the sum of all worse members' additions: tied
    votes go to the side of the most accurate member.
    """
    rank = np.argsort(np.argsort(-accuracy, axis=-1, kind="stable"), axis=-1)
    votes = votes + _TIE * votes.mean(axis=-1, keepdims=True) * 0.5 ** (rank + 1.0)
    return votes / votes.sum(axis=-1, keepdims=True)


def hard_vote_accuracy(
    codes: np.ndarray,
    y: np.ndarray,
    weight: np.ndarray,
    accuracy: np.ndarray,
    votes: np.ndarray | None = None,
    majority: bool = False,
) -> Strength:
    """Make the function that computes the accuracy of teams' plurality votes.

    Ties go to the side of the member with the highest `accuracy` (M,). `votes` (M,) are weights
    of the models, None for equal ones. With `majority` the winner needs more than half of the
    votes, and rows without such a winner count as wrong.
    """
    # Sort the models by accuracy: in a loop over members, the first side to reach a count wins.
    order = np.lexsort((np.arange(len(codes)), -accuracy))
    place = np.argsort(order)  # from a model to its place, the most accurate first
    codes, accuracy = codes[order], accuracy[order]
    votes = None if votes is None else votes[order]
    # Rows on which the same models agree, and the same models are right, are merged into one
    # pattern with the sum of their weights.
    small = np.min_scalar_type(len(codes))
    # A side (a group of models with the same class) is named by its first model.
    sides = [(codes == codes_of_model).argmax(axis=0).astype(small) for codes_of_model in codes]
    pattern = np.concatenate([np.stack(sides), codes == y], dtype=small)
    pattern, row = np.unique(pattern, axis=1, return_inverse=True)
    weight = np.bincount(row.ravel(), weight)
    side, right = pattern[: len(codes)], pattern[len(codes) :].astype(bool)

    def strength(teams: np.ndarray) -> np.ndarray:
        """Compute the accuracy of the vote of each team, given as positions (n_teams, S)."""
        teams = np.sort(place[teams], axis=1)
        return _in_parts(won_weight, teams, teams.shape[1] * side[0].nbytes) / weight.sum()

    def won_weight(teams: np.ndarray) -> np.ndarray:
        """Sum the weights of the rows that each team gets right."""
        members = teams.T
        sides = side[members]  # (S, n_teams, n_patterns)
        if votes is not None:  # (n_teams, S)
            shares = break_ties(votes[teams], accuracy[teams])
        # Largest number of votes so far, and whether its side is right: (n_teams, n_patterns).
        most, won = np.zeros((), side.dtype), np.zeros((), bool)
        for member_side, model in zip(sides, members):
            if votes is None:
                got = (sides == member_side).sum(axis=0, dtype=side.dtype)
            else:
                got = np.einsum("ts,stp->tp", shares, sides == member_side)
            # Only strictly more votes win, so that a tie stays with the more accurate model.
            won = np.where(got > most, right[model], won)
            most = np.maximum(most, got)
        if majority:  # exactly half of the votes, raised by tie breaking, is not a majority
            won = won & (most > (0.5 + _TIE) * (len(members) if votes is None else 1))
        return won @ weight

    return strength


def soft_vote_accuracy(
    proba: np.ndarray, y: np.ndarray, weight: np.ndarray, votes: np.ndarray | None = None
) -> Strength:
    """Make the function that computes the accuracy of teams' averaged probabilities.

    `votes` (M,) are weights of the models, None for equal ones.
    """
    codes = proba.argmax(axis=2)
    # Only rows on which the models disagree need to be averaged for each team.
    contested = (codes != codes[0]).any(axis=0)
    settled = weight[~contested & (codes[0] == y)].sum()
    proba = np.ascontiguousarray(np.moveaxis(proba[:, contested], 2, 1))  # (M, C, n)
    proba = proba * votes[:, None, None] if votes is not None else proba
    truth, share = y[contested], weight[contested]

    def strength(teams: np.ndarray) -> np.ndarray:
        """Compute the accuracy of the vote of each team, given as positions (n_teams, S)."""
        # Sums of the members' probabilities, (n_teams, C, n), without an axis of members.
        total = proba[teams[:, 0]]
        for member in teams.T[1:]:
            total += proba[member]
        # `total.argmax(axis=1)` of (T, C, n), without NumPy's copy to the last axis.
        best, where = total[:, 0].copy(), np.zeros(total[:, 0].shape, dtype=int)
        for k in range(1, total.shape[1]):
            where[total[:, k] > best] = k
            np.maximum(best, total[:, k], out=best)
        return (settled + (where == truth) @ share) / weight.sum()

    return partial(_in_parts, strength, n_bytes=max(1, proba[0].nbytes))


def negative_loss(statistics: Statistics, loss: Loss, weight: np.ndarray) -> Strength:
    """Make the function that computes minus the mean loss of teams' averaged statistics.

    `statistics` are arrays (M, N, ...), and ``loss(*averages)`` has shape (n_teams, N) or more
    trailing axes.
    """

    def strength(teams: np.ndarray) -> np.ndarray:
        """Compute minus the loss of each team, given as positions (n_teams, S)."""
        with np.errstate(all="ignore"):  # a bad member gives a loss of inf or NaN
            rows = loss(*(s[teams].mean(axis=1) for s in statistics))
            rows = rows.reshape(*rows.shape[:2], -1).mean(axis=2)
            return -(rows @ weight) / weight.sum()

    return partial(_in_parts, strength, n_bytes=statistics[0][0].nbytes)


def _in_parts(strength: Strength, teams: np.ndarray, n_bytes: int) -> np.ndarray:
    """Compute the strengths of teams part by part, where each team takes `n_bytes` at a time."""
    step, result = max(1, _CHUNK_BYTES // n_bytes), np.empty(len(teams))
    for start in range(0, len(teams), step):
        result[start : start + step] = strength(teams[start : start + step])
    return result


#: Averaged over pairs: Cohen's kappa, the HQ paper's Formula 1 for it, Q statistics and binary
#: disagreement. Of the whole team: Fleiss' kappa, Kohavi-Wolpert variance, generalised diversity.
MEASURES = ("ck", "ck-formula-1", "qs", "bd", "fk", "kw", "gd")

#: Digits to which scores are rounded, so that teams that are equal get equal scores.
DIGITS = 12
# A denominator below this share of the rows counts as 0: it is rounding of weighted counts.
_ROUNDING = 1e-12


@dataclass(frozen=True, eq=False)
class PairCounts:
    """Errors and agreements of single models and of pairs, counted over F sets of rows.

    Attributes
    ----------
    n : ndarray of shape (F,)
        Total weight of a set's rows.
    wrong : ndarray of shape (F, M)
        Weight of the rows on which a model is wrong.
    both : ndarray of shape (F, M, M)
        Weight of the rows on which two models are both wrong.
    agree : ndarray of shape (F, M, M)
        Weight of the rows on which two models are both right or both wrong.
    chance : ndarray of shape (F, M, M)
        ``n ** 2`` times the share of rows on which independent raters would agree, if each gave
        every rating as often as its model does.
    """

    n: np.ndarray
    wrong: np.ndarray
    both: np.ndarray
    agree: np.ndarray
    chance: np.ndarray

    def scores(self, measure: str, teams: np.ndarray, sets: np.ndarray | int) -> np.ndarray:
        """Compute the diversity score of each team; low means diverse.

        `teams` is (n_teams, S), and `sets` (n_teams,) holds the number of each team's set of rows,
        or one number for all. The paper's formulas (appendix C) are written in counts of pairs.
        Scores are rounded to twelve digits, so that equal teams get equal scores. They are never
        NaN: an undefined ratio 0/0 is 0 for pairs in "ck", "ck-formula-1" and "qs" (no agreement
        beyond chance can be seen), and 1 for "fk" and "gd" (members that never differ are not
        diverse). Without rows, "bd" and "kw" are 1, too.
        """
        sets = np.broadcast_to(sets, len(teams))
        n, size = self.n[sets], teams.shape[1]
        n_pairs = size * (size - 1) / 2
        if measure in ("ck", "ck-formula-1", "qs"):  # the mean over pairs, Formula 4
            score = _pair_sum(self._table(measure), teams, sets) / n_pairs
        elif measure in ("bd", "kw"):
            # "bd": 1 - mean over pairs of (N01 + N10) / N (Formulas 3 and 4).
            # "kw": 1 - sum over rows of l (S - l) / (N S^2), in which l (S - l) counts pairs.
            # Rows of either error without those of both: |A| + |B| - 2 |A and B|.
            disagree = _pair_sum(
                self.wrong[:, :, None] + self.wrong[:, None, :] - 2 * self.both, teams, sets
            )
            score = 1 - _ratio(disagree, n * (n_pairs if measure == "bd" else size**2), 0.0, n)
        elif measure == "gd":  # 1 - GD = p(2) / p(1) (Formula 7)
            alone = self.wrong[sets[:, None], teams].mean(axis=1)  # n p(1): one member fails
            together = _pair_sum(self.both, teams, sets) / n_pairs  # n p(2): two members fail
            score = _ratio(together, alone, 1.0, n)
        else:  # "fk": (p_agree - p_chance) / (1 - p_chance), with all shares times n^2
            agree = _pair_sum(self.agree, teams, sets) / n_pairs
            # Chance agreement of two ratings drawn from the whole team: all S^2 ordered pairs.
            diagonal = sum(self.chance[sets, model, model] for model in teams.T)
            chance = (2 * _pair_sum(self.chance, teams, sets) + diagonal) / size**2
            score = _ratio(n * agree - chance, n**2 - chance, 1.0, n**2)
        return np.round(score, DIGITS) + 0.0  # turns -0.0 into 0.0

    def _table(self, measure: str) -> np.ndarray:
        """Compute a measure of all pairs, (F, M, M).

        "ck" is Cohen's kappa, (p_agree - p_chance) / (1 - p_chance), and "ck-formula-1" the HQ
        paper's Formula 1 for it, as printed. That pairs the brackets of kappa's denominator
        differently: (N11 + N10)(N01 + N00) + (N11 + N01)(N10 + N00), where Cohen's has (N11 +
        N10)(N10 + N00) + (N11 + N01)(N01 + N00). The two are equal only for models of equal
        accuracy or without correlation; otherwise Formula 1 is farther from 0. "qs" is Yule's
        Q = (N11 N00 - N01 N10) / (N11 N00 + N01 N10), Formula 2; 1 means right and 0 wrong.
        """
        n = self.n[:, None, None]
        if measure == "ck":
            return _ratio(n * self.agree - self.chance, n**2 - self.chance, 0.0, n**2)
        if measure == "ck-formula-1":
            first = self.wrong[:, :, None]
            second = np.swapaxes(first, 1, 2)
            product = n * self.both - first * second  # N11 N00 - N01 N10
            return _ratio(2 * product, first * (n - first) + second * (n - second), 0.0, n**2)
        only = self.wrong[:, :, None] - self.both  # the first is wrong, the second right
        neither = n - only - self.wrong[:, None, :]  # both are right
        # Cells are computed as differences: values as small as rounding errors count as 0.
        cells = (neither, self.both, only, np.swapaxes(only, 1, 2))
        n11, n00, n10, n01 = (np.where(cell > _ROUNDING * n, cell, 0.0) for cell in cells)
        agreeing, opposed = n11 * n00, n10 * n01
        return _ratio(agreeing - opposed, agreeing + opposed, 0.0, 0.0)


def _ratio(
    numerator: np.ndarray, denominator: np.ndarray, undefined: float, size: Any
) -> np.ndarray:
    """Divide; return `undefined` if the denominator is negligible compared to `size`."""
    defined = denominator > _ROUNDING * size
    return np.divide(
        numerator, denominator, out=np.full(np.shape(denominator), undefined), where=defined
    )


def _pair_sum(table: np.ndarray, teams: np.ndarray, sets: np.ndarray) -> np.ndarray:
    """Sum a table (F, M, M) over the pairs of each team: (n_teams,)."""
    total = np.zeros(len(teams))
    for first in range(teams.shape[1]):
        for second in range(first + 1, teams.shape[1]):
            total += table[sets, teams[:, first], teams[:, second]]
    return total


def count_pairs(wrong: np.ndarray, sets: Sequence[np.ndarray], weight: np.ndarray) -> PairCounts:
    """Count errors and agreements of models and of pairs, over sets of rows.

    `wrong` (M, N) is True where a model errs, and `sets` holds F arrays of row numbers.
    """
    n_models = len(wrong)
    n, single, both, agree, chance = [], [], [], [], []
    for rows in sets:
        w = weight[rows]  # (n,) for the n rows of this set
        fails = wrong[:, rows].astype(float)  # (M, n)
        n.append(w.sum())
        single.append(fails @ w)
        both.append((fails * w) @ fails.T)  # (M, M)
        pairs = np.zeros((2, n_models, n_models))  # agreement observed, and expected by chance
        for category in np.unique(wrong[:, rows]):
            gives = (wrong[:, rows] == category).astype(float)
            pairs += (gives * w) @ gives.T, np.multiply.outer(gives @ w, gives @ w)
        agree.append(pairs[0])
        chance.append(pairs[1])
    return PairCounts(*map(np.array, (n, single, both, agree, chance)))
