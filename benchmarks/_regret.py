"""Pictures of searches over several seeds: the median, and the middle half of the seeds."""

from itertools import cycle

import numpy as np

_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#000000")
_STYLES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1, 1, 1)), (0, (1, 1)))


def draw_curves(ax, curves, label, log=True):
    """Draw a line and a band for each method: name to (n_seeds, n_evaluations)."""
    for (name, runs), colour, style in zip(curves.items(), cycle(_COLOURS), cycle(_STYLES)):
        low, middle, high = np.quantile(runs, [0.25, 0.5, 0.75], axis=0)
        steps = np.arange(1, len(middle) + 1)
        ax.step(steps, middle, where="post", color=colour, linestyle=style, label=name)
        ax.fill_between(steps, low, high, step="post", color=colour, alpha=0.2, linewidth=0)
    if log:
        ax.set_yscale("log", nonpositive="clip")
    ax.set(xlabel="evaluations", ylabel=label)
    ax.legend(fontsize="small")
