import inspect

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn import config_context
from sklearn.base import BaseEstimator
from sklearn.calibration import CalibratedClassifierCV
from sklearn.decomposition import PCA
from sklearn.exceptions import NotFittedError
from sklearn.feature_selection import SelectKBest, f_regression
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import GridSearchCV, cross_validate
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import StandardScaler
from small_models import TooSure

import skuq
from skuq import CalibratedUncertaintyRegressor, UncertaintyPipeline, make_pipeline
from skuq.metrics import get_scorer, make_scorers

METHODS = {"predict_distribution", "predict_interval", "predict_quantiles", "predict_uncertainty"}
METHODS |= {"sample_y", "log_prob"}


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(80, 3))
    return X, X @ [1.0, 2.0, 0.0] + 0.3 * rng.normal(size=80)


@pytest.fixture(scope="module")
def pipeline(rows):
    return make_pipeline(
        StandardScaler(),
        SelectKBest(f_regression, k=2),
        CalibratedUncertaintyRegressor(TooSure(), cv=3),
    ).fit(*rows)


def test_pipeline_has_the_methods_of_the_last_step(rows, pipeline):
    X, y = rows
    transformed, last = pipeline[:-1].transform(X), pipeline[-1]
    assert transformed.shape == (80, 2)
    for name, *arguments in (
        ("predict_interval",),
        ("predict_interval", 0.5),
        ("predict_quantiles", [0.2, 0.8]),
        ("predict_uncertainty",),
        ("sample_y", 3, 0),
        ("log_prob", y),
    ):
        ours, theirs = getattr(pipeline, name), getattr(last, name)
        assert_array_equal(ours(X, *arguments), theirs(transformed, *arguments))
    expected = last.predict(transformed, True)
    assert_array_equal(pipeline.predict_distribution(X).std, expected[1])
    assert_array_equal(pipeline.predict(X), expected[0])
    with config_context(enable_metadata_routing=True):
        for found in (pipeline.predict(X, return_std=True), pipeline.predict(X, True)):
            assert_array_equal(found, expected)
        assert pipeline.predict_interval(X).shape == (80, 2)
    assert isinstance(pipeline, Pipeline) and isinstance(pipeline[:-1], UncertaintyPipeline)
    scores = cross_validate(pipeline, X, y, cv=2, scoring=make_scorers("neg_nll", "coverage_90"))
    assert (scores["test_coverage_90"] > 0.7).all() and np.isfinite(scores["test_neg_nll"]).all()


def test_pipeline_passes_on_methods_of_searches(rows):
    X, _ = rows
    search = skuq.AutoDEUQRegressor()
    model = make_pipeline(PCA(2), search)
    with pytest.raises(NotFittedError):
        model.leaderboard()
    Z = model[0].fit_transform(X)
    search.leaderboard = lambda X=None, y=None: (search, X, y)
    search.reselect = lambda X=None, y=None, **settings: (settings, X, y)
    assert model.leaderboard() == (search, None, None)
    assert_allclose(model.leaderboard(X)[1], Z)
    assert model.reselect(n_members=3) == ({"n_members": 3}, None, None)


def test_pipeline_has_only_what_the_last_step_has(rows):
    X, y = rows
    line = make_pipeline(StandardScaler(), LinearRegression()).fit(X, y)
    assert not [name for name in METHODS if hasattr(line, name)]
    with pytest.raises(AttributeError, match="predict_interval"):
        line.predict_interval(X)
    assert not hasattr(line, "predict_proba")
    unfitted = make_pipeline(StandardScaler(), skuq.DeepEnsembleRegressor())
    assert not [name for name in METHODS if not hasattr(unfitted, name)]
    with pytest.raises(NotFittedError):
        unfitted.predict_interval(X)
    for name in METHODS | {"predict"}:  # which are documented as those of the step
        ours, theirs = getattr(UncertaintyPipeline, name), getattr(skuq.DeepEnsembleRegressor, name)
        assert inspect.getdoc(ours) == inspect.getdoc(theirs)
        assert inspect.signature(ours) == inspect.signature(theirs)


def test_pipeline_opens_searches_and_pipelines(rows):
    X, y = rows
    inner = make_pipeline(PCA(2), CalibratedUncertaintyRegressor(TooSure(), cv=2))
    grid = {"calibrateduncertaintyregressor__cv": [2, 3]}
    search = GridSearchCV(inner, grid, scoring=get_scorer("neg_crps"), cv=2)
    model = make_pipeline(StandardScaler(), search)
    assert not hasattr(model, "predict_interval")  # nobody knows the best estimator yet
    model.fit(X, y)
    best = search.best_estimator_
    scaled = model[0].transform(X)
    assert_array_equal(model.predict_interval(X), best.predict_interval(scaled))
    assert_array_equal(model.predict(X, return_std=True), best.predict(scaled, return_std=True))
    frozen = make_pipeline(FrozenEstimator(model)).fit(X, y)
    assert_array_equal(frozen.predict_interval(X), model.predict_interval(X))


def test_pipeline_of_classifiers(rows):
    X, y = rows
    model = make_pipeline(PCA(2), skuq.CalibratedUncertaintyClassifier(GaussianNB(), cv=2))
    model.fit(X, y > 0)
    proba, std = model.predict_proba(X, return_std=True)
    assert_array_equal(proba, model.predict_proba(X))
    assert std.shape == proba.shape == (80, 2)
    assert model.predict_uncertainty(X).total.shape == model.log_prob(X, y > 0).shape == (80,)
    assert not hasattr(model, "predict_interval")
    theirs = CalibratedClassifierCV(model, cv=2).fit(X, y > 0)
    assert theirs.predict_proba(X).shape == (80, 2)


class Doubling(BaseEstimator):
    """Sampler, as those of imbalanced-learn: it has no `transform`."""

    def fit_resample(self, X, y):
        return np.concatenate([X, X[y == 1]]), np.concatenate([y, y[y == 1]])


class Sampled(Pipeline):
    """Pipeline of a scaler, a sampler that acts in `fit` only, and a model."""

    def _validate_steps(self):
        pass

    def fit(self, X, y):
        (_, scaler), (_, sampler), (_, model) = self.steps
        model.fit(*sampler.fit_resample(scaler.fit_transform(X), y))
        return self

    def predict_proba(self, X):
        return self.steps[2][1].predict_proba(self.steps[0][1].transform(X))

    def predict(self, X):
        return self.steps[2][1].predict(self.steps[0][1].transform(X))


def test_pipeline_with_a_sampler_is_asked_itself(rows):
    X, y = rows[0], (rows[1] > 0).astype(int)
    steps = [("scale", StandardScaler()), ("sample", Doubling()), ("model", GaussianNB())]
    sampled = Sampled(steps).fit(X, y)
    proba = sampled.predict_proba(X)
    assert_allclose(get_scorer("neg_nll")(sampled, X, y), get_scorer("neg_log_loss")(sampled, X, y))
    model = skuq.CalibratedUncertaintyClassifier(sampled, cv=3).fit(X, y)
    assert_array_equal(model.estimator_.predict_proba(X), proba)
    with pytest.raises(TypeError, match="cannot be fitted with `sample_weight`"):
        model.fit(X, y, np.ones(80))  # which would not fit the sampled rows
