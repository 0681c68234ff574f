"""Properties of all displays, tested on each of them."""

import sys
from functools import partial

import numpy as np
import pytest
from matplotlib import colors
from matplotlib import pyplot as plt

from skuq import plotting
from skuq.ensembles import select_teams

RNG = np.random.default_rng(0)
Y, STD = RNG.normal(size=30), RNG.uniform(0.5, 2, size=30)
ROWS = Y, Y + 0.5 * RNG.normal(size=30), STD


def _teams():
    right = RNG.random((5, 80)) < 0.7
    y = RNG.integers(0, 2, size=80)
    return select_teams(np.where(right, y, 1 - y), y)


# Each: a function of `ax` and keywords that draws.
DRAW = {
    **{
        name: partial(getattr(plotting, name).from_predictions, *ROWS)
        for name in ("QuantileCalibrationDisplay", "CoverageWidthDisplay", "RetentionDisplay")
    },
    "PredictionBandDisplay": plotting.PredictionBandDisplay(Y, Y, STD, aleatoric=STD / 2).plot,
    "SearchHistoryDisplay": plotting.SearchHistoryDisplay([3.0, np.nan, 2.0]).plot,
    "TeamDisplay": partial(plotting.TeamDisplay.from_teams, _teams()),
}


def test_every_display_is_in_the_suite():
    assert set(DRAW) == {name for name in plotting.__all__ if name.endswith("Display")}


@pytest.mark.parametrize("name", DRAW)
def test_display_draws_on_given_axes_and_opens_no_figure(name):
    figure, (ax, other) = plt.subplots(1, 2)
    display = DRAW[name](ax=ax)
    assert type(display).__name__ == name
    assert display.ax_ is ax
    assert display.figure_ is figure
    assert len(plt.get_fignums()) == 1
    assert not other.has_data()
    figure.canvas.draw()
    with pytest.raises(TypeError, match="`ax` must be an Axes.*Got 3"):
        DRAW[name](ax=3)


@pytest.mark.parametrize("name", DRAW)
def test_display_opens_a_figure_and_labels_it_in_the_users_style(name):
    before = dict(plt.rcParams)
    display = DRAW[name]()
    assert plt.get_fignums() == [display.figure_.number]
    ax = display.ax_
    assert ax.get_xlabel() and ax.get_ylabel()
    assert display.figure_.axes[0] is ax
    assert display.plot() is display
    assert len(plt.get_fignums()) == 2 and dict(plt.rcParams) == before


@pytest.mark.parametrize("name", DRAW)
@pytest.mark.parametrize("width", ["linewidth", "lw"])
def test_keywords_reach_the_artist_under_any_name(name, width):
    keyword = "scatter_kwargs" if name == "TeamDisplay" else "line_kwargs"
    with pytest.raises(TypeError, match=r"must be dicts.*Got 3\."):
        DRAW[name](**{keyword: 3})
    display = DRAW[name](**{keyword: {width: 3.5, "color": "#123456"}})
    found = display.scatters_["kept"] if name == "TeamDisplay" else display.line_
    assert np.ravel(found.get_linewidth())[0] == 3.5
    shown = found.get_color() if hasattr(found, "get_color") else found.get_facecolor()[0]
    assert colors.to_hex(shown) == "#123456"


def test_two_displays_on_the_same_axes_differ_and_share_a_legend():
    draw = DRAW["QuantileCalibrationDisplay"]
    first = draw(name="one")
    second = draw(name="two", ax=first.ax_)
    assert first.line_.get_color() != second.line_.get_color()
    assert first.line_.get_linestyle() != second.line_.get_linestyle()
    texts = [text.get_text() for text in first.ax_.get_legend().get_texts()]
    assert len(texts) == len(set(texts)) == 3  # the diagonal once


def test_missing_matplotlib_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(ImportError, match=r'pip install "skuq\[plot\]"'):
        DRAW["SearchHistoryDisplay"]()
