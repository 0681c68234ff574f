"""Displays of members: their diversity, and the accuracy and diversity of teams."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np
import pandas as pd
from scipy.spatial.distance import pdist, squareform
from sklearn.manifold import TSNE
from threadpoolctl import threadpool_limits

from skuq._utils._checks import unwrap_estimator
from skuq.ensembles import architecture_diversity
from skuq.metrics._checks import check_choice
from skuq.plotting._base import BLUE, COLOURS, MARKERS, VERMILION, Display, draw_line, legend, style
from skuq.search import SearchResult

_MOST_NUMBERS = 12  # members up to which distances are written into the matrix


@dataclass(eq=False, repr=False)
class MemberDiversityDisplay(Display):
    """Members as points by their predictions, or distances between their architectures.

    ``kind="tsne"`` draws one point for each member, by t-SNE of its predictions: members
    with similar predictions are near each other. If several seeds of an architecture form a
    cluster, architectures differ by more than seeds do. Distances between clusters and
    their sizes mean nothing. ``kind="distance"`` draws the Euclidean distances between
    architectures as vectors of decisions, and AutoDEUQ's diversity score.

    Parameters
    ----------
    coordinates : array-like of shape (n_members, 2), optional
        Positions of the members by t-SNE.
    distances : array-like of shape (n_members, n_members), optional
        Distances between the architectures.
    diversity : float, optional
        Diversity score of the architectures, shown as a title.
    names : sequence of str, optional
        Names of the members; numbers by default.
    groups : sequence, optional
        Group of each member, for example its architecture. Each group has a colour and a
        marker.

    Attributes
    ----------
    scatters_ : list of matplotlib PathCollection
        Points of each group, for ``kind="tsne"``.
    image_ : matplotlib AxesImage or None
        Matrix of distances, for ``kind="distance"``.
    colorbar_ : matplotlib Colorbar or None
        Colours of the distances, for ``kind="distance"``.
    ax_, figure_ : matplotlib Axes and Figure

    References
    ----------
    Zaidi et al., "Neural Ensemble Search for Uncertainty Estimation and Dataset Shift",
    Figure 1; Egele et al., "AutoDEUQ", section III.B.2.

    Examples
    --------
    >>> from skuq.plotting import MemberDiversityDisplay
    >>> display = MemberDiversityDisplay.from_embeddings([[0, 0], [3, 0], [0, 4]])
    >>> round(display.diversity, 3)
    1.697
    """

    _: KW_ONLY
    coordinates: Any = None
    distances: Any = None
    diversity: float | None = None
    names: Any = None
    groups: Any = None

    @classmethod
    def from_predictions(
        cls,
        predictions,
        *,
        names=None,
        groups=None,
        perplexity=None,
        random_state=0,
        ax=None,
        **plot_options,
    ):
        """Create a display of members as points, by t-SNE of their predictions.

        Parameters
        ----------
        predictions : array-like of shape (n_members, n_samples) or (n_members, n_samples, ..)
            Means or probabilities of the same rows, for at least three members.
        names, groups : sequence of n_members, optional
            Names and groups of the members; see the class.
        perplexity : float, optional
            About the number of neighbours that t-SNE considers. By default a third of the
            members, at most 30.
        random_state : int, RandomState instance or None, default=0
            Seed of t-SNE.
        ax : matplotlib Axes, optional
            Axes to draw on; by default new ones.
        **plot_options
            Passed to `plot`.

        Returns
        -------
        MemberDiversityDisplay

        Raises
        ------
        ValueError
            If there are fewer than three members.
        """
        rows = np.asarray(predictions, dtype=float)
        if rows.ndim < 2 or len(rows) < 3:
            raise ValueError(
                "`predictions` must have shape (n_members, n_samples, ..), with three members or "
                f"more. Got {rows.shape}."
            )
        rows = rows.reshape(len(rows), -1)
        if not np.isfinite(rows).all():
            raise ValueError("`predictions` must be finite. Got NaN or infinity.")
        if not np.ptp(rows, axis=0).any():
            raise ValueError(
                "`predictions` must differ between members for t-SNE. All members predict the same."
            )
        if perplexity is None:
            # scikit-learn requires fewer neighbours than members.
            perplexity = min(30.0, max(1.0, (len(rows) - 1) / 3))
        # Principal components need two numbers for each member.
        tsne = TSNE(
            perplexity=perplexity,
            init="pca" if rows.shape[1] > 1 else "random",
            random_state=random_state,
        )
        # With so few points the threads mostly wait for each other; on busy cores this is slow.
        with threadpool_limits(1, user_api="openmp"):
            coordinates = tsne.fit_transform(rows)
        display = cls(coordinates=coordinates, names=names, groups=groups)
        return display.plot(ax, kind="tsne", **plot_options)

    @classmethod
    def from_embeddings(cls, embeddings, *, names=None, ax=None, **plot_options):
        """Create a display of distances between architectures.

        Parameters
        ----------
        embeddings : array-like of shape (n_members, n_decisions)
            One integer for each decision: the position of the chosen value.
        names : sequence of n_members, optional
            Names of the members; numbers by default.
        ax : matplotlib Axes, optional
            Axes to draw on; by default new ones.
        **plot_options
            Passed to `plot`.

        Returns
        -------
        MemberDiversityDisplay
        """
        vectors = np.asarray(embeddings, dtype=float)
        if vectors.ndim != 2 or not vectors.size:
            raise ValueError(
                f"`embeddings` must have shape (n_members, n_decisions). Got {vectors.shape}."
            )
        display = cls(
            distances=squareform(pdist(vectors)),
            diversity=architecture_diversity(vectors),
            names=names,
        )
        return display.plot(ax, kind="distance", **plot_options)

    @classmethod
    def from_estimator(cls, estimator, X=None, *, kind="tsne", ax=None, **options):
        """Create a display of the members of a fitted ensemble.

        Parameters
        ----------
        estimator : fitted estimator
            For ``kind="tsne"`` its `predict_distribution(X)` must give a mixture of members.
            For ``kind="distance"`` it must be an `AutoDEUQRegressor`, whose selected members
            are shown.
        X : array-like of shape (n_samples, n_features), optional
            Rows to predict, for ``kind="tsne"``.
        kind : {"tsne", "distance"}, default="tsne"
            The diagram to draw; see the class.
        ax : matplotlib Axes, optional
            Axes to draw on; by default new ones.
        **options
            Passed to `from_predictions` or `from_embeddings`.

        Returns
        -------
        MemberDiversityDisplay
        """
        check_choice("kind", kind, ("tsne", "distance"))
        if kind == "tsne":
            if X is None:
                raise ValueError('`kind="tsne"` needs `X` to predict.')
            names = None
            if hasattr(estimator, "catalog_"):  # the trial that found each network
                # After a refit, or with repeats, networks are not those of the catalog.
                result = SearchResult(estimator.catalog_, estimator.refitted_, estimator.repeated_)
                trials = estimator.selection_.indices
                names = [f"trial {k}" for k in trials for _ in result.networks(k)]
            # With `cv` a trial has one network for each fold, and more if it was repeated.
            several = names is not None and len(set(names)) < len(names)
            options = {"groups" if several else "names": names, **options}
            model, inner = unwrap_estimator(estimator, X)
            # Mixtures of numbers have `member_means`, those of classes `proba`.
            distribution = getattr(model, "predict_distribution", lambda X: None)(inner)
            for part in ("member_means", "proba"):
                if hasattr(distribution, part):
                    return cls.from_predictions(getattr(distribution, part), ax=ax, **options)
            raise TypeError(
                "The estimator must have `predict_distribution(X)` that gives a mixture of "
                f"members. Got {estimator!r}; use `from_predictions` with arrays instead."
            )
        if not hasattr(estimator, "selection_"):
            raise TypeError(
                '`kind="distance"` needs members of different architectures, as those of a fitted '
                f"AutoDEUQRegressor. Got {estimator!r}; see `from_embeddings`."
            )
        names = [f"trial {k}" for k in estimator.selection_.indices]
        # Decision vectors of the architectures alone (AutoDEUQ, section III.B.2).
        architecture = estimator.decisions_.architecture
        chosen = [estimator.catalog_[k].configuration for k in estimator.selection_.indices]
        vectors = architecture.embed([architecture.restrict(c) for c in chosen])
        return cls.from_embeddings(vectors, ax=ax, **{"names": names, **options})

    def plot(self, ax=None, *, kind=None, scatter_kwargs=None, image_kwargs=None):
        """Draw the members.

        Parameters
        ----------
        ax : matplotlib Axes, optional
            Axes to draw on; by default new ones.
        kind : {"tsne", "distance"}, optional
            The diagram to draw. By default "tsne" if there are `coordinates`, else
            "distance".
        scatter_kwargs, image_kwargs : dict, optional
            Keywords of `Axes.scatter` and `Axes.imshow`.

        Returns
        -------
        MemberDiversityDisplay
            Itself.
        """
        # The data there are decide the kind, unless the user does.
        there = {"tsne": self.coordinates, "distance": self.distances}
        there = {name: data for name, data in there.items() if data is not None}
        if kind is not None:
            check_choice("kind", kind, ("tsne", "distance"))
        if not there or kind not in (None, *there):
            raise ValueError(f"There are no data for kind={kind!r}. Data are for {list(there)}.")
        kind = kind or next(iter(there))
        data = np.asarray(there[kind])
        names = [str(name) for name in (range(len(data)) if self.names is None else self.names)]
        for what, given in (("names", names), ("groups", self.groups)):
            if given is not None and len(given) != len(data):
                raise ValueError(
                    f"`{what}` must be one for each of {len(data)} members. Got {len(given)}."
                )
        ax = self._open(ax)
        self.scatters_, self.image_, self.colorbar_ = [], None, None
        if kind == "tsne":
            self._draw_points(ax, data, names, scatter_kwargs)
        else:
            self.image_ = ax.imshow(data, **style("area", image_kwargs, cmap="cividis", vmin=0))
            self.colorbar_ = ax.figure.colorbar(self.image_, ax=ax)
            self.colorbar_.set_label("distance between architectures")
            ax.set_xticks(range(len(names)), names, rotation=90, fontsize="small")
            ax.set_yticks(range(len(names)), names, fontsize="small")
            if len(names) <= _MOST_NUMBERS:
                # Write each distance into its cell, white on dark and black on light.
                look = {"ha": "center", "va": "center", "fontsize": "x-small"}
                for (row, column), distance in np.ndenumerate(data):
                    colour = "black" if distance > data.max() / 2 else "white"
                    ax.text(column, row, f"{distance:.3g}", color=colour, **look)
            if self.diversity is not None:
                # The bound for distinct architectures, all at the same distance.
                most = np.sqrt(len(names) * (len(names) - 1) / 2)
                ax.set_title(
                    f"diversity score {self.diversity:.2f} (at most {most:.2f})", fontsize="medium"
                )
        return self

    def _draw_points(self, ax, points, names, given):
        """Draw the members as points, by group."""
        # By their texts, as groups can be tuples, such as the widths of an architecture.
        given_groups = [""] * len(points) if self.groups is None else self.groups
        groups = np.array([str(group) for group in given_groups])
        for k, group in enumerate(dict.fromkeys(groups.tolist())):
            look = style(
                "points",
                given,
                color=COLOURS[k % len(COLOURS)],
                marker=MARKERS[k % len(MARKERS)],
                alpha=0.8,
                label=None if self.groups is None else group,
            )
            here = points[groups == group]
            self.scatters_.append(ax.scatter(*here.T, **look))
        # More names would cover each other, and groups have a legend.
        if self.groups is None and len(points) <= 20:
            for point, name in zip(points, names):
                ax.annotate(
                    name, point, xytext=(5, 3), textcoords="offset points", fontsize="small"
                )
        ax.set(xlabel="t-SNE dimension 1", ylabel="t-SNE dimension 2")
        ax.margins(0.1)
        legend(ax)


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
