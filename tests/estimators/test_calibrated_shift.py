"""Calibration in groups, under covariate shift and in time."""

import copy
import warnings

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.sparse import csr_array
from sklearn import config_context
from sklearn.base import clone
from sklearn.datasets import load_iris
from sklearn.dummy import DummyRegressor
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from sklearn.svm import LinearSVC
from small_models import TooSure
from tiers import cases

from skuq import CalibratedUncertaintyClassifier, CalibratedUncertaintyRegressor, HQEnsembleSelector
from skuq.exceptions import CalibrationWarning
from skuq.persistence import dumps, loads
from skuq.predictive import AdaptedDistribution, ConformalMixture

calibrated, classifier = CalibratedUncertaintyRegressor, CalibratedUncertaintyClassifier
METHODS = ["scale", "isotonic", "conformal"]
TRUSTED = ["small_models.TooSure"]


def two_groups(n, seed=0):
    """A line with noise 1 where the second column is 0, and 4 where it is 1."""
    rng = np.random.default_rng(seed)
    X = np.column_stack([rng.normal(size=n), rng.random(n) < 0.3])
    return X, X[:, 0] + np.where(X[:, 1] > 0, 4.0, 1.0) * rng.normal(size=n)


def held(model, X, y, coverage=0.9):
    low, high = model.predict_interval(X, coverage).T
    return (low <= y) & (y <= high)


@pytest.fixture(scope="module")
def line():
    return TooSure().fit(*two_groups(500, seed=9))


@pytest.mark.parametrize("method", METHODS)
def test_calibrated_groups_by_names_functions_and_of_two_outputs(method, line):
    X, y = two_groups(400)
    column = calibrated(line, method, group_by=1, cv="prefit").fit(X, y)
    function = clone(column).set_params(estimator=line, group_by=lambda X: X[:, 1] > 0)
    function.fit(X, y)
    assert_allclose(function.predict_interval(X), column.predict_interval(X))
    frame = pd.DataFrame(X, columns=["a", "b"]).assign(b=np.where(X[:, 1] > 0, "wet", "dry"))
    encoded = make_pipeline(Encoder(), TooSure())
    named = calibrated(encoded, method, group_by="b", cv=2).fit(frame, y)
    by_position = calibrated(encoded, method, group_by=1, cv=2).fit(frame, y)
    assert_allclose(named.predict_interval(frame), by_position.predict_interval(frame))
    Y = np.column_stack([y, -3 * y])
    both = calibrated(TooSure(), method, group_by=1, cv=2).fit(X, Y)
    one = calibrated(TooSure(), method, group_by=1, cv=2).fit(X, y)
    assert_allclose(both.predict_interval(X)[..., 0], one.predict_interval(X))
    assert both.sample_y(X, 3, random_state=0).shape == (400, 2, 3)


def numbers(X):
    return np.column_stack([X["a"], X["b"] == "wet"]) if "b" in X else X[["a"]].to_numpy()


class Encoder(StandardScaler):
    def fit(self, X, y=None, sample_weight=None):
        return super().fit(numbers(X))

    def transform(self, X, copy=None):
        return super().transform(numbers(X))


def test_calibrated_scale_of_a_group_by_hand(line):
    X, y = two_groups(200)
    X[0, 1] = 7  # a group of one row
    with pytest.warns(CalibrationWarning, match=r"1 of 3 groups have fewer than 20 .*\[7.0\]"):
        model = calibrated(line, group_by=1, cv="prefit").fit(X, y)
    z = (y - line.predict(X)) / line.std_
    _, std = model.predict(X, return_std=True)
    masks = [X[:, 1] == group for group in (0, 1, 7)]
    # Groups share the shrinkage of the scale of all rows.
    shrinkage = model.scale_ / np.sqrt(np.mean(z**2))
    assert 0.8 < shrinkage < 1
    found = [(std[rows][0] / line.std_ / shrinkage) ** 2 for rows in masks]
    sample = [np.mean(z[rows] ** 2) for rows in masks]
    # Averages of a common variance and the own one, with the same weights a row.
    within = np.concatenate([z[rows] ** 2 / s for rows, s in zip(masks, sample)])
    degrees = [2 * rows.sum() / (max(np.mean(within**2), 3) - 1) for rows in masks]
    found, sample, degrees = map(np.array, (found, sample, degrees))
    equations = np.column_stack([found, -np.ones(3)])
    (prior, weighted), *_ = np.linalg.lstsq(equations, degrees * (sample - found))
    assert_allclose(found, (weighted + degrees * sample) / (prior + degrees), rtol=1e-6)
    assert 0.5 < prior < 10 and found[0] < found[1]
    with pytest.warns(CalibrationWarning, match="1 of 2 rows are of groups without"):
        _, std = model.predict([[0.0, 5.0], [0.0, 0.0]], return_std=True)
    assert_allclose(std[0], line.std_ * model.scale_)


