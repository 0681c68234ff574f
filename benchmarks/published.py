"""Published and measured figures the benchmarks print beside their own.

NLL is per row in the target's units, of a normal, with 0.5 log(2 pi).
"""

#: Table I of the AutoDEUQ paper: (NLL, RMSE). Other columns are quoted there.
TABLE_I = {
    "boston": {
        "PBP": (2.57, 3.01), "MC dropout": (2.46, 2.97), "deep ensemble": (2.41, 3.28),
        "hyper ensemble": (2.15, 2.87), "DF ensemble": (2.74, 3.38), "AutoDEUQ": (2.46, 3.09),
    },
    "concrete": {
        "PBP": (3.16, 5.67), "MC dropout": (3.04, 5.23), "deep ensemble": (3.06, 6.03),
        "hyper ensemble": (4.09, 4.7), "DF ensemble": (3.10, 5.76), "AutoDEUQ": (2.86, 4.38),
    },
    "energy": {
        "PBP": (2.04, 1.8), "MC dropout": (1.99, 1.66), "deep ensemble": (1.38, 2.09),
        "hyper ensemble": (0.9, 1.72), "DF ensemble": (1.62, 2.30), "AutoDEUQ": (0.61, 0.39),
    },
    "kin8nm": {
        "PBP": (-0.9, 0.1), "MC dropout": (-0.95, 0.1), "deep ensemble": (-1.2, 0.09),
        "hyper ensemble": (6.89, 0.26), "DF ensemble": (-1.14, 0.09), "AutoDEUQ": (-1.40, 0.06),
    },
    "naval": {
        "PBP": (-3.73, 0.01), "MC dropout": (-3.8, 0.01), "deep ensemble": (-5.63, 0.0),
        "hyper ensemble": (-3.03, 0.01), "DF ensemble": (-5.73, 0.0), "AutoDEUQ": (-8.24, 0.0),
    },
    "power": {
        "PBP": (2.84, 4.12), "MC dropout": (2.8, 4.02), "deep ensemble": (2.79, 4.11),
        "hyper ensemble": (5.24, 4.38), "DF ensemble": (2.83, 4.10), "AutoDEUQ": (2.66, 3.43),
    },
    "protein": {
        "PBP": (2.97, 4.73), "MC dropout": (2.89, 4.36), "deep ensemble": (2.83, 4.71),
        "hyper ensemble": (21.12, 5.09), "DF ensemble": (3.12, 4.98), "AutoDEUQ": (2.48, 3.52),
    },
    "wine": {
        "PBP": (0.97, 0.64), "MC dropout": (0.93, 0.62), "deep ensemble": (0.94, 0.64),
        "hyper ensemble": (1.92, 0.73), "DF ensemble": (1.15, 0.65), "AutoDEUQ": (1.00, 0.62),
    },
    "yacht": {
        "PBP": (1.63, 1.02), "MC dropout": (1.55, 1.11), "deep ensemble": (1.18, 1.58),
        "hyper ensemble": (0.48, 1.86), "DF ensemble": (0.76, 1.00), "AutoDEUQ": (-0.17, 0.44),
    },
}  # fmt: skip
