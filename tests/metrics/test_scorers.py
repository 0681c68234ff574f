from types import SimpleNamespace

import numpy as np
import pytest
import sklearn
from numpy.testing import assert_allclose
from sklearn.base import BaseEstimator, RegressorMixin, clone, is_classifier
from sklearn.compose import TransformedTargetRegressor
from sklearn.datasets import load_iris, make_regression
from sklearn.ensemble import RandomForestRegressor
from sklearn.exceptions import UndefinedMetricWarning
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, WhiteKernel
from sklearn.linear_model import BayesianRidge, LinearRegression, LogisticRegression
from sklearn.metrics import check_scoring
from sklearn.model_selection import GridSearchCV, cross_val_score, cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC
from tiers import cases

from skuq import metrics, predictive
from skuq.metrics import get_scorer, make_scorers

CLASS_SCORES = ("neg_brier", "neg_ece", "neg_nll")
NUMBER_SCORES = (
    *("neg_nll", "neg_gaussian_nll", "neg_nll_min", "neg_crps", "neg_coverage_width_auc"),
    *("neg_calibration_error", "coverage_50", "neg_coverage_error_80", "neg_interval_90"),
    "neg_mean_width_99",
)


class TwoLines(RegressorMixin, BaseEstimator):
    """A mixture of two normals, one above and one below the least squares line."""

    def __init__(self, apart=1.0, change=None):
        self.apart = apart
        self.change = change

    def fit(self, X, y, sample_weight=None):
        self.line_ = LinearRegression().fit(X, y, sample_weight)
        self.scale_ = np.std(y - self.line_.predict(X), axis=0)
        return self

    def predict_distribution(self, X):
        mixture = self.mixture(X)
        return mixture if self.change is None else self.change(mixture)

    def mixture(self, X):
        line, step = self.line_.predict(X), self.apart * self.scale_
        loc = np.stack([line - step, line + step])
        return predictive.GaussianMixture(loc, np.broadcast_to(self.scale_, loc.shape))

    def predict(self, X, return_std=False):
        mixture = self.mixture(X)
        return (mixture.mean, mixture.std) if return_std else mixture.mean


@pytest.fixture(scope="module")
def table():
    X, y = make_regression(80, 3, noise=10, random_state=0)
    return X, y / y.std()


@pytest.fixture(scope="module")
def weight():
    return np.random.default_rng(0).uniform(size=80)


def test_names():
    assert get_scorer("coverage_73").name == get_scorer("coverage_73").__name__ == "coverage_73"
    assert list(make_scorers("neg_crps", "r2")) == ["neg_crps", "r2"]
    assert get_scorer("neg_crps") == get_scorer("neg_crps") != get_scorer("neg_nll")


@pytest.mark.parametrize(
    "name",
    ["neg_crsp", "coverage_", "coverage_0", "coverage_007", "coverage_100", "r2_90", 3, None, [1]],
)
def test_unknown_names_are_refused(name):
    with pytest.raises(ValueError, match=r"`name` must be one of \['neg_nll'.*'coverage_90'.* Got"):
        get_scorer(name)


def test_a_regressor_with_std_is_scored_as_a_normal(table, weight):
    X, y = table
    model = BayesianRidge().fit(X, y)
    mean, std = model.predict(X, return_std=True)
    ends = mean - 1.2815515655446004 * std, mean + 1.2815515655446004 * std
    w = {"sample_weight": weight}
    coverage = metrics.coverage_score(y, *ends, **w)
    expected = {
        "neg_nll": -metrics.gaussian_nll_loss(y, mean, std, **w),
        "neg_gaussian_nll": -metrics.gaussian_nll_loss(y, mean, std, **w),
        "neg_nll_min": -metrics.nll_min_loss(y, mean, std, **w),
        "neg_crps": -metrics.crps_loss(y, mean, std, **w),
        "neg_coverage_width_auc": -metrics.coverage_width_auc(y, mean, std, **w),
        "neg_calibration_error": -metrics.calibration_error(y, mean, std, **w),
        "coverage_80": coverage,
        "neg_coverage_error_80": -abs(coverage - 0.8),
        "neg_interval_80": -metrics.interval_loss(y, *ends, 0.8, **w),
        "neg_mean_width_80": -metrics.mean_width(*ends, **w),
    }
    for name, value in expected.items():
        assert_allclose(get_scorer(name)(model, X, y, sample_weight=weight), value, err_msg=name)


