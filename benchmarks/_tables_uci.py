"""Tables of UCI sets and of classes: the field, AutoDEUQ, baselines, networks for tables."""

import numpy as np
from _tables import (
    bold_lowest,
    markdown,
    mean,
    mean_error,
    number,
    records,
    significant,
    stored,
    table,
    transposed,
    values,
)
from calibration import N_SPLITS, coverage, misses_by_chance, pooled_bins
from leaderboard import FIELD, SUITE, mean_ranks, mean_scores
from portfolio import rows as portfolio_rows
from published import TABLE_I
from scipy import stats
from strategies import rows as strategy_rows
from tabular import GOALS, LARGE, SMALL, VARIANTS
from uci_regression import min_ranks

CLASSIFIERS = {
    "tabular": "**skuq, tabular**",
    "plain": "skuq, plain",
    "boosting": "boosting",
    "boosting, temperature": "boosting, temperature",
}


def span(splits):
    """Splits as text: 0-4."""
    splits = sorted(splits)
    if splits == list(range(splits[0], splits[-1] + 1)) and len(splits) > 1:
        return f"{splits[0]}-{splits[-1]}"
    return ", ".join(map(str, splits))


# The field


def scores_of_common_splits(part, name, methods, score):
    """Scores of methods, and the splits of a set that all of them have."""
    runs = {m: records("leaderboard", part=part, set=name, method=m) for m in methods}
    splits = set.intersection(*({r["split"] for r in found} for found in runs.values()))
    common = [values([r for r in found if r["split"] in splits], score) for found in runs.values()]
    return common, splits


def field_table(part, methods, sets, score, digits, ranked=False):
    """Methods by sets: means over the splits that all have, and mean ranks if `ranked`."""
    head, columns, ranks = [""], [list(methods.values())], []
    for name in sets:
        common, splits = scores_of_common_splits(part, name, methods, score)
        cells = [mean_error(v, digits.get(name, 3)) for v in common]
        head.append(f"{name} ({span(splits)})")
        columns.append(bold_lowest(cells, [v.mean() for v in common]))
        ranks.append(stats.rankdata([v.mean() for v in common]))
    if ranked:
        head.append("mean rank")
        columns.append([number(rank, 1) for rank in np.mean(ranks, axis=0)])
    return markdown(head, transposed(columns))


@table
def field_suite(score):
    """Scores of the predicted distributions on the suite's tables that all methods have run."""
    peers = ("tabular", "gaussian process", "ngboost", "catboost", "boosted quantiles")
    methods = {method: FIELD[method] for method in peers}
    sets = [
        name
        for name in SUITE
        if all(records("leaderboard", part="regression", set=name, method=m) for m in peers)
    ]
    digits = {"excitation_current": 8 if score == "crps_own" else 3}
    return field_table("regression", methods, sets, score, digits, ranked=True)


@table
def field_regression(score):
    return field_table("regression", FIELD, (*SMALL, "diabetes"), score, {})


@table
def field_classes():
    names = ("letter", "pendigits", "adult", "bank", "electricity", "cancer")
    return field_table("classes", CLASSIFIERS, names, "nll", {})


@table
def field_ranks():
    """The ranks of the picture."""
    ranks = {score: mean_ranks(mean_scores("regression", score)[0])[0] for score in ("crps", "nll")}
    methods = [m for m in FIELD if m in ranks["crps"]]
    rows = [[FIELD[m], *(number(ranks[s][m], 1) for s in ranks)] for m in methods]
    return markdown(["mean rank", "CRPS", "NLL"], rows)


def listed(names):
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def against_best(name, score):
    """Paired differences of the best rival's score to the tabular ensemble's, split by split."""
    runs = {
        method: {r["split"]: r[score] for r in records("leaderboard", set=name, method=method)}
        for method in FIELD
        if method != "plain"
    }
    splits = sorted(set.intersection(*(set(found) for found in runs.values())))
    scores = {method: np.array([found[k] for k in splits]) for method, found in runs.items()}
    ours = scores.pop("tabular")
    return min(scores.values(), key=np.mean) - ours


@table
def field_verdict():
    """Say where the tabular ensemble is better by CRPS than chance between splits explains."""
    places = {"clearly better than": [], "level with": [], "clearly behind": []}
    for name in (*SMALL, "diabetes"):
        gain = against_best(name, "crps")
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
    sentence = f"By CRPS `TabularEnsembleRegressor` is {listed(told)}."
    lowest = sum(against_best(name, "crps").mean() > 0 for name in (*SMALL, "diabetes"))
    clearly = "*Clearly* is a paired t-test over the splits at 5 %."
    return f"{sentence} {clearly} Its mean CRPS is the lowest on {lowest}."


