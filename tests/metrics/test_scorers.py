"""Scorers and reports, against scikit-learn, SciPy, and models whose calibration is known."""

import re
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import sklearn
from numpy.testing import assert_allclose
from pandas.testing import assert_frame_equal
from scipy import special, stats
from sklearn.base import is_classifier
from sklearn.compose import TransformedTargetRegressor
from sklearn.datasets import load_iris
from sklearn.ensemble import RandomForestRegressor
from sklearn.exceptions import UndefinedMetricWarning
from sklearn.linear_model import BayesianRidge, LinearRegression, LogisticRegression
from sklearn.metrics import check_scoring, log_loss, root_mean_squared_error
from sklearn.model_selection import GridSearchCV, cross_val_score, cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.svm import LinearSVC
from tiers import cases

from skuq import CalibratedUncertaintyRegressor, metrics, predictive
from skuq.metrics import get_scorer, make_scorers, uncertainty_report


class TwoLines(BayesianRidge):  # a mixture of two normals, one above and one below the line
    def predict_distribution(self, X):
        mean, std = super().predict(X, return_std=True)
        loc = np.stack([mean - 3 * std, mean + 3 * std])
        return predictive.GaussianMixture(loc, 0 * loc + std)

    def predict(self, X, return_std=False):
        mixture = self.predict_distribution(X)
        return (mixture.mean, mixture.std) if return_std else mixture.mean


WEIGHT = {"sample_weight": np.random.default_rng(0).uniform(size=40)}


def normals(model):
    return model, lambda X: predictive.GaussianMixture(*(p[None] for p in model.predict(X, True)))


def by_quantiles(model):
    mixture = model.predict_distribution
    names = ("quantile", "mean", "log_prob", "cdf", "interval", "std")
    some = lambda X: SimpleNamespace(**{n: getattr(mixture(X), n) for n in names})  # noqa: E731
    return SimpleNamespace(predict_distribution=some, predict=model.predict), mixture


@cases(
    ("model", "change", "tolerance"),
    (BayesianRidge(), normals, 1e-7),
    (TwoLines(), lambda model: (model, model.predict_distribution), 1e-7),
    (TwoLines(), by_quantiles, 1e-3),
)
def test_regressors_are_scored_by_their_distributions_or_normals(table, model, change, tolerance):
    X, y = table
    model, distribution = change(model.fit(X, y))
    found, (low, high) = distribution(X), distribution(X).interval(0.8)
    normal, share = (y, found.mean, found.std), metrics.coverage_score(y, low, high, **WEIGHT)
    expected = {
        "coverage_80": share,
        "neg_nll": -metrics.nll_loss(y, found, **WEIGHT),
        "neg_gaussian_nll": -metrics.gaussian_nll_loss(*normal, **WEIGHT),
        "neg_nll_min": -metrics.nll_min_loss(*normal, **WEIGHT),
        "neg_crps": -metrics.crps_loss(y, found, **WEIGHT),
        "neg_coverage_width_auc": -metrics.coverage_width_auc(*normal, **WEIGHT),
        "neg_calibration_error": -metrics.calibration_error(pit=found.cdf(y), **WEIGHT),
        "neg_coverage_error_80": -abs(share - 0.8),
        "neg_interval_80": -metrics.interval_loss(y, low, high, 0.8, **WEIGHT),
        "neg_mean_width_80": -metrics.mean_width(low, high, **WEIGHT),
    }
    for name, value in expected.items():
        assert_allclose(get_scorer(name)(model, X, y, **WEIGHT), value, tolerance, err_msg=name)


def test_cross_validation_metadata_routing_and_unknown_names(table):
    X, y = table
    scores = cross_validate(BayesianRidge(), X, y, scoring=make_scorers("neg_nll", "r2"))
    single = cross_val_score(BayesianRidge(), X, y, scoring=get_scorer("neg_nll"))
    assert_allclose(single, scores["test_neg_nll"])
    assert_allclose(scores["test_r2"], cross_val_score(BayesianRidge(), X, y))
    close = {"neg_crsp": " Did you mean 'neg_crps'", "nll": " Did you mean 'neg_nll'"}
    close["roc_aux"] = " Did you mean 'roc_auc'"
    for name in (*close, "coverage_0.9", "coverage_100", "r2_90", "coverage_nan", (1,)):
        message = rf"must be one of \['neg_nll'.*'coverage_90'.* Got .*\.{close.get(name, '')}"
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
    nll = metrics.ensemble_nll_loss(y, proba[None], **weight)
    assert_allclose(get_scorer("neg_nll")(model, X, y, **weight), -nll)
    for name in ("brier", "ece"):
        loss = getattr(metrics, f"{name}_loss")(y, proba, **weight)
        assert_allclose(get_scorer(f"neg_{name}")(model, X, y, **weight), -loss)
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


