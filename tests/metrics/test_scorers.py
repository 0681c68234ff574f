import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import sklearn
from numpy.testing import assert_allclose
from sklearn.base import BaseEstimator, RegressorMixin, is_classifier
from sklearn.compose import TransformedTargetRegressor
from sklearn.datasets import load_iris
from sklearn.ensemble import RandomForestRegressor
from sklearn.exceptions import UndefinedMetricWarning
from sklearn.linear_model import BayesianRidge, LinearRegression, LogisticRegression
from sklearn.metrics import check_scoring
from sklearn.model_selection import cross_val_score, cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.svm import LinearSVC
from tiers import cases

from skuq import metrics, predictive
from skuq.metrics import get_scorer, make_scorers


class TwoLines(RegressorMixin, BaseEstimator):
    """A mixture of two normals, one above and one below the least squares line."""

    def __init__(self, apart=1.0):
        self.apart = apart

    def fit(self, X, y):
        self.line_ = LinearRegression().fit(X, y)
        self.scale_ = np.std(y - self.line_.predict(X), axis=0)
        return self

    def predict_distribution(self, X):
        line, step = self.line_.predict(X), self.apart * self.scale_
        loc = np.stack([line - step, line + step])
        return predictive.GaussianMixture(loc, 0 * loc + self.scale_)

    def predict(self, X, return_std=False):
        mixture = self.predict_distribution(X)
        return (mixture.mean, mixture.std) if return_std else mixture.mean


def normal_crps(y, mean, std, **weight):
    return metrics.crps_loss(y, predictive.GaussianMixture(mean[None], std[None]), **weight)


WEIGHT = {"sample_weight": np.random.default_rng(0).uniform(size=40)}
NAMES = "nll gaussian_nll nll_min crps coverage_width_auc calibration_error coverage_error_80"
NAMES = ["coverage_80", *(f"neg_{name}" for name in f"{NAMES} interval_80 mean_width_80".split())]


def test_regressors_are_scored_as_normals_or_by_their_distributions(table):
    X, y = table
    model = BayesianRidge().fit(X, y)
    mean, std = model.predict(X, return_std=True)
    ends = mean - 1.2815515655446004 * std, mean + 1.2815515655446004 * std
    coverage = metrics.coverage_score(y, *ends, **WEIGHT)
    nll, *others = metrics.gaussian_nll_loss, metrics.nll_min_loss, normal_crps
    others += [metrics.coverage_width_auc, metrics.calibration_error]
    expected = (
        coverage,
        *(-loss(y, mean, std, **WEIGHT) for loss in (nll, nll, *others)),
        -abs(coverage - 0.8),
        -metrics.interval_loss(y, *ends, 0.8, **WEIGHT),
        -metrics.mean_width(*ends, **WEIGHT),
    )
    for name, value in zip(NAMES, expected):
        assert_allclose(get_scorer(name)(model, X, y, **WEIGHT), value, err_msg=name)
    model = TwoLines(3.0).fit(X, y)  # A distribution is scored by its own.
    mixture = model.predict_distribution(X)
    expected = {
        "neg_nll": -metrics.nll_loss(y, mixture, **WEIGHT),
        "neg_gaussian_nll": -metrics.gaussian_nll_loss(y, mixture.mean, mixture.std, **WEIGHT),
        "neg_crps": -metrics.crps_loss(y, mixture, **WEIGHT),
        "neg_calibration_error": -metrics.calibration_error(pit=mixture.cdf(y), **WEIGHT),
        "neg_interval_90": -metrics.interval_loss(y, *mixture.interval(0.9), 0.9, **WEIGHT),
    }
    for name, value in expected.items():
        assert_allclose(get_scorer(name)(model, X, y, **WEIGHT), value, err_msg=name)


def one_member(mixture):
    loc, scale = mixture.loc[None], mixture.scale[None]
    return predictive.GaussianMixture(loc, scale, probabilities=np.full(loc.shape, 0.5))


@cases(
    ("change", "tolerance"),
    (lambda mixture: SimpleNamespace(quantile=mixture.quantile, mean=mixture.mean), 1e-3),
    (one_member, 1e-12),
)
def test_crps_of_distributions_by_quantiles_or_normals(table, change, tolerance):
    X, y = table
    y = np.stack([y, y[::-1]], axis=1)
    model = TwoLines().fit(X, y)
    changed = SimpleNamespace(predict_distribution=lambda X: change(model.predict_distribution(X)))
    plain, found = (get_scorer("neg_crps")(each, X, y) for each in (model, changed))
    assert_allclose(found, plain, rtol=tolerance)


