"""Displays of predictions: bands, calibration curves and retention."""

from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np
from sklearn.utils.validation import check_consistent_length, column_or_1d

from skuq import metrics
from skuq._params import as_floats, class_codes, classifies, fill_masked, refuse, unwrap_estimator
from skuq.metrics._scores import read_pit
from skuq.plotting import _display
from skuq.tables._columns import column_names

_AMBER, _AMBER_TINT, _BLUE_TINT = "#B36B00", "#F9DFB0", "#A6CEE6"


@dataclass(eq=False, repr=False)
class PredictionBandDisplay(_display.Display):
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
        Names of the quantities on the axes, with their units if they have some.

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

    x: Any
    mean: Any
    total: Any
    _: KW_ONLY
    aleatoric: Any = None
    x_train: Any = None
    y_train: Any = None
    x_name: str = "x"
    name: str = "y"

    @classmethod
    def from_estimator(
        cls, estimator, X, *, X_train=None, y_train=None, x_name=None, name="y", ax=None, **options
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
        name : str
            Name of y.
        ax : matplotlib Axes, optional
            Axes to draw on; by default new ones.
        **options
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
            (mean, total), aleatoric = _display.predictions_of(estimator, X).normal, None
        if x_name is None:
            x_name = "x" if (names := column_names(X)) is None else str(names[0])
        x_train = None if X_train is None else _only_feature(X_train, "X_train")
        points = {"x_train": x_train, "y_train": y_train}
        display = cls(x, mean, total, aleatoric=aleatoric, x_name=x_name, name=name, **points)
        return display.plot(ax, **options)

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
        x, mean, total = _display.check_rows(x=self.x, mean=self.mean, total=self.total)
        # Bands are filled from left to right.
        order = np.argsort(x, kind="stable")
        x, mean, total = x[order], mean[order], total[order]
        ax = self._open(ax)
        # Without parts of the uncertainty there is no rim to explain.
        split, band = self.aleatoric is not None, f"±{n_stds:g} std"
        label = f"total, {band}: rim is epistemic" if split else f"total, {band}"

        def fill(std, given, **look):
            ends, look = n_stds * std, _display.style("area", given, **look)
            return ax.fill_between(x, mean - ends, mean + ends, **look)

        look = {"facecolor": _AMBER_TINT, "edgecolor": _AMBER, "linestyle": "--", "label": label}
        self.total_band_ = fill(total, total_kwargs, linewidth=_display.Sizes.edge, **look)
        self.aleatoric_band_ = None
        if split:
            aleatoric = _display.check_rows(x=self.x, aleatoric=self.aleatoric)[1][order]
            look = {"facecolor": _BLUE_TINT, "edgecolor": _display.BLUE, "linewidth": 0.5}
            # Drawn after the total band, so that it lies on top and leaves the rim visible.
            look["label"] = f"aleatoric, {band}"
            self.aleatoric_band_ = fill(aleatoric, aleatoric_kwargs, **look)
        look = {"color": "black", "linewidth": _display.Sizes.line, "label": "mean"}
        self.line_ = _display.draw_line(ax, x, mean, line_kwargs, **look)
        self.scatter_ = None
        if self.x_train is not None and self.y_train is not None:
            x, y = _display.check_rows(x_train=self.x_train, y_train=self.y_train)
            # A white rim tells them from the bands, the mean and each other.
            look = {"color": "black", "edgecolor": "white", "label": "training points"}
            look |= {"s": _display.Sizes.point_area, "linewidth": _display.Sizes.rim}
            look["zorder"] = _display.Sizes.points_layer
            self.scatter_ = ax.scatter(x, y, **_display.style("points", scatter_kwargs, **look))
        ax.set(xlabel=self.x_name, ylabel=self.name)
        _display.legend(ax)
        return self


def _only_feature(X, name):
    if np.ndim(X) != 2 or np.shape(X)[1] != 1:
        raise ValueError(f"`{name}` must have shape (n_samples, 1). Got {np.shape(X)}.")
    return as_floats(X, name)[:, 0]


@dataclass(eq=False, repr=False)
class RetentionDisplay(_display.CurveDisplay):
    """Error-retention curve: keep the most certain rows, replace the others by the truth.

    The curve rises from 0, where no row is predicted, to the error of all rows. It is a
    straight line if rows are kept in random order, and as low as possible if those with the
    smallest errors are kept first (the oracle). A smaller error *and* a better order both
    reduce the area under the curve.

    Parameters
    ----------
    errors : array-like of shape (n_samples,)
        Loss of each row, not negative.
    uncertainty : array-like of shape (n_samples,)
        Rows are kept in ascending order of uncertainty, and in random order if it is equal.
    name : str, optional
        Name of the estimator, for the legend.
    error_name : str, default="mean error"
        Label of the vertical axis.

    Attributes
    ----------
    line_, random_, oracle_ : matplotlib Line2D
    ax_, figure_ : matplotlib Axes and Figure

    References
    ----------
    Malinin et al., "Shifts: A dataset of real distributional shift across multiple
    large-scale tasks", 2021.

    Examples
    --------
    >>> from skuq.plotting import RetentionDisplay
    >>> display = RetentionDisplay([0.0, 3.0, 1.0, 0.0], [0.1, 0.9, 0.3, 0.2]).plot()
    >>> display.line_.get_ydata().tolist()
    [0.0, 0.0, 0.0, 0.25, 1.0]
    """

    errors: Any
    uncertainty: Any
    _: KW_ONLY
    name: str | None = None
    error_name: str = "mean error"

    @classmethod
    def from_predictions(cls, y, mean, std, *, name=None, ax=None, **plot_options):
        """Create a display of squared errors, with rows in the order of their standard deviations.

        Parameters
        ----------
        y, mean, std : array-like of shape (n_samples,)
            Targets, and predicted means and standard deviations.
        name : str, optional
            Name for the legend.
        ax : matplotlib Axes, optional
            Axes to draw on; by default new ones.
        **plot_options
            Passed to `plot`.

        Returns
        -------
        RetentionDisplay
        """
        y, mean, std = _display.check_rows(y=y, mean=mean, uncertainty=std)  # 0 is certain
        refuse({f"`std` must not be negative. Got {std.min()}.": bool((std < 0).any())})
        display = cls((y - mean) ** 2, std, name=name, error_name="mean squared error")
        return display.plot(ax, **plot_options)

    @classmethod
    def from_estimator(cls, estimator, X, y, *, name=None, ax=None, **plot_options):
        """Predict with a fitted estimator, and draw.

        Parameters
        ----------
        estimator : fitted regressor or classifier
            A regressor must have `predict(X, return_std=True)`; the errors are squared
            errors, the uncertainty is the standard deviation. The errors of a classifier
            are 1 for wrong labels and 0 for others, the uncertainty is
            `predict_uncertainty(X).total` or, if it has no such method, one minus the
            largest probability of `predict_proba(X)`.
        X : array-like of shape (n_samples, n_features)
        y : array-like of shape (n_samples,)
            Targets.
        name, ax, **plot_options
            The same as in `from_predictions`; `name` is the estimator's class by default.

        Returns
        -------
        RetentionDisplay
        """
        if not classifies(estimator):
            return super().from_estimator(estimator, X, y, name=name, ax=ax, **plot_options)
        name = type(estimator).__name__ if name is None else name
        y = column_or_1d(fill_masked(y))
        check_consistent_length(X, y)
        class_codes(y, np.asarray(estimator.classes_))  # an unknown label would count as an error
        errors = (estimator.predict(X) != y).astype(float)
        # Pipelines and searches do not delegate `predict_uncertainty`: ask the model inside.
        model, inner = unwrap_estimator(estimator, X)
        if hasattr(model, "predict_uncertainty"):
            uncertainty = model.predict_uncertainty(inner).total
        else:
            uncertainty = 1 - np.max(model.predict_proba(inner), axis=1)
        return cls(errors, uncertainty, name=name, error_name="error rate").plot(ax, **plot_options)

    def plot(
        self, ax=None, *, bounds=True, line_kwargs=None, random_kwargs=None, oracle_kwargs=None
    ):
        """Draw the curve beside those of a random order and of an oracle.

        Parameters
        ----------
        ax : matplotlib Axes, optional
            Axes to draw on, which displays may share; by default new ones.
        bounds : bool, default=True
            Whether to draw the lines of the random order and of the oracle, which crowd a
            diagram of many models.
        line_kwargs, random_kwargs, oracle_kwargs : dict, optional
            Keywords of `Axes.plot`.

        Returns
        -------
        RetentionDisplay
            Itself.
        """
        errors, uncertainty = _display.check_rows(errors=self.errors, uncertainty=self.uncertainty)
        # Signed errors would cancel, and the curve would not rise.
        if (errors < 0).any():
            raise ValueError(f"`errors` must not be negative. The smallest is {errors.min()}.")
        retained, left = metrics.error_retention_curve(errors, uncertainty)
        ax, area = self._open(ax), metrics.retention_auc(errors, uncertainty)
        self._draw_curve(ax, retained, left, line_kwargs, f"area {area:.4g}")
        self.random_ = self.oracle_ = None
        if bounds:
            # They depend on the model's errors, so they have the colour of its curve.
            reference = {"color": self.line_.get_color(), "linewidth": 1, "alpha": 0.8}
            look = {**reference, "linestyle": ":", "label": "random order"}
            self.random_ = _display.draw_line(ax, [0, 1], [0, left[-1]], random_kwargs, **look)
            # The lowest curve possible: the errors themselves are the uncertainty.
            best = metrics.error_retention_curve(errors, errors)
            look = {**reference, "linestyle": (0, (1, 3, 6, 3)), "label": "oracle: by error"}
            self.oracle_ = _display.draw_line(ax, *best, oracle_kwargs, **look)
        ax.set(
            xlabel="share of rows predicted, most certain first",
            ylabel=f"{self.error_name}, others exact",
            xlim=(0, 1),
        )
        if ax.dataLim.y0 >= 0:  # false if the user drew negative values on the same axes
            ax.set_ylim(bottom=0, auto=True)
        # Curves rise to the right: the upper left corner is free.
        _display.legend(ax, loc="upper left")
        return self


@dataclass(eq=False, repr=False)
class QuantileCalibrationDisplay(_display.CurveDisplay):
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
        curve = metrics.quantile_calibration_curve(pit=pit, n_levels=n_levels)
        return cls(*curve, name=name).plot(ax, **plot_options)

    @staticmethod
    def _read_estimator(estimator, X, y):
        return {"pit": _display.predictions_of(estimator, X, y).pit()}

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
        look = {"color": _display.GREY, "linestyle": ":", "linewidth": 1, "label": "calibrated"}
        self.diagonal_ = _display.draw_line(ax, [0, 1], [0, 1], diagonal_kwargs, **look)
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
        # Curves rise to the right: the upper left corner is free.
        _display.legend(ax, loc="upper left")
        return self
