"""Displays: properties of all of them, and what each of them draws."""

import sys
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from matplotlib import colors
from matplotlib import pyplot as plt
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import BaseEstimator
from sklearn.linear_model import BayesianRidge, LinearRegression
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from tiers import cases

from skuq import plotting
from skuq.ensembles import select_teams
from skuq.plotting import SearchHistoryDisplay, TeamDisplay
from skuq.predictive import GaussianMixture
from skuq.search import Catalog, TrialRecord

plt.switch_backend("Agg")
Band, Retention = plotting.PredictionBandDisplay, plotting.RetentionDisplay
Calibration, X = plotting.QuantileCalibrationDisplay, np.linspace(0, 5, 12)[:, None]
CLASSES = GaussianNB().fit(X, X[:, 0] > 2)


@pytest.fixture(autouse=True)
def close_figures():
    yield
    plt.close("all")


RNG = np.random.default_rng(0)
Y, STD = RNG.normal(size=30), RNG.uniform(0.5, 2, size=30)


def select(n_models, n_rows, **settings):
    """Choose a team of models that are right on about 7 of 10 rows."""
    right = np.random.default_rng(0).random((n_models, n_rows))
    right = right < np.linspace(0.65, 0.8, n_models)[:, None]
    return select_teams(right.astype(int), np.ones(n_rows, int), **settings)


CHOSEN = select(6, 300)
# Each: a function of `ax` and keywords that draws.
DRAW = {
    "QuantileCalibrationDisplay": partial(Calibration.from_predictions, Y, 0.5 * Y, STD),
    "RetentionDisplay": partial(Retention.from_predictions, Y, 0.5 * Y, STD - STD.min()),
    "PredictionBandDisplay": Band(Y, Y, STD, aleatoric=STD / 2).plot,
    "SearchHistoryDisplay": SearchHistoryDisplay([3.0, np.nan, 2.0]).plot,
    "TeamDisplay": partial(TeamDisplay.from_teams, CHOSEN),
}


def test_every_display_is_here_and_missing_matplotlib_is_named(monkeypatch):
    assert set(DRAW) == {name for name in plotting.__all__ if name.endswith("Display")}
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(ImportError, match=r'pip install "skuq\[plot\]"'):
        DRAW["SearchHistoryDisplay"]()


@pytest.mark.parametrize("name", DRAW)
def test_display_draws_on_given_axes_in_the_users_style_with_keywords(name):
    before = dict(plt.rcParams)
    figure, (ax, other) = plt.subplots(1, 2)
    display = DRAW[name](ax=ax)
    assert type(display).__name__ == name and display.ax_ is ax and display.figure_ is figure
    assert ax.get_xlabel() and ax.get_ylabel() and not other.has_data()
    figure.canvas.draw()
    assert len(plt.get_fignums()) == 1 and display.plot() is display
    assert display.figure_ is not figure and display.figure_.axes[0] is display.ax_
    assert len(plt.get_fignums()) == 2 and dict(plt.rcParams) == before
    with pytest.raises(TypeError, match="`ax` must be an Axes.*Got 3"):
        DRAW[name](ax=3)
    # Keywords reach the artist under any name.
    keyword = "scatter_kwargs" if name == "TeamDisplay" else "line_kwargs"
    with pytest.raises(TypeError, match=r"must be dicts.*Got 3\."):
        DRAW[name](**{keyword: 3})
    display = DRAW[name](**{keyword: {"lw": 3.5, "color": "#123456"}})
    found = display.scatters_["kept"] if name == "TeamDisplay" else display.line_
    assert np.ravel(found.get_linewidth())[0] == 3.5
    shown = found.get_color() if hasattr(found, "get_color") else found.get_facecolor()[0]
    assert colors.to_hex(shown) == "#123456"


class TwoMembers(BaseEstimator):
    def predict_distribution(self, X):
        x = np.asarray(X)[:, 0]
        return GaussianMixture(np.stack([x, x + 2]), np.ones((2, len(x))))

    def predict_uncertainty(self, X):
        return self.predict_distribution(X).uncertainty()


def assert_band(band, mean, reach):
    points = band.get_paths()[0].vertices
    ends = [points[points[:, 0] == v, 1] for v in np.unique(points[:, 0])]
    assert_allclose([[min(y), max(y)] for y in ends], np.c_[mean - reach, mean + reach])


