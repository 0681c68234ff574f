"""Neural ensemble search on tables: against deep ensembles, under shift, against peers.

    python benchmarks/nes.py --data-dir DIR [--only tabular both shift peers large] [--pools DIR]

tabular: pools of equal size for NES-RE, NES-RS, and the paper's rivals on the best
architecture of the random search: DeepEns (RS), DeepEns + ES (appendix C.3) and HyperEns
(C.4). Ensembles of 3, 5 and 10 are chosen on validation rows and judged on test rows:
pendigits (other writers), letter, electricity and bank (later rows). NLL also against the
size of the pool, for the first trials of each; and the other ways to choose.
shift: choosing on shifted validation rows against clean ones. Pendigits and letter have
corrupted cells in severities 1 to 5, of other kinds where judged than where chosen;
electricity and bank have the end of the training period to choose on.
peers: scikit-learn's gradient boosting, also calibrated, on the training and validation
rows together ("temperature" needs scikit-learn 1.8).
both: NES-RE of architectures alone, and NES-RE that changes learning rate and L2 too
(`NESEvolution(vary="both")`), side by side.
large: NES and DeepEns (RS) with a pool of `--n-large`; best with one data set and seed.

Of large sets `--max-train` rows are drawn by the seed, a quarter of them to validate; test
rows are always all there are. Adds to nes.json in `--results-dir`, by default
``benchmarks/results``; what it holds is not run again but with `--redo`, and `--summary`
prints it. In `--pools` fitted searches are kept, so that shift need not repeat those of
tabular; it takes some 50 MB a search.
"""

import argparse
import os
import time
from functools import cached_property
from pathlib import Path

import joblib
import numpy as np
import sklearn
from _nes_data import DATASETS, NATURAL, shifted_sets, split
from _stored import STORED, add, read
from _tables import mean_error, print_table
from sklearn.calibration import CalibratedClassifierCV
from sklearn.ensemble import HistGradientBoostingClassifier

import skuq
from skuq import NESClassifier
from skuq.ensembles._likelihood import likelihood_statistics, select_by
from skuq.metrics import (
    average_member_nll_loss,
    brier_loss,
    disagreement_score,
    ece_loss,
    ensemble_nll_loss,
    oracle_nll_loss,
)

PARTS = ("tabular", "both", "shift", "peers", "large")
SIZES = (3, 5, 10)  # M
METHODS = ("NES-RE", "NES-RS", "DeepEns (RS)", "DeepEns + ES", "HyperEns")
BOTH = "NES-RE, both"
METHODS_OF = {"tabular": METHODS, "both": ("NES-RE", BOTH), "large": METHODS[:3]}  # by part
SELECTORS = {
    "forward": {},
    "forward, use_best": {"use_best": True},
    "replacement": {"method": "replacement"},
    "replacement, use_best": {"method": "replacement", "use_best": True},
    "quick": {"method": "quick"},
    "top": {"method": "top"},
}
CELL = ("part", "dataset", "seed", "settings")  # what tells records apart
STEP = 20  # trials, of the curves against the size of the pool


