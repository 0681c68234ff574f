"""Tables of numbers: the field, AutoDEUQ, baselines, the recipe, calibration, gaps, equal time."""

import numpy as np
import pandas as pd
from data import LARGE, SMALL, SUITE
from published import DENSITIES, PUBLISHED, TABLE_I
from regression import BASELINES, CALIBRATIONS, FIELD, N_CALIBRATED, N_FEATURES
from scipy import stats
from tables import (
    by_seed,
    cross,
    markdown,
    mean,
    mean_error,
    number,
    rows,
    significant,
    span,
    stored,
    table,
    values,
)

SIX = (*SMALL, "diabetes")
LINEAR = ("boom_bikes", "excitation_current")  # y is exactly linear in X
BOTH = "{:.2f} ({:.2f})"  # NLL (RMSE)
GAP_SCORES = ("crps_own", "nll_own", "coverage_95")

# The field


def common_scores(benchmark, problem, methods, score):
    """Scores of methods on the splits of a set that all of them have, and these splits."""
    runs = [by_seed(benchmark, problem, method) for method in methods]
    splits = sorted(set.intersection(*map(set, runs)))
    return np.array([[found[k][score] for k in splits] for found in runs], float), splits


def field_table(benchmark, methods, sets, score):
    """Methods by sets: means over the splits that all have."""
    found, order = {s: common_scores(benchmark, s, methods, score) for s in sets}, list(methods)

    def cell(method, name):
        scores = found[name][0][order.index(method)]
        return mean_error(scores), scores.mean()

    across = {name: f"{name} ({span(splits)})" for name, (_, splits) in found.items()}
    return cross("", methods, across, cell, "down")


@table
def field_regression(score):
    return field_table("regression", FIELD, SIX, score)


@table
def field_classes():
    methods = {m: FIELD.get(m, m) for m in ("tabular", "plain", "boosting, temperature")}
    return field_table("classes", methods, CLASSES, "nll")


CLASSES = ("letter", "pendigits", "adult", "bank", "electricity", "cancer")


@table
def field_published():
    # Published ones are of more splits.
    found = {s: rows("regression", s, "tabular") for s in DENSITIES["TabPFN v2"]}
    figures = {"tabular": {s: mean_of(r, "nll_own") for s, r in found.items()}, **DENSITIES}
    titles = {m: f"{m}, published" for m in figures} | {"tabular": "`TabularEnsembleRegressor`"}
    heads = {s: f"{s} ({span(row['seed'] for row in r)})" for s, r in found.items()}
    return cross("NLL", titles, heads, lambda m, s: (number(figures[m][s]), figures[m][s]), "down")


@table
def field_ranks():
    """Mean ranks over two groups of sets, and CRPS relative to that of the tabular ensemble."""
    peers = ("tabular", "gaussian process", "ngboost", "catboost", "boosted quantiles")
    suite = [name for name in SUITE if all(rows("regression", name, m) for m in peers)]
    suite = [name for name in suite if name not in LINEAR]
    columns = {}
    for title, sets, methods, own in (("six", SIX, FIELD, ""), ("suite", suite, peers, "_own")):
        for score in ("crps", "nll"):
            found = [common_scores("regression", s, methods, score + own)[0] for s in sets]
            found = np.array([scores.mean(axis=1) for scores in found])
            ranks = stats.rankdata(found, axis=1).mean(axis=0)
            columns[f"{title}: rank by {score.upper()}"] = dict(zip(methods, ranks))
            if score == "crps":
                over = np.median(found / found[:, :1], axis=0)
                columns[f"{title}: CRPS over ours"] = dict(zip(methods, over))

    def cell(method, column):
        return number(columns[column][method]) if method in columns[column] else ""

    return cross("", FIELD, dict(zip(columns, columns)), cell)


def listed(names):
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def against_best(name, score):
    """Paired differences of the best rival's score to the tabular ensemble's, split by split."""
    methods = [method for method in FIELD if method != "plain"]
    (ours, *rivals), _ = common_scores("regression", name, methods, score)
    return min(rivals, key=np.mean) - ours


@table
def field_verdict():
    """Say where the tabular ensemble is better by CRPS than chance between splits explains."""
    places = {"clearly better than": [], "level with": [], "clearly behind": []}
    gains = {name: against_best(name, "crps") for name in SIX}
    for name, gain in gains.items():
        bound = stats.t.ppf(0.975, len(gain) - 1) * gain.std(ddof=1) / np.sqrt(len(gain))
        clear = abs(gain.mean()) > bound
        places[list(places)[0 if clear and gain.mean() > 0 else 2 if clear else 1]].append(name)
    told = [
        f"{how} the best of its five rivals on {len(sets)} of six sets ({listed(sets)})"
        if how == "clearly better than"
        else f"{how} it on {len(sets)} ({listed(sets)})"
        for how, sets in places.items()
        if sets
    ]
    lowest = sum(gain.mean() > 0 for gain in gains.values())
    return (
        f"By CRPS `TabularEnsembleRegressor` is {listed(told)}. *Clearly* is a paired t-test over "
        f"the splits at 5 %. Its mean CRPS is the lowest on {lowest}."
    )


