"""Tables of NOMU, NEON and Bayesian optimisation."""

import numpy as np
from bo_problems import SUITE
from problems.functions import FUNCTIONS_1D
from published import NOMU, REGRETS, medians
from tables import (
    by_seed,
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
METRICS = "auc", "nll_min"
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


def common_nll(runs):
    """NLL of every run with the one factor c that makes their mean least."""
    log_std, z2 = column(runs, "log_std"), column(runs, "z2")
    c2 = z2.mean()
    return log_std + 0.5 * np.log(c2) + z2 / (2 * c2)


@table
def nomu_uci():
    """NLL over splits and over gaps, with the number of runs."""
    found = {"uci": ("uci", "nomu"), "gap": ("uci_gap", "nomu"), "folds": ("uci_gap", "nomu_gaps")}
    heads = {"uci": "splits", "uci paper": "paper", "gap": "gaps", "folds": "gaps, folds with gaps"}
    heads["uci_gap paper"] = "paper"

    def cell(name, what):
        if what.endswith("paper"):
            published = NOMU[what.split()[0]].get(name)
            return paper_interval(*published) if published else ""
        part, method = found[what]
        runs = runs_of(part, method, name)
        return f"{mean_interval(column(runs, 'nll'))} ({len(runs)})" if runs else ""

    return cross("NLL (runs)", {name: name for name in sorted(NOMU["uci"])}, heads, cell)


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
        cells = [label, str(len(nomu))]
        for method, found in {"nomu": nomu, "gp": rival}.items():
            published = paper_interval(*NOMU["testbed"][name][method])
            cells += [mean_interval(common_nll(found)), published]
        table.append(cells)
    head = ["d", "functions", "NOMU", "paper", "Gaussian process, same functions", "paper"]
    return markdown(head, table)


@table
def nomu_functions():
    """Medians of AUC and NLL_min with ranks by the paper's rule, functions of one feature."""
    runs = {method: runs_of("toy1d", method) for method in NAMES}
    names = [{m: runs_of("toy1d", m, name) for m in NAMES} for name in FUNCTIONS_1D]
    heads = {"auc": "AUC (rank)", "auc paper": "paper", "nll_min": "NLL_min (rank)"}
    heads |= {"nll_min paper": "paper", "ranks": "first, second, lower", "runs": "runs"}
    heads["seconds"] = "seconds a fit"

    def cell(method, what):
        score = what.split()[0]
        if what.endswith("paper"):
            figures = NOMU["aggregates"]["toy1d"].get(method.split(" ")[0])
            return number(figures[METRICS.index(score)]) if figures else ""
        if what == "runs":
            return str(len(runs[method]))
        if what == "seconds":
            return number(np.median(column(runs[method], "seconds")), 1)
        if what != "ranks":
            return f"{number(np.median(column(runs[method], score)))} ({rank(method, runs, score)})"
        if method.startswith("hyper"):  # 3 runs a function
            return ""
        ranks = [min(rank(method, found, s), 3) for found in names for s in METRICS]
        return ", ".join(str(ranks.count(k)) for k in (1, 2, 3))

    return cross("", NAMES, heads, cell)


# NEON and Bayesian optimisation

#: Methods of searches by their title and problem.
SEARCHES = {
    "**NEON**, leaky EI (interferometer: of the logarithm)": (
        "conditioned_lei",
        None,
        "neon_log",
    ),
    "NEON, trained EpiNet, leaky EI": ("neon_lei", "neon_lei", None),
    "`NEONRegressor.from_paper`, leaky EI": ("neon_paper_lei", None, None),
    "Gaussian process for each output, leaky EI": ("gp_composite", None, None),
    "Gaussian process of the value, EI": ("gp", None, "gp"),
    "random points": ("random", "random", "random"),
}
THEIRS = ("the authors' NEON, leaky EI", "stored: HOGP, EI of the composite, smoothed")
THEIRS += ("stored: an ensemble with random priors (the paper's NEON: 0.999 at best)",)


def curves(runs, n_start=5):
    """The best value after each further point, of each search."""
    return [np.fmin.accumulate(r["values"])[n_start - 1 :] for r in runs]


@table
def searches():
    """Medians of searches of skuq beside those of others, from the same designs where known."""
    parts = ("pollutants", "brusselator", "interferometer")
    seeds = {part: {r["seed"] for r in rows("bo", part, "neon_lei")} for part in parts[:2]}
    seeds["interferometer"] = {r["seed"] for r in rows("bo", "interferometer", "gp_log")}
    published = {part: medians(part, sorted(seeds[part])) for part in parts}

    def cell(title, column):
        part, n = column
        optics = part == "interferometer"  # minus a visibility near 1
        if title in SEARCHES:
            method = SEARCHES[title][parts.index(part)]
            runs = rows("bo", part, method) if method else []
            # A search that has not ended counts up to the mark that it has reached.
            best = [c[n] for c in curves(runs, 15 if optics else 5) if len(c) > n]
            n_runs, found = len(runs), np.median(best) if runs and len(best) == len(runs) else None
        else:
            n_runs, best = published[part].get(title, (0, {}))
            found = best.get(n)
        return f"{significant(abs(found), 4 if optics else 2)} ({n_runs})" if found else ""

    heads = {("pollutants", 35): "pollutants, 35", ("brusselator", 30): "Brusselator, 30"}
    heads |= {("interferometer", 85): "interferometer, 85"}
    return cross("after", {title: title for title in (*SEARCHES, *THEIRS)}, heads, cell)


@table
def neon_on_tables():
    """NEON's defaults and the plain ensemble: means over the splits."""

    def cell(name, what):
        method, score = what.split()
        scores = values(rows("neon", name, method), score)
        if score == "nll":
            return mean_interval(scores)
        return f"{mean(scores)} ({min(scores):.2f} to {max(scores):.2f})"

    counts = {r["problem"]: len(rows("neon", r["problem"], "neon")) for r in stored("neon")}
    heads = {"neon nll": "NLL, NEON", "plain nll": "plain ensemble"}
    heads |= {"neon coverage": "90 % coverage, NEON", "plain coverage": "plain ensemble"}
    return cross("set (splits)", {s: f"{s} ({n})" for s, n in counts.items()}, heads, cell)


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
        text = significant(np.median(final), 3 if task.best_value is None else 2) if runs else ""
        return text if len(runs) in (0, counts[name]) else f"{text} ({len(runs)})"

    tasks = {name: make(0) for name, make in SUITE.items()}
    counts = {name: len(whole_searches(name, "neon")) for name in tasks}
    best = {
        name: "" if task.best_value is not None else "best value, " for name, task in tasks.items()
    }
    titles = {name: f"{name} ({best[name]}{counts[name]})" for name in tasks}
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
        table.append([title, *cells, mean([_factor_on_judged_functions(run) for run in runs])])
    head = ["", "parameters", "relative L2 error", "NLL, scaled", "NLL as it is", "factor"]
    return markdown(head, table)


def _factor_on_judged_functions(run):
    """Compute the root mean square of error / std on the functions of both NLLs of a run.

    With z = error / std, nll = log(c) + mean(z^2) / (2 c^2) + k, where k is the same for c = 1.
    """
    difference = run["nll"] - run["nll_uncalibrated"] - np.log(run["c"])
    return np.sqrt(2 * difference / (run["c"] ** -2 - 1))


def regrets_of(problem, method):
    """Regrets of the first three searches, in shares of the least value (NOMU, section 4.2)."""
    known = by_seed("bo_functions", problem, "known")
    if method == "random":
        return [row["random"] for row in known.values()]
    found = []
    for run in rows("bo", problem, method):
        if run["seed"] < 3 and not run.get("unfinished"):
            row = known.get(run["seed"], known[0])
            best = row["low"] + (min(run["values"]) + 1) / 2 * (row["high"] - row["low"])
            found.append((best - row["least"]) / -row["least"])
    return found


@table
def regrets():
    """Mean final regrets by dimension and method; the paper's mean in brackets."""
    titles = {
        "nomu_smooth_0.005": "small NOMU, refined smooth mean",
        "nomu_0.5": "NOMU",
        "gp_0.05": "Gaussian process",
        "pgp": "plain Gaussian process",
        "mc_dropout_0.05": "MC dropout",
        "deep_ensemble_0.05": "deep ensemble",
        "hyper_deep_ensemble_0.5": "hyper deep ensemble",
        "random": "random points",
    }
    heads = {"levy": "Levy", "rosenbrock": "Rosenbrock", "bnn": "Bayesian network"}
    heads |= {"g_function": "G-function", "perm": "Perm"}

    def cell(key, name):
        d, method = key
        final, paper = regrets_of(f"{name}{d}d", method), REGRETS.get(method, {}).get(f"{name}{d}d")
        if not final:
            return ""
        text = significant(np.mean(final), 2)
        text += ", one run" * (len(final) == 1 and method != "random")
        return text if paper is None else f"{text} ({significant(paper[0], 2)})"

    down = {(d, m): f"{d}: {title}" for d in (5, 10, 20) for m, title in titles.items()}
    run = {key: title for key, title in down.items() if any(cell(key, name) for name in heads)}
    return cross("features: method", run, heads, cell)
