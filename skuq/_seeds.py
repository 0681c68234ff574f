"""Where random numbers come from: one entropy a fit, one child a purpose.

Every generator is a pure function of the fit's entropy and of what it is for, so that
neither the order of dispatch nor the number of workers changes a draw.
"""

from __future__ import annotations

import numpy as np
from sklearn.utils import check_random_state

__all__ = ["draw_entropy", "generator", "trial_seed"]

_MAX_SEED = 2**31 - 1


def draw_entropy(random_state) -> int:
    """One integer >= 1 that decides everything random in a fit.

    An integer `random_state` always gives the same entropy; None draws a new one; a
    RandomState is advanced by one draw, as scikit-learn's own estimators do.
    """
    return int(check_random_state(random_state).randint(1, _MAX_SEED))


def generator(entropy: int, *purpose: str | int) -> np.random.Generator:
    """A generator that belongs to `purpose`, e.g. ``generator(e, "ask", 12)``."""
    return np.random.default_rng(_sequence(entropy, purpose))


def trial_seed(entropy: int, trial_number: int) -> int:
    """Seed >= 1 of one trial's weights and batches (Keras-Tuner reads 0 as 'no seed')."""
    state = _sequence(entropy, ("trial", trial_number)).generate_state(1)[0]
    return int(state) % (_MAX_SEED - 1) + 1


def _sequence(entropy, purpose):
    words = [
        int.from_bytes(part.encode(), "little") if isinstance(part, str) else int(part)
        for part in purpose
    ]
    return np.random.SeedSequence([int(entropy), *words])
