"""Helpers of all displays: axes, colours, styles and labels.

Colours are those of Okabe and Ito, which readers with any colour vision tell apart; line
styles, markers or hatches say the same once more, for print without colour.
"""

from __future__ import annotations

import numpy as np

BLUE, VERMILION, GREY = "#0072B2", "#D55E00", "#666666"
COLOURS = (BLUE, "#E69F00", "#009E73", "#CC79A7", "#56B4E9", VERMILION, "#000000")
LINE_STYLES = ("-", "--", "-.", ":")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")

_CURVE = "skuq-curve"  # marks the lines that take turns in colour and style


def _pyplot():
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise ImportError(
            'Displays are drawn with matplotlib. Install it with `pip install "skuq[plot]"`.'
        ) from error
    return plt


class Display:
    """A picture: data first, drawn by `plot`."""

    def _open(self, ax):
        """The axes to draw on, new ones if there are none; kept as `ax_` and `figure_`."""
        plt = _pyplot()
        if ax is None:
            _, ax = plt.subplots(layout="constrained")
        self.ax_, self.figure_ = ax, ax.figure
        return ax


def style(kind: str, defaults: dict, given: dict | None) -> dict:
    """Defaults overridden by what is given, under any of matplotlib's names for it.

    `kind` is "line", "area" or "points".
    """
    from matplotlib import cbook, collections, lines

    artist = lines.Line2D if kind == "line" else collections.Collection
    given = cbook.normalize_kwargs(given or {}, artist)
    if kind == "points" and "c" in given:
        defaults = {name: value for name, value in defaults.items() if name != "color"}
    return {**defaults, **given}


def curve_style(ax) -> dict:
    """Colour and line style of the next curve: several displays may share the same axes."""
    k = sum(line.get_gid() == _CURVE for line in ax.lines)
    return {
        "color": COLOURS[k % len(COLOURS)],
        "linestyle": LINE_STYLES[k % len(LINE_STYLES)],
        "gid": _CURVE,
    }


def legend(ax, *, headroom=0.0, **options):
    """A legend that says everything once, however many displays were drawn.

    `headroom` is a share of the axes' height to add above the data, for the legend to
    hide nothing.
    """
    handles = {}
    for handle, label in zip(*ax.get_legend_handles_labels()):
        handles.setdefault(label, handle)
    if handles:
        look = {
            "fontsize": "small",
            "title_fontsize": "small",
            "alignment": "left",
            "framealpha": 0.95,
        }
        ax.legend(handles.values(), handles.keys(), **{**look, **options})
    low, high = ax.get_ylim()
    # Without a say on scaling: what is drawn later must find room too.
    ax.set_ylim(top=high + headroom * (high - low), auto=None)


def whole_numbers_below(ax) -> None:
    """Whole numbers only below a linear axis of trials or evaluations."""
    if ax.get_xscale() == "linear":
        ax.xaxis.get_major_locator().set_params(integer=True)


def from_zero(ax) -> None:
    """Begin the vertical axis at 0, and leave its end to what is drawn, also later."""
    if ax.dataLim.y0 >= 0:  # not if somebody else drew below on the same axes
        ax.set_ylim(bottom=0, auto=True)


def with_unit(name: str, unit: str | None) -> str:
    """An axis label."""
    return name if unit is None else f"{name} ({unit})"


def with_name(name: str | None, text: str) -> str:
    """A legend's text, led by the name of what is shown."""
    return text if name is None else f"{name}: {text}"


def upper_fence(values: np.ndarray) -> float:
    """Upper end of the axis of a loss: 1.5 interquartile ranges above the upper quartile.

    A network that diverged would squeeze all others into one line.
    """
    low, high = np.quantile(values, [0.25, 0.75])
    return min(values.max(), high + 1.5 * (high - low))
