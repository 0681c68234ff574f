"""Displays of what was tried: the trials of searches and optimisers, and the teams of a pool."""

import contextlib
from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np
import pandas as pd
from sklearn.utils import column_or_1d

from skuq._formulas import QUARTILES
from skuq._params import unwrap_estimator
from skuq.metrics._scores import check_choice
from skuq.plotting import _display


@dataclass(eq=False, repr=False)
class SearchHistoryDisplay(_display.Display):
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
        if not isinstance(catalog, pd.DataFrame) and not hasattr(catalog, "to_frame"):
            raise TypeError(f"`catalog` must be a Catalog or its frame. Got {catalog!r}.")
        frame = catalog if isinstance(catalog, pd.DataFrame) else catalog.to_frame()
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
        # Trials above Tukey's fence, as in box plots, are marked at the edge. Otherwise a network
        # that diverged would squeeze all others into one line.
        lower, _, upper = np.quantile(scores[done], QUARTILES)
        fence = min(scores[done].max(), upper + 1.5 * (upper - lower))
        within, ax = done & (scores <= fence), self._open(ax)
        # Another history on these axes may need more room than this one.
        shared = ax.get_ylim() if ax.has_data() else None
        look = {"color": "black", "label": "best so far"}
        points = {"color": _display.BLUE, "label": "trial"}
        if self.name is not None:
            look = {**_display.curve_style(ax), "label": self.name}
            points = {"color": look["color"]}
        points = _display.style(
            "points", scatter_kwargs, s=_display.Sizes.point_area, alpha=0.7, linewidth=0, **points
        )
        self.scatter_ = ax.scatter(x[within], scores[within], **points)
        best = np.minimum.accumulate(np.where(done, scores, np.inf))
        begun = np.isfinite(best)
        look["drawstyle"] = "steps-post"
        self.line_ = _display.draw_line(ax, x[begun], best[begun], line_kwargs, **look)
        # Marks of failed trials lie below all scores, and those beyond the fence above it.
        to_axis = ax.yaxis.get_transform()  # the axis may be logarithmic
        low, high = to_axis.transform([scores[done].min(), fence])
        margin = 0.08 * (high - low or abs(low) or 1.0)
        marks = [low - margin, high + margin, low - 2 * margin, high + 2 * margin]
        under, over, *ends = to_axis.inverted().transform(marks)
        look = {"marker": "^", "color": _display.GREY}
        beyond = x[done & ~within]
        self.beyond_ = _mark(ax, beyond, over, look, f"above {fence:.3g}", None)
        look = {"marker": "x", "color": _display.VERMILION}
        self.failed_ = _mark(ax, x[~done], under, look, "failed", failed_kwargs)
        if shared is not None:
            ends = [min(ends[0], shared[0]), max(ends[1], shared[1])]
        # Room for the marks at both edges.
        ax.set_ylim(ends)
        ax.set(
            xlabel="seconds of trials, added up" if by == "time" else "trial",
            ylabel=f"{self.score_name} (smaller is better)",
        )
        if by == "trial":
            with contextlib.suppress(TypeError):  # axes of the user's with ticks of their own
                ax.xaxis.get_major_locator().set_params(integer=True)
        _display.legend(ax, headroom=0.2, loc="upper left", ncols=2)
        return self


def _mark(ax, x, height, defaults, label, given):
    if not len(x):
        return None
    look = {**defaults, "linestyle": "none", "label": f"{label} ({len(x)})"}
    return _display.draw_line(ax, x, np.full(len(x), height), given, **look)


_REFERENCE = {"linewidth": _display.Sizes.reference, "zorder": 1}
_MARKS = {
    "alpha": {"marker": "x", "label": "pruned by alpha"},
    "kmeans": {"marker": "+", "label": "pruned by K-means"},
    "mean": {"marker": "1", "label": "pruned by mean"},
    "kept": {"marker": "o", "label": "kept"},
}


