"""Enumerate the teams of a pool of models, and compute their strengths.

Notation: M models, N rows, C classes. Teams of one size S are an array of sorted model
indices (n_teams, S), in lexicographic order. A strength is a number for each team or model, for
which more is better.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations, groupby
from math import comb
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from skuq._checks import check_weights
from skuq.ensembles._types import Loss, Statistics

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
    size = alive.shape[1]
    teams = list(map(tuple, alive.tolist()))
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


def check_teams(teams: Sequence[Any], n_models: int) -> list[np.ndarray]:
    """Check teams, and return each as a sorted array of distinct model indices."""
    checked = []
    for team in teams:
        members = np.asarray(team)
        if (
            members.ndim != 1
            or members.dtype.kind not in "iu"
            or len(members) < 2
            or len(np.unique(members)) < len(members)
            or members.min() < 0
            or members.max() >= n_models
        ):
            raise ValueError(
                "A team must be two or more distinct model indices in "
                f"0..{n_models - 1}. Got {team!r}."
            )
        checked.append(np.sort(members).astype(int))
    return checked


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
        total: np.ndarray = won @ weight
        return total

    return strength


def soft_vote_accuracy(
    proba: np.ndarray,
    y: np.ndarray,
    weight: np.ndarray,
    votes: np.ndarray | None = None,
) -> Strength:
    """Make the function that computes the accuracy of teams' averaged probabilities.

    `votes` (M,) are weights of the models, None for equal ones.
    """
    codes = proba.argmax(axis=2)
    # Only rows on which the models disagree need to be averaged for each team.
    contested = (codes != codes[0]).any(axis=0)
    settled = weight[~contested & (codes[0] == y)].sum()
    proba = np.ascontiguousarray(np.moveaxis(proba[:, contested], 2, 1))  # (M, C, n)
    if votes is not None:
        proba = proba * votes[:, None, None]
    truth, share = y[contested], weight[contested]

    def strength(teams: np.ndarray) -> np.ndarray:
        """Compute the accuracy of the vote of each team, given as positions (n_teams, S)."""
        won = _in_parts(won_weight, teams, max(1, proba[0].nbytes))
        return (settled + won) / weight.sum()

    def won_weight(teams: np.ndarray) -> np.ndarray:
        """Sum the weights of the contested rows that each team gets right."""
        # Sums of the members' probabilities, (n_teams, C, n), without an axis of members.
        total = proba[teams[:, 0]]
        for member in teams.T[1:]:
            total += proba[member]
        return (_first_argmax(total) == truth) @ share

    return strength


def _first_argmax(values: Any) -> np.ndarray:
    """Compute ``values.argmax(axis=1)`` of (T, C, n), without NumPy's copy to the last axis."""
    best, where = values[:, 0].copy(), np.zeros(values[:, 0].shape, dtype=int)
    for k in range(1, values.shape[1]):
        better = values[:, k] > best
        where[better] = k
        np.maximum(best, values[:, k], out=best)
    return where


def negative_loss(statistics: Statistics, loss: Loss, weight: np.ndarray) -> Strength:
    """Make the function that computes minus the mean loss of teams' averaged statistics.

    `statistics` are arrays (M, N, ...), and ``loss(*averages)`` has shape (n_teams, N) or more
    trailing axes.
    """

    def strength(teams: np.ndarray) -> np.ndarray:
        """Compute minus the loss of each team, given as positions (n_teams, S)."""
        return _in_parts(negative_sum, teams, statistics[0][0].nbytes) / weight.sum()

    def negative_sum(teams: np.ndarray) -> np.ndarray:
        """Compute minus the weighted sum of each team's losses."""
        with np.errstate(all="ignore"):  # a bad member gives a loss of inf or NaN
            rows = loss(*(s[teams].mean(axis=1) for s in statistics))
            rows = rows.reshape(*rows.shape[:2], -1).mean(axis=2)
            return -(rows @ weight)

    return strength


def _in_parts(strength: Strength, teams: np.ndarray, n_bytes: int) -> np.ndarray:
    """Compute the strengths of teams part by part, where each team takes `n_bytes` at a time."""
    step = max(1, _CHUNK_BYTES // n_bytes)
    result = np.empty(len(teams))
    for start in range(0, len(teams), step):
        result[start : start + step] = strength(teams[start : start + step])
    return result
