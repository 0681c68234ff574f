"""Displays of a regressor's predictions."""

from types import SimpleNamespace

import numpy as np
import pytest
from matplotlib import colors
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.linear_model import BayesianRidge, LinearRegression
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline
from tiers import cases

from skuq import DeepEnsembleClassifier, DeepEnsembleRegressor
from skuq.plotting import CoverageWidthDisplay as Width
from skuq.plotting import PredictionBandDisplay as Band
from skuq.plotting import QuantileCalibrationDisplay as Calibration
from skuq.plotting import RetentionDisplay as Retention
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
    display = Band.from_estimator(TwoMembers(), X, **rows, unit="kW", n_stds=3)
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
    display = Band.from_estimator(model, X)
    mean, std = model.predict(X, return_std=True)
    assert display.aleatoric_band_ is None and display.scatter_ is None
    assert_allclose(_edges(display.total_band_), np.stack([mean - 2 * std, mean + 2 * std], axis=1))


def test_quantile_calibration_counts_targets_below_each_level():
    display = Calibration.from_predictions(pit=[0.1, 0.4, 0.4, 0.9], n_levels=5)
    assert_allclose(display.line_.get_xdata(), [0, 0.25, 0.5, 0.75, 1])
    assert_allclose(display.line_.get_ydata(), [0, 0.25, 0.75, 0.75, 1])
    assert "calibration error 0.05" in display.ax_.get_legend().get_texts()[1].get_text()


def test_coverage_width_by_hand():
    # |error| / std is 2, 0.5 and 1; the mean std is 2.
    y, mean, std = [2.0, 1.0, -3.0], [0.0, 0.0, 0.0], [1.0, 2.0, 3.0]
    display = Width.from_predictions(y, mean, std, mark=1.5, unit="m")
    assert_allclose(display.line_.get_xdata(), [0, 1 / 3, 2 / 3, 1])
    assert_allclose(display.line_.get_ydata(), [0, 2, 4, 8])
    assert_allclose(np.ravel(display.marker_.get_data()), [2 / 3, 6])
    assert display.ax_.get_ylabel() == "mean width of intervals (m)"
    assert Width.from_predictions([1.0], [0.0], [1.0]).marker_ is None
    with pytest.raises(ValueError, match="`mark` must not be negative"):
        display.plot(mark=-1.0)


def test_retention_by_hand():
    display = Retention([4.0, 0.0, 2.0, 2.0], [0.1, 0.4, 0.2, 0.3]).plot()
    assert_allclose(display.line_.get_xdata(), [0, 0.25, 0.5, 0.75, 1])
    assert_allclose(display.line_.get_ydata(), [0, 1, 1.5, 2, 2])
    retained = np.linspace(0, 1, 5)
    assert_allclose(np.interp(retained, *display.oracle_.get_data()), [0, 0, 0.5, 1, 2])
    assert_allclose(display.random_.get_ydata(), [0, 2])
    display = Retention.from_predictions([1.0, 2.0], [0.0, 0.0], [1.0, 2.0], bounds=False)
    assert display.random_ is display.oracle_ is None
    assert len(display.ax_.lines) == 1


def test_retention_of_classifiers_counts_wrong_labels():
    X, y = np.array([[0.0], [0.4], [3.0], [3.6]]), np.array([0, 0, 1, 1])
    model = GaussianNB().fit(X, y)
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        Retention.from_estimator(model, X, y[:2])
    display = Retention.from_estimator(model, X, 1 - y)
    assert_allclose(display.errors, 1)
    assert_allclose(display.uncertainty, 1 - model.predict_proba(X).max(axis=1))
    model.predict_uncertainty = lambda X: SimpleNamespace(total=np.arange(4.0))
    assert_allclose(Retention.from_estimator(model, X, y).uncertainty, np.arange(4))


@cases(
    ("draw", "error", "message"),
    (lambda m, X: Band.from_estimator(m, np.zeros((3, 2))), ValueError, "n_samples, 1"),
    (lambda m, X: Band.from_estimator(m, [["b"]]), ValueError, "`X` must be numbers: .*'b'"),
    (lambda m, X: Band.from_estimator(UncertainClasses(), X), TypeError, "Got the classifier"),
    (lambda m, X: Width.from_predictions([1, 2], [1, 2], [1]), ValueError, "inconsistent n"),
    (lambda m, X: Width.from_predictions([1, 2], [1, 2], [1, 0]), ValueError, "positive"),
    (lambda m, X: Retention.from_predictions([1, np.nan], [1, 2], [1, 1]), ValueError, "finite"),
    (lambda m, X: Retention(np.ones((2, 2)), np.ones(2)).plot(), ValueError, "have the shape"),
    (lambda m, X: Retention([-1.0], [1.0]).plot(), ValueError, "negative"),
    (lambda m, X: Calibration.from_predictions([1.0]), ValueError, r"Give.*Got \['y_true'\]"),
    (lambda m, X: Calibration.from_estimator(TwoMembers(), X, np.c_[X, X]), ValueError, "shape"),
    (lambda m, X: Calibration.from_estimator(LinearRegression().fit(X, X), X, X), TypeError, "std"),
)
def test_regression_displays_say_what_is_wrong(process, draw, error, message):
    with pytest.raises(error, match=message):
        draw(*process)


@pytest.mark.parametrize("display", [Retention, Width])
def test_later_displays_find_room_on_shared_axes(display, rng):
    y, std = rng.normal(size=50), rng.uniform(0.5, 1, 50)
    small = display.from_predictions(y, 0.9 * y, std)
    large = display.from_predictions(10 * y, np.zeros(50), 10 * std, ax=small.ax_)
    low, high = large.ax_.get_ylim()
    assert low == 0
    drawn = [line.get_ydata() for line in large.ax_.lines]
    drawn += [points.get_offsets()[:, 1] for points in large.ax_.collections]
    assert high > max(np.max(values) for values in drawn)


@cases(("display", "data"), (Width, "width"), (Retention, "errors"))
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
    band = Band.from_estimator(model.fit(X, y), X)
    assert_allclose(band.aleatoric, model[-1].predict_uncertainty(X).aleatoric)
    column = Calibration.from_estimator(model, X, y[:, None])
    plain = Calibration.from_estimator(model, X, y)
    assert_allclose(column.observed, plain.observed)
    classes = make_pipeline("passthrough", DeepEnsembleClassifier(2, epochs=3, random_state=0))
    classes.fit(X, y > 0.3)
    retention = Retention.from_estimator(classes, X, y > 0.3)
    assert_allclose(retention.uncertainty, classes[-1].predict_uncertainty(X).total)
    with pytest.raises(ValueError, match="seen at fit. Got \\['a'\\]"):
        Retention.from_estimator(classes, X, ["a"] * 40)
