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


#: What `pollutants_curves` gives of the authors' searches from each of their ten initial designs:
#: the best value after so many further points. (Their random points end after 30.)
BY_DESIGN = {
    "the authors' NEON, leaky EI": {
        15: "7.18e-7 7.67e-6 1.32e-5 4.66e-6 1.42e-5 2.45e-7 2.30e-6 1.93e-7 8.77e-6 1.65e-5",
        30: "2.35e-7 6.83e-6 5.59e-6 2.53e-6 7.57e-6 7.38e-8 1.85e-6 7.73e-8 6.03e-6 5.43e-6",
        35: "2.24e-7 6.83e-6 8.89e-7 2.48e-6 7.57e-6 7.38e-8 1.85e-6 3.51e-8 6.03e-6 5.02e-6",
    },
    "the authors' NEON, LCB 0.1": {
        15: "1.64e-6 4.23e-6 5.32e-5 6.80e-6 3.78e-5 2.53e-7 4.27e-6 1.21e-7 8.31e-6 8.28e-5",
        30: "7.94e-7 3.58e-6 1.89e-6 2.03e-6 8.41e-6 1.30e-7 3.37e-6 1.20e-8 6.50e-6 1.58e-5",
        35: "2.72e-7 3.58e-6 1.41e-6 1.93e-6 7.57e-6 4.57e-8 3.37e-6 9.11e-9 6.29e-6 1.27e-5",
    },
    "the authors' NEON, LCB 1": {
        15: "2.50e-6 7.79e-6 4.00e-7 6.81e-6 3.50e-6 1.12e-6 6.60e-6 1.91e-6 6.01e-6 2.40e-6",
        30: "1.38e-6 6.99e-6 1.46e-7 5.80e-6 3.50e-6 5.54e-7 4.70e-6 1.04e-7 6.01e-6 2.28e-6",
        35: "1.14e-6 6.69e-6 1.46e-7 5.80e-6 3.50e-6 5.54e-7 4.57e-6 1.04e-7 5.70e-6 2.28e-6",
    },
    "the authors' random points": {
        15: "0.0247 0.0628 0.0267 0.0455 0.0641 0.0128 0.0559 0.0466 0.0124 0.19",
        30: "0.0247 0.0628 0.0267 0.0455 0.0445 0.0128 0.0337 0.0466 0.0124 0.0275",
        35: None,
    },
}


def medians(part, designs):
    """Return the published medians: ``{title: (number of searches, {further points: median})}``.

    Those of the pollutants begin with `designs`, as ours do.
    """
    if part in MEDIANS:
        return MEDIANS[part]
    found = {}
    for title, by_mark in BY_DESIGN.items():
        own = {}
        for mark, text in by_mark.items():
            values = None if text is None else np.array(text.split(), dtype=float)
            own[mark] = None if values is None else float(np.median(values[designs]))
        found[title] = (len(designs), own)
    return found


#: Medians of others' searches that `brusselator_curves` gives: number of searches, and the best
#: value after so many further points.
MEDIANS = {
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
