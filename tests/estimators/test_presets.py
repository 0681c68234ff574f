"""The wall: `from_paper` and `baseline` predict by the papers' equations, from members alone."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.special import softmax

from skuq import AutoDEUQRegressor, NESClassifier, NESRegressor, TabularEnsembleRegressor
from skuq.predictive._calibration import UNCALIBRATED

pytestmark = pytest.mark.filterwarnings("ignore:.*:UserWarning")
SMALL = {"n_trials": 2, "n_members": 2, "epochs": 2, "random_state": 0}


@pytest.fixture(scope="module")
def rows():
    """Many columns, targets with a heavy tail, and rows far away."""
    X = np.random.default_rng(0).normal(size=(64, 25))
    return X, np.exp(2.5 * X[:, 0]), 10 * X[:7]


def raw_outputs(model, X):
    """What each member says, after checking that nothing is added to it."""
    fitted = model.fitted_.ensemble
    assert fitted.far is None and fitted.calibration == UNCALIBRATED
    for member in fitted.members:  # any number of columns
        assert "GlorotUniform" in member.network and "VarianceScaling" not in member.network
    return fitted.raw(fitted.inputs.transform(X))


def paper(**changes):
    return AutoDEUQRegressor.from_paper("toy", **SMALL, selection="top", **changes)


def baseline():
    X = np.random.default_rng(0).normal(size=(64, 25))
    search = NESRegressor(**SMALL, space="dense", search="random").fit(X, X[:, 0])
    return search.baseline("deep-ensemble")


@pytest.mark.parametrize("make", [paper, baseline])
def test_paper_s_regressors_predict_the_moments_of_equations_3_and_4(make, rows):
    X, y, new = rows
    model = make().fit(X, y)
    raw = raw_outputs(model, new)
    assert not model.fitted_.targets.is_transformed
    mean, unit = model.fitted_.targets.scaling.mean_, model.fitted_.targets.scaling.scale_
    loc = raw[..., 0] * unit + mean
    scale = (np.log1p(np.exp(raw[..., 1])) + 1e-3) * unit
    aleatoric, total = (scale**2).mean(axis=0), (scale**2).mean(axis=0) + loc.var(axis=0)
    found = model.predict_distribution(new).uncertainty()
    assert_allclose(found.mean, loc.mean(axis=0))
    assert_allclose([found.aleatoric**2, found.total**2], [aleatoric, total], rtol=1e-6)
    corrected = model.predict_distribution(new).uncertainty(ddof=1)
    assert_allclose(corrected.epistemic**2, loc.var(axis=0, ddof=1), rtol=1e-6)


def test_paper_s_classifier_averages_probabilities(rows):
    X, y, new = rows
    model = NESClassifier.from_paper("dense", **SMALL).fit(X, y > 1)
    expected = softmax(raw_outputs(model, new), axis=-1).mean(axis=0)
    assert_allclose(model.predict_proba(new), expected, rtol=1e-6)


def test_paper_s_greedy_rule_has_no_limit_of_repeats():
    assert AutoDEUQRegressor.from_paper().selection.max_size is None


def test_ensembles_that_are_not_calibrated_predict_by_members_alone(rows):
    X, y, _ = rows
    fixed = {"n_layers": 1, "width": 32, "embedding": "none"}
    search = AutoDEUQRegressor(1, fixed=fixed, validation=2, repeats=0, epochs=2, calibrate=False)
    ensemble = TabularEnsembleRegressor(2, epochs=2, calibrate=False)
    search.set_params(random_state=0).fit(X, X[:, 0])
    for fitted in (search.fitted_.ensemble, ensemble.fit(X, X[:, 0]).fitted_):
        assert fitted.far is None and fitted.calibration == UNCALIBRATED
    assert search.set_params(calibrate=True).fit(X, X[:, 0]).fitted_.far is not None
