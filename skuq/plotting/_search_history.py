"""Display of a search's progress: score of each trial, and the best so far."""

from __future__ import annotations

import numpy as np

from skuq.metrics._checks import check_choice
from skuq.plotting._axes import (
    BLUE,
    GREY,
    VERMILION,
    Display,
    legend,
    style,
    upper_fence,
    whole_numbers_below,
)
from skuq.plotting._frames import catalog_frame
from skuq.plotting._predictions import catalog_of


class SearchHistoryDisplay(Display):
    """Score of each trial and the best so far, by trial or by time.

    Failed trials are crosses at the bottom. Discarded trials are rings at their last scores, or at
    the upper edge. Scores far above the others, of networks that did not learn, are triangles at
    the upper edge, so that the others can be seen.

    Parameters
    ----------
    scores : array-like of shape (n_trials,)
        Scores, which the search minimises, in the order of trials; NaN for failed trials.
    seconds : array-like of shape (n_trials,), optional
        Duration of each trial.
    score_name : str, default="score"
        Name of the score in labels.
    discarded : array-like of bool of shape (n_trials,), optional
        Trials that were stopped early, with scores of an unfinished training.

    Attributes
    ----------
    scatter_ : matplotlib PathCollection
        Trials that were completed and are within the axis.
    beyond_, failed_, discarded_ : matplotlib Line2D or None
        Trials with scores beyond the axis, failed ones and discarded ones.
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

    def __init__(self, scores, *, seconds=None, score_name="score", discarded=None):
        self.scores = scores
        self.seconds = seconds
        self.score_name = score_name
        self.discarded = discarded

    @classmethod
    def from_catalog(cls, catalog, *, score_name="score", ax=None, **plot_options):
        """Create a display from a catalog or its frame.

        Parameters
        ----------
        catalog : Catalog or DataFrame
            A frame needs the columns `status`, `score` and, for ``by="time"``, `seconds`.
        score_name : str, default="score"
            Name of the score in labels.
        ax : matplotlib Axes, optional
            Axes to draw on; by default new ones.
        **plot_options
            Passed to `plot`.

        Returns
        -------
        SearchHistoryDisplay
        """
        frame = catalog_frame(catalog)
        discarded = (frame["status"] == "discarded").to_numpy()
        scored = (frame["status"] == "completed") | discarded
        scores = frame["score"].where(scored).to_numpy(dtype=float)
        seconds = frame["seconds"].to_numpy() if "seconds" in frame else None
        options = {"seconds": seconds, "score_name": score_name, "discarded": discarded}
        return cls(scores, **options).plot(ax, **plot_options)

    @classmethod
    def from_estimator(cls, estimator, *, ax=None, **options):
        """Create a display from a fitted estimator with a `catalog_`.

        Parameters
        ----------
        estimator : AutoDEUQRegressor or another with `catalog_`
        ax : matplotlib Axes, optional
            Axes to draw on; by default new ones.
        **options
            Passed to `from_catalog`.

        Returns
        -------
        SearchHistoryDisplay
        """
        return cls.from_catalog(catalog_of(estimator), ax=ax, **options)

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
        scores = np.asarray(self.scores, dtype=float)
        known = np.isfinite(scores)
        discarded = np.zeros(len(scores), bool) if self.discarded is None else self.discarded
        discarded = known & np.asarray(discarded, dtype=bool)
        done = known & ~discarded
        if not done.any():
            raise ValueError(f"None of the {len(scores)} trials was completed.")
        if by == "time" and self.seconds is None:
            raise ValueError('`by="time"` needs `seconds` of the trials.')
        x = np.nancumsum(self.seconds) if by == "time" else np.arange(len(scores))
        fence = upper_fence(scores[done])
        within = done & (scores <= fence)
        ax = self._open(ax)
        shared = ax.get_ylim() if ax.has_data() else None
        defaults = {"color": BLUE, "s": 18, "alpha": 0.7, "linewidth": 0, "label": "trial"}
        self.scatter_ = ax.scatter(
            x[within], scores[within], **style("points", defaults, scatter_kwargs)
        )
        defaults = {
            "color": "black",
            "drawstyle": "steps-post",
            "label": "best so far",
        }
        best = np.minimum.accumulate(np.where(done, scores, np.inf))
        begun = np.isfinite(best)
        (self.line_,) = ax.plot(x[begun], best[begun], **style("line", defaults, line_kwargs))
        low = scores[done].min()
        margin = 0.08 * (fence - low or abs(low) or 1.0)
        look = {"marker": "^", "color": GREY}
        beyond = x[done & ~within]
        self.beyond_ = _mark(ax, beyond, fence + margin, look, f"above {fence:.3g}", None)
        look = {"marker": "x", "color": VERMILION}
        self.failed_ = _mark(ax, x[~known], low - margin, look, "failed", failed_kwargs)
        rings = {"marker": "o", "markersize": 4, "markerfacecolor": "none", "color": GREY}
        heights = np.minimum(scores[discarded], fence + margin)
        self.discarded_ = _mark(ax, x[discarded], heights, rings, "discarded", None)
        ends = [low - 2 * margin, fence + 2 * margin]
        if shared is not None:
            ends = [min(ends[0], shared[0]), max(ends[1], shared[1])]
        ax.set_ylim(ends)
        ax.set(
            xlabel="seconds of trials, added up" if by == "time" else "trial",
            ylabel=f"{self.score_name} (smaller is better)",
        )
        if by == "trial":
            whole_numbers_below(ax)
        legend(ax, headroom=0.2, loc="upper left", ncols=2)
        return self


def _mark(ax, x, height, defaults, label, given):
    """Mark trials at one height, or each at its own height; return None without trials."""
    if not len(x):
        return None
    defaults = {**defaults, "linestyle": "none", "label": f"{label} ({len(x)})"}
    (marks,) = ax.plot(x, np.broadcast_to(height, len(x)), **style("line", defaults, given))
    return marks
