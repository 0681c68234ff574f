"""Tables of HQ and of neural ensemble search."""

import numpy as np
from _tables import (
    bold_lowest,
    markdown,
    mean,
    mean_error,
    number,
    records,
    stored,
    table,
    transposed,
    values,
)
from scipy.stats import rankdata

# HQ

POOLS = {
    "CIFAR-10": ("cifar10", "test"),
    "ImageNet": ("imagenet", "val"),
    "30 of CIFAR-10": ("cifar10_all", "test"),
    "digits": ("digits", "test"),
    "Cora": ("cora", "test"),
}
SHIFTED = {
    "CIFAR-10.1 v4": ("cifar10", "c101v4"),
    "CIFAR-10.1 v6": ("cifar10", "c101v6"),
    "ImageNetV2": ("imagenet", "v2b"),
    "30 of CIFAR-10, v4": ("cifar10_all", "c101v4"),
    "30 of CIFAR-10, v6": ("cifar10_all", "c101v6"),
}
MEASURES = ("ck", "qs", "bd", "fk", "kw", "gd")
COLUMNS = ("kept", "scored", "low", "high", "mean", "above", "served", "size")  # as in hq.py


def judged(pool, rows):
    """The runs of a pool on one set of rows to judge on."""
    return [r["judged"][rows] for r in records("hq", part=pool)]


def rule_means(runs, rule):
    """Means over the runs, with the share of teams kept that are above the best single model."""
    found = np.array([run["rules"][rule] for run in runs], float)
    share = np.mean(100 * found[:, COLUMNS.index("above")] / found[:, COLUMNS.index("kept")])
    return dict(zip(COLUMNS, found.mean(axis=0)), share=share)


@table
def hq_rules():
    """Compare the rules that choose a team, with generalised diversity."""
    rules = {
        "all teams": "all teams",
        "Q, mean": "gd Q mean",
        "Q (α)": "gd Q alpha",
        "HQ (α)": "gd HQ alpha",
        "**HQ (α + K)**": "gd HQ alpha+K",
        "as many, by accuracy alone": "as many best",
    }
    votes = {"greedy on the error": "greedy error", "vote of all": "vote of all"}
    head, columns = [""], [[*rules, *votes]]
    for title, pool in POOLS.items():
        runs, cells = judged(*pool), []
        for rule in rules.values():
            m = rule_means(runs, rule)
            cell = f"{m['kept']:.0f}: {m['low']:.2f}, {m['mean']:.2f}, {m['share']:.0f} %; "
            cells.append(cell + f"{m['served']:.2f}")
        cells += [mean(values(runs, name)) for name in votes.values()]
        head.append(f"{title} (best single {mean(values(runs, 'best single'))})")
        columns.append(cells)
    return markdown(head, transposed(columns))


@table
def hq_pattern():
    """Lower bound and share from rule to rule, for each measure."""
    rows = []
    for measure in MEASURES:
        cells = []
        for pool in POOLS.values():
            runs = judged(*pool)
            steps = [
                rule_means(runs, f"{measure} {rule}")
                for rule in ("Q mean", "HQ alpha", "HQ alpha+K")
            ]
            lows, shares = (
                " → ".join(number(step[c], d) for step in steps)
                for c, d in (("low", 2), ("share", 1))
            )
            cells.append(f"{lows}; {shares} %")
        rows.append([measure.upper(), *cells])
    return markdown(["", *POOLS], rows)


@table
def hq_shifted():
    """Accuracy of what is served on shifted test sets, with generalised diversity."""
    head, columns = [""], [["best single", "vote of all", "greedy on the error", "HQ (α + K)"]]
    for title, pool in SHIFTED.items():
        runs = judged(*pool)
        cells = [mean(values(runs, n)) for n in ("best single", "vote of all", "greedy error")]
        cells.append(number(rule_means(runs, "gd HQ alpha+K")["served"]))
        head.append(title)
        columns.append(cells)
    return markdown(head, transposed(columns))


