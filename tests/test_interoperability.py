"""Tools of other libraries accept the estimators unchanged."""

import runpy
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose

from skuq import DeepEnsembleClassifier, DeepEnsembleRegressor
from skuq.networks import MLP

NETWORK = {"network": MLP((8,)), "epochs": 40, "learning_rate": 0.03, "random_state": 0}


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (300, 3))
    return X, 2 * X[:, 0] + np.sin(3 * X[:, 1]) + 0.2 * rng.normal(size=300)


@pytest.fixture(scope="module")
def regressor(rows):
    return DeepEnsembleRegressor(2, **NETWORK).fit(rows[0][:150], rows[1][:150])


@pytest.fixture(scope="module")
def classifier(rows):
    X, y = rows
    return DeepEnsembleClassifier(2, **NETWORK).fit(X[:150], y[:150] > 0)


@pytest.mark.parametrize("score", ["absolute", "std"])
def test_mapie_conformalises_a_regressor(rows, regressor, score):
    regression = pytest.importorskip("mapie.regression")
    from mapie.conformity_scores import StdConformityScore

    X, y = rows
    settings = {"conformity_score": StdConformityScore() if score == "std" else score}
    conformal = regression.SplitConformalRegressor(regressor, confidence_level=0.9, **settings)
    conformal.conformalize(X[150:], y[150:])
    point, interval = conformal.predict_interval(X[150:])
    assert_allclose(point, regressor.predict(X[150:]))
    held = (interval[:, 0, 0] <= y[150:]) & (y[150:] <= interval[:, 1, 0])
    assert 0.88 <= held.mean() <= 0.95
    widths = np.ptp(interval[:, :, 0], axis=1)
    assert (widths.std() > 1e-3) == (score == "std")


def test_mapie_makes_prediction_sets(rows, classifier):
    classification = pytest.importorskip("mapie.classification")
    X, y = rows
    conformal = classification.SplitConformalClassifier(classifier, confidence_level=0.9)
    conformal.conformalize(X[150:], y[150:] > 0)
    labels, sets = conformal.predict_set(X[150:])
    assert (labels == classifier.predict(X[150:])).all()
    true = (y[150:] > 0).astype(int)
    assert sets[np.arange(150), true, 0].mean() >= 0.88


def test_skpro_wraps_a_regressor(rows):
    adapters = pytest.importorskip("skpro.regression.adapters.sklearn")
    X = pd.DataFrame(rows[0], columns=list("abc"))
    y = pd.DataFrame({"y": rows[1]})
    network = DeepEnsembleRegressor(2, **NETWORK)
    wrapped = adapters.SklearnProbaReg(network).fit(X[:150], y[:150])
    normal = wrapped.predict_proba(X[150:])
    mean, std = network.fit(X[:150], y[:150]["y"]).predict(X[150:], return_std=True)
    assert_allclose(normal.mean()["y"], mean)
    assert_allclose(normal.var()["y"], std**2)


@pytest.mark.slow
def test_the_example_with_mapie_holds_its_shares(tmp_path, monkeypatch):
    pytest.importorskip("mapie.risk_control")
    monkeypatch.chdir(tmp_path)  # the example saves a picture
    found = runpy.run_path(str(Path(__file__).parents[1] / "examples" / "plot_mapie.py"))
    for name, (coverage, width) in found["found"].items():
        assert 0.84 < coverage < 0.97, name  # 300 rows to calibrate on, as many to judge on
        assert 0.5 < width < 3, name
    assert found["held"] > 0.85 and found["precision"] > 0.78
