"""Displays of a regressor's predictions."""

from types import SimpleNamespace

import numpy as np
import pytest
from matplotlib import colors
from numpy.testing import assert_allclose, assert_array_equal
from scipy.stats import norm
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.linear_model import BayesianRidge, LinearRegression
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline
from tiers import cases

from skuq import DeepEnsembleClassifier, DeepEnsembleRegressor
from skuq.plotting import (
    ConditionalCoverageDisplay,
    CoverageWidthDisplay,
    ErrorStdDisplay,
    PITDisplay,
    PredictionBandDisplay,
    QuantileCalibrationDisplay,
    RetentionDisplay,
    SearchHistoryDisplay,
)
from skuq.predictive import GaussianMixture


@pytest.fixture(scope="module")
def process():
    X = np.linspace(0, 5, 12)[:, None]
    return GaussianProcessRegressor(alpha=0.1).fit(X, np.sin(X[:, 0])), X


class TwoMembers:
    """Minimal regressor with the methods that displays need."""

    def predict_distribution(self, X):
        x = np.asarray(X)[:, 0]
        return GaussianMixture(np.stack([x, x + 2]), np.ones((2, len(x))))

    def predict_uncertainty(self, X):
        return self.predict_distribution(X).uncertainty()

    def predict(self, X, return_std=False):
        parts = self.predict_uncertainty(X)
        return (parts.mean, parts.total) if return_std else parts.mean


class UncertainClasses(TwoMembers):
    classes_ = ("a", "b")


def _edges(band):
    """Lower and upper ends of a band by input."""
    points = band.get_paths()[0].vertices
    ends = [points[points[:, 0] == v, 1] for v in np.unique(points[:, 0])]
    return np.array([[np.min(y), np.max(y)] for y in ends])


def test_band_of_mixture_shows_both_parts_in_order_of_the_input():
    X = np.array([[2.0], [0.0], [1.0]])
    rows = {"X_train": X, "y_train": [1.0, 2.0, 3.0]}
    display = PredictionBandDisplay.from_estimator(TwoMembers(), X, **rows, unit="kW", n_stds=3)
    mean = np.array([1.0, 2.0, 3.0])
    assert_allclose(display.line_.get_xdata(), [0, 1, 2])
    assert_allclose(display.line_.get_ydata(), mean)
    # Both variances are 1: the aleatoric band is 3 wide, the total one 3 sqrt(2).
    assert_allclose(_edges(display.aleatoric_band_), np.stack([mean - 3, mean + 3], axis=1))
    width = 3 * np.sqrt(2)
    assert_allclose(_edges(display.total_band_), np.stack([mean - width, mean + width], axis=1))
    assert_allclose(display.scatter_.get_offsets(), [[2, 1], [0, 2], [1, 3]])
    # The points are on top, and their rims tell them from bands and the mean.
    assert display.scatter_.get_zorder() > display.line_.get_zorder()
    assert colors.to_hex(display.scatter_.get_edgecolor()[0]) == "#ffffff"
    assert display.scatter_.get_alpha() is None
    assert display.ax_.get_ylabel() == "y (kW)"


def test_band_of_other_regressors_is_the_total_one_only(process):
    model, X = process
    display = PredictionBandDisplay.from_estimator(model, X)
    mean, std = model.predict(X, return_std=True)
    assert display.aleatoric_band_ is None and display.scatter_ is None
    assert_allclose(_edges(display.total_band_), np.stack([mean - 2 * std, mean + 2 * std], axis=1))


def test_quantile_calibration_counts_targets_below_each_level():
    display = QuantileCalibrationDisplay.from_predictions(pit=[0.1, 0.4, 0.4, 0.9], n_levels=5)
    assert_allclose(display.line_.get_xdata(), [0, 0.25, 0.5, 0.75, 1])
    assert_allclose(display.line_.get_ydata(), [0, 0.25, 0.75, 0.75, 1])


def test_quantile_calibration_of_uniform_pit_has_no_area_and_of_one_half_has_a_quarter():
    even = (np.arange(1000) + 0.5) / 1000
    assert QuantileCalibrationDisplay.from_predictions(pit=even).area < 1e-3
    # All mass in the middle: two triangles of 1/8 each.
    middle = QuantileCalibrationDisplay.from_predictions(pit=[0.5], n_levels=1001)
    assert_allclose(middle.area, 0.25)
    assert "0.25" in middle.ax_.get_legend().get_texts()[1].get_text()


