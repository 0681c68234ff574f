"""Noiseless test functions with inputs and outputs scaled to [-1, 1], and small data sets.

X : (n_samples, n_features), in the units of the formula inside `_Problem`, scaled elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from sklearn.utils import check_array, check_random_state

FUNCTIONS_1D = ("abs", "step", "kink", "square", "cubic", "sine1", "sine2", "sine3")
FUNCTIONS_1D += ("forrester", "levy")
FUNCTIONS_2D = ("sphere", "g_function", "goldstein_price", "levy", "bukin6", "rosenbrock")
FUNCTIONS_2D += ("beale", "camel", "perm", "branin", "styblinski_tang")
FUNCTIONS_ND = ("levy", "rosenbrock", "g_function", "perm")


@dataclass(frozen=True)
class _Problem:
    """A formula, its box, and the points of the box where it is least and greatest."""

    formula: Callable[[np.ndarray], np.ndarray]  # X (n, d) in its own units to (n,)
    # Functions of d, the number of features.
    box: Callable[[int], tuple]
    lowest: Callable[[int], object]
    highest: Callable[[int], object]
    top: float | None = None  # value that is scaled to 1; None takes that at `highest`


@dataclass(frozen=True)
class SyntheticFunction:
    """Noiseless function from [-1, 1]^d to [-1, 1]: X (n, d) gives y (n,).

    Points outside the box are evaluated by the same formula. `minimizer` is a point of the least
    value, -1; there may be others.
    """

    name: str
    n_features: int

    def __call__(self, X):
        X = check_array(X, dtype=np.float64, input_name="X")
        if X.shape[1] != self.n_features:
            raise ValueError(
                f"X must have the {self.n_features} column(s) of {self.name!r}. Got {X.shape[1]}."
            )
        low, high = self._range
        centre, half = self._centre_and_half
        return 2 * (_PROBLEMS[self.name].formula(centre + half * X) - low) / (high - low) - 1

    @property
    def bounds(self):
        return np.tile([-1.0, 1.0], (self.n_features, 1))

    @property
    def minimum(self):
        return -1.0

    @property
    def minimizer(self):
        centre, half = self._centre_and_half
        return (self._at("lowest") - centre) / half

    def _at(self, which: str) -> np.ndarray:
        point = getattr(_PROBLEMS[self.name], which)(self.n_features)
        return np.broadcast_to(np.asarray(point, float), self.n_features)

    @cached_property
    def _centre_and_half(self) -> tuple[np.ndarray, np.ndarray]:
        """Centre and half width of the box in the formula's own units."""
        low, high = (np.asarray(end, float) for end in _PROBLEMS[self.name].box(self.n_features))
        return (low + high) / 2, (high - low) / 2

    @cached_property
    def _range(self) -> tuple[float, float]:
        """Values of the formula that are scaled to -1 and 1."""
        problem = _PROBLEMS[self.name]
        low, high = problem.formula(np.stack([self._at("lowest"), self._at("highest")]))
        return low, high if problem.top is None else problem.top


def make_function(name, n_features):
    """Make a noiseless test function of NOMU's paper (sections 4.1.1 and 4.2) by its name.

    Those of more than one feature are those of the Simon Fraser library on their usual boxes; the
    names in `FUNCTIONS_ND` exist in every dimension from 2, 'perm' only up to 79, as its values
    overflow float64 above. Each is scaled by its exact least and greatest value, but
    Goldstein-Price with the greatest value 10^6, as in the paper (the true one is 1 015 690). The
    G-function has a_i = (i - 2)/2 and therefore negative values: the library's own programs have
    a_i = (i - 1)/2, but the paper's regrets of random search agree with the former.
    """
    return SyntheticFunction(name, n_features)


def make_scarce_regression(
    function, n_train=None, n_test=None, *, inputs="uniform", random_state=None
):
    """Draw few noiseless values of a function to learn from, and many to test on.

    `n_train` and `n_test` are 8 and 100 per feature by default. Inputs are 'uniform' on [-1, 1]^d;
    or 'gaussian', close to a flat manifold of min(5, d) dimensions: centred normals of variance
    0.15 along the first of the axes and 0.001 along the others. The paper (section 4.1.2, appendix
    B.2.5) does not say how the manifold lies. Returns X_train, y_train, X_test, y_test.
    """
    d = function.n_features
    sizes = [8 * d if n_train is None else n_train, 100 * d if n_test is None else n_test]
    rng = check_random_state(random_state)
    if inputs == "uniform":
        X_train, X_test = (rng.uniform(-1, 1, (size, d)) for size in sizes)
    else:
        # Five axes, or all if there are fewer, span the manifold.
        std = np.sqrt(np.where(np.arange(d) < 5, 0.15, 0.001))
        X_train, X_test = (std * rng.standard_normal((size, d)) for size in sizes)
    return X_train, function(X_train), X_test, function(X_test)


def _line(formula, lowest, highest, box=(-1.0, 1.0)) -> _Problem:
    """Make a problem of one feature from a formula of x of shape (n_samples,)."""
    return _Problem(lambda X: formula(X[:, 0]), lambda d: box, lambda d: lowest, lambda d: highest)


def _plane(formula, lowest, highest, box, top=None) -> _Problem:
    """Make a problem of two features from a formula of two arrays of shape (n_samples,)."""
    return _Problem(
        lambda X: formula(X[:, 0], X[:, 1]),
        lambda d: box,
        lambda d: lowest,
        lambda d: highest,
        top,
    )


