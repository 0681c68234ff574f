"""Tools of all displays: axes, colours, styles and labels, and checked predictions.

The colours are those of Okabe and Ito, which readers with any colour vision can tell apart.
Line styles repeat the distinction, for print without colour.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from skuq._params import as_floats, classifies, reshape_like_prediction, unwrap_estimator
from skuq.metrics._scorers import Predicted
from skuq.metrics._scores import check_same_shape

BLUE, VERMILION, GREY = "#0072B2", "#D55E00", "#666666"
COLOURS = (BLUE, "#E69F00", "#009E73", "#CC79A7", "#56B4E9", VERMILION, "#000000")
# One style for each colour, so that curves differ in print as well.
LINE_STYLES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1, 1, 1)), (0, (1, 1)))


class Sizes:
    """Widths of lines, sizes of marks and their areas, in points, and the layers of artists."""

    edge: float = 0.8  # of bands and of hollow marks
    reference: float = 1.2
    line: float = 1.5
    rim: float = 0.6  # around points, to tell them from what lies below
    point_area: float = 18
    team_area: float = 26
    star: float = 16
    # Points lie above lines, and the star above all.
    points_layer: int = 3
    star_layer: int = 4


_CURVE = "skuq-curve"  # gid of the lines that `curve_style` counts


class Display:
    """Base class of all displays: the constructor stores the data, `plot` draws them."""

    def _open(self, ax):
        """Return `ax`, or new axes if it is None, and store them as `ax_` and `figure_`."""
        try:
            import matplotlib.pyplot as plt
            from matplotlib.axes import Axes
        except ImportError as error:
            raise ImportError(
                'Displays are drawn with matplotlib. Install it with `pip install "skuq[plot]"`.'
            ) from error
        if ax is None:
            _, ax = plt.subplots(layout="constrained")
        elif not isinstance(ax, Axes):
            raise TypeError(f"`ax` must be an Axes of matplotlib or None. Got {ax!r}.")
        self.ax_, self.figure_ = ax, ax.figure
        return ax


class CurveDisplay(Display):
    """Base of displays of one curve for each estimator, which can share their axes.

    A subclass has the attribute `name`, and `from_predictions` with the keywords `name` and `ax`.
    `_read_estimator` returns the other arguments of the latter.
    """

    @classmethod
    def from_estimator(cls, estimator, X, y, *, name=None, ax=None, **options):
        """Predict with a fitted estimator, and draw.

        Parameters
        ----------
        estimator : fitted estimator
            What it must have is said by the class.
        X : array-like of shape (n_samples, n_features)
        y : array-like of shape (n_samples,)
            Targets.
        name : str, optional
            Name for the legend; the estimator's class by default.
        ax : matplotlib Axes, optional
            Axes to draw on; by default new ones.
        **options
            Passed to `from_predictions`.

        Returns
        -------
        Display
            Instance of this class.
        """
        name = type(estimator).__name__ if name is None else name
        read = cls._read_estimator(estimator, X, y)
        return cls.from_predictions(**read, name=name, ax=ax, **options)

    @staticmethod
    def _read_estimator(estimator, X, y) -> dict:
        """Predict with an estimator of normals; return arguments of `from_predictions`."""
        mean, std = predictions_of(estimator, X).normal
        return {"y": reshape_like_prediction(y, mean), "mean": mean, "std": std}

    def _draw_curve(self, ax, x, y, given, summary):
        """Draw the curve in the next colour of the axes, named by the estimator and a summary."""
        label = summary if self.name is None else f"{self.name}: {summary}"
        self.line_ = draw_line(ax, x, y, given, **curve_style(ax), label=label)


def style(kind: str, given: Mapping | None, /, **defaults: Any) -> dict:
    """Merge given keywords of the user into the defaults, whatever alias of matplotlib they use.

    `kind` is "line", "area" or "points".
    """
    from matplotlib import cbook, collections, lines

    if not isinstance(given, Mapping | None):
        raise TypeError(
            "Arguments named `.._kwargs` must be dicts of matplotlib's keywords, such as "
            f'dict(color="red"), or None. Got {given!r}.'
        )
    # The user may write "lw" or "linewidth": both must replace the same default.
    artist = lines.Line2D if kind == "line" else collections.Collection
    given = cbook.normalize_kwargs(dict(given or {}), artist)
    # Matplotlib refuses "c" together with "color", and they are no aliases.
    if kind == "points" and "c" in given:
        defaults.pop("color", None)
    return {**defaults, **given}


def draw_line(ax, x, y, given: dict | None, **look: Any) -> Any:
    """Draw a line with this look, apart from what the user gives."""
    (line,) = ax.plot(x, y, **style("line", given, **look))
    return line


def curve_style(ax) -> dict:
    """Choose the colour and line style of the next curve of axes that displays may share."""
    # The axes' own colour cycle would also count reference lines and lines of the user.
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
    # Displays on shared axes all draw their reference lines: keep one entry for each label.
    handles = {}
    for handle, label in zip(*ax.get_legend_handles_labels()):
        handles.setdefault(label, handle)
    if handles:
        look = {"fontsize": "small", "title_fontsize": "small", "alignment": "left"}
        ax.legend(handles.values(), handles.keys(), framealpha=0.95, **{**look, **options})
    low, high = ax.get_ylim()
    # auto=None keeps automatic scaling as it is, so that later displays still extend the axis.
    ax.set_ylim(top=high + headroom * (high - low), auto=None)


def check_rows(**arrays) -> list[np.ndarray]:
    """Check finite arrays of the same shape (n_samples,); one named `std` must be positive.

    Columns (n_samples, 1), which regressors predict if y was one, become arrays (n_samples,).
    """
    # Targets and predictions may disagree about an axis of length 1.
    floats = {name: as_floats(values, name) for name, values in arrays.items()}
    rows = {name: v[:, 0] if v.shape[1:] == (1,) else v for name, v in floats.items()}
    return check_same_shape(one_output=True, **rows)


def predictions_of(estimator, X, y=None) -> Predicted:
    """Predict with a fitted regressor, also inside of a search; raise TypeError for classifiers.

    `normal` of the result is the mean and standard deviation, and ``pit()`` the probability
    integral transform of `y`. A regressor without `predict_distribution` is taken to predict
    normals.
    """
    # Searches, and pipelines under metadata routing, do not pass on `return_std`.
    estimator, X = unwrap_estimator(estimator, X)
    if classifies(estimator):
        raise TypeError(f"A regressor is needed. Got the classifier {estimator!r}.")
    return Predicted(estimator, X, y)
