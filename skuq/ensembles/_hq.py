"""Select a team from predictions by HQ pruning, for classification and for regression.

Notation: M models, N rows, C classes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from skuq._utils._checks import class_codes, fill_masked
from skuq.ensembles._pruning import Pool, Rules, TeamSelection, prune
from skuq.ensembles._selection import Selection, normal_nll, normal_statistics
from skuq.ensembles._teams import (
    hard_vote_accuracy,
    negative_loss,
    row_weights,
    soft_vote_accuracy,
    vote_weights,
)

# Number of candidates that searches build teams from: 20 have 21 679 teams of up to five.
POOL_SIZE = 20
# Share of the rows on which the best regressor counts as wrong. For normal errors these are the
# rows with an error above about one standard deviation.
_WRONG_SHARE = 1 / 3


def prune_classifiers(
    codes: np.ndarray,
    proba: np.ndarray | None,
    y: np.ndarray,
    weight: np.ndarray,
    rules: Rules,
) -> TeamSelection:
    """Prune the teams of a pool of classifiers. The arguments must have been checked before.

    `codes` (M, N) are the models' classes. `proba` (M, N, C) are their probabilities if teams
    average these, or None if teams vote by labels. `y` (N,) are the true classes, with -1 for a
    class that no model knows.
    """
    wrong = codes != y
    # Rounded, so that models of equal accuracy stay equal: ties are broken by accuracy.
    accuracy = np.round(~wrong @ weight / weight.sum(), 12)
    votes = None if rules.weights is None else vote_weights(accuracy, rules.weights)
    if proba is None:
        majority = rules.voting == "majority"
        strength = hard_vote_accuracy(codes, y, weight, accuracy, votes, majority)
    else:
        strength = soft_vote_accuracy(proba, y, weight, votes)
    return prune(Pool(wrong, weight, strength, accuracy), rules)


def select_teams(
    predictions: ArrayLike,
    y: ArrayLike,
    *,
    metric: str | Sequence[str] = "gd",
    score: str = "hq",
    filters: Sequence[str] = ("alpha", "kmeans"),
    beta: float = 0.1,
    max_team_size: int | None = None,
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
    metric, score, filters, beta, max_team_size, choose
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
    rules = Rules(
        metric=metric,
        score=score,
        filters=filters,
        beta=beta,
        max_team_size=max_team_size,
        choose=choose,
        voting=voting,
        weights=weights,
    )
    predictions = np.asarray(predictions)
    if predictions.ndim not in (2, 3) or not predictions.size:
        raise ValueError(
            "`predictions` must be labels (n_models, n_samples) or probabilities (n_models, "
            "n_samples, n_classes), on the same rows for all models, with at least one row. "
            f"Got shape {predictions.shape}."
        )
    y = np.asarray(fill_masked(y))
    if y.shape != predictions.shape[1:2] or not len(y):
        raise ValueError(
            f"`predictions` have {predictions.shape[1]} rows, so `y` must have shape "
            f"({predictions.shape[1]},). Got {y.shape}."
        )
    weight = row_weights(sample_weight, len(y))
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
    return proba.argmax(axis=2), class_codes(y, known, problem)


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
    if n_members < 2:
        raise ValueError(f"HQ pruning needs n_members >= 2. Got n_members={n_members}.")
    statistics = normal_statistics(y, loc, scale)
    weight = row_weights(sample_weight, len(statistics[0][0]))
    # The pool: the best single candidates that have a finite loss.
    # A single candidate's strength is that of a team of one.
    strength = negative_loss(statistics, normal_nll, weight)(np.arange(len(loc))[:, None])
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
        negative_loss((error, second_moment), normal_nll, weight),
        strength[best],
    )
    rules = Rules(max_team_size=n_members)
    chosen = prune(pool, rules).selection
    # From positions in the pool to numbers of candidates.
    return Selection(np.sort(best[chosen.indices]), chosen.weights, chosen.loss)
