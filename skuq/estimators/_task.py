"""Read the arguments of `fit`: the first step of every estimator's fit."""

import functools
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Integral, Real
from typing import Any, Self

import numpy as np
from sklearn.base import is_classifier, is_regressor

from skuq._messages import warn_user
from skuq._params import Interval, StrOptions, check_weights, column_or_1d, safe_indexing
from skuq._random import draw_entropy, trial_seed
from skuq.estimators._base import Given, input_attributes, unfitted_copy
from skuq.exceptions import CalibrationWarning, ShortTrainingWarning
from skuq.networks._heads import Head
from skuq.predictive._calibration import Calibration
from skuq.tables import _inputs
from skuq.tables._repeats import find_repeats
from skuq.tables._splits import Splits, TrainingData, make_splits
from skuq.tables._targets import ClassTargets, NumberTargets, Targets

#: Constraints of the parameter `validation` of all estimators that hold rows out.
VALIDATION: list = [
    Interval(Real, 0, 1, closed="neither"),
    Interval(Integral, 2, None, closed="left"),
    "cv_object",
    StrOptions({"auto"}),
]


# Share of a fit's time, and seconds at most, for calibration and all else that follows training.
_AFTERWARDS, _MOST_AFTERWARDS = 0.1, 1.0

# Share of their epochs for which networks have to be trained to count as trained.
_MIN_SHARE_TRAINED = 0.1

# Validation rows from which a range can be compared with that of the training rows.
_MIN_ROWS = 10


@dataclass(frozen=True, eq=False)
class Task:
    """Everything that an estimator reads from the arguments of `fit`.

    Attributes
    ----------
    inputs : Inputs
        Encoding of X; `split` fits its scales.
    targets : Targets
        Encoding of y; `split` fits its scales.
    rows : Rows
        All rows of `fit`.
    entropy : int
        Origin of all random numbers of the fit, drawn from `random_state`.
    validation : Rows or None
        Validation rows given by the user.
    shifted : tuple of Rows
        Held-out rows of shifted distributions given by the user.
    groups : ndarray of shape (n,) or None
        Groups of rows that stay together.
    units : ndarray of shape (n,) or None
        Numbers that equal rows share, which stay together, too; None if no row is repeated, or
        with groups.
    splits : Splits or None
        Training and validation rows; None before `split`.
    data : TrainingData or None
        Standardised rows of `splits`; None before `split`.
    linear : tuple of kernel (n_features, n_raw) and bias (n_raw,), or None
        Frozen linear part of the networks, which `data` is the rest of.
    features : dict
        Attributes that scikit-learn reads from X: `n_features_in_`, and `feature_names_in_` if it
        has names.
    started : float
        Time of ``time.monotonic()`` at which the fit began.
    """

    inputs: Any
    targets: Any
    rows: _inputs.Rows
    entropy: int
    validation: _inputs.Rows | None = None
    shifted: tuple[_inputs.Rows, ...] = ()
    groups: np.ndarray | None = None
    units: np.ndarray | None = None
    splits: Any = None
    data: Any = None
    linear: Any = None
    features: Mapping[str, Any] = field(default_factory=dict)
    started: float = 0.0

    @property
    def attributes(self) -> dict[str, Any]:
        """Fitted attributes of every estimator that reads a task."""
        return {**self.features, "entropy_": self.entropy}

    def seconds_left(self, max_time: float) -> float:
        """Return the seconds of a fit that are left to train."""
        of_training = max_time - min(_AFTERWARDS * max_time, _MOST_AFTERWARDS)
        return of_training - (time.monotonic() - self.started)

    @property
    def n_units(self) -> int:
        """Number of distinct rows of positive weight, or of their groups if there are groups."""
        together = self.units if self.groups is None else _inputs.group_codes(self.groups)
        used = self.rows.used
        return len(used) if together is None else len(np.unique(together[used]))

    def make_splits(self, validation: Any = None, **options: Any) -> Splits:
        """Split the rows into training and validation rows, or into folds.

        `validation` is the share of the rows that is held out, or the folds; see `make_splits`, of
        which these are options: `n_members`, `repeat` and `n_used`. Rows that the user gave for
        validation take precedence.
        """
        options |= {"groups": self.groups, "units": self.units, "validation": self.validation}
        labels = self.targets.labels(self.rows.y)
        return make_splits(self.rows, self.entropy, validation, labels=labels, **options)

    def seeds(self, n: int, first: int = 0) -> list[int]:
        """Derive the seeds of `n` networks, from number `first` on."""
        return [trial_seed(self.entropy, first + k) for k in range(n)]

    def split(self, validation: Any = None, *, n_members: int | None = None) -> Self:
        """Return the task with its rows split and standardised; see `make_splits`."""
        return self.with_splits(self.make_splits(validation, n_members=n_members))

    def with_splits(self, splits: Splits) -> Self:
        """Return the task with these splits; the scales are fitted on the training rows."""
        return replace(self, splits=splits, data=splits.training_data(self.inputs, self.targets))