def test_pit_is_that_of_the_mixture_where_there_is_one(process):
    X, y = np.zeros((3, 1)), np.array([0.0, 1.0, 5.0])
    expected = (norm.cdf(y) + norm.cdf(y - 2)) / 2
    assert_allclose(PITDisplay.from_estimator(TwoMembers(), X, y).pit, expected)
    model, X = process
    y = np.cos(X[:, 0])
    mean, std = model.predict(X, return_std=True)
    given = PITDisplay.from_estimator(model, X, y, n_bins=4)
    assert_allclose(given.pit, norm.cdf(y, mean, std))
    other = PITDisplay.from_predictions(pit=given.pit, n_bins=4)
    assert [bar.get_height() for bar in other.bars_] == [bar.get_height() for bar in given.bars_]


def test_pit_band_is_binomial():
    display = PITDisplay(np.linspace(0, 1, 100), n_bins=10).plot(chance=0.9)
    # 90 % of Binomial(100, 0.1) are from 5 to 15.
    band = display.band_.get_extents().transformed(display.ax_.transData.inverted())
    assert_allclose([band.y0, band.y1], [0.5, 1.5])
    assert_allclose(sum(bar.get_height() for bar in display.bars_), 10)
    steep = PITDisplay(np.full(50, 0.55)).plot()
    even = PITDisplay(np.linspace(0.01, 0.99, 50)).plot(steep.ax_)
    assert even.ax_.get_ylim()[1] > 10  # all in one of ten bins


def test_coverage_width_by_hand():
    # |error| / std is 2, 0.5 and 1; the mean std is 2.
    y, mean, std = [2.0, 1.0, -3.0], [0.0, 0.0, 0.0], [1.0, 2.0, 3.0]
    display = CoverageWidthDisplay.from_predictions(y, mean, std, mark=1.5, unit="m")
    assert_allclose(display.line_.get_xdata(), [0, 1 / 3, 2 / 3, 1])
    assert_allclose(display.line_.get_ydata(), [0, 2, 4, 8])
    assert_allclose(np.ravel(display.marker_.get_data()), [2 / 3, 6])
    assert display.ax_.get_ylabel() == "mean width of intervals (m)"
    assert CoverageWidthDisplay.from_predictions([1.0], [0.0], [1.0]).marker_ is None
    display = CoverageWidthDisplay.from_predictions([1.0], [0.0], [1.0])
    ax = display.ax_
    n_lines = len(ax.lines)
    with pytest.raises(ValueError, match="`mark` must not be negative"):
        display.plot(ax, mark=-1.0)
    assert len(ax.lines) == n_lines


def test_error_std_bins_are_root_mean_squares(process):
    error, std = np.array([3.0, -4.0, 0.0, 2.0]), np.array([1.0, 1.0, 5.0, 7.0])
    display = ErrorStdDisplay(error, std, n_bins=2).plot()
    assert_allclose(display.line_.get_ydata(), np.sqrt([12.5, 2]))
    assert_allclose(display.line_.get_xdata(), np.sqrt([1, 37]))
    assert_allclose(display.scatter_.get_offsets(), np.stack([std, abs(error)], axis=1))
    assert_array_equal(display.ideal_.get_xdata(), display.ideal_.get_ydata())
    # Rows of one standard deviation are one bin, whatever their order.
    display = ErrorStdDisplay([3.0, -4.0, 0.0, 2.0], [1.0, 1.0, 7.0, 1.0], n_bins=4).plot()
    assert_allclose(display.line_.get_ydata(), np.sqrt([29 / 3, 0]))
    model, X = process
    assert ErrorStdDisplay.from_estimator(model, X, np.zeros(12), unit="K").unit == "K"


def test_retention_by_hand():
    display = RetentionDisplay([4.0, 0.0, 2.0, 2.0], [0.1, 0.4, 0.2, 0.3]).plot()
    assert_allclose(display.line_.get_xdata(), [0, 0.25, 0.5, 0.75, 1])
    assert_allclose(display.line_.get_ydata(), [0, 1, 1.5, 2, 2])
    retained = np.linspace(0, 1, 5)
    assert_allclose(np.interp(retained, *display.oracle_.get_data()), [0, 0, 0.5, 1, 2])
    assert_allclose(display.random_.get_ydata(), [0, 2])
    display = RetentionDisplay.from_predictions([1.0, 2.0], [0.0, 0.0], [1.0, 2.0], bounds=False)
    assert display.random_ is display.oracle_ is None
    assert len(display.ax_.lines) == 1


