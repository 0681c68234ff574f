"""Displays of calibration: quantiles, probability integral transform, class probabilities."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np
from scipy.stats import binom

from skuq._utils._checks import check_count
from skuq.metrics import (
    ece_loss,
    miscalibration_area,
    quantile_calibration_curve,
    reliability_curve,
)
from skuq.metrics._checks import check_inside_unit
from skuq.metrics._regression import read_pit
from skuq.plotting._base import (
    COLOURS,
    GREY,
    CurveDisplay,
    from_zero,
    legend,
    predictions_of,
    style,
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
    area : float, optional
        Area between curve and diagonal, at most 0.5; shown in the legend.
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
    >>> round(display.area, 2)
    0.12
    """

    expected: Any
    observed: Any
    _: KW_ONLY
    area: float | None = None
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
        expected, observed = quantile_calibration_curve(pit=pit, n_levels=n_levels)
        # The area is exact: it does not depend on the levels of the curve.
        area = miscalibration_area(pit=pit)
        return cls(expected, observed, area=area, name=name).plot(ax, **plot_options)

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
        summary = None if self.area is None else f"miscalibration area {self.area:.3f}"
        expected, observed = np.asarray(self.expected), np.asarray(self.observed)
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
class PITDisplay(CurveDisplay):
    """Histogram of the predicted probabilities of a value up to the target.

    All bars of a calibrated regressor have the same height, up to chance. A hump means that
    the predictions are too wide, a trough (high ends) that they are too narrow, a slope
    that the mean is biased.

    `from_estimator` uses the `cdf` of `predict_distribution(X)`. An estimator without it must have
    `predict(X, return_std=True)`, which gives the parameters of normals.

    Parameters
    ----------
    pit : array-like
        Probability integral transform of each target: the predicted probability of a value
        up to the target.
    n_bins : int, default=10
        Number of bars of equal width.
    name : str, optional
        Name of the estimator, for the legend.

    Attributes
    ----------
    bars_ : matplotlib BarContainer
        Densities, 1 for a calibrated regressor.
    line_ : matplotlib Line2D
        Line at density 1.
    band_ : matplotlib Polygon
        Interval that holds a bar of a calibrated regressor with probability `chance`.
    ax_, figure_ : matplotlib Axes and Figure

    Notes
    -----
    The band is the binomial interval of a single bar. At 95 % one bar of twenty is expected to
    be outside.

    References
    ----------
    Gneiting, Balabdaoui and Raftery, "Probabilistic forecasts, calibration and
    sharpness", 2007.

    Examples
    --------
    >>> from skuq.plotting import PITDisplay
    >>> display = PITDisplay([0.1, 0.3, 0.6, 0.9], n_bins=2).plot()
    >>> [float(bar.get_height()) for bar in display.bars_]
    [1.0, 1.0]
    """

    pit: Any
    _: KW_ONLY
    n_bins: int = 10
    name: str | None = None

    @classmethod
    def from_predictions(
        cls, y=None, mean=None, std=None, *, pit=None, n_bins=10, name=None, ax=None, **plot_options
    ):
        """Create a display from predicted normals or from the probability integral transform.

        Parameters
        ----------
        y, mean, std : array-like of shape (n_samples,)
            Targets, and predicted means and standard deviations.
        pit : array-like, optional
            Probability integral transform of each target, instead of `y`, `mean` and `std`.
        n_bins : int, default=10
            Number of bins.
        name : str, optional
            Name for the legend.
        ax : matplotlib Axes, optional
            Axes to draw on; by default new ones.
        **plot_options
            Passed to `plot`.

        Returns
        -------
        PITDisplay
        """
        pit = read_pit(y, mean, std, pit)
        return cls(pit, n_bins=n_bins, name=name).plot(ax, **plot_options)

    @staticmethod
    def _read_estimator(estimator, X, y):
        return {"pit": predictions_of(estimator, X, y).pit()}

    def plot(self, ax=None, *, chance=0.95, bar_kwargs=None, line_kwargs=None, band_kwargs=None):
        """Draw the histogram.

        Parameters
        ----------
        ax : matplotlib Axes, optional
            Axes to draw on; by default new ones.
        chance : float, default=0.95
            Probability with which a bar of a calibrated regressor is inside the band.
        bar_kwargs, line_kwargs, band_kwargs : dict, optional
            Keywords of `Axes.bar`, `Axes.axhline` and `Axes.axhspan`.

        Returns
        -------
        PITDisplay
            Itself.
        """
        check_inside_unit("chance", chance)
        check_count("n_bins", self.n_bins)
        values = np.asarray(self.pit, dtype=float).ravel()
        if not len(values) or not ((values >= 0) & (values <= 1)).all():
            raise ValueError(f"`pit` must be one or more numbers in [0, 1]. Got {self.pit!r}.")
        # A bar of a calibrated regressor counts Binomial(n, 1 / n_bins) targets.
        counts, edges = np.histogram(values, bins=self.n_bins, range=(0, 1))
        # Heights are densities, so that numbers of rows and of bins can be compared.
        density = self.n_bins / len(values)
        low, high = binom.interval(chance, len(values), 1 / self.n_bins)
        ax = self._open(ax)
        colour = COLOURS[len(ax.containers) % len(COLOURS)]  # differs from displays before it
        look = style(
            "area", bar_kwargs, color=colour, alpha=0.6, edgecolor="white", label=self.name
        )
        width = 1 / self.n_bins
        self.bars_ = ax.bar(edges[:-1], counts * density, width=width, align="edge", **look)
        look = style(
            "area",
            band_kwargs,
            facecolor="none",
            edgecolor=GREY,
            hatch="////",
            linewidth=0,
            alpha=0.7,
            zorder=2,
            label=f"{chance:.0%} of bars by chance, n = {len(values)}",
        )
        self.band_ = ax.axhspan(low * density, high * density, **look)
        look = style(
            "line", line_kwargs, color="black", linestyle="--", linewidth=1, label="calibrated"
        )
        self.line_ = ax.axhline(1, **look)
        ax.set(xlabel="probability integral transform", ylabel="density", xlim=(0, 1))
        # Bars are read by their height above 0.
        from_zero(ax)
        legend(ax, headroom=0.25, loc="upper left", ncols=2)
        return self


