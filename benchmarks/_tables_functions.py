"""Tables of NOMU, NEON and Bayesian optimisation."""

import _bo_published
import _nomu_published as published
import numpy as np
from _bo_suite_problems import TASKS, best_known, whole_searches
from _tables import (
    markdown,
    mean,
    mean_interval,
    number,
    records,
    significant,
    table,
    values,
)
from nomu import METRICS, column, common_nll, of_dataset, rank

NAMES = {
    "nomu": "NOMU",
    "nomu_gradient": "NOMU, gradient",
    "gp": "Gaussian process",
    "mc_dropout": "MC dropout",
    "deep_ensemble": "deep ensemble",
    "hyper_deep_ensemble": "hyper deep ensemble",
}


def runs_of(part, method, hidden=256):
    """``{(dataset, seed): record}`` of networks of this width, and of what has no width."""
    found = records("nomu", part=part, method=method)
    of_width = [r for r in found if r["settings"].get("hidden", hidden) == hidden]
    return {(r["dataset"], r["seed"]): r for r in of_width}


def paper_interval(mean, half):
    return f"{mean:.2f} ± {half:.2f}"


@table
def nomu_uci(part, method="nomu"):
    """Means over splits or gaps."""
    tables = {"uci": published.UCI, "uci_gap": published.UCI_GAP}
    runs, rows = runs_of(part, method), []
    for dataset in sorted({dataset for dataset, _ in runs}):
        of_set = of_dataset(runs, dataset)
        nll = column(of_set, "nll")
        spread = f"{nll.min():.1f}, {np.median(nll):.1f}, {nll.max():.1f}"
        cells = [str(len(of_set)), mean_interval(nll), paper_interval(*tables[part][dataset][:2])]
        rows.append([dataset, *cells, spread, mean_interval(column(of_set, "rmse"))])
    return markdown(["", "runs", "NLL", "paper", "least, median, largest NLL", "RMSE"], rows)


@table
def nomu_testbed():
    """One factor c for all functions of a row; rivals on the functions that NOMU has run."""
    rows = []
    for label, part, dataset, hidden in (
        ("1, width 1024", "testbed", "bnn1d", 1024),
        ("1, width 256", "testbed", "bnn1d", 256),
        ("2, width 256", "testbed", "bnn2d", 256),
        ("5, width 256", "testbed", "bnn5d", 256),
        ("1, width 256, normal inputs", "manifold", "gauss1d", 256),
    ):
        nomu = of_dataset(runs_of(part, "nomu", hidden), dataset)
        rival = {key: runs_of(part, "gp")[key] for key in nomu}
        row = [label, str(len(nomu))]
        for method, nll in (
            ("nomu", common_nll(nomu)),
            ("gp", common_nll(rival)),
            ("tube", common_nll(nomu, tube=True)),
        ):
            k = 2 * published.TESTBED_METHODS.index(method)
            paper = published.TESTBED[dataset][k : k + 2]
            row += [mean_interval(nll[0]), paper_interval(*paper)]
        rows.append(row)
    head = ["d", "functions", "NOMU", "paper", "Gaussian process, same functions", "paper"]
    return markdown([*head, "TUBE", "paper"], rows)


@table
def nomu_sensitivity():
    default, rows = common_nll(runs_of("sensitivity", "default"))[0], []
    for name, grid in published.GRID.items():
        cells = []
        for value in grid:
            variant = "default" if value == grid[2] else f"{name}={value:g}"
            nll = common_nll(runs_of("sensitivity", variant))[0]
            gaps = nll - default
            half = 1.96 * gaps.std(ddof=1) / np.sqrt(len(gaps))
            star = "*" if abs(gaps.mean()) > half else ""
            cells.append(f"{value:g}: {nll.mean():.2f}{star}")
        rows.append([name, *cells])
        rows.append(["paper", *(f"{mean:.2f}" for mean in published.SENSITIVITY_1D[name][::2])])
    return markdown([""] * 6, rows)


