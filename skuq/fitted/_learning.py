"""Learn calibrations from predictions of rows that a model has not seen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from skuq._params import safe_indexing
from skuq._utils._checks import class_codes
from skuq._utils._messages import warn_user
from skuq._utils._records import record_repr, saved_as
from skuq.exceptions import CalibrationWarning
from skuq.fitted._calibrated import (
    SMALLEST_UNCERTAINTY,
    Calibration,
    ClassCalibration,
    DerivedCalibration,
    Grouping,
    log_entropy,
)
from skuq.predictive import GroupedDistribution
from skuq.predictive._calibration import (
    effective_rows,
    fit_levels,
    fit_part_factors,
    fit_std_factor,
    pool_variances,
    shrink_std_factor,
    weighted_quantile,
)
from skuq.predictive._categorical import fit_spread, fit_temperature, fit_vector_scaling
from skuq.predictive._parametric import scale_epistemic

_PRIOR_ROWS = 20  # weight of all rows in the calibration of a group, in rows of the group
# Levels of the quantiles that represent the errors of all rows in the calibration of a group.
_PRIOR_LEVELS = (np.arange(200) + 0.5) / 200


@saved_as("fitted.CalibrationRows")
@dataclass(frozen=True, eq=False)
class CalibrationRows:
    """Rows that a model has not seen, with its predictions.

    Attributes
    ----------
    X : array-like of shape (n, n_features)
        Rows in the order of the folds.
    mixtures : tuple of distributions
        Predictions, fold by fold.
    y : ndarray of shape (n[, m])
        Truths.
    weight : ndarray of shape (n,)
        Positive weights. Those of a row that repeated folds predict several times add up to the
        row's own.
    factor : ndarray of shape (n,) or float
        What the weights of `fit` have been multiplied by, for another population.
    similar_shares : bool
        Whether every fold trained on similar shares of the classes as all rows have. Otherwise its
        predictions do not show whether the final model predicts a class too often.
    """

    X: Any
    mixtures: tuple[Any, ...]
    y: np.ndarray
    weight: np.ndarray
    factor: np.ndarray | float = 1.0
    similar_shares: bool = True

    __repr__ = record_repr

    def effective_number(self, used: Any = slice(None)) -> float:
        """Compute the effective number of the rows `used`; a row of weight 2 is two rows."""
        factor = np.broadcast_to(self.factor, self.weight.shape)
        return effective_rows(self.weight[used], factor[used])

    def fold_parts(self, values: np.ndarray) -> list[np.ndarray]:
        """Split values (n, ..) into those of the folds."""
        ends = np.cumsum([len(mixture.mean) for mixture in self.mixtures])
        return np.split(values, ends[:-1])


def log_std(mixture: Any) -> np.ndarray:
    """Compute the logarithm (n,) of the standard deviation, averaged over outputs."""
    std: np.ndarray = np.log(mixture.std)
    return std.reshape(len(std), -1).mean(axis=1)


@saved_as("fitted.GroupedCalibration")
@dataclass(frozen=True, eq=False)
class GroupedCalibration(DerivedCalibration):
    """Separate calibrations of groups of rows.

    Attributes
    ----------
    grouping : Grouping
        It finds the group of each row.
    parts : tuple of Calibration
        Calibration of each group.
    whole : Calibration
        Calibration of all rows, for rows without a known group.
    """

    grouping: Grouping
    parts: tuple[Calibration, ...]
    whole: Calibration

    __repr__ = record_repr

    def apply(self, mixture: Any, X: Any, new_weight: np.ndarray | None = None) -> Any:
        """Calibrate each row's prediction by its group; see `Calibration.apply`."""
        if self.whole.ratio != 1:  # then all groups have the method "scale"
            mixture = scale_epistemic(mixture, self.whole.ratio)
        codes = self.grouping.codes(X, log_std(mixture))
        if self.method == "scale":  # one mixture with a factor for each row
            scales = np.stack([part.scale for part in (*self.parts, self.whole)])
            return mixture.scaled(scales[codes])
        return self._by_group(
            codes,
            lambda part, rows: part.apply(
                mixture.rows(rows), None, None if new_weight is None else new_weight[rows]
            ),
        )

    def smooth(self, mixture: Any, X: Any) -> Any:
        """Calibrate to distributions with a density; see `Calibration.smooth`."""
        if self.method == "scale":
            return self.apply(mixture, X)
        codes = self.grouping.codes(X, log_std(mixture))
        return self._by_group(codes, lambda part, rows: part.smooth(mixture.rows(rows), None))

    def _by_group(
        self, codes: np.ndarray, calibrated: Callable[[Calibration, np.ndarray], Any]
    ) -> GroupedDistribution:
        """Calibrate the rows of each group by ``calibrated(part, rows)``; -1 stands for `whole`."""
        every = (*self.parts, self.whole)
        found = [code for code in range(-1, len(self.parts)) if (codes == code).any()]
        rows = [np.flatnonzero(codes == code) for code in found]
        distributions = [calibrated(every[code], positions) for code, positions in zip(found, rows)]
        return GroupedDistribution(tuple(distributions), tuple(rows))