@table
def classes_verdict():
    """Say on which sets the tabular ensemble's log loss is below that of calibrated boosting."""

    def gap(name):
        rival, ours = (
            {r["split"]: r["nll"] for r in records("leaderboard", set=name, method=method)}
            for method in ("boosting, temperature", "tabular")
        )
        return np.mean([rival[k] - ours[k] for k in rival.keys() & ours.keys()])

    names = ("letter", "pendigits", "adult", "bank", "electricity", "cancer")
    gaps = {name: gap(name) for name in names}
    ahead = [name for name, gap in gaps.items() if gap > 0.02]
    behind = [name for name, gap in gaps.items() if gap < -0.02]
    level = [name for name in names if name not in ahead + behind]
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
    sets = (*SMALL, "diabetes", *LARGE, "bike")
    runs = {s: records("leaderboard", part="regression", set=s, method="tabular") for s in sets}
    head = ["", *(f"{s} ({span(r['split'] for r in found)})" for s, found in runs.items())]
    rows = []
    for title, column in {
        "NLL": "nll",
        "CRPS": "crps",
        "RMSE": "rmse",
        "90 % coverage": "coverage",
        "seconds of a fit": "fit_seconds",  # of runs on a machine without other work
    }.items():
        told = [[r[column] for r in found if column in r] for found in runs.values()]
        rows.append([title, *(significant(np.mean(v)) if v else "" for v in told)])
    # Runs of the default have the density that is predicted, too.
    own = [[r["nll_own"] for r in found if "nll_own" in r] for found in runs.values()]
    told = [significant(np.mean(v)) if v else "" for v in own]
    rows.insert(1, ["NLL of the predicted density", *told])
    nll = [values(found, "nll") for found in runs.values()]
    gaps = [number(v.max() - np.median(v)) if len(v) > 1 else "" for v in nll]
    rows.insert(2, ["NLL of the worst split minus the median", *gaps])
    return markdown(head, rows)


# AutoDEUQ


def autodeuq_runs(dataset, **settings):
    """AutoDEUQ's runs with these settings and no others, whatever the number of jobs."""
    runs = records("uci_regression", dataset=dataset, protocol="splits")
    wanted = {"search": "agebo", "n_jobs": 0} | settings
    return [r for r in runs if r["settings"] | {"n_jobs": 0} == wanted]


@table
def autodeuq():
    columns = ("nll", "nll_mixture", "rmse", "crps", "coverage_90")
    rows = []
    for name in ("yacht", "concrete"):
        runs = autodeuq_runs(name, n_trials=100)
        splits = span(r["split"] for r in runs)
        rows.append([f"{name} ({splits})", *(mean_error(values(runs, c)) for c in columns)])
    return markdown(["", "NLL", "mixture's NLL", "RMSE", "CRPS", "90 % coverage"], rows)


@table
def autodeuq_rivals():
    """Published figures, and rivals of the leaderboard on the splits that AutoDEUQ has run."""
    head, columns = ["NLL (RMSE)"], [[]]
    for name in ("yacht", "concrete"):
        runs = autodeuq_runs(name, n_trials=100)
        splits = [r["split"] for r in runs]
        sources = {"**AutoDEUQ, 100 trials**": runs}
        for method in ("plain", "tabular", "gaussian process", "ngboost", "catboost"):
            found = records("leaderboard", part="regression", set=name, method=method)
            label = f"{method} ensemble" if method in ("plain", "tabular") else FIELD[method]
            sources[label] = [r for r in found if r["split"] in splits]
        cells = [f"{mean(values(r, 'nll'))} ({mean(values(r, 'rmse'))})" for r in sources.values()]
        for method in ("AutoDEUQ", "deep ensemble", "hyper ensemble"):
            sources[f"published: {method}"] = None
            cells.append("{:.2f} ({:.2f})".format(*TABLE_I[name][method]))
        head.append(f"{name} ({span(splits)})")
        columns[0] = list(sources)
        columns.append(cells)
    return markdown(head, transposed(columns))