@pytest.mark.parametrize("method", METHODS)
def test_calibrated_groups_predicted_exactly_do_not_depend_on_the_unit(method):
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.normal(size=300), np.arange(300) % 3])
    y = np.where(X[:, 1] == 0, 0, rng.normal(size=300))
    widths = []
    for unit in (1.0, 1e-6):
        zero = DummyRegressor(strategy="constant", constant=0.0)
        model = calibrated(zero, method, group_by=1, cv=3).fit(X, unit * y)
        widths.append(np.diff(model.predict_interval(X, 0.9)[:3], axis=1) / unit)
    assert_allclose(widths[1], widths[0], rtol=1e-5)  # the scale is shrunk a little towards 1
    exact = clone(model).fit(X, 0 * y)
    assert (np.diff(exact.predict_interval(X, 0.9), axis=1) < 1e-100).all()


@pytest.mark.parametrize("method", METHODS)
def test_calibrated_groups_by_bins_of_the_uncertainty(method):
    rng = np.random.default_rng(0)
    X = rng.uniform(1, 5, (3000, 1))
    # The noise grows with the square of what is predicted.
    y = X[:, 0] ** 2 * rng.normal(size=3000)
    model = calibrated(Growing(), method, group_by="uncertainty", cv="prefit")
    model.set_params(estimator=Growing().fit(X, y)).fit(X[:1500], y[:1500])
    inside = held(model, X[1500:], y[1500:])
    for part in np.array_split(np.argsort(X[1500:, 0]), 5):
        assert abs(inside[part].mean() - 0.9) < 0.06


class Growing(TooSure):
    """Predicts 0, and the first column for a standard deviation."""

    def fit(self, X, y, sample_weight=None):
        self.n_features_in_ = np.shape(X)[1]
        return self

    def predict(self, X, return_std=False):
        return (np.zeros(len(X)), np.asarray(X)[:, 0]) if return_std else np.zeros(len(X))


def test_calibrated_groups_by_dates_and_bins():
    X, y = two_groups(150)
    wet = X[:, 1] > 0
    frame = pd.DataFrame(X, columns=["a", "b"]).assign(b=np.where(wet, "wet", "dry"))
    model = calibrated(make_pipeline(Encoder(), TooSure()), group_by="b", cv=2)
    expected = clone(model).fit(frame, y).predict_interval(frame)
    days = pd.to_datetime(np.where(wet, "2020-01-01", "2020-01-02"))
    bins = pd.cut(X[:, 1], [-1, 0.5, 1])
    for labels in (days.as_unit("ns"), days.as_unit("s"), days.tz_localize("UTC"), days.date, bins):
        labelled = frame.assign(labels=labels)
        dated = clone(model).set_params(group_by="labels").fit(labelled, y)
        loaded = loads(dumps(dated), trusted=[*TRUSTED, Encoder])
        assert_allclose(loaded.predict_interval(labelled), expected)


