"""Tables of the NOMU paper (Heiss et al. 2022).

Signs are those of the intervals' order where the text lost them (three of Table 6 cannot be
known so; they are marked), and those of Table 12's NLL_min are inferred. Tables 2, 6-8, 10-12
and 16 leave out 0.5 log(2 pi); Tables 3 and 13 have it.
"""

METHODS = ("nomu", "gp", "mc_dropout", "deep_ensemble", "hyper_deep_ensemble", "hde_star")


def _rows(text):
    """``{name: numbers}`` of lines that hold a name and numbers."""
    rows = (line.split() for line in text.strip().splitlines())
    return {name: tuple(map(float, numbers)) for name, *numbers in rows}


#: Table 1: ranks (AUC, NLL_min), by METHODS without HDE*.
RANKS_1D = _rows(
    """
    abs       1 1  3 1  3 4  1 1  5 5
    step      2 2  4 3  2 3  1 1  5 5
    kink      1 1  3 1  4 4  1 1  5 5
    square    2 2  2 1  4 4  2 3  5 5
    cubic     2 2  1 1  3 4  3 3  5 5
    sine1     2 1  2 1  1 1  2 1  5 5
    sine2     2 2  3 1  1 2  3 3  5 5
    sine3     1 1  4 1  3 4  1 1  5 5
    forrester 1 2  1 1  3 4  3 3  5 5
    levy      1 1  4 3  1 4  3 1  5 5
    """
)

#: Tables 7 and 8: (AUC, NLL_min), medians over all functions and runs.
AGGREGATES = {
    "toy1d": {
        "nomu": (0.21, -1.76),
        "gp": (0.33, -1.74),
        "mc_dropout": (0.30, -1.02),
        "deep_ensemble": (0.22, -1.75),
        "hyper_deep_ensemble": (2.04, 0.59),
        "hde_star": (1.73, 0.04),
    },
    "toy2d": {
        "nomu": (0.42, -0.99),
        "gp": (0.36, -1.07),
        "mc_dropout": (0.45, -0.61),
        "deep_ensemble": (0.42, -0.95),
        "hyper_deep_ensemble": (5.06, 1.74),
        "hde_star": (6.33, 1.58),
    },
}

#: Tables 10 (of which Table 2 is a part) and 11: NLL and half its 95 % interval, 200 functions.
TESTBED_METHODS = ("nomu", "gp", "mc_dropout", "deep_ensemble", "hyper_deep_ensemble", "tube")
TESTBED = _rows(
    """
    bnn1d   -1.65 0.10 -1.08 0.22 -0.34 0.23 -0.38 0.36 8.47 1.00 -0.86 0.19
    bnn2d   -1.16 0.05 -0.52 0.11 -0.33 0.13 -0.77 0.07 9.10 0.39 -0.81 0.06
    bnn5d   -0.37 0.02 -0.33 0.02 -0.05 0.04 -0.13 0.03 8.41 1.00 -0.33 0.02
    bnn10d  -0.09 0.01 -0.11 0.01  0.06 0.02  0.10 0.01 6.44 1.36 -0.12 0.01
    bnn20d   0.15 0.01  0.06 0.01  0.18 0.01  0.30 0.01 3.58 0.81  0.07 0.01
    gauss1d -1.91 0.13 -1.13 0.27 -0.49 0.16 -0.27 0.54 8.95 1.18 -0.85 0.13
    gauss2d -1.55 0.05 -0.85 0.12 -0.62 0.13 -1.15 0.08 7.92 0.42 -0.95 0.11
    gauss5d -0.77 0.02 -0.72 0.02 -0.47 0.03 -0.55 0.03 9.68 1.08 -0.68 0.02
    gauss10d -1.36 0.01 -1.31 0.01 -1.08 0.03 -1.14 0.02 5.16 1.55 -1.25 0.01
    gauss20d -1.70 0.01 -1.72 0.01 -1.52 0.02 -1.53 0.01 0.99 0.39 -1.68 0.01
    """
)

#: Table 12: (AUC, NLL_min).
SOLAR = {
    "nomu": (0.32, -1.44),
    "gp": (0.46, -1.24),
    "mc_dropout": (0.30, -1.11),
    "deep_ensemble": (0.35, -1.28),
    "hyper_deep_ensemble": (0.47, -0.98),
    "hde_star": (0.59, -1.08),
}

#: Table 15: the grid of each number; n_artificial for one feature (its first is a guess).
GRID = {
    "pi_sqr": (0.01, 0.02, 0.1, 0.5, 1.0),
    "pi_exp": (0.001, 0.002, 0.01, 0.05, 0.1),
    "c_exp": (10.0, 20.0, 30.0, 45.0, 90.0),
    "n_artificial": (25, 50, 100, 200, 400),
    "l_min": (0.01, 0.05, 0.1, 0.15, 0.2),
    "l_max": (0.5, 0.75, 1.0, 2.0, 4.0),
}
#: Table 16: NLL and half its 95 % interval, for each value of GRID, one feature.
SENSITIVITY_1D = _rows(
    """
    pi_sqr       -1.59 0.11 -1.63 0.10 -1.65 0.10 -1.55 0.13 -1.54 0.14
    pi_exp       -1.64 0.09 -1.67 0.09 -1.65 0.10 -1.62 0.10 -1.60 0.10
    c_exp        -1.77 0.12 -1.73 0.10 -1.65 0.10 -1.49 0.12 -1.11 0.13
    n_artificial -1.65 0.09 -1.62 0.11 -1.65 0.10 -1.63 0.12 -1.65 0.10
    l_min        -1.83 0.09 -1.72 0.10 -1.65 0.10 -1.58 0.10 -1.47 0.12
    l_max        -1.49 0.12 -1.60 0.10 -1.65 0.10 -1.63 0.16 -1.66 0.14
    """
)

UCI = _rows(
    """
    boston   2.68 0.11 2.41 0.49 2.46 0.11 2.40 0.07 2.57 0.09 2.58 0.17 3.63 0.39
    concrete 3.05 0.06 3.06 0.35 3.04 0.03 2.97 0.03 3.05 0.07 3.11 0.09 3.12 0.09
    energy   0.77 0.06 1.38 0.43 1.99 0.03 1.72 0.01 0.82 0.05 0.69 0.05 0.69 0.05
    wine     1.08 0.04 0.94 0.23 0.93 0.01 0.92 0.01 0.97 0.03 0.96 0.01 1.48 0.09
    yacht    1.38 0.28 1.18 0.41 1.55 0.05 1.38 0.01 1.01 0.09 1.17 0.13 1.13 0.09
    """
)

UCI_GAP = _rows(
    """
    boston   2.80 0.11 2.79 0.09 2.81 0.15 3.60 0.21
    concrete 3.38 0.08 3.53 0.13 3.72 0.11 3.89 0.21
    energy   3.71 1.62 6.49 5.50 3.78 2.27 3.40 1.99
    wine     0.99 0.02 0.96 0.01 0.98 0.01 1.75 0.07
    yacht    2.15 0.30 1.33 0.29 1.72 0.33 1.44 0.21
    """
)
