"""Small synthetic problems."""

from __future__ import annotations

import numpy as np
from sklearn.utils import check_random_state


def make_gapped_sine(n_samples=400, *, random_state=None):
    """Make AutoDEUQ's one-dimensional task: a sine with two noise levels and a gap.

    ``y = 2 sin(x) + noise``; half of the inputs uniform in [-30, -20] with noise of
    standard deviation 0.5, half in [20, 30] with standard deviation 1.

    Parameters
    ----------
    n_samples : int, default=400
    random_state : int, RandomState instance or None, default=None

    Returns
    -------
    X : ndarray of shape (n_samples, 1)
    y : ndarray of shape (n_samples,)

    Notes
    -----
    The paper writes the noise as N(0, 0.25) and N(0, 1): variances.

    References
    ----------
    Egele et al., "AutoDEUQ", section III.B.

    Examples
    --------
    >>> from skuq.datasets import make_gapped_sine
    >>> X, y = make_gapped_sine(100, random_state=0)
    >>> X.shape, int((X[:, 0] < 0).sum())
    ((100, 1), 50)
    """
    rng = check_random_state(random_state)
    n_left = n_samples // 2
    x = np.concatenate([rng.uniform(-30, -20, n_left), rng.uniform(20, 30, n_samples - n_left)])
    y = 2 * np.sin(x) + np.where(x < 0, 0.5, 1.0) * rng.standard_normal(n_samples)
    return x[:, None], y
