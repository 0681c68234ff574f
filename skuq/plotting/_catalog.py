"""Display of a search's configurations and of the importance of its decisions."""

from __future__ import annotations

import re
from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np
import pandas as pd
from sklearn.ensemble import RandomForestRegressor
from sklearn.model_selection import KFold
from sklearn.utils import check_random_state

from skuq.metrics._checks import check_choice
from skuq.plotting._base import BLUE, TrialsDisplay, style, upper_fence

# Columns of `Catalog.to_frame` that are not decisions.
_RECORD = (
    "trial_number",
    "status",
    "score",
    "seconds",
    "share",
    "n_epochs",
    "best_epoch",
    "message",
)
_LOG_FROM = 30  # an axis is logarithmic if its ends have a larger ratio: one and a half decades
_N_FOLDS, _N_SHUFFLES = 5, 5  # of permutation importances
#: Smallest number of trials for importances.
FEWEST_TRIALS = 2 * _N_FOLDS


def catalog_frame(catalog) -> pd.DataFrame:
    """Return the frame of a catalog or of a frame; it must have a status and a score."""
    frame = catalog if isinstance(catalog, pd.DataFrame) else None
    if frame is None and hasattr(catalog, "to_frame"):
        frame = catalog.to_frame()
    if frame is None:
        raise TypeError(f"`catalog` must be a Catalog or its frame. Got {catalog!r}.")
    if missing := [name for name in ("status", "score") if name not in frame]:
        raise ValueError(f"The catalog's frame lacks the columns {missing}.")
    return frame.reset_index(drop=True)


def varied_decisions(configurations: pd.DataFrame) -> list[str]:
    """Return the names of the decisions that have more than one value."""
    return [name for name in configurations if configurations[name].nunique(dropna=False) > 1]


class Axis:
    """Positions of the trials on an axis for one decision.

    Numbers keep their order and distances. If they are positive and span more than one and
    a half decades, the distances are those of their logarithms. Other values are equally
    spaced. A missing number has the position NaN, any other missing value counts as one more.

    Attributes
    ----------
    positions : ndarray of shape (n_trials,)
        Positions in [0, 1].
    codes : ndarray of shape (n_trials,)
        Positions before scaling to [0, 1], the inputs of the forest.
    values : list
        Distinct values in the order of their positions.
    numeric, log : bool
    """

    def __init__(self, values: pd.Series):
        values = values.astype(object).where(values.notna(), None)
        distinct = list(dict.fromkeys(values))
        known = [value for value in distinct if value is not None]
        # Truth values are categories, not numbers.
        self.numeric = bool(known) and all(
            isinstance(value, int | float | np.number) and not isinstance(value, bool | np.bool_)
            for value in known
        )
        self.values = sorted(known) if self.numeric else sorted(distinct, key=_natural)
        ends = self.values[0], self.values[-1]
        self.log = self.numeric and ends[0] > 0 and ends[1] / ends[0] > _LOG_FROM
        self._order = {value: k for k, value in enumerate(self.values)}
        self.codes = self._code(values)
        self._start, end = self._code(ends)
        self._spread = end - self._start or 1.0
        self.positions = self.at(values)

    def at(self, values) -> np.ndarray:
        """Return the positions of values; the ends of the axis are 0 and 1."""
        return (self._code(values) - self._start) / self._spread

    def _code(self, values):
        if not self.numeric:
            return np.array([self._order[value] for value in values], dtype=float)
        values = np.array(values, dtype=float)
        return np.log(values) if self.log else values


def _natural(value):
    """Return a sort key that puts "16-relu" before "128-relu"."""
    return [
        (0, int(t), "") if t.isdigit() else (1, 0, t) for t in re.split(r"(\d+)", str(value)) if t
    ]