def test_calibrated_takes_frames_of_polars():
    polars = pytest.importorskip("polars")
    X, y = two_groups(400)
    frame, polar = pd.DataFrame(X, columns=["a", "b"]), polars.DataFrame(X, schema=["a", "b"])
    model = calibrated(TooSure(), cv=2)
    expected = clone(model).fit(frame, y).recalibrate(frame[:100]).predict_interval(frame)
    loaded = loads(dumps(clone(model).fit(polar, y)), trusted=TRUSTED)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # names of columns are not lost
        found = loaded.recalibrate(polar[:100]).predict_interval(polar)
    assert_allclose(found, expected)
    # A function of the user gets the frame as it is, in `fit` as in `predict`.
    grouped = clone(model).set_params(group_by=lambda rows: rows.get_column("b") > 0)
    grouped.fit(polar, y).predict_interval(polar)


def test_calibrated_groups_by_columns_of_pyarrow():
    pyarrow = pytest.importorskip("pyarrow")
    X, y = two_groups(100)
    frame = pd.DataFrame(X, columns=["a", "b"])
    model, arrow = calibrated(TooSure(), group_by="b", cv=2), pyarrow.table(frame)
    expected = clone(model).fit(frame, y).predict_interval(frame)
    assert_allclose(clone(model).fit(arrow, y).predict_interval(arrow), expected)


@cases(
    ("group_by", "frame", "message"),
    (5, False, "which has 2. Got 5"),
    ("b", False, "since X has no names of columns. Got 'b'"),
    (0, False, "must give labels that rows share. Got 100 labels"),
    (lambda X: [1, 2], False, "one label a row, 100. Got 2"),
    (lambda X: [None] * len(X), False, "All of 100 rows have none"),
    ("c", True, r"one of \['a', 'b'\]. Got 'c'"),
)
def test_calibrated_refuses_group_by(group_by, frame, message):
    X, y = two_groups(100)
    X = pd.DataFrame(X, columns=["a", "b"]) if frame else X
    with pytest.raises(ValueError, match=message):
        calibrated(TooSure(), group_by=group_by, cv=2).fit(X, y)


def test_calibrated_rows_without_a_label_get_the_calibration_of_all(line):
    X, y = two_groups(300)
    X_gap = abs(X) + 1
    X_gap[:30, 1] = np.nan
    model = calibrated(Growing(), group_by=1, cv=2).fit(X_gap, y)
    with pytest.warns(CalibrationWarning, match="30 of 300 rows"):
        std = model.predict(X_gap, return_std=True)[1]
    assert_allclose(std[:30], model.scale_ * X_gap[:30, 0])
    masked = np.ma.masked_array(X[:, 1], mask=np.arange(300) < 40)
    model = calibrated(line, group_by=lambda X: masked, cv="prefit").fit(X, y)
    with pytest.warns(CalibrationWarning, match="40 of 300 rows are of groups without"):
        model.predict_interval(X)
    model = calibrated(DummyRegressor(), group_by="uncertainty")
    with pytest.warns(CalibrationWarning, match="a single group"):
        model.fit(X, y)


@pytest.mark.parametrize("method", ["temperature", "vector"])
def test_classifier_calibrates_groups(method):
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.normal(size=6000), rng.random(6000) < 0.5])
    # In the second group the label is mostly noise, of which the classifier knows nothing.
    slope = np.where(X[:, 1] > 0, 0.3, 3.0)
    y = rng.random(6000) < 1 / (1 + np.exp(-slope * X[:, 0]))
    first = FunctionTransformer(lambda X: X[:, :1])
    fitted = make_pipeline(first, LogisticRegression()).fit(X[:1000], y[:1000])
    model = classifier(fitted, method, group_by=1, cv="prefit")
    model.fit(X[1000:3000], y[1000:3000])
    plain = clone(model).set_params(group_by=None, estimator=fitted).fit(X[1000:3000], y[1000:3000])
    true = 1 / (1 + np.exp(-slope * X[:, 0]))
    assert abs(model.predict_proba(X)[:, 1] - true).mean() < 0.03
    assert abs(plain.predict_proba(X)[:, 1] - true).mean() > 0.1
    by_doubt = clone(model).set_params(group_by="uncertainty", estimator=fitted)
    assert by_doubt.fit(X[1000:3000], y[1000:3000]).predict_proba(X).shape == (6000, 2)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("groups", [None, 1])
