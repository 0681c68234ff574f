"""Figures of the papers on NEON and NOMU that benchmarks/bo.py prints beside its own."""

import numpy as np

#: NOMU (Heiss et al. 2022), Table 14: average final regrets in five dimensions and half of their
#: 95 % intervals, over 100 runs of networks of three times 1024 units. The text lost the signs of
#: exponents, which can only be negative.
REGRETS = {
    "nomu_0.05": {
        "levy5d": (2.12e-3, 5.95e-4),
        "rosenbrock5d": (1.75e-4, 2.76e-5),
        "g_function5d": (1.12e-1, 1.99e-2),
        "perm5d": (4.06e-4, 1.70e-4),
        "bnn5d": (5.39e-2, 3.34e-2),
    },
    "nomu_0.5": {
        "levy5d": (1.52e-3, 4.34e-4),
        "rosenbrock5d": (3.57e-4, 6.39e-5),
        "g_function5d": (1.06e-1, 1.97e-2),
        "perm5d": (2.58e-4, 1.13e-4),
        "bnn5d": (3.56e-2, 1.87e-2),
    },
    "gp_0.05": {
        "levy5d": (1.10e-3, 1.68e-4),
        "rosenbrock5d": (3.62e-4, 6.52e-5),
        "g_function5d": (1.68e-1, 1.62e-2),
        "perm5d": (7.76e-5, 3.19e-5),
        "bnn5d": (8.24e-2, 4.09e-2),
    },
    "gp_0.5": {
        "levy5d": (8.84e-3, 1.15e-3),
        "rosenbrock5d": (8.44e-4, 1.62e-4),
        "g_function5d": (2.60e-1, 1.72e-2),
        "perm5d": (1.80e-3, 4.44e-4),
        "bnn5d": (4.41e-2, 3.04e-2),
    },
    "pgp": {
        "levy5d": (6.25e-3, 5.26e-4),
        "rosenbrock5d": (7.56e-4, 8.13e-5),
        "g_function5d": (1.78e-1, 1.22e-2),
        "perm5d": (2.06e-4, 7.03e-5),
        "bnn5d": (2.15e-2, 6.37e-3),
    },
    "random": {
        "levy5d": (5.44e-2, 4.22e-3),
        "rosenbrock5d": (4.73e-3, 7.04e-4),
        "g_function5d": (3.63e-1, 1.09e-2),
        "perm5d": (4.62e-4, 1.20e-4),
        "bnn5d": (5.42e-1, 9.21e-2),
    },
}
#: Table 4: the place of each among seven methods, with the better of the two mean widths.
RANKS = {
    "nomu": {"levy5d": 1, "rosenbrock5d": 1, "g_function5d": 2, "perm5d": 3, "bnn5d": 1},
    "gp": {"levy5d": 1, "rosenbrock5d": 1, "g_function5d": 3, "perm5d": 1, "bnn5d": 1},
    "pgp": {"levy5d": 4, "rosenbrock5d": 5, "g_function5d": 3, "perm5d": 2, "bnn5d": 1},
    "random": {"levy5d": 7, "rosenbrock5d": 7, "g_function5d": 7, "perm5d": 4, "bnn5d": 7},
}


def reference_runs(data_dir):
    """The NEON authors' runs; None without a directory."""
    return None if data_dir is None else np.load(data_dir / "neon" / "reference_runs.npz")


def pollutants_start(reference, seed):
    """The first five inputs of one of their ten runs: (5, 4)."""
    runs = reference["pollutants_u_ei_leaky"]
    if seed >= len(runs):
        raise ValueError(f"There are {len(runs)} initial designs of pollutants. Got seed {seed}.")
    return runs[seed, :5].astype(float)


def brusselator_start(data_dir):
    """The five inputs of the Brusselator that come with the authors' program: (5, 4)."""
    with np.load(data_dir / "neon" / "brusselator_initial.npz") as stored:
        return stored["u"].astype(float)


def pollutants_curves(reference):
    """Best mean squared error after each further point, of each of their methods."""
    truth = reference["pollutants_true_s"]
    curves = {}
    for name in ("ei_leaky", "lcb_0.1", "lcb_1.0", "random"):
        errors = ((reference[f"pollutants_s_{name}"] - truth) ** 2).mean(axis=-1)
        curves[f"authors' {name}"] = np.minimum.accumulate(errors, axis=1)[:, 4:]
    return curves


def brusselator_curves(reference):
    """What is stored of others' searches, by further points. None has points to verify it by."""
    curves = {"stored random": np.asarray(reference["regret_random_brusselator"])[:, 4:]}
    methods = reference["hogp_brusselator_methods"]
    for name, mean in zip(methods, reference["hogp_brusselator_mean"]):
        start = np.full((1, 1), np.nan)  # the first of these is after one further point
        curves[f"stored HOGP {name}"] = np.hstack([start, 10.0 ** mean[None]])
    return curves


#: Medians of others' searches that `pollutants_curves` and `brusselator_curves` give: number of
#: searches, and the best value after so many further points. (None: not so many points.)
MEDIANS = {
    "pollutants": {
        "the authors' NEON, leaky EI": (10, {15: 6.2e-6, 30: 4.0e-6, 35: 2.2e-6}),
        "the authors' NEON, LCB 0.1": (10, {15: 5.5e-6, 30: 2.7e-6, 35: 2.6e-6}),
        "the authors' NEON, LCB 1": (10, {15: 3.0e-6, 30: 2.9e-6, 35: 2.9e-6}),
        "the authors' random points": (10, {15: 4.6e-2, 30: 3.1e-2, 35: None}),
    },
    "brusselator": {
        "stored: random points": (10, {5: 0.18, 10: 0.13, 20: 0.098, 30: 0.069}),
        "stored: HOGP, EI of the composite, smoothed": (
            1,
            {5: 0.036, 10: 0.027, 20: 0.022, 30: 0.022},
        ),
        "stored: HOGP, EI of the composite": (1, {5: 0.041, 10: 0.030, 20: 0.027, 30: 0.025}),
        "stored: HOGP, EI": (1, {5: 0.14, 10: 0.082, 20: 0.038, 30: 0.029}),
        "stored: HOGP, random points": (1, {5: 0.22, 10: 0.13, 20: 0.083, 30: 0.059}),
    },
}
