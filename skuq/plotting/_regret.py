"""Display of the regret of optimisers."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from scipy import stats

from skuq.metrics._checks import check_choice
from skuq.plotting._axes import Display, curve_style, legend, style, whole_numbers_below, with_unit

_INTERVALS = {"median": 0.5, "mean": 0.95}  # default of `interval` for each `average`
_ROUNDING = 1e-9  # share of the optimum by which a value can be better


class RegretDisplay(Display):
    """Simple regret, or the best value so far, against the number of evaluations.

    There is one line for each method: the median over seeds with a central interval of the
    seeds, or the mean over seeds with its confidence interval.

    Parameters
    ----------
    curves : dict of str to ndarray of shape (n_seeds, n_evaluations)
        Regret or best value of each method after each evaluation.
    regret : bool, default=True
        Whether the curves are regret, which is never negative and best at 0.
    unit : str, optional
        Unit of the values.

    Attributes
    ----------
    lines_ : list of matplotlib Line2D
    bands_ : list of matplotlib PolyCollection
        Bands of the methods with two or more seeds.
    ax_, figure_ : matplotlib Axes and Figure

    Examples
    --------
    >>> from skuq.plotting import RegretDisplay
    >>> display = RegretDisplay.from_values({"random": [[3.0, 5.0, 2.0]]}, optimum=1.0)
    >>> display.curves["random"].tolist()
    [[2.0, 2.0, 1.0]]
    """

    def __init__(self, curves, *, regret=True, unit=None):
        self.curves = curves
        self.regret = regret
        self.unit = unit

    @classmethod
    def from_values(
        cls, values, *, optimum=None, maximize=False, unit=None, ax=None, **plot_options
    ):
        """Create a display from the values found, in the order of evaluation.

        Parameters
        ----------
        values : dict of str to array-like of shape (n_evaluations,) or (n_seeds, n_evaluations)
            Values of each method. NaN is an evaluation that failed.
        optimum : float, optional
            The best possible value. If given, regret is drawn, otherwise the best value so
            far.
        maximize : bool, default=False
            Whether large values are good.
        unit : str, optional
            Unit of the values for the label.
        ax : matplotlib Axes, optional
            Axes to draw on; by default new ones.
        **plot_options
            Passed to `plot`.

        Returns
        -------
        RegretDisplay

        Raises
        ------
        TypeError, ValueError
            If `values` has another form, or a value is better than the optimum.
        """
        if not isinstance(values, Mapping) or not values:
            raise TypeError(f"`values` must be a dict of method to values. Got {values!r}.")
        curves = {name: _best_so_far(name, runs, maximize) for name, runs in values.items()}
        if optimum is not None:
            sign = -1 if maximize else 1
            curves = {name: sign * (best - optimum) for name, best in curves.items()}
            rounding = _ROUNDING * max(1.0, abs(optimum))
            if any((curve < -rounding).any() for curve in curves.values()):
                raise ValueError(
                    f"`values` must not be better than `optimum`. Got a better one than {optimum}."
                )
            curves = {name: np.maximum(curve, 0.0) for name, curve in curves.items()}
        return cls(curves, regret=optimum is not None, unit=unit).plot(ax, **plot_options)

    def plot(
        self,
        ax=None,
        *,
        average="median",
        interval=None,
        log=None,
        line_kwargs=None,
        band_kwargs=None,
    ):
        """Draw the curves.

        Parameters
        ----------
        ax : matplotlib Axes, optional
            Axes to draw on; by default new ones.
        average : {"median", "mean"}, default="median"
            Average over seeds.
        interval : float, optional
            Level of the band. For the median the share of seeds inside, by default 0.5 (from
            the lower to the upper quartile). For the mean the level of its confidence
            interval by Student's t, by default 0.95.
        log : bool, optional
            Whether the vertical axis is logarithmic; by default only for regret.
        line_kwargs, band_kwargs : dict, optional
            Keywords of `Axes.plot` and `Axes.fill_between`.

        Returns
        -------
        RegretDisplay
            Itself.
        """
        check_choice("average", average, tuple(_INTERVALS))
        interval = _INTERVALS[average] if interval is None else interval
        if not 0 < interval < 1:
            raise ValueError(f"`interval` must lie strictly in (0, 1). Got {interval}.")
        ax = self._open(ax)
        self.lines_, self.bands_ = [], []
        for name, curve in self.curves.items():
            runs = np.atleast_2d(np.asarray(curve, dtype=float))
            middle, low, high = _summary(runs, average, interval)
            x = np.arange(1, runs.shape[1] + 1)
            defaults = {**curve_style(ax), "drawstyle": "steps-post", "label": name}
            self.lines_ += ax.plot(x, middle, **style("line", defaults, line_kwargs))
            if len(runs) > 1:
                defaults = {
                    "color": self.lines_[-1].get_color(),
                    "alpha": 0.2,
                    "linewidth": 0,
                    "step": "post",
                }
                band = style("area", defaults, band_kwargs)
                self.bands_.append(ax.fill_between(x, low, high, **band))
        if self.regret if log is None else log:
            ax.set_yscale("log", nonpositive="clip")
        ax.set(
            xlabel="evaluations",
            ylabel=with_unit("simple regret" if self.regret else "best value so far", self.unit),
        )
        whole_numbers_below(ax)
        legend(ax, title=self._caption(average, interval))
        return self

    def _caption(self, average, interval):
        """Describe how curves of several seeds are averaged; None if each has a single seed."""
        counts = {len(np.atleast_2d(curve)) for curve in self.curves.values()}
        if counts == {1}:
            return None
        least, most = min(counts), max(counts)
        seeds = f"{most} seeds" if least == most else f"{least} to {most} seeds"
        if average == "mean":
            return f"mean of {seeds}, {interval:.0%} confidence"
        return f"median of {seeds}, band holds {interval:.0%} of them"


def _best_so_far(name, runs, maximize):
    """Return the best value up to each evaluation, of shape (n_seeds, n_evaluations)."""
    runs = np.atleast_2d(np.asarray(runs, dtype=float))
    if runs.ndim != 2 or not runs.size:
        raise ValueError(
            f"Values of {name!r} must have shape (n_seeds, n_evaluations). Got {runs.shape}."
        )
    # fmin and fmax ignore NaN; values before the first success stay NaN.
    return (np.fmax if maximize else np.fmin).accumulate(runs, axis=1)


def _summary(runs, average, interval):
    """Return the average and the ends of the band over seeds, each (n_evaluations,)."""
    if average == "median":
        return np.quantile(runs, [0.5, (1 - interval) / 2, (1 + interval) / 2], axis=0)
    mean = runs.mean(axis=0)
    if len(runs) < 2:
        return mean, mean, mean
    error = stats.sem(runs, axis=0) * stats.t.ppf((1 + interval) / 2, len(runs) - 1)
    return mean, mean - error, mean + error