@table
def classes_verdict():
    """Say on which sets the tabular ensemble's log loss is below that of calibrated boosting."""
    methods = ("boosting, temperature", "tabular")
    gaps = {name: common_scores("classes", name, methods, "nll")[0] for name in CLASSES}
    gaps = {name: np.mean(rival - ours) for name, (rival, ours) in gaps.items()}
    ahead = [name for name, gap in gaps.items() if gap > 0.02]
    behind = [name for name, gap in gaps.items() if gap < -0.02]
    level = [name for name in CLASSES if name not in ahead + behind]
    parts = [
        f"{how} on {listed(sets)}"
        for how, sets in (("lower", ahead), ("higher", behind), ("within 0.02 nats", level))
        if sets
    ]
    return (
        "The log loss of `TabularEnsembleClassifier`, beside boosting with temperature scaling, is "
        f"{'; '.join(parts)}."
    )


@table
def field_tabular():
    """Scores of the tabular ensemble alone."""
    runs = {s: rows("regression", s, "tabular") for s in (*SIX, *LARGE, "bike")}
    scores = {"nll_own": "NLL", "crps_own": "CRPS", "coverage": "90 % coverage"}
    titles = {s: f"{s} ({span(r['seed'] for r in found)})" for s, found in runs.items()}
    return cross("", titles, scores, lambda s, score: significant(mean_of(runs[s], score)))


# AutoDEUQ and baselines


@table
def autodeuq_rivals():
    """Rivals of the field on the splits that AutoDEUQ has run."""
    runs = {name: by_seed("autodeuq", name, "100 trials") for name in ("yacht", "concrete")}
    titles = {"AutoDEUQ here": "**AutoDEUQ, 100 trials**", "plain": "plain ensemble"}
    titles["tabular"] = "tabular ensemble"
    titles |= {method: FIELD[method] for method in ("gaussian process", "ngboost", "catboost")}
    titles["coverage"] = "90 % coverage, AutoDEUQ"

    def cell(method, name):
        found = runs[name]
        if method == "coverage":
            return mean(values(found.values(), method))
        if method in FIELD:
            of_method = by_seed("regression", name, method)
            found = {k: of_method[k] for k in found if k in of_method}
        return " ".join(
            text.format(mean(values(found.values(), score)))
            for text, score in (("{}", "nll"), ("({})", "rmse"))
        )

    heads = {name: f"{name} ({span(found)})" for name, found in runs.items()}
    return cross("NLL (RMSE)", titles, heads, cell)


@table
def paper_protocol():
    """The paper's protocol beside its Table I: NLL (RMSE), and ranks over sets with three runs."""
    runs = {n: {s: rows("autodeuq", s, f"{n} trials") for s in TABLE_I} for n in (500, 60)}
    sets = {s: s for s in (*SMALL, *LARGE) if s in TABLE_I and (runs[500][s] or runs[60][s])}
    thrice = [s for s in sets if len(runs[60][s]) == 3]
    figures = {
        n: {s: [round(mean_of(r, k), 2) for k in ("nll", "rmse")] for s, r in of.items() if r}
        for n, of in runs.items()
    } | {m: {s: TABLE_I[s][m] for s in sets} for m in TABLE_I["yacht"]}
    ranked = [m for m in figures if m != 500]
    scores = [[figures[m][s] for m in ranked] for s in thrice]
    for method, rank in zip(ranked, stats.rankdata(scores, axis=1).mean(axis=0)):
        figures[method]["rank"] = rank

    def cell(method, name):
        n_runs = f", {len(runs[method][name])}" if method in runs and name in sets else ""
        return BOTH.format(*figures[method][name]) + n_runs if name in figures[method] else ""

    titles = {m: m for m in figures}
    titles |= {n: f"**here, {n} trials** (runs)" for n in runs}
    return cross("NLL (RMSE)", titles, sets | {"rank": f"mean rank: {', '.join(thrice)}"}, cell)


def mean_of(rows, score):
    return values(rows, score).mean()


@table
def baselines():
    """Deep ensembles, hyper deep ensembles and MC dropout beside published figures."""
    down = {}
    for method in BASELINES:
        down |= {method: method.replace("hyper", "hyper deep"), f"published {method}": "published"}
    down |= {"coverage": "90 % coverage (DE, HDE, MC)", "fit_seconds": "seconds (DE, HDE, MC)"}

    def cell(what, name):
        if what in BASELINES:
            found = rows("baselines", name, what)
            return f"{mean_error(values(found, 'nll'), 2)} ({mean(values(found, 'rmse'))})"
        if what.startswith("published"):
            return BOTH.format(*TABLE_I[name][what.removeprefix("published ")])
        found = [values(rows("baselines", name, method), what) for method in BASELINES]
        return ", ".join(mean(column, 2 if what == "coverage" else 1) for column in found)

    return cross("NLL (RMSE)", down, {s: s for s in sorted(SMALL)}, cell)


