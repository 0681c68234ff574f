"""Random numbers: one entropy for each fit, and one generator for each purpose.

Every generator is a pure function of the fit's entropy and of its purpose, so that neither the
order of dispatch nor the number of workers changes a draw.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.utils import check_random_state

_MAX_SEED = 2**31 - 1


def draw_entropy(random_state: Any) -> int:
    """Draw one integer >= 1 that determines all random numbers of a fit.

    An integer `random_state` always gives the same entropy, None a new one. A RandomState is
    advanced by one draw, as by scikit-learn's estimators.
    """
    return int(check_random_state(random_state).randint(1, _MAX_SEED))


def generator(entropy: int, *purpose: str | int) -> np.random.Generator:
    """Make the generator of a purpose, e.g. ``generator(e, "ask", 12)``."""
    return np.random.default_rng(_sequence(entropy, purpose))


def random_generator(random_state: Any) -> np.random.Generator:
    """Convert a scikit-learn random state to a NumPy generator."""
    return np.random.default_rng(check_random_state(random_state).randint(_MAX_SEED))


def trial_seed(entropy: int, trial_number: int) -> int:
    """Make the seed >= 1 of one trial's weights and batches (for Keras-Tuner 0 is no seed)."""
    return _seed(entropy, ("trial", trial_number))


def repeat_seed(seed: int, number: int) -> int:
    """Make the seed >= 1 of a repeat of the trial with this seed."""
    return _seed(seed, ("repeat", number))


def _seed(entropy: int, purpose: tuple[str | int, ...]) -> int:
    state = _sequence(entropy, purpose).generate_state(1)[0]
    return int(state) % (_MAX_SEED - 1) + 1


def _sequence(entropy: int, purpose: tuple[str | int, ...]) -> np.random.SeedSequence:
    words = [
        int.from_bytes(part.encode(), "little") if isinstance(part, str) else int(part)
        for part in purpose
    ]
    return np.random.SeedSequence([int(entropy), *words])
