"""Tables of NOMU, NEON and Bayesian optimisation."""

import numpy as np
from bo_problems import SUITE
from problems.functions import FUNCTIONS_1D
from published import NOMU, REGRETS, medians
from tables import (
    cross,
    markdown,
    mean,
    mean_interval,
    number,
    rows,
    significant,
    stored,
    table,
    values,
)

# NOMU

NAMES = {
    "nomu 256": "NOMU",
    "nomu_gradient 256": "NOMU, gradient",
    "gp": "Gaussian process",
    "mc_dropout 256": "MC dropout",
    "deep_ensemble 256": "deep ensemble",
    "hyper_deep_ensemble 256": "hyper deep ensemble",
}
METRICS = {"auc": "AUC", "nll_min": "NLL_min"}
N_BOOTSTRAP, MIN_RUNS = 2000, 5  # fewer runs tell nothing of significance


def runs_of(part, method, name=None):
    """``{(problem, seed): row}`` of all problems of a part, or of one."""
    found = [r for r in rows("nomu", method=method) if r["problem"].split(" ")[0] == part]
    if name is not None:
        found = [r for r in found if r["problem"] == f"{part} {name}"]
    return {(r["problem"], r["seed"]): r for r in found}


def column(runs, score, keys=None):
    return np.array([runs[key][score] for key in (keys or sorted(runs))])


def paper_interval(mean, half):
    return f"{mean:.2f} ± {half:.2f}"


def is_better(one, other, score):
    """Say whether the median is lower in 95 % of the bootstrap samples of common runs."""
    keys = sorted(one.keys() & other.keys())
    if len(keys) < MIN_RUNS:
        return False
    drawn = np.random.default_rng(0).integers(len(keys), size=(N_BOOTSTRAP, len(keys)))
    medians, rival = (np.median(column(r, score, keys)[drawn], axis=1) for r in (one, other))
    return np.quantile(medians - rival, 0.975) < 0


def rank(method, found, score):
    """Rank as in the paper: a rank is lost to every method whose median is significantly better.

    NOMU with gradients competes in NOMU's place.
    """
    ranked = [m for m in found if m != "nomu_gradient 256"]
    others = ranked[1:] if method.startswith("nomu") else [m for m in ranked if m != method]
    return 1 + sum(is_better(found[m], found[method], score) for m in others)


def common_nll(runs, tube=False):
    """NLL of every run with the one factor c that makes their mean least."""
    log_std, z2 = column(runs, "log_std"), column(runs, "z2")
    if tube:  # a std of 1 everywhere
        log_std, z2 = 0.0, column(runs, "mse")
    c2 = z2.mean()
    return log_std + 0.5 * np.log(c2) + z2 / (2 * c2)


@table
def nomu_uci(part, method="nomu"):
    """Means over splits or gaps."""
    paper, table = NOMU[part], []
    for name in sorted(paper):
        runs = runs_of(part, method, name)
        if not runs:
            continue
        nll = column(runs, "nll")
        spread = f"{nll.min():.1f}, {np.median(nll):.1f}, {nll.max():.1f}"
        cells = [str(len(runs)), mean_interval(nll), paper_interval(*paper[name])]
        table.append([name, *cells, spread, mean_interval(column(runs, "rmse"))])
    return markdown(["", "runs", "NLL", "paper", "least, median, largest NLL", "RMSE"], table)


@table
def nomu_testbed():
    """One factor c for all functions of a row; rivals on the functions that NOMU has run."""
    table = []
    for label, part, name, width in (
        ("1, width 1024", "testbed", "bnn1d", 1024),
        ("1, width 256", "testbed", "bnn1d", 256),
        ("2, width 256", "testbed", "bnn2d", 256),
        ("5, width 256", "testbed", "bnn5d", 256),
        ("1, width 256, normal inputs", "manifold", "gauss1d", 256),
    ):
        nomu, rival = runs_of(part, f"nomu {width}", name), runs_of(part, "gp", name)
        rival = {key: rival[key] for key in nomu}
        nll = {"nomu": common_nll(nomu), "gp": common_nll(rival), "tube": common_nll(nomu, True)}
        cells = [label, str(len(nomu))]
        for method, found in nll.items():
            cells += [mean_interval(found), paper_interval(*NOMU["testbed"][name][method])]
        table.append(cells)
    head = ["d", "functions", "NOMU", "paper", "Gaussian process, same functions", "paper"]
    return markdown([*head, "TUBE", "paper"], table)


