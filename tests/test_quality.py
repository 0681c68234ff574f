"""The recommended estimators predict well: with old and new versions of what they stand on, too."""

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer, make_friedman1
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import skuq
from skuq.metrics import get_scorer


@pytest.mark.slow
@pytest.mark.smoke
def test_crps_is_near_that_of_the_noise():
    X, y = make_friedman1(1500, noise=1.0, random_state=0)
    model = skuq.TabularEnsembleRegressor(random_state=0).fit(X[:500], y[:500])
    crps = -get_scorer("neg_crps")(model, X[500:], y[500:])
    of_noise = 1 / np.sqrt(np.pi)
    assert crps < 1.2 * of_noise


@pytest.mark.slow
@pytest.mark.smoke
def test_log_loss_is_below_that_of_a_logistic_regression():
    X, X_test, y, y_test = train_test_split(*load_breast_cancer(return_X_y=True), random_state=0)
    model = skuq.TabularEnsembleClassifier(random_state=0).fit(X, y)
    linear = make_pipeline(StandardScaler(), LogisticRegression()).fit(X, y)
    losses = [log_loss(y_test, one.predict_proba(X_test)) for one in (model, linear)]
    assert losses[0] < losses[1]
