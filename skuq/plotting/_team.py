"""Teams of a pool: how accurate, how diverse, and which were kept."""

from __future__ import annotations

import numpy as np
import pandas as pd

from skuq.metrics._checks import check_choice
from skuq.plotting._axes import BLUE, VERMILION, Display, legend, style

_ONE_SIZE = BLUE
_TITLES = {"kmeans": "K-means", "mean": "mean"}
_LOOKS = {
    "alpha": {"marker": "x", "label": "pruned by alpha"},
    "kmeans": {"marker": "o", "facecolor": "none", "label": "pruned by K-means"},
    "mean": {"marker": "s", "facecolor": "none", "label": "pruned by mean"},
    "kept": {"marker": "o", "label": "kept"},
}


class TeamDisplay(Display):
    """Accuracy of teams against their diversity score, as in the figures of the HQ paper.

    One mark a team, its size by colour. Filled: kept; hollow: pruned by the K-means filter
    (circles) or the mean filter (squares); a cross: pruned by the alpha filter. The star is
    the team that is served.
    Low scores, on the left, are diverse. A vertical dashed line is where a filter cut;
    horizontal lines are the best and the average single model.

    Parameters
    ----------
    teams : DataFrame
        `teams_` of a `skuq.ensembles.TeamSelection`. Teams that were never scored are
        left out.
    accuracies : array-like of shape (n_models,), optional
        Accuracies of the single models.
    selected : tuple of int, optional
        The team that is served.
    thresholds : tuple of (filter, score, size, value), optional
        Where filters cut: `thresholds_` of a `skuq.ensembles.TeamSelection`.

    Attributes
    ----------
    scatters_ : dict of str to matplotlib PathCollection
        Teams by what became of them: "kept", or the filter that pruned them, "alpha",
        "kmeans" or "mean".
    served_ : matplotlib Line2D or None
    thresholds_ : list of matplotlib Line2D
        One a size for K-means, one for the mean.
    best_, average_ : matplotlib Line2D or None
        Lines at the accuracies of the single models.
    colorbar_ : matplotlib Colorbar or None
        Sizes, if there are several.
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

    def __init__(self, teams, *, accuracies=None, selected=None, thresholds=()):
        self.teams = teams
        self.accuracies = accuracies
        self.selected = selected
        self.thresholds = thresholds

    @classmethod
    def from_teams(cls, teams, *, ax=None, **plot_options):
        """Create a display from a selection of teams.

        Parameters
        ----------
        teams : HQEnsembleSelector, TeamSelection or DataFrame
            Fitted; or the `teams_` of either, without the marks for single models, the
            team served and thresholds.
        ax : matplotlib Axes, optional
        **plot_options
            Passed to `plot`.

        Returns
        -------
        TeamDisplay
        """
        if isinstance(teams, pd.DataFrame):
            return cls(teams).plot(ax, **plot_options)
        if not hasattr(teams, "teams_"):
            raise TypeError(
                "`teams` must be a fitted HQEnsembleSelector, a TeamSelection or its frame "
                f"`teams_`. Got {teams!r}."
            )
        display = cls(
            teams.teams_,
            accuracies=teams.accuracies_,
            selected=teams.selected_,
            thresholds=teams.thresholds_,
        )
        return display.plot(ax, **plot_options)

    @classmethod
    def from_estimator(cls, estimator, *, ax=None, **plot_options):
        """The same as `from_teams`, under the name that other displays have.

        Parameters
        ----------
        estimator : HQEnsembleSelector
            Fitted.
        ax : matplotlib Axes, optional
        **plot_options
            Passed to `plot`.

        Returns
        -------
        TeamDisplay
        """
        return cls.from_teams(estimator, ax=ax, **plot_options)

    def plot(
        self,
        ax=None,
        *,
        size=None,
        score="hq",
        scatter_kwargs=None,
        served_kwargs=None,
        threshold_kwargs=None,
        reference_kwargs=None,
    ):
        """Draw the teams.

        Parameters
        ----------
        ax : matplotlib Axes, optional
            New ones by default.
        size : int, optional
            Teams of this size only; by default of all.
        score : {"hq", "q"}, default="hq"
            The horizontal axis.
        scatter_kwargs : dict, optional
            For the teams: keywords of `Axes.scatter`.
        served_kwargs, threshold_kwargs, reference_kwargs : dict, optional
            For the team served, the cuts, and the lines of single models: keywords of
            `Axes.plot`, `Axes.axvline` and `Axes.axhline`.

        Returns
        -------
        TeamDisplay
            Itself.

        Raises
        ------
        ValueError
            If there are no such teams.
        """
        check_choice("score", score, ("hq", "q"))
        teams = self.teams if size is None else self.teams[self.teams["size"] == size]
        scored = teams.dropna(subset=[score, "accuracy"])
        if not len(scored):
            sizes = sorted(set(self.teams.dropna(subset=["accuracy"])["size"]))
            raise ValueError(f"No team of size {size} was scored. There are sizes {sizes}.")
        ax = self._open(ax)
        colours = _SizeColours(scored["size"])
        fates = np.where(scored["kept"], "kept", scored["reason"].str.split(":").str[0])
        self.scatters_ = {
            fate: _scatter(ax, scored[fates == fate], score, colours, look, scatter_kwargs)
            for fate, look in _LOOKS.items()
            if fate in fates
        }
        self.thresholds_ = self._draw_thresholds(ax, score, colours, threshold_kwargs)
        self.best_, self.average_ = self._draw_single(ax, reference_kwargs)
        self.served_ = self._draw_served(ax, scored, score, served_kwargs)
        self.colorbar_ = colours.draw(ax)
        ax.set(
            xlabel=f"{score.upper()} score (low is diverse)",
            ylabel="accuracy of team" if size is None else f"accuracy of teams of {size}",
        )
        # No ticks beside the legend: there are no accuracies above 1.
        low, high = ax.get_ylim()
        ax.set_yticks([tick for tick in ax.get_yticks() if low <= tick <= high])
        legend(
            ax,
            headroom=0.5,
            loc="upper left",
            ncols=2,
            title=f"{len(scored)} of {len(teams)} teams scored",
        )
        return self

    def _draw_thresholds(self, ax, score, colours, given):
        lines = []
        for name, of, size, value in self.thresholds:
            if of != score or size not in (None, *colours.sizes):
                continue
            alone = size is None or len(colours.sizes) == 1
            look = {
                "linestyle": "--",
                "color": "black" if alone else colours.of([size])[0],
                "linewidth": 1.2,
                "label": f"{_TITLES[name]} threshold",
            }
            lines.append(ax.axvline(value, **style("line", look, given)))
        return lines

    def _draw_single(self, ax, given):
        if self.accuracies is None:
            return None, None
        values = np.asarray(self.accuracies, dtype=float)
        return tuple(
            ax.axhline(at, **style("line", {"linewidth": 1.2, "zorder": 1, **look}, given))
            for at, look in (
                (
                    values.max(),
                    {"color": VERMILION, "linestyle": "-.", "label": "best single model"},
                ),
                (
                    values.mean(),
                    {"color": "black", "linestyle": ":", "label": "average single model"},
                ),
            )
        )

    def _draw_served(self, ax, scored, score, given):
        here = scored[[team == self.selected for team in scored["team"]]]
        if not len(here):
            return None
        defaults = {
            "marker": "*",
            "markersize": 16,
            "color": VERMILION,
            "markeredgecolor": "black",
            "linestyle": "none",
            "zorder": 4,
            "label": "served",
        }
        (mark,) = ax.plot(here[score], here["accuracy"], **style("line", defaults, given))
        return mark


def _scatter(ax, teams, score, colours, look, given):
    look = {"s": 26, "linewidth": 0.8, "alpha": 0.85, **look}
    label = f"{look.pop('label')} ({len(teams)})"
    paint = "edgecolor" if "facecolor" in look else "color"
    # In the legend, marks say what became of a team; colours are its size.
    shown = {paint: "black" if len(colours.sizes) > 1 else _ONE_SIZE, "label": label}
    ax.scatter([], [], **style("points", {**look, **shown}, given))
    look[paint] = colours.of(teams["size"])
    return ax.scatter(teams[score], teams["accuracy"], **style("points", look, given))


class _SizeColours:
    """One colour a team size, darker for larger teams."""

    def __init__(self, sizes):
        self.sizes = sorted(set(sizes))

    def of(self, sizes):
        """Colours (n, 4), or one for all if there is one size only."""
        import matplotlib as mpl

        if len(self.sizes) == 1:
            return _ONE_SIZE
        # Not up to the end of the scale: its yellow is hard to see on white.
        shares = np.linspace(0.88, 0.0, len(self.sizes))
        return mpl.colormaps["viridis"](shares[np.searchsorted(self.sizes, sizes)])

    def draw(self, ax):
        """A bar that says which colour is which size."""
        if len(self.sizes) == 1:
            return None
        from matplotlib.cm import ScalarMappable
        from matplotlib.colors import BoundaryNorm, ListedColormap

        n = len(self.sizes)
        mappable = ScalarMappable(
            BoundaryNorm(np.arange(n + 1) - 0.5, n), ListedColormap(self.of(self.sizes))
        )
        bar = ax.figure.colorbar(mappable, ax=ax, ticks=range(n), label="team size")
        bar.ax.set_yticklabels(self.sizes)
        bar.ax.minorticks_off()
        return bar