@table
def nomu_functions():
    """Medians of AUC and NLL_min with ranks by the paper's rule, functions of one feature."""
    all_runs = {method: runs_of("toy1d", method) for method in NAMES}
    down = {name: name for name in (*FUNCTIONS_1D, "all")}
    down |= {"paper": "all, paper", "runs": "runs", "seconds": "seconds a fit"}

    def cell(what, method):
        runs = all_runs[method]
        if what == "paper":
            figures = NOMU["aggregates"]["toy1d"].get(method.split(" ")[0])
            return "{:.2f}, {:.2f}".format(*figures) if figures else ""
        if what == "runs":
            return str(len(runs))
        if what == "seconds":
            return number(np.median(column(runs, "seconds")), 1)
        found = all_runs
        if what != "all":
            found = {m: runs_of("toy1d", m, what) for m in NAMES}
        few = what != "all" and method.startswith("hyper")  # 3 runs
        texts = []
        for score in METRICS:
            median = number(np.median(column(found[method], score)))
            texts.append(median if few else f"{median} ({rank(method, found, score)})")
        return ", ".join(texts)

    return cross("", down, NAMES, cell)


# NEON and Bayesian optimisation

#: Searches by problem and method, in the tables of a part.
SEARCHES = {
    "pollutants": {
        ("pollutants", "conditioned_lei"): "NEON, conditioned prior, leaky EI",
        ("pollutants", "conditioned_lcb"): "the same, LCB (0.316, absolute)",
        ("pollutants", "neon_lei"): "NEON, trained EpiNet, leaky EI",
        ("pollutants", "neon_lcb"): "the same, LCB (0.316, absolute)",
        ("pollutants", "rpn_lei"): "16 small networks with random priors, leaky EI",
        ("pollutants", "gp_composite"): "a Gaussian process for each output, leaky EI",
        ("pollutants", "gp"): "Gaussian process on f, EI",
        ("pollutants", "random"): "random points",
    },
    "brusselator": {
        ("brusselator", "neon_lei"): "NEON, leaky EI",
        ("brusselator", "random"): "random points",
        ("brusselator_authors", "neon_lei"): "NEON, leaky EI, from the authors' five points",
        ("brusselator_authors", "neon_lcb"): "the same, LCB (0.316, absolute)",
    },
    "interferometer": {
        ("interferometer", "neon_log"): "NEON of the logarithm, leaky EI",
        ("interferometer", "gp_log"): "Gaussian process of the logarithm, EI",
        ("interferometer", "gp"): "Gaussian process of the visibility, EI",
        ("interferometer", "random"): "random points",
    },
}


def curves(runs, n_start=5):
    """The best value after each further point, of each search."""
    return [np.fmin.accumulate(r["values"])[n_start - 1 :] for r in runs]


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
    optics = part == "interferometer"  # minus a visibility near 1
    designs = sorted(r["seed"] for r in rows("bo", part, "gp_log" if optics else "neon_lei"))
    others, n_start, digits = medians(part, designs), 15 if optics else 5, 4 if optics else 2
    marks, table = list(next(iter(others.values()))[1]), []
    for (problem, method), title in SEARCHES[part].items():
        runs = rows("bo", problem, method)
        # Of a search that has not ended there are the marks that it has reached.
        best = [np.abs([c[n] for c in curves(runs, n_start) if len(c) > n]) for n in marks]
        cells = [significant(np.median(m), digits) if len(m) == len(runs) else "" for m in best]
        ends = (min(best[-1]), max(best[-1])) if len(best[-1]) == len(runs) > 1 else ()
        spread = " to ".join(significant(end, digits) for end in ends)
        table.append([title, str(len(runs)), *cells, spread, *step_seconds(runs)])
    for title, (n_runs, best) in others.items():
        cells = ["" if m is None else significant(abs(m), digits) for m in best.values()]
        table.append([title, str(n_runs), *cells, "", "", ""])
    head = ["median of the best", "searches", *(f"after {n}" for n in marks)]
    head += [f"range after {marks[-1]}", "s to fit (slowest)", "s to acquire (slowest)"]
    return markdown(head, table)