def learn_calibration(rows: CalibrationRows, method: str, group_by: Any = None) -> Any:
    """Learn a `Calibration` from rows, or a `GroupedCalibration` of the groups of `group_by`.

    Groups are shrunk towards all rows: the shape of all rows' errors counts as much as 20 rows of
    the group, and their scale depends on how much groups differ. The method "parts" is "scale"
    after another factor of the model's part, which all groups and outputs share.
    """
    ratio, single = 1.0, rows.y.ndim == 1
    if method == "parts":
        # A single network has an epistemic part in the few rows that are far from the others.
        if np.mean(np.concatenate([m.epistemic_variance > 0 for m in rows.mixtures])) < 0.5:
            raise TypeError(
                'With method="parts" `estimator` must predict noise and what the model does not '
                'know. For most rows it predicts noise only. Use method="scale".'
            )
        weights, ys, mixtures = rows.fold_parts(rows.weight), rows.fold_parts(rows.y), rows.mixtures
        if not single:
            # Outputs may need different factors, which must not be taken for those of the parts.
            factors = [
                fit_std_factor([m.output(k) for m in mixtures], [y[:, k] for y in ys], weights)
                for k in range(rows.y.shape[1])
            ]
            mixtures = tuple(m.scaled(np.array(factors)) for m in mixtures)
        _, ratio = fit_part_factors(mixtures, ys, weights)
        method = "scale"
        rows = replace(rows, mixtures=tuple(scale_epistemic(m, ratio) for m in rows.mixtures))
    codes = np.zeros(len(rows.y), dtype=int)
    labels: tuple[Any, ...] = ()
    if group_by is not None:
        uncertainty = np.concatenate([log_std(mixture) for mixture in rows.mixtures])
        grouping, codes = Grouping.learn(group_by, rows.X, uncertainty)
        labels = grouping.labels
    n_rows = [rows.effective_number(codes == k) for k in range(len(labels))]
    _warn_of_small_groups(labels, n_rows)
    # For each output, what was learnt from all rows and then from each group.
    outputs = [
        _learn_output(
            method,
            [m if single else m.output(k) for m in rows.mixtures],
            rows.fold_parts(rows.y if single else rows.y[:, k]),
            rows.weight,
            rows.effective_number(),
            rows.fold_parts(codes),
            np.array(n_rows),
        )
        for k in range(1 if single else rows.y.shape[1])
    ]
    # From outputs of groups to groups of outputs.
    calibrations = []
    for learnt in zip(*outputs):
        scale, *shape = (part[0] if single else np.stack(part, axis=-1) for part in zip(*learnt))
        scale = float(scale) if single else scale
        levels, scores = (tuple(shape), ()) if method == "isotonic" else (None, shape)
        errors, coverage = scores or (None, None)
        calibrations.append(Calibration(method, scale, levels, errors, coverage, ratio))
    whole, *parts = calibrations
    return whole if group_by is None else GroupedCalibration(grouping, tuple(parts), whole)


