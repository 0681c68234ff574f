"""NEON on ten families of functions: errors beside the deviations that it predicts.

    python benchmarks/neon_families.py [--families heat beam ..] [--seeds 0 1 ..] [--summary]

Each family is an equation. Its inputs are parameters and initial conditions. A seed draws the box
of the inputs, 10 to 200 functions, and a grid of 20 to 484 points. A factor is the root mean square
of errors on 60 new functions over that of the predicted standard deviations: 1 if these are right.
Every finished fit is written to neon_families.json in ``benchmarks/results`` at once and not
repeated.
"""

import argparse
import warnings

import numpy as np
from _stored import STORED, add, matches, read, rounded
from scipy.integrate import solve_ivp

from skuq import NEONRegressor

RESULTS = STORED / "neon_families.json"
KEY = ("family", "seed", "setting")
SETTINGS = {"default": {}, "noiseless": {"noise_std": 0.0}}
SIZES = (10, 20, 40, 80, 200)
_N_NEW = 60


def _solve(slopes, starts, times):
    """Solve an ordinary differential equation from each start: (n, times, components)."""

    def solve(k):
        found = solve_ivp(slopes(k), (0, times[-1]), starts[k], t_eval=times, rtol=1e-8, atol=1e-9)
        return found.y.T

    return np.array([solve(k) for k in range(len(starts))])


def oscillator(u, times):
    """Position of a damped oscillator: stiffness, damping, first position and velocity."""
    found = _solve(lambda k: lambda t, z: [z[1], -u[k, 0] * z[0] - u[k, 1] * z[1]], u[:, 2:], times)
    return found[..., 0]


def growth(u, times):
    """Logistic growth: rate, capacity, first size."""
    rate, capacity, first = u.T[..., None]
    return capacity / (1 + (capacity / first - 1) * np.exp(-rate * times))


def heat(u, points):
    """Heat in a rod with insulated ends: place and width of the first peak, conductivity."""
    place, width, conductivity = u.T[..., None]
    x, t = points.T
    variance = width**2 + 2 * conductivity * t
    return sum(
        width / np.sqrt(variance) * np.exp(-((x - 2 * k - side * place) ** 2) / 2 / variance)
        for k in (-1, 0, 1)
        for side in (1, -1)
    )


def wave(u, points):
    """A plucked string: place of the pluck, speed, damping."""
    place, speed, damping = u.T[..., None]
    x, t = points.T
    total = 0.0
    for k in np.pi * np.arange(1, 10):
        shape = 2 / (k**2 * place * (1 - place)) * np.sin(k * place)
        total = total + shape * np.sin(k * x) * np.cos(k * speed * t)
    return total * np.exp(-damping * t)


def pendulum(u, times):
    """Angle of a pendulum: first angle and velocity, gravity over length."""
    found = _solve(
        lambda k: lambda t, z: [z[1], -u[k, 2] * np.sin(z[0]) - 0.1 * z[1]], u[:, :2], times
    )
    return found[..., 0]


def predators(u, times):
    """Prey and predators (Lotka-Volterra): growth, hunting, death, first prey."""

    def slopes(k):
        return lambda t, z: [
            (u[k, 0] - u[k, 1] * z[1]) * z[0],
            (0.6 * z[0] - u[k, 2]) * z[1],
        ]

    return _solve(slopes, np.column_stack([u[:, 3], np.ones(len(u))]), times)


def burgers(u, places):
    """Viscous Burgers' equation at time 0.5: viscosity, amplitude and phase of the start."""
    x = np.linspace(-1, 1, 256, endpoint=False)
    k = np.pi * np.fft.fftfreq(256, 1 / 256)
    found = []
    for viscosity, amplitude, phase in u:
        start = -np.sin(np.pi * x) + amplitude * np.cos(2 * np.pi * x + phase)
        start -= start.mean()
        # Hopf and Cole: the logarithm's slope of a solution of the heat equation.
        integral = np.fft.fft(start) / np.where(k == 0, np.inf, 1j * k)
        first = np.exp(-np.fft.ifft(integral).real / 2 / viscosity)
        later = np.fft.fft(first) * np.exp(-viscosity * k**2 * 0.5)
        value = -2 * viscosity * np.fft.ifft(1j * k * later).real / np.fft.ifft(later).real
        found.append(np.interp(places, x, value))
    return np.array(found)


def beam(u, places):
    """Bending of a beam that is fixed at one end: place and size of a force, stiffness, weight."""
    place, force, stiffness, weight = u.T[..., None]
    before = force * places**2 * (3 * place - places) / 6
    after = force * place**2 * (3 * places - place) / 6
    own = weight * places**2 * (6 - 4 * places + places**2) / 24
    return (np.where(places < place, before, after) + own) / stiffness


def epidemic(u, times):
    """Susceptible and infected shares: infection, recovery, first infected."""

    def slopes(k):
        def of(t, z):
            new = u[k, 0] * z[0] * z[1]
            return [-new, new - u[k, 1] * z[1]]

        return of

    return _solve(slopes, np.column_stack([1 - u[:, 2], u[:, 2]]), times)