def decision_importances(
    configurations: pd.DataFrame, scores, random_state=0
) -> tuple[pd.DataFrame, float]:
    """Compute the permutation importance of each decision in a random forest.

    The forest predicts the *ranks* of the scores, which a single diverged trial hardly
    changes. In each of five folds every decision is shuffled among the held-out trials; the
    fall in R2 is its importance. Values about 0, also below 0, mean no importance.

    Return a frame by decision, largest first, with `mean` and standard `error` over the folds (0
    for decisions that never vary), and the mean R2 of the forests on held-out trials. If R2 is not
    above 0, the importances mean nothing. Raise ValueError if there are fewer than ten trials.
    """
    if len(configurations) < FEWEST_TRIALS:
        raise ValueError(
            f"Importances need at least {FEWEST_TRIALS} completed trials. Got "
            f"{len(configurations)}."
        )
    names = varied_decisions(configurations)
    importances = pd.DataFrame(0.0, index=configurations.columns, columns=["mean", "error"])
    r2 = 0.0
    if names:
        X = np.stack([Axis(configurations[name]).codes for name in names], axis=1)
        y = pd.Series(np.asarray(scores, dtype=float)).rank().to_numpy()
        # R2 is relative to the variance of all trials, as that of the few in a fold is mostly
        # chance.
        variance = y.var() or 1.0
        rng, n_columns = check_random_state(random_state), X.shape[1]
        falls, r2s = [], []  # the fall in R2 for each shuffled column, and R2, of each fold
        for train, test in KFold(_N_FOLDS, shuffle=True, random_state=rng).split(X):
            forest = RandomForestRegressor(100, random_state=rng).fit(X[train], y[train])
            # All shuffled copies, (n_columns, n_shuffles, n_test, n_columns), are predicted in one
            # call: a forest's calls cost more than its rows.
            copies = np.tile(X[test], (n_columns, _N_SHUFFLES, 1, 1))
            for column in range(n_columns):
                for shuffle in range(_N_SHUFFLES):
                    copies[column, shuffle, :, column] = rng.permutation(X[test, column])
            given = forest.predict(copies.reshape(-1, n_columns))
            given = given.reshape(n_columns, -1, len(test))
            errors = ((given - y[test]) ** 2).mean(axis=(1, 2)) / variance
            error = ((forest.predict(X[test]) - y[test]) ** 2).mean() / variance
            falls.append(errors - error)
            r2s.append(1 - error)
        r2 = float(np.mean(r2s))
        # Folds share trials, so that the standard error is rather too small.
        importances.loc[names, "mean"] = np.mean(falls, axis=0)
        importances.loc[names, "error"] = np.std(falls, axis=0, ddof=1) / np.sqrt(_N_FOLDS)
    return importances.sort_values("mean", ascending=False, kind="stable"), r2


_MOST_AXES = 8  # more parallel axes could not be read
_MOST_TICKS = 6