def make_targets(estimator: Any, loss: str | None = None, of_auto: Any = None) -> Targets:
    """Make the encoding of y; `of_auto` is the scale that ``target_transform="auto"`` means."""
    if is_classifier(estimator):
        return ClassTargets(estimator.class_weight)
    loss = loss or estimator.loss
    if estimator.target_transform == "auto":
        return NumberTargets(loss=loss, scaling=of_auto)
    return NumberTargets(estimator.target_transform, loss=loss)


def read_task(
    estimator: Any, inputs: _inputs.Inputs, targets: Targets, given: Given, *, min_rows: int = 1
) -> Task:
    """Validate and encode the arguments of `fit`, and draw its random numbers' origin.

    Parameters
    ----------
    estimator : estimator
        Its parameters are read, and nothing is written to it.
    inputs, targets : Inputs, Targets
        Encodings, not fitted yet.
    given : Given
    min_rows : int, default=1
        Minimum number of rows.
    """
    started, preprocess = time.monotonic(), inputs.preprocessor
    estimator = unfitted_copy(estimator)  # validation writes the number and names of features
    # Forms are checked first: reading rows takes longer.
    named, shifts = [], given.shift_validation
    if shifts is not None:
        named = [("shift_validation", shifts)]
        are_tuples = isinstance(shifts, tuple) and all(isinstance(part, tuple) for part in shifts)
        if are_tuples or isinstance(shifts, list):
            named = [(f"shift_validation[{k}]", part) for k, part in enumerate(shifts)]
    rows = _inputs.read_rows(estimator, inputs, targets, *given[:3], min_rows=min_rows)
    groups, units = _inputs.check_groups(given.groups, rows.X), None
    read = functools.partial(_inputs.read_validation_rows, estimator, inputs, targets)
    validation = None if given.validation_data is None else read(given.validation_data)
    shifted = tuple(read(data, name) for name, data in named)
    # Networks of functions compare the inputs of these by themselves.
    if getattr(estimator, "_held_out", None) is not None and validation is None:
        if _inputs.learns_from_y(preprocess, *given[:2], rows.used):
            inputs.preprocessor = preprocess
            given = hold_out(estimator, given)
            return read_task(estimator, inputs, targets, given, min_rows=min_rows)
        units = find_repeats(rows.X, rows.used, groups)
    # Drawn last: arguments that are refused do not advance a RandomState.
    entropy = draw_entropy(estimator.random_state)
    task = Task(
        *(inputs, targets, rows, entropy, validation, shifted, groups, units),
        features=input_attributes(estimator),
        started=started,
    )
    if validation is not None:
        _warn_of_other_units(task, validation, "`X_val`, `y_val` or `validation_data`", min_share=0)
    for (name, _), part in zip(named, shifted):
        # Shifted rows may differ a lot in some columns.
        _warn_of_other_units(task, part, f"`{name}`", min_share=0.5)
    return task


def hold_out(estimator: Any, given: Given) -> Given:
    """Hold validation rows out before something that learns from y is fitted.

    They are those of `estimator.validation`: of folds the first one, of texts a share of 0.2, and
    the same for every `random_state`.
    """
    y, validation = np.asarray(given.y), estimator.validation
    own_splits = isinstance(validation, str) and given.groups is None and is_regressor(estimator)
    calibrates = getattr(estimator, "calibrate", False) and getattr(estimator, "loss", "") != "mse"
    if own_splits and calibrates:
        warn_user(
            "A step or `preprocess` learns from y, so that all networks validate on the same rows: "
            f"{type(estimator).__name__} is not calibrated. Put CalibratedUncertaintyRegressor "
            "around the whole pipeline.",
            CalibrationWarning,
        )
    weights = check_weights(given.sample_weight, y, relative=True)
    rows = _inputs.Rows(np.zeros((len(y), 1)), y, weights)
    groups = _inputs.check_groups(given.groups, y)
    units = find_repeats(given.X, rows.used, groups)
    labels = column_or_1d(y) if is_classifier(estimator) else None
    split = 0.2 if isinstance(validation, str) else validation
    splits = make_splits(rows, 0, split, groups=groups, labels=labels, units=units, n_used=1)
    valid: Any = splits.positions if splits.parts is None else rows.used[splits.parts[0][1]]
    of_rows = given.X, given.y, given.sample_weight, given.groups
    (X, y_train, weight, named), (*validation_data, _) = (
        [None if part is None else safe_indexing(part, side) for part in of_rows]
        for side in (np.setdiff1d(rows.used, valid), valid)
    )
    given = given._replace(X=X, y=y_train, sample_weight=weight, groups=named)
    return given._replace(validation_data=tuple(validation_data))


