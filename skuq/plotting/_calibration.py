"""Display of calibration."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np

from skuq.metrics import quantile_calibration_curve
from skuq.metrics._regression import read_pit
from skuq.plotting._base import CurveDisplay, legend, predictions_of


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
