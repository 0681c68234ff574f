"""Helpers of all displays: axes, colours, styles and labels.

The colours are those of Okabe and Ito, which readers with any colour vision can tell apart.
Line styles, markers or hatches repeat the distinction, for print without colour.
"""

from __future__ import annotations

import numpy as np

BLUE, VERMILION, GREY = "#0072B2", "#D55E00", "#666666"
COLOURS = (BLUE, "#E69F00", "#009E73", "#CC79A7", "#56B4E9", VERMILION, "#000000")
LINE_STYLES = ("-", "--", "-.", ":")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")

_CURVE = "skuq-curve"  # gid of the lines that `curve_style` counts


def _pyplot():
    """Import matplotlib's pyplot, or tell how to install it."""
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise ImportError(
            'Displays are drawn with matplotlib. Install it with `pip install "skuq[plot]"`.'
        ) from error
    return plt


class Display:
    """Base class of all displays: the constructor stores the data, `plot` draws them."""

    def _open(self, ax):
        """Return `ax`, or new axes if it is None, and store them as `ax_` and `figure_`."""
        plt = _pyplot()
        if ax is None:
            _, ax = plt.subplots(layout="constrained")
        self.ax_, self.figure_ = ax, ax.figure
        return ax


def style(kind: str, defaults: dict, given: dict | None) -> dict:
    """Merge keywords of the user into the defaults, whatever alias of matplotlib they use.

    `kind` is "line", "area" or "points".
    """
    from matplotlib import cbook, collections, lines

    artist = lines.Line2D if kind == "line" else collections.Collection
    given = cbook.normalize_kwargs(given or {}, artist)
    if kind == "points" and "c" in given:
        defaults = {name: value for name, value in defaults.items() if name != "color"}
    return {**defaults, **given}


def curve_style(ax) -> dict:
    """Choose the colour and line style of the next curve of axes that displays may share."""
    k = sum(line.get_gid() == _CURVE for line in ax.lines)
    return {
        "color": COLOURS[k % len(COLOURS)],
        "linestyle": LINE_STYLES[k % len(LINE_STYLES)],
        "gid": _CURVE,
    }


def legend(ax, *, headroom=0.0, **options):
    """Draw a legend with one entry for each label, however many displays share the axes.

    `headroom` is added above the data, as a share of the axes' height, so that the legend
    covers no data.
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
    # auto=None keeps automatic scaling as it is, so that later displays still extend the axis.
    ax.set_ylim(top=high + headroom * (high - low), auto=None)


def whole_numbers_below(ax) -> None:
    """Restrict the ticks of a linear horizontal axis to whole numbers, as for trials."""
    if ax.get_xscale() == "linear":
        ax.xaxis.get_major_locator().set_params(integer=True)


def from_zero(ax) -> None:
    """Start the vertical axis at 0; its upper end still follows the data."""
    if ax.dataLim.y0 >= 0:  # false if the user drew negative values on the same axes
        ax.set_ylim(bottom=0, auto=True)


def with_unit(name: str, unit: str | None) -> str:
    """Return an axis label, with the unit in parentheses if there is one."""
    return name if unit is None else f"{name} ({unit})"


def with_name(name: str | None, text: str) -> str:
    """Return a text of the legend, preceded by the name of the estimator if there is one."""
    return text if name is None else f"{name}: {text}"


def upper_fence(values: np.ndarray) -> float:
    """Return the upper end of a loss axis: 1.5 interquartile ranges above the upper quartile.

    Without it a network that diverged would squeeze all others into one line.
    """
    low, high = np.quantile(values, [0.25, 0.75])
    return min(values.max(), high + 1.5 * (high - low))
