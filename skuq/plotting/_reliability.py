"""Display of a classifier's accuracy against its confidence."""

from __future__ import annotations

import numpy as np

from skuq.metrics import ece_loss, reliability_curve
from skuq.plotting._axes import GREY, Display, curve_style, legend, style, with_name


class ReliabilityDisplay(Display):
    """Accuracy against confidence, the probability given to the predicted class.

    A calibrated classifier is on the diagonal, an overconfident one below it. Bars at the
    bottom show the number of rows in each bin: points above low bars are uncertain.

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

    def __init__(self, edges, confidence, accuracy, counts, *, ece=None, name=None):
        self.edges = edges
        self.confidence = confidence
        self.accuracy = accuracy
        self.counts = counts
        self.ece = ece
        self.name = name

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

    @classmethod
    def from_estimator(cls, estimator, X, y, *, name=None, ax=None, **options):
        """Predict with a fitted estimator, and draw.

        Parameters
        ----------
        estimator : fitted classifier
            It must have `predict_proba(X)` and `classes_`.
        X : array-like of shape (n_samples, n_features)
        y : array-like of shape (n_samples,)
            Targets.
        name : str, optional
            Name for the legend; the estimator's class by default.
        ax : matplotlib Axes, optional
            Axes to draw on; by default new ones.
        **options
            Passed to `from_predictions`.

        Returns
        -------
        ReliabilityDisplay
        """
        if not hasattr(estimator, "predict_proba"):
            raise TypeError(f"The estimator must have `predict_proba`. Got {estimator!r}.")
        name = type(estimator).__name__ if name is None else name
        proba = estimator.predict_proba(X)
        return cls.from_predictions(
            y, proba, labels=estimator.classes_, name=name, ax=ax, **options
        )

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
        defaults = {"color": GREY, "linestyle": ":", "linewidth": 1, "label": "calibrated"}
        (self.diagonal_,) = ax.plot([0, 1], [0, 1], **style("line", defaults, diagonal_kwargs))
        label = self.name
        if self.ece is not None:
            label = with_name(self.name, f"ECE {self.ece:.3f}")
        has_rows = np.asarray(self.counts) > 0
        defaults = {**curve_style(ax), "marker": "o", "label": label}
        (self.line_,) = ax.plot(
            np.asarray(self.confidence)[has_rows],
            np.asarray(self.accuracy)[has_rows],
            **style("line", defaults, line_kwargs),
        )
        self.counts_ax_ = self.bars_ = None
        if show_counts:
            self._draw_counts(ax, bar_kwargs)
        ax.set(
            xlabel="confidence: probability of predicted class",
            ylabel="accuracy",
            xlim=(0, 1),
            ylim=(0, 1),
        )
        legend(ax, loc="upper left")
        return self

    def _draw_counts(self, ax, given):
        """Draw the number of rows in each bin as bars, on axes of their own."""
        self.counts_ax_ = ax.twinx()
        edges, counts = np.asarray(self.edges), np.asarray(self.counts)
        defaults = {
            "facecolor": self.line_.get_color(),
            "edgecolor": "white",
            "alpha": 0.3,
        }
        self.bars_ = self.counts_ax_.bar(
            edges[:-1], counts, width=np.diff(edges), align="edge", **style("area", defaults, given)
        )
        # The highest bar takes a quarter of the height, mostly below the curve.
        self.counts_ax_.set(ylim=(0, 4 * counts.max()), yticks=[0, counts.max()])
        self.counts_ax_.set_ylabel("rows in bin", loc="bottom")
        ax.set_zorder(self.counts_ax_.get_zorder() + 1)
        ax.patch.set_visible(False)