class Boosted(BayesianRidge):  # what NGBoost and CatBoost return, of another model
    def pred_dist(self, X):
        return SimpleNamespace(**dict(zip(("loc", "scale"), self.predict(X, return_std=True))))

    def virtual_ensembles_predict(self, X, prediction_type, virtual_ensembles_count):
        mean, std = self.predict(X, return_std=True)
        return np.stack([np.stack([mean + k, std**2], axis=1) for k in (-1, 1)], axis=1)


def test_the_page_scores_other_packages(table, monkeypatch):
    for name, models in ("ngboost", "NGBRegressor"), ("catboost", "CatBoostRegressor"):
        monkeypatch.setitem(sys.modules, name, SimpleNamespace(**{models: Boosted}))
    page = (Path(metrics.__file__).parents[2] / "docs" / "coming_from.md").read_text()
    exec(page.split("```python\n")[-1].split("```")[0], found := {})
    mean, std = BayesianRidge().fit(*table).predict(table[0], return_std=True)
    kinds = (found[name]().fit(*table) for name in ("NormalsOfNGBoost", "VirtualEnsemble"))
    for model, wider in zip(kinds, (0, 1)):
        parts = model.predict_distribution(table[0]).uncertainty()
        assert_allclose(parts, [mean, std, np.full(40, wider), np.hypot(std, wider)])


@cases("scoring", get_scorer("neg_nll"), make_scorers("neg_crps", "coverage_90"))
@pytest.mark.filterwarnings("error")
def test_cross_validation_stops_with_one_error_without_uncertainty(table, scoring):
    with pytest.raises(ValueError, match="got this error: .*RandomForest.* not say how sure it is"):
        cross_validate(RandomForestRegressor(2), *table, scoring=scoring)


class Forgetful(LinearRegression):
    def predict(self, X, **options):
        if self.positive:  # an error of its own
            raise TypeError("something else")
        return super().predict(X)