@table
def nomu_functions():
    """Medians of AUC and NLL_min with ranks by the paper's rule, functions of one feature."""
    found = {method: runs_of("toy1d", method) for method in NAMES}
    rows = []
    for name in (*published.RANKS_1D, "all"):
        by_method = found if name == "all" else {m: of_dataset(r, name) for m, r in found.items()}
        cells = []
        for method, runs in by_method.items():
            medians = []
            for score in METRICS:
                median = number(np.median(column(runs, score)))
                few = name != "all" and method == "hyper_deep_ensemble"  # 3 runs
                medians.append(
                    median if few else f"{median} ({rank(method, runs, by_method, score)})"
                )
            cells.append(", ".join(medians))
        rows.append([name, *cells])
    paper = published.AGGREGATES["toy1d"]
    texts = ("{:.2f}, {:.2f}".format(*paper[m]) if m in paper else "" for m in NAMES)
    rows.append(["all, paper", *texts])
    rows.append(["runs", *(str(len(runs)) for runs in found.values())])
    seconds = (np.median(column(runs, "seconds")) for runs in found.values())
    rows.append(["seconds a fit", *(number(s, 1) for s in seconds)])
    return markdown(["", *NAMES.values()], rows)


@table
def nomu_widths():
    """Medians over all functions of one feature; differences run by run from NOMU of 256."""
    reference, rows = runs_of("toy1d", "nomu"), []
    for method, hidden in (
        ("nomu", 256),
        ("nomu", 1024),
        ("nomu_gradient", 256),
        ("mc_dropout", 1024),
        ("deep_ensemble", 1024),
    ):
        runs = runs_of("toy1d", method, hidden)
        row = [f"{NAMES[method]}, {hidden}", str(len(runs))]
        row += [number(np.median(column(runs, score))) for score in METRICS]
        if method.startswith("nomu") and runs != reference:
            keys = sorted(runs.keys() & reference.keys())
            for score in METRICS:
                gaps = column(runs, score, keys) - column(reference, score, keys)
                row.append(number(np.median(gaps), 3))
            times = column(runs, "seconds", keys) / column(reference, "seconds", keys)
            row.append(number(np.median(times)))
        else:
            row += [""] * 3
        rows.append(row)
    head = [
        "",
        "runs",
        "AUC",
        "NLL_min",
        "AUC minus NOMU, 256",
        "NLL_min minus",
        "times the seconds",
    ]
    return markdown(head, rows)


@table
def nomu_functions_2d():
    rows = []
    for method in ("nomu", "gp"):
        runs, paper = runs_of("toy2d", method), published.AGGREGATES["toy2d"][method]
        medians = (number(np.median(column(runs, score))) for score in METRICS)
        rows.append([NAMES[method], str(len(runs)), *medians, *(f"{p:.2f}" for p in paper)])
    return markdown(["", "runs", "AUC", "NLL_min", "AUC, paper", "NLL_min, paper"], rows)


@table
def nomu_solar():
    rows = []
    for r in records("nomu", part="solar"):
        width = f", width {r['settings']['hidden']}" if r["settings"] else ""
        paper = published.SOLAR[r["method"]]
        cells = [number(r[score]) for score in METRICS]
        rows.append([NAMES[r["method"]] + width, *cells, *(f"{p:.2f}" for p in paper)])
    head = ["", "AUC", "NLL_min", "AUC, paper (width 1024)", "NLL_min, paper"]
    return markdown(head, sorted(rows, key=lambda row: row[0]))


# NEON and Bayesian optimisation

SEARCHES = {
    "pollutants": {
        "conditioned_lei": "NEON, conditioned prior, leaky EI",
        "conditioned_lcb": "the same, LCB (0.316, absolute)",
        "neon_lei": "NEON, trained EpiNet, leaky EI",
        "neon_lcb": "the same, LCB (0.316, absolute)",
        "rpn_lei": "16 small networks with random priors, leaky EI",
        "gp_composite": "a Gaussian process for each output, leaky EI",
        "gp": "Gaussian process on f, EI",
        "random": "random points",
    },
    "brusselator": {"neon_lei": "NEON, leaky EI", "random": "random points"},
    "brusselator_authors": {
        "neon_lei": "NEON, leaky EI, from the authors' five points",
        "neon_lcb": "the same, LCB (0.316, absolute)",
    },
}
SEARCHES_OF_TABLE = {
    "pollutants": ["pollutants"],
    "brusselator": ["brusselator", "brusselator_authors"],
}


