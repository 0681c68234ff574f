"""Display of the accuracy and diversity of teams."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np

from skuq.metrics._scores import check_choice
from skuq.plotting._display import BLUE, VERMILION, Display, draw_line, legend, style

_ONE_SIZE = BLUE
_TITLES = {"kmeans": "K-means", "mean": "mean"}
_MARKS = {
    "alpha": {"marker": "x", "label": "pruned by alpha"},
    "kmeans": {"marker": "o", "facecolor": "none", "label": "pruned by K-means"},
    "mean": {"marker": "s", "facecolor": "none", "label": "pruned by mean"},
    "kept": {"marker": "o", "label": "kept"},
}


@dataclass(eq=False, repr=False)
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
        # A reason begins with the name of the filter that pruned the team.
        outcomes = np.where(scored["kept"], "kept", scored["reason"].str.split(":").str[0])
        self.scatters_ = {
            outcome: _scatter(ax, scored[outcomes == outcome], score, colours, look, scatter_kwargs)
            for outcome, look in _MARKS.items()
            if outcome in outcomes
        }
        self.thresholds_ = self._draw_thresholds(ax, score, colours, threshold_kwargs)
        self.best_ = self.average_ = self.selected_ = None
        if self.accuracies is not None:  # of the single models
            shared = {"linewidth": 1.2, "zorder": 1}
            best = {"color": VERMILION, "linestyle": "-.", "label": "best single model", **shared}
            average = {"color": "black", "linestyle": ":", "label": "average single model"}
            look = style("line", reference_kwargs, **best)
            self.best_ = ax.axhline(np.max(self.accuracies), **look)
            look = style("line", reference_kwargs, **average, **shared)
            self.average_ = ax.axhline(np.mean(self.accuracies), **look)
        # Teams are tuples, which pandas would compare element by element.
        here = scored[[team == self.selected for team in scored["team"]]]
        if len(here):  # the team that predicts is among the drawn teams
            self.selected_ = draw_line(
                ax,
                here[score],
                here["accuracy"],
                selected_kwargs,
                marker="*",
                markersize=16,
                color=VERMILION,
                markeredgecolor="black",
                linestyle="none",
                zorder=4,
                label="selected",
            )
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
            # A threshold of the other score, or of a size that is not drawn, has no place here.
            if of != score or size not in (None, *colours.sizes):
                continue
            # A threshold of one size among several has the colour of that size.
            alone = size is None or len(colours.sizes) == 1
            look = style(
                "line",
                given,
                linestyle="--",
                color="black" if alone else colours.colours_of([size])[0],
                linewidth=1.2,
                label=f"{_TITLES[name]} threshold",
            )
            lines.append(ax.axvline(value, **look))
        return lines


def _scatter(ax, teams, score, colours, look, given):
    """Draw the marks of one kind of teams, coloured by size, and their entry of the legend."""
    look = {"s": 26, "linewidth": 0.8, "alpha": 0.85, **look}
    label = f"{look.pop('label')} ({len(teams)})"
    paint = "edgecolor" if "facecolor" in look else "color"
    # The legend explains the marks in a neutral colour, as colours are the sizes of teams.
    shown = {paint: "black" if len(colours.sizes) > 1 else _ONE_SIZE, "label": label}
    ax.scatter([], [], **style("points", given, **{**look, **shown}))
    look[paint] = colours.colours_of(teams["size"])
    return ax.scatter(teams[score], teams["accuracy"], **style("points", given, **look))


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
        # Colours are numbered from 0, but a reader wants sizes.
        bar.ax.set_yticklabels(self.sizes)
        bar.ax.minorticks_off()
        return bar
