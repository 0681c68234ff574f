"""Displays of the progress of searches: scores of trials, and the regret of optimisers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np
from scipy import stats

from skuq._utils._messages import short_repr
from skuq.metrics._checks import check_choice, check_inside_unit
from skuq.plotting._base import (
    BLUE,
    GREY,
    VERMILION,
    Display,
    TrialsDisplay,
    curve_style,
    draw_line,
    legend,
    style,
    upper_fence,
    whole_numbers_below,
    with_unit,
)
from skuq.plotting._catalog import catalog_frame


@dataclass(eq=False, repr=False)
class SearchHistoryDisplay(TrialsDisplay):
    """Score of each trial and the best so far, by trial or by time.

    Failed trials are crosses at the bottom. Scores far above the others, of networks that did not
    learn, are triangles at the upper edge, so that the others can be seen.

    Parameters
    ----------
    scores : array-like of shape (n_trials,)
        Scores, which the search minimises, in the order of trials; NaN for failed trials.
    seconds : array-like of shape (n_trials,), optional
        Duration of each trial.
    score_name : str, default="score"
        Name of the score in labels.

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
        # The status decides: a frame of the user may score failed trials, too.
        scores = frame["score"].where(frame["status"] == "completed").to_numpy(dtype=float)
        seconds = frame["seconds"].to_numpy() if "seconds" in frame else None
        return cls(scores, seconds=seconds, score_name=score_name).plot(ax, **plot_options)

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
        done = np.isfinite(scores)
        if not done.any():
            raise ValueError(f"None of the {len(scores)} trials was completed.")
        if by == "time" and self.seconds is None:
            raise ValueError('`by="time"` needs `seconds` of the trials.')
        x = np.nancumsum(self.seconds) if by == "time" else np.arange(len(scores))
        # Beyond the fence trials are marked at the edge, so that the others can be told apart.
        fence = upper_fence(scores[done])
        within = done & (scores <= fence)
        ax = self._open(ax)
        # Another history on these axes may need more room than this one.
        shared = ax.get_ylim() if ax.has_data() else None
        look = style(
            "points", scatter_kwargs, color=BLUE, s=18, alpha=0.7, linewidth=0, label="trial"
        )
        self.scatter_ = ax.scatter(x[within], scores[within], **look)
        # Failed trials cannot be the best.
        best = np.minimum.accumulate(np.where(done, scores, np.inf))
        begun = np.isfinite(best)
        look = {"color": "black", "drawstyle": "steps-post", "label": "best so far"}
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
            whole_numbers_below(ax)
        legend(ax, headroom=0.2, loc="upper left", ncols=2)
        return self


def _mark(ax, x, height, defaults, label, given):
    """Mark trials at one height, or each at its own height; return None without trials."""
    if not len(x):
        return None
    look = {**defaults, "linestyle": "none", "label": f"{label} ({len(x)})"}
    return draw_line(ax, x, np.broadcast_to(height, len(x)), given, **look)


_INTERVALS = {"median": 0.5, "mean": 0.95}  # default of `interval` for each `average`
_ROUNDING = 1e-9  # share of the optimum by which a value can be better