def curves(runs, n_start=5):
    """The best value after each further point, of each search."""
    return [np.fmin.accumulate(r["values"])[n_start - 1 :] for r in runs]


def median_after(runs, n):
    return significant(np.median([c[n] for c in curves(runs)]), 2)


def step_seconds(runs):
    """Medians of fitting and acquisition, and the slowest of each, but for the first steps."""
    cells = []
    for name in ("seconds_fit", "seconds_acquisition"):
        seconds = [s for r in runs for s in r["steps"].get(name, [])[1:]]
        cells.append(f"{np.median(seconds):.1f} ({np.max(seconds):.0f})" if seconds else "")
    return cells


@table
def searches(part):
    """Searches of skuq beside those of others; of the pollutants from the same designs."""
    designs = sorted({r["seed"] for r in records("bo", part=part, method="neon_lei")})
    others = _bo_published.medians(part, designs)
    marks = list(next(iter(others.values()))[1])
    rows = []
    shown = [(name, *item) for name in SEARCHES_OF_TABLE[part] for item in SEARCHES[name].items()]
    for dataset, method, title in shown:
        runs = records("bo", part=part, dataset=dataset, method=method)
        runs = [r for r in runs if len(r["values"]) >= 5 + marks[-1]]  # those that have ended
        if not runs:
            continue
        last = [c[marks[-1]] for c in curves(runs)]
        cells = [str(len(runs)), *(median_after(runs, n) for n in marks)]
        spread = f"{significant(min(last), 2)} to {significant(max(last), 2)}"
        spread = spread if len(last) > 1 else ""
        rows.append([title, *cells, spread, *step_seconds(runs)])
    for title, (n_runs, medians) in others.items():
        cells = ["" if m is None else significant(m, 2) for m in medians.values()]
        rows.append([title, str(n_runs), *cells, "", "", ""])
    head = ["median of the best", "searches", *(f"after {n}" for n in marks)]
    head += [f"range after {marks[-1]}", "s to fit (slowest)", "s to acquire (slowest)"]
    return markdown(head, rows)


@table
def searches_in_batches():
    rows = []
    for q, (part, method) in enumerate(
        (("pollutants", "neon_lei"), ("parallel", "q2"), ("parallel", "q3")), start=1
    ):
        runs = [r for r in records("bo", part=part, method=method) if r["seed"] < 3]
        cells = [median_after(runs, n) for n in (6, 12, 18, 24, 35)]
        cells += [median_after(runs, q * n) for n in (3, 6, 9)]
        totals = [sum(r["steps"]["seconds_fit"] + r["steps"]["seconds_acquisition"]) for r in runs]
        rows.append([f"q = {q}", *cells, f"{np.median(totals):.0f}"])
    head = ["median of the best", "after 6 points", "12", "18", "24", "35", "after 3 batches", "6"]
    return markdown([*head, "9", "seconds of a search"], rows)


@table
def neon_on_tables():
    """NEON's defaults and the plain ensemble: means over the splits."""
    titles = {"neon": "NEON", "plain": "plain ensemble"}
    rows = []
    for name in dict.fromkeys(r["set"] for r in records("neon")):
        for method, title in titles.items():
            runs = records("neon", set=name, method=method)
            cells = [mean_interval(values(runs, "nll")), mean_interval(values(runs, "rmse"))]
            coverage = [r["coverage"] for r in runs]
            cells += [mean(coverage), f"{min(coverage):.2f} to {max(coverage):.2f}"]
            rows.append([name, title, str(len(runs)), *cells])
    head = ["set", "", "splits", "NLL", "RMSE", "coverage of 90 % intervals", "range over splits"]
    return markdown(head, rows)