@table
def autodeuq_selections():
    """The same searches under other selections."""
    head, columns = ["NLL (RMSE)"], []
    for name in ("yacht", "concrete"):
        runs = autodeuq_runs(name, n_trials=100)
        selections = {"as above": runs}
        for rule in runs[0]["other_selections"]:
            selections[rule] = [r["other_selections"][rule] for r in runs]
        head.append(f"{name} ({span(r['split'] for r in runs)})")
        columns.append(
            [
                f"{mean(values(s, 'nll'), 3)} ({mean(values(s, 'rmse'), 3)})"
                for s in selections.values()
            ]
        )
    return markdown(head, transposed([list(selections), *columns]))


@table
def paper_protocol():
    """The paper's protocol beside its Table I: NLL (RMSE), and mean ranks over these sets."""
    runs = {s: records("uci_regression", dataset=s, protocol="paper") for s in SMALL}
    runs = {s: found for s, found in runs.items() if found}
    ours = {s: (values(f, "nll").mean(), values(f, "rmse").mean()) for s, f in runs.items()}
    methods = {"**AutoDEUQ here**": ours}
    for name in TABLE_I["yacht"]:
        methods[f"published: {name}"] = {s: TABLE_I[s][name] for s in runs}
    ranks = [
        np.mean([min_ranks([of_set[s][k] for of_set in methods.values()]) for s in runs], axis=0)
        for k in range(2)
    ]
    rows = [
        [
            name,
            *("{:.2f} ({:.2f})".format(*of_set[s]) for s in runs),
            f"{number(by_nll, 1)} ({number(by_rmse, 1)})",
        ]
        for (name, of_set), by_nll, by_rmse in zip(methods.items(), *ranks)
    ]
    minutes = [mean([r["seconds"] / 60 for r in found], 0) for found in runs.values()]
    head = [f"{s} ({len(found)})" for s, found in runs.items()]
    return markdown(
        ["NLL (RMSE)", *head, "mean rank"], [*rows, ["minutes of a search", *minutes, ""]]
    )


@table
def portfolio(kind):
    """Regret of searches that are replayed on stored trials, leaving one set out."""
    return markdown(*portfolio_rows(stored("portfolio")[kind]))


@table
def strategies():
    """AgEBO beside random search, evolution and Bayesian optimisation alone."""
    return markdown(*strategy_rows(records("strategies")))


@table
def few_rows(dataset):
    """Folds and `refit`, split by split."""
    rows = []
    for title, settings in {
        "a quarter held out (default)": {},
        "`refit=True`": {"refit": True},
        "`validation=5`": {"cv": 5},
        "`validation=5, refit=True`": {"cv": 5, "refit": True},
    }.items():
        runs = sorted(autodeuq_runs(dataset, n_trials=20, **settings), key=lambda r: r["split"])
        columns = {"nll": 2, "rmse": 2, "crps": 2, "coverage_90": 2, "seconds": 0}
        rows.append(
            [title, *(", ".join(number(r[c], d) for r in runs) for c, d in columns.items())]
        )
    return markdown([f"{dataset} (0, 1)", "NLL", "RMSE", "CRPS", "90 % coverage", "seconds"], rows)


@table
def baselines():
    """Deep ensembles, hyper deep ensembles and MC dropout beside published figures."""
    methods = {
        "deep ensemble": "deep ensemble",
        "hyper ensemble": "hyper deep ensemble",
        "MC dropout": "MC dropout",
    }
    sets = sorted(SMALL)
    runs = {m: [records("ensembles", method=m, dataset=s) for s in sets] for m in methods}
    rows = []
    for method, title in methods.items():
        cells = [
            f"{mean_error(values(found, 'nll'), 2)} ({mean(values(found, 'rmse'))})"
            for found in runs[method]
        ]
        rows.append([title, *cells])
        rows.append(["published", *("{:.2f} ({:.2f})".format(*TABLE_I[s][method]) for s in sets)])
    for title, column, digits in (
        ("90 % coverage (DE, HDE, MC)", "coverage_90", 2),
        ("seconds a fit (DE, HDE, MC)", "seconds", 1),
    ):
        cells = [
            ", ".join(mean(values(o, column), digits) for o in of_set)
            for of_set in zip(*runs.values())
        ]
        rows.append([title, *cells])
    return markdown(["NLL (RMSE)", *sets], rows)


# Networks for tables


def recipe(name, splits, variant="tabular"):
    runs = records("tabular", part="regression", set=name, variant=variant)
    return [r for r in runs if r["split"] in splits]