def test_a_distribution_is_scored_by_its_own(table, weight):
    X, y = table
    model = TwoLines(3.0).fit(X, y)
    mixture, w = model.predict_distribution(X), {"sample_weight": weight}
    lower, upper = mixture.interval(0.9).T
    expected = {
        "neg_nll": -metrics.mixture_nll_loss(y, mixture.loc, mixture.scale, **w),
        "neg_gaussian_nll": -metrics.gaussian_nll_loss(y, mixture.mean, mixture.std, **w),
        "neg_crps": -metrics.crps_mixture_loss(y, mixture.loc, mixture.scale, **w),
        "neg_calibration_error": -metrics.calibration_error(pit=mixture.cdf(y), **w),
        "neg_interval_90": -metrics.interval_loss(y, lower, upper, 0.9, **w),
    }
    for name, value in expected.items():
        assert_allclose(get_scorer(name)(model, X, y, sample_weight=weight), value, err_msg=name)


@cases(
    ("change", "is_that_of_normals"),
    (lambda mixture: SimpleNamespace(quantile=mixture.quantile, mean=mixture.mean), True),
)
def test_crps_of_distributions_that_are_known_by_their_quantiles(table, change, is_that_of_normals):
    X, y = table
    models = (TwoLines(1.0, c).fit(X, y) for c in (None, change))
    plain, found = (get_scorer("neg_crps")(model, X, y) for model in models)
    assert np.isclose(found, plain, rtol=1e-3) == is_that_of_normals


@pytest.mark.parametrize("outputs", [1, 2])
def test_crps_of_mixtures_within_members_is_that_of_their_components(table, outputs):
    X, y = table
    y = y if outputs == 1 else np.stack([y, y[::-1]], axis=1)

    def one_member(mixture):
        loc, scale = mixture.loc[None], mixture.scale[None]
        return predictive.GaussianMixture(loc, scale, probabilities=np.full(loc.shape, 0.5))

    models = (TwoLines(1.0, c).fit(X, y) for c in (None, one_member))
    plain, found = (get_scorer("neg_crps")(model, X, y) for model in models)
    assert_allclose(found, plain, rtol=1e-12)


@pytest.mark.parametrize("name", NUMBER_SCORES)
def test_several_outputs_are_averaged(table, name):
    X, y = table
    y = np.stack([y, y[::-1]], axis=1)
    alone = [get_scorer(name)(TwoLines(0.0).fit(X, y[:, k]), X, y[:, k]) for k in (0, 1)]
    found = get_scorer(name)(TwoLines(0.0).fit(X, y), X, y)
    if name.startswith("neg_coverage_error"):
        assert found >= np.mean(alone)  # errors of the two may cancel in the mean coverage
    else:
        assert_allclose(found, np.mean(alone))


def test_a_column_of_targets_is_one_output(table):
    X, y = table
    for model in (BayesianRidge().fit(X, y), TwoLines().fit(X, y)):
        for name in NUMBER_SCORES:
            scorer = get_scorer(name)
            assert scorer(model, X, y[:, None]) == scorer(model, X, y)


@pytest.mark.parametrize("model", [BayesianRidge(), TwoLines()], ids=["normal", "mixture"])
def test_pipelines_and_searches_are_scored_by_what_is_inside(table, model):
    X, y = table
    inside = clone(model).fit(StandardScaler().fit_transform(X), y)
    pipeline = make_pipeline(StandardScaler(), model).fit(X, y)
    nested = make_pipeline("passthrough", pipeline).fit(X, y)
    search = GridSearchCV(pipeline, {"standardscaler__with_mean": [True]}).fit(X, y)
    for name in ("neg_nll", "neg_interval_90", "neg_calibration_error"):
        expected = get_scorer(name)(inside, StandardScaler().fit_transform(X), y)
        for outer in (pipeline, nested, search):
            assert_allclose(get_scorer(name)(outer, X, y), expected)
            found = get_scorer(name)(make_pipeline(inside), pipeline[:-1].transform(X), y)
            assert_allclose(found, expected)


def test_cross_validation_and_searches(table):
    X, y = table
    process = GaussianProcessRegressor(RBF() + WhiteKernel(0.1), normalize_y=True)
    scores = cross_validate(
        process, X, y, scoring=make_scorers("neg_nll", "coverage_90", "r2"), error_score="raise"
    )
    assert {"test_neg_nll", "test_coverage_90", "test_r2"} <= set(scores)
    single = cross_val_score(process, X, y, scoring=get_scorer("neg_nll"))
    assert_allclose(single, scores["test_neg_nll"])
    model = make_pipeline(StandardScaler(), TwoLines())
    scorers = make_scorers("neg_crps", "neg_coverage_error_90")
    settings = {"scoring": scorers, "refit": "neg_crps", "error_score": "raise"}
    search = GridSearchCV(model, {"twolines__apart": [0.0, 5.0]}, **settings).fit(X, y)
    assert search.best_params_ == {"twolines__apart": 0.0}
    assert check_scoring(process, get_scorer("neg_crps")) == get_scorer("neg_crps")