class Searches:
    """The fits of one data set and seed: each is trained when it is first asked for."""

    def __init__(self, parts, seed, settings, n_jobs, folder):
        self.parts, self.folder = parts, folder
        self.n_trials = settings["n_trials"]
        self.estimator = NESClassifier(
            self.n_trials,
            n_members=max(SIZES),
            space="dense",
            epochs=settings["epochs"],
            n_jobs=n_jobs,
            random_state=seed,
        )

    def fit(self, name, model, **shift):
        """The fitted model and its seconds, which those who kept it have measured."""
        path = self.folder and self.folder / f"{name}.joblib"
        if path and path.exists():
            state, seconds = joblib.load(path)
            model.__dict__.update(state)  # a pickled model would have lost most of its pool
            return model, seconds
        started = time.perf_counter()
        model.fit(*self.parts.train, validation_data=tuple(self.parts.valid), **shift)
        seconds = time.perf_counter() - started
        print(f"    {name}: {seconds:.0f} s", flush=True)
        if path:
            path.parent.mkdir(parents=True, exist_ok=True)
            joblib.dump((model.__dict__, seconds), path.with_suffix(".tmp"))
            os.replace(path.with_suffix(".tmp"), path)
        return model, seconds

    def search(self, strategy):
        return self.fit(strategy, sklearn.clone(self.estimator).set_params(search=strategy))

    @cached_property
    def random(self):
        return self.search("random")

    def evolved_for(self, shifted):
        """NES-RE that looks at shifted rows too."""
        data = [tuple(rows) for rows in shifted]
        return self.fit("re-shift", sklearn.clone(self.estimator), shift_validation=data)

    def deep_ensemble(self, position):
        """Seeds of the architecture in one position of the random search."""
        search = self.random[0]
        trial = search.catalog_.completed[position]
        architecture = search.decisions_.architecture.restrict(search.catalog_[trial].configuration)
        model = search.baseline("deep-ensemble", architecture=architecture)
        return self.fit(f"deep-ensemble-{trial}", model)

    def method(self, name):
        """The fitted pool, its seconds with all it needs, and networks trained for M members."""
        if name == BOTH:
            both = sklearn.clone(self.estimator).set_params(search__vary="both")
            return *self.fit("re-both", both), lambda size: self.n_trials
        if name in ("NES-RE", "NES-RS"):
            model, seconds = self.search("re") if name == "NES-RE" else self.random
            return model, seconds, lambda size: self.n_trials
        if name == "DeepEns (RS)":
            best = best_single(pool_proba(self.random[0], self.parts.valid.X), self.parts.valid.y)
            (model, seconds), n_searched = self.deep_ensemble(best), lambda size: size
        else:
            kind = {"DeepEns + ES": "deep-ensemble-es", "HyperEns": "hyper-ensemble"}[name]
            model, seconds = self.fit(kind, self.random[0].baseline(kind))
            n_searched = lambda size: self.n_trials  # noqa: E731
        return model, seconds + self.random[1], lambda size: self.n_trials + n_searched(size)


def pool_proba(model, X):
    """Probabilities (n_trials, n, n_classes) that each network of a search gives."""
    return np.stack([one.predict_proba(X) for _, one in model.member_estimators(every_trial=True)])


def log_likelihood(proba, y):
    return np.log(np.maximum(proba[:, np.arange(len(y)), y], np.finfo(float).tiny))


def best_single(proba, y):
    return int(log_likelihood(proba, y).mean(axis=1).argmax())


def scores(y, members, weights):
    """Everything that is reported of one ensemble, from members' (n_members, n, C)."""
    labels = np.arange(members.shape[2])
    mixture = np.tensordot(weights, members, 1)
    found = {
        "nll": ensemble_nll_loss(y, members, weights, labels=labels),
        "error": np.mean(mixture.argmax(axis=1) != y),
        "ece": ece_loss(y, mixture, n_bins=10, labels=labels),
        "brier": brier_loss(y, mixture, labels=labels),
        "average": average_member_nll_loss(y, members, weights, labels=labels),
        "oracle": oracle_nll_loss(y, members, labels=labels),
        "disagreement": disagreement_score(members),
        "members": len(members),
    }
    return {name: round(float(value), 6) for name, value in found.items()}


def chosen_scores(likelihood, test_proba, y, n_members, first=None, **how):
    """Score the ensemble chosen by the first networks' log likelihoods (n_trials, n_valid)."""
    chosen = select_by(*likelihood_statistics(likelihood[:first]), n_members, **how)
    return scores(y, test_proba[chosen.indices], chosen.weights)


def tabular(searches, names):
    """All methods of `names`, all sizes, pools cut short, and all selectors."""
    parts, record = searches.parts, {"methods": {}}
    for name in names:
        model, seconds, n_networks = searches.method(name)
        likelihood = log_likelihood(pool_proba(model, parts.valid.X), parts.valid.y)
        test = pool_proba(model, parts.test.X)
        deep = name == "DeepEns (RS)"  # as many as wanted are trained: nothing is chosen
        found = {"seconds": round(seconds, 1), "failed": len(model.catalog_) - len(test)}
        found["networks"] = {str(size): n_networks(size) for size in SIZES}
        found["sizes"] = {
            str(size): chosen_scores(likelihood, test, parts.test.y, size, size if deep else None)
            for size in SIZES
        }
        if not deep:
            firsts = [k for k in range(STEP, len(test), STEP) if k > max(SIZES)]
            found["nll_by_trials"] = {
                str(k): {
                    str(size): chosen_scores(likelihood, test, parts.test.y, size, k)["nll"]
                    for size in SIZES
                }
                for k in (*firsts, len(test))
            }
        record["methods"][name] = found
        if name == "NES-RE":
            record["selectors"] = {
                kind: chosen_scores(likelihood, test, parts.test.y, max(SIZES), **how)
                for kind, how in SELECTORS.items()
            }
        if name == "NES-RS":
            record["single"] = chosen_scores(likelihood, test, parts.test.y, 1, method="top")
    return record