@table
def tabular_regression(first, last):
    splits, rows = range(int(first), int(last) + 1), []
    for name in SMALL:
        runs = recipe(name, splits)
        nll, goals = values(runs, "nll"), GOALS[name]
        cells = [mean_error(nll), mean(values(runs, "nll_mixture"), 3)]
        cells += [mean_error(values(runs, "rmse")), mean(values(runs, "crps"), 3)]
        cells += [mean(values(runs, "coverage_90"), 3), number(nll.max() - np.median(nll))]
        cells.append(number(values(runs, "nll_worst").max(), 1))
        goals = ["" if goal is None else f"{goal:.2f}" for goal in goals]
        rows.append([name, *cells[:2], goals[0], cells[2], goals[1], *cells[3:]])
    head = ["set", "NLL", "mixture's NLL", "goal of NLL", "RMSE", "goal of RMSE", "CRPS"]
    head += ["90 % coverage", "worst split minus median", "NLL of the worst row"]
    return markdown(head, rows)


@table
def tabular_search():
    columns = {"nll": 3, "rmse": 3, "crps": 3, "coverage_90": 2, "seconds": 0}
    head, cells = ["NLL, RMSE, CRPS, coverage, seconds"], [["search of 60", "one recipe"]]
    for name, split in [(name, 0) for name in SMALL] + [("yacht", 1)]:
        pair = records("tabular", part="search", set=name, split=split) + recipe(name, [split])
        head.append(f"{name} ({split})")
        texts = [", ".join(number(r[c], d) for c, d in columns.items()) for r in pair]
        cells.append(bold_lowest(texts, values(pair, "nll")))
    return markdown(head, transposed(cells))


@table
def tabular_ablations(*columns):
    digits = {"nll": 2, "nll_mixture": 2, "crps": 3, "rmse": 2, "coverage_90": 2, "seconds": 0}
    names = {
        "tabular": "**the default**",
        "plain": "plain network",
        "loss: nll": "loss: nll (β = 0)",
    }
    rows = []
    for variant in VARIANTS:
        cells = []
        for name in SMALL:
            runs = recipe(name, range(5), variant)
            cells.append(", ".join(mean(values(runs, c), digits[c]) for c in columns))
        rows.append([names.get(variant, variant), *cells])
    return markdown(["", *SMALL], rows)


@table
def tabular_large():
    columns, rows = ("nll", "rmse", "crps", "coverage_90", "seconds"), []
    for name in LARGE:
        runs = recipe(name, range(5))
        cells = [significant(values(runs, c).mean()) for c in columns]
        rows.append([f"{name} ({span(r['split'] for r in runs)})", *cells])
    return markdown(["set", "NLL", "RMSE", "CRPS", "90 % coverage", "seconds a fit"], rows)


@table
def tabular_classes():
    titles = {
        "tabular": "tabular",
        "plain": "plain ensemble",
        "boosting": "boosting",
        "boosting, early stopped": "early stopped",
        "boosting, temperature": "with temperature",
        "boosting, isotonic": "isotonic",
        "boosting, sigmoid": "sigmoid",
    }
    rows = []
    for name in ("pendigits", "letter", "adult", "bank"):
        runs = [records("classes", part="classification", set=name, method=m)[0] for m in titles]
        cells = [f"{r['nll']:.3f} ({r['ece']:.3f}, {r['accuracy']:.3f})" for r in runs]
        rows.append([name, *bold_lowest(cells, values(runs, "nll"))])
    return markdown(["set", *titles.values()], rows)


# Calibration


CALIBRATIONS = ("scale", "isotonic", "conformal")


def calibrated_parts():
    """The runs of each set, or part of one, by its name."""
    runs = [r["found"] for r in records("calibration", kind="coverage")]
    names = {name for found in runs for name in found}
    names = sorted(names, key=lambda name: (list(N_SPLITS).index(name.split()[0]), name))
    return {name: [found[name] for found in runs if name in found] for name in names}


@table
def calibration_coverage():
    """Coverage of 90 % intervals: mean and standard error over splits."""
    rows = []
    for name, parts in calibrated_parts().items():
        keys = "plain", *(f"{method}, None" for method in CALIBRATIONS)
        cells = [mean_error([coverage(part, key) for part in parts]) for key in keys]
        rows.append([f"{name} ({len(parts)})", *cells])
    return markdown(["set (splits)", "as it is", *CALIBRATIONS], rows)


