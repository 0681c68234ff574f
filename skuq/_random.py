"""Random numbers: every generator is a pure function of the fit's entropy and of its purpose.

So neither the order of dispatch nor the number of workers changes a draw.
"""

import math
from typing import Any

import numpy as np
from scipy.stats import qmc
from sklearn.utils import check_random_state

#: Seeds are below it: scikit-learn and Keras take 32-bit integers.
MAX_SEED = 2**31 - 1

_MOST_COLUMNS = 21_201  # largest dimension of SciPy's Sobol sequence


def draw_entropy(random_state: Any) -> int:
    """Draw one integer >= 1 that determines all random numbers of a fit.

    An integer `random_state` always gives the same entropy, None a new one. A RandomState is
    advanced by one draw, as by scikit-learn's estimators.
    """
    return int(check_random_state(random_state).randint(1, MAX_SEED))


def generator(entropy: int, *purpose: str | int) -> np.random.Generator:
    """Make the generator of a purpose, e.g. ``generator(e, "ask", 12)``."""
    return np.random.default_rng(_sequence(entropy, purpose))


def random_generator(random_state: Any) -> np.random.Generator:
    """Convert a scikit-learn random state to a NumPy generator."""
    return np.random.default_rng(check_random_state(random_state).randint(MAX_SEED))


def trial_seed(entropy: int, number: int) -> int:
    """Make the seed >= 1 of the weights and batches of one trial."""
    state = _sequence(entropy, ("trial", number)).generate_state(1)[0]
    # NumPy's seeds begin at 0, and Keras-Tuner reads 0 as no seed.
    return int(state) % (MAX_SEED - 1) + 1


def quasi_random_normals(n_draws: int, n_columns: int, rng: np.random.Generator) -> np.ndarray:
    """Draw quasi-random standard normal numbers (n_draws, n_columns).

    They are normal quantiles at the points of a scrambled Sobol sequence, and therefore spread
    more evenly than independent numbers (Owen 1997, "Scrambled net variance for integrals of
    smooth functions"). They are shifted and scaled so that every column has mean 0 and population
    variance 1. At least 2 draws are needed, and powers of 2 are spread best.
    """
    if n_draws < 2 or n_columns < 1:
        raise ValueError(
            "n_draws must be at least 2 (one number has no variance) and n_columns at least 1. "
            f"Got {n_draws} and {n_columns}."
        )
    # SciPy warns unless a power of two is drawn; its first points are spread evenly, too.
    if n_columns <= _MOST_COLUMNS:
        engine = qmc.MultivariateNormalQMC(np.zeros(n_columns), rng=rng)
        normals = engine.random(2 ** math.ceil(math.log2(n_draws)))[:n_draws]
    else:
        normals = rng.standard_normal((n_draws, n_columns))
    normals = normals - normals.mean(axis=0)
    return normals / normals.std(axis=0)


def _sequence(entropy: int, purpose: tuple[str | int, ...]) -> np.random.SeedSequence:
    # Words become numbers by their bytes: `hash` would change from process to process.
    words = [
        int.from_bytes(part.encode(), "little") if isinstance(part, str) else int(part)
        for part in purpose
    ]
    return np.random.SeedSequence([int(entropy), *words])