def shift(searches, sets):
    """Every severity: ensembles chosen on clean rows, on that severity, on all severities."""
    valid = searches.parts.valid
    judged_on = [rows for severity, (rows, _) in sets.items() if severity != 0]
    pools = {
        "NES-RE": searches.evolved_for(judged_on),
        "NES-RE-0": searches.search("re"),
        "NES-RS": searches.random,
    }
    found = {str(severity): {} for severity in sets}
    for name, (model, _) in pools.items():
        clean = log_likelihood(pool_proba(model, valid.X), valid.y)
        shifted = {s: log_likelihood(pool_proba(model, r.X), r.y) for s, (r, _) in sets.items()}
        every = np.hstack([shifted[s] for s in sets if s != 0])
        for severity, (_, test) in sets.items():
            proba = pool_proba(model, test.X)
            on = {"clean": clean, "shifted": shifted[severity], "all": every}
            found[str(severity)][name] = {
                how: {str(m): chosen_scores(rows, proba, test.y, m) for m in SIZES}
                for how, rows in on.items()
            }
    best_clean = int(clean.mean(axis=1).argmax())  # trial of NES-RS, the last method above
    for severity, (_, test) in sets.items():
        best = {"clean": best_clean, "shifted": int(shifted[severity].mean(axis=1).argmax())}
        found[str(severity)]["DeepEns (RS)"] = {
            how: deep_scores(searches.deep_ensemble(k)[0], test) for how, k in best.items()
        }
    return {"seconds": {n: round(s, 1) for n, (_, s) in pools.items()}, "severities": found}


def deep_scores(model, test):
    proba = pool_proba(model, test.X)
    return {str(m): scores(test.y, proba[:m], np.full(m, 1 / m)) for m in SIZES}


def peers(parts, seed):
    """Gradient boosting needs no validation rows of ours: it is trained on them too."""
    X, y = (np.concatenate(pair) for pair in zip(parts.train, parts.valid))
    models = {"HistGradientBoosting": HistGradientBoostingClassifier(random_state=seed)}
    for method in ("isotonic", "sigmoid", "temperature"):
        plain = HistGradientBoostingClassifier(random_state=seed)
        models[f"  {method}"] = CalibratedClassifierCV(plain, method=method, cv=5)
    found = {}
    for name, model in models.items():
        started = time.perf_counter()
        model.fit(X, y)
        seconds = time.perf_counter() - started
        proba = model.predict_proba(parts.test.X)[None]
        found[name] = {**scores(parts.test.y, proba, [1.0]), "seconds": round(seconds, 2)}
    return {"methods": found}


def settings_of(part, arguments):
    """Return the settings that must be equal for two records to be compared."""
    settings = {"max_train": arguments.max_train}
    if part != "peers":
        n_trials = arguments.n_large if part == "large" else arguments.n_trials
        settings |= {"n_trials": n_trials, "epochs": arguments.epochs}
    return settings


def run(part, dataset, seed, arguments):
    """One cell, as a JSON record."""
    settings = settings_of(part, arguments)
    recent = part == "shift" and dataset in NATURAL
    parts = split(arguments.data_dir, dataset, seed, arguments.max_train, recent)
    key = [dataset, seed, *settings.values(), *["recent"] * recent]
    folder = arguments.pools and arguments.pools / "-".join(map(str, key))
    started = time.perf_counter()
    if part == "peers":
        found = peers(parts, seed)
    else:
        searches = Searches(parts, seed, settings, arguments.n_jobs, folder)
        if part == "shift":
            found = shift(searches, shifted_sets(dataset, parts, seed))
        else:
            found = tabular(searches, METHODS_OF[part])
    return {
        **dict(zip(CELL, (part, dataset, seed, settings))),
        "n_rows": {name: len(rows.y) for name, rows in parts._asdict().items()},
        "versions": {m.__name__: m.__version__ for m in (skuq, sklearn, np)},
        "cell_seconds": round(time.perf_counter() - started, 1),
        **found,
    }