@dataclass(eq=False, repr=False)
class CatalogDisplay(TrialsDisplay):
    """Configurations of a search as parallel coordinates, or the importance of decisions.

    ``kind="parallel"`` draws one line for each trial and one axis for each decision. Lines
    of good scores are dark and on top. Numbers that span more than one and a half decades
    are on a log scale; categories are equally spaced. ``kind="importance"`` draws the
    permutation importance in a random forest that predicts the ranks of the scores, on
    trials that it was not fitted to.

    Parameters
    ----------
    configurations : DataFrame of shape (n_trials, n_decisions)
        Configurations of the completed trials.
    scores : array-like of shape (n_trials,)
        Scores, which the search minimises.
    importances : DataFrame of shape (n_decisions, 2), optional
        Columns `mean` and standard `error`, one row for each decision, largest mean first.
    r2 : float, optional
        R2 of the forest on trials it was not fitted to, shown above the importances. If it
        is not well above 0, the importances mean nothing.
    score_name : str, default="score"
        Name of the score in labels.

    Attributes
    ----------
    lines_ : matplotlib LineCollection or None
        Trials, worst first, for ``kind="parallel"``.
    colorbar_ : matplotlib Colorbar or None
        Colours of the scores, for ``kind="parallel"``.
    bars_ : matplotlib BarContainer or None
        Importances, for ``kind="importance"``.
    decisions_ : list of str
        Decisions shown, in order.
    ax_, figure_ : matplotlib Axes and Figure

    Notes
    -----
    The importance of a decision is the fall in R2 of the ranks when its values are shuffled
    among held-out trials. It describes only the trials that were made: a decision that the
    search soon fixed cannot matter, and of two correlated decisions either may take the
    credit. With few trials the importance is mostly chance.

    Examples
    --------
    >>> import pandas as pd
    >>> from skuq.plotting import CatalogDisplay
    >>> trials = pd.DataFrame({"units": [8, 16, 32], "activation": ["relu", "tanh", "relu"]})
    >>> CatalogDisplay(trials, [0.3, 0.1, 0.2]).plot().decisions_
    ['units', 'activation']
    """

    configurations: Any
    scores: Any
    _: KW_ONLY
    importances: Any = None
    r2: float | None = None
    score_name: str = "score"

    @classmethod
    def from_catalog(
        cls,
        catalog,
        *,
        kind="parallel",
        decisions=None,
        score_name="score",
        random_state=0,
        ax=None,
        **plot_options,
    ):
        """Create a display from a catalog or its frame.

        Parameters
        ----------
        catalog : Catalog or DataFrame
            A frame needs the columns `status`, `score` and those of the decisions.
        kind : {"parallel", "importance"}, default="parallel"
            The diagram to draw; see the class.
        decisions : sequence of str, optional
            Names of the decisions to show. By default all that vary; if there are more than
            eight, parallel coordinates show the eight most important, or the first eight if
            importances are chance or there are fewer than ten trials.
        score_name : str, default="score"
            Name of the score in labels.
        random_state : int, RandomState instance or None, default=0
            Seed of the forest and of the shuffling.
        ax : matplotlib Axes, optional
            Axes to draw on; by default new ones.
        **plot_options
            Passed to `plot`.

        Returns
        -------
        CatalogDisplay

        Raises
        ------
        ValueError
            If a decision is unknown, or there are too few trials.
        """
        check_choice("kind", kind, ("parallel", "importance"))
        frame = catalog_frame(catalog)
        frame = frame[(frame["status"] == "completed") & np.isfinite(frame["score"])]
        if not len(frame):
            raise ValueError("The catalog has no completed trial.")
        configurations = frame[[name for name in frame if name not in _RECORD]]
        if configurations.empty:
            raise ValueError("The catalog's trials have no decisions to show.")
        if decisions is not None:
            if unknown := [name for name in decisions if name not in configurations]:
                raise ValueError(
                    f"`decisions` has unknown names {unknown}. Known are {list(configurations)}."
                )
            configurations = configurations[list(decisions)]
        elif len(names := varied_decisions(configurations)):
            configurations = configurations[names]
        scores, importances, r2 = frame["score"].to_numpy(dtype=float), None, None
        # A forest is only fitted if its importances are shown, or choose what is shown.
        too_many = decisions is None and configurations.shape[1] > _MOST_AXES
        if kind == "importance" or too_many and len(frame) >= FEWEST_TRIALS:
            importances, r2 = decision_importances(configurations, scores, random_state)
        elif too_many:
            configurations = configurations.iloc[:, :_MOST_AXES]
        display = cls(configurations, scores, importances=importances, r2=r2, score_name=score_name)
        return display.plot(ax, kind=kind, **plot_options)

    def plot(self, ax=None, *, kind="parallel", line_kwargs=None, bar_kwargs=None):
        """Draw the catalog.

        Parameters
        ----------
        ax : matplotlib Axes, optional
            Axes to draw on; by default new ones.
        kind : {"parallel", "importance"}, default="parallel"
            The diagram to draw; see the class.
        line_kwargs : dict, optional
            Keywords of `LineCollection`, for parallel coordinates.
        bar_kwargs : dict, optional
            Keywords of `Axes.barh`, for importances.

        Returns
        -------
        CatalogDisplay
            Itself.
        """
        check_choice("kind", kind, ("parallel", "importance"))
        if kind == "importance" and self.importances is None:
            raise ValueError(
                'There are no `importances`. Use `from_catalog(..., kind="importance")`.'
            )
        ax = self._open(ax)
        self.lines_ = self.colorbar_ = self.bars_ = None
        if kind == "parallel":
            self._draw_parallel(ax, line_kwargs)
        else:
            self.decisions_ = list(self.importances.index)
            look = style("area", bar_kwargs, color=BLUE, alpha=0.8, ecolor="black", capsize=2)
            error = self.importances["error"]
            self.bars_ = ax.barh(self.decisions_, self.importances["mean"], xerr=error, **look)
            # The most important decision comes first, at the top.
            ax.invert_yaxis()
            ax.axvline(0, color="black", linewidth=0.8)
            ax.set(
                xlabel=f"importance: fall in R² of ranks of {self.score_name} (± standard error)"
            )
            ax.tick_params(axis="y", labelsize="small")
            if self.r2 is not None:
                title = f"forest on held-out trials: R² = {self.r2:.2f}"
                if _is_chance(self.r2):
                    title += ", so importances are chance"
                ax.set_title(title, fontsize="medium")
        return self

    def _draw_parallel(self, ax, given):
        """Draw the trials as parallel coordinates, at most eight decisions."""
        from matplotlib.collections import LineCollection
        from matplotlib.colors import Normalize

        names = list(self.configurations)
        if self.importances is not None:
            # The ranks of a forest that predicts nothing are chance: keep the first decisions.
            ranked = names if _is_chance(self.r2) else list(self.importances.index)
            names = [name for name in names if name in ranked[:_MOST_AXES]]
        self.decisions_ = names
        axes = [Axis(self.configurations[name]) for name in names]
        scores = np.asarray(self.scores, dtype=float)
        worst_first = np.argsort(-scores, kind="stable")
        # Sorted by score, so that good trials are drawn last and on top.
        heights = np.stack([axis.positions for axis in axes], axis=1)[worst_first]
        # Points (axis number, height) of each line: (n_trials, n_axes, 2).
        lines = np.stack([np.broadcast_to(np.arange(len(axes)), heights.shape), heights], axis=2)
        fence = upper_fence(scores)
        # Good trials also have thicker lines, for readers who cannot see the colours.
        widths = np.linspace(0.8, 2.2, len(scores))
        colours = {"cmap": "cividis", "norm": Normalize(scores.min(), fence)}
        look = style("area", given, **colours, linewidth=widths, alpha=0.8)
        self.lines_ = LineCollection(lines, array=scores[worst_first], **look)
        ax.add_collection(self.lines_)
        self.colorbar_ = ax.figure.colorbar(
            self.lines_, ax=ax, extend="max" if fence < scores.max() else "neither", pad=0.08
        )
        self.colorbar_.set_label(f"{self.score_name} (smaller is better)")
        for k, axis in enumerate(axes):
            _draw_axis(ax, k, axis)
        labels = [f"{name} (log)" if axis.log else name for name, axis in zip(names, axes)]
        ax.set(xlim=(-0.05, len(axes) - 0.6), ylim=(-0.04, 1.04), yticks=[])
        ax.set_xticks(range(len(axes)), labels, rotation=30, ha="right", fontsize="small")
        ax.tick_params(axis="x", length=0)
        # The frame would look like two further axes.
        ax.spines[:].set_visible(False)
        n_all = self.configurations.shape[1]
        if len(names) < n_all:
            chosen = "the first ones" if _is_chance(self.r2) else "the most important"
            title = f"{len(names)} of {n_all} decisions, {chosen}"
            ax.set_title(title, fontsize="medium")


