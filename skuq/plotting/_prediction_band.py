"""Display of the predicted mean and its bands over a one-dimensional input."""

from __future__ import annotations

import numpy as np

from skuq._utils._checks import classifies, unwrap_estimator
from skuq.plotting._base import BLUE, Display, check_rows, legend, normal_of, style, with_unit

_AMBER, _AMBER_TINT, _BLUE_TINT = "#B36B00", "#F9DFB0", "#A6CEE6"


class PredictionBandDisplay(Display):
    """Predicted mean, aleatoric and total bands over a one-dimensional input.

    The total band is the prediction for new targets. The aleatoric band inside is the mean
    noise that members predict; the rim between the two is due to their disagreement, the
    epistemic uncertainty. Variances add up, not standard deviations, so the rim is narrower
    than the epistemic standard deviation.

    Parameters
    ----------
    x : array-like of shape (n_samples,)
        Inputs, in any order.
    mean, total : array-like of shape (n_samples,)
        Predicted mean and standard deviation, in units of y.
    aleatoric : array-like of shape (n_samples,), optional
        Standard deviation of the noise, at most `total`. Without it only the total band is
        drawn.
    x_train, y_train : array-like of shape (n_train,), optional
        Points to draw on top.
    x_name, name : str, default="x" and "y"
        Names of the quantities on the axes.
    unit : str, optional
        Unit of y.

    Attributes
    ----------
    line_ : matplotlib Line2D
        The mean.
    total_band_, aleatoric_band_ : matplotlib PolyCollection
        The bands; `aleatoric_band_` is None without `aleatoric`.
    scatter_ : matplotlib PathCollection or None
        Training points.
    ax_, figure_ : matplotlib Axes and Figure

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.gaussian_process import GaussianProcessRegressor
    >>> from skuq.plotting import PredictionBandDisplay
    >>> X, y = np.array([[0.0], [1.0], [3.0]]), np.array([0.0, 1.0, 0.5])
    >>> process = GaussianProcessRegressor().fit(X, y)
    >>> grid = np.linspace(-1, 4, 50)[:, None]
    >>> display = PredictionBandDisplay.from_estimator(process, grid, X_train=X, y_train=y)
    """

    def __init__(
        self,
        x,
        mean,
        total,
        *,
        aleatoric=None,
        x_train=None,
        y_train=None,
        x_name="x",
        name="y",
        unit=None,
    ):
        self.x = x
        self.mean = mean
        self.total = total
        self.aleatoric = aleatoric
        self.x_train = x_train
        self.y_train = y_train
        self.x_name = x_name
        self.name = name
        self.unit = unit

    @classmethod
    def from_estimator(
        cls,
        estimator,
        X,
        *,
        X_train=None,
        y_train=None,
        x_name=None,
        name="y",
        unit=None,
        ax=None,
        **plot_options,
    ):
        """Predict on a grid of a single feature, and draw.

        Parameters
        ----------
        estimator : fitted regressor
            It must have `predict_uncertainty(X)`, or `predict(X, return_std=True)`, which
            gives the total band only.
        X : array-like of shape (n_samples, 1)
            Inputs at which to predict.
        X_train : array-like of shape (n_train, 1), optional
            Inputs of the training points, to draw on top.
        y_train : array-like of shape (n_train,), optional
            Targets of the training points.
        x_name : str, optional
            Name of the input. By default the name of X's column, or "x".
        name, unit : str
            Name and unit of y.
        ax : matplotlib Axes, optional
            Axes to draw on; by default new ones.
        **plot_options
            Passed to `plot`.

        Returns
        -------
        PredictionBandDisplay
        """
        # Other features would have to be fixed at values that the diagram does not show.
        x = _only_feature(X, "X")
        model, inner = unwrap_estimator(estimator, X)
        if hasattr(model, "predict_uncertainty") and not classifies(model):
            parts = model.predict_uncertainty(inner)
            mean, total, aleatoric = parts.mean, parts.total, parts.aleatoric
        else:
            # Such a regressor does not divide its uncertainty by source.
            (mean, total), aleatoric = normal_of(estimator, X), None
        if x_name is None:
            x_name = str(X.columns[0]) if hasattr(X, "columns") else "x"
        display = cls(
            x,
            mean,
            total,
            aleatoric=aleatoric,
            x_train=None if X_train is None else _only_feature(X_train, "X_train"),
            y_train=y_train,
            x_name=x_name,
            name=name,
            unit=unit,
        )
        return display.plot(ax, **plot_options)

    def plot(
        self,
        ax=None,
        *,
        n_stds=2,
        line_kwargs=None,
        total_kwargs=None,
        aleatoric_kwargs=None,
        scatter_kwargs=None,
    ):
        """Draw the bands.

        Parameters
        ----------
        ax : matplotlib Axes, optional
            Axes to draw on; by default new ones.
        n_stds : float, default=2
            Half width of the bands in standard deviations.
        line_kwargs : dict, optional
            Keywords of `Axes.plot`, for the mean.
        total_kwargs, aleatoric_kwargs : dict, optional
            Keywords of `Axes.fill_between`, for the bands.
        scatter_kwargs : dict, optional
            Keywords of `Axes.scatter`, for the training points.

        Returns
        -------
        PredictionBandDisplay
            Itself.
        """
        x, mean, total = check_rows(x=self.x, mean=self.mean, total=self.total)
        # Bands are filled from left to right.
        order = np.argsort(x, kind="stable")
        x, mean, total = x[order], mean[order], total[order]
        ax = self._open(ax)
        # Without parts of the uncertainty there is no rim to explain.
        split = self.aleatoric is not None
        band = f"±{n_stds:g} std"
        defaults = {
            "facecolor": _AMBER_TINT,
            "edgecolor": _AMBER,
            "linestyle": "--",
            "linewidth": 0.8,
            "label": f"total, {band}: rim is epistemic" if split else f"total, {band}",
        }
        self.total_band_ = _fill(ax, x, mean, n_stds * total, defaults, total_kwargs)
        self.aleatoric_band_ = None
        if split:
            aleatoric = check_rows(x=self.x, aleatoric=self.aleatoric)[1][order]
            defaults = {
                "facecolor": _BLUE_TINT,
                "edgecolor": BLUE,
                "linewidth": 0.5,
                "label": f"aleatoric, {band}",
            }
            # Drawn after the total band, so that it lies on top and leaves the rim visible.
            self.aleatoric_band_ = _fill(
                ax, x, mean, n_stds * aleatoric, defaults, aleatoric_kwargs
            )
        defaults = {"color": "black", "linewidth": 1.5, "label": "mean"}
        (self.line_,) = ax.plot(x, mean, **style("line", defaults, line_kwargs))
        self.scatter_ = self._draw_points(ax, scatter_kwargs)
        ax.set(xlabel=self.x_name, ylabel=with_unit(self.name, self.unit))
        legend(ax)
        return self

    def _draw_points(self, ax, given):
        """Draw the training points; return None without any."""
        if self.x_train is None or self.y_train is None:
            return None
        x, y = check_rows(x_train=self.x_train, y_train=self.y_train)
        defaults = {
            "color": "black",
            "marker": "o",
            "s": 18,
            # A white rim tells them from the bands, the mean and each other.
            "edgecolor": "white",
            "linewidth": 0.6,
            "zorder": 3,
            "label": "training points",
        }
        return ax.scatter(x, y, **style("points", defaults, given))


def _fill(ax, x, mean, half_width, defaults, given):
    return ax.fill_between(
        x, mean - half_width, mean + half_width, **style("area", defaults, given)
    )


def _only_feature(X, name):
    """Return the single column of `X` as an array of shape (n_samples,)."""
    values = np.asarray(X, dtype=float)
    if values.ndim != 2 or values.shape[1] != 1:
        raise ValueError(f"`{name}` must have shape (n_samples, 1). Got {values.shape}.")
    return values[:, 0]
