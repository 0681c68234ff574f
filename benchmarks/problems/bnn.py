"""Functions drawn from a Bayesian neural network's prior."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from scipy.optimize import brentq
from sklearn.utils import check_array, gen_batches

from skuq._random import random_generator

_HIDDEN_UNITS = (1024, 2048, 1024)
_PRIOR_STD = {1: 0.114, 2: 0.102, 5: 0.092, 10: 0.084, 20: 0.070}  # NOMU, Table 9
_BATCH_ROWS = 1024  # the widest layer of a batch takes 8 MB


@dataclass(frozen=True, eq=False)
class BNNFunction:
    """Fixed ReLU network as a noiseless function, made by :func:`make_bnn_function`.

    Calling it with X of shape (n_samples, n_features) gives an array of shape (n_samples,),
    in float64 but computed in float32: right to about six digits.

    Parameters
    ----------
    layers : tuple of (kernel, bias)
        float32 arrays of shapes (n_in, n_out) and (n_out,), inputs first.

    Attributes
    ----------
    n_features : int
    bounds : ndarray of shape (n_features, 2)
        The box on which it is meant to be used: -1 and 1 for every feature.
    minimum, minimizer : None
        Not known.

    Examples
    --------
    >>> import numpy as np
    >>> from problems import BNNFunction
    >>> hidden = np.eye(2, dtype="float32"), np.zeros(2, "float32")
    >>> output = np.ones((2, 1), "float32"), np.zeros(1, "float32")
    >>> BNNFunction((hidden, output))([[1.0, 0.5], [1.0, -1.0]])
    array([1.5, 1. ])
    """

    layers: tuple[tuple[np.ndarray, np.ndarray], ...]
    minimum: ClassVar[None] = None
    minimizer: ClassVar[None] = None

    def __call__(self, X):
        X = check_array(X, dtype=np.float32, input_name="X")
        if X.shape[1] != self.n_features:
            raise ValueError(f"X must have {self.n_features} column(s). Got {X.shape[1]}.")
        batches = [self._forward(X[rows]) for rows in gen_batches(len(X), _BATCH_ROWS)]
        return np.concatenate(batches).astype(np.float64)

    @property
    def n_features(self):
        return len(self.layers[0][0])

    @property
    def bounds(self):
        return np.tile([-1.0, 1.0], (self.n_features, 1))

    def _forward(self, hidden: np.ndarray) -> np.ndarray:
        *below, (kernel, bias) = self.layers
        for inner_kernel, inner_bias in below:
            hidden = np.maximum(hidden @ inner_kernel + inner_bias, 0)
        return (hidden @ kernel + bias)[:, 0]


def make_bnn_function(
    n_features=1, *, hidden_units=_HIDDEN_UNITS, prior_std=None, random_state=None
):
    """Draw a function from a Bayesian ReLU network with independent N(0, prior_std^2) parameters.

    Parameters
    ----------
    n_features : int, default=1
    hidden_units : sequence of int, default=(1024, 2048, 1024)
        Widths of the hidden layers. The default holds 4.2 million weights, 17 MB.
    prior_std : float, default=None
        Standard deviation of every weight and bias. None takes the paper's Table 9 for the
        default widths and 1, 2, 5, 10 or 20 features (0.114, 0.102, 0.092, 0.084, 0.070);
        otherwise the value at which the variance of the function over uniform inputs is 1,
        averaged over draws, in the limit of wide layers.
    random_state : int, RandomState instance or None, default=None

    Returns
    -------
    function : BNNFunction
        Called with X of shape (n_samples, n_features), gives y of shape (n_samples,).

    Notes
    -----
    The paper chose its table for a mean variance of about 1. With the printed values it is
    1.5, 1.2, 1.1, 1.0 and 0.46: the last one lies below the others, and 0.078 would give 1.
    In one dimension the variances of single draws differ widely, with a median of 0.9.

    References
    ----------
    Heiss et al., "NOMU", ICML 2022, section 4.1.2 and appendix B.2.5. The limit: Cho and Saul,
    "Kernel Methods for Deep Learning", NeurIPS 2009, Eq. 6 (n = 1).

    Examples
    --------
    >>> from problems import make_bnn_function
    >>> function = make_bnn_function(2, hidden_units=(64, 64), random_state=0)
    >>> function([[0.0, 0.5], [1.0, -1.0]]).shape
    (2,)
    """
    if prior_std is None:
        prior_std = _usual_std(n_features, hidden_units)
    # A Generator draws float32 directly, and several times faster.
    rng = random_generator(random_state)
    sizes = (n_features, *hidden_units, 1)
    return BNNFunction(
        tuple(
            (_normal(rng, prior_std, (n_in, n_out)), _normal(rng, prior_std, n_out))
            for n_in, n_out in zip(sizes, sizes[1:])
        )
    )


def _normal(rng, std: float, shape) -> np.ndarray:
    return np.float32(std) * rng.standard_normal(shape, dtype=np.float32)


def _usual_std(n_features: int, hidden_units: tuple[int, ...]) -> float:
    if hidden_units == _HIDDEN_UNITS and n_features in _PRIOR_STD:
        return _PRIOR_STD[n_features]
    return brentq(lambda std: _wide_variance(std, n_features, hidden_units) - 1, 1e-5, 1e2)


def _wide_variance(prior_std: float, n_features: int, hidden_units: tuple[int, ...]) -> float:
    """Compute the variance of f(x) for x uniform on [-1, 1]^d, averaged over draws of f.

    E_f Var_x f = E_x k(x, x) - E_{x,x'} k(x, x'), with k the second moments of f: exact with
    one hidden layer, the limit of wide layers with more. The inputs are 8192 fixed pairs.
    """
    one, other = np.random.RandomState(0).uniform(-1, 1, (2, 8192, n_features))
    squares = [(one**2).sum(axis=1), (other**2).sum(axis=1)]
    # Second moments of a first hidden unit's input: prior_std^2 (1 + x.x').
    k_one, k_other, k_both = (prior_std**2 * (1 + s) for s in [*squares, (one * other).sum(axis=1)])
    for width in hidden_units:
        k_both = prior_std**2 * (1 + width * _relu_moment(k_one, k_other, k_both))
        # Half of a centred normal's second moment lies above zero.
        k_one, k_other = (prior_std**2 * (1 + width * k / 2) for k in (k_one, k_other))
    return float(((k_one + k_other) / 2 - k_both).mean())


def _relu_moment(k_one, k_other, k_both):
    """Compute E[max(u, 0) max(v, 0)] of centred normals with given variances and covariance."""
    norm = np.sqrt(k_one * k_other)
    # norm * J_1(angle) / (2 pi), with J_1 of Cho and Saul, Eq. 6.
    angle = np.arccos(np.clip(k_both / norm, -1, 1))
    return norm / (2 * np.pi) * (np.sin(angle) + (np.pi - angle) * np.cos(angle))