@dataclass(eq=False, repr=False)
class RegretDisplay(Display):
    """Simple regret, or the best value so far, against the number of evaluations.

    There is one line for each method: the median over seeds with a central interval of the
    seeds, or the mean over seeds with its confidence interval.

    Parameters
    ----------
    curves : dict of str to ndarray of shape (n_seeds, n_evaluations)
        Regret or best value of each method after each evaluation.
    regret : bool, default=True
        Whether the curves are regret, which is never negative and best at 0.
    unit : str, optional
        Unit of the values.

    Attributes
    ----------
    lines_ : list of matplotlib Line2D
    bands_ : list of matplotlib PolyCollection
        Bands of the methods with two or more seeds.
    ax_, figure_ : matplotlib Axes and Figure

    Examples
    --------
    >>> from skuq.plotting import RegretDisplay
    >>> display = RegretDisplay.from_values({"random": [[3.0, 5.0, 2.0]]}, optimum=1.0)
    >>> display.curves["random"].tolist()
    [[2.0, 2.0, 1.0]]
    """

    curves: Any
    _: KW_ONLY
    regret: bool = True
    unit: str | None = None

    @classmethod
    def from_values(
        cls, values, *, optimum=None, maximize=False, unit=None, ax=None, **plot_options
    ):
        """Create a display from the values found, in the order of evaluation.

        Parameters
        ----------
        values : dict of str to array-like of shape (n_evaluations,) or (n_seeds, n_evaluations)
            Values of each method. NaN is an evaluation that failed.
        optimum : float, optional
            The best possible value. If given, regret is drawn, otherwise the best value so
            far.
        maximize : bool, default=False
            Whether large values are good.
        unit : str, optional
            Unit of the values for the label.
        ax : matplotlib Axes, optional
            Axes to draw on; by default new ones.
        **plot_options
            Passed to `plot`.

        Returns
        -------
        RegretDisplay

        Raises
        ------
        TypeError, ValueError
            If `values` has another form, or a value is better than the optimum.
        """
        if not isinstance(values, Mapping) or not values:
            raise TypeError(
                "`values` must be a dict of method to values, such as "
                '{"EI": [result.values for result in results]}. Got '
                f"{short_repr(values)}."
            )
        curves = {}
        for name, given in values.items():
            try:
                runs = np.atleast_2d(np.asarray(given, dtype=float))
            except (TypeError, ValueError) as error:
                raise TypeError(
                    f"Values of {name!r} must be numbers, as many for each seed, such as "
                    f"`result.values` of `maximize`. Got {short_repr(given)}."
                ) from error
            if runs.ndim != 2 or not runs.size:
                raise ValueError(
                    f"Values of {name!r} must have shape (n_seeds, n_evaluations). Got "
                    f"{runs.shape}."
                )
            # fmin and fmax ignore NaN; values before the first success stay NaN.
            curves[name] = (np.fmax if maximize else np.fmin).accumulate(runs, axis=1)
        if optimum is not None:
            sign = -1 if maximize else 1
            curves = {name: sign * (best - optimum) for name, best in curves.items()}
            # An objective computed twice can differ from the optimum by rounding.
            rounding = _ROUNDING * max(1.0, abs(optimum))
            if any((curve < -rounding).any() for curve in curves.values()):
                raise ValueError(
                    f"`values` must not be better than `optimum`. Got a better one than {optimum}."
                )
            curves = {name: np.maximum(curve, 0.0) for name, curve in curves.items()}
        return cls(curves, regret=optimum is not None, unit=unit).plot(ax, **plot_options)

    def plot(
        self,
        ax=None,
        *,
        average="median",
        interval=None,
        log=None,
        line_kwargs=None,
        band_kwargs=None,
    ):
        """Draw the curves.

        Parameters
        ----------
        ax : matplotlib Axes, optional
            Axes to draw on; by default new ones.
        average : {"median", "mean"}, default="median"
            Average over seeds.
        interval : float, optional
            Level of the band. For the median the share of seeds inside, by default 0.5 (from
            the lower to the upper quartile). For the mean the level of its confidence
            interval by Student's t, by default 0.95.
        log : bool, optional
            Whether the vertical axis is logarithmic; by default only for regret.
        line_kwargs, band_kwargs : dict, optional
            Keywords of `Axes.plot` and `Axes.fill_between`.

        Returns
        -------
        RegretDisplay
            Itself.
        """
        check_choice("average", average, tuple(_INTERVALS))
        interval = _INTERVALS[average] if interval is None else interval
        check_inside_unit("interval", interval)
        ax = self._open(ax)
        self.lines_, self.bands_ = [], []
        for name, curve in self.curves.items():
            runs = np.atleast_2d(np.asarray(curve, dtype=float))
            if average == "median":
                levels = [0.5, (1 - interval) / 2, (1 + interval) / 2]
                middle, low, high = np.quantile(runs, levels, axis=0)
            else:
                middle = low = high = runs.mean(axis=0)
                if len(runs) > 1:
                    # Student's t: the standard deviation over few seeds is itself uncertain.
                    quantile = stats.t.ppf((1 + interval) / 2, len(runs) - 1)
                    error = stats.sem(runs, axis=0) * quantile
                    low, high = middle - error, middle + error
            x = np.arange(1, runs.shape[1] + 1)
            look = {**curve_style(ax), "drawstyle": "steps-post", "label": name}
            self.lines_.append(draw_line(ax, x, middle, line_kwargs, **look))
            # One seed has no spread.
            if len(runs) > 1:
                look = style(
                    "area",
                    band_kwargs,
                    color=self.lines_[-1].get_color(),
                    alpha=0.2,
                    linewidth=0,
                    step="post",
                )
                self.bands_.append(ax.fill_between(x, low, high, **look))
        if self.regret if log is None else log:
            # A regret of 0 has no logarithm: the line leaves the axes at the bottom.
            ax.set_yscale("log", nonpositive="clip")
        ax.set(
            xlabel="evaluations",
            ylabel=with_unit("simple regret" if self.regret else "best value so far", self.unit),
        )
        whole_numbers_below(ax)
        # How curves of several seeds are averaged; nothing if each has a single seed.
        counts, title = {len(np.atleast_2d(curve)) for curve in self.curves.values()}, None
        if counts != {1}:
            least, most = min(counts), max(counts)
            seeds = f"{most} seeds" if least == most else f"{least} to {most} seeds"
            title = f"median of {seeds}, band holds {interval:.0%} of them"
            if average == "mean":
                title = f"mean of {seeds}, {interval:.0%} confidence"
        legend(ax, title=title)
        return self