@dataclass(eq=False, repr=False)
class TeamDisplay(_display.Display):
    """Accuracy of teams against their diversity score, as in the figures of the HQ paper.

    There is one mark for each team; its colour is the size of the team. Dots are kept teams.
    Upright crosses were pruned by the K-means filter, three-armed ones by the mean filter, and
    diagonal ones by the alpha filter. The star is the team that predicts. Low scores, on the left,
    are diverse. Vertical dashed lines are the thresholds of the filters, horizontal lines the
    accuracies of the best and of the average single model.

    Parameters
    ----------
    teams : DataFrame
        `teams_` of a `skuq.ensembles.TeamSelection`. Teams that were never scored are not
        drawn.
    accuracies : array-like of shape (n_models,), optional
        Accuracies of the single models.
    selected : tuple of int, optional
        Members of the team that predicts.
    thresholds : tuple of (filter, score, size, value), optional
        Thresholds of the filters: `thresholds_` of a `skuq.ensembles.TeamSelection`.

    Attributes
    ----------
    scatters_ : dict of str to matplotlib PathCollection
        Marks of the teams that were "kept" or pruned by the filters "alpha", "kmeans" and
        "mean".
    selected_ : matplotlib Line2D or None
        The star of the team that predicts.
    thresholds_ : list of matplotlib Line2D
        One line for each size for K-means, one for the mean filter.
    best_, average_ : matplotlib Line2D or None
        Lines at the accuracies of the single models.
    colorbar_ : matplotlib Colorbar or None
        Colours of the sizes, if there are several.
    ax_, figure_ : matplotlib Axes and Figure

    References
    ----------
    "Deep ensembles with hierarchical diversity pruning", Figures 1 to 3.

    Examples
    --------
    >>> import numpy as np
    >>> from skuq.ensembles import select_teams
    >>> from skuq.plotting import TeamDisplay
    >>> rng = np.random.default_rng(0)
    >>> y = rng.integers(0, 2, size=60)
    >>> labels = np.where(rng.random((5, 60)) < 0.3, 1 - y, y)
    >>> display = TeamDisplay.from_teams(select_teams(labels, y), size=3)
    """

    teams: Any
    _: KW_ONLY
    accuracies: Any = None
    selected: Any = None
    thresholds: Any = ()

    @classmethod
    def from_teams(cls, teams, *, ax=None, **plot_options):
        """Create a display from a selection of teams.

        Parameters
        ----------
        teams : HQEnsembleSelector or TeamSelection
            A fitted selector, or a selection.
        ax : matplotlib Axes, optional
            Axes to draw on; by default new ones.
        **plot_options
            Passed to `plot`.

        Returns
        -------
        TeamDisplay
        """
        if not hasattr(teams, "teams_"):
            raise TypeError(
                f"`teams` must be a fitted HQEnsembleSelector or a TeamSelection. Got {teams!r}."
            )
        display = cls(
            teams.teams_,
            accuracies=teams.accuracies_,
            selected=teams.selected_,
            thresholds=teams.thresholds_,
        )
        return display.plot(ax, **plot_options)

    def plot(
        self, ax=None, *, size=None, diversity="hq", scatter_kwargs=None, selected_kwargs=None
    ):
        """Draw each team by its diversity and accuracy.

        Parameters
        ----------
        ax : matplotlib Axes, optional
            Axes to draw on; by default new ones.
        size : int, optional
            Size of the teams to draw; by default all sizes.
        diversity : {"hq", "q"}, default="hq"
            Diversity score of the horizontal axis.
        scatter_kwargs : dict, optional
            Keywords of `Axes.scatter`, for the teams.
        selected_kwargs : dict, optional
            Keywords of `Axes.plot`, for the team that predicts.

        Returns
        -------
        TeamDisplay
            Itself.

        Raises
        ------
        ValueError
            If no team of this size was scored.
        """
        check_choice("diversity", diversity, ("hq", "q"))
        teams = self.teams if size is None else self.teams[self.teams["size"] == size]
        scored = teams.dropna(subset=[diversity, "accuracy"])
        if not len(scored):
            sizes = sorted(set(self.teams.dropna(subset=["accuracy"])["size"]))
            raise ValueError(f"No team of size {size} was scored. There are sizes {sizes}.")
        from matplotlib.cm import ScalarMappable
        from matplotlib.colors import Normalize

        ax, sizes = self._open(ax), sorted(set(scored["size"]))
        # Larger teams are darker. No team has the end of the scale, a yellow that is hard to see.
        shades = ScalarMappable(Normalize(sizes[0] - 1, sizes[-1]), "viridis_r")
        # A reason begins with the name of the filter that pruned the team.
        outcomes = np.where(scored["kept"], "kept", scored["reason"].str.split(":").str[0])
        self.scatters_ = {}
        for outcome, marks in _MARKS.items():
            if len(drawn := scored[outcomes == outcome]):
                look = {"s": _display.Sizes.team_area, "alpha": 0.85, **marks}
                look["label"] = f"{look['label']} ({len(drawn)})"
                look["color"] = shades.to_rgba(drawn["size"])
                look = _display.style("points", scatter_kwargs, **look)
                self.scatters_[outcome] = ax.scatter(drawn[diversity], drawn["accuracy"], **look)
        self.thresholds_ = []
        for name, of, n, value in self.thresholds:
            # A threshold of the other score, or of a size that is not drawn, has no place here.
            if of == diversity and n in (None, *sizes):
                look = {"color": "black" if n is None else shades.to_rgba(n), "linestyle": "--"}
                look["label"] = f"{name.replace('kmeans', 'K-means')} threshold"
                self.thresholds_.append(ax.axvline(value, **_REFERENCE, **look))
        self.best_ = self.average_ = self.selected_ = None
        if self.accuracies is not None:
            best = {"color": _display.VERMILION, "linestyle": "-.", "label": "best single model"}
            average = {"color": "black", "linestyle": ":", "label": "average single model"}
            self.best_ = ax.axhline(np.max(self.accuracies), **best, **_REFERENCE)
            self.average_ = ax.axhline(np.mean(self.accuracies), **average, **_REFERENCE)
        # Teams are tuples, which pandas would compare element by element.
        here = scored[[team == self.selected for team in scored["team"]]]
        if len(here):  # the team that predicts is among the drawn teams
            self.selected_ = _display.draw_line(
                ax,
                here[diversity],
                here["accuracy"],
                selected_kwargs,
                marker="*",
                markersize=_display.Sizes.star,
                color=_display.VERMILION,
                markeredgecolor="black",
                linestyle="none",
                zorder=_display.Sizes.star_layer,
                label="selected",
            )
        self.colorbar_ = None
        if len(sizes) > 1:
            bar = {"ticks": sizes, "label": "team size"}
            self.colorbar_ = ax.figure.colorbar(shades, ax=ax, **bar)
        ax.set(
            xlabel=f"{diversity.upper()} score (low is diverse)",
            ylabel="accuracy of team" if size is None else f"accuracy of teams of {size}",
        )
        # Remove the ticks of the headroom at the legend: no accuracy is above 1.
        low, high = ax.get_ylim()
        ax.set_yticks([tick for tick in ax.get_yticks() if low <= tick <= high])
        title = f"{len(scored)} of {len(teams)} teams scored"
        _display.legend(ax, headroom=0.5, loc="upper left", ncols=2, title=title)
        return self