@table
def neon_on_tables():
    """NEON's defaults and the plain ensemble: means over the splits."""
    table = []
    for name in dict.fromkeys(r["problem"] for r in stored("neon")):
        for method, title in {"neon": "NEON", "plain": "plain ensemble"}.items():
            runs = rows("neon", name, method)
            cells = [mean_interval(values(runs, "nll")), mean_interval(values(runs, "rmse"))]
            coverage = values(runs, "coverage")
            cells += [mean(coverage), f"{min(coverage):.2f} to {max(coverage):.2f}"]
            table.append([name, title, str(len(runs)), *cells])
    head = ["set", "", "splits", "NLL", "RMSE", "coverage of 90 % intervals", "range over splits"]
    return markdown(head, table)


OF_SUITE = {
    "neon": "NEON",
    "gp": "Gaussian process, EI",
    "botorch": "BoTorch, qLogEI",
    "optuna": "Optuna, GPSampler",
    "random": "random points",
}


def whole_searches(name, method):
    """Searches of a problem of the suite that have reached their end."""
    end = SUITE[name](0).n_evaluations
    return [r for r in rows("bo_suite", name, method) if len(r["values"]) == end]


@table
def suite():
    """Final regrets of searches beside those of other libraries."""

    def cell(name, method):
        task, runs = tasks[name], whole_searches(name, method)
        final = [min(r["values"]) - task.best_known for r in runs]
        digits = 3 if task.best_value is None else 2
        return f"{significant(np.median(final), digits)} ({len(runs)})" if runs else ""

    tasks = {name: make(0) for name, make in SUITE.items()}
    titles = {n: n if t.best_value is not None else f"{n} (best value)" for n, t in tasks.items()}
    return cross("", titles, OF_SUITE, cell)


@table
def held_out_functions():
    titles = {
        "neon": "NEON",
        "neon_epinet": "NEON, trained EpiNet",
        "ensemble": "deep ensemble of 10 base networks",
        "rpn": "the same with randomised priors",
    }
    table = []
    for method, title in titles.items():
        runs = rows("operators", method=method)
        cells = [f"{runs[0]['n_parameters']:.0f}", mean_interval(values(runs, "relative_l2"), 4)]
        cells += [mean_interval(values(runs, "nll")), mean(values(runs, "nll_uncalibrated"))]
        judged = [_factor_on_judged_functions(run) for run in runs]
        table.append([title, *cells, mean(values(runs, "c")), mean(judged)])
    head = ["", "parameters", "relative L2 error", "NLL, scaled", "NLL as it is"]
    head += ["factor, on the 20", "factor, on the 200"]
    return markdown(head, table)


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
        "nomu_refined_0.05": "NOMU, refined mean, mean width 0.05",
        "nomu_0.5": "NOMU, mean width 0.5",
        "gp_0.05": "Gaussian process, mean width 0.05",
        "pgp": "plain Gaussian process",
        "random": "random points",
    }
    names = {"levy": "Levy", "rosenbrock": "Rosenbrock", "bnn": "Bayesian network"}
    names |= {"g_function": "G-function", "perm": "Perm"}
    heads = {f"{name}{d}d": title for name, title in names.items()}

    def cell(method, function):
        # Regrets of searches that are complete; the least value is -1.
        runs = curves(rows("bo", function, method), 8)
        final = np.array([c[64] for c in runs if len(c) > 64]) + 1
        if not len(final):
            return ""
        text = significant(final.mean(), 2)
        if len(final) > 1:
            half = 1.96 * final.std(ddof=1) / np.sqrt(len(final))
            text += f" ± {significant(half, 2)}"
        paper = REGRETS.get(method, {}).get(function)
        return text if paper is None else f"{text} ({significant(paper[0], 2)})"

    run = {method: t for method, t in titles.items() if any(cell(method, f) for f in heads)}
    return cross("", run, heads, cell)
