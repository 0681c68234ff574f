"""Display of calibration."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np

from skuq.metrics import coverage_width_auc, coverage_width_curve, quantile_calibration_curve
from skuq.metrics._scores import read_pit
from skuq.plotting._display import (
    CurveDisplay,
    check_rows,
    draw_line,
    from_zero,
    legend,
    predictions_of,
    with_name,
    with_unit,
)


@dataclass(eq=False, repr=False)
class QuantileCalibrationDisplay(CurveDisplay):
    """Share of targets below each predicted quantile, against the quantile's level.

    A calibrated regressor is on the diagonal. A curve that is below the diagonal for low
    levels and above it for high levels means that predictions are too wide; the opposite
    means that they are too narrow (overconfident). A curve on one side of the diagonal for
    all levels means that the mean is biased.

    `from_estimator` uses the `cdf` of `predict_distribution(X)`. An estimator without it must have
    `predict(X, return_std=True)`, which gives the parameters of normals.

    Parameters
    ----------
    expected, observed : array-like of shape (n_levels,)
        Levels of the quantiles, and the share of targets at or below them.
    name : str, optional
        Name of the estimator, for the legend.

    Attributes
    ----------
    line_, diagonal_ : matplotlib Line2D
    ax_, figure_ : matplotlib Axes and Figure

    References
    ----------
    Kuleshov, Fenner and Ermon, "Accurate uncertainties for deep learning using calibrated
    regression", ICML 2018.

    Examples
    --------
    >>> from skuq.plotting import QuantileCalibrationDisplay
    >>> display = QuantileCalibrationDisplay.from_predictions(
    ...     [0.0, 1.0, 2.0], mean=[0.1, 0.8, 2.5], std=[0.5, 0.5, 0.5]
    ... )
    >>> display.observed[[0, 50, 100]].round(2)
    array([0.  , 0.67, 1.  ])
    """

    expected: Any
    observed: Any
    _: KW_ONLY
    name: str | None = None

    @classmethod
    def from_predictions(
        cls,
        y=None,
        mean=None,
        std=None,
        *,
        pit=None,
        n_levels=101,
        name=None,
        ax=None,
        **plot_options,
    ):
        """Create a display from predicted normals or from the probability integral transform.

        Parameters
        ----------
        y, mean, std : array-like of shape (n_samples,)
            Targets and predictions.
        pit : array-like, optional
            Probability integral transform of each target, instead of `y`, `mean` and `std`:
            the predicted probability of a value up to the target; see
            `skuq.predictive.GaussianMixture.cdf`.
        n_levels : int, default=101
            Number of levels, equally spaced from 0 to 1.
        name : str, optional
            Name for the legend.
        ax : matplotlib Axes, optional
            Axes to draw on; by default new ones.
        **plot_options
            Passed to `plot`.

        Returns
        -------
        QuantileCalibrationDisplay
        """
        pit = np.ravel(read_pit(y, mean, std, pit))
        curve = quantile_calibration_curve(pit=pit, n_levels=n_levels)
        return cls(*curve, name=name).plot(ax, **plot_options)

    @staticmethod
    def _read_estimator(estimator, X, y):
        return {"pit": predictions_of(estimator, X, y).pit()}

    def plot(self, ax=None, *, line_kwargs=None, diagonal_kwargs=None):
        """Draw the curve.

        Parameters
        ----------
        ax : matplotlib Axes, optional
            Axes to draw on, which displays may share; by default new ones.
        line_kwargs, diagonal_kwargs : dict, optional
            Keywords of `Axes.plot`.

        Returns
        -------
        QuantileCalibrationDisplay
            Itself.
        """
        ax = self._open(ax)
        self._draw_diagonal(ax, diagonal_kwargs)
        expected, observed = np.asarray(self.expected), np.asarray(self.observed)
        summary = f"calibration error {np.abs(observed - expected).mean():.3f}"
        self._draw_curve(ax, expected, observed, line_kwargs, summary)
        # Both axes are shares of rows: equal scales let the diagonal rise at 45 degrees.
        ax.set(
            xlabel="expected share of targets below quantile",
            ylabel="observed share",
            xlim=(0, 1),
            ylim=(0, 1),
            aspect="equal",
        )
        legend(ax, loc="upper left")
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
