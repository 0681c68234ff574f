import numpy as np
import pytest
import sklearn
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.datasets import load_iris
from sklearn.linear_model import BayesianRidge, LinearRegression, LogisticRegression
from sklearn.model_selection import GridSearchCV, GroupKFold, KFold, ShuffleSplit, StratifiedKFold
from sklearn.model_selection import cross_val_predict as of_scikit_learn
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from tiers import cases

import skuq
from skuq.metrics import get_scorer
from skuq.model_selection import cross_val_predict

RNG = np.random.default_rng(0)
X, WEIGHT, GROUPS = RNG.normal(size=(40, 3)), RNG.uniform(0.1, 1, 40), RNG.integers(0, 5, 40)
Y = X[:, :1] + RNG.normal(size=(40, 2))
CALIBRATED = skuq.CalibratedUncertaintyRegressor(BayesianRidge(), cv=2)
SEARCH = GridSearchCV(CALIBRATED, {"cv": [2]}, cv=2)
INTERVAL = {"method": "predict_interval", "coverage": 0.7}


class NeverFitted(LinearRegression):
    def fit(self, X, y):
        raise AssertionError


@cases(
    ("model", "step"),
    (CALIBRATED, ""),
    (make_pipeline(StandardScaler(), CALIBRATED), "calibrateduncertaintyregressor__"),
    (skuq.make_pipeline(StandardScaler(), SEARCH), None),
)
def test_rows_are_predicted_by_a_model_that_has_not_seen_them(model, step):
    y, arguments = Y[:, 0], {"cv": GroupKFold(3), "groups": GROUPS}
    params = {} if step is None else {f"{step}sample_weight": WEIGHT}
    found = [
        cross_val_predict(model, X, y, params=params, **arguments, **other)
        for other in ({}, INTERVAL, {"method": "predict_distribution", "n_jobs": 2})
    ]
    for train, test in GroupKFold(3).split(X, y, GROUPS):
        given = {name: weight[train] for name, weight in params.items()}
        fitted = clone(model).fit(X[train], y[train], **given)
        inner, X_test = skuq._params.unwrap_estimator(fitted, X[test])
        expected = inner.predict_uncertainty(X_test)
        assert_array_equal([part[test] for part in found[0]], expected)
        expected = inner.predict_interval(X_test, coverage=0.7)
        is_pair = isinstance(expected, tuple)
        assert_array_equal([e[test] for e in found[1]] if is_pair else found[1][test], expected)
        distribution = inner.predict_distribution(X_test)
        assert_array_equal(found[2].quantile(0.2)[test], distribution.quantile(0.2))
        assert_array_equal(found[2].rows(test).cdf(y[test]), distribution.cdf(y[test]))
    assert found[0]._fields == ("mean", "aleatoric", "epistemic", "total")


def test_what_scikit_learn_predicts_and_routes_and_scorers_read():
    y, model = Y[:, 0], BayesianRidge()
    mean, std = cross_val_predict(model, X, y, method="predict", return_std=True)
    assert_array_equal(mean, of_scikit_learn(model, X, y))
    assert std.shape == (40,)
    labels, classifier = (y > 0).astype(str), LogisticRegression()
    for method in ("predict_proba", "decision_function"):
        found = cross_val_predict(classifier, X, labels, method=method)
        assert_array_equal(found, of_scikit_learn(classifier, X, labels, method=method))
    with sklearn.config_context(enable_metadata_routing=True):
        given = {"params": {"sample_weight": WEIGHT, "groups": GROUPS}, "cv": GroupKFold(3)}
        model.set_fit_request(sample_weight=True)
        found = cross_val_predict(model, X, y, method="predict", **given)
        assert_array_equal(found, of_scikit_learn(model, X, y, **given))
    # Several outputs, and a scorer of what is put together.
    line = skuq.CalibratedUncertaintyRegressor(LinearRegression(), cv=2)
    together = cross_val_predict(line, X, Y, cv=KFold(4), method="predict_distribution")
    model.predict_distribution = lambda rows: together.rows(rows)
    score, folds = get_scorer("neg_crps"), np.arange(40).reshape(4, 10)
    each = [score(model, rows, Y[rows]) for rows in folds]
    assert_allclose(score(model, np.arange(40), Y), np.mean(each), rtol=1e-12)


IRIS, SPECIES = load_iris(return_X_y=True)
IRIS = IRIS - IRIS.mean(axis=0)
SURE = skuq.CalibratedUncertaintyClassifier(LogisticRegression(), cv=2)


@cases(
    ("error", "message", "model", "options"),
    (AttributeError, "estimator has. Got 'predict_uncertainty', and Never", NeverFitted(), {}),
    (AttributeError, "estimator has", make_pipeline(NeverFitted()), {"method": "predict_set"}),
    (ValueError, "only works for partitions", NeverFitted(), {"cv": ShuffleSplit()}),
    (ValueError, r"different classes: \[\[1, 2\], \[0, 2\], \[0, 1\]\]", SURE, {"cv": KFold(3)}),
    (TypeError, "Got CategoricalMixture", SURE, {"method": "predict_distribution"}),
)
def test_what_cannot_be_put_together_is_refused(error, message, model, options):
    if "cv" in options and isinstance(model, NeverFitted):
        options = {"method": "predict", **options}
    with pytest.raises(error, match=message):
        cross_val_predict(model, IRIS, SPECIES, **options)
    assert len(cross_val_predict(SURE, IRIS, SPECIES, cv=StratifiedKFold(2)).total) == 150