@table
def calibration_nll():
    """Change of the NLL of the whole distribution: mean and standard error over splits."""
    rows = []
    for name, parts in calibrated_parts().items():
        if name == "bike 2012":
            continue
        plain = [part["plain"]["nll"] for part in parts]
        rises = [
            mean_error([part[f"{method}, None"]["nll"] for part in parts] - np.array(plain), 4)
            for method in CALIBRATIONS
        ]
        rows.append([f"{name} ({len(parts)})", mean(plain, 3), *rises])
    return markdown(["set (splits)", "as it is", *CALIBRATIONS], rows)


@table
def calibration_groups():
    """Bins of the predicted standard deviation: the worst distance from 0.90, and the NLL."""
    rows, parts_of = [], calibrated_parts()
    for name in ("concrete", "wine", "kin8nm", "protein"):
        parts = parts_of.get(name)
        if not parts:
            continue
        row = [f"{name} ({len(parts)})", f"{misses_by_chance(parts):.2f}"]
        for method in CALIBRATIONS:
            for groups in ("None", "uncertainty"):
                key = f"{method}, {groups}"
                worst, within = pooled_bins(parts, key)
                rise = np.mean([part[key]["nll"] - part["plain"]["nll"] for part in parts])
                row.append(f"{worst:.3f}, {within.sum()} of {len(within)}, {rise:+.3f}")
        rows.append(row)
    head = [f"{m}{g}" for m in CALIBRATIONS for g in ("", " in bins")]
    return markdown(["set (splits)", "missed by chance", *head], rows)


@table
def calibration_scale():
    rows = []
    for name in ("deep ensemble", "MC dropout"):
        found = [r["found"] for r in records("calibration", kind="scale", name=name)]
        plain, scaled, c = (values(found, column) for column in ("plain", "scaled", "c"))
        rises = ", ".join(number(rise, 3) for rise in sorted(scaled - plain) if rise > 0)
        falls = f"{np.sum(scaled < plain)} of {len(found)}"
        factors = f"{number(c.min())} to {number(c.max())}"
        rows.append([name, mean(plain, 3), mean(scaled, 3), factors, falls, rises])
    head = ["boston (0-4)", "NLL as it is", "scaled", "c", "splits on which it falls", "rises by"]
    return markdown(head, rows)


#: Methods beside AutoDEUQ for which equal times are stored.
EQUAL_TIME = {
    (60, "recipe"): "the one recipe, 60 s",
    (60, "nes"): "NES, 60 s",
    (300, "recipe"): "the one recipe, 300 s",
    ("300 former", "recipe"): "the one recipe, 300 s, former defaults",
    ("300 former", "random"): "random search, 300 s, former defaults",
    ("300 former", "agebo"): "AgEBO without early discarding, 300 s, former defaults",
}


@table
def equal_time(part):
    """NLL (CRPS) after equal time: of each of the "splits", or all "differences" to AutoDEUQ."""
    found = {
        (r["budget"], r["method"], r["set"], r["split"]): r
        for r in records("equal_time")
        if "own_nll" in r or "crps" not in r
    }
    pairs = sorted({key[2:] for key in found})
    if part == "splits":
        budgets = {60: "60 s", 300: "300 s", "300 former": "300 s, former defaults"}
        ours = {(key, "autodeuq"): f"**AutoDEUQ**, {words}" for key, words in budgets.items()}
        order = list(budgets)
        columns = dict(sorted({**ours, **EQUAL_TIME}.items(), key=lambda c: order.index(c[0][0])))
        rows = []
        for name, split in pairs:
            cells = [found.get((*column, name, split)) for column in columns]
            cells = ["-" if r is None else equal_time_cell(r) for r in cells]
            rows.append([f"{name}, {split}", *cells])
        return markdown(["NLL (CRPS) of a split", *columns.values()], rows)
    rows = []
    for (seconds, method), title in EQUAL_TIME.items():
        both = [[found.get((seconds, m, *p)) for m in (method, "autodeuq")] for p in pairs]
        for kind in ("numbers", "whole numbers", "classes"):
            of_numbers = kind != "classes"
            chosen = [p for p in both if all(p) and equal_time_kind(p[0]) == kind]
            if len(chosen) < 2:
                continue
            nll = np.array([own_nll(theirs) - own_nll(ours) for theirs, ours in chosen])
            level = int((nll >= -0.01 - nll.std(ddof=1) / np.sqrt(len(nll))).sum())
            score = "crps" if of_numbers else "nll"
            ratios = [theirs[score] / ours[score] for theirs, ours in chosen]
            rows.append(
                [
                    f"{title}, {kind}",
                    mean_error(nll),
                    number(np.median(nll), 3),
                    f"{level} of {len(nll)}",
                    number(np.exp(np.mean(np.log(ratios))), 3),  # geometric mean
                ]
            )
    head = ["minus AutoDEUQ", "mean NLL", "median NLL", "AutoDEUQ level or ahead"]
    return markdown([*head, "ratio of the CRPS, or log loss"], rows)