def join_validation(validation_data: Any, X_val: Any, y_val: Any, sample_weight_val: Any) -> Any:
    """Return the validation rows of `fit` as one tuple, or None; they may be given part by part."""
    parts = {"X_val": X_val, "y_val": y_val, "sample_weight_val": sample_weight_val}
    given = " and ".join(f"`{name}`" for name, part in parts.items() if part is not None)
    if not given:
        return validation_data
    if validation_data is not None:
        raise ValueError(
            "Give validation rows either as `X_val` and `y_val` or as `validation_data`. Got "
            f"{given} and `validation_data`."
        )
    if X_val is None or y_val is None:
        raise ValueError(f"`X_val` and `y_val` must be given together. Got {given} alone.")
    return tuple(part for part in parts.values() if part is not None)


def _warn_of_other_units(task: Task, rows: _inputs.Rows, name: str, min_share: float) -> None:
    """Warn if validation rows are in other units than the training rows.

    A pipeline transforms X and y, and may leave validation rows as they are. For a warning, at
    least `min_share` of the columns of X must be in other units.
    """
    train = task.rows.take(task.rows.used)
    tables = [("X", train.X, rows.X, min_share)]
    if task.targets.labels(train.y) is None:  # codes of classes have no units
        tables.append(("y", train.y, rows.y, 0.0))
    advice = {
        "X": 'A pipeline transforms `X_val` with transform_input=["X_val"] and metadata routing.',
        "y": "A TransformedTargetRegressor leaves them as they are; networks standardise y anyway.",
    }
    for part, known, others, share in tables:
        columns = _find_other_units(known, others)
        if len(columns) < max(1, share * known.shape[1]):
            continue
        k = columns[0]
        known, others = known[:, k], others[:, k]
        warn_user(
            f"Most rows of {name} lie far outside the training rows: {part} has values from "
            f"{others.min():.3g} to {others.max():.3g} in column {k}, where those of training are "
            f"from {known.min():.3g} to {known.max():.3g}. They must be transformed as {part} is, "
            f"once. {advice[part]}"
        )


def _find_other_units(known: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Find the columns of `others` (n, d) whose units seem to differ from those of `known`.

    Most values are then outside of the known range: in one column by more than its length, or in
    most columns by any distance. Later rows of a series may be a bit outside in one column.
    """
    low, high = known.min(axis=0), known.max(axis=0)
    with np.errstate(over="ignore"):
        length = high - low
        is_far = (others < low - length) | (others > high + length)
    is_outside, varies = (others < low) | (others > high), high > low
    far = np.flatnonzero((is_far.mean(axis=0) > 0.5) & varies)
    outside = np.flatnonzero((is_outside.mean(axis=0) > 0.5) & varies)
    if len(far) or len(others) < _MIN_ROWS or len(outside) < max(2, known.shape[1] / 2):
        return far
    return outside


_FEWEST = 10  # validation rows: fewer show little
_CLEARLY = 1.1  # factor of the loss of a constant above which a model is clearly worse


def warn_if_worse_than_constant(
    head: Head, calibration: Calibration, data: TrainingData, parts: Sequence[tuple]
) -> None:
    """Warn if a model predicts its validation rows clearly worse than a constant does.

    The constant is the mean of the training rows' y, or their shares of the classes.

    Parameters
    ----------
    head : Head
        Head that reads the predictions.
    calibration : Calibration
        Calibration of their mixture.
    data : TrainingData
        Training rows.
    parts : sequence of tuple
        Predictions of validation rows, with the rows: raw outputs (K, n, n_raw), weights (K,) of
        their mixture, standardised y (n, m) and weights (n,).
    """
    constant = head.constant(data.y, data.weight)

    def losses(raw: Any, mix: Any, y: Any, weight: Any) -> tuple[Any, ...]:
        mean = head.mean(np.asarray(raw, dtype="float64"), mix, calibration)
        return head.error(y, mean), head.error(y, constant), weight

    warn_if_worse(*map(np.concatenate, zip(*(losses(*part) for part in parts))))


def warn_of_short_training(share: float, max_time: float | None, seconds: float) -> None:
    """Warn of networks that got a small share of their epochs; `seconds` are enough for all."""
    if share < _MIN_SHARE_TRAINED:
        warn_user(
            f"Networks got only {100 * share:.2g} % of their epochs within max_time={max_time}: "
            f"they are hardly trained. max_time={math.ceil(seconds)} is enough for all epochs; a "
            "first fit needs some seconds to load and compile.",
            ShortTrainingWarning,
        )


def warn_if_worse(loss: np.ndarray, of_constant: np.ndarray, weight: np.ndarray) -> None:
    """Warn if the losses (n,) of validation rows are clearly above those of a constant."""
    if len(weight) < _FEWEST or not weight.sum() > 0:
        return
    loss, of_constant = (np.average(v, weights=weight) for v in (loss, of_constant))
    # A y that does not vary has no loss to compare with.
    if of_constant > 0 and loss > _CLEARLY * of_constant:
        warn_user(
            "The model predicts its validation rows worse than a constant does, the mean of y or "
            f"the shares of the classes: its loss there is {loss / of_constant:.3g} times as "
            "large. Do not rely on it. A lower learning rate, or far values of X that are "
            "corrected, may help."
        )
