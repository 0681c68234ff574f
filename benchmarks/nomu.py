"""NOMU beside the figures of its paper, and beside its rivals in the same runs.

    python benchmarks/nomu.py --data-dir DIR [--only toy1d testbed ..] [--hidden 256]

toy1d: ten functions of one feature, 8 noiseless points, `--runs` draws of them: medians of AUC
and NLL_min, ranks by the paper's rule, aggregates, seconds (Tables 1, 5, 6 and 7).
toy2d: eleven functions of two features, 16 points (Table 8).
testbed: functions drawn from a Bayesian network with 1, 2 and 5 features: NLL with one factor c
for all functions (Table 2; `--functions bnn10d bnn20d` for the rest of Table 10).
manifold: the same with normal inputs (Table 11); one feature unless `--functions` says more.
sensitivity: the test bed with one feature, for each number of the loss and the readout
(Table 16). What can train side by side does.
solar: the irradiance (Table 12); `--picture PATH` draws it.
uci, uci_gap: Tables 3 and 13. NOMU alone, of 50 units whatever `--hidden` says; on the gaps also
with ``validation="gaps"`` and ``connect_layers=0``.

`--hidden` are the units of NOMU's three hidden layers. It scales those of the rivals too: 1024 is
everywhere the paper's size. Each run is kept at once in nomu.json in `--results-dir`, by default
``benchmarks/results``, and not repeated but with `--redo`: the script may be stopped at any time,
go on with more `--runs`, and run twice at once with other `--functions`. Only solar, uci and
uci_gap need data.
"""

import argparse
from pathlib import Path

import numpy as np
from _nomu_methods import METHODS
from _nomu_runs import (
    GAPS,
    PARTS,
    cells,
    datasets_of,
    methods_of,
    problem,
    run,
    settings_of,
    variants,
)
from _stored import STORED, add, read

CELL = ("part", "dataset", "method", "seed", "settings")  # what tells records apart
NAMES = {
    "nomu": "NOMU",
    "nomu_gradient": "NOMU, gradient",
    "gp": "GP",
    "mc_dropout": "MC dropout",
    "deep_ensemble": "DE",
    "hyper_deep_ensemble": "HDE",
    "hde_star": "HDE*",
    "tube": "TUBE",
}
RANKED = METHODS[:1] + METHODS[2:-1]  # one of each kind, as in Table 1
METRICS = {"auc": "AUC", "nll_min": "NLL_min"}
N_BOOTSTRAP, MIN_RUNS = 2000, 5  # fewer runs tell nothing of significance


def is_cell(record, *cell):
    return tuple(record[k] for k in CELL) == cell


def run_missing(path, part, dataset, seed, arguments):
    """All methods of one run that are not known yet, each saved as it comes."""
    wanted = {m: settings_of(part, m, arguments) for m in methods_of(part, arguments)}
    if not arguments.redo:
        stored = [r for r in read(path) if (r["part"], r["dataset"]) == (part, dataset)]
        known = [
            m for m in wanted if any(is_cell(r, part, dataset, m, seed, wanted[m]) for r in stored)
        ]
        wanted = {m: settings for m, settings in wanted.items() if m not in known}
    if not wanted:
        return
    data = problem(part, dataset, seed, arguments.data_dir)
    if part == "sensitivity":
        outcomes = variants(data, seed, list(wanted), arguments)
    else:
        outcomes = ((m, run(part, m, data, seed, arguments)) for m in wanted)
    for method, found in outcomes:
        rounded = {k: v if isinstance(v, list) else float(f"{v:.7g}") for k, v in found.items()}
        cell = (part, dataset, method, seed, settings_of(part, method, arguments))
        add(path, dict(zip(CELL, cell)) | rounded, CELL)
        print(f"{part} {dataset} {seed} {method}: {found['seconds']:.1f} s", flush=True)


def runs_of(records, part, method, settings, datasets):
    """``{(dataset, seed): record}`` of one method."""
    found = [r for r in records if (r["part"], r["method"]) == (part, method)]
    found = [r for r in found if r["settings"] == settings and r["dataset"] in datasets]
    return {(r["dataset"], r["seed"]): r for r in found}


def found_methods(records, part, arguments, names):
    """``{method: its runs}`` of those that have any."""
    datasets = datasets_of(part, arguments)
    found = {m: runs_of(records, part, m, settings_of(part, m, arguments), datasets) for m in names}
    return {method: runs for method, runs in found.items() if runs}


def of_dataset(runs, dataset):
    return {key: record for key, record in runs.items() if key[0] == dataset}


def column(runs, score, keys=None):
    return np.array([runs[key][score] for key in (keys or sorted(runs))])