def test_metadata_routing_passes_weights(table, weight):
    X, y = table
    with sklearn.config_context(enable_metadata_routing=True):
        steps = StandardScaler(), BayesianRidge()
        model = make_pipeline(*(step.set_fit_request(sample_weight=False) for step in steps))
        scorer = get_scorer("neg_nll").set_score_request(sample_weight=True)
        folds = [(np.arange(40), np.arange(40, 80))]
        params = {"sample_weight": weight}
        (found,) = cross_val_score(model, X, y, scoring=scorer, cv=folds, params=params)
        model.fit(X[:40], y[:40])
        expected = scorer(model, X[40:], y[40:], sample_weight=weight[40:])
        assert_allclose(found, expected)
        both = {"a": scorer, "b": get_scorer("neg_crps").set_score_request(sample_weight=False)}
        found = cross_validate(model, X, y, scoring=both, cv=folds, params=params)
        assert_allclose(found["test_a"], [expected])
    several = check_scoring(model, {"a": get_scorer("neg_nll")})
    assert_allclose(several(model, X[40:], y[40:], sample_weight=weight[40:])["a"], expected)


def test_classifiers():
    X, y = load_iris(return_X_y=True)
    y = np.array(["setosa", "versicolor", "virginica"])[y]
    weight = np.random.default_rng(0).uniform(size=150)
    model = LogisticRegression(C=0.01).fit(X, y)
    given = y, model.predict_proba(X)
    expected = {
        "neg_nll": -metrics.ensemble_nll_loss(y, given[1][None], sample_weight=weight),
        "neg_brier": -metrics.brier_loss(*given, sample_weight=weight),
        "neg_ece": -metrics.ece_loss(*given, sample_weight=weight),
    }
    assert sorted(expected) == sorted(CLASS_SCORES)
    for name, value in expected.items():
        assert_allclose(get_scorer(name)(model, X, y, sample_weight=weight), value)
    sklearns = get_scorer("neg_log_loss")(model, X, y)
    assert_allclose(get_scorer("neg_nll")(model, X, y), sklearns)
    # Rows of one class only, where scikit-learn's own would ask for labels.
    assert np.isfinite(get_scorer("neg_nll")(model, X[:50], y[:50]))


def test_classes_that_a_fold_lacks_are_left_out():
    X, y = load_iris(return_X_y=True)
    labels = np.where(np.arange(150) == 3, "new", y.astype(str))
    model = LogisticRegression(max_iter=500).fit(X, y.astype(str))
    weight = np.arange(150.0)
    rows = np.delete(np.arange(150), 3)
    for name in CLASS_SCORES:
        scorer = get_scorer(name)
        with pytest.warns(UndefinedMetricWarning, match=r"leaves out 1 of 150 .*\['new'\]"):
            found = scorer(model, X, labels, sample_weight=weight)
        assert found == scorer(model, X[rows], labels[rows], sample_weight=weight[rows])
    with pytest.raises(ValueError, match=r"labels that are not in `labels`: \['new'\]"):
        get_scorer("neg_nll")(model, X[:5], np.full(5, "new"))
    with pytest.raises(ValueError, match="no label"):
        get_scorer("neg_nll")(model, X[:2], np.array(["0", None], dtype=object))


class Forgetful(LinearRegression):
    def predict(self, X, **options):
        return super().predict(X)


class Broken(LinearRegression):
    def predict(self, X, return_std=False):
        raise TypeError("something else")


@cases(
    ("name", "model", "message"),
    ("neg_crps", RandomForestRegressor(2), r"must have `predict\(X, return_std=.*RandomForest"),
    ("coverage_90", Forgetful(), "does not say how sure it is"),
    ("neg_nll", Broken(), "something else"),  # its own error
    ("neg_nll", TransformedTargetRegressor(BayesianRidge()), "not in units of y"),
    ("neg_ece", BayesianRidge(), "'neg_ece' is a score of classifiers"),
    ("neg_ece", LinearSVC(), "must have `predict_proba`"),
    ("neg_crps", LogisticRegression(), "'neg_crps' is a score of regressors. .*'neg_brier'"),
)
def test_the_wrong_kind_of_estimator_is_refused(table, name, model, message):
    X, y = table
    y = (y > 0).astype(int) if is_classifier(model) else y
    with pytest.raises(TypeError, match=message):
        get_scorer(name)(make_pipeline(model).fit(X, y), X, y)
