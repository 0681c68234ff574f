"""The wall: `from_paper` and `baseline` predict by the papers' equations, from members alone."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.special import softmax

import skuq
from skuq.predictive._calibration import UNCALIBRATED

pytestmark = pytest.mark.filterwarnings("ignore:.*:UserWarning")
SMALL = {"n_trials": 2, "n_members": 2, "epochs": 2, "random_state": 0}


@pytest.fixture(scope="module")
def rows():
    """Many columns, targets with a heavy tail, and rows far away."""
    X = np.random.default_rng(0).normal(size=(64, 25))
    return X, np.exp(2.5 * X[:, 0]), 10 * X[:7]


def raw_outputs(model, X):
    """Return each member's raw outputs, after checking that nothing is added to them."""
    fitted = model.fitted_.ensemble
    assert fitted.far is None and fitted.calibration == UNCALIBRATED
    for member in fitted.members:  # any number of columns
        assert "GlorotUniform" in member.network and "VarianceScaling" not in member.network
    return fitted.raw(fitted.inputs.transform(X))


def paper(**changes):
    return skuq.AutoDEUQRegressor.from_paper("toy", **SMALL, selection="top", **changes)


def baseline():
    X = np.random.default_rng(0).normal(size=(64, 25))
    search = skuq.NESRegressor(**SMALL, space="dense", search="random").fit(X, X[:, 0])
    return search.baseline("deep-ensemble")


@pytest.mark.parametrize("make", [paper, baseline])
def test_paper_s_regressors_predict_the_moments_of_equations_3_and_4(make, rows):
    X, y, new = rows
    model = make().fit(X, y)
    raw = raw_outputs(model, new)
    assert not model.fitted_.targets.is_transformed
    mean, unit = model.fitted_.targets.scaling.mean_, model.fitted_.targets.scaling.scale_
    loc, scale = raw[..., 0] * unit + mean, (np.log1p(np.exp(raw[..., 1])) + 1e-3) * unit
    aleatoric, total = (scale**2).mean(axis=0), (scale**2).mean(axis=0) + loc.var(axis=0)
    found = model.predict_distribution(new).uncertainty()
    assert_allclose(found.mean, loc.mean(axis=0))
    assert_allclose([found.aleatoric**2, found.total**2], [aleatoric, total], rtol=1e-6)
    corrected = model.predict_distribution(new).uncertainty(ddof=1)
    assert_allclose(corrected.epistemic**2, loc.var(axis=0, ddof=1), rtol=1e-6)


def test_paper_s_classifier_averages_probabilities(rows):
    X, y, new = rows
    model = skuq.NESClassifier.from_paper("dense", **SMALL).fit(X, y > 1)
    expected = softmax(raw_outputs(model, new), axis=-1).mean(axis=0)
    assert_allclose(model.predict_proba(new), expected, rtol=1e-6)


@pytest.mark.parametrize(("name", "epochs"), [("benchmark", 100), ("toy", 200)])
def test_autodeuq_has_the_paper_s_settings(name, epochs):
    model = skuq.AutoDEUQRegressor.from_paper(name, random_state=3)
    search, selection = model.search, model.selection
    assert (search.population_size, search.sample_size, search.kappa) == (100, 10, 0.001)
    assert (selection.loss, selection.min_members, selection.max_size) == ("nll", 1, None)
    assert (model.n_trials, model.n_members) == (500, 5)
    assert (model.space, model.epochs, model.random_state) == (name, epochs, 3)
    assert (model.validation < 0.5, model.calibrate) == (True, False)
    classifier = skuq.AutoDEUQClassifier.from_paper(name, n_trials=4)
    assert (classifier.n_trials, classifier.space) == (4, name)


def test_nes_has_the_paper_s_settings_and_nothing_is_added_without_calibration(rows):
    expected = {None: (400, 10, 100, 0.2), "fashion-mnist": (400, 10, 15, 1 / 6)}  # B.2, B.3
    expected |= {"tiny-imagenet": (200, 10, 100, "auto"), "imagenet-16-120": (1000, 3, 200, "auto")}
    for name, of_it in expected.items():
        model = skuq.NESClassifier.from_paper(name, random_state=3)
        search = model.search
        assert (search.vary, search.population_size, search.n_parents) == ("architecture", 50, 10)
        assert (model.selection, model.calibrate, model.random_state) == ("forward", False, 3)
        assert (model.n_trials, model.n_members, model.epochs, model.validation) == of_it
    assert model.fixed == {"learning_rate": 0.1, "l2": 5e-4 / 2}  # NAS-Bench-201's
    assert skuq.NESRegressor.from_paper("dense", n_members=3).n_members == 3
    with pytest.raises(ValueError, match=r"`name` must be .* \['benchmark', 'toy'\]. Got 'uci'"):
        skuq.AutoDEUQRegressor.from_paper("uci")
    with pytest.raises(ValueError, match="`name` must be one of"):
        skuq.NESRegressor.from_paper("benchmark")
    X, _, _ = rows
    ensemble = skuq.TabularEnsembleRegressor(2, loss="crps", epochs=1, calibrate=False)
    ensemble.set_params(network__width=32, network__n_layers=1).fit(X, X[:, 0])
    assert ensemble.fitted_.far is None and ensemble.fitted_.calibration == UNCALIBRATED
