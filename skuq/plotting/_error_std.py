"""Display of absolute errors against predicted standard deviations."""

from __future__ import annotations

import numpy as np

from skuq.plotting._axes import GREY, VERMILION, Display, from_zero, legend, style, with_unit
from skuq.plotting._predictions import check_rows, normal_of


class ErrorStdDisplay(Display):
    """Absolute errors against predicted standard deviations, for rows and for bins of rows.

    Rows are put into bins of equal size by their standard deviation. In each bin the root
    mean squared error should equal the root mean square of the standard deviations, which
    is the ideal line.

    Parameters
    ----------
    error, std : array-like of shape (n_samples,)
        Target minus mean (the sign does not matter), and predicted standard deviation, in
        units of y.
    n_bins : int, default=10
        Number of bins, at most the number of rows.
    name : str, default="y"
        Name of the predicted quantity.
    unit : str, optional
        Unit of y.

    Attributes
    ----------
    scatter_ : matplotlib PathCollection
        Rows.
    line_ : matplotlib Line2D
        Bins.
    ideal_ : matplotlib Line2D
        Diagonal on which error and standard deviation are equal.
    ax_, figure_ : matplotlib Axes and Figure

    References
    ----------
    Levi, Gispan, Giladi and Fetaya, "Evaluating and calibrating uncertainty prediction in
    regression tasks", 2022.

    Examples
    --------
    >>> from skuq.plotting import ErrorStdDisplay
    >>> display = ErrorStdDisplay([1.0, -2.0, 3.0, 5.0], [1.0, 1.0, 4.0, 4.0], n_bins=2).plot()
    >>> display.line_.get_ydata().round(2).tolist()
    [1.58, 4.12]
    """

    def __init__(self, error, std, *, n_bins=10, name="y", unit=None):
        self.error = error
        self.std = std
        self.n_bins = n_bins
        self.name = name
        self.unit = unit

    @classmethod
    def from_predictions(
        cls, y, mean, std, *, n_bins=10, name="y", unit=None, ax=None, **plot_options
    ):
        """Create a display from predicted means and standard deviations.

        Parameters
        ----------
        y, mean, std : array-like of shape (n_samples,)
            Targets, and predicted means and standard deviations.
        n_bins : int, default=10
            Number of bins, at most the number of rows.
        name, unit : str, optional
            Name and unit of y for the labels.
        ax : matplotlib Axes, optional
            Axes to draw on; by default new ones.
        **plot_options
            Passed to `plot`.

        Returns
        -------
        ErrorStdDisplay
        """
        y, mean, std = check_rows(y=y, mean=mean, std=std)
        display = cls(y - mean, std, n_bins=n_bins, name=name, unit=unit)
        return display.plot(ax, **plot_options)

    @classmethod
    def from_estimator(cls, estimator, X, y, *, ax=None, **options):
        """Predict with a fitted estimator, and draw.

        Parameters
        ----------
        estimator : fitted regressor
            It must have `predict(X, return_std=True)`.
        X : array-like of shape (n_samples, n_features)
        y : array-like of shape (n_samples,)
            Targets.
        ax : matplotlib Axes, optional
            Axes to draw on; by default new ones.
        **options
            Passed to `from_predictions`.

        Returns
        -------
        ErrorStdDisplay
        """
        return cls.from_predictions(y, *normal_of(estimator, X), ax=ax, **options)

    def plot(self, ax=None, *, scatter_kwargs=None, line_kwargs=None, ideal_kwargs=None):
        """Draw rows, bins and the ideal line.

        Parameters
        ----------
        ax : matplotlib Axes, optional
            Axes to draw on; by default new ones.
        scatter_kwargs : dict, optional
            Keywords of `Axes.scatter`.
        line_kwargs, ideal_kwargs : dict, optional
            Keywords of `Axes.plot`.

        Returns
        -------
        ErrorStdDisplay
            Itself.
        """
        error, std = check_rows(error=self.error, std=self.std)
        error = np.abs(error)
        ax = self._open(ax)
        defaults = {
            "color": GREY,
            "marker": ".",
            "s": 14,
            "alpha": 0.5,
            "linewidth": 0,
            "label": "absolute error of a row",
        }
        self.scatter_ = ax.scatter(std, error, **style("points", defaults, scatter_kwargs))
        bins = np.array_split(np.argsort(std, kind="stable"), min(self.n_bins, len(std)))
        defaults = {
            "color": VERMILION,
            "marker": "o",
            "label": f"root mean square of {len(bins)} equal bins",
        }
        (self.line_,) = ax.plot(
            [_rms(std[rows]) for rows in bins],
            [_rms(error[rows]) for rows in bins],
            **style("line", defaults, line_kwargs),
        )
        ends = np.array([std.min(), std.max()])
        defaults = {"color": "black", "linestyle": "--", "linewidth": 1, "label": "ideal"}
        (self.ideal_,) = ax.plot(ends, ends, **style("line", defaults, ideal_kwargs))
        ax.set(
            xlabel=with_unit(f"predicted standard deviation of {self.name}", self.unit),
            ylabel=with_unit(f"error of {self.name}", self.unit),
        )
        from_zero(ax)
        legend(ax, headroom=0.2, loc="upper left", ncols=2)
        return self


def _rms(values):
    """Return the root mean square."""
    return np.sqrt(np.mean(values**2))