def _sine3(x):
    envelope = np.maximum((x + 1) / 2, 0) ** 0.9
    return 0.5 * np.sin(np.exp(2.7 * x) + 0.1) * envelope + 0.5 * x + 0.25 * (x + 1) ** 2


def _goldstein_price(x, y):
    first = 19 - 14 * x + 3 * x**2 - 14 * y + 6 * x * y + 3 * y**2
    second = 18 - 32 * x + 12 * x**2 + 48 * y - 36 * x * y + 27 * y**2
    return (1 + (x + y + 1) ** 2 * first) * (30 + (2 * x - 3 * y) ** 2 * second)


def _beale(x, y):
    return (1.5 - x + x * y) ** 2 + (2.25 - x + x * y**2) ** 2 + (2.625 - x + x * y**3) ** 2


def _branin(x, y):
    hollow = (y - 5.1 * x**2 / (4 * np.pi**2) + 5 * x / np.pi - 6) ** 2
    return hollow + 10 * (1 - 1 / (8 * np.pi)) * np.cos(x) + 10


def _levy(X):
    w = 1 + (X - 1) / 4
    first, middle, last = w[:, 0], w[:, :-1], w[:, -1]
    return (
        np.sin(np.pi * first) ** 2
        + ((middle - 1) ** 2 * (1 + 10 * np.sin(np.pi * middle + 1) ** 2)).sum(axis=1)
        + (last - 1) ** 2 * (1 + np.sin(2 * np.pi * last) ** 2)
    )


def _rosenbrock(X):
    here, following = X[:, :-1], X[:, 1:]
    return (100 * (following - here**2) ** 2 + (here - 1) ** 2).sum(axis=1)


def _g_function(X):
    a = (np.arange(1, X.shape[1] + 1) - 2) / 2
    return ((np.abs(4 * X - 2) + a) / (1 + a)).prod(axis=1)


def _perm(X, beta=0.5):
    j = np.arange(1.0, X.shape[1] + 1)
    power = np.ones_like(X)
    total = np.zeros(len(X))
    for i in range(1, X.shape[1] + 1):
        power = power * (X / j)
        total += ((power - 1) @ (j**i + beta)) ** 2
    return total


# The points of least values are those of the library unless a line says otherwise. The points of
# greatest values were found by hand at a corner, or numerically; tests search for higher values.
_PROBLEMS = {
    "abs": _line(lambda x: np.abs(x - 0.4), 0.4, -1),
    "step": _line(lambda x: np.where(x < 0, 1.0, 0.0), 0, -1),
    "kink": _line(lambda x: 1 + 2 * np.minimum(x - 0.4, 0) - 3 * np.maximum(x - 0.4, 0), -1, 0.4),
    "square": _line(np.square, 0, -1),
    "cubic": _line(lambda x: x**3, -1, 1),
    # The sine's argument is -5/2 pi, then -7/2 pi.
    "sine1": _line(lambda x: np.sin(10 / (x - 1.2)), 1.2 - 4 / np.pi, 1.2 - 20 / (7 * np.pi)),
    "sine2": _line(lambda x: 0.2 * np.sin(-5.5 * np.pi * x) + 0.8 * x, -1, 1),
    "sine3": _line(_sine3, -1, 0.9807989235371803),
    "forrester": _line(
        lambda x: (6 * x - 2) ** 2 * np.sin(12 * x - 4), 0.7572487578418559, 1, box=(0, 1)
    ),
    "levy": _Problem(_levy, lambda d: (-10, 10), lambda d: 1, lambda d: -10),
    "sphere": _plane(lambda x, y: x**2 + y**2, (0, 0), (5.12, 5.12), (-5.12, 5.12)),
    # With a_1 = -1/2 the first factor runs from -1 to 3; the others are positive and
    # greatest at both ends.
    "g_function": _Problem(
        _g_function,
        lambda d: (0, 1),
        lambda d: (0.5,) + (1,) * (d - 1),
        lambda d: 1,
    ),
    "goldstein_price": _plane(_goldstein_price, (0, -1), (-1.737372529696409, 2), (-2, 2), top=1e6),
    "bukin6": _plane(
        lambda x, y: 100 * np.sqrt(np.abs(y - 0.01 * x**2)) + 0.01 * np.abs(x + 10),
        (-10, 1),
        (-15, -3),
        ((-15, -3), (-5, 3)),
    ),
    # A -5 in place of any 10 gains 292 500 in the term on its left; before the end it loses
    # 787 545 in the one on its right.
    "rosenbrock": _Problem(
        _rosenbrock,
        lambda d: (-5, 10),
        lambda d: 1,
        lambda d: (10,) * (d - 1) + (-5,),
    ),
    "beale": _plane(_beale, (3, 0.5), (-4.5, -4.5), (-4.5, 4.5)),
    "camel": _plane(
        lambda x, y: 2 * x**2 - 1.05 * x**4 + x**6 / 6 + x * y + y**2, (0, 0), (5, 5), (-5, 5)
    ),
    # At (-d, .., -d) every inner sum is as far from zero as it gets, for d >= 3.
    "perm": _Problem(
        _perm,
        lambda d: (-d, d),
        lambda d: np.arange(1, d + 1),
        lambda d: -d,
    ),
    "branin": _plane(_branin, (np.pi, 2.275), (-5, 0), ((-5, 0), (10, 15))),
    "styblinski_tang": _Problem(
        lambda X: (X**4 - 16 * X**2 + 5 * X).sum(axis=1) / 2,
        lambda d: (-5, 5),
        lambda d: -2.903534027771177,  # 4 x^3 - 32 x + 5 = 0
        lambda d: 5,
    ),
}