def test_partial_calibrate_mends_a_change(method, groups, line):
    model = calibrated(line, method, group_by=groups, cv="prefit")
    model.fit(*two_groups(1000))
    X, y = two_groups(2000, seed=1)
    noise = y - X[:, 0]
    y = X[:, 0] + 2.5 * noise + np.where(X[:, 1] > 0, 4.0, 1.0)  # a bias and more noise
    plain = held(model, X, y).mean()
    inside = []
    for start in range(0, 2000, 20):
        rows = slice(start, start + 20)
        inside.append(held(model, X[rows], y[rows]))
        model.partial_calibrate(X[rows], y[rows])
    inside = np.concatenate(inside)
    assert plain < 0.7
    assert 0.86 < inside.mean() < 0.93 and 0.87 < inside[1000:].mean() < 0.93
    drift = model.drift_
    assert drift.n_rows == 2000 and abs(drift.coverage - 0.9) < 0.04
    assert abs(drift.coverage_without - plain) < 0.06
    assert 1.8 < drift.spread < 3.2 and drift.shift > 0.2
    assert_array_equal(model.predict(X), line.predict(X))
    # The whole distribution has followed.
    _, std = model.predict(X, return_std=True)
    assert_allclose(np.mean((y - line.predict(X)) ** 2) / np.mean(std**2), 1, rtol=0.4)
    levels = model.predict_quantiles(X, [0.1, 0.5, 0.9])
    assert_allclose((y[:, None] <= levels).mean(axis=0), [0.1, 0.5, 0.9], atol=0.1)
    draws = model.sample_y(X[:40], 4000, random_state=0)
    found = np.quantile(draws, [0.1, 0.9], axis=1).T
    assert_allclose(found, model.predict_interval(X[:40], 0.8), atol=1)
    parts = model.predict_uncertainty(X)
    assert_allclose(parts.total**2, parts.aleatoric**2 + parts.epistemic**2)
    copy = loads(dumps(model.partial_calibrate(X[:3], y[:3])), trusted=TRUSTED)
    assert_array_equal(copy.predict_interval(X[:5]), model.predict_interval(X[:5]))


@pytest.mark.parametrize("groups", [None, 1])
@pytest.mark.parametrize("method", METHODS)
def test_partial_calibrate_of_two_outputs(method, groups):
    X, y = two_groups(600)
    Y = np.column_stack([y, y + 1])
    model = calibrated(TooSure(), method, group_by=groups, cv=2).fit(X, Y)
    later = Y * [1, 3]
    for start in range(0, 600, 50):
        model.partial_calibrate(X[start : start + 50], later[start : start + 50])
    assert model.drift_.spread.shape == (2,)
    assert model.drift_.spread[1] > 2 * model.drift_.spread[0]
    assert model.predict_interval(X).shape == (600, 2, 2)
    assert model.predict_quantiles(X[:3], [0.1, 0.9]).shape == (3, 2, 2)
    # Outputs are independent: the joint density is the product of theirs.
    adapted = model.predict_distribution(X)
    expected = 0
    for k, column in enumerate(Y.T):
        tracked = adapted.nominal, adapted.tracked[:, k]
        expected += AdaptedDistribution(adapted.base.output(k), *tracked).log_prob(column)
    assert_allclose(model.log_prob(X, Y), expected)


@cases(
    ("n", "truths", "time", "message"),
    (4, [0.0, 1.0, 2.0, np.nan], None, "Row 3 is nan, one of 1 that are missing"),
    (3, [0.0, 1.0, 2.0], [4, 5, 1], "Row 2 is of 1, the row before of 5"),
    (3, [0.0, 1.0, 2.0], [4, 5], "must have 3 rows"),
    (3, [0.0, 1.0, 2.0], [4, 5, np.nan], "must be known"),
    (3, [0.0, 1.0, 2.0], [1, 2, 3], "have been learnt already"),
    (3, [0.0, 1.0], None, "inconsistent numbers"),
)
def test_partial_calibrate_refuses_and_keeps_what_was_learnt(line, n, truths, time, message):
    X, y = two_groups(50)
    model = calibrated(line, cv="prefit").fit(X, y)
    assert not hasattr(model, "drift_")
    model.partial_calibrate(X[:3], y[:3], time=[2, 3, 3])
    with pytest.raises(ValueError, match=message):
        model.partial_calibrate(X[:n], truths, time=time)
    assert model.drift_.n_rows == 3
    model.fit(X, y)
    assert not hasattr(model, "drift_") and not hasattr(model, "last_time_")