# The rules of the recommended ensembles


@table
def rent(of):
    """Changes without each rule, in per cent: means, standard error, largest."""
    frame = pd.DataFrame(r for r in stored(f"rent_{of}") if ":" not in r["problem"])
    score, other = ("nll", "brier") if of == "classes" else ("crps", "rmse")
    found, without_effect = [], []
    for name, part in frame.groupby("method", sort=False):
        both = part.merge(frame[frame.method == "as it is"], on=["problem", "seed"])
        logs = {s: 100 * np.log(both[f"{s}_x"] / both[f"{s}_y"]) for s in (score, other)}
        if abs(logs[score]).max() < 0.05:
            without_effect.append(name)
            continue
        cells = [number(logs[score].max(), 1), number(logs[other].mean(), 1)]
        found.append([name, mean_error(logs[score], 1), *cells])
    found += [[name, "0.0", "0.0", "0.0"] for name in without_effect[1:]]
    return markdown(["without", score, "most", other], found)


# Calibration


def calibrated(method):
    """Rows of each set, or part of one, by its name."""
    found = {}
    for row in rows("calibration", method=method):
        for name, scores in row.items():
            if isinstance(scores, dict):
                found.setdefault(name, []).append(scores)
    order = list(N_CALIBRATED)
    return dict(sorted(found.items(), key=lambda item: (order.index(item[0].split()[0]), item[0])))


@table
def calibration():
    """Coverage of 90 % intervals and change of the NLL: means and standard errors over splits."""
    found = {method: calibrated(method) for method in CALIBRATIONS}

    def cell(name, method):
        if method != "nll":
            return mean_error(values(found[method][name], "coverage"))
        plain, own = (values(found[m][name], "nll") for m in ("as it is", "scale"))
        return mean_error(own - plain)

    titles = {name: f"{name} ({len(part)})" for name, part in found["as it is"].items()}
    heads = dict(zip(CALIBRATIONS, CALIBRATIONS)) | {"nll": "change of NLL"}
    return cross("set (splits)", titles, heads, cell)


@table
def gaps(kind):
    """CRPS, NLL and share inside 95 %: means over the features that are sorted by."""
    methods = {m: FIELD[m] for m in ("tabular", "plain", "gaussian process", "catboost")}
    names = {f"{name}, {kind}": f"{name} ({n})" for name, n in N_FEATURES.items()}

    def cell(problem, method):
        if method in methods:
            found = rows("gaps", problem, method)
            assert len(found) in (0, N_FEATURES[problem.split(",")[0]])
            scores = [values(found, s).mean() for s in GAP_SCORES] if found else ()
            of = ""
        else:
            known = PUBLISHED["gaps"]["table"][problem]
            name = min(known, key=lambda m: known[m][0])
            scores, of = known[name], f" {name}"
        text = "/".join(significant(v) if k < 2 else number(v) for k, v in enumerate(scores))
        return text + of, scores[0] if scores else np.nan

    heads = methods | {None: "best of seven, published"}
    return cross("set (features)", names, heads, cell, "across")


# Equal time


def timed():
    """Rows of all sets: `ratio` to the recipe's score, and `gap` of the NLL."""
    frame = pd.DataFrame(stored("equal_time"))
    numbers = frame["crps"].notna()
    score, of_recipe = (
        np.where(numbers, frame[f"crps{name}"], frame[f"nll{name}"]) for name in ("", "_recipe")
    )
    gap, used = frame["nll"] - frame["nll_recipe"], frame["seconds"] / frame["seconds_recipe"]
    kind = np.where(numbers, "numbers", "classes")
    return frame.assign(kind=kind, ratio=score / of_recipe, gap=gap, used=used)


@table
def equal_time():
    """Scores of AutoDEUQ over those of the recipe, over sets."""
    lines = []
    for (method, kind), frame in timed().groupby(["method", "kind"]):
        found = frame.groupby("problem")[["ratio", "gap", "used"]].mean()
        ratio, worst = found["ratio"], found["ratio"].idxmax()
        mean_ratio = np.exp(np.log(ratio).mean())
        cells = [number(mean_ratio), number(ratio.median()), f"{number(ratio[worst])} ({worst})"]
        cells += [mean_error(found["gap"]), mean(found["used"])]
        lines.append([f"{method}, {kind}", len(found), *cells])
    head = ["time of the recipe", "sets", "mean ratio", "median", "worst", "NLL", "time used"]
    return markdown(head, lines)
