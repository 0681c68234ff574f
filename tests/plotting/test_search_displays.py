"""Displays of searches and teams."""

from types import SimpleNamespace

import numpy as np
import pytest
from numpy.testing import assert_allclose
from tiers import cases

from skuq.ensembles import select_teams
from skuq.plotting import SearchHistoryDisplay, TeamDisplay
from skuq.search import Catalog, TrialRecord


def make_catalog(n=30):
    """Trials with random scores; two failed."""
    rng = np.random.default_rng(0)
    records = []
    for k in range(n):
        failed = {"status": "failed", "message": "no"}
        outcome = failed if k in (1, 7) else {"score": rng.random()}
        member = SimpleNamespace(n_epochs=1, best_epoch=0)
        records.append(TrialRecord(k, {"units": k}, seconds=0.5, result=member, **outcome))
    return Catalog(records)


def test_search_history_by_trial_and_time():
    catalog = make_catalog()
    frame = catalog.to_frame()
    display = SearchHistoryDisplay.from_catalog(catalog)
    best = frame["score"].fillna(np.inf).cummin()
    assert_allclose(display.line_.get_ydata(), best)
    assert display.failed_.get_xdata().tolist() == [1, 7]
    done = frame["score"].notna()
    n_shown = len(display.scatter_.get_offsets())
    n_beyond = 0 if display.beyond_ is None else len(display.beyond_.get_xdata())
    assert n_shown + n_beyond == done.sum()
    by_time = SearchHistoryDisplay.from_estimator(SimpleNamespace(catalog_=catalog), by="time")
    assert_allclose(by_time.line_.get_xdata(), 0.5 * np.arange(1, 31))


def test_search_history_of_outliers_and_failures():
    display = SearchHistoryDisplay([1.0, 1.1, 1e9, 0.9, 1.2, 1.0]).plot()
    assert display.beyond_.get_xdata().tolist() == [2]
    assert display.ax_.get_ylim()[1] < 3
    assert display.failed_ is None
    display = SearchHistoryDisplay([np.nan, 2.0, 3.0]).plot()
    assert display.line_.get_xdata().tolist() == [1, 2]
    display = SearchHistoryDisplay([2.0, np.nan, 1.0], seconds=[3.0, np.nan, 4.0]).plot(by="time")
    assert display.line_.get_xdata().tolist() == [3, 3, 7]


@pytest.fixture(scope="module")
def chosen():
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, size=300)
    right = rng.random((6, 300)) < np.linspace(0.65, 0.8, 6)[:, None]
    return select_teams(np.where(right, y, 1 - y), y)


def _offsets(scatter):
    return np.asarray(scatter.get_offsets())


def test_teams_are_drawn_by_what_became_of_them(chosen):
    display = TeamDisplay.from_teams(chosen)
    teams = chosen.teams_.dropna()
    fates = {"alpha": ~teams["alpha"], "kmeans": teams["alpha"] & ~teams["kept"]}
    for fate, rows in {**fates, "kept": teams["kept"]}.items():
        scatter = display.scatters_[fate]
        assert_allclose(_offsets(scatter), teams.loc[rows, ["hq", "accuracy"]])
    selected = teams[teams["team"] == chosen.selected_].iloc[0]
    assert_allclose(np.ravel(display.selected_.get_data()), [selected["hq"], selected["accuracy"]])
    assert_allclose(display.best_.get_ydata(), chosen.accuracies_.max())
    assert_allclose(display.average_.get_ydata(), chosen.accuracies_.mean())
    assert display.colorbar_ is not None


def test_threshold_divides_teams_of_one_size(chosen):
    display = TeamDisplay.from_teams(chosen, size=3)
    (line,) = display.thresholds_
    at = line.get_xdata()[0]
    assert (_offsets(display.scatters_["kept"])[:, 0] < at).all()
    assert (_offsets(display.scatters_["kmeans"])[:, 0] >= at).all()
    assert display.colorbar_ is None
    assert not TeamDisplay.from_teams(chosen, size=3, score="q").thresholds_


def test_teams_by_q_with_the_mean_as_the_threshold(rng):
    y = rng.integers(0, 2, size=100)
    labels = np.where(rng.random((4, 100)) < 0.7, y, 1 - y)
    chosen = select_teams(labels, y, score="q", filters=("mean",))
    display = TeamDisplay.from_teams(chosen, score="q")
    (line,) = display.thresholds_
    assert_allclose(line.get_xdata(), chosen.teams_["q"].mean(), rtol=1e-3)
    assert set(display.scatters_) == {"mean", "kept"}


def test_search_history_of_regret_by_name():
    regret = 2.0 - np.array([0.5, 1.5, 1.0])
    first = SearchHistoryDisplay(regret, score_name="regret", name="one").plot()
    second = SearchHistoryDisplay(list(regret / 2), name="two").plot(first.ax_)
    assert_allclose(first.line_.get_ydata(), [1.5, 0.5, 0.5])
    assert first.line_.get_color() != second.line_.get_color()
    assert [text.get_text() for text in first.ax_.get_legend().get_texts()] == ["one", "two"]


@cases(
    ("draw", "error", "message"),
    (lambda c: SearchHistoryDisplay([np.nan]).plot(), ValueError, "None of the 1 trials was comp"),
    (lambda c: SearchHistoryDisplay([1.0]).plot(by="time"), ValueError, "seconds"),
    (lambda c: SearchHistoryDisplay([1.0]).plot(by="hour"), ValueError, "`by` must be one of"),
    (lambda c: SearchHistoryDisplay.from_catalog([1]), TypeError, "Catalog or its frame"),
    (lambda c: SearchHistoryDisplay.from_estimator(c), TypeError, "have a `catalog_`"),
    (lambda c: TeamDisplay.from_teams(c, size=9), ValueError, "No team of size 9"),
    (lambda c: TeamDisplay.from_teams(c, score="x"), ValueError, "`score` must be one of"),
    (lambda c: TeamDisplay.from_teams([1]), TypeError, "TeamSelection"),
)
def test_search_displays_say_what_is_wrong(chosen, draw, error, message):
    with pytest.raises(error, match=message):
        draw(chosen)


def test_the_catalog_of_searches_in_one_another():
    inner = SimpleNamespace(catalog_=make_catalog())
    outer = SimpleNamespace(best_estimator_=SimpleNamespace(best_estimator_=inner))
    display = SearchHistoryDisplay.from_estimator(outer)
    assert len(display.scores) == len(make_catalog())