@table
def hq_speed():
    runs = {tuple(r["run"]): r for r in records("hq", part="speed")}
    rows = []
    for (work, voting, scored), full in runs.items():
        if scored == "all scored":
            pruned = runs[work, voting, "alpha+K"]
            cells = [f"{work}, {voting} votes", f"{full['goal']} s"]
            cells += [f"{number(r['seconds'])} s" for r in (full, pruned)]
            cells.append(f"{pruned['scored']} / {full['possible']}")
            rows.append([*cells, f"{max(full['megabytes'], pruned['megabytes']):.0f}"])
    head = ["work, 10 000 rows", "goal", "all teams scored", "with α + K", "scored of possible"]
    return markdown([*head, "most MB of the process"], rows)


# Neural ensemble search

DATASETS = ("pendigits", "letter", "electricity", "bank")
METHODS = ("NES-RE", "NES-RS", "DeepEns (RS)", "DeepEns + ES", "HyperEns")
BOOSTING = {
    "HistGradientBoosting": "gradient boosting",
    "  sigmoid": ".. sigmoid",
    "  isotonic": ".. isotonic",
    "  temperature": ".. temperature",
}
CHOSEN_ON = ("clean", "shifted", "all")


def nes(part, dataset):
    """Records of one part, by seed; of "tabular" those of the usual settings."""
    found = records("nes", part=part, dataset=dataset)
    usual = [r for r in found if r["settings"].get("epochs", 15) == 15]
    return dict(sorted((r["seed"], r) for r in usual))


def score(runs, method, size, column):
    return values([r["methods"][method]["sizes"][str(size)] for r in runs.values()], column)


@table
def nes_methods(dataset):
    runs, peers = nes("tabular", dataset), nes("peers", dataset)
    seeds = ", ".join(map(str, runs))
    head = [f"seeds {seeds}", "NLL M=5", "M=10", "minus NES-RE"]
    head += ["error %", "ECE %", "average member", "oracle", "trained"]
    rows, nll = [], []
    for method in METHODS:
        cells = [mean_error(score(runs, method, size, "nll")) for size in (5, 10)]
        gaps = score(runs, method, 10, "nll") - score(runs, "NES-RE", 10, "nll")
        cells.append("" if method == "NES-RE" else mean_error(gaps))
        cells += [mean_error(score(runs, method, 10, c), 2, 100) for c in ("error", "ece")]
        cells += [mean_error(score(runs, method, 10, c)) for c in ("average", "oracle")]
        trained = next(iter(runs.values()))["methods"][method]["networks"]["10"]
        rows.append([method, *cells, str(trained)])
        nll.append(score(runs, method, 10, "nll").mean())
    for row, cell in zip(rows, bold_lowest([row[2] for row in rows], nll)):
        row[2] = cell
    for method, name in BOOSTING.items():
        found = [r["methods"][method] for r in peers.values()]
        cells = [mean_error(values(found, "nll")), ""]
        cells += [mean_error(values(found, c), 2, 100) for c in ("error", "ece")]
        rows.append([name, "", *cells, "", "", f"{mean(values(found, 'seconds'), 1)} s"])
    return markdown(head, rows)


def severity_nll(runs, severity, method, chosen_on):
    """NLL of ten members, by seed."""
    cells = [r["severities"][severity][method][chosen_on] for r in runs.values()]
    return values([cell["10"] for cell in cells], "nll")


def ways(runs):
    """(method, rows chosen on) of the part "shift"."""
    severities = next(iter(runs.values()))["severities"]
    methods = severities[max(severities)]
    return [(m, how) for m in methods for how in CHOSEN_ON if how in methods[m]]


@table
def nes_shifted(dataset):
    """NLL on each severity, by the rows chosen on."""
    runs, severities = nes("shift", dataset), ("0", "1", "2", "3", "4", "5")
    rows = [
        [", ".join(way), *(mean_error(severity_nll(runs, s, *way), 2) for s in severities)]
        for way in ways(runs)
    ]
    seeds = ", ".join(map(str, runs))
    return markdown([f"{dataset} (seeds {seeds})", "clean", *severities[1:]], rows)