def equal_time_kind(record):
    """Kind of target; the NLL of wine's whole numbers is that of narrow peaks, and told apart."""
    if "crps" not in record:
        return "classes"
    return "whole numbers" if record["set"] == "wine" else "numbers"


def own_nll(record):
    """The NLL of the predicted distribution itself; older records of classes have only that."""
    return record.get("own_nll", record["nll"])


def equal_time_cell(record):
    crps = f" ({significant(record['crps'])})" if "crps" in record else ""
    return number(own_nll(record), 3) + crps


# Calibration under shift


@table
def shift_stream():
    """Coverage of 90 % intervals on bike 2012: overall, and in the worst month; NLL."""
    columns = {
        "day": "each day",
        "week": "each week",
        "month": "each month",
        "target": "inputs alone",
        "never": "none",
    }
    runs = [r["found"] for r in records("shift", part="stream")]
    rows = []
    for method in ("scale", "isotonic", "conformal"):
        row = [method]
        for column in columns:
            found = [run[f"{method}, {column}"] for run in runs]
            worst = np.mean([min(run["months"]) for run in found])
            cells = mean(values(found, "coverage"), 3), number(worst), mean(values(found, "nll"))
            row.append("{} ({}), {}".format(*cells))
        rows.append(row)
    return markdown(["targets", *columns.values()], rows)


@table
def shift_classes():
    """Log loss and expected calibration error in time order."""
    rows = []
    for record in records("shift", part="classes"):
        name, found = record["name"], record["found"]
        plain = found["as it is, never"]
        for method in ("temperature", "vector"):
            cells = [
                f"{scores['log_loss']:.3f} ({scores['ece']:.3f})"
                for scores in (
                    found[f"{method}, {size}"] for size in ("never", "1000", "100", "10")
                )
            ]
            plain_cell = f"{plain['log_loss']:.3f} ({plain['ece']:.3f})"
            rows.append([f"{name}, {method}", plain_cell, *cells])
    return markdown(
        ["labels arrive", "as it is", "never", "1000 at once", "100 at once", "10 at once"], rows
    )


@table
def shift_hindsight():
    """Log loss of increasing maps of the scores that are fitted to the later labels themselves."""
    rows = []
    for record in records("shift", part="classes"):
        found = {name: scores["log_loss"] for name, scores in record["found"].items()}
        goals = [found[f"{method}, never"] / 2 for method in ("temperature", "vector")]
        maps = [f"hindsight, {size}" for size in ("all", "1000", "100")]
        cells = [number(found[key], 3) for key in (*maps, "trained on them")]
        rows.append([record["name"], " and ".join(number(goal, 3) for goal in goals), *cells])
    head = ["half of the loss without labels", "one map", "one for each 1000", "one for each 100"]
    return markdown(["", *head, "trained on other later rows"], rows)


@table
def shift_epistemic():
    """NLL and rise of the epistemic std in gaps and on corrupted rows: medians over gaps."""
    runs = {}
    for record in records("shift", part="epistemic"):
        runs.setdefault(record["name"], []).append(record["found"])
    rows = []
    sets = "energy", "boston", "concrete"
    for name in sorted(runs, key=lambda name: sets.index(name.split(", ")[0])):
        found = runs[name]
        nll = [
            number(np.median([run[part]["nll"] for run in found]))
            for part in ("inside", "gap", "corrupted")
        ]
        data, method = name.split(", ", 1)
        row = [f"{data} ({len(found)}), {method}", *nll]
        for part in ("gap", "corrupted"):
            if "epistemic" not in found[0][part]:
                row.append("-")
                continue
            rise = [run[part]["epistemic"] / run["inside"]["epistemic"] for run in found]
            auc = np.median([run[part]["auc"] for run in found])
            row.append(f"{np.median(rise):.1f} ({auc:.2f})")
        rows.append(row)
    nll = ["NLL inside", "NLL in gap", "NLL corrupted"]
    return markdown(["set (gaps), method", *nll, "rise in gap (AUC)", "rise corrupted (AUC)"], rows)
