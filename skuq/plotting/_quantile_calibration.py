"""Display of the calibration of predicted quantiles."""

from __future__ import annotations

import numpy as np

from skuq.metrics import miscalibration_area, pit_values, quantile_calibration_curve
from skuq.plotting._axes import GREY, Display, curve_style, legend, style, with_name
from skuq.plotting._predictions import pit_of_estimator


class QuantileCalibrationDisplay(Display):
    """Share of targets below each predicted quantile, against the quantile's level.

    A calibrated regressor is on the diagonal. A curve that is below the diagonal for low
    levels and above it for high levels means that predictions are too wide; the opposite
    means that they are too narrow (overconfident). A curve on one side of the diagonal for
    all levels means that the mean is biased.

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

    def __init__(self, expected, observed, *, area=None, name=None):
        self.expected = expected
        self.observed = observed
        self.area = area
        self.name = name

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
        pit = np.ravel(pit_values(y, mean, std) if pit is None else pit)
        expected, observed = quantile_calibration_curve(pit=pit, n_levels=n_levels)
        area = miscalibration_area(pit=pit)
        return cls(expected, observed, area=area, name=name).plot(ax, **plot_options)

    @classmethod
    def from_estimator(cls, estimator, X, y, *, n_levels=101, name=None, ax=None, **plot_options):
        """Predict with a fitted estimator, and draw.

        Parameters
        ----------
        estimator : fitted regressor
            If it has `predict_distribution(X)`, the `cdf` of the distribution is used.
            Otherwise `predict(X, return_std=True)` gives the parameters of normals.
        X : array-like of shape (n_samples, n_features)
        y : array-like of shape (n_samples,)
            Targets.
        n_levels, name, ax, **plot_options
            The same as in `from_predictions`; `name` is the estimator's class by default.

        Returns
        -------
        QuantileCalibrationDisplay
        """
        name = type(estimator).__name__ if name is None else name
        pit = pit_of_estimator(estimator, X, y)
        return cls.from_predictions(pit=pit, n_levels=n_levels, name=name, ax=ax, **plot_options)

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
        defaults = {"color": GREY, "linestyle": ":", "linewidth": 1, "label": "calibrated"}
        (self.diagonal_,) = ax.plot([0, 1], [0, 1], **style("line", defaults, diagonal_kwargs))
        label = self.name
        if self.area is not None:
            label = with_name(self.name, f"miscalibration area {self.area:.3f}")
        defaults = {**curve_style(ax), "label": label}
        (self.line_,) = ax.plot(
            np.asarray(self.expected),
            np.asarray(self.observed),
            **style("line", defaults, line_kwargs),
        )
        ax.set(
            xlabel="expected share of targets below quantile",
            ylabel="observed share",
            xlim=(0, 1),
            ylim=(0, 1),
            aspect="equal",
        )
        legend(ax, loc="upper left")
        return self