@pytest.mark.parametrize("name", NAMES)
def test_several_outputs_are_averaged(table, name):
    X, y = table
    y, score = np.stack([y, y[::-1]], axis=1), get_scorer(name)
    alone = [score(TwoLines(0.0).fit(X, y[:, k]), X, y[:, k]) for k in (0, 1)]
    if "coverage_error" not in name:  # errors of the two may cancel in the mean coverage
        assert_allclose(score(TwoLines(0.0).fit(X, y), X, y), np.mean(alone))
    one = TwoLines().fit(X, y[:, 0])
    assert score(one, X, y[:, :1]) == score(one, X, y[:, 0])


def test_cross_validation_metadata_routing_and_unknown_names(table):
    X, y = table
    scores = cross_validate(BayesianRidge(), X, y, scoring=make_scorers("neg_nll", "r2"))
    single = cross_val_score(BayesianRidge(), X, y, scoring=get_scorer("neg_nll"))
    assert_allclose(single, scores["test_neg_nll"])
    assert_allclose(scores["test_r2"], cross_val_score(BayesianRidge(), X, y))
    for name, close in (
        ("neg_crsp", " Did you mean 'neg_crps'"),
        ("nll", " Did you mean 'neg_nll'"),
        ("roc_aux", " Did you mean 'roc_auc'"),
        *((name, "") for name in ("coverage_0.9", "coverage_100", "r2_90", "coverage_nan", [1])),
    ):
        message = rf"must be one of \['neg_nll'.*'coverage_90'.* Got .*\.{close}"
        with pytest.raises(ValueError, match=message):
            get_scorer(name)
    model = BayesianRidge().fit(X, y)
    width = -2 * 2.8070337683 * model.predict(X, return_std=True)[1].mean()
    assert_allclose(get_scorer("neg_mean_width_99.5")(model, X, y), width)
    assert check_scoring(TwoLines(), get_scorer("coverage_73")).__name__ == "coverage_73"
    folds, weight = [(np.arange(20), np.arange(20, 40))], WEIGHT["sample_weight"][20:]
    with sklearn.config_context(enable_metadata_routing=True):
        model = BayesianRidge().set_fit_request(sample_weight=False)
        scorer = get_scorer("neg_nll").set_score_request(sample_weight=True)
        other = get_scorer("neg_crps").set_score_request(sample_weight=False)
        given = {"scoring": {"a": scorer, "b": other}, "params": WEIGHT}
        found = cross_validate(model, X, y, cv=folds, **given)
        model.fit(X[:20], y[:20])
        expected = scorer(model, X[20:], y[20:], sample_weight=weight)
        assert_allclose(found["test_a"], [expected])
        assert_allclose(found["test_b"], [other(model, X[20:], y[20:])])
    several = check_scoring(model, {"a": get_scorer("neg_nll")})
    assert_allclose(several(model, X[20:], y[20:], sample_weight=weight)["a"], expected)


def test_classifiers_and_classes_that_a_fold_lacks():
    X, y = load_iris(return_X_y=True)
    X, y = X[::2], y[::2].astype(str)
    model = LogisticRegression(C=0.01).fit(X, y)
    proba, weight = model.predict_proba(X), {"sample_weight": np.arange(75.0)}
    losses = {
        "neg_nll": metrics.ensemble_nll_loss(y, proba[None], **weight),
        "neg_brier": metrics.brier_loss(y, proba, **weight),
        "neg_ece": metrics.ece_loss(y, proba, **weight),
    }
    for name, value in losses.items():
        assert_allclose(get_scorer(name)(model, X, y, **weight), -value)
    # Rows of one class only, where scikit-learn's own would ask for labels.
    assert np.isfinite(get_scorer("neg_nll")(model, X[:25], y[:25]))
    labels, weight = np.where(np.arange(75) == 3, "new", y), np.arange(75.0)
    rows, scorer = np.delete(np.arange(75), 3), get_scorer("neg_brier")
    with pytest.warns(UndefinedMetricWarning, match=r"leaves out 1 of 75 .*\['new'\]"):
        found = scorer(model, X, labels, sample_weight=weight)
    assert found == scorer(model, X[rows], labels[rows], sample_weight=weight[rows])
    with pytest.raises(ValueError, match=r"labels that are not in `labels`: \['new'\]"):
        scorer(model, X[:5], np.full(5, "new"))
    with pytest.raises(ValueError, match="no label"):
        scorer(model, X[:2], np.array(["0", None], dtype=object))


