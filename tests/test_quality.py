"""The recommended estimators predict well, and tools of other libraries take the estimators."""

import runpy
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose
from sklearn.datasets import load_breast_cancer, make_friedman1
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import skuq
from skuq.metrics import get_scorer
from skuq.networks import MLP

NETWORK = {"network": MLP((8,)), "epochs": 40, "learning_rate": 0.03, "random_state": 0}
rng = np.random.default_rng(0)
X = rng.uniform(-1, 1, (300, 3))
Y = 2 * X[:, 0] + np.sin(3 * X[:, 1]) + 0.2 * rng.normal(size=300)
TRAIN, REST = slice(150), slice(150, None)


@pytest.fixture(scope="module")
def regressor():
    return skuq.DeepEnsembleRegressor(2, **NETWORK).fit(X[TRAIN], Y[TRAIN])


@pytest.mark.parametrize("score", ["absolute", "std"])
def test_mapie_conformalises_a_regressor(regressor, score):
    regression = pytest.importorskip("mapie.regression")
    from mapie.conformity_scores import StdConformityScore

    settings = {"conformity_score": StdConformityScore() if score == "std" else score}
    conformal = regression.SplitConformalRegressor(regressor, confidence_level=0.9, **settings)
    point, interval = conformal.conformalize(X[REST], Y[REST]).predict_interval(X[REST])
    assert_allclose(point, regressor.predict(X[REST]))
    held = (interval[:, 0, 0] <= Y[REST]) & (Y[REST] <= interval[:, 1, 0])
    assert 0.88 <= held.mean() <= 0.95
    assert (np.ptp(interval[:, :, 0], axis=1).std() > 1e-3) == (score == "std")


def test_mapie_makes_prediction_sets():
    classification = pytest.importorskip("mapie.classification")
    classifier = skuq.DeepEnsembleClassifier(2, **NETWORK).fit(X[TRAIN], Y[TRAIN] > 0)
    conformal = classification.SplitConformalClassifier(classifier, confidence_level=0.9)
    labels, sets = conformal.conformalize(X[REST], Y[REST] > 0).predict_set(X[REST])
    assert (labels == classifier.predict(X[REST])).all()
    assert sets[np.arange(150), (Y[REST] > 0).astype(int), 0].mean() >= 0.88


def test_skpro_wraps_a_regressor(regressor):
    adapters = pytest.importorskip("skpro.regression.adapters.sklearn")
    frame, y = pd.DataFrame(X, columns=list("abc")), pd.DataFrame({"y": Y})
    wrapped = adapters.SklearnProbaReg(skuq.DeepEnsembleRegressor(2, **NETWORK))
    normal = wrapped.fit(frame[TRAIN], y[TRAIN]).predict_proba(frame[REST])
    mean, std = regressor.predict(X[REST], return_std=True)
    assert_allclose(normal.mean()["y"], mean)
    assert_allclose(normal.var()["y"], std**2)


def test_intervals_hold_exactly_linear_targets():
    rows = np.random.default_rng(0).integers(0, 3000, (300, 3)).astype(float)
    target = rows[:, 0] + rows[:, 1]
    model = skuq.TabularEnsembleRegressor(2, epochs=10, random_state=0)
    low, high = model.fit(rows[TRAIN], target[TRAIN]).predict_interval(rows[REST])
    assert np.mean((low <= target[REST]) & (target[REST] <= high)) >= 0.9


@pytest.mark.slow
def test_the_example_with_mapie_holds_its_shares(tmp_path, monkeypatch):
    pytest.importorskip("mapie.risk_control")
    monkeypatch.chdir(tmp_path)  # the example saves a picture
    found = runpy.run_path(str(Path(__file__).parents[1] / "examples" / "plot_mapie.py"))
    for name, (coverage, width) in found["found"].items():
        assert 0.84 < coverage < 0.97 and 0.5 < width < 3, name
    assert found["held"] > 0.85 and found["precision"] > 0.78


@pytest.mark.slow
@pytest.mark.smoke
def test_recommended_estimators_predict_well():
    X, y = make_friedman1(1500, noise=1.0, random_state=0)
    model = skuq.TabularEnsembleRegressor(random_state=0).fit(X[:500], y[:500])
    crps = -get_scorer("neg_crps")(model, X[500:], y[500:])
    assert crps < 1.2 / np.sqrt(np.pi)  # near that of the noise
    X, X_test, y, y_test = train_test_split(*load_breast_cancer(return_X_y=True), random_state=0)
    model = skuq.TabularEnsembleClassifier(random_state=0).fit(X, y)
    linear = make_pipeline(StandardScaler(), LogisticRegression()).fit(X, y)
    losses = [log_loss(y_test, one.predict_proba(X_test)) for one in (model, linear)]
    assert losses[0] < losses[1]
