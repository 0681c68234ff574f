"""Display of the accuracy and diversity of teams, and of the filters that pruned them."""

from __future__ import annotations

import numpy as np
import pandas as pd

from skuq.metrics._checks import check_choice
from skuq.plotting._axes import BLUE, VERMILION, Display, legend, style

_ONE_SIZE = BLUE
_TITLES = {"kmeans": "K-means", "mean": "mean"}
_MARKS = {
    "alpha": {"marker": "x", "label": "pruned by alpha"},
    "kmeans": {"marker": "o", "facecolor": "none", "label": "pruned by K-means"},
    "mean": {"marker": "s", "facecolor": "none", "label": "pruned by mean"},
    "kept": {"marker": "o", "label": "kept"},
}


class TeamDisplay(Display):
    """Accuracy of teams against their diversity score, as in the figures of the HQ paper.

    There is one mark for each team; its colour is the size of the team. Filled marks are kept
    teams. Hollow circles were pruned by the K-means filter, hollow squares by the mean
    filter, crosses by the alpha filter. The star is the team that predicts. Low scores, on
    the left, are diverse. Vertical dashed lines are the thresholds of the filters;
    horizontal lines are the accuracies of the best and of the average single model.

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
            A fitted selector, a selection, or the `teams_` of either, which gives no lines
            of single models, no star and no thresholds.
        ax : matplotlib Axes, optional
            Axes to draw on; by default new ones.
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
        """Create a display from a fitted selector: `from_teams` under the usual name.

        Parameters
        ----------
        estimator : HQEnsembleSelector
            A fitted selector.
        ax : matplotlib Axes, optional
            Axes to draw on; by default new ones.
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
        selected_kwargs=None,
        threshold_kwargs=None,
        reference_kwargs=None,
    ):
        """Draw each team by its diversity and accuracy.

        Parameters
        ----------
        ax : matplotlib Axes, optional
            Axes to draw on; by default new ones.
        size : int, optional
            Size of the teams to draw; by default all sizes.
        score : {"hq", "q"}, default="hq"
            Diversity score of the horizontal axis.
        scatter_kwargs : dict, optional
            Keywords of `Axes.scatter`, for the teams.
        selected_kwargs, threshold_kwargs, reference_kwargs : dict, optional
            Keywords of `Axes.plot` for the team that predicts, of `Axes.axvline` for the
            thresholds, and of `Axes.axhline` for the lines of single models.

        Returns
        -------
        TeamDisplay
            Itself.

        Raises
        ------
        ValueError
            If no team of this size was scored.
        """
        check_choice("score", score, ("hq", "q"))
        teams = self.teams if size is None else self.teams[self.teams["size"] == size]
        scored = teams.dropna(subset=[score, "accuracy"])
        if not len(scored):
            sizes = sorted(set(self.teams.dropna(subset=["accuracy"])["size"]))
            raise ValueError(f"No team of size {size} was scored. There are sizes {sizes}.")
        ax = self._open(ax)
        colours = _SizeColours(scored["size"])
        outcomes = np.where(scored["kept"], "kept", scored["reason"].str.split(":").str[0])
        self.scatters_ = {
            outcome: _scatter(ax, scored[outcomes == outcome], score, colours, look, scatter_kwargs)
            for outcome, look in _MARKS.items()
            if outcome in outcomes
        }
        self.thresholds_ = self._draw_thresholds(ax, score, colours, threshold_kwargs)
        self.best_, self.average_ = self._draw_single(ax, reference_kwargs)
        self.selected_ = self._draw_selected(ax, scored, score, selected_kwargs)
        self.colorbar_ = colours.draw(ax)
        ax.set(
            xlabel=f"{score.upper()} score (low is diverse)",
            ylabel="accuracy of team" if size is None else f"accuracy of teams of {size}",
        )
        # Remove the ticks of the headroom at the legend: no accuracy is above 1.
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
        """Draw the thresholds of the filters that use this score."""
        lines = []
        for name, of, size, value in self.thresholds:
            if of != score or size not in (None, *colours.sizes):
                continue
            alone = size is None or len(colours.sizes) == 1
            look = {
                "linestyle": "--",
                "color": "black" if alone else colours.colours_of([size])[0],
                "linewidth": 1.2,
                "label": f"{_TITLES[name]} threshold",
            }
            lines.append(ax.axvline(value, **style("line", look, given)))
        return lines

    def _draw_single(self, ax, given):
        """Draw the accuracies of the best and of the average single model."""
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

    def _draw_selected(self, ax, scored, score, given):
        """Draw the star of the team that predicts, if it is among the drawn teams."""
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
            "label": "selected",
        }
        (mark,) = ax.plot(here[score], here["accuracy"], **style("line", defaults, given))
        return mark


def _scatter(ax, teams, score, colours, look, given):
    """Draw the marks of one kind of teams, coloured by size, and their entry of the legend."""
    look = {"s": 26, "linewidth": 0.8, "alpha": 0.85, **look}
    label = f"{look.pop('label')} ({len(teams)})"
    paint = "edgecolor" if "facecolor" in look else "color"
    # The legend explains the marks in a neutral colour, as colours are the sizes of teams.
    shown = {paint: "black" if len(colours.sizes) > 1 else _ONE_SIZE, "label": label}
    ax.scatter([], [], **style("points", {**look, **shown}, given))
    look[paint] = colours.colours_of(teams["size"])
    return ax.scatter(teams[score], teams["accuracy"], **style("points", look, given))


class _SizeColours:
    """Colours of the team sizes, darker for larger teams."""

    def __init__(self, sizes):
        self.sizes = sorted(set(sizes))

    def colours_of(self, sizes):
        """Return colours of shape (n, 4), or one colour if all teams have the same size."""
        import matplotlib as mpl

        if len(self.sizes) == 1:
            return _ONE_SIZE
        # The end of the scale is left out: its yellow is hard to see on white.
        shares = np.linspace(0.88, 0.0, len(self.sizes))
        return mpl.colormaps["viridis"](shares[np.searchsorted(self.sizes, sizes)])

    def draw(self, ax):
        """Draw a colour bar that names the size of each colour; None if there is one size."""
        if len(self.sizes) == 1:
            return None
        from matplotlib.cm import ScalarMappable
        from matplotlib.colors import BoundaryNorm, ListedColormap

        n = len(self.sizes)
        mappable = ScalarMappable(
            BoundaryNorm(np.arange(n + 1) - 0.5, n), ListedColormap(self.colours_of(self.sizes))
        )
        bar = ax.figure.colorbar(mappable, ax=ax, ticks=range(n), label="team size")
        bar.ax.set_yticklabels(self.sizes)
        bar.ax.minorticks_off()
        return bar
