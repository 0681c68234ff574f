"""Problems of composite Bayesian optimisation: f(u) = g(h(u)), where h(u) is a function.

Notation: u is an input of d numbers; h(u) is known at q query points and has d_s components,
so that outputs are (n, q) where d_s is 1, else (n, q, d_s). g, the objective, is cheap and
known, and everything is maximised.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from sklearn.utils import check_array


@dataclass(frozen=True, eq=False)
class OperatorProblem:
    """An expensive function-valued map and a cheap objective of its values.

    It is made by :func:`make_operator_problem`. A call with U of shape (n, d) evaluates the map
    and returns outputs of shape (n, q), or (n, q, d_s) with several components.

    Parameters
    ----------
    name : str
        Name of the problem.
    bounds : ndarray of shape (d, 2)
        Lowest and highest inputs.
    query_points : ndarray of shape (q, d_y)
        Points at which the functions are known.
    n_outputs : int
        Number of components of a function, d_s.
    objective : callable
        ``objective(outputs) -> values``, to be maximised: (.., q) or (.., q, d_s) to (..,).
        It takes float64 arrays, or tensors of Keras' backend, through which gradients flow.
    simulator : callable
        Function that a call evaluates.
    best_value : float or None
        The largest possible value of the objective. None if it is not known.
    best_input : ndarray of shape (d,) or None
        An input with this value.

    Raises
    ------
    ImportError
        If it is called and the simulator needs a library that is not installed.
    ValueError
        If it is called with another number of columns.

    Examples
    --------
    >>> import numpy as np
    >>> from skuq.datasets._operator_problems import OperatorProblem
    >>> lines = OperatorProblem(
    ...     "lines", bounds=np.array([[0.0, 1.0]]), query_points=np.array([[0.0], [0.5], [1.0]]),
    ...     n_outputs=1, objective=lambda s: -(s**2).sum(-1),
    ...     simulator=lambda U: U * np.array([0.0, 0.5, 1.0]),
    ... )
    >>> lines([[1.0], [0.5]])
    array([[0.  , 0.5 , 1.  ],
           [0.  , 0.25, 0.5 ]])
    """

    name: str
    bounds: np.ndarray
    query_points: np.ndarray
    n_outputs: int
    objective: Callable
    simulator: Callable
    best_value: float | None = None
    best_input: np.ndarray | None = None

    def __call__(self, U):
        U = check_array(U, dtype=np.float64, input_name="U")
        if U.shape[1] != len(self.bounds):
            raise ValueError(
                f"U must have the {len(self.bounds)} column(s) of {self.name!r}. Got {U.shape[1]}."
            )
        return self.simulator(U)


def make_operator_problem(name):
    """Make a problem of composite Bayesian optimisation from the paper on NEON.

    Parameters
    ----------
    name : {"pollutants"}
        Name of the problem.

    Returns
    -------
    problem : OperatorProblem
        The same object for the same name.

    Raises
    ------
    ValueError
        If the name is unknown.

    Notes
    -----
    The inputs of "pollutants" describe two spills in a long river: their mass M, the rate of
    diffusion D, and the place L and the time tau of the second one. A function is the
    concentration at times 15, 30, 45, 60 and places 0, 1, 2.5 (queries are (time, place)); the
    objective is minus the mean squared error against that of u = (10, 0.07, 1.505, 30.1525). The
    paper prints L as 15.05, which is outside of its box.

    For test functions of one output see :func:`make_function`.

    References
    ----------
    Guilhoto and Perdikaris, "Composite Bayesian Optimization In Function Spaces Using NEON",
    2024, section 3 and appendix 6.

    Examples
    --------
    >>> from skuq.datasets import make_operator_problem
    >>> problem = make_operator_problem("pollutants")
    >>> outputs = problem([[10, 0.07, 1.505, 30.1525], [9, 0.07, 1.505, 30.1525]])
    >>> outputs.shape, problem.objective(outputs).round(3)
    ((2, 12), array([-0.   , -0.069]))
    """
    if name != "pollutants":
        raise ValueError(f"`name` must be 'pollutants'. Got {name!r}.")
    return _pollutants()


def frozen(*args, **kwargs):
    """Make an `OperatorProblem` that can be shared: its arrays cannot be written to."""
    problem = OperatorProblem(*args, **kwargs)
    for array in (problem.bounds, problem.query_points, problem.best_input):
        if array is not None:
            array.flags.writeable = False
    return problem


def choose_namespace(outputs, shape):
    """Choose NumPy for arrays and Keras' operations for tensors; check the last axes.

    Return the module and the outputs, arrays as float64. For arrays no backend is loaded.
    """
    if not hasattr(outputs, "shape"):
        outputs = np.asarray(outputs)
    if tuple(outputs.shape[-len(shape) :]) != shape:
        raise ValueError(
            f"outputs must have shape (.., {', '.join(map(str, shape))}). "
            f"Got {tuple(outputs.shape)}."
        )
    if isinstance(outputs, np.ndarray):
        return np, outputs.astype("float64")
    from skuq.backend import ops

    return ops, outputs


def cast_like(constant, outputs):
    """Convert a constant array to the precision of the outputs."""
    return constant.astype(getattr(outputs.dtype, "name", outputs.dtype))


_TIMES_AND_PLACES = np.array([(t, x) for x in (0, 1, 2.5) for t in (15, 30, 45, 60)], float)
_TRUE_SPILLS = np.array([10, 0.07, 1.505, 30.1525])


def _concentrations_of_spills(U):
    """Compute the concentrations (n, 12) of two spills; the second is later, at `place`."""
    mass, diffusion, place, tau = U.T[:, :, None]
    t, x = _TIMES_AND_PLACES.T

    def concentration(t, x):
        spread = 4 * diffusion * t
        return mass / np.sqrt(np.pi * spread) * np.exp(-(x**2) / spread)

    # 1 stands for times before the second spill, whose root would be of a negative number.
    since = np.where(t > tau, t - tau, 1.0)
    return concentration(t, x) + np.where(t > tau, concentration(since, x - place), 0.0)


_TRUE_CONCENTRATIONS = _concentrations_of_spills(_TRUE_SPILLS[None])[0]


def _minus_squared_error(outputs):
    xp, outputs = choose_namespace(outputs, _TRUE_CONCENTRATIONS.shape)
    return -xp.mean(xp.square(outputs - cast_like(_TRUE_CONCENTRATIONS, outputs)), axis=-1)


@functools.cache  # one objective for all, so that programs compiled with it are reused
def _pollutants():
    return frozen(
        "pollutants",
        np.array([[7, 13], [0.02, 0.12], [0.01, 3], [30.01, 30.295]]),
        _TIMES_AND_PLACES.copy(),
        1,
        _minus_squared_error,
        _concentrations_of_spills,
        best_value=0.0,
        best_input=_TRUE_SPILLS.copy(),
    )