@cases(
    ("ends",),
    (lambda low, high: (low, high),),
    (lambda low, high: np.stack([low, high], axis=1),),
    (lambda low, high: np.stack([low, high], axis=1)[..., None],),  # as of MAPIE
)
def test_intervals_alone_are_scored(table, ends):
    X, y = table
    low, high = X[:, 0] - 0.9, X[:, 0] + 1.4
    model = SimpleNamespace(predict_interval=lambda X, coverage: ends(low, high * coverage))
    for name, expected in (
        ("coverage_50", metrics.coverage_score(y, low, high / 2, **WEIGHT)),
        ("neg_interval_50", -metrics.interval_loss(y, low, high / 2, 0.5, **WEIGHT)),
        ("neg_mean_width_50", -metrics.mean_width(low, high / 2, **WEIGHT)),
    ):
        assert_allclose(get_scorer(name)(model, X, y, **WEIGHT), expected)


class Boosted(BayesianRidge):
    """What NGBoost and CatBoost return, of another model."""

    def pred_dist(self, X):
        return SimpleNamespace(**dict(zip(("loc", "scale"), self.predict(X, return_std=True))))

    def virtual_ensembles_predict(self, X, prediction_type, virtual_ensembles_count):
        mean, std = self.predict(X, return_std=True)
        return np.stack([np.stack([mean + k, std**2], axis=1) for k in (-1, 1)], axis=1)


def test_the_page_scores_other_packages(table, monkeypatch):
    pytest.importorskip("mapie")
    for name, models in ("ngboost", "NGBRegressor"), ("catboost", "CatBoostRegressor"):
        monkeypatch.setitem(sys.modules, name, SimpleNamespace(**{models: Boosted}))
    page = (Path(metrics.__file__).parents[2] / "docs" / "coming_from.md").read_text()
    classes, scores = (code.split("```")[0] for code in page.split("```python\n")[-2:])
    exec(classes + scores, found := {})
    mapie, scoring = found["Mapie"](LinearRegression()), found["scoring"]
    of_mapie = cross_validate(mapie, found["X"], found["y"], scoring=scoring)
    for scored in (found["scores"], of_mapie):
        assert 0.6 < scored["test_coverage_90"].mean() < 0.97
        assert -4 < scored["test_neg_interval_90"].mean() < -1  # of the right model it is -1.24
    plain = BayesianRidge().fit(*table)
    ngboost, catboost = (found[n]().fit(*table) for n in ("NormalsOfNGBoost", "VirtualEnsemble"))
    assert_allclose(*(get_scorer("neg_nll")(model, *table) for model in (ngboost, plain)))
    mean, std = plain.predict(table[0], return_std=True)
    parts = catboost.predict_distribution(table[0]).uncertainty()
    assert_allclose(parts, [mean, std, np.ones(40), np.hypot(std, 1)])


@cases("scoring", get_scorer("neg_nll"), make_scorers("neg_crps", "coverage_90"))
@pytest.mark.filterwarnings("error")
def test_cross_validation_stops_with_one_error_without_uncertainty(table, scoring):
    with pytest.raises(ValueError, match="got this error: .*RandomForest.* not say how sure it is"):
        cross_validate(RandomForestRegressor(2), *table, scoring=scoring)


class Forgetful(LinearRegression):
    def predict(self, X, **options):
        return super().predict(X)


class Broken(LinearRegression):
    def predict(self, X, return_std=False):
        raise TypeError("something else")


@cases(
    ("name", "model", "message"),
    ("neg_nll", Broken(), "something else"),  # its own error
    ("neg_crps", RandomForestRegressor(2), r"must have `predict\(X, return_std=.*RandomForest"),
    ("coverage_90", Forgetful(), "does not say how sure it is"),
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
