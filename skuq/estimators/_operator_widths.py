"""Widths of the predictions of operator networks, learnt from functions that they left out."""

from __future__ import annotations

import numpy as np

from skuq.predictive._calibration import fit_scale

#: Fewer functions are too few to leave some out and learn the noise.
FEWEST_FUNCTIONS = 30


def fit_widths(
    squared_error: np.ndarray, variance: np.ndarray, weight: np.ndarray, shape: tuple[int, ...]
) -> tuple[np.ndarray, np.ndarray]:
    """Fit the factor of epistemic standard deviations, and the noise, to functions left out.

    Parameters
    ----------
    squared_error, variance : ndarray of shape (n * q, m)
        Squared errors of standardised values, and the variances predicted of them.
    weight : ndarray of shape (n,)
        Weights of the functions; those of weight 0 are ignored.
    shape : tuple of int
        (1, m), or (q, m) where each column has a noise of its own.

    Returns
    -------
    factor, noise : ndarray of that shape
    """
    n = len(weight)
    per_function = len(squared_error) // n
    error, variance = (
        v.reshape(n, per_function, -1)[weight > 0] for v in (squared_error, variance)
    )
    weight = weight[weight > 0]
    factor, noise = np.ones(shape), np.zeros(shape)
    for place in np.ndindex(shape):
        columns = slice(None)  # all columns share one noise if there are too few functions
        if shape[0] > 1 and len(weight) >= FEWEST_FUNCTIONS:
            columns = slice(place[0], place[0] + 1)
        squared, predicted = (v[:, columns, place[1]] for v in (error, variance))
        rows = np.repeat(weight, squared.shape[1])
        squared, predicted = squared.reshape(-1, 1), predicted.reshape(-1, 1)
        if not squared.any():
            continue
        # Errors larger than predicted are attributed to noise first, not to the factor: equal
        # predicted variances cannot tell them apart.
        ratio = np.average(squared[:, 0], weights=rows) / np.average(predicted[:, 0], weights=rows)
        ratio = min(ratio, 1.0)
        a, floor = fit_scale(squared, ratio * predicted, rows, prior_rows=0)
        factor[place], noise[place] = np.sqrt(ratio) * a, floor
    return factor, noise
