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
go on with more `--runs`, and run twice at once with other `--functions`. `--summary` prints what
there is. Only solar, uci and uci_gap need data.
"""

import argparse
from pathlib import Path

import _nomu_published as published
import numpy as np
from _nomu_methods import METHODS
from _nomu_runs import (
    DEFAULT,
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
from _tables import print_table

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


def typical_seconds(runs):
    """The median, as the first fit of a process compiles its program too."""
    return f"{np.median(column(runs, 'seconds')):.1f}"


def bootstrap_medians(values):
    """The same draws of runs for every array of this length, so that pairs stay pairs."""
    drawn = np.random.default_rng(0).integers(len(values), size=(N_BOOTSTRAP, len(values)))
    return np.median(values[drawn], axis=1)


def median_cell(values, digits=2):
    low, high = np.quantile(bootstrap_medians(values), [0.025, 0.975])
    return f"{np.median(values):.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"


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


def worst_rank(method, runs, found, score, datasets):
    """Return the worst rank of a method over all functions with enough runs."""
    places = [
        rank(method, of_dataset(runs, d), {m: of_dataset(r, d) for m, r in found.items()}, score)
        for d in datasets
        if len(of_dataset(runs, d)) >= MIN_RUNS
    ]
    return str(max(places)) if places else "-"


def mean_cell(values, digits=2):
    """Mean and half of the 95 % normal interval."""
    half = 1.96 * values.std(ddof=1) / np.sqrt(len(values)) if len(values) > 1 else np.nan
    return f"{values.mean():.{digits}f}±{half:.{digits}f}"


def print_toy(part, records, arguments):
    found = found_methods(records, part, arguments, METHODS)
    if not found:
        return
    datasets = [
        d for d in datasets_of(part, arguments) if any(of_dataset(r, d) for r in found.values())
    ]
    for k, (score, title) in enumerate(METRICS.items()):
        rows = []
        for dataset in datasets:
            by_method = {m: of_dataset(runs, dataset) for m, runs in found.items()}
            rows.append([dataset, *toy_cells(by_method, score)])
            if part == "toy1d":
                rows.append(["  paper", *(published_median(dataset, m, score) for m in found)])
        rows.append(["all functions", *toy_cells(found, score)])
        aggregates = published.AGGREGATES[part]
        rows.append(
            ["  paper", *(f"{aggregates[m][k]:.2f}" if m in aggregates else "" for m in found)]
        )
        settings = settings_of(part, "nomu", arguments)
        heads = [str(settings), *(NAMES[m] for m in found)]
        print_table(f"{part}: median of {title}, 95 % bootstrap interval, rank", heads, rows, 18)
    counts = [str(len(runs)) for runs in found.values()]
    rows = [["runs", *counts], ["seconds", *map(typical_seconds, found.values())]]
    print_table(f"{part}: median seconds of a fit", ["", *(NAMES[m] for m in found)], rows)
    print_variants(part, datasets, records, found, arguments)


def toy_cells(by_method, score):
    cells = []
    for method, runs in by_method.items():
        place = rank(method, runs, by_method, score) if len(runs) >= MIN_RUNS else "-"
        cells.append(f"{median_cell(column(runs, score))} {place}" if runs else "-")
    return cells


def published_median(dataset, method, score):
    if method not in published.METHODS:
        return ""
    k = published.METHODS.index(method)
    text = f"{published.MEDIANS_1D[score][dataset][k]:.2f}"
    if method in RANKED:
        place = 2 * k + list(METRICS).index(score)
        return f"{text} {published.RANKS_1D[dataset][place]:.0f}"
    return f"{text}  "


def print_variants(part, datasets, records, found, arguments):
    """NOMU of every width, with and without the gradient, against that of `--hidden`."""
    if "nomu" not in found:
        return
    reference, rows = found["nomu"], []
    kinds = {
        (r["method"], r["settings"]["hidden"])
        for r in records
        if r["part"] == part and r["method"].startswith("nomu")
    }
    for method, hidden in sorted(kinds, key=lambda kind: (-kind[1], kind[0])):
        settings = settings_of(part, method, arguments) | {"hidden": hidden}
        runs = runs_of(records, part, method, settings, datasets)
        keys = sorted(runs.keys() & reference.keys())
        if not keys:
            continue
        row = [f"{NAMES[method]}, {hidden}", str(len(runs))]
        for score in METRICS:
            row.append(median_cell(column(runs, score)))
            gaps = column(runs, score, keys) - column(reference, score, keys)
            row.append("" if runs == reference else median_cell(gaps, 3))
            row.append(worst_rank(method, runs, found, score, datasets))
        ratios = column(runs, "seconds", keys) / column(reference, "seconds", keys)
        rows.append([*row, typical_seconds(runs), f"{np.median(ratios):.2f}"])
    heads = ["", "runs"]
    for title in METRICS.values():
        heads += [title, "median difference", "worst rank"]
    print_table(
        f"{part}: variants of NOMU; differences run by run from that of {arguments.hidden} units",
        [*heads, "seconds", "ratio"],
        rows,
        22,
    )


def common_nll(runs, tube=False):
    """NLL of every run with the one factor c that makes their mean least, and c."""
    if tube:  # a std of 1 everywhere
        z2 = column(runs, "mse")
        log_std = np.zeros(len(z2))
    else:
        log_std, z2 = column(runs, "log_std"), column(runs, "z2")
    c2 = z2.mean()
    return log_std + 0.5 * np.log(c2) + z2 / (2 * c2), np.sqrt(c2)


def print_testbed(part, records, arguments):
    found = found_methods(records, part, arguments, METHODS)
    for dataset in datasets_of(part, arguments):
        by_method = {m: of_dataset(runs, dataset) for m, runs in found.items()}
        by_method = {m: runs for m, runs in by_method.items() if runs}
        if not by_method:
            continue
        nll = {m: common_nll(runs) for m, runs in by_method.items()}
        if "nomu" in by_method:
            by_method["tube"], nll["tube"] = (
                by_method["nomu"],
                common_nll(by_method["nomu"], tube=True),
            )
        rows = []
        for method, (values, c) in nll.items():
            row = [NAMES[method], str(len(values)), mean_cell(values)]
            paper = ""
            if method in published.TESTBED_METHODS:
                k = 2 * published.TESTBED_METHODS.index(method)
                paper = "{:.2f}±{:.2f}".format(*published.TESTBED[dataset][k : k + 2])
            row += [paper, gap_from_nomu(method, by_method, nll), f"{c:.3g}"]
            rows.append([*row, typical_seconds(by_method[method])])
        settings = settings_of(part, "nomu", arguments)
        heads = [str(settings), "functions", "NLL", "paper", "minus NOMU", "c", "seconds"]
        print_table(f"{part} {dataset}: mean NLL, one c, 95 % normal interval", heads, rows, 18)


def gap_from_nomu(method, by_method, nll):
    """Mean difference of NLL over the functions that both have."""
    if method == "nomu" or "nomu" not in by_method:
        return ""
    gaps = [dict(zip(sorted(by_method[m]), nll[m][0])) for m in (method, "nomu")]
    keys = gaps[0].keys() & gaps[1].keys()
    return mean_cell(np.array([gaps[0][k] - gaps[1][k] for k in keys])) if keys else ""


def print_sensitivity(part, records, arguments):
    found = found_methods(records, part, arguments, PARTS[part].methods)
    if DEFAULT not in found:
        return
    keys = sorted(set.intersection(*(set(runs) for runs in found.values())))
    if not keys:
        return
    nll = {m: common_nll({k: runs[k] for k in keys})[0] for m, runs in found.items()}
    rows = []
    for name, grid in published.GRID.items():
        row = [name]
        for value in grid:
            variant = DEFAULT if value == grid[2] else f"{name}={value:g}"
            row.append(f"{value:g}: {variant_cell(nll, variant)}")
        rows.append(row)
        paper = published.SENSITIVITY_1D[name]
        rows.append(["  paper", *(f"{m:.2f}±{h:.2f} " for m, h in zip(paper[::2], paper[1::2]))])
    title = f"{part}: mean NLL over {len(keys)} functions, one c each; * differs from the default"
    print_table(title, [str(settings_of(part, DEFAULT, arguments)), *["" for _ in range(5)]], rows)
    trained = [column(runs, "seconds").mean() for runs in found.values()]
    print(f"seconds a function, all {len(found)} variants: {sum(trained):.0f}")


def variant_cell(nll, variant):
    if variant not in nll:
        return "- "
    gaps = nll[variant] - nll[DEFAULT]
    half = 1.96 * gaps.std(ddof=1) / np.sqrt(len(gaps)) if len(gaps) >= MIN_RUNS else np.inf
    return mean_cell(nll[variant]) + ("*" if abs(gaps.mean()) > half else " ")


def print_solar(part, records, arguments):
    rows = []
    for method, runs in found_methods(records, part, arguments, METHODS).items():
        paper = published.SOLAR.get(method, (np.nan, np.nan))
        row = [NAMES[method], str(len(runs))]
        for k, score in enumerate(METRICS):
            row += [f"{column(runs, score).mean():.2f}", f"{paper[k]:.2f}"]
        row.append(f"{column(runs, 'train_rmse').mean():.3f}")
        rows.append([*row, typical_seconds(runs)])
    if rows:
        heads = [str(settings_of(part, "nomu", arguments)), "runs"]
        heads += ["AUC", "paper", "NLL_min", "paper", "RMSE of training", "seconds"]
        print_table("solar: means of the runs", heads, rows, 18)


def print_uci(part, records, arguments):
    uci = part == "uci"
    tables = published.UCI if uci else published.UCI_GAP
    names = published.UCI_METHODS if uci else published.UCI_GAP_METHODS
    rows = []
    for method, runs in found_methods(records, part, arguments, METHODS).items():
        for dataset in datasets_of(part, arguments):
            of_set = of_dataset(runs, dataset)
            if not of_set:
                continue
            row = [dataset + (", gradient" if method == "nomu_gradient" else ""), str(len(of_set))]
            row += [mean_cell(column(of_set, score)) for score in ("nll", "rmse")]
            row += [f"{np.median(column(of_set, 'c')):.2f}", typical_seconds(of_set)]
            paper = tables[dataset]
            rows.append([*row, *(f"{m:.2f}±{h:.2f}" for m, h in zip(paper[::2], paper[1::2]))])
    if rows:
        heads = ["", "splits", "NLL", "RMSE", "c", "seconds", *(f"{n} (paper)" for n in names)]
        print_table(f"{part}: means and 95 % normal intervals", heads, rows, 20)


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


PRINTERS = {
    "toy1d": print_toy,
    "toy2d": print_toy,
    "testbed": print_testbed,
    "manifold": print_testbed,
    "sensitivity": print_sensitivity,
    "solar": print_solar,
    "uci": print_uci,
    "uci_gap": print_uci,
}


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
    parser.add_argument("--summary", action="store_true", help="print what has been run")
    parser.add_argument("--picture", type=Path, help="draw the irradiance here")
    arguments = parser.parse_args()
    known = {name for part in arguments.only for name in PARTS[part].datasets}
    unknown = set(arguments.functions or ()) - known
    if unknown:
        parser.error(f"--functions must be of {sorted(known)}. Got {sorted(unknown)}.")
    needed = set(arguments.only) & {"solar", "uci", "uci_gap"}
    if arguments.data_dir is None and (arguments.picture or not arguments.summary and needed):
        parser.error("--data-dir is needed")
    path = arguments.results_dir / "nomu.json"
    for part in [] if arguments.summary else arguments.only:
        for dataset, seed in cells(part, arguments):
            run_missing(path, part, dataset, seed, arguments)
    records = read(path)
    for part in arguments.only:
        PRINTERS[part](part, records, arguments)
    if arguments.picture:
        draw_solar(arguments.picture, records, arguments)


if __name__ == "__main__":
    main()