@table
def nes_gains():
    """NLL chosen on clean rows minus NLL chosen on shifted rows, paired by seed."""
    rows, severities = [], ("1", "2", "3", "4", "5")
    for dataset in ("pendigits", "letter"):
        runs = nes("shift", dataset)
        for method in ("NES-RE", "NES-RS", "DeepEns (RS)"):
            gains = (
                severity_nll(runs, s, method, "clean") - severity_nll(runs, s, method, "shifted")
                for s in severities
            )
            rows.append([f"{dataset}: {method}", *(mean_error(gain, 2) for gain in gains)])
    return markdown(["gain", *severities], rows)


@table
def nes_recent():
    """Natural shifts: the end of the training period to choose on."""
    runs = {dataset: nes("shift", dataset) for dataset in ("electricity", "bank")}
    rows = [
        [
            ", ".join(way),
            *(mean_error(severity_nll(by_seed, "recent", *way)) for by_seed in runs.values()),
        ]
        for way in ways(runs["bank"])
    ]
    for method in ("NES-RE", "DeepEns (RS)"):
        clean, shifted = (
            [severity_nll(by_seed, "recent", method, how) for by_seed in runs.values()]
            for how in ("clean", "shifted")
        )
        gains = (mean_error(a - b) for a, b in zip(clean, shifted))
        rows.append([f"{method}, clean minus shifted", *gains])
    seeds = [", ".join(map(str, by_seed)) for by_seed in runs.values()]
    return markdown(["", *(f"{d} (seed {s})" for d, s in zip(runs, seeds))], rows)


@table
def nes_images():
    head = ["", "NLL clean", "severity 1", "3", "5", "error %, clean and 5", "ECE %, clean and 5"]
    head += ["average, oracle (clean)", "entropy, of digits", "trained", "seed"]
    rows = []
    for r in sorted(stored("nes_images"), key=lambda r: METHODS.index(r["dataset"].split(",")[0])):
        found = {s: cells["10"] for s, cells in r["severities"].items()}
        clean, worst = found["0"], found["5"]
        cells = [number(found[s]["nll"], 3) for s in ("0", "1", "3", "5")]
        cells += [f"{100 * clean[c]:.1f}, {100 * worst[c]:.1f}" for c in ("error", "ece")]
        cells.append(f"{clean['average']:.2f}, {clean['oracle']:.2f}")
        cells.append(f"{clean['entropy']:.2f}, {clean['entropy_ood']:.2f}")
        rows.append([r["dataset"], *cells, str(r["networks"]), str(r["seed"])])
    return markdown(head, rows)


# Small and middle tables of classes

ON_CLASSES = {
    "tabular": "**tabular ensemble**",
    "plain": "plain ensemble",
    "logistic": "logistic regression",
    "forest": "forest",
    "boosting, temperature": "boosting, temperature",
    "lightgbm": "LightGBM",
    "catboost": "CatBoost",
    "realmlp": "RealMLP",
    "tabm": "TabM",
    "NES, 120 s": "NES, 120 s",
    "AutoDEUQ, 60 s": "AutoDEUQ, 60 s",
}


PARTS = {"suite": "small and middle sets", "few": "10 to 100 rows"}


N_SPLITS = {"suite": 1, "few": 5}  # that are averaged at most


def log_losses(part, score="nll", n_splits=None):
    """Scores by set and method, averaged over the splits that the three first methods have run."""
    runs = {}
    for r in records("classes", part=part):
        if r["split"] < (n_splits or N_SPLITS[part]):
            by = runs.setdefault(r["set"], {}).setdefault(r["method"], {})
            by[r["split"]] = r.get(score, np.nan)
    found = {}
    for name, by in runs.items():
        splits = set.intersection(*(set(by[m]) for m in ("tabular", "plain", "logistic")))
        whole = {m: scores for m, scores in by.items() if splits <= set(scores)}
        found[name] = {m: np.mean([v[k] for k in splits]) for m, v in whole.items()}
    return dict(sorted(found.items())) if part == "suite" else found


