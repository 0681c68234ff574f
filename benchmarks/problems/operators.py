"""Problems of the paper on NEON: f(u) = g(h(u)).

Notation: u is an input of d numbers; h(u) is known at q query points and has d_s components,
so that outputs are (n, q, d_s). g, the objective, is cheap and known, and everything is maximised.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy import special
from sklearn.utils import check_array

from problems.cell_towers import N_ANTENNAS, received_power
from problems.cell_towers import SIDE as _MAP_SIDE
from problems.interferometer import SIDE as _IMAGE_SIDE
from problems.interferometer import WHITE, interferograms

OPERATOR_PROBLEMS = ("pollutants", "brusselator", "interferometer", "cell_towers")


def make_operator_problem(name):
    """Make a problem of composite Bayesian optimisation from the paper on NEON; one for a name.

    - "pollutants": two spills in a long river: their mass M, the rate of diffusion D, and the place
      L and the time tau of the second one. A function is the concentration at four times and three
      places (queries are (time, place)); the objective is minus the mean squared error against that
      of u = (10, 0.07, 1.505, 30.1525). The paper prints L as 15.05, which is outside of its box.
    - "brusselator": rates a and b of a chemical reaction, and diffusivities D0 and D1. A function
      is the two concentrations at time 20 on a grid of 64 x 64 cells, from a fixed start; the
      objective is minus the variance of both, weighted by 1 in the two outermost rows and columns
      and by 0.1 inside. Needs `py-pde`; five seconds or more a function.
    - "interferometer": position of two mirrors. A function is 16 images of 64 x 64 pixels, in 0 to
      255; the objective is the visibility of the light's interference.
    - "cell_towers": downtilts, in degrees, and powers, in dBm, of 15 antennas. A function is the
      strength of the strongest signal and of the interference by all others on a map of 50 x 50
      cells; the objective is that of section 6.4, the weighted sum of both coverages, as printed.

    Queries of fields are (column, row).
    """
    return _PROBLEMS[name]


@dataclass(frozen=True, eq=False)
class OperatorProblem:
    """An expensive function-valued map and a cheap objective of its values.

    A call with U of shape (n, d) evaluates the map and returns outputs of shape (n, q), or
    (n, q, d_s) with several components. The objective, to be maximised, takes arrays or tensors.
    """

    bounds: np.ndarray
    query_points: np.ndarray
    n_outputs: int
    objective: Callable
    simulator: Callable
    best_value: float | None = None

    def __call__(self, U):
        return self.simulator(check_array(U, dtype=np.float64, input_name="U"))


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


# Pollutants (appendix 6.1)

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


# Brusselator (appendix 6.2)

_SIDE = 64  # cells
_END, _STEP = 20, 1e-3  # times
_NOISE, _NOISE_SEED = 0.1, 10  # of the initial state: standard deviation and seed


def _simulate_reaction(U):
    """Solve with py-pde's explicit Euler steps; return the final concentrations (n, 4096, 2).

    It uses the NumPy backend. Numba would compile the equation of every input, which takes
    twice as long as the steps.
    """
    import pde  # an optional library

    grid = pde.UnitGrid([_SIDE, _SIDE])
    fields = []
    for a, b, d0, d1 in U.tolist():
        # The paper prints a - (1 - b) u. The Brusselator has a - (1 + b) u, which is also what the
        # authors solved.
        equation = pde.PDE(
            {
                "u": f"{d0} * laplace(u) + {a} - (1 + {b}) * u + u**2 * v",
                "v": f"{d1} * laplace(v) + {b} * u - u**2 * v",
            }
        )
        rng = np.random.default_rng(_NOISE_SEED)
        # The steady state (a, b / a), with v disturbed by noise.
        v = b / a + _NOISE * pde.ScalarField.random_normal(grid, rng=rng)
        start = pde.FieldCollection([pde.ScalarField(grid, a), v])
        end = equation.solve(start, t_range=_END, dt=_STEP, tracker=None, backend="numpy")
        fields.append(np.stack([field.data.ravel() for field in end], axis=-1))
    return np.stack(fields)


# 1 on the two outermost rows and columns, 0.1 inside: (4096, 1).
_BORDER_WEIGHTS = np.pad(np.full((_SIDE - 4, _SIDE - 4), 0.1), 2, constant_values=1.0)
_BORDER_WEIGHTS = _BORDER_WEIGHTS.reshape(-1, 1)


def _minus_weighted_variance(outputs):
    xp, outputs = choose_namespace(outputs, (_SIDE**2, 2))
    return -xp.var(cast_like(_BORDER_WEIGHTS, outputs) * outputs, axis=(-2, -1))


def _grid(numbers):
    """Return (column, row) of every cell, row by row, of shape (4096, 2)."""
    return np.stack(np.meshgrid(numbers, numbers), axis=-1).reshape(-1, 2)


# Interferometer (appendix 6.3)

_PIXELS = np.arange(_IMAGE_SIDE) / _IMAGE_SIDE
_WIDTH = 0.95  # width of the weights; the paper prints 1, but the stored runs have 0.95
# Light of an image that is nearly black (a real one has about 20 000). Predicted images may be
# darker; without this bound their visibility would not be bounded.
_LEAST_LIGHT = 100.0


PIXEL_WEIGHTS = np.exp(-np.square(_grid(_PIXELS) - 0.5).sum(axis=1) / _WIDTH**2)  # (4096,)


def visibility(outputs, pixel_weights):
    """Compute (max - min) / (max + min) of the 16 images' light, with smooth max and min.

    The light of an image is the weighted sum of its pixels; see appendix 6.3.
    """
    xp, outputs = choose_namespace(outputs, (len(pixel_weights), 16))
    images = xp.clip(outputs, 0.0, WHITE)  # draws of a surrogate may be no images
    light = xp.matmul(cast_like(pixel_weights[None], outputs), images)[..., 0, :]  # (.., 16)
    most, least = _logsumexp(xp, light), -_logsumexp(xp, -light)
    return (most - least) / xp.maximum(most + least, _LEAST_LIGHT)


def _logsumexp(xp, x):
    top = xp.max(x, axis=-1, keepdims=True)
    return top[..., 0] + xp.log(xp.sum(xp.exp(x - top), axis=-1))


# Cell towers (appendix 6.4)

_WEAK, _STRONG, _WEIGHT = -80.0, 6.0, 0.25  # T_w, T_s and the weight of the first coverage


def coverage(outputs, areas):
    """Compute 0.25 Cov_f,strong + 0.75 Cov_g,weak, summed over cells of given areas (6.4)."""
    xp, outputs = choose_namespace(outputs, (len(areas), 2))
    areas = cast_like(areas, outputs)
    sigmoid = special.expit if xp is np else xp.sigmoid
    power, interference = outputs[..., 0], outputs[..., 1]
    strong = xp.sum(areas * sigmoid(_WEAK - power), axis=-1)
    area = sigmoid(power - _WEAK) * sigmoid(interference + _STRONG - power)
    # The text prints T_w here; the paper's program, and that of its source, has T_s.
    weak = xp.sum(areas * sigmoid(interference * area + _STRONG - power * area), axis=-1)
    return _WEIGHT * strong + (1 - _WEIGHT) * weak


#: One objective for all searches of a problem, so that programs compiled with it are reused.
_PROBLEMS = {
    "pollutants": OperatorProblem(
        np.array([[7, 13], [0.02, 0.12], [0.01, 3], [30.01, 30.295]]),
        _TIMES_AND_PLACES,
        1,
        _minus_squared_error,
        _concentrations_of_spills,
        best_value=0.0,
    ),
    "brusselator": OperatorProblem(
        np.array([[0.1, 5], [0.1, 5], [0.01, 5], [0.01, 5]]),
        _grid(np.linspace(0, 1, _SIDE)),
        2,
        _minus_weighted_variance,
        _simulate_reaction,
    ),
    "interferometer": OperatorProblem(
        np.tile([-1.0, 1.0], (4, 1)),
        _grid(_PIXELS),
        16,
        functools.partial(visibility, pixel_weights=PIXEL_WEIGHTS),
        interferograms,
        best_value=1.0,
    ),
    "cell_towers": OperatorProblem(
        np.repeat([[0.0, 10.0], [30.0, 50.0]], N_ANTENNAS, axis=0),
        _grid(np.arange(_MAP_SIDE, dtype=float)),
        2,
        functools.partial(coverage, areas=np.ones(_MAP_SIDE**2)),
        received_power,
    ),
}
