"""Figures of the papers on NEON and NOMU, beside those of Bayesian optimisation here."""

import numpy as np
from data import folder

#: NOMU (Heiss et al. 2022), Table 14: average final regrets and half of their 95 % intervals, over
#: 100 runs (50 in 10 and 20 dimensions) of networks of three times 1024 units:
#: ``{method: {function: (regret, half)}}``. The text lost the signs of exponents, which can only be
#: negative. The table below is in units of 1e-4.
REGRETS: dict = {}
_METHODS = ("nomu_0.05", "nomu_0.5", "gp_0.05", "gp_0.5", "pgp", "random")
_TABLE_14 = """
    levy5d         21.2 5.95   15.2 4.34     11 1.68   88.4 11.5   62.5 5.26    544 42.2
    rosenbrock5d   1.75 0.276   3.57 0.639   3.62 0.652   8.44 1.62   7.56 0.813   47.3 7.04
    g_function5d   1120  199   1060  197   1680  162   2600  172   1780  122   3630  109
    perm5d         4.06  1.7   2.58 1.13  0.776 0.319     18 4.44   2.06 0.703   4.62  1.2
    bnn5d           539  334    356  187    824  409    441  304    215 63.7   5420  921
    levy10d        62.7 22.2   62.7 22.2    104   21    104   21   61.6 8.94   1060 76.4
    rosenbrock10d  23.4 14.3   20.1 6.91   9.14 1.25   56.7   16   30.9 5.77    282 39.2
    g_function10d  2920  385   3530  274   3790  224   4210  235   3800  134   4500 64.8
    perm10d        3.74 1.26   4.27 1.34   3.59 2.13   6.52 2.04   5.57 1.43   1.81 0.544
    bnn10d         1190  371    972  340   1920  515   1640  410    838  225   5920  534
    levy20d         151 16.9    140 16.3    198 86.1    264  112    198 78.8   1480 65.8
    rosenbrock20d   347 70.8   60.3 9.93   89.4   40    191 40.4    109 15.2    780 83.8
    g_function20d  4160 89.9   4180  170   4590 67.7   4860 39.5   4470 93.7   4860 24.4
    perm20d       0.745 0.209  0.746 0.25    2.2 0.898   1.57 0.75  0.944 0.325   0.19 0.0467
    bnn20d         1550  407   1200  308   1790  336   1380  267   1090  206   6850  329
"""
for _line in _TABLE_14.strip().splitlines():
    _function, *_numbers = _line.split()
    for _k, _method in enumerate(_METHODS):
        _pair = [round(1e-4 * float(number), 8) for number in _numbers[2 * _k : 2 * _k + 2]]
        REGRETS.setdefault(_method, {})[_function] = tuple(_pair)


def pollutants_start(seed):
    """The first five inputs of one of the ten runs of the NEON authors: (5, 4)."""
    with np.load(folder() / "neon" / "reference_runs.npz") as runs:
        return runs["pollutants_u_ei_leaky"][seed, :5].astype(float)


def brusselator_start():
    """The five inputs of the Brusselator that come with the authors' program: (5, 4)."""
    with np.load(folder() / "neon" / "brusselator_initial.npz") as stored:
        return stored["u"].astype(float)


#: The authors' searches from each of their ten initial designs: the best value after so many
#: further points. (Their random points end after 30.)
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
        of_title = {}
        for mark, text in by_mark.items():
            values = None if text is None else np.array(text.split(), dtype=float)
            of_title[mark] = None if values is None else float(np.median(values[designs]))
        found[title] = (len(designs), of_title)
    return found


#: Medians of others' searches that are stored with the authors' code: number of searches, and the
#: best value after so many further points.
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
