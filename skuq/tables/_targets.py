"""Convert a user's y to numbers for training, and predictions back to units of y.

Notation: n rows, m outputs.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Self

import numpy as np
from sklearn.utils.class_weight import compute_class_weight
from sklearn.utils.validation import column_or_1d

from skuq._messages import warn_user
from skuq._params import StrOptions, check_labels, check_targets, class_codes, fill_masked
from skuq.exceptions import TableWarning
from skuq.files._registry import saved_as
from skuq.networks import GaussianHead
from skuq.networks._heads import CategoricalHead, GaussianMixtureHead, SquaredErrorHead
from skuq.tables._columns import find_far_values
from skuq.tables._inputs import Rows
from skuq.tables._scaling import TargetScaling, target_names
from skuq.tables._transforms import TARGET_TRANSFORMS, TargetTransform

#: Constraint of the parameter `target_transform` where it may be "auto".
TARGET_CONSTRAINTS: dict[str, list[Any]] = {
    "target_transform": [StrOptions({"auto"}), *TARGET_TRANSFORMS]
}

#: Constraint of the parameter `class_weight`.
CLASS_CONSTRAINTS: dict[str, list[Any]] = {"class_weight": [dict, StrOptions({"balanced"}), None]}

#: Head for each value of the parameter `loss`.
HEADS: dict[str, Any] = {
    "nll": GaussianHead,
    "beta-nll": lambda n_outputs: GaussianHead(n_outputs, beta=0.5),
    "crps": lambda n_outputs: GaussianHead(n_outputs, score="crps"),
    "mse": SquaredErrorHead,
    "gaussian-mixture": GaussianMixtureHead,
}


class Targets:
    """Base of all kinds of targets, for a y of numbers that are neither scaled nor weighed."""

    head: Any
    is_transformed: bool = False  # nonlinearly
    output_shape: tuple[int, ...] = ()  # of one row's prediction

    #: ``validate(y, estimator)`` checks the y of `fit`.
    validate: Callable[..., np.ndarray]
    #: ``fit_encoder(y, weight)`` learns the shape of y or its classes, and returns numbers (n, m).
    fit_encoder: Callable[..., np.ndarray]
    #: ``encode(y)`` checks the y of validation rows, and returns it as numbers (n, m).
    encode: Callable[..., np.ndarray]

    def weigh(self, rows: Rows) -> Rows:
        """Return the rows with their weights in training."""
        return rows

    def labels(self, y: np.ndarray) -> np.ndarray | None:
        """Return classes for stratified splits, or None if y is not classes."""
        return None

    def fit(self, y: np.ndarray, weight: np.ndarray | None = None) -> Self:
        """Learn the scale of the training rows' y (n, m)."""
        return self

    def transform(self, y: np.ndarray) -> np.ndarray:
        """Standardise or transform y (n, m)."""
        return y


