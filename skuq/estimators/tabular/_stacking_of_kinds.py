"""Weigh the kinds of members of a tabular ensemble, and calibrate what they predict together.

Both are learnt from rows that members have not trained on.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
from scipy.spatial.distance import cdist
from scipy.special import entr, logsumexp, softmax

from skuq._random import generator
from skuq.ensembles._stacking import (
    AVERAGING_FACTOR,
    drop_light,
    fit_class_mixture,
    stacking_weights,
)
from skuq.estimators.tabular import _recipes as tuned
from skuq.estimators.tabular._kinds import TINY, held_out_rows, indicate
from skuq.predictive._calibration import UNCALIBRATED
from skuq.predictive._learners import fit_out_of_bag, limit_noise, pool_variances
from skuq.training import predict_members


def weigh_members(task, members, origins, n_kinds):
    """Weigh the members of regressors on the rows that they hold out.

    Kinds are weighed by stacking. The members with the same split, one of each kind, are compared
    on their validation rows, as in `mix_classes`. Each member then counts inversely to its mean
    squared error: where there is little noise, some members err several times as much as others.
    """
    kinds = np.array([origin.kind for origin in origins])
    counts, shares = np.bincount(kinds, minlength=n_kinds), np.full(n_kinds, 1 / n_kinds)
    by_split: dict = {}  # log likelihood and weight of each validation row, by split and kind
    errors = []  # squared errors of each member, and the weights of its rows
    for origin, (y, weight, raw, mean) in zip(origins, held_out_rows(task, members, origins)):
        if n_kinds > 1:
            likelihood = task.targets.head.log_likelihood(y, raw)
            by_split.setdefault(origin.split, {})[origin.kind] = likelihood, weight
        errors.append((np.square(y - mean).mean(axis=-1), weight))
    # Splits in which a member diverged cannot be compared.
    complete = [found for found in by_split.values() if len(found) == n_kinds]
    if complete:
        likelihoods, weights = (
            np.concatenate([np.stack([f[k][i] for k in range(n_kinds)]) for f in complete], axis=1)
            for i in range(2)
        )
        # All weights can underflow in float32.
        weight = weights[0] if weights[0].any() else None
        # Averaged with equal shares, which count as much as some rows.
        trust = likelihoods.shape[1] / (likelihoods.shape[1] + tuned.EQUAL_ROWS)
        shares += trust * (stacking_weights(likelihoods, weight) - shares)
    weights = (shares / np.maximum(counts, 1))[kinds]
    if sum(len(squares) for squares, _ in errors) >= tuned.FEWEST_HELD_OUT * n_kinds:
        weights = weights * _precisions(errors)
    # Every member keeps a step, and steps too many are taken from the heaviest members.
    n_steps = tuned.WEIGHT_STEPS * len(members)
    exact = weights / weights.sum() * n_steps
    steps = np.clip(np.round(exact), 1, None)
    gap = n_steps - steps.sum()
    for _ in range(int(abs(gap))):
        steps[(exact - steps if gap > 0 else steps).argmax()] += np.sign(gap)
    return steps / n_steps


def _precisions(errors):
    """Estimate the precisions (K,) of members, up to a factor, from squared errors on their rows.

    Mean squared errors are shrunk towards a common one, since they also differ by chance.
    """
    most = max(squares.max() for squares, _ in errors) or 1.0  # fourth powers could overflow
    mean, fourth = (
        np.array([np.average((s / most) ** k, weights=w if w.any() else None) for s, w in errors])
        for k in (1, 2)
    )
    # The mean of n squared errors of kurtosis k has 2 n / (k - 1) degrees of freedom.
    kurtosis = max((fourth / np.maximum(mean**2, TINY)).mean(), 3.0)
    n_rows = np.array([len(squares) for squares, _ in errors])
    return 1 / np.maximum(pool_variances(mean, 2 * n_rows / (kurtosis - 1)), TINY)


def mix_classes(task, members, origins):
    """Weigh the kinds of classifiers, and calibrate their mixture, on rows held out.

    This is stacking of predictive distributions (Yao et al. 2018), with the shares of the classes
    as a further kind. Members of a kind have equal weights. Return the weights of the members and
    the calibration.
    """
    data, targets = task.data, task.targets
    found, kinds = np.unique([origin.kind for origin in origins], return_inverse=True)
    counts = np.bincount(kinds)
    weights = np.full(len(found), 1 / len(found))
    if not task.splits.validates:
        return (weights / counts)[kinds], UNCALIBRATED
    in_folds, n_classes = task.splits.parts is not None, len(targets.classes)
    y, weight = (data.y, data.weight) if in_folds else (data.y_valid, data.weight_valid)
    # Average probabilities of each kind for the rows that its members have not seen.
    proba = np.zeros((len(found), len(y), n_classes))
    times = np.zeros((len(found), len(y)))
    for member, kind, (_, _, part) in zip(members, kinds, origins):
        rows = slice(None) if part is None or part[1] is None else part[1]
        raw = member.held_out[None].astype("float64")
        proba[kind, rows] += targets.head.probabilities(raw).mean(axis=0)
        times[kind, rows] += 1
    # Rows that a kind has no such prediction of are left out.
    used, calibration = times.all(axis=0) & (weight > 0), UNCALIBRATED
    if used.any() and weight[used].sum() > 0:
        proba = proba[:, used] / times[:, used, None]
        logits = np.log(np.maximum(proba, np.finfo(float).tiny))
        counted = np.bincount(data.y[:, 0].astype(int), data.weight, minlength=n_classes) + 0.5
        weight = weight[used].astype(float)
        weights, calibration = fit_class_mixture(
            logits,
            y[used, 0].astype(int),
            weight,
            counted / counted.sum(),
            evidence=_weigh_evidence(task),
        )
        # With many rows the factor is measured, by how much the kinds disagree on rows held out. A
        # single member of a kind predicts new rows as it does these.
        temperature = calibration.temperature
        if in_folds and len(found) > 1 and len(data.x) > tuned.FEW_ROWS_OF_CLASSES:
            temperature *= averaging_factor(logits / temperature, weight, counts.min())
        elif in_folds and counts.max() > 1:
            temperature *= AVERAGING_FACTOR
        calibration = replace(calibration, temperature=temperature)
        weights = drop_light(weights)
    return (weights / counts)[kinds], calibration


def _weigh_evidence(task):
    """Compute the evidence of few rows that their classes depend on them; None for many rows.

    Rows of a group may be alike, and would be evidence of what does not hold for other groups.
    """
    data, weight = task.data, task.data.weight
    used = np.flatnonzero((weight > 0) & (weight >= tuned.LEAST_WEIGHT * weight.mean()))
    is_grouped = task.groups is not None and task.validation is None
    if is_grouped or len(used) > tuned.MOST_EVIDENCE_ROWS:
        return None
    columns = indicate(data.x[used], task.inputs.n_codes)
    return class_evidence(np.concatenate(columns, axis=1), data.y[used, 0].astype(int))


def calibrate(task, members, weights, origins):
    """Fit the calibration on rows on which some members were not trained."""
    data = task.data
    # Each row is predicted by the members that have not trained on it.
    unseen = np.zeros((len(origins), len(data.x)), dtype=bool)
    for k, origin in enumerate(origins):
        unseen[k, origin.part[1]] = True
    rows = np.flatnonzero(unseen.any(axis=0))
    if len(rows) > tuned.MOST_CALIBRATION_ROWS:
        rng = generator(task.entropy, "calibration")
        rows = np.sort(rng.choice(rows, tuned.MOST_CALIBRATION_ROWS, replace=False))
    # By the members of each kind alone: those that share a split have all not seen the same rows,
    # and their mean would err less than the mean of all members may elsewhere.
    kinds = np.array([origin.kind for origin in origins])[:, None]
    unseen = np.concatenate([unseen[:, rows] & (kinds == k) for k in np.unique(kinds)], axis=1)
    times = unseen.shape[1] // len(rows)
    raw = predict_members(members, data.x[rows])
    normals = task.targets.head.normals(raw.astype("float64"))
    loc, scale, probability = (np.concatenate([part] * times, axis=2) for part in normals)
    rows = np.tile(rows, times)
    # Rows count as the members that predict them do: one that errs much hardly predicts new rows.
    share = weights @ unseen / np.maximum(unseen.sum(axis=0), 1)
    fitted = fit_out_of_bag(
        loc, scale, probability, weights, unseen, data.y[rows], data.weight[rows] * share
    )
    return limit_noise(normals, weights, fitted)


def averaging_factor(logits: np.ndarray, weight: np.ndarray, n_members: int) -> float:
    """Estimate the factor of a temperature when more members of each model are averaged later.

    An average is less sure than its members. How much less is seen in the average of one member of
    each model; members of one model are taken to disagree as much as those of two models do.

    Parameters
    ----------
    logits : ndarray of shape (n_models, n, n_classes)
        Predictions of rows by one member of each of two or more models, divided by the temperature.
    weight : ndarray of shape (n,)
        Weights of the rows.
    n_members : int
        Number of members of each model that are averaged later.
    """

    def entropy(factor: float) -> Any:
        """Compute the mean entropy of the average of the models."""
        return entr(softmax(logits / factor, axis=-1).mean(axis=0)).sum(axis=-1) @ weight

    factors = np.geomspace(tuned.SMALLEST_FACTOR, 1.0, tuned.N_FACTORS)
    alone = (entr(softmax(logits, axis=-1)).sum(axis=-1) @ weight).mean()
    # The entropy rises with the factor.
    log_factor = np.interp(alone, [entropy(factor) for factor in factors], np.log(factors))
    # An average of n members has 1 - 1 / n of what two disagree about.
    n_models = len(logits)
    before, later = 1 - 1 / n_models, 1 - 1 / (n_models * n_members)
    return float(np.exp(log_factor * (later / before - 1)))


def class_evidence(x: np.ndarray, codes: np.ndarray) -> float:
    """Compute the log Bayes factor of classes that depend on x over classes that do not.

    Gaussian processes of the indicators of classes, with several lengths and shares of noise, are
    averaged, and compared with noise alone. Half of them see all columns, and half the first
    principal component: where columns repeat each other, it says most of what they say. All rows
    count at once, so that of ten rows of noise fewer seem to depend on x than held-out rows do.

    Parameters
    ----------
    x : ndarray of shape (n, d)
        Encoded rows.
    codes : ndarray of shape (n,)
        Classes of the rows.

    Returns
    -------
    float
        Log Bayes factor in nats; 0 if all rows or all classes are equal.

    References
    ----------
    C. Rasmussen and C. Williams (2006), "Gaussian Processes for Machine Learning", Sections 5.4
    and 6.5 (labels as numbers).
    """
    x = x[:, np.ptp(x, axis=0) > 0]
    if not x.size or not np.ptp(codes):
        return 0.0
    n = len(x)
    x = (x - x.mean(axis=0)) / x.std(axis=0)
    left, scales, _ = np.linalg.svd(x, full_matrices=False)
    first = left[:, :1] * scales[0]
    # Uncorrelated contrasts of the classes, each with a mean square of 1.
    indicators = np.eye(codes.max() + 1)[codes]
    vectors, scales, _ = np.linalg.svd(indicators - indicators.mean(axis=0), full_matrices=False)
    contrasts = vectors[:, scales > 1e-9 * scales[0]] * np.sqrt(n)
    log_factors = []
    for columns, length in itertools.product((x, first), tuned.PROCESS_LENGTHS):
        squares = cdist(columns, columns, "sqeuclidean") / columns.var(axis=0).sum()
        kernel = np.exp(-0.5 * squares / length**2)
        # The mean of a process is unknown: it is taken out. With variance 1 it does not count.
        kernel = kernel - kernel.mean(axis=0)
        kernel -= kernel.mean(axis=1, keepdims=True)
        values, vectors = np.linalg.eigh(kernel * (n / np.trace(kernel)) + 1 / n)
        power, values = np.square(vectors.T @ contrasts).sum(axis=1), np.maximum(values, 0)
        for signal in tuned.PROCESS_SIGNALS:
            variances = signal * values + 1 - signal
            log_factor = power - power / variances - contrasts.shape[1] * np.log(variances)
            log_factors.append(0.5 * log_factor.sum())
    return float(logsumexp(log_factors) - np.log(len(log_factors)))