def test_bands_show_both_parts_or_the_total_in_order_of_the_input():
    X, mean = np.array([[2.0], [0.0], [1.0]]), np.array([1.0, 3.0, 5.0])
    rows = {"X_train": X, "y_train": [1.0, 2.0, 3.0]}
    model = make_pipeline(FunctionTransformer(lambda X: 2 * X), TwoMembers())
    display = Band.from_estimator(model, X, **rows, name="y (kW)", n_stds=3)
    assert_allclose(display.line_.get_data(), [[0, 1, 2], mean])
    # Both variances are 1: the aleatoric band is 3 wide, the total one 3 sqrt(2).
    assert_band(display.aleatoric_band_, mean, 3)
    assert_band(display.total_band_, mean, 3 * np.sqrt(2))
    assert_allclose(display.scatter_.get_offsets(), [[2, 1], [0, 2], [1, 3]])
    # The points are on top, and their rims tell them from bands and the mean.
    assert display.scatter_.get_zorder() > display.line_.get_zorder()
    assert colors.to_hex(display.scatter_.get_edgecolor()[0]) == "#ffffff"
    assert display.ax_.get_ylabel() == "y (kW)"
    grid = np.linspace(0, 5, 12)[:, None]
    model = BayesianRidge().fit(grid, grid[:, 0])
    display, (mean, std) = Band.from_estimator(model, grid), model.predict(grid, return_std=True)
    assert display.aleatoric_band_ is None and display.scatter_ is None
    assert_band(display.total_band_, mean, 2 * std)


def test_curves_by_hand_and_retention_of_classifiers():
    display = Calibration.from_predictions(pit=[0.1, 0.4, 0.4, 0.9], n_levels=5)
    found = display.line_.get_data()
    assert_allclose(found, [[0, 0.25, 0.5, 0.75, 1], [0, 0.25, 0.75, 0.75, 1]])
    assert "calibration error 0.05" in display.ax_.get_legend().get_texts()[1].get_text()
    display, retained = Retention([4.0, 0.0, 2.0, 2.0], [0.1, 0.4, 0.2, 0.3]).plot(), np.r_[:5] / 4
    assert_allclose(display.line_.get_data(), [retained, [0, 1, 1.5, 2, 2]])
    assert_allclose(np.interp(retained, *display.oracle_.get_data()), [0, 0, 0.5, 1, 2])
    assert_allclose(display.random_.get_ydata(), [0, 2])
    display = Retention.from_predictions([1.0, 2.0], [0.0, 0.0], [1.0, 2.0], bounds=False)
    assert display.random_ is display.oracle_ is None
    assert_allclose(display.line_.get_ydata(), [0, 0.5, 2.5])
    small = Retention.from_predictions(Y, 0.9 * Y, STD)  # Later displays find room.
    low, high = Retention.from_predictions(10 * Y, 0 * Y, STD, ax=small.ax_).ax_.get_ylim()
    assert low == 0 and high > max(np.max(line.get_ydata()) for line in small.ax_.lines)
    y = np.arange(12) // 6  # Retention of classifiers counts wrong labels.
    model = GaussianNB().fit(X, y)
    display = Retention.from_estimator(make_pipeline("passthrough", model), X, 1 - y)
    assert_allclose(display.errors, 1)
    assert_allclose(display.uncertainty, 1 - model.predict_proba(X).max(axis=1))
    model.predict_uncertainty = lambda X: SimpleNamespace(total=np.arange(12.0))
    for inside in (model, make_pipeline("passthrough", model)):
        assert_allclose(Retention.from_estimator(inside, X, y).uncertainty, np.arange(12))


@cases(
    ("draw", "error", "message"),
    (lambda: Band.from_estimator(TwoMembers(), np.zeros((3, 2))), ValueError, "n_samples, 1"),
    (lambda: Band.from_estimator(TwoMembers(), [["b"]]), ValueError, "`X` must be num.*'b'"),
    (lambda: Band.from_estimator(CLASSES, X), TypeError, "Got the classifier"),
    (lambda: Retention.from_predictions([1, 2], [1, 2], [1]), ValueError, "inconsistent n"),
    (lambda: Retention(np.ones((2, 2)), np.ones(2)).plot(), ValueError, "have the shape"),
    (lambda: Retention.from_estimator(CLASSES, X, [True]), ValueError, "inconsistent numbers"),
    (lambda: Retention.from_estimator(CLASSES, X, ["a"] * 12), ValueError, r"in fit: \['a'\]"),
    (lambda: Calibration.from_predictions([1.0]), ValueError, r"Give.*Got \['y_true'\]"),
    (lambda: Calibration.from_estimator(TwoMembers(), X, np.c_[X, X]), ValueError, "shape"),
    (lambda: Calibration.from_estimator(LinearRegression().fit(X, X), X, X), TypeError, "std"),
    (lambda: SearchHistoryDisplay([np.nan]).plot(), ValueError, "None of the 1 trials was comp"),
    (lambda: SearchHistoryDisplay([1.0]).plot(by="time"), ValueError, "seconds"),
    (lambda: SearchHistoryDisplay([1.0]).plot(by="hour"), ValueError, "`by` must be one of"),
    (lambda: SearchHistoryDisplay.from_catalog([1]), TypeError, "Catalog or its frame"),
    (lambda: Retention.from_predictions([1], [1], [-1]), ValueError, "must not be negative"),
    (lambda: SearchHistoryDisplay.from_estimator(CHOSEN), TypeError, "have a `catalog_`"),
    (lambda: TeamDisplay.from_teams(CHOSEN, size=9), ValueError, "No team of size 9"),
    (lambda: TeamDisplay.from_teams(CHOSEN, diversity="x"), ValueError, "`diversity` must be one"),
    (lambda: TeamDisplay.from_teams([1]), TypeError, "TeamSelection"),
)
def test_displays_say_what_is_wrong(draw, error, message):
    with pytest.raises(error, match=message):
        draw()