@saved_as("tables.NumberTargets")
class NumberTargets(Targets):
    """Targets of regression: one number or several for each row.

    Parameters
    ----------
    transform : {"standard", "yeo-johnson", "quantile", transformer}, default="standard"
        The estimators' parameter `target_transform`.
    loss : str, default="nll"
        Loss by its name in `DeepEnsembleRegressor`, which determines the head of the networks.
    standardize : bool, default=True
        Standardise y. False keeps y in its own units.
    narrow_constants : bool, default=True
        Whether an output with one value in 20 rows or more, from which no validation row differs,
        is predicted to the precision of float32, and the unit of fewer rows is a part of the
        value's size. Otherwise it is 1.
    scaling : TargetScaling, optional
        Scale of y in place of that of `transform`. Its `fit` may return another scale or transform.

    Attributes
    ----------
    is_1d : bool
        Whether y had one axis.
    n_outputs : int
        Number of outputs.
    head : object
        Head that converts raw outputs to distributions of the standardised y.
    scaling : TargetScaling or TargetTransform
        Scale of y, fitted by `fit`.
    """

    _constant: np.ndarray | None = None  # outputs (m,) that have had one value, `_value`, so far

    def __init__(
        self,
        transform: Any = "standard",
        *,
        loss: str = "nll",
        standardize: bool = True,
        narrow_constants: bool = True,
        scaling: TargetScaling | None = None,
    ) -> None:
        self.loss = loss
        self.narrow_constants = narrow_constants and standardize
        self.scaling: Any = scaling or TargetScaling(standardize)
        if transform != "standard":
            self.scaling = TargetTransform(transform)

    def validate(self, y: Any, estimator: Any) -> np.ndarray:
        """Check that y holds finite numbers (n,) or (n, m)."""
        return check_targets(y, estimator)

    def fit_encoder(self, y: np.ndarray, weight: np.ndarray) -> np.ndarray:
        """Store the shape of y, choose the head, and return y as (n, m)."""
        self.is_1d = y.ndim == 1
        self.n_outputs = 1 if self.is_1d else y.shape[1]
        self.head = HEADS[self.loss](self.n_outputs)
        # Outputs are an axis inside; `is_1d` restores the shape of predictions.
        values: np.ndarray = y.astype("float64").reshape(len(y), -1)
        used = values[weight > 0]
        # A single row does not show whether y varies.
        self._value, self._constant = used[0], (used == used[0]).all(axis=0) & (len(used) > 1)
        self._n_used = len(used)
        # Quantiles put any far value next to the others.
        if not (self.is_transformed and self.scaling.kind == "quantile"):
            far = find_far_values(used)
            if far is not None:
                names = target_names(values.shape[1])
                warn_user(
                    "y has values so far from all others that these would look alike to a network: "
                    f"{far.describe(used, np.flatnonzero(weight > 0), names)}. Correct them or "
                    "drop their rows. If they are right, train on a transformed y, as "
                    "'target_transform=\"quantile\"' does in estimators that have it.",
                    TableWarning,
                )
        return values

    def encode(self, y: Any) -> np.ndarray:
        """Check the y of validation rows, and return it as (n, m)."""
        y = check_targets(y, None, "y of validation rows")
        y = y.reshape(len(y), -1)
        if y.shape[1] != self.n_outputs:
            raise ValueError(
                f"y of validation rows must have {self.n_outputs} outputs. Got {y.shape[1]}."
            )
        # An output is constant as long as validation rows agree.
        if self._constant is not None:
            self._constant = self._constant & (y == self._value).all(axis=0)
        return y

    def fit(self, y: np.ndarray, weight: np.ndarray | None = None) -> Self:
        """Learn the scale of the training rows' y."""
        self.scaling = self.scaling.fit(y, weight)
        # The unit of a constant would be 1, and its predictions as vague as that.
        if self.narrow_constants and self._constant is not None:
            self.scaling.rescale_equal(self._constant, self._n_used)
        return self

    def transform(self, y: np.ndarray) -> np.ndarray:
        """Standardise or transform y (n, m)."""
        return self.scaling.forward(y)

    def restore(self, loc: Any, scale: Any) -> tuple[Any, Any]:
        """Convert means and standard deviations (.., m) to units of y; arrays or tensors."""
        if self.is_transformed:
            raise ValueError(
                f"Moments with target_transform={self.scaling.kind!r} are integrals, which cannot "
                'be computed from the moments alone. Use target_transform="standard".'
            )
        return self.scaling.restore(loc, scale)

    @property
    def is_transformed(self) -> bool:  # type: ignore[override]
        """Whether y is transformed nonlinearly."""
        return isinstance(self.scaling, TargetTransform)

    @property
    def output_shape(self) -> tuple[int, ...]:  # type: ignore[override]
        """Shape of one row's prediction."""
        return () if self.is_1d else (self.n_outputs,)

    def in_units(self, unit: np.ndarray) -> NumberTargets:
        """Copy the targets, whose scaled y is divided by `unit` (m,)."""
        other = copy.copy(self)
        other.scaling = copy.copy(self.scaling)
        other.scaling.scale_ = self.scaling.scale_ * unit
        return other

    def with_noise(self, scale: np.ndarray) -> NumberTargets:
        """Copy the targets, with a noise standard deviation (m,) of standardised y in the head."""
        other = copy.copy(self)
        other.head = replace(self.head, scale=tuple(scale))
        return other


@saved_as("tables.ClassTargets")
class ClassTargets(Targets):
    """Targets of classification: classes with any labels.

    Parameters
    ----------
    class_weight : dict, "balanced" or None, default=None
        Weights of the classes, as in scikit-learn's classifiers.

    Attributes
    ----------
    classes : ndarray of shape (n_classes,)
        Sorted labels.
    head : object
        Head that converts raw outputs to probabilities.
    """

    _class_factors: np.ndarray | None

    def __init__(self, class_weight: Any = None) -> None:
        self.class_weight = class_weight

    def validate(self, y: Any, estimator: Any) -> np.ndarray:
        """Check that y holds classes (n,)."""
        return check_labels(y)

    def fit_encoder(self, y: np.ndarray, weight: np.ndarray) -> np.ndarray:
        """Learn the classes and their weights, and return codes (n, 1)."""
        self.classes, codes = np.unique(y, return_inverse=True)
        if len(self.classes) < 2:
            raise ValueError(
                f"y must have at least two classes. Got 1 class: {self.classes.tolist()}."
            )
        self.head = CategoricalHead(len(self.classes))
        self._class_factors = None
        if self.class_weight is not None:
            used = codes[weight > 0]
            # scikit-learn refuses weights of classes that no row has.
            present = np.unique(used)
            factors = compute_class_weight(
                self.class_weight, classes=self.classes[present], y=self.classes[used]
            )
            if not (np.isfinite(factors).all() and (factors >= 0).all()):
                raise ValueError(
                    f"`class_weight` must have finite numbers >= 0. Got {self.class_weight!r}."
                )
            if not factors.any():
                raise ValueError(
                    "`class_weight` must leave a class with a positive weight. Got "
                    f"{self.class_weight!r} for the classes {self.classes[present].tolist()}."
                )
            # Classes that only occur in rows of weight 0 get the weight 1.
            self._class_factors = np.ones(len(self.classes))
            self._class_factors[present] = factors
        return codes[:, None].astype("float64")

    def encode(self, y: Any) -> np.ndarray:
        """Check the y of validation rows, and return codes (n, 1)."""
        y = column_or_1d(fill_masked(y))
        problem = "Validation rows must have classes of the training y. Got unknown classes"
        return class_codes(y, self.classes, problem)[:, None].astype("float64")

    def weigh(self, rows: Rows) -> Rows:
        """Multiply the rows' weights by their class weights."""
        if self._class_factors is None:
            return rows
        return rows._replace(weight=rows.weight * self._class_factors[rows.y[:, 0].astype(int)])

    def labels(self, y: np.ndarray) -> np.ndarray:
        """Return the classes of codes (n, 1), for stratified splits."""
        return self.classes[y[:, 0].astype(int)]