def ratios(part, *rivals, ours="tabular"):
    """Log losses of a method over the lowest of its rivals', by set."""
    own = {name: by for name, by in log_losses(part).items() if ours in by}
    return {name: by[ours] / min(by[rival] for rival in rivals) for name, by in own.items()}


def in_words(ratio):
    """Geometric mean, both ends and the number of lower ones."""
    quotients = np.array(list(ratio.values()))
    least, most = (number(end(quotients)) for end in (np.min, np.max))
    middle = number(np.exp(np.log(quotients).mean()))
    return f"{middle} times ({least} to {most}; lower on {sum(quotients < 1)} of {len(quotients)})"


@table
def classes_small(part):
    """Mean log loss of a set's splits; bold is the lowest of the methods that are shown."""
    losses = log_losses(part)
    # The weakest peers stand in `classes_small_standing` alone: wide tables scroll.
    shown = [m for m in ON_CLASSES if m not in ("forest", "lightgbm")]
    methods = [m for m in shown if any(m in by for by in losses.values())]
    rows = []
    for name, by in losses.items():
        cells = bold_lowest(
            [number(by[m], 3) if m in by else "" for m in methods],
            [by.get(m, np.nan) for m in methods],
        )
        rows.append([name, *cells])
    return markdown(["log loss", *(ON_CLASSES[m] for m in methods)], rows)


@table
def classes_small_standing(part, *methods):
    """Compare methods on the sets that all of them have run."""
    methods = [m for m in ON_CLASSES if m.split(",")[0] in methods]
    losses, ece = log_losses(part), log_losses(part, "ece")
    names = [name for name, by in losses.items() if all(m in by for m in methods)]
    nll = np.array([[losses[name][m] for m in methods] for name in names])
    ratio = nll / nll.min(axis=1, keepdims=True)
    ratio = ratio[nll.min(axis=1) > 0.02]
    ranks, plain = rankdata(nll, axis=1).mean(axis=0), methods.index("plain")
    means = np.exp(np.log(nll / nll[:, [plain]]).mean(axis=0))
    errors = [np.mean([ece[name][m] for name in names]) for m in methods]
    heads = ["mean rank", "log loss over the lowest, mean", "worst", "over plain", "ECE"]
    figures = zip(ranks, ratio.mean(axis=0), ratio.max(axis=0), means, errors)
    rows = [
        [ON_CLASSES[m], *map(number, first), number(error, 3)]
        for m, (*first, error) in zip(methods, figures)
    ]
    return markdown([f"{len(names)} sets", *heads], rows)


@table
def classes_small_verdict():
    """Say how the tabular ensemble's log loss compares on small tables and on few rows."""
    rivals = {
        "the plain ensemble": ["plain"],
        "the better of plain ensemble and logistic regression": ["plain", "logistic"],
    }
    rows = [
        [name, *(in_words(ratios(part, *methods)).replace(" times", "") for part in PARTS)]
        for name, methods in rivals.items()
    ]
    return markdown(["log loss, divided by that of", *PARTS.values()], rows)


@table
def classes_larger_verdict():
    """Say the tabular ensemble's log loss on 4,000 random rows of larger tables."""
    runs = records("classes", part="random rows", method="tabular", split=0)
    told = [f"{number(run['nll'], 3)} on {run['set']}" for run in runs]
    return (
        "With 4,000 random rows of larger tables to train on (split 0) the log loss of the tabular "
        f"ensemble is {', '.join(told)}."
    )


@table
def classes_search_verdict():
    """Say how searches of classes compare with the tabular ensemble on the sets they have run."""
    told = [
        f"{in_words(ratios('suite', 'tabular', ours=method))} for {title}"
        for method, title in {
            "NES, 120 s": "`NESClassifier(max_time=120)`",
            "AutoDEUQ, 60 s": "`AutoDEUQClassifier(max_time=60)`",
        }.items()
    ]
    return (
        f"Beside `TabularEnsembleClassifier` the log loss of a search is {' and '.join(told)}: "
        "geometric means, both ends in brackets."
    )