def bootstrap_medians(values):
    """The same draws of runs for every array of this length, so that pairs stay pairs."""
    drawn = np.random.default_rng(0).integers(len(values), size=(N_BOOTSTRAP, len(values)))
    return np.median(values[drawn], axis=1)


def is_better(one, other, score):
    """Whether the median is lower, with 95 % of the bootstrap, over the runs that both have."""
    keys = sorted(one.keys() & other.keys())
    if len(keys) < MIN_RUNS:
        return False
    medians, rival = (bootstrap_medians(column(runs, score, keys)) for runs in (one, other))
    return np.quantile(medians - rival, 0.975) < 0


def rank(method, runs, found, score):
    """The paper's: a rank is lost to every method whose median is significantly better.

    `runs` of variants of NOMU compete in NOMU's place.
    """
    kind = "nomu" if method.startswith("nomu") else method
    return 1 + sum(is_better(found[m], runs, score) for m in RANKED if m in found and m != kind)


def mean_cell(values, digits=2):
    """Mean and half of the 95 % normal interval."""
    half = 1.96 * values.std(ddof=1) / np.sqrt(len(values)) if len(values) > 1 else np.nan
    return f"{values.mean():.{digits}f}±{half:.{digits}f}"


def common_nll(runs, tube=False):
    """NLL of every run with the one factor c that makes their mean least, and c."""
    if tube:  # a std of 1 everywhere
        z2 = column(runs, "mse")
        log_std = np.zeros(len(z2))
    else:
        log_std, z2 = column(runs, "log_std"), column(runs, "z2")
    c2 = z2.mean()
    return log_std + 0.5 * np.log(c2) + z2 / (2 * c2), np.sqrt(c2)


def draw_solar(path, records, arguments):
    """The paper's Figure 13, with its factors of the standard deviation."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    factors = {"nomu": 2, "gp": 1, "mc_dropout": 5, "deep_ensemble": 5}
    factors |= {"hyper_deep_ensemble": 15, "hde_star": 40}
    found = found_methods(records, "solar", arguments, factors)
    if not found:
        raise SystemExit("There are no runs of solar to draw.")
    X, y, X_test, y_test = problem("solar", "solar", 0, arguments.data_dir)
    figure, axes = plt.subplots(
        len(found), figsize=(9, 2.6 * len(found)), layout="constrained", squeeze=False, sharex=True
    )
    for axis, (method, runs) in zip(axes[:, 0], found.items()):
        x, mean, std = np.array(runs[min(runs)]["curve"])
        half = factors[method] * std
        axis.fill_between(
            x, mean - half, mean + half, color="#A6CEE6", label=f"± {factors[method]} std"
        )
        axis.plot(x, mean, color="#0072B2", lw=1, label="mean")
        if method == "nomu":
            axis.plot(x, half, ":", color="#B36B00", lw=1, label=f"{factors[method]} std")
        axis.plot(X[:, 0], y, "k.", ms=3, label="training")
        axis.plot(X_test[:, 0], y_test, "x", color="#D55E00", ms=3, label="test")
        axis.set(title=NAMES[method], ylim=(-1.8, 1.8), ylabel="irradiance, scaled")
        axis.legend(loc="lower right", ncols=5, fontsize=7, frameon=False)
    axes[-1, 0].set_xlabel("year, scaled")
    figure.savefig(path, dpi=90)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--results-dir", type=Path, default=STORED)
    parser.add_argument("--only", nargs="+", default=list(PARTS), choices=list(PARTS))
    parser.add_argument("--functions", nargs="+", help="functions or data sets of these names")
    parser.add_argument("--methods", nargs="+", choices=(*METHODS, GAPS))
    parser.add_argument("--runs", type=int, help="seeds, splits or features of each")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--epochs", type=int, help="other than the paper's, to try things out")
    parser.add_argument("--n-search", type=int, default=50, help="settings of hyper ensembles")
    parser.add_argument("--redo", action="store_true")
    parser.add_argument("--picture", type=Path, help="only draw the irradiance, here")
    arguments = parser.parse_args()
    known = {name for part in arguments.only for name in PARTS[part].datasets}
    unknown = set(arguments.functions or ()) - known
    if unknown:
        parser.error(f"--functions must be of {sorted(known)}. Got {sorted(unknown)}.")
    needed = set(arguments.only) & {"solar", "uci", "uci_gap"}
    if arguments.data_dir is None and (arguments.picture or needed):
        parser.error("--data-dir is needed")
    path = arguments.results_dir / "nomu.json"
    for part in [] if arguments.picture else arguments.only:
        for dataset, seed in cells(part, arguments):
            run_missing(path, part, dataset, seed, arguments)
    if arguments.picture:
        draw_solar(arguments.picture, read(path), arguments)


if __name__ == "__main__":
    main()