def _warn_of_small_groups(labels: Sequence[Any], n_rows: Sequence[float]) -> None:
    """Warn of groups whose rows count less than the prior, the calibration of all rows."""
    # Weights that repeated folds have divided sum to 19.999..
    small = [label for label, n in zip(labels, n_rows) if n < _PRIOR_ROWS - 1e-6]
    if small:
        warn_user(
            f"{len(small)} of {len(labels)} groups have fewer than {_PRIOR_ROWS} calibration rows "
            f"and are calibrated mostly by all rows: {small[:5]}"
            f"{' and others' if len(small) > 5 else ''}.",
            CalibrationWarning,
        )


def _learn_output(
    method: str,
    mixtures: Sequence[Any],
    ys: Sequence[np.ndarray],
    weight: np.ndarray,
    n_effective: float,
    codes: Sequence[np.ndarray],
    n_rows: np.ndarray,
) -> list[tuple[Any, ...]]:
    """Learn the scale of one output, and the levels or scores of the method.

    All sequences hold one element per fold, and `codes` the groups of its rows. `n_effective` and
    `n_rows` (n_groups,) are effective numbers of all rows and of those of each group. Return the
    scale and the levels or scores of all rows together, and then those of each group.
    """
    weights = np.split(weight, np.cumsum([len(y) for y in ys])[:-1])
    likeliest = scale = fit_std_factor(mixtures, ys, weights)
    if not all((m.std == 1).all() for m in mixtures):
        scale = shrink_std_factor(mixtures, ys, weights, likeliest)
    elif not _has_errors(mixtures, ys):
        scale = SMALLEST_UNCERTAINTY  # a regressor without uncertainty that makes no errors
    whole = _errors(method, mixtures, ys, scale)
    learnt = [(scale, *_fit_shape(method, whole, weight, n_effective))]
    if not len(n_rows):
        return learnt
    # Predictions, y and weights of each group's rows, fold by fold.
    groups = []
    for group in range(len(n_rows)):
        rows = [np.flatnonzero(code == group) for code in codes]
        folds = [(k, positions) for k, positions in enumerate(rows) if len(positions)]
        groups.append(
            (
                [mixtures[k].rows(positions) for k, positions in folds],
                [ys[k][positions] for k, positions in folds],
                [weights[k][positions] for k, positions in folds],
            )
        )
    # Without errors a group's scale is unknown, which 0 stands for.
    group_scales = np.array([fit_std_factor(*g) if _has_errors(*g[:2]) else 0.0 for g in groups])
    # A variance estimate from n errors of kurtosis k has 2 n / (k - 1) degrees of freedom. It is
    # that of errors in units of each group's std, and at least 3, as of a normal.
    kurtosis, known = 3.0, [(g, c) for g, c in zip(groups, group_scales) if c > 0]
    if known:
        squares = np.concatenate(
            [((y - m.mean) / (c * m.std)) ** 2 for g, c in known for m, y, _ in zip(*g)]
        )
        shares = np.concatenate([w for g, _ in known for w in g[2]])
        # Divided by the largest square, against overflow of fourth powers.
        squares = squares / squares.max()
        mean, fourth = (np.average(squares**k, weights=shares) for k in (1, 2))
        kurtosis = float(np.clip(fourth / mean**2, 3.0, 50.0))
    # Shrink the groups' variances, relative to that of all rows, towards a common one.
    variances = (group_scales / likeliest) ** 2
    scales = np.sqrt(pool_variances(variances, 2 * n_rows / (kurtosis - 1))) * scale
    scales[scales == 0] = scale
    # All rows' errors as 200 quantiles, which together weigh as much as 20 rows.
    common = weighted_quantile(whole, weight, _PRIOR_LEVELS) if len(whole) else whole
    prior = np.full(len(common), _PRIOR_ROWS / len(_PRIOR_LEVELS))
    for (m, y, w), n, own_scale in zip(groups, n_rows, scales):
        together = np.concatenate(w)
        # A group's own errors in its own scale, and those of all rows in theirs.
        shape = _fit_shape(
            method,
            np.concatenate([_errors(method, m, y, own_scale), common]),
            np.concatenate([together, prior]) if len(whole) else together,
            n_rows=n + _PRIOR_ROWS,
        )
        learnt.append((float(own_scale), *shape))
    return learnt


