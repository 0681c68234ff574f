"""Epistemic uncertainty of ensembles that grows with the distance from the training rows."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pandas as pd
from scipy import special

from skuq._random import generator
from skuq.exceptions import FileFormatError
from skuq.files._registry import saved_record
from skuq.predictive import CategoricalMixture
from skuq.predictive._calibration import calibrate_normals
from skuq.tables._inputs import Rows, TableInputs
from skuq.training import predict_members

_FEWEST_ROWS = 10  # with fewer rows nothing is learnt
_LEAST_WEIGHT = 1e-3  # of a row that counts, in weights of the average row
_MOST_ROWS = 20_000  # whose distances are read
_SOME = 256  # reference rows, rows whose predictions are read, and columns at most
_FARTHEST = 10.0  # values of a column beyond, in its scale, count as this
_TENTH = 0.1  # of squared distances is by correlations, and of the rest alike for all columns
_BEYOND = 3.0  # further times that squared distances beyond the ends of the rows count
_LEVEL = 0.99  # share of new rows to which nothing is added
_RATE = 1.5  # of the exponential
_N_FREQUENCIES = 4  # of the random functions that are drawn
_LEAST = 1e-12  # lead of the most probable class, and other numbers that would be 0
_BLOCK_ROWS = 4096  # rows whose distances are held at a time


def _check(state: dict[str, Any]) -> None:
    """Refuse arrays that do not fit together."""
    d, c, r = len(state["centre"]), len(state["code_columns"]), len(state["references"])
    sizes = (d, d, (d, 2 * d), d, c, (r, c), (r, 2 * d), (2, 2 * d), (2 * d, _N_FREQUENCIES), ())
    parts = [np.zeros(size).shape for size in sizes]
    found = [np.shape(state[field.name]) for field in fields(FarUncertainty)]
    if found[: len(parts)] != parts or not min(state["reach"], *state["unknown"]) > 0:
        raise FileFormatError("its uncertainty away from the rows does not fit together")


@saved_record("fitted.FarUncertainty", check=_check, brief=True)
class FarUncertainty:
    """Uncertainty that is added to the predictions of an ensemble away from its training rows.

    A row has coordinates z, and from the reference rows z_i the squared distance

        d**2 = min_i |z - z_i|**2 + 3 * |z - clip(z, ends)|**2.

    For 99 % of new rows like those of training d is at most `reach`. Beyond,

        g = min(unknown * (exp(1.5 * (d / reach - 1)) - 1), 1)

    is added to the variance of numbers, in variances of y. Of class probabilities the share g
    becomes the shares of the classes among training rows, or less, so that the most probable class
    stays the same. Each member has other classes in their place.

    There are n rows, d columns, c of them codes, m outputs or C classes, K members, and R = 256.

    Attributes
    ----------
    centre, scale, matrix : ndarray of shape (d,), (d,) and (d, 2d)
        Coordinates are ``clip((numbers - centre) / scale, -10, 10) @ matrix``: first each column by
        what it changes, then all of them without their correlations.
    squares : ndarray of shape (d,)
        Squared distance of two categories of a column. An unseen one has it twice.
    code_columns, codes : ndarray of shape (c,) and (R, c)
        Columns of codes, and the codes of reference rows.
    references, ends : ndarray of shape (R, 2d) and (2, 2d)
        Coordinates of reference rows; smallest and largest coordinates of training rows.
    frequencies : ndarray of shape (2d, 4)
        Frequencies of the random functions that are drawn.
    reach, unknown, shares : float, and ndarray of shape (m,) or (1,), and (C,)
        Distance within which nothing is added; variance of the noise near the rows, or entropy in
        entropies of the shares of the classes; these shares.
    """

    centre: Any
    scale: Any
    matrix: Any
    squares: Any
    code_columns: Any
    codes: Any
    references: Any
    ends: Any
    frequencies: Any
    reach: Any
    unknown: Any
    shares: Any

    def look(self, xp: Any, numbers: Any) -> tuple[Any, Any]:
        """Compute coordinates (n, 2d) of encoded rows (n, d), and g (n, m).

        `xp` is `numpy` or `keras.ops`, here and below. NaN marks unseen categories.
        """
        unseen = xp.isnan(numbers)
        with np.errstate(over="ignore"):
            x = xp.clip((numbers - self.centre) / self.scale, -_FARTHEST, _FARTHEST)
        z = xp.matmul(xp.where(unseen, 0.0, x), self.matrix)
        # Without the square of z, which is the same for all reference rows.
        apart = xp.matmul(z, -2 * xp.transpose(self.references))
        apart = apart + xp.sum(xp.square(self.references), axis=1)
        for j in range(self.code_columns.shape[0]):
            of_rows = xp.take(numbers, self.code_columns[j : j + 1], axis=1)
            differs = xp.not_equal(of_rows, self.codes[:, j])
            apart = apart + xp.where(differs, self.squares[self.code_columns[j]], 0.0)
        beyond = xp.square(z - xp.minimum(xp.maximum(z, self.ends[0]), self.ends[1]))
        alike = xp.square(z) + beyond * _BEYOND
        alike = xp.concatenate([alike, xp.where(unseen, self.squares, 0.0)], axis=1)
        squares = xp.min(apart, axis=1, keepdims=True) + xp.sum(alike, axis=1, keepdims=True)
        excess = xp.sqrt(xp.maximum(squares, self.reach**2)) / self.reach - 1
        # So that the exponential is at most 1 / unknown + 1.
        exponent = xp.minimum(excess * _RATE, xp.log1p(1 / self.unknown))
        return z, xp.minimum(xp.expm1(exponent) * self.unknown, 1.0)

    def spread(self, xp: Any, numbers: Any) -> Any:
        """Compute arrays (8, n, m) whose squares sum to g, for encoded rows (n, d).

        A draw of the function adds their sum, each times a standard normal number of its own: a
        random smooth function of variance 1 (Rahimi and Recht 2007), times the root of g.
        """
        z, variance = self.look(xp, numbers)
        # The gradient of a root is infinite at 0.
        std = xp.where(variance > 0, xp.sqrt(xp.where(variance > 0, variance, 1.0)), 0.0)
        phase = xp.matmul(z, self.frequencies)
        waves = xp.transpose(xp.concatenate([xp.cos(phase), xp.sin(phase)], axis=1))
        return xp.expand_dims(waves, 2) * xp.expand_dims(std / math.sqrt(_N_FREQUENCIES), 0)

    def classes(self, xp: Any, numbers: Any, proba: Any, weights: np.ndarray) -> Any:
        """Compute what members predict at encoded rows (n, d), from probabilities (n, K, C)."""
        mean = xp.sum(proba * weights[:, None], axis=1)
        top = xp.expand_dims(xp.argmax(mean, axis=1), 1)
        # The most probable class is ahead of each other one, and loses by this times the share.
        ahead = xp.take_along_axis(mean, top, axis=1) - mean
        shares = xp.zeros_like(mean) + self.shares
        loss = ahead + shares - xp.take_along_axis(shares, top, axis=1)
        limits = xp.maximum(ahead - _LEAST, 0.0) / xp.maximum(loss, _LEAST)
        limits = xp.where(xp.equal(top, np.arange(len(self.shares))), 1.0, limits)
        share = xp.minimum(self.look(xp, numbers)[1], xp.min(limits, axis=1, keepdims=True))
        # Members divide the line of the shares, by their weights.
        ends, of_classes = np.cumsum(weights)[:, None], np.cumsum(self.shares)
        starts = np.maximum(ends - weights[:, None], of_classes - self.shares)
        own = np.maximum(np.minimum(ends, of_classes) - starts, 0) / weights[:, None]
        return proba - (proba - own) * xp.expand_dims(share, 2)

    def widen(self, mixture: Any, numbers: np.ndarray, targets: Any) -> Any:
        """Add what is not known at encoded rows (n, d) to the mixture predicted there."""
        blocks = [slice(k, k + _BLOCK_ROWS) for k in range(0, len(numbers), _BLOCK_ROWS)]
        if targets.head.classifies:
            proba, weights = np.moveaxis(mixture.proba, 0, 1), mixture.weights
            parts = [self.classes(np, numbers[rows], proba[rows], weights) for rows in blocks]
            return CategoricalMixture(np.moveaxis(np.concatenate(parts), 1, 0), weights)
        spread = np.concatenate([self.spread(np, numbers[rows]) for rows in blocks], axis=1)
        if targets.is_transformed:  # the inner mixture is of the standardised y
            return replace(mixture, inner=mixture.inner.widened(spread))
        return mixture.widened(spread * targets.scaling.scale_) if spread.any() else mixture

    @classmethod
    def draws(cls, xp: Any, arrays: Any, numbers: Any) -> Any:
        """Compute `spread` from arrays of the fields; of tensors in double precision."""
        if xp is np:
            return cls(*arrays).spread(np, numbers)
        arrays = (xp.cast(array, "float64") for array in arrays)
        return xp.cast(cls(*arrays).spread(xp, xp.cast(numbers, "float64")), numbers.dtype)


def with_far_uncertainty(ensemble: Any, task: Any) -> Any:
    """Return the ensemble with what it does not know away from its training rows.

    There is none of inputs other than tables, fewer than 10 rows, and more than 256 columns.
    """
    ensemble, rng = replace(ensemble, far=None), generator(task.entropy, "far")
    inputs, rows = ensemble.inputs, task.rows
    rows = rows.take(rows.weight >= _LEAST_WEIGHT * rows.weight[rows.used].mean())
    (n, d), is_table = rows.X.shape, isinstance(inputs, TableInputs)
    if not is_table or ensemble.passes is not None or n < _FEWEST_ROWS or d > _SOME:
        return ensemble
    # In a random order in which heavy rows tend to come first.
    order = np.argsort(rng.exponential(size=n) / rows.weight, kind="stable")[:_MOST_ROWS]
    numbers, codes, scaling = rows.X[order], list(inputs.code_columns), inputs.scaling
    with np.errstate(over="ignore"):
        x = np.clip((numbers - scaling.mean_) / scaling.scale_, -_FARTHEST, _FARTHEST)
    spans, is_number = np.ptp(x, axis=0), ~np.isin(np.arange(d), codes)
    variance = np.where(spans > 0, x.var(axis=0), 0.0)  # that of equal values is rounded
    for k in codes:  # half the mean squared distance of two rows, as of numbers
        variance[k] = 1 - np.square(pd.Series(numbers[:, k]).value_counts(normalize=True)).sum()
    if not variance.any():
        return ensemble
    effects, unknown, shares = _read_predictions(ensemble, numbers, rows)
    effects = (1 - _TENTH) * effects / max(effects[variance > 0].mean(), _LEAST) + _TENTH
    inverse = np.divide(1.0, variance, out=np.zeros(d), where=variance > 0)
    squares = (1 - _TENTH) * effects * inverse  # of a step of 1 in a column
    # Correlations are shrunk, in wide tables of few rows by more.
    inverse_stds = np.sqrt(inverse * is_number)
    standardised = (x - x.mean(axis=0)) * inverse_stds
    values, vectors = np.linalg.eigh(standardised.T @ standardised + d * np.eye(d))
    whitening = inverse_stds[:, None] * vectors * np.sqrt(_TENTH * (len(x) + d) / values)
    matrix = np.hstack([np.diag(np.sqrt(squares * is_number)), whitening])
    # Copies of a row say nothing about the distance of new rows.
    distinct = ~pd.DataFrame(np.where(is_number, x, numbers)).duplicated().to_numpy()
    squares *= 2 * np.where(is_number, spans, 1.0) ** 2  # of two categories
    z, of_codes = x[distinct] @ matrix, numbers[distinct][:, codes]
    references, reach = _choose_references(z, of_codes, squares[codes])
    far = FarUncertainty(
        *(scaling.mean_, scaling.scale_, matrix, squares, np.array(codes, dtype=int)),
        *(of_codes[references], z[references], np.array([z.min(axis=0), z.max(axis=0)])),
        *(rng.standard_normal((2 * d, _N_FREQUENCIES)) / reach, reach, unknown, shares),
    )
    return replace(ensemble, far=far)


def _read_predictions(ensemble: Any, numbers: np.ndarray, rows: Rows) -> tuple[np.ndarray, ...]:
    """Measure effects (d,) of columns on the ensemble's mean, what is unknown, and shares."""
    weights, calibration = ensemble.weights, ensemble.calibration
    head, transform = ensemble.targets.head, ensemble.inputs.transform
    few = numbers[: min(_SOME, max(_FEWEST_ROWS, _MOST_ROWS // numbers.shape[1]))]
    raw, effects = predict_members(ensemble.members, transform(few)), np.zeros(few.shape[1])
    mean = head.mean(raw, weights, calibration)
    for k in range(len(effects)):  # half the mean square change when the column is permuted
        permuted = np.where(np.arange(len(effects)) == k, np.roll(few, 1, axis=0), few)
        found = predict_members(ensemble.members, transform(permuted))
        change = head.mean(found, weights, calibration) - mean
        effects[k] = 0.5 * np.square(change).sum(axis=1).mean()
    if head.classifies:
        shares = head.constant(rows.y, rows.weight)
        entropy, most = special.entr(mean).sum(axis=1).mean(), special.entr(shares).sum()
        return effects, np.clip([entropy / max(most, _LEAST)], _LEAST, 1.0), shares
    _, std, probability = calibrate_normals(head.normals(raw), weights, calibration.arrays)
    logs = np.tensordot(weights, (probability * np.log(np.square(std))).sum(axis=1), axes=1)
    return effects, np.clip(np.exp(logs.mean(axis=0)), _LEAST, 1.0), np.ones(1)


def _choose_references(
    z: np.ndarray, codes: np.ndarray, squares: np.ndarray
) -> tuple[np.ndarray, float]:
    """Choose 256 distinct rows, each the farthest from those before, and compute `reach`.

    It is a quantile of distances, of other rows to them, and of theirs to any. Few are repeated.
    """
    lengths, nearest = np.square(z).sum(axis=1), np.full(len(z), np.inf)
    chosen: dict[int, float] = {}
    while len(chosen) < _SOME and nearest.max() > 0:
        k = int(nearest.argmax())
        apart = lengths + lengths[k] - z @ (2 * z[k]) + (codes != codes[k]) @ squares
        apart[k] = np.inf
        chosen[k] = apart.min()
        nearest = np.minimum(nearest, apart)
        nearest[k] = 0.0
    nearest[list(chosen)] = list(chosen.values())
    # Smaller squares are rounding errors of the squared lengths.
    nearest = np.sqrt(np.maximum(nearest, _LEAST * lengths.max()))
    return np.resize(list(chosen), _SOME), np.quantile(nearest, _LEVEL, method="weibull")