DATES = pd.date_range("2020", periods=4, tz="UTC")
TIMES = [DATES, pd.period_range("2020", periods=4, freq="M"), [str(date) for date in DATES]]
TIMES += [list(DATES.date), pd.Series([1, 2, 3, 4], index=[7, 8, 9, 9])]


@pytest.mark.parametrize("times", TIMES)
def test_partial_calibrate_saves_times_of_all_kinds(times, line):
    X, y = two_groups(60)
    model = calibrated(line, cv="prefit").fit(X, y)
    model.partial_calibrate(X[:3], y[:3], time=times[:3])
    copy = loads(dumps(model), trusted=TRUSTED)
    with pytest.raises(ValueError, match="have been learnt already"):
        copy.partial_calibrate(X[:1], y[:1], time=times[:1])
    with pytest.raises(ValueError, match="must be of one kind"):
        copy.partial_calibrate(X[:1], y[:1], time=[{}])
    assert copy.partial_calibrate(X[:1], y[:1], time=times[3:]).drift_.n_rows == 4


def test_partial_calibrate_survives_truths_far_away(line):
    X, y = two_groups(100)
    model = calibrated(line, cv="prefit").fit(X, y)
    before = model.predict_interval(X)
    with pytest.warns(CalibrationWarning, match=r"3.8e\+307 predicted std") as caught:
        model.partial_calibrate(X[:2], [1e308, -1e308])
    assert caught[0].filename == __file__
    assert_allclose(model.predict_interval(X), before, rtol=0.1, atol=0.5)


def test_partial_calibrate_of_labels_mends_a_change():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(4000, 2))
    y = X[:, 0] + 0.5 * rng.logistic(size=4000) > 0
    model = classifier(LogisticRegression(), cv=3)
    model.fit(X[:1000], y[:1000])
    # Then three in four of the second class are called otherwise.
    late = X[1000:], y[1000:] & (rng.random(3000) < 0.25)
    plain, followed = -model.log_prob(*late), []
    labels = model.predict(late[0])
    for start in range(0, 3000, 50):
        rows = slice(start, start + 50)
        followed.append(-model.log_prob(late[0][rows], late[1][rows]))
        model.partial_calibrate(late[0][rows], late[1][rows])
    followed = np.concatenate(followed)
    assert followed.mean() < 0.55 * plain.mean()
    drift = model.drift_
    assert drift.n_rows == 3000 and drift.bias[1] < -0.5
    assert_allclose(drift.log_loss, followed[-500:].mean())
    assert_allclose(drift.log_loss_without, plain[-500:].mean(), rtol=1e-6)
    assert_array_equal(model.predict(late[0]), labels)
    total, aleatoric, epistemic = model.predict_uncertainty(late[0])
    assert_allclose(total, aleatoric + epistemic)
    with pytest.raises(ValueError, match="not seen in fit"):
        model.partial_calibrate(X[:2], [True, "new"])
    copy = loads(dumps(model))
    assert_array_equal(copy.predict_proba(late[0]), model.predict_proba(late[0]))


