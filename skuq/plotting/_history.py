"""Display of the progress of searches and optimisers."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np
import pandas as pd
from sklearn.utils import column_or_1d

from skuq._checks import unwrap_estimator
from skuq.metrics._scores import check_choice
from skuq.plotting._display import (
    BLUE,
    GREY,
    VERMILION,
    Display,
    curve_style,
    draw_line,
    legend,
    style,
)


@dataclass(eq=False, repr=False)
class SearchHistoryDisplay(Display):
    """Score of each trial and the best so far, by trial or by time.

    Any sequence of values that a search minimises will do, such as the regret of an optimiser.
    Failed trials are crosses at the bottom. Scores far above the others, of networks that did not
    learn, are triangles at the upper edge, so that the others can be seen.

    Parameters
    ----------
    scores : array-like of shape (n_trials,)
        Scores, of which smaller ones are better, in the order of trials; NaN for failed trials.
        For a search that maximises `values`, give the regret ``optimum - values``.
    seconds : array-like of shape (n_trials,), optional
        Duration of each trial.
    score_name : str, default="score"
        Name of the score in labels.
    name : str, optional
        Name of the search for the legend. Searches with names take turns in colour.

    Attributes
    ----------
    scatter_ : matplotlib PathCollection
        Trials that were completed and are within the axis.
    beyond_, failed_ : matplotlib Line2D or None
        Trials with scores beyond the axis, and failed ones.
    line_ : matplotlib Line2D
        Best so far.
    ax_, figure_ : matplotlib Axes and Figure

    Examples
    --------
    >>> import numpy as np
    >>> from skuq.plotting import SearchHistoryDisplay
    >>> display = SearchHistoryDisplay([3.0, np.nan, 1.0, 2.0]).plot()
    >>> display.line_.get_ydata().tolist()
    [3.0, 3.0, 1.0, 1.0]
    """

    scores: Any
    _: KW_ONLY
    seconds: Any = None
    score_name: str = "score"
    name: str | None = None

    @classmethod
    def from_estimator(cls, estimator, *, ax=None, **options):
        """Create a display from a fitted estimator with a `catalog_`.

        Parameters
        ----------
        estimator : AutoDEUQRegressor or another with `catalog_`
            Fitted estimator, or a pipeline or search with one inside.
        ax : matplotlib Axes, optional
            Axes to draw on; by default new ones.
        **options
            Passed to `from_catalog`.

        Returns
        -------
        SearchHistoryDisplay
        """
        inside, _ = unwrap_estimator(estimator)
        if not hasattr(inside, "catalog_"):
            raise TypeError(
                "The estimator must be fitted and have a `catalog_`, for example "
                f"AutoDEUQRegressor. Got {estimator!r}."
            )
        return cls.from_catalog(inside.catalog_, ax=ax, **options)

    @classmethod
    def from_catalog(cls, catalog, *, score_name="score", name=None, ax=None, **plot_options):
        """Create a display from a catalog or its frame.

        Parameters
        ----------
        catalog : Catalog or DataFrame
            A frame needs the columns `status`, `score` and, for ``by="time"``, `seconds`.
        score_name : str, default="score"
            Name of the score in labels.
        name : str, optional
            Name of the search for the legend.
        ax : matplotlib Axes, optional
            Axes to draw on; by default new ones.
        **plot_options
            Passed to `plot`.

        Returns
        -------
        SearchHistoryDisplay
        """
        frame = catalog if isinstance(catalog, pd.DataFrame) else None
        if frame is None and hasattr(catalog, "to_frame"):
            frame = catalog.to_frame()
        if frame is None:
            raise TypeError(f"`catalog` must be a Catalog or its frame. Got {catalog!r}.")
        # The status decides: a frame of the user may score failed trials, too.
        scores = frame["score"].where(frame["status"] == "completed").to_numpy(dtype=float)
        seconds = frame["seconds"].to_numpy() if "seconds" in frame else None
        display = cls(scores, seconds=seconds, score_name=score_name, name=name)
        return display.plot(ax, **plot_options)

    def plot(
        self, ax=None, *, by="trial", scatter_kwargs=None, line_kwargs=None, failed_kwargs=None
    ):
        """Draw the history.

        Parameters
        ----------
        ax : matplotlib Axes, optional
            Axes to draw on; by default new ones.
        by : {"trial", "time"}, default="trial"
            The horizontal axis: the number of the trial, or the sum of the seconds of all
            trials up to it (for parallel trials more than the time that passed).
        scatter_kwargs : dict, optional
            Keywords of `Axes.scatter`, for the trials.
        line_kwargs, failed_kwargs : dict, optional
            Keywords of `Axes.plot`.

        Returns
        -------
        SearchHistoryDisplay
            Itself.

        Raises
        ------
        ValueError
            If no trial was completed, or there are no times to draw by.
        """
        check_choice("by", by, ("trial", "time"))
        scores = column_or_1d(self.scores, dtype=float)
        done = np.isfinite(scores)
        if not done.any():
            raise ValueError(f"None of the {len(scores)} trials was completed.")
        if by == "time" and self.seconds is None:
            raise ValueError('`by="time"` needs `seconds` of the trials.')
        x = np.nancumsum(self.seconds) if by == "time" else np.arange(len(scores))
        # Trials above the upper quartile by 1.5 interquartile ranges are marked at the edge.
        # Otherwise a network that diverged would squeeze all others into one line.
        lower, upper = np.quantile(scores[done], [0.25, 0.75])
        fence = min(scores[done].max(), upper + 1.5 * (upper - lower))
        within = done & (scores <= fence)
        ax = self._open(ax)
        # Another history on these axes may need more room than this one.
        shared = ax.get_ylim() if ax.has_data() else None
        look = {"color": "black", "label": "best so far"}
        points = {"color": BLUE, "label": "trial"}
        if self.name is not None:
            look = {**curve_style(ax), "label": self.name}
            points = {"color": look["color"]}
        points = style("points", scatter_kwargs, s=18, alpha=0.7, linewidth=0, **points)
        self.scatter_ = ax.scatter(x[within], scores[within], **points)
        best = np.minimum.accumulate(np.where(done, scores, np.inf))
        begun = np.isfinite(best)
        look["drawstyle"] = "steps-post"
        self.line_ = draw_line(ax, x[begun], best[begun], line_kwargs, **look)
        # Marks of failed trials lie below all scores, and those beyond the fence above it.
        low = scores[done].min()
        margin = 0.08 * (fence - low or abs(low) or 1.0)
        look = {"marker": "^", "color": GREY}
        beyond = x[done & ~within]
        self.beyond_ = _mark(ax, beyond, fence + margin, look, f"above {fence:.3g}", None)
        look = {"marker": "x", "color": VERMILION}
        self.failed_ = _mark(ax, x[~done], low - margin, look, "failed", failed_kwargs)
        ends = [low - 2 * margin, fence + 2 * margin]
        if shared is not None:
            ends = [min(ends[0], shared[0]), max(ends[1], shared[1])]
        ax.set_ylim(ends)
        ax.set(
            xlabel="seconds of trials, added up" if by == "time" else "trial",
            ylabel=f"{self.score_name} (smaller is better)",
        )
        if by == "trial":
            ax.xaxis.get_major_locator().set_params(integer=True)
        legend(ax, headroom=0.2, loc="upper left", ncols=2)
        return self


def _mark(ax, x, height, defaults, label, given):
    """Mark trials at one height; return None without trials."""
    if not len(x):
        return None
    look = {**defaults, "linestyle": "none", "label": f"{label} ({len(x)})"}
    return draw_line(ax, x, np.full(len(x), height), given, **look)