@cases(("display", "data"), (Retention, "errors"), (Calibration, "observed"))
def test_a_y_of_one_column_is_one_output(display, data):
    one = BayesianRidge().fit(X, np.sin(X[:, 0]))
    columns = lambda X, return_std: tuple(np.expand_dims(one.predict(X, True), 2))  # noqa: E731
    column = SimpleNamespace(predict=columns)
    expected = getattr(display.from_estimator(one, X, X[:, 0]), data)
    assert_array_equal(getattr(display.from_estimator(column, X, X), data), expected)
    assert_array_equal(getattr(display.from_estimator(column, X, X[:, 0]), data), expected)


def test_search_history_by_trial_and_time_with_outliers_and_failures():
    outcomes = [{"score": 3.0}, {"status": "failed", "message": "no"}, {"score": 1}, {"score": 2}]
    same = {"result": SimpleNamespace(n_epochs=1, best_epoch=0), "seconds": 0.5}
    catalog = Catalog([TrialRecord(k, {}, **same, **outcomes[k]) for k in range(4)])
    display = SearchHistoryDisplay.from_catalog(catalog)
    assert_allclose(display.line_.get_data(), [range(4), [3, 3, 1, 1]])
    assert display.failed_.get_xdata().tolist() == [1]
    assert_allclose(display.scatter_.get_offsets(), [[0, 3], [2, 1], [3, 2]])
    axes = plt.figure().add_subplot(yscale="log")
    assert SearchHistoryDisplay([1, np.nan, 1e-4]).plot(axes).failed_.get_ydata()[0] > 1e-5
    search = SimpleNamespace(best_estimator_=SimpleNamespace(catalog_=catalog))
    nested = SimpleNamespace(best_estimator_=search)
    by_time = SearchHistoryDisplay.from_estimator(nested, by="time")
    assert_allclose(by_time.line_.get_xdata(), [0.5, 1, 1.5, 2])
    display = SearchHistoryDisplay([1.0, 1.1, 1e9, 0.9, 1.2, 1.0]).plot()
    assert display.beyond_.get_xdata().tolist() == [2] and display.ax_.get_ylim()[1] < 3
    assert display.failed_ is None
    assert SearchHistoryDisplay([np.nan, 2.0, 3.0]).plot().line_.get_xdata().tolist() == [1, 2]
    display = SearchHistoryDisplay([2.0, np.nan, 1.0], seconds=[3.0, np.nan, 4.0]).plot(by="time")
    assert display.line_.get_xdata().tolist() == [3, 3, 7]
    # Two on the same axes differ and share a legend.
    first = SearchHistoryDisplay([1.5, 0.5, 1.0], name="one").plot()
    first.ax_.set_xticks([0, 2])
    second = SearchHistoryDisplay([0.75, 0.25, 0.5], name="two").plot(first.ax_)
    assert_allclose(first.line_.get_ydata(), [1.5, 0.5, 0.5])
    assert first.line_.get_color() != second.line_.get_color()
    assert first.line_.get_linestyle() != second.line_.get_linestyle()
    assert [text.get_text() for text in first.ax_.get_legend().get_texts()] == ["one", "two"]


def test_teams_are_drawn_by_what_became_of_them():
    display, teams = TeamDisplay.from_teams(CHOSEN), CHOSEN.teams_.dropna()
    fates = {"alpha": ~teams["alpha"], "kmeans": teams["alpha"] & ~teams["kept"]}
    for fate, rows in {**fates, "kept": teams["kept"]}.items():
        offsets = display.scatters_[fate].get_offsets()
        assert_allclose(offsets, teams.loc[rows, ["hq", "accuracy"]])
    selected = teams[teams["team"] == CHOSEN.selected_].iloc[0]
    assert_allclose(np.ravel(display.selected_.get_data()), [selected["hq"], selected["accuracy"]])
    heights = display.best_.get_ydata()[0], display.average_.get_ydata()[0]
    assert_allclose(heights, [CHOSEN.accuracies_.max(), CHOSEN.accuracies_.mean()])
    display, several = TeamDisplay.from_teams(CHOSEN, size=3), display.colorbar_
    (line,) = display.thresholds_  # It divides teams of one size.
    assert several is not None and display.colorbar_ is None
    kept, pruned = (display.scatters_[fate].get_offsets()[:, 0] for fate in ("kept", "kmeans"))
    assert kept.max() < line.get_xdata()[0] <= pruned.min()
    assert not TeamDisplay.from_teams(CHOSEN, diversity="q").thresholds_
    chosen = select(4, 100, diversity="q", filters=("mean",))
    display = TeamDisplay.from_teams(chosen, diversity="q")
    assert_allclose(display.thresholds_[0].get_xdata(), chosen.teams_["q"].mean())
    assert set(display.scatters_) == {"mean", "kept"}
