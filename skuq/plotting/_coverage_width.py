"""Display of the width that intervals need for each coverage."""

from __future__ import annotations

import numpy as np

from skuq.metrics import coverage_width_auc, coverage_width_curve
from skuq.plotting._axes import Display, curve_style, from_zero, legend, style, with_name, with_unit
from skuq.plotting._predictions import check_rows, normal_of


class CoverageWidthDisplay(Display):
    """Mean width of intervals ``mean +- c * std`` against the share of targets they cover.

    The scale c goes from 0 to the value at which all targets are covered. The curve
    therefore judges the *relative* sizes of the standard deviations: whether they are large
    for rows with large errors. Lower is better. A dot marks one scale, by default that of
    nominal 95 % intervals.

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

    def __init__(self, scale, coverage, width, *, auc=None, name=None, unit=None):
        self.scale = scale
        self.coverage = coverage
        self.width = width
        self.auc = auc
        self.name = name
        self.unit = unit

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
            scale,
            coverage,
            width,
            auc=coverage_width_auc(y, mean, std),
            name=name,
            unit=unit,
        )
        return display.plot(ax, **plot_options)

    @classmethod
    def from_estimator(cls, estimator, X, y, *, name=None, unit=None, ax=None, **plot_options):
        """Predict with a fitted estimator, and draw.

        Parameters
        ----------
        estimator : fitted regressor
            It must have `predict(X, return_std=True)`.
        X : array-like of shape (n_samples, n_features)
        y : array-like of shape (n_samples,)
            Targets.
        name, unit, ax, **plot_options
            The same as in `from_predictions`; `name` is the estimator's class by default.

        Returns
        -------
        CoverageWidthDisplay
        """
        name = type(estimator).__name__ if name is None else name
        mean, std = normal_of(estimator, X)
        return cls.from_predictions(y, mean, std, name=name, unit=unit, ax=ax, **plot_options)

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
        label = self.name
        if self.auc is not None:
            label = with_name(self.name, f"AUC {self.auc:.3g} {self.unit or ''}".rstrip())
        # A larger scale first makes intervals wider at the same coverage (a vertical line). When
        # they contain one more y, the coverage steps to the right.
        defaults = {**curve_style(ax), "drawstyle": "steps-pre", "label": label}
        (self.line_,) = ax.plot(coverage, width, **style("line", defaults, line_kwargs))
        self.marker_ = None
        if mark is not None and mark <= scale[-1]:
            covered = np.searchsorted(scale, mark, side="right") - 1
            # Between points of the curve the width is linear in the scale, the coverage constant.
            at = coverage[covered], np.interp(mark, scale, width)
            defaults = {
                "color": self.line_.get_color(),
                "marker": "o",
                "linestyle": "none",
                "markeredgecolor": "white",
                "markersize": 8,
                "label": with_name(self.name, f"c = {mark:g}, coverage {at[0]:.2f}"),
            }
            (self.marker_,) = ax.plot(*at, **style("line", defaults, marker_kwargs))
        ax.set(
            xlabel="coverage", ylabel=with_unit("mean width of intervals", self.unit), xlim=(0, 1)
        )
        from_zero(ax)
        legend(ax, loc="upper left")
        return self