def tank(u, times):
    """Concentration in the second of two tanks: two rates, inflow, first concentration."""
    a, b, inflow, first = u.T[..., None]
    b = np.where(abs(a - b) < 1e-3, b + 1e-3, b)
    fast, slow = np.exp(-a * times), np.exp(-b * times)
    return inflow * (1 - slow) + (first - inflow) * a / (b - a) * (fast - slow)


#: Function, low and high end of the inputs, length of each axis of the grid, smallest and largest
#: number of points on each axis.
FAMILIES = {
    "oscillator": (oscillator, [1, 0.1, -1, -1], [6, 1, 1, 1], [5], 20, 100),
    "growth": (growth, [0.3, 1, 0.05], [2, 3, 0.8], [8], 20, 100),
    "heat": (heat, [0.2, 0.05, 0.01], [0.8, 0.2, 0.1], [1, 1], 6, 20),
    "wave": (wave, [0.2, 0.5, 0], [0.8, 1.5, 2], [1, 1], 6, 22),
    "pendulum": (pendulum, [-2, -1, 1], [2, 1, 4], [6], 20, 100),
    "predators": (predators, [0.6, 0.5, 0.5, 0.5], [1.2, 1.2, 1.2, 2], [10], 20, 60),
    "burgers": (burgers, [0.03, -0.5, 0], [0.2, 0.5, 6.28], [1], 20, 100),
    "beam": (beam, [0.2, -1, 0.5, 0], [1, 1, 2, 2], [1], 20, 60),
    "epidemic": (epidemic, [0.5, 0.1, 0.005], [2.5, 0.5, 0.1], [20], 20, 60),
    "tank": (tank, [0.5, 0.2, 0, 0], [4, 2, 1, 1], [6], 20, 100),
}


def make_problem(family, seed):
    """Draw query points, inputs and functions to train on, and new ones."""
    function, low, high, lengths, fewest, most = FAMILIES[family]
    rng = np.random.default_rng([list(FAMILIES).index(family), seed])
    n = int(rng.choice(SIZES))
    sizes = [int(rng.integers(fewest, most + 1)) for _ in lengths]
    # Axes of time begin behind 0: nothing is to be learnt where all functions are equal.
    axes = [length * np.linspace(1 / size, 1, size) for length, size in zip(lengths, sizes)]
    points = np.stack([axis.ravel() for axis in np.meshgrid(*axes, indexing="ij")], axis=1)
    if len(lengths) == 1:
        points = points[:, 0]
    # The box is a part of each range, from a half of it to all.
    low, high = np.array(low, dtype=float), np.array(high, dtype=float)
    width = (high - low) * rng.uniform(0.5, 1, len(low))
    low = low + (high - low - width) * rng.random(len(low))
    X, new = (low + width * rng.random((size, len(low))) for size in (n, _N_NEW))
    return points, X, function(X, points), new, function(new, points)


def judge(model, new, truth):
    """Compute the factor, the coverage, and the mean's error relative to the spread of values."""
    mean, std = model.predict(new, return_std=True)
    error = mean - truth
    # Components have units of their own.
    axes = tuple(range(2))
    size = np.sqrt(np.mean(error**2, axis=axes)) / np.sqrt(np.mean(std**2, axis=axes))
    spread = np.sqrt(np.mean((truth - truth.mean(axis=0)) ** 2, axis=axes))
    return {
        "factor": float(np.exp(np.mean(np.log(size)))),
        "coverage": float(np.mean(np.abs(error) < 1.645 * std)),
        "error": float(np.mean(np.sqrt(np.mean(error**2, axis=axes)) / spread)),
    }


def run_missing(family, seed, setting):
    key = dict(zip(KEY, (family, seed, setting)))
    if any(matches(record, key) for record in read(RESULTS)):
        return
    points, X, Y, new, truth = make_problem(family, seed)
    model = NEONRegressor(query_points=points, random_state=seed, **SETTINGS[setting])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(X, Y)
    record = key | {"n": len(X), "points": len(points)} | judge(model, new, truth)
    record = rounded(record, 4)
    add(RESULTS, record)
    print(record, flush=True)


def summarise():
    for setting in SETTINGS:
        found = [r for r in read(RESULTS) if r["setting"] == setting]
        if not found:
            continue
        factor, coverage, error = (
            np.array([r[name] for r in found]) for name in ("factor", "coverage", "error")
        )
        print(
            f"{setting}: {len(found)} fits, factor {np.median(factor):.2f} ({factor.min():.2f} to "
            f"{factor.max():.2f}), 90 % intervals hold {np.median(coverage):.2f} (at least "
            f"{coverage.min():.2f}), error {np.exp(np.log(error).mean()):.3f}"
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--families", nargs="+", default=list(FAMILIES), choices=list(FAMILIES))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--settings", nargs="+", default=list(SETTINGS), choices=list(SETTINGS))
    parser.add_argument("--summary", action="store_true", help="print what has been run")
    arguments = parser.parse_args()
    for seed in [] if arguments.summary else arguments.seeds:
        for family in arguments.families:
            for setting in arguments.settings:
                run_missing(family, seed, setting)
    summarise()


if __name__ == "__main__":
    main()
