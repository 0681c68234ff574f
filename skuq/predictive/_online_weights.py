"""Weights of experts and a memory of scores, for trackers that learn online.

An expert is one step size or one rate of forgetting. Notation: k experts, m outputs (absent where
there is one).
"""

from __future__ import annotations

import numpy as np

_REMEMBERED = 500  # last rows that a tracker describes


def update_weights(
    weights: np.ndarray, losses: np.ndarray, share: float, prior: np.ndarray | float
) -> np.ndarray:
    """Multiply the weights (k[, m]) of experts by exp(-losses), and mix a share of a prior in.

    The share lets an expert that was bad for long become important again.

    References
    ----------
    Herbster and Warmuth (1998), "Tracking the best expert".
    """
    weights = weights * np.exp(losses.min(axis=0) - losses)  # at least one factor is 1
    weights /= weights.sum(axis=0)
    return (1 - share) * weights + share * prior


def remember(recent: np.ndarray, new: np.ndarray) -> np.ndarray:
    """Append new rows to the recent ones, and keep the last 500."""
    return np.concatenate([recent, new])[-_REMEMBERED:]
