"""What networks learn: numbers with a Gaussian likelihood, or classes."""

from __future__ import annotations

from numbers import Integral

import numpy as np
import pandas as pd
from sklearn.preprocessing import LabelEncoder
from sklearn.utils import check_random_state
from sklearn.utils.class_weight import compute_class_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d

from skuq._params import StrOptions
from skuq.estimators._base import UncertaintyRegressorMixin
from skuq.estimators._classifier import UncertaintyClassifierMixin
from skuq.estimators._frames import FrameInputsMixin
from skuq.estimators._posterior import member_posterior
from skuq.estimators._records import mixture_of, unpacked
from skuq.estimators._rows import check_numbers
from skuq.networks import CategoricalHead, GaussianHead
from skuq.predictive import CategoricalMixture, Posterior, TransformedMixture
from skuq.tables import RobustScaling, Scaling, TargetTransform

__all__ = [
    "TARGET_CONSTRAINTS",
    "ClassificationTarget",
    "GaussianTarget",
    "WeightedClassificationTarget",
]

#: Of the parameter that regressors have whose targets may be transformed.
TARGET_CONSTRAINTS: dict = {
    "target_transform": [StrOptions({"standard", "yeo-johnson", "quantile"})],
}


def _as_they_are(loc, scale):
    return loc, scale


class GaussianTarget(FrameInputsMixin, UncertaintyRegressorMixin):
    """Numbers, one or several a row, with a Gaussian likelihood."""

    @property
    def _least_rows(self):
        return 1 if self.validation_fraction is None else 2

    def _check_table(self, X, y):
        return self._check_pair(
            X, y, multi_output=True, y_numeric=True, ensure_min_samples=self._least_rows
        )

    def _targets(self, y):
        self._y_is_1d = y.ndim == 1
        self._n_outputs = 1 if self._y_is_1d else y.shape[1]
        return y.astype("float64").reshape(len(y), -1)

    def _check_targets(self, y):
        return check_numbers(y, self._n_outputs)

    def _labels(self, y):
        return None

    def _make_head(self, n_outputs):
        return GaussianHead(n_outputs)

    def _fit_scaling(self, rows):
        return self._new_scaling().fit(*rows)

    def _new_scaling(self):
        kind = RobustScaling if self._is_tabular else Scaling
        return kind(self._code_columns, target_transform=self._new_target_transform())

    def _new_target_transform(self):
        """None where y is standardised only, which its record need not know of."""
        kind = getattr(self, "target_transform", "standard")
        return None if kind == "standard" else TargetTransform(kind)

    def _scaled_targets(self, y):
        return self.scaling_.targets(y)

    def _predict_distribution(self, X):
        raw = self._raw(X)
        head, raw, weights = unpacked(self._head, raw, self._mixture_weights(len(raw)))
        transform = self.scaling_.target_transform
        restore = self.scaling_.restore if transform is None else _as_they_are
        mixture = mixture_of(head, raw, weights, restore, self._y_is_1d)
        if transform is None:
            return mixture
        return TransformedMixture(mixture, transform.output(0) if self._y_is_1d else transform)

    def posterior_fn(self, n_draws=128, random_state=None) -> Posterior:
        """Draws of the function as a record for Bayesian optimisation, with exact gradients.

        Parameters
        ----------
        n_draws : int, default=128
            Of NOMU. Members of an ensemble are draws themselves, each as often as its weight
            asks for: this number is for weights that are no fractions of a smaller one.
        random_state : int, RandomState instance or None, default=None
            Of NOMU's draws, which stay the same from then on.

        Returns
        -------
        Posterior
            Without noise: mean and standard deviation of the draws are the mean and the
            epistemic part of `predict_uncertainty` (with ``epistemic_ddof=0``). A draw of NOMU
            is the prediction plus so many standard deviations, the same for all rows; with
            asymmetric bounds it is a quantile, and the draws' mean is that of
            `TwoPieceNormal`, not its mode. `key` is equal for fits of equal networks, and
            None, without gradients, where layers or a `pretrained` model run in Keras only,
            and where `preprocess` or `target_transform` change numbers.

        Raises
        ------
        ValueError
            If `n_draws` is not a positive whole number; of NOMU, if it is 1.
        """
        check_is_fitted(self)
        if not isinstance(n_draws, Integral) or n_draws < 1:
            raise ValueError(f"`n_draws` must be a positive whole number. Got {n_draws!r}.")
        seed = check_random_state(random_state).randint(2**31 - 1)
        return self._posterior(int(n_draws), np.random.default_rng(seed))

    def _posterior(self, n_draws, rng):
        return member_posterior(self, n_draws)

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags


class ClassificationTarget(FrameInputsMixin, UncertaintyClassifierMixin):
    """Classes, of any labels."""

    def _check_table(self, X, y):
        X, y = self._check_pair(X, y, ensure_min_samples=2)
        check_classification_targets(y)
        return X, column_or_1d(y, warn=True)

    def _targets(self, y):
        self._encoder = LabelEncoder().fit(y)
        self.classes_ = self._encoder.classes_
        return self._encoder.transform(y)[:, None].astype("float64")

    def _check_targets(self, y):
        y = column_or_1d(y)
        unknown = set(pd.unique(y).tolist()) - set(self.classes_.tolist())
        if unknown:
            raise ValueError(
                f"Validation rows have classes {sorted(unknown, key=str)} that y has not."
            )
        return self._encoder.transform(y)[:, None].astype("float64")

    def _labels(self, y):
        return y[:, 0]

    def _make_head(self, n_outputs):
        return CategoricalHead(len(self.classes_))

    def _fit_scaling(self, rows):
        return self._new_scaling().fit(rows.X, None, rows.weight)

    def _new_scaling(self):
        return (RobustScaling if self._is_tabular else Scaling)(self._code_columns)

    def _scaled_targets(self, y):
        return y

    def _predict_distribution(self, X):
        raw = self._raw(X)
        head, raw, weights = unpacked(self._head, raw, self._mixture_weights(len(raw)))
        return CategoricalMixture(head.probabilities(raw), weights)


class WeightedClassificationTarget(ClassificationTarget):
    """Classes that count as much as the parameter `class_weight` says."""

    def _weigh_classes(self, rows):
        codes = rows.y[rows.weight > 0, 0].astype(int)
        present = np.unique(codes)
        factors = compute_class_weight(
            self.class_weight, classes=self.classes_[present], y=self.classes_[codes]
        )
        if not (np.isfinite(factors).all() and (factors >= 0).all()):
            raise ValueError(
                f"`class_weight` must hold finite numbers >= 0. Got {self.class_weight!r}."
            )
        self._class_factors = np.ones(len(self.classes_))
        self._class_factors[present] = factors

    def _weight(self, rows):
        return rows.weight * self._class_factors[rows.y[:, 0].astype(int)]
