"""Display of the histogram of the probability integral transform."""

from __future__ import annotations

import numpy as np
from scipy.stats import binom

from skuq.metrics import pit_values
from skuq.plotting._axes import BLUE, GREY, Display, from_zero, legend, style
from skuq.plotting._predictions import check_pit, pit_of_estimator


class PITDisplay(Display):
    """Histogram of the predicted probabilities of a value up to the target.

    All bars of a calibrated regressor have the same height, up to chance. A hump means that
    the predictions are too wide, a trough (high ends) that they are too narrow, a slope
    that the mean is biased.

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

    def __init__(self, pit, *, n_bins=10, name=None):
        self.pit = pit
        self.n_bins = n_bins
        self.name = name

    @classmethod
    def from_predictions(cls, y, mean, std, *, n_bins=10, name=None, ax=None, **plot_options):
        """Create a display from predicted normals.

        Parameters
        ----------
        y, mean, std : array-like of shape (n_samples,)
            Targets, and predicted means and standard deviations.
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
        return cls(pit_values(y, mean, std), n_bins=n_bins, name=name).plot(ax, **plot_options)

    @classmethod
    def from_estimator(cls, estimator, X, y, *, n_bins=10, name=None, ax=None, **plot_options):
        """Predict with a fitted estimator, and draw.

        Parameters
        ----------
        estimator : fitted regressor
            If it has `predict_distribution(X)`, the `cdf` of the distribution is used.
            Otherwise `predict(X, return_std=True)` gives the parameters of normals.
        X : array-like of shape (n_samples, n_features)
        y : array-like of shape (n_samples,)
            Targets.
        n_bins, name, ax, **plot_options
            The same as in `from_predictions`; `name` is the estimator's class by default.

        Returns
        -------
        PITDisplay
        """
        name = type(estimator).__name__ if name is None else name
        pit = pit_of_estimator(estimator, X, y)
        return cls(pit, n_bins=n_bins, name=name).plot(ax, **plot_options)

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
        if not 0 < chance < 1:
            raise ValueError(f"`chance` must lie strictly in (0, 1). Got {chance}.")
        values = check_pit(self.pit)
        # A bar of a calibrated regressor counts Binomial(n, 1 / n_bins) targets.
        counts, edges = np.histogram(values, bins=self.n_bins, range=(0, 1))
        density = self.n_bins / len(values)
        low, high = binom.interval(chance, len(values), 1 / self.n_bins)
        ax = self._open(ax)
        defaults = {"color": BLUE, "alpha": 0.6, "edgecolor": "white", "label": self.name}
        self.bars_ = ax.bar(
            edges[:-1],
            counts * density,
            width=1 / self.n_bins,
            align="edge",
            **style("area", defaults, bar_kwargs),
        )
        defaults = {
            "facecolor": "none",
            "edgecolor": GREY,
            "hatch": "////",
            "linewidth": 0,
            "alpha": 0.7,
            "zorder": 2,
            "label": f"{chance:.0%} of bars by chance, n = {len(values)}",
        }
        self.band_ = ax.axhspan(
            low * density, high * density, **style("area", defaults, band_kwargs)
        )
        defaults = {"color": "black", "linestyle": "--", "linewidth": 1, "label": "calibrated"}
        self.line_ = ax.axhline(1, **style("line", defaults, line_kwargs))
        ax.set(
            xlabel="probability integral transform",
            ylabel="density",
            xlim=(0, 1),
        )
        from_zero(ax)
        legend(ax, headroom=0.25, loc="upper left", ncols=2)
        return self