SUITE = {
    "neon": "NEON",
    "gp": "Gaussian process, EI",
    "botorch": "BoTorch, qLogEI",
    "optuna": "Optuna, GPSampler",
    "random": "random points",
}


@table
def suite():
    """Final regrets of searches beside those of other libraries, and the time of a step."""
    rows = []
    for name, make in TASKS.items():
        task = make(None)
        row = [name if task.best_value is not None else f"{name} (best value)"]
        for method in SUITE:
            runs = whole_searches(records("bo_suite"), name, method)
            final = [min(r["values"]) - best_known(task) for r in runs]
            digits = 3 if task.best_value is None else 2
            row.append(f"{significant(np.median(final), digits)} ({len(runs)})" if runs else "")
        rows.append(row)
    return markdown(["", *SUITE.values()], rows)


@table
def held_out_functions():
    titles = {
        "neon": "NEON",
        "neon_epinet": "NEON, trained EpiNet",
        "ensemble": "deep ensemble of 10 base networks",
        "rpn": "the same with randomised priors",
    }
    rows = []
    for method, title in titles.items():
        runs = records("bo", part="operator", method=method)
        if not runs:
            continue
        cells = [f"{runs[0]['n_parameters']:.0f}", mean_interval(values(runs, "relative_l2"), 4)]
        cells += [mean_interval(values(runs, "nll")), mean(values(runs, "nll_uncalibrated"))]
        judged = [_factor_on_judged_functions(run) for run in runs]
        rows.append([title, *cells, mean(values(runs, "c")), mean(judged)])
    head = ["", "parameters", "relative L2 error", "NLL, scaled", "NLL as it is"]
    head += ["factor, on the 20", "factor, on the 200"]
    return markdown(head, rows)


def _factor_on_judged_functions(run):
    """Compute the root mean square of error / std on the functions of both NLLs of a run.

    With z = error / std, nll = log(c) + mean(z^2) / (2 c^2) + k, where k is the same for c = 1.
    """
    difference = run["nll"] - run["nll_uncalibrated"] - np.log(run["c"])
    return np.sqrt(2 * difference / (run["c"] ** -2 - 1))


@table
def regrets(d):
    """Final regrets on the functions that have been run; the paper's mean in brackets."""
    titles = {
        "nomu_smooth_0.005": "small NOMU, refined smooth mean, mean width 0.005, L-BFGS",
        "nomu_small_0.05": "small NOMU, refined mean, mean width 0.05, L-BFGS",
        "nomu_refined_0.05": "NOMU, refined mean, mean width 0.05",
        "nomu_0.5": "NOMU, mean width 0.5",
        "nomu_lbfgs_0.5": "the same, L-BFGS in place of DIRECT, one run",
        "gp_0.05": "Gaussian process, mean width 0.05",
        "pgp": "plain Gaussian process",
        "random": "random points",
    }
    names = {"levy": "Levy", "rosenbrock": "Rosenbrock", "bnn": "Bayesian network"}
    names |= {"g_function": "G-function", "perm": "Perm"}
    functions = {f"{name}{d}d": title for name, title in names.items()}
    run = {record["dataset"] for record in records("bo", part="nomu")}
    functions = {key: title for key, title in functions.items() if key in run}
    rows = []
    for method, title in titles.items():
        cells = []
        for function in functions:
            runs = records("bo", part="nomu", dataset=function, method=method)
            # Regrets of searches that are complete; the least value is -1.
            final = np.array([c[64] for c in curves(runs, 8) if len(c) > 64]) + 1
            text = significant(final.mean(), 2) if len(final) else ""
            if len(final) > 1:
                half = 1.96 * final.std(ddof=1) / np.sqrt(len(final))
                text += f" ± {significant(half, 2)}"
            paper = _bo_published.REGRETS.get(method, {}).get(function)
            if text and paper is not None:
                text += f" ({significant(paper[0], 2)})"
            cells.append(text)
        if any(cells):
            rows.append([title, *cells])
    return markdown(["", *functions.values()], rows)