def test_retention_of_classifiers_counts_wrong_labels():
    X, y = np.array([[0.0], [0.4], [3.0], [3.6]]), np.array([0, 0, 1, 1])
    model = GaussianNB().fit(X, y)
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        RetentionDisplay.from_estimator(model, X, y[:2])
    display = RetentionDisplay.from_estimator(model, X, 1 - y)
    assert_allclose(display.errors, 1)
    assert_allclose(display.uncertainty, 1 - model.predict_proba(X).max(axis=1))
    model.predict_uncertainty = lambda X: SimpleNamespace(total=np.arange(4.0))
    assert_allclose(RetentionDisplay.from_estimator(model, X, y).uncertainty, np.arange(4))


@cases(
    ("draw", "message"),
    (lambda m, X: PredictionBandDisplay.from_estimator(m, np.zeros((3, 2))), "n_samples, 1"),
    (lambda m, X: PredictionBandDisplay.from_estimator(m, [["b"]]), "`X` must be numbers: .*'b'"),
    (lambda m, X: CoverageWidthDisplay.from_predictions([1, 2], [1, 2], [1]), "inconsistent n"),
    (lambda m, X: CoverageWidthDisplay.from_predictions([1, 2], [1, 2], [1, 0]), "positive"),
    (lambda m, X: RetentionDisplay.from_predictions([1, np.nan], [1, 2], [1, 1]), "finite"),
    (lambda m, X: ErrorStdDisplay(np.ones((2, 2)), np.ones(2)).plot(), "must have the shape"),
    (lambda m, X: RetentionDisplay([-1.0], [1.0]).plot(), "negative"),
    (lambda m, X: PITDisplay([1.5]).plot(), r"\[0, 1\]"),
    (lambda m, X: PITDisplay([0.5]).plot(chance=1), "chance"),
    (lambda m, X: PITDisplay.from_predictions([1.0]), r"Give either .*`pit`. Got \['y_true'\]"),
    (lambda m, X: QuantileCalibrationDisplay.from_predictions(), "Give either `y_true`"),
    (lambda m, X: PITDisplay.from_estimator(TwoMembers(), X, np.hstack([X, X])), "shape of me"),
)
def test_regression_displays_say_what_is_wrong_of_values(process, draw, message):
    with pytest.raises(ValueError, match=message):
        draw(*process)


@cases(
    ("draw", "message"),
    (lambda m, X: PITDisplay.from_estimator(LinearRegression().fit(X, X), X, X), "return_std"),
    (
        lambda m, X: PredictionBandDisplay.from_estimator(UncertainClasses(), X),
        "regressor is needed. Got the classifier",
    ),
    (
        lambda m, X: PITDisplay.from_estimator(GaussianNB().fit(X, X[:, 0] > 2), X, X[:, 0]),
        "regressor is needed",
    ),
)
def test_regression_displays_say_what_is_wrong_of_other_kinds(process, draw, message):
    with pytest.raises(TypeError, match=message):
        draw(*process)


@pytest.mark.parametrize("display", [RetentionDisplay, CoverageWidthDisplay, ErrorStdDisplay])
def test_later_displays_find_room_on_shared_axes(display, rng):
    y, std = rng.normal(size=50), rng.uniform(0.5, 1, 50)
    small = display.from_predictions(y, 0.9 * y, std)
    large = display.from_predictions(10 * y, np.zeros(50), 10 * std, ax=small.ax_)
    low, high = large.ax_.get_ylim()
    assert low == 0
    drawn = [line.get_ydata() for line in large.ax_.lines]
    drawn += [points.get_offsets()[:, 1] for points in large.ax_.collections]
    assert high > max(np.max(values) for values in drawn)


def test_coverage_of_other_regressors_is_that_of_normals(process):
    model, X = process
    mean, std = model.predict(X, return_std=True)
    y = mean + np.linspace(0, 3, len(X)) * std
    display = ConditionalCoverageDisplay.from_estimator(
        model, X, y, by=X[:, 0], n_bins=2, label="depth"
    )
    assert display.ax_.get_xlabel() == "depth"
    z = np.linspace(0, 3, len(X)).reshape(2, -1)
    assert_allclose(display.observed, (z <= norm.ppf(0.95)).mean(axis=1))