@cases(
    ("name", "model", "message"),
    ("neg_nll", Forgetful(positive=True), "something else"),
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


LEVELS = [0.5, 0.8, 0.9, 0.95]
COVERAGES = [f"coverage_{100 * level:g}" for level in LEVELS]


def test_report_has_the_errors_and_intervals_of_scipy_and_the_columns_of_cross_validate(table):
    X, y = table
    model, known, y = BayesianRidge().fit(X[:20], y[:20]), y[:20], y[20:]
    mean, std = model.predict(X[20:], return_std=True)
    report = uncertainty_report(make_pipeline(model), X[20:], y, y_train=known)
    frame, losses = report.frame, -stats.norm(mean, std).logpdf(y)
    assert_allclose(frame.loc["nll"].tolist()[:2], [losses.mean(), stats.sem(losses)])
    assert_allclose(frame.value["rmse"], rmse := root_mean_squared_error(y, mean))
    error = 1.959964 * stats.sem((y - mean) ** 2) / (2 * rmse)
    assert_allclose(frame.loc["rmse", ["low", "high"]].tolist(), [rmse - error, rmse + error])
    for name, level in zip(COVERAGES, LEVELS):
        held = int(np.sum(abs(y - mean) < special.ndtri((1 + level) / 2) * std))
        ends = stats.binomtest(held, 20).proportion_ci(method="wilson")
        assert_allclose(frame.loc[name, ["value", "low", "high"]].tolist(), [held / 20, *ends])
    # The reference is the distribution of the training targets.
    assert_allclose(frame.reference["rmse"], root_mean_squared_error(y, 0 * y + known.mean()))
    exact = (abs(y[:, None] - known) - abs(known[:, None] - known) / 2).mean()
    assert_allclose(frame.reference["crps"], exact, rtol=0.02)  # by 100 quantiles
    low, high = np.quantile(known, [0.05, 0.95])
    assert frame.reference["coverage_90"] == np.mean((low <= y) & (y <= high))
    row, shown = frame.loc["coverage_90"], report._repr_html_()
    told = f"BayesianRidge held {row.value:.1%} .* {row.low:.1%} to {row.high:.1%}.*CRPS.* training"
    assert re.search(told, report.sentence) and report.sentence in repr(report)
    assert shown.count("<svg") == 1 and "BayesianRidge held" in shown and "coverage_95" in shown
    X, y, folds = *table, [(np.arange(20), np.arange(20, 40))]
    found = cross_validate(model, X, y, cv=folds, scoring=make_scorers())
    for name, value in frame.value.items():
        column, sign = ("", 1) if name in COVERAGES else ("neg_", -1)
        assert_allclose(found.pop(f"test_{column}{name}"), [sign * value])
    assert set(found) == {"fit_time", "score_time"}
    search = GridSearchCV(model, {"tol": [1e-3]}, scoring=make_scorers(), refit="neg_crps", cv=2)
    assert search.fit(X, y).best_score_ == search.cv_results_["mean_test_neg_crps"][0]


def normals_about_x(std, *outputs):
    def predict(X, return_std=False):
        mean = np.broadcast_to(X[:, 0], (*outputs, len(X))).T
        return (mean, 0 * mean + std) if return_std else mean

    return SimpleNamespace(predict=predict)


def simulated(kind, factor):
    """Return a model whose claims are right, too sure or too unsure by a factor, and its rows."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(4000, 1))
    if kind == "numbers":
        return normals_about_x(factor), X, X[:, 0] + rng.normal(size=4000)
    proba = lambda X: special.softmax(X * [-6, -3, 0, 3, 6] / factor, axis=1)  # noqa: E731
    y = (rng.uniform(size=(4000, 1)) > proba(X * factor).cumsum(axis=1)).sum(axis=1)
    return SimpleNamespace(predict_proba=proba, classes_=np.arange(5)), X, y


@pytest.mark.parametrize("kind", ["numbers", "classes"])
@cases(("factor", "verdict"), (0.5, "too low"), (1.0, "as claimed"), (2.0, "too high"))
def test_report_sees_wrong_claims_as_wrong(kind, factor, verdict):
    report = uncertainty_report(*simulated(kind, factor))
    assert set(report.frame.verdict[COVERAGES]) == {verdict}
    if kind == "numbers":
        expected = 2 * special.ndtr(special.ndtri((1 + np.array(LEVELS)) / 2) * factor) - 1
        assert_allclose(report.frame.value[COVERAGES], expected, atol=0.02)
    outside = np.sign(report.curve.observed - report.curve.claimed)[3:-1]
    assert factor == 1 or set(outside) == {np.sign(factor - 1)}


def test_report_names_the_group_that_is_worst_beyond_its_noise_and_averages_outputs():
    model, X, y = simulated("numbers", 1.0)
    # Several outputs, and components and points of functions.
    two, functions = (
        uncertainty_report(normals_about_x(1, *of), X, np.broadcast_to(y, (*of, len(y))).T).frame
        for of in ((2,), (3, 2))
    )
    assert_frame_equal(uncertainty_report(model, X, y).frame, two)
    assert_frame_equal(functions, two)
    groups = np.array([None] * 100 + ["missing"] * 100 + ["calm"] * 3800, dtype=object)
    y[:200] = X[:200, 0] + 3 * (y - X[:, 0])[:200]
    y[200:202], groups[200:202] = X[200:202, 0] + 2.9, "two"  # with equal errors, by chance
    y[-1], groups[-1] = 9.0, "alone"  # one row, which is outside of all intervals
    frame = uncertainty_report(model, X, y, groups).frame
    assert set(frame.worst_group.drop("mean_width_90")) == {"missing"}
    assert_allclose(frame.worst["rmse"], 3, rtol=0.15)
    assert frame.worst_high["coverage_90"] < 0.6 < 0.85 < frame.low["coverage_90"]
    column = uncertainty_report(model, X, y, groups[:, None], y_train=y[:, None])
    assert column.frame.worst.equals(frame.worst) and "there are 1," in column.notes[-1]
    assert uncertainty_report(model, X[:9], y[:9], range(9)).frame.worst_group.isna().all()
    for given in {"groups": groups[1:]}, {"groups": [(1, 2)] * 4000}, {"y_train": X[:, [0, 0]]}:
        with pytest.raises(ValueError, match="`(groups|y_train)` must have .* Got|inconsistent"):
            uncertainty_report(model, X, y, **given)


@cases(
    ("ends",),
    (lambda low, high: (low, high),),
    (lambda low, high: [low, high],),
    (lambda low, high: np.stack([low, high], axis=1),),
    (lambda low, high: np.stack([low, high], axis=1)[..., None],),  # as of MAPIE
)
def test_intervals_alone_are_scored(table, ends):
    X, y = table
    low, high = X[:, 0] - 0.9, X[:, 0] + 0.3
    model = SimpleNamespace(predict=lambda X: X[:, 0])
    model.predict_interval = lambda X, coverage: ends(low, low + 2.4 * coverage)
    losses = {"interval": metrics.interval_loss(y, low, high, 0.5, **WEIGHT), "mean_width": 1.2}
    for name, loss in losses.items():
        assert_allclose(get_scorer(f"neg_{name}_50")(model, X, y, **WEIGHT), -loss)
    share = metrics.coverage_score(y, low, high, **WEIGHT)
    assert_allclose(get_scorer("coverage_50")(model, X, y, **WEIGHT), share)
    frame = uncertainty_report(model, X, y).frame
    assert list(frame.index) == ["rmse", "interval_90", "mean_width_90", *COVERAGES]
    assert_allclose(frame.value["coverage_50"], metrics.coverage_score(y, low, high))


@np.errstate(all="raise", under="ignore")
def test_a_standard_deviation_of_zero_is_a_point_without_density(table):
    X, y = table
    report = uncertainty_report(normals_about_x(0.0), X, y, y_train=y[:1])
    assert_allclose(report.frame.value[["crps", "nll"]], [abs(y - X[:, 0]).mean(), np.inf])
    assert make_scorers()(normals_about_x(0.0), X, y)["neg_nll"] == -np.inf
    assert report.frame.verdict["nll"] == "no clear difference" and "infinite" in repr(report)
    model, groups = normals_about_x(np.arange(40) != 25), np.arange(40) // 10
    frame = uncertainty_report(model, X, np.where(groups, y, X[:, 0]), groups).frame
    assert frame.worst_group["nll"] == 2 and frame.worst_group["rmse"] > 0  # group 0 is perfect
    assert frame.verdict["nll"] == "worse" and frame.verdict["crps"] == "better"


def test_report_of_plain_models_and_of_mapie(table):
    X, y = table
    plain = LinearRegression().fit(X, y)
    for model, of in (plain, y > 0), (plain, y.astype(str)), (SimpleNamespace(predict_set=0), y):
        with pytest.raises(TypeError, match="must have `predict_proba` and `classes_`.* as y. Got"):
            uncertainty_report(model, X, of)
    report = uncertainty_report(plain, X, y)
    assert list(report.frame.index) == ["rmse"] and "<svg" not in report._repr_html_()
    assert "CRPS, NLL, coverage of 50%" in repr(report) and "rows' own" in report.sentence
    few = CalibratedUncertaintyRegressor(plain, "conformal", cv="prefit").fit(X[:15], y[:15])
    assert "not offer it: coverage of 95%." in repr(uncertainty_report(few, X, y))
    regression = pytest.importorskip("mapie.regression")
    for mapie in (
        regression.SplitConformalRegressor(plain, [0.9, 0.85]).conformalize(X, y),
        regression.CrossConformalRegressor(plain, [0.9, 0.85]).fit_conformalize(X, y),
        regression.JackknifeAfterBootstrapRegressor(plain, [0.9, 0.85]).fit_conformalize(X, y),
        regression.ConformalizedQuantileRegressor().fit(X, y).conformalize(X, y),
        regression.CrossConformalizedQuantileRegressor().fit_conformalize(X, y),
    ):
        report = uncertainty_report(mapie, X, y)
        held = [metrics.coverage_score(y, *ends) for ends in mapie.predict_interval(X)[1].T]
        assert_allclose(report.frame.value[["coverage_90", "coverage_85"][: len(held)]], held)
        assert "coverage of 50%, coverage of 80%, coverage of 95%" in report.notes[0]


def test_report_of_classes():
    X, y = load_iris(return_X_y=True)
    rows, groups = (X[50:], y[50:]), y[50:]
    model = LogisticRegression(max_iter=1000).fit(*rows)
    with pytest.warns(UndefinedMetricWarning, match="leaves out 50 of 150"):
        report = uncertainty_report(model, X, y, groups=y)
    assert_frame_equal(frame := uncertainty_report(model, *rows, groups).frame, report.frame)
    found = [log_loss(groups, model.predict_proba(X[50:])), wrong := 1 - model.score(*rows)]
    assert_allclose(frame.value[["nll", "error_rate"]], found)
    low = stats.binomtest(round(100 * wrong), 100).proportion_ci(method="wilson").low
    assert_allclose([frame.reference["nll"], frame.low["error_rate"]], [np.log(2), low])
    two = SimpleNamespace(predict_proba=lambda X: [[0.6, 0.3, 0.1001]] * len(X), classes_=np.r_[:3])
    frame = uncertainty_report(two, X[:4], [0, 1, 1, 2]).frame
    assert_allclose(frame.value[COVERAGES], [0.25, 0.75, 0.75, 1])
    assert_allclose(frame.claimed[COVERAGES], [0.6, 0.9, 0.9, 1])  # not 1.0001
    assert frame.value["set_size_90"] == 2 and frame.verdict["brier"] == "no clear difference"
    for frame in (uncertainty_report(two, X[:n], [0] * n).frame for n in (10, 12, 25, 28)):
        assert (frame.verdict["coverage_95"], frame.low["error_rate"]) == ("as claimed", 0)
    two.predict = lambda X: [2] * len(X)  # by a threshold
    assert uncertainty_report(two, X[:4], [0, 1, 1, 2]).frame.value["error_rate"] == 0.75
    assert report.frame.verdict["nll"] == "better"