def _has_errors(mixtures: Sequence[Any], ys: Sequence[np.ndarray]) -> bool:
    """Tell whether any y differs from its prediction."""
    return any((y != m.mean).any() for m, y in zip(mixtures, ys))


def _errors(
    method: str, mixtures: Sequence[Any], ys: Sequence[np.ndarray], scale: float
) -> np.ndarray:
    """Compute what the method learns from: levels of y, or absolute errors in calibrated stds."""
    if method == "scale":
        return np.empty(0)
    scaled = [mixture.scaled(scale) for mixture in mixtures]
    if method == "isotonic":
        return np.concatenate([m.cdf(y) for m, y in zip(scaled, ys)])
    return np.concatenate([abs(y - m.mean) / m.std for m, y in zip(scaled, ys)])


def _fit_shape(
    method: str, errors: np.ndarray, weight: np.ndarray, n_rows: float
) -> tuple[Any, ...]:
    """Fit levels of "isotonic", or scores and their coverage of "conformal"."""
    if method == "isotonic":
        return fit_levels(errors, weight, n_rows)
    if method == "conformal":
        order = np.argsort(errors)
        # The new row has weight 1 and an unknown error: it counts as outside (Lei et al., 2018).
        return errors[order], np.cumsum(weight[order]) / (weight.sum() + 1)
    return ()


def learn_class_calibration(
    rows: CalibrationRows,
    method: str,
    classes: np.ndarray,
    group_by: Any = None,
    *,
    epistemic: bool = False,
) -> ClassCalibration:
    """Learn a temperature, or a slope and a bias of each class, for all rows or for each group.

    In a group the calibration of all rows counts as much as 20 rows.
    """
    codes = class_codes(rows.y, classes)
    # Offsets of classes would correct the folds' class shares, which are not those of all rows.
    method = method if rows.similar_shares else "temperature"
    proba = np.concatenate([mixture.mean for mixture in rows.mixtures])
    slope = 1 / fit_temperature(proba, codes, rows.weight)
    # A temperature is the same slope 1 / T for all classes.
    whole = np.full(len(classes), slope), np.zeros(len(classes))
    if method == "vector":
        whole = fit_vector_scaling(proba, codes, rows.weight, whole)
    if group_by is None:
        found = ClassCalibration(*whole, classes)
    else:
        uncertainty = np.concatenate([log_entropy(mixture) for mixture in rows.mixtures])
        grouping, group_of = Grouping.learn(group_by, rows.X, uncertainty)
        n_of_groups = [rows.effective_number(group_of == k) for k in range(len(grouping.labels))]
        _warn_of_small_groups(grouping.labels, n_of_groups)
        of_groups = []
        for group, n_rows in enumerate(n_of_groups):
            in_group = group_of == group
            part = proba[in_group], codes[in_group], rows.weight[in_group]
            if method == "vector":
                of_groups.append(fit_vector_scaling(*part, whole, _PRIOR_ROWS))
                continue
            # Weighted geometric mean of the group's slope and that of all rows.
            log_slope = -n_rows * np.log(fit_temperature(*part)) + _PRIOR_ROWS * np.log(slope)
            own_slope = np.exp(log_slope / (n_rows + _PRIOR_ROWS))
            of_groups.append((np.full(len(classes), own_slope), whole[1]))
        # The last row is for rows without a known group.
        slopes, biases = (np.stack(part) for part in zip(*of_groups, whole))
        found = ClassCalibration(slopes, biases, classes, grouping)
    if not epistemic:
        return found
    # The spread is that of the calibrated probabilities.
    calibrated = [
        found.apply(mixture, safe_indexing(rows.X, fold))
        for mixture, fold in zip(rows.mixtures, rows.fold_parts(np.arange(len(codes))))
    ]
    spread = fit_spread(calibrated, rows.fold_parts(codes), rows.fold_parts(rows.weight))
    return replace(found, spread=spread)