def is_cell(record, *cell):
    return tuple(record[k] for k in CELL) == cell


def is_complete(record):
    """Whether it has all methods of its part: once the part "both" had one."""
    return {*METHODS_OF.get(record["part"], ())} <= {*record.get("methods", ())}


def column(rows, digits=4, scale=1, best=False):
    """Cells for lists of values; the lowest mean has a star."""
    means = [np.mean(values) for values in rows]
    stars = ["*" if best and mean == min(means) else " " for mean in means]
    return [mean_error(v, digits, scale) + s for v, s in zip(rows, stars)]


def print_columns(title, columns, first=22):
    """Columns: head -> cells, of which the first has the names of the rows."""
    print_table(title, list(columns), [*zip(*columns.values())], first)


def print_methods(title, records):
    """All scores of ensembles; returns the names of the methods that all records have."""
    names = [n for n in (*METHODS, BOTH) if all(n in r["methods"] for r in records)]

    def values(name, size, score):
        return np.array([r["methods"][name]["sizes"][str(size)][score] for r in records])

    top = max(SIZES)
    columns = {"": names}
    for size in SIZES:
        columns[f"NLL M={size}"] = column([values(n, size, "nll") for n in names], best=True)
    gaps = [values(n, top, "nll") - values("NES-RE", top, "nll") for n in names]
    columns["minus NES-RE"] = column(gaps)
    columns["error %"] = column([values(n, top, "error") for n in names], 2, 100, best=True)
    columns["ECE %"] = column([values(n, top, "ece") for n in names], 2, 100, best=True)
    for score in ("brier", "average", "oracle", "disagreement"):
        columns[score] = column([values(n, top, score) for n in names])
    methods = [[r["methods"][n] for r in records] for n in names]
    columns["trained"] = [str(runs[0]["networks"][str(top)]) for runs in methods]
    columns["seconds"] = [f"{np.mean([m['seconds'] for m in runs]):.0f}" for runs in methods]
    print_columns(f"{title}; from `minus NES-RE` on M = {top}", columns)
    return names


def print_tabular(title, records):
    names, top = print_methods(title, records), max(SIZES)
    shown = [
        f"{score} {mean_error([r['single'][score] for r in records], 4)}"
        for score in ("nll", "error", "ece")
    ]
    print("best single network of NES-RS:", ", ".join(shown))

    pools = [n for n in names if "nll_by_trials" in records[0]["methods"][n]]
    columns = {"": pools}
    # The last number of trials differs if some trials have failed.
    counts = [set(r["methods"][n]["nll_by_trials"]) for n in pools for r in records]
    for k in sorted(set.intersection(*counts), key=int):
        curves = [[r["methods"][n]["nll_by_trials"][k][str(top)] for r in records] for n in pools]
        columns[f"K={k}"] = column(curves, best=True)
    print_columns(f"NLL of the first K trials, M = {top}", columns)

    columns = {"": list(SELECTORS)}
    for score, digits, scale in (("nll", 4, 1), ("error", 2, 100), ("ece", 2, 100)):
        cells = [[r["selectors"][s][score] for r in records] for s in SELECTORS]
        columns[score] = column(cells, digits, scale, best=True)
    counts = [[r["selectors"][s]["members"] for r in records] for s in SELECTORS]
    columns["members"] = [f"{np.mean(c):.1f}" for c in counts]
    print_columns(f"Ways to choose from the pool of NES-RE, M = {top}", columns)