def growing_noise(n, seed, shift=0.0):
    """Noise that grows with the first column, which the target has more of."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 2)) + [shift, 0]
    return X, X @ [1.0, 1.0] + np.exp(0.7 * X[:, 0]) * rng.normal(size=n)


@pytest.mark.parametrize("method", METHODS)
def test_recalibrate_holds_the_share_of_the_target(method):
    line = TooSure().fit(*growing_noise(500, 9))
    X, y = growing_noise(4000, 1, shift=1.0)
    model = calibrated(line, method, cv="prefit").fit(*growing_noise(3000, 0))
    plain = held(model, X, y).mean()
    model.recalibrate(X[:2000])
    assert plain < 0.8
    assert abs(held(model, X[2000:], y[2000:]).mean() - 0.9) < 0.04
    ratio = model.density_ratio_
    # The true weights are exp(x - 1/2): n / n_effective is E[w**2] = e.
    assert_allclose(3000 / ratio.n_effective, np.e, rtol=0.25)
    assert ratio.unsupported < 0.02
    assert_allclose(ratio.auc, 0.76, atol=0.02)  # P(N(1, 2) > 0)
    new = np.array([[0.5, 0.0], [1.5, 0.0]])
    assert_allclose(ratio.weights(new), np.exp([0.0, 1.0]), rtol=0.15)
    copy = loads(dumps(model), trusted=TRUSTED)
    assert_array_equal(copy.predict_interval(X[:5]), model.predict_interval(X[:5]))
    model.partial_calibrate(X[:5], y[:5])
    assert model.recalibrate(X) and not hasattr(model, "drift_")


def test_conformal_calibration_of_weighted_rows_by_hand():
    # Errors 1, 2, 3, 4 of normals with std 1 and weights 4, 3, 2, 1; a new row of weight 2.
    X, y, weight = np.zeros((4, 1)), [1.0, -2, 3, -4], np.array([4.0, 3, 2, 1]) / 2.5
    model = calibrated(lambda X: np.zeros(len(X)), "conformal", cv="prefit").fit(X, y, weight)
    scale = np.sqrt((4 * 1 + 3 * 4 + 2 * 9 + 1 * 16) / 10)
    assert_allclose(model.scale_, scale)
    assert_allclose(model.scores_ * scale, [1, 2, 3, 4])
    plain = model.predict_distribution(X[:1])
    assert_allclose(plain.reach, np.array([4, 7, 9, 10]) / 12.5)  # mean weight 2.5
    found = ConformalMixture(plain.base, plain.scores, plain.reach, np.array([2 / 2.5]))
    # Of 10 + 2: 4, 7, 9, 10 twelfths.
    for coverage, end in ((0.5, 2), (7 / 12, 2), (0.6, 3)):
        assert_allclose(found.interval(coverage), [[-end, end]])
    assert_allclose(found.cdf([3.5]), 0.5 + 0.5 * 9 / 12)
    with pytest.raises(ValueError, match="0.8333 for 1 of 1 rows, unlike the"):
        found.interval(0.84)


def test_recalibrate_warns_of_a_target_without_overlap():
    line = TooSure().fit(*growing_noise(500, 9))
    model = calibrated(line, "conformal", cv="prefit")
    model.fit(*growing_noise(1000, 0))
    X, _ = growing_noise(500, 1, shift=30.0)
    before = model.predict_interval(X)
    with pytest.warns(CalibrationWarning, match="100% of its rows have no similar") as caught:
        model.recalibrate(X)
    assert caught[0].filename == __file__
    assert model.density_ratio_.auc == 1
    # No row tells more of it than others: nothing becomes wide or narrow.
    assert_allclose(model.predict_interval(X), before, rtol=0.02)
    with pytest.raises(ValueError, match="needs 10 calibration rows and as many"):
        model.recalibrate(X[:9])
    model.calibration_rows_ = None
    with pytest.raises(ValueError, match="call `fit` again"):
        model.recalibrate(X)


def test_recalibrate_takes_weights_of_fit_for_repeats():
    X, y = growing_noise(400, 0)
    repeats = np.where(X[:, 0] > 0, 6, 1)  # which are more like the target than the rows are
    target, _ = growing_noise(400, 1, shift=1.0)
    base = calibrated(TooSure().fit(X, y), cv="prefit")
    weighted = copy.copy(base).fit(X, y, repeats)
    repeated = copy.copy(base).fit(np.repeat(X, repeats, axis=0), np.repeat(y, repeats))
    assert_allclose(weighted.scale_, repeated.scale_)
    with config_context(enable_metadata_routing=True):
        routed = copy.copy(weighted).recalibrate(target).scale_
    ratios = [model.recalibrate(target).density_ratio_ for model in (weighted, repeated)]
    assert weighted.scale_ == routed
    assert_allclose(weighted.scale_, repeated.scale_, rtol=0.05)
    assert_allclose(ratios[0].auc, ratios[1].auc, atol=0.03)
    new = np.random.default_rng(0).normal(size=(5, 2))
    assert_allclose(ratios[0].weights(new), ratios[1].weights(new), rtol=0.2)
    assert_allclose(ratios[0].n_effective, ratios[1].n_effective, rtol=0.1)
    # A classifier in a pipeline gets them too; one that takes none is refused.
    weighted.recalibrate(target, classifier=make_pipeline(StandardScaler(), GaussianNB()))


SMALL = growing_noise(60, 0)


@cases(
    ("rows", "classifier", "message"),
    (SMALL[0], KNeighborsClassifier(), "must take `sample_weight`"),
    (SMALL[0], LinearSVC(), "must have predict_proba"),
    (csr_array(1e6 * SMALL[0]), None, "give a `classifier` that reads them"),
    (pd.DataFrame(1e6 * SMALL[0]).astype("datetime64[s]"), None, "give a `classifier` that"),
    (["rain"] * 60, None, "needs the argument `classifier`"),
)
def test_recalibrate_refuses_classifiers(rows, classifier, message):
    model = calibrated(DummyRegressor().fit(rows, SMALL[1]), cv="prefit")
    model.fit(rows, SMALL[1], 1.0 + (SMALL[1] > 0))
    with pytest.raises((TypeError, ValueError), match=message):
        model.recalibrate(rows[:30], classifier=classifier)
    assert not hasattr(model, "density_ratio_")


def test_recalibrate_weights_frames_and_classes():
    rng = np.random.default_rng(0)
    n = 3000
    frame = pd.DataFrame({"a": rng.normal(size=n), "town": rng.choice(["x", "y"], n, p=[0.8, 0.2])})
    # In the town y labels are noise.
    slope = np.where(frame["town"] == "y", 0.0, 3.0)
    y = rng.random(n) < 1 / (1 + np.exp(-slope * frame["a"]))
    forget = make_pipeline(Encoder(), LogisticRegression())
    model = classifier(forget, cv=3).fit(frame, y)
    before = model.temperature_
    target = frame[frame["town"] == "y"].reset_index(drop=True)
    model.recalibrate(target)
    assert model.temperature_ > 3 * before
    assert_allclose(model.predict_proba(target), 0.5, atol=0.15)


def test_classifier_scales_the_epistemic_part():
    X, y = load_iris(return_X_y=True)
    y = np.where(np.arange(150) % 4 == 0, (y + 1) % 3, y)  # or the members would be too unsure
    columns = [FunctionTransformer(lambda X, k=k: X[:, [k]]) for k in range(4)]
    pool = [(f"of {k}", make_pipeline(columns[k], GaussianNB())) for k in range(4)]
    every = {"filters": (), "choose": lambda teams: teams.index[-1]}
    fitted = HQEnsembleSelector(pool, **every).fit(X, y)
    plain = classifier(fitted, cv="prefit").fit(X, y)
    model = classifier(fitted, calibrate_epistemic=True, cv="prefit").fit(X, y)
    assert plain.spread_ == 1 and model.spread_ != 1
    assert_allclose(model.predict_proba(X), plain.predict_proba(X))
    ratio = model.predict_uncertainty(X).epistemic / plain.predict_uncertainty(X).epistemic
    # Not where a probability would be negative.
    assert ((ratio - 1) * (model.spread_ - 1) > -1e-9).all() and abs(ratio - 1).max() > 0.01
    total = model.predict_uncertainty(X).total
    assert_allclose(total, plain.predict_uncertainty(X).total)