@dataclass(eq=False, repr=False)
class ReliabilityDisplay(CurveDisplay):
    """Accuracy against confidence, the probability given to the predicted class.

    A calibrated classifier is on the diagonal, an overconfident one below it. Bars at the
    bottom show the number of rows in each bin: points above low bars are uncertain.

    `from_estimator` takes a fitted classifier with `predict_proba(X)` and `classes_`.

    Parameters
    ----------
    edges : array-like of shape (n_bins + 1,)
        Edges of the bins of confidence.
    confidence, accuracy : array-like of shape (n_bins,)
        Means over the rows of each bin; NaN where it is empty.
    counts : array-like of shape (n_bins,)
        Rows in each bin.
    ece : float, optional
        Expected calibration error: the mean over rows of the gap between accuracy and
        confidence of their bin. Shown in the legend.
    name : str, optional
        Name of the estimator, for the legend.

    Attributes
    ----------
    line_, diagonal_ : matplotlib Line2D
    bars_ : matplotlib BarContainer or None
        Number of rows in each bin, drawn on `counts_ax_`.
    ax_, counts_ax_, figure_ : matplotlib Axes and Figure

    References
    ----------
    Guo, Pleiss, Sun and Weinberger, "On calibration of modern neural networks", 2017.

    Examples
    --------
    >>> from skuq.plotting import ReliabilityDisplay
    >>> display = ReliabilityDisplay.from_predictions(
    ...     [0, 1, 1], [[0.9, 0.1], [0.4, 0.6], [0.7, 0.3]], n_bins=2
    ... )
    >>> round(display.ece, 4)
    0.0667
    """

    edges: Any
    confidence: Any
    accuracy: Any
    counts: Any
    _: KW_ONLY
    ece: float | None = None
    name: str | None = None

    @classmethod
    def from_predictions(
        cls,
        y,
        proba,
        *,
        labels=None,
        n_bins=10,
        strategy="uniform",
        name=None,
        ax=None,
        **plot_options,
    ):
        """Create a display from predicted probabilities.

        Parameters
        ----------
        y : array-like of shape (n_samples,)
            True labels.
        proba : array-like of shape (n_samples, n_classes)
        labels : array-like of shape (n_classes,), optional
            Classes in the order of the columns; by default the sorted labels of y.
        n_bins : int, default=10
            Number of bins.
        strategy : {"uniform", "quantile"}, default="uniform"
            Bins of equal width, or with equal numbers of rows; see `skuq.metrics.ece_loss`.
        name : str, optional
            Name for the legend.
        ax : matplotlib Axes, optional
            Axes to draw on; by default new ones.
        **plot_options
            Passed to `plot`.

        Returns
        -------
        ReliabilityDisplay
        """
        bins = {"n_bins": n_bins, "strategy": strategy, "labels": labels}
        ece = ece_loss(y, proba, **bins)
        display = cls(*reliability_curve(y, proba, **bins), ece=ece, name=name)
        return display.plot(ax, **plot_options)

    @staticmethod
    def _read_estimator(estimator, X, y):
        if not hasattr(estimator, "predict_proba"):
            raise TypeError(f"The estimator must have `predict_proba`. Got {estimator!r}.")
        return {"y": y, "proba": estimator.predict_proba(X), "labels": estimator.classes_}

    def plot(
        self, ax=None, *, show_counts=True, line_kwargs=None, diagonal_kwargs=None, bar_kwargs=None
    ):
        """Draw the diagram.

        Parameters
        ----------
        ax : matplotlib Axes, optional
            Axes to draw on, which displays may share; by default new ones.
        show_counts : bool, default=True
            Whether to draw bars of the number of rows in each bin.
        line_kwargs, diagonal_kwargs : dict, optional
            Keywords of `Axes.plot`.
        bar_kwargs : dict, optional
            Keywords of `Axes.bar`.

        Returns
        -------
        ReliabilityDisplay
            Itself.
        """
        ax = self._open(ax)
        self._draw_diagonal(ax, diagonal_kwargs)
        edges, counts = np.asarray(self.edges), np.asarray(self.counts)
        # Means of empty bins are NaN, which would break the line.
        has_rows = counts > 0
        confidence = np.asarray(self.confidence)[has_rows]
        accuracy = np.asarray(self.accuracy)[has_rows]
        summary = None if self.ece is None else f"ECE {self.ece:.3f}"
        self._draw_curve(ax, confidence, accuracy, line_kwargs, summary, marker="o")
        self.counts_ax_ = self.bars_ = None
        if show_counts:
            # Counts have a scale of their own, on the right.
            self.counts_ax_ = ax.twinx()
            colour = self.line_.get_color()
            bars = style("area", bar_kwargs, facecolor=colour, edgecolor="white", alpha=0.3)
            self.bars_ = self.counts_ax_.bar(
                edges[:-1], counts, width=np.diff(edges), align="edge", **bars
            )
            # The highest bar takes a quarter of the height, mostly below the curve.
            self.counts_ax_.set(ylim=(0, 4 * counts.max()), yticks=[0, counts.max()])
            self.counts_ax_.set_ylabel("rows in bin", loc="bottom")
            # Put the curve above the bars: twin axes would cover it.
            ax.set_zorder(self.counts_ax_.get_zorder() + 1)
            ax.patch.set_visible(False)
        ax.set(
            xlabel="confidence: probability of predicted class",
            ylabel="accuracy",
            xlim=(0, 1),
            ylim=(0, 1),
        )
        legend(ax, loc="upper left")
        return self