def print_shift(title, records):
    severities = list(records[0]["severities"])
    rows = [
        (n, how) for n, hows in records[0]["severities"][severities[-1]].items() for how in hows
    ]

    def values(severity, row, score):
        name, how = row
        cells = [r["severities"][severity][name][how] for r in records]
        return np.array([cell[str(max(SIZES))][score] for cell in cells])

    for score, scale in (("nll", 1), ("error", 100), ("ece", 100)):
        columns = {"chosen on": [f"{name}, {how}" for name, how in rows]}
        for s in severities:
            cells = [values(s, row, score) for row in rows]
            columns[f"severity {s}"] = column(cells, 4 if scale == 1 else 2, scale, best=True)
        print_columns(f"{title}, M = {max(SIZES)}: {score}{' %' * (scale > 1)}", columns)
    names = list(dict(rows))
    columns = {"": names}
    for s in severities:
        gains = [values(s, (n, "clean"), "nll") - values(s, (n, "shifted"), "nll") for n in names]
        columns[f"severity {s}"] = column(gains)
    print_columns("Gain in NLL of shifted over clean rows to choose on", columns)
    chosen, others = ("NES-RE", "shifted"), [n for n in names if n != "NES-RE"]
    columns = {"": others}
    for s in severities:
        gaps = [values(s, chosen, "nll") - values(s, (n, "shifted"), "nll") for n in others]
        columns[f"severity {s}"] = column(gaps)
    print_columns("NLL of NES-RE minus that of others, chosen on shifted rows", columns)


def print_peers(title, records):
    names = list(records[0]["methods"])
    columns = {"": names}
    for score, digits, scale in (("nll", 4, 1), ("error", 2, 100), ("ece", 2, 100)):
        cells = [[r["methods"][n][score] for r in records] for n in names]
        columns[score] = column(cells, digits, scale, best=True)
    columns["seconds"] = column([[r["methods"][n]["seconds"] for r in records] for n in names], 1)
    print_columns(title, columns)


def beside_both(record, records):
    """Add the other method of the part "both" of the same cell, if it has been run."""
    cell = ("both", *(record[k] for k in CELL[1:]))
    more = next((r["methods"] for r in records if is_cell(r, *cell)), {})
    return {**record, "methods": {**more, **record["methods"]}}


def summary(records, arguments):
    show = {"tabular": print_tabular, "large": print_tabular, "both": print_methods}
    show |= {"shift": print_shift, "peers": print_peers}
    for part in arguments.only:
        settings = settings_of(part, arguments)
        for dataset in arguments.datasets:
            cells = [(part, dataset, seed, settings) for seed in arguments.seeds]
            found = [r for r in records if any(is_cell(r, *cell) for cell in cells)]
            found = [r for r in found if is_complete(r)]
            if part == "tabular":
                found = [beside_both(r, records) for r in found]
            if found:
                rows = ", ".join(f"{n} {name}" for name, n in found[0]["n_rows"].items() if n)
                described = ", ".join(f"{k}={v}" for k, v in settings.items())
                seeds = ", ".join(str(r["seed"]) for r in found)
                show[part](f"{part}: {dataset} ({rows}; {described}; seeds {seeds})", found)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--results-dir", type=Path, default=STORED)
    parser.add_argument("--pools", type=Path)
    parser.add_argument("--only", nargs="+", default=PARTS, choices=PARTS)
    parser.add_argument("--datasets", nargs="+", default=DATASETS, choices=DATASETS)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--n-trials", type=int, default=80)
    parser.add_argument("--n-large", type=int, default=200)
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--max-train", type=int, default=6000)
    parser.add_argument("--n-jobs", type=int, default=1)
    parser.add_argument("--redo", action="store_true")
    parser.add_argument("--summary", action="store_true", help="print what has been run")
    arguments = parser.parse_args()
    if arguments.data_dir is None and not arguments.summary:
        parser.error("--data-dir is needed to run")
    path = arguments.results_dir / "nes.json"
    cells = [(p, d, s) for p in arguments.only for s in arguments.seeds for d in arguments.datasets]
    for part, dataset, seed in [] if arguments.summary else cells:
        settings = settings_of(part, arguments)
        cell = part, dataset, seed, settings
        known = any(is_cell(r, *cell) and is_complete(r) for r in read(path))
        if known and not arguments.redo:
            continue
        print(f"{part} {dataset} {seed}", flush=True)
        add(path, run(part, dataset, seed, arguments), CELL)
    summary(read(path), arguments)


if __name__ == "__main__":
    main()