def _is_chance(r2):
    """Tell whether the forest behind the importances predicts no better than chance."""
    return r2 is not None and r2 <= 0


def _draw_axis(ax, x, axis):
    """Draw a vertical axis at `x`, with tick labels of its own."""
    from matplotlib.ticker import LogLocator, MaxNLocator

    # A few values: evenly chosen categories, or round numbers.
    if len(axis.values) <= _MOST_TICKS or not axis.numeric:
        few = np.linspace(0, len(axis.values) - 1, min(_MOST_TICKS, len(axis.values)))
        values = [axis.values[k] for k in few.round().astype(int)]
    else:
        low, high = axis.values[0], axis.values[-1]
        locator = LogLocator() if axis.log else MaxNLocator(_MOST_TICKS - 1)
        inner = [v for v in locator.tick_values(low, high) if low < v < high]
        # The ends show the range that was tried; a round number near them would overlap.
        values = [low, *(v for v in inner if 0.08 < axis.at([v])[0] < 0.92), high]
    texts = [f"{v:.3g}" if axis.numeric else str(v) for v in values]
    ax.axvline(x, color="black", linewidth=0.8, zorder=3)
    for height, text in zip(axis.at(values), texts):
        ax.text(
            x + 0.04,
            height,
            text,
            va="center",
            fontsize="x-small",
            zorder=4,
            bbox={"facecolor": "white", "alpha": 0.75, "edgecolor": "none", "pad": 0.5},
        )
