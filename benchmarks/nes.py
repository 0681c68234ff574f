"""Neural ensemble search on tables: against deep ensembles, under shift, against peers.

    python benchmarks/nes.py --data-dir DIR [--only tabular shift peers] [--pools DIR]

tabular: pools of equal size for NES-RE, NES-RS, and the paper's rivals on the best
architecture of the random search: DeepEns (RS), DeepEns + ES (appendix C.3) and HyperEns
(C.4). Ensembles of 3, 5 and 10 are chosen on validation rows and judged on test rows:
pendigits (other writers), letter, electricity and bank (later rows).
shift: choosing on shifted validation rows against clean ones. Pendigits and letter have
corrupted cells in severities 1 to 5, of other kinds where judged than where chosen;
electricity and bank have the end of the training period to choose on.
peers: scikit-learn's gradient boosting, also calibrated, on the training and validation
rows together ("temperature" needs scikit-learn 1.8).

Of large sets `--max-train` rows are drawn by the seed, a quarter of them to validate; test
rows are always all there are. Adds to nes.json in `--results-dir`, by default
``benchmarks/results``; what it holds is not run again but with `--redo`. In `--pools`
fitted searches are kept, so that shift need not repeat those of tabular; it takes some 50 MB
a search.
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
from sklearn.calibration import CalibratedClassifierCV
from sklearn.ensemble import HistGradientBoostingClassifier

import skuq
from skuq import NESClassifier
from skuq.ensembles._selection import likelihood_statistics, select_by
from skuq.metrics import (
    average_member_nll_loss,
    brier_loss,
    disagreement_score,
    ece_loss,
    ensemble_nll_loss,
    oracle_nll_loss,
)

PARTS = ("tabular", "shift", "peers")
SIZES = (3, 5, 10)  # M
METHODS = ("NES-RE", "NES-RS", "DeepEns (RS)", "DeepEns + ES", "HyperEns")
CELL = ("part", "dataset", "seed", "settings")  # what tells records apart


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


def tabular(searches):
    """All methods in all sizes."""
    parts, record = searches.parts, {"methods": {}}
    for name in METHODS:
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
        record["methods"][name] = found
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
        settings |= {"n_trials": arguments.n_trials, "epochs": arguments.epochs}
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
            found = tabular(searches)
    return {
        **dict(zip(CELL, (part, dataset, seed, settings))),
        "n_rows": {name: len(rows.y) for name, rows in parts._asdict().items()},
        "versions": {m.__name__: m.__version__ for m in (skuq, sklearn, np)},
        "cell_seconds": round(time.perf_counter() - started, 1),
        **found,
    }


def is_cell(record, *cell):
    return tuple(record[k] for k in CELL) == cell


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--results-dir", type=Path, default=STORED)
    parser.add_argument("--pools", type=Path)
    parser.add_argument("--only", nargs="+", default=PARTS, choices=PARTS)
    parser.add_argument("--datasets", nargs="+", default=DATASETS, choices=DATASETS)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--n-trials", type=int, default=80)
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--max-train", type=int, default=6000)
    parser.add_argument("--n-jobs", type=int, default=1)
    parser.add_argument("--redo", action="store_true")
    arguments = parser.parse_args()
    path = arguments.results_dir / "nes.json"
    cells = [(p, d, s) for p in arguments.only for s in arguments.seeds for d in arguments.datasets]
    for part, dataset, seed in cells:
        settings = settings_of(part, arguments)
        cell = part, dataset, seed, settings
        if any(is_cell(r, *cell) for r in read(path)) and not arguments.redo:
            continue
        print(f"{part} {dataset} {seed}", flush=True)
        add(path, run(part, dataset, seed, arguments), CELL)


if __name__ == "__main__":
    main()