def test_coverage_of_a_regressor_that_is_sure_of_a_row():
    class Sure:
        def predict(self, X, return_std=False):
            return (X[:, 0], np.arange(len(X))) if return_std else X[:, 0]

    X = np.zeros((6, 1))
    y = np.array([0.0, 3.0, 3.0, 3.0, 9.0, 3.0])
    display = ConditionalCoverageDisplay.from_estimator(Sure(), X, y, n_bins=2)
    assert_allclose(display.observed, [2 / 3, 2 / 3])


def test_labels_of_groups_stay_distinct():
    years = np.repeat([2021.0, 2022.0], 5)
    interval = np.zeros(10), np.full(10, -1.0), np.ones(10)
    display = ConditionalCoverageDisplay.from_predictions(*interval, groups=years)
    assert [text.get_text() for text in display.ax_.get_xticklabels()] == ["2021", "2022"]
    many = ConditionalCoverageDisplay(np.arange(60), np.ones(60), np.ones(60)).plot()
    assert len(many.ax_.get_xticklabels()) == 20
    with pytest.raises(ValueError, match="`coverage` must lie strictly in"):
        ConditionalCoverageDisplay.from_predictions(*interval, groups=years, coverage=90)


def test_displays_that_share_axes_have_their_own_colours():
    pit, other = (PITDisplay([0.2, 0.7], name=name) for name in "ab")
    other.plot(pit.plot().ax_)
    assert pit.bars_[0].get_facecolor() != other.bars_[0].get_facecolor()
    first, second = (ConditionalCoverageDisplay([0, 1], [0.9, 0.8], [9, 9]) for _ in "ab")
    second.plot(first.plot().ax_)
    assert first.points_.get_color() != second.points_.get_color()


@cases(
    ("display", "data"),
    *((CoverageWidthDisplay, "width"), (ErrorStdDisplay, "error")),
    *((RetentionDisplay, "errors"), (ConditionalCoverageDisplay, "observed")),
)
def test_a_y_of_one_column_is_one_output(display, data):
    X = np.linspace(0, 5, 12)[:, None]
    one = BayesianRidge().fit(X, np.sin(X[:, 0]))
    column = SimpleNamespace(
        predict=lambda X, return_std: tuple(part[:, None] for part in one.predict(X, True))
    )
    expected = getattr(display.from_estimator(one, X, X[:, 0]), data)
    assert_array_equal(getattr(display.from_estimator(column, X, X), data), expected)
    assert_array_equal(getattr(display.from_estimator(column, X, X[:, 0]), data), expected)


def test_displays_open_pipelines():
    X, y = np.linspace(0, 1, 40)[:, None], np.linspace(0, 1, 40) ** 2
    model = make_pipeline("passthrough", DeepEnsembleRegressor(2, epochs=3, random_state=0))
    band = PredictionBandDisplay.from_estimator(model.fit(X, y), X)
    assert_allclose(band.aleatoric, model[-1].predict_uncertainty(X).aleatoric)
    column = QuantileCalibrationDisplay.from_estimator(model, X, y[:, None])
    plain = QuantileCalibrationDisplay.from_estimator(model, X, y)
    assert_allclose(column.observed, plain.observed)
    classes = make_pipeline("passthrough", DeepEnsembleClassifier(2, epochs=3, random_state=0))
    classes.fit(X, y > 0.3)
    retention = RetentionDisplay.from_estimator(classes, X, y > 0.3)
    assert_allclose(retention.uncertainty, classes[-1].predict_uncertainty(X).total)
    with pytest.raises(ValueError, match="seen at fit. Got \\['a'\\]"):
        RetentionDisplay.from_estimator(classes, X, ["a"] * 40)
    with pytest.raises(TypeError, match="have a `catalog_`"):
        SearchHistoryDisplay.from_estimator(model)


def test_coverage_of_groups_of_an_estimator(process):
    model, X = process
    y, labels = model.predict(X), np.repeat(["m", "w"], len(X) // 2)
    display = ConditionalCoverageDisplay.from_estimator(model, X, y, groups=labels)
    assert display.centers.tolist() == ["m", "w"]
    with pytest.raises(ValueError, match="labels are for `groups`"):
        ConditionalCoverageDisplay.from_estimator(model, X, y, by=labels)
    with pytest.raises(ValueError, match="not both"):
        ConditionalCoverageDisplay.from_estimator(model, X, y, by="distance", groups=labels)
    columns = X[:, 0], X[:, 0].astype(object)
    found = [ConditionalCoverageDisplay.from_estimator(model, X, y, by=by) for by in columns]
    assert_array_equal(*(display.observed for display in found))
