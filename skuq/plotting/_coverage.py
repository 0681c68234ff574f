"""Displays of the coverage of intervals: in groups of rows, and against their width."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np
from scipy.stats import binom, norm

from skuq._utils._checks import as_floats, unwrap_estimator
from skuq.metrics import (
    coverage_by_group,
    coverage_curve,
    coverage_width_auc,
    coverage_width_curve,
    neighbor_distance,
)
from skuq.metrics._checks import check_inside_unit
from skuq.plotting._base import (
    GREY,
    CurveDisplay,
    Display,
    check_rows,
    curve_style,
    draw_line,
    from_zero,
    legend,
    predictions_of,
    style,
    with_name,
    with_unit,
)

_MOST_LABELS = 20  # of bins, so that they do not cover each other


@dataclass(eq=False, repr=False)
class ConditionalCoverageDisplay(Display):
    """Coverage of intervals in bins of a number, or in groups.

    Intervals with the nominal coverage on average may have a much lower one where predictions are
    uncertain, in a group, or far from the training rows. Bars show the range in which the nominal
    coverage would be observed by chance.

    Parameters
    ----------
    centers : array-like of shape (n_bins,)
        Medians of the bins, or labels of the groups.
    observed : array-like of shape (n_bins,)
        Share of the targets that are inside their intervals.
    counts : array-like of int of shape (n_bins,)
        Number of rows in each bin.
    coverage : float, default=0.9
        Nominal coverage of the intervals.
    label : str, optional
        Name of the number or group by which rows are put into bins, for the axis.
    name : str, optional
        Name of the estimator, for the legend.

    Attributes
    ----------
    points_ : matplotlib Line2D
        Observed coverages.
    bars_ : matplotlib LineCollection
        Ranges in which the nominal coverage is observed with probability `chance`.
    line_ : matplotlib Line2D
        Nominal coverage.
    ax_, figure_ : matplotlib Axes and Figure

    Notes
    -----
    Each bar is the binomial interval of a single bin. At 95 % one bin of twenty is expected to be
    outside.

    Examples
    --------
    >>> from skuq.plotting import ConditionalCoverageDisplay
    >>> display = ConditionalCoverageDisplay.from_predictions(
    ...     [0.0, 0.0, 5.0, 0.0], [-1.0] * 4, [1.0] * 4, by=[1.0, 2.0, 9.0, 8.0], n_bins=2
    ... )
    >>> display.observed
    array([1. , 0.5])
    """

    centers: Any
    observed: Any
    counts: Any
    _: KW_ONLY
    coverage: float = 0.9
    label: str | None = None
    name: str | None = None

    @classmethod
    def from_predictions(
        cls,
        y,
        lower,
        upper,
        *,
        by=None,
        groups=None,
        coverage=0.9,
        n_bins=10,
        label=None,
        name=None,
        ax=None,
        **plot_options,
    ):
        """Create a display from intervals.

        Parameters
        ----------
        y, lower, upper : array-like of shape (n_samples,)
            Targets, and the ends of their intervals.
        by : array-like of shape (n_samples,), optional
            Number by which rows are put into bins.
        groups : array-like of shape (n_samples,), optional
            Labels of groups, in place of `by`.
        coverage : float, default=0.9
            Nominal coverage of the intervals.
        n_bins : int, default=10
            Number of bins with equal numbers of rows.
        label, name : str, optional
            Labels of the horizontal axis and of the legend.
        ax : matplotlib Axes, optional
            Axes to draw on; by default new ones.
        **plot_options
            Passed to `plot`.

        Returns
        -------
        ConditionalCoverageDisplay
        """
        if (by is None) == (groups is None):
            raise ValueError("Give either `by` or `groups`.")
        check_inside_unit("coverage", coverage)
        if groups is None:
            found = coverage_curve(y, lower, upper, by, n_bins=n_bins)
        else:
            found = coverage_by_group(y, lower, upper, groups)
        return cls(*found, coverage=coverage, label=label, name=name).plot(ax, **plot_options)

    @classmethod
    def from_estimator(
        cls,
        estimator,
        X,
        y,
        *,
        by="std",
        groups=None,
        X_reference=None,
        coverage=0.9,
        n_bins=10,
        label=None,
        name=None,
        ax=None,
        **plot_options,
    ):
        """Predict, and draw.

        Parameters
        ----------
        estimator : fitted regressor
            If it has `predict_interval(X, coverage)`, these intervals are judged. Otherwise
            `predict(X, return_std=True)` gives the parameters of normals.
        X : array-like of shape (n_samples, n_features)
        y : array-like of shape (n_samples,)
        by : {"std", "distance"} or array-like of shape (n_samples,), default="std"
            Number by which rows are put into bins: the predicted standard deviation, the distance
            to the nearest row of `X_reference`, or a given number for each row.
        groups : array-like of shape (n_samples,), optional
            Labels of groups of rows, in place of `by`.
        X_reference : array-like of shape (n_reference, n_features), optional
            Reference rows for ``by="distance"``, for example the training rows.
        coverage, n_bins, label, name, ax, **plot_options
            The same as in `from_predictions`; `name` is the estimator's class by default, and
            `label` says what `by` is.

        Returns
        -------
        ConditionalCoverageDisplay
        """
        check_inside_unit("coverage", coverage)
        name = type(estimator).__name__ if name is None else name
        model, inner = unwrap_estimator(estimator, X)
        # Judge the intervals that the model gives, which need not be central ones of a normal.
        if hasattr(model, "predict_interval"):
            lower, upper = np.moveaxis(model.predict_interval(inner, coverage), 1, 0)
        else:
            mean, std = predictions_of(estimator, X).normal  # a standard deviation may be 0
            lower, upper = (mean + norm.ppf((1 + side * coverage) / 2) * std for side in (-1, 1))
        y, lower, upper = check_rows(y=y, lower=lower, upper=upper)
        if groups is not None:
            # "std" is the default, so that it cannot be told from a wish.
            if not (by is None or (isinstance(by, str) and by == "std")):
                raise ValueError("Give `by` or `groups`, not both.")
            by = None
        elif isinstance(by, str) and by == "std":
            label = label or "predicted standard deviation"
            # Not the width of the intervals: a model may adjust these for each group.
            (by,) = check_rows(by=predictions_of(estimator, X).normal[1])
        elif isinstance(by, str) and by == "distance":
            if X_reference is None:
                raise ValueError('by="distance" needs `X_reference`, such as the training rows.')
            label = label or "distance to the nearest reference row"
            by = neighbor_distance(X, X_reference)
        elif isinstance(by, str):
            raise ValueError(f'`by` must be "std", "distance" or a number of each row. Got {by!r}.')
        else:
            dtype, is_number = np.asarray(by).dtype, True
            # A column of objects may hold numbers, as one with missing values does.
            if dtype.kind == "O":
                try:
                    as_floats(by)
                except ValueError:
                    is_number = False
                is_number = is_number and not any(isinstance(value, str) for value in by)
            if not is_number or dtype.kind not in "biufmMO":
                raise ValueError(
                    "`by` must hold a number of each row; labels are for `groups`. Got dtype "
                    f"{dtype}."
                )
        options = {"coverage": coverage, "n_bins": n_bins, "name": name, "ax": ax, **plot_options}
        return cls.from_predictions(y, lower, upper, by=by, groups=groups, label=label, **options)

    def plot(self, ax=None, *, chance=0.95, point_kwargs=None, bar_kwargs=None, line_kwargs=None):
        """Draw the coverage of the bins.

        Parameters
        ----------
        ax : matplotlib Axes, optional
            Axes to draw on, which displays may share; by default new ones.
        chance : float, default=0.95
            Probability with which a bin with the nominal coverage is inside its bar.
        point_kwargs, bar_kwargs, line_kwargs : dict, optional
            Keywords of `Axes.plot`, `Axes.vlines` and `Axes.axhline`.

        Returns
        -------
        ConditionalCoverageDisplay
            Itself.
        """
        check_inside_unit("chance", chance)
        observed, counts = np.asarray(self.observed, dtype=float), np.asarray(self.counts)
        # Targets inside the intervals of a bin are Binomial(count, coverage), if that is kept.
        low, high = np.array(binom.interval(chance, counts, self.coverage)) / counts
        ax = self._open(ax)
        # Bins are equally spaced on the axis, and their medians are the labels.
        at = np.arange(len(observed))
        look = style(
            "area", bar_kwargs, color=GREY, linewidth=5, alpha=0.35, label=f"{chance:.0%} by chance"
        )
        self.bars_ = ax.vlines(at, low, high, **look)
        look = style(
            "line", line_kwargs, color="black", linestyle="--", linewidth=1, label="nominal"
        )
        self.line_ = ax.axhline(self.coverage, **look)
        look = {**curve_style(ax), "linestyle": "none", "marker": "o", "label": self.name}
        self.points_ = draw_line(ax, at, observed, point_kwargs, **look)
        # Groups can have labels of any kind.
        labels = [f"{c:.4g}" if isinstance(c, float) else str(c) for c in np.asarray(self.centers)]
        step = -(-len(at) // _MOST_LABELS)
        ax.set_xticks(at[::step], labels[::step])
        ax.set(xlabel=self.label or "bin", ylabel=f"coverage of {self.coverage:.0%} intervals")
        # Show how far coverages are from 1, whatever they are.
        ax.set_ylim(top=max(ax.get_ylim()[1], 1.0))
        legend(ax, loc="lower left")
        return self


@dataclass(eq=False, repr=False)
class CoverageWidthDisplay(CurveDisplay):
    """Mean width of intervals ``mean +- c * std`` against the share of targets they cover.

    The scale c goes from 0 to the value at which all targets are covered. The curve
    therefore judges the *relative* sizes of the standard deviations: whether they are large
    for rows with large errors. Lower is better. A dot marks one scale, by default that of
    nominal 95 % intervals.

    `from_estimator` takes a fitted regressor with `predict(X, return_std=True)`.

    Parameters
    ----------
    scale, coverage, width : array-like of shape (n_points,)
        The scale c, the share of targets covered, and the mean width in units of y; all
        ascending.
    auc : float, optional
        Area under the curve, in units of y; shown in the legend.
    name : str, optional
        Name of the estimator, for the legend.
    unit : str, optional
        Unit of y.

    Attributes
    ----------
    line_ : matplotlib Line2D
    marker_ : matplotlib Line2D or None
    ax_, figure_ : matplotlib Axes and Figure

    References
    ----------
    Heiss et al., "NOMU: Neural Optimization-based Model Uncertainty", ICML 2022,
    appendix B.2.1.

    Examples
    --------
    >>> from skuq.plotting import CoverageWidthDisplay
    >>> display = CoverageWidthDisplay.from_predictions(
    ...     [0.0, 1.0], mean=[0.5, 3.0], std=[1.0, 1.0]
    ... )
    >>> display.width.tolist()
    [0.0, 1.0, 4.0]
    """

    scale: Any
    coverage: Any
    width: Any
    _: KW_ONLY
    auc: float | None = None
    name: str | None = None
    unit: str | None = None

    @classmethod
    def from_predictions(cls, y, mean, std, *, name=None, unit=None, ax=None, **plot_options):
        """Create a display from predicted means and standard deviations.

        Parameters
        ----------
        y, mean, std : array-like of shape (n_samples,)
            Targets, and predicted means and standard deviations.
        name, unit : str, optional
            Name for the legend, and unit of y for the labels.
        ax : matplotlib Axes, optional
            Axes to draw on; by default new ones.
        **plot_options
            Passed to `plot`.

        Returns
        -------
        CoverageWidthDisplay
        """
        y, mean, std = check_rows(y=y, mean=mean, std=std)
        scale, coverage, width = coverage_width_curve(y, mean, std)
        display = cls(
            scale, coverage, width, auc=coverage_width_auc(y, mean, std), name=name, unit=unit
        )
        return display.plot(ax, **plot_options)

    def plot(self, ax=None, *, mark=1.96, line_kwargs=None, marker_kwargs=None):
        """Draw the mean width of intervals by their coverage, as both grow with the scale.

        Parameters
        ----------
        ax : matplotlib Axes, optional
            Axes to draw on, which displays may share; by default new ones.
        mark : float or None, default=1.96
            Scale (factor of the standard deviations) at which to put a dot. There is no dot for
            None, or if the curve ends at a smaller scale.
        line_kwargs, marker_kwargs : dict, optional
            Keywords of `Axes.plot`.

        Returns
        -------
        CoverageWidthDisplay
            Itself.
        """
        if mark is not None and mark < 0:
            raise ValueError(f"`mark` must not be negative. Got {mark}.")
        scale, coverage, width = check_rows(
            scale=self.scale, coverage=self.coverage, width=self.width
        )
        ax = self._open(ax)
        summary = None
        if self.auc is not None:
            summary = f"AUC {self.auc:.3g} {self.unit or ''}".rstrip()
        # A larger scale first makes intervals wider at the same coverage (a vertical line). When
        # they contain one more y, the coverage steps to the right.
        self._draw_curve(ax, coverage, width, line_kwargs, summary, drawstyle="steps-pre")
        self.marker_ = None
        if mark is not None and mark <= scale[-1]:
            # The last point of the curve at or before this scale.
            covered = np.searchsorted(scale, mark, side="right") - 1
            # Between points of the curve the width is linear in the scale, the coverage constant.
            at = coverage[covered], np.interp(mark, scale, width)
            self.marker_ = draw_line(
                ax,
                *at,
                marker_kwargs,
                color=self.line_.get_color(),
                marker="o",
                linestyle="none",
                markeredgecolor="white",
                markersize=8,
                label=with_name(self.name, f"c = {mark:g}, coverage {at[0]:.2f}"),
            )
        ax.set(
            xlabel="coverage", ylabel=with_unit("mean width of intervals", self.unit), xlim=(0, 1)
        )
        # Widths are read as ratios between models: they need the 0.
        from_zero(ax)
        legend(ax, loc="upper left")
        return self
