"""Neural ensemble search: on tables, under shift, against boosting, and on images.

- nes: pools of equal size for NES-RE, NES-RS, and the paper's rivals on the best architecture of
  the random search: DeepEns (RS), DeepEns + ES (appendix C.3) and HyperEns (C.4). Ensembles of 3, 5
  and 10 are chosen on validation rows and judged on test rows: pendigits (other writers), letter,
  electricity and bank (later rows). Beside them scikit-learn's gradient boosting, also calibrated,
  on the training and validation rows together ("temperature" needs scikit-learn 1.8).
- nes_searches: NES-RE and NES-RS with the defaults on twelve tables, on inner parts of the training
  rows.
- nes_images: DARTS cells on a subset of Fashion-MNIST, far smaller than the paper's. NES-RE looks
  at clean and shifted validation images. Ensembles are chosen and judged clean and on severities 1,
  3 and 5, of the paper's families of corruptions, and once more on MNIST digits, which are of no
  class. DeepEns (RS) repeats the architecture that is best at the severity it is judged on.

Large tables are subsampled with the seed, and a quarter of these rows validates; all test rows are
used.
"""

import gzip
import time
from functools import cached_property, partial
from typing import NamedTuple

import numpy as np
import pandas as pd
import sklearn
from data import MIDDLE, SUITE_CLASSES, folder, table
from problems import corrupt_images
from rent import inner
from runner import Benchmark, each
from scipy.stats import entropy
from scores import class_scores
from sklearn.calibration import CalibratedClassifierCV
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.preprocessing import OneHotEncoder

from skuq import NESClassifier, metrics
from skuq.ensembles._selection import likelihood_statistics, select_by
from skuq.networks import CellSpace

SIZES = (3, 5, 10)  # M
METHODS = ("NES-RE", "NES-RS", "DeepEns (RS)", "DeepEns + ES", "HyperEns")
BOOSTING = ("HistGradientBoosting", "isotonic", "sigmoid", "temperature")
N_TRIALS, EPOCHS, MAX_TRAIN = 80, 15, 6000
DATASETS = ("pendigits", "letter", "electricity", "bank")
VALID = 0.25  # share of the training rows


# Tables


class Rows(NamedTuple):
    """X (n, d) in float64, y (n,) in 0..n_classes-1."""

    X: np.ndarray
    y: np.ndarray


class Split(NamedTuple):
    train: Rows
    valid: Rows
    test: Rows


def split(dataset, seed):
    """Rows for one seed; of texts a column for each value ("unknown" is one of them)."""
    train, test, target = table(dataset)
    frame = pd.concat([train, test])
    inputs = frame.drop(columns=target)
    texts = inputs.select_dtypes(exclude="number")
    encoded = OneHotEncoder(sparse_output=False).fit_transform(texts.fillna("unknown"))
    X = np.hstack([inputs.drop(columns=texts.columns).to_numpy(float), encoded])
    y = np.unique(frame[target].to_numpy(), return_inverse=True)[1]
    n_train = int(0.7 * len(X)) if dataset == "electricity" else len(train)
    drawn = np.random.default_rng(seed).permutation(n_train)[:MAX_TRAIN]
    valid, train = np.split(drawn, [int(VALID * len(drawn))])
    return Split(*(Rows(X[part], y[part]) for part in (train, valid, np.arange(n_train, len(y)))))


# Pools


def fit(model, train, valid, **shift):
    """The fitted model and its seconds."""
    started = time.perf_counter()
    model.fit(*train, validation_data=tuple(valid), **shift)
    return model, time.perf_counter() - started


class Searches:
    """The fits of one table and seed: each is trained when it is first asked for."""

    def __init__(self, parts, seed):
        self.parts = parts
        self.estimator = NESClassifier(
            N_TRIALS,
            n_members=max(SIZES),
            space="dense",
            epochs=EPOCHS,
            calibrate=False,
            n_jobs=1,
            random_state=seed,
        )

    def fit(self, model):
        return fit(model, self.parts.train, self.parts.valid)

    def search(self, strategy):
        return self.fit(sklearn.clone(self.estimator).set_params(search=strategy))

    @cached_property
    def random(self):
        return self.search("random")

    def deep_ensemble(self):
        """Seeds of the best architecture of the random search."""
        search, valid = self.random[0], self.parts.valid
        likelihood = log_likelihood(pool_proba(search, valid.X), valid.y)
        trial = search.catalog_.completed[likelihood.mean(axis=1).argmax()]
        found = search.catalog_[trial].configuration
        architecture = search.decisions_.architecture.restrict(found)
        return self.fit(search.baseline("deep-ensemble", architecture=architecture))

    def method(self, name):
        """The fitted pool, its seconds with all it needs, and networks trained for M members."""
        if name == "NES-RE":
            return *self.search("re"), dict.fromkeys(SIZES, N_TRIALS)
        if name == "NES-RS":
            return *self.random, dict.fromkeys(SIZES, N_TRIALS)
        if name == "DeepEns (RS)":
            model, seconds = self.deep_ensemble()
            n_networks = {size: N_TRIALS + size for size in SIZES}
        else:
            kind = {"DeepEns + ES": "deep-ensemble-es", "HyperEns": "hyper-ensemble"}[name]
            model, seconds = self.fit(self.random[0].baseline(kind))
            n_networks = dict.fromkeys(SIZES, 2 * N_TRIALS)
        return model, seconds + self.random[1], n_networks


def pool_proba(model, X):
    """Probabilities (n_trials, n, n_classes) that each network of a search gives."""
    return np.stack([one.predict_proba(X) for _, one in model.member_estimators(every_trial=True)])


def log_likelihood(proba, y):
    return np.log(np.maximum(proba[:, np.arange(len(y)), y], np.finfo(float).tiny))


def scores(y, members, weights):
    """Everything that is reported of one ensemble, from members' (n_members, n, C)."""
    labels = np.arange(members.shape[2])
    mixture = np.tensordot(weights, members, 1)
    found = {
        "nll": metrics.ensemble_nll_loss(y, members, weights, labels=labels),
        "error": np.mean(mixture.argmax(axis=1) != y),
        "ece": metrics.ece_loss(y, mixture, n_bins=10, labels=labels),
        "brier": metrics.brier_loss(y, mixture, labels=labels),
        "average": metrics.average_member_nll_loss(y, members, weights, labels=labels),
        "oracle": metrics.oracle_nll_loss(y, members, labels=labels),
        "disagreement": metrics.disagreement_score(members),
        "members": len(members),
    }
    return {name: round(float(value), 6) for name, value in found.items()}


def chosen_scores(likelihood, proba, y, n_members):
    """Score the ensemble chosen by networks' log likelihoods (n_trials, n_valid)."""
    chosen = select_by(*likelihood_statistics(likelihood), min(n_members, len(likelihood)))
    return scores(y, proba[chosen.indices], chosen.weights)


def of_tables(data, methods, seed, kept):
    """All methods in all sizes."""
    parts, searches = data, Searches(data, seed)
    for name in methods:
        if name in BOOSTING:
            yield name, boosted(parts, name, seed)
            continue
        model, seconds, n_networks = searches.method(name)
        likelihood = log_likelihood(pool_proba(model, parts.valid.X), parts.valid.y)
        test = pool_proba(model, parts.test.X)
        row = {"seconds": seconds, "failed_trials": len(model.catalog_) - len(test)}
        row["networks"] = {str(size): n for size, n in n_networks.items()}
        deep = name == "DeepEns (RS)"  # as many as wanted are trained: nothing is chosen
        row["sizes"] = {
            str(m): chosen_scores(likelihood[: m if deep else None], test, parts.test.y, m)
            for m in SIZES
        }
        # Not by the NLL, which takes members' probabilities of 1e-16 and less as equal.
        proba = model.predict_proba(parts.test.X)
        brier = metrics.brier_loss(parts.test.y, proba, labels=np.arange(proba.shape[1]))
        assert np.isclose(row["sizes"][str(max(SIZES))]["brier"], brier, atol=1e-6), brier
        yield name, row


def boosted(parts, name, seed):
    """Gradient boosting needs no validation rows of ours: it is trained on them too."""
    X, y = (np.concatenate(pair) for pair in zip(parts.train, parts.valid))
    model = HistGradientBoostingClassifier(random_state=seed)
    if name != BOOSTING[0]:
        model = CalibratedClassifierCV(model, method=name, cv=5)
    started = time.perf_counter()
    model.fit(X, y)
    seconds = time.perf_counter() - started
    proba = model.predict_proba(parts.test.X)[None]
    return {**scores(parts.test.y, proba, [1.0]), "seconds": seconds}


def searched(data, strategy, seed):
    X, y, X_test, y_test = data
    started = time.perf_counter()
    model = NESClassifier(search=strategy, n_jobs=1, random_state=seed).fit(X, y)
    row = {"seconds": time.perf_counter() - started}
    return row | class_scores(model.predict_proba(X_test), y_test, y, model.classes_)


# Images

SEVERITIES = (1, 3, 5)  # 0, the clean images, comes before them
N_TRAIN, N_VALID, N_TEST = 2000, 1000, 5000


def load(path, n_bytes):
    """The numbers of a gzipped idx file, behind its header."""
    return np.frombuffer(gzip.decompress(path.read_bytes()), np.uint8)[n_bytes:]


def images(path):
    """(n, 14, 14, 1) in 0..255: each pixel the mean of four."""
    full = load(path, 16).reshape(-1, 14, 2, 14, 2)
    return full.mean(axis=(2, 4)).round().astype("uint8")[..., None]


def fashion(seed):
    """Training images, sets to choose on, sets to judge on, their classes, and digits."""
    source = folder() / "fashion_mnist"
    X = images(source / "train-images-idx3-ubyte.gz")
    y = load(source / "train-labels-idx1-ubyte.gz", 8)
    rows = np.random.default_rng(seed).permutation(len(X))[: N_TRAIN + N_VALID]
    train, valid = rows[:N_TRAIN], rows[N_TRAIN:]
    X_test = images(source / "t10k-images-idx3-ubyte.gz")[:N_TEST]
    y_test = load(source / "t10k-labels-idx1-ubyte.gz", 8)[:N_TEST]
    valids, tests = [(X[valid], y[valid])], [X_test]
    for s in SEVERITIES:
        valids.append((corrupt_images(X[valid], "validation", s, random_state=s), y[valid]))
        tests.append(corrupt_images(X_test, "test", s, random_state=s))
    digits = images(folder() / "mnist_t10k" / "t10k-images-idx3-ubyte.gz")[:N_TEST]
    return (X[train], y[train]), valids, tests, y_test, digits


def of_images(data, methods, seed, kept):
    train, (valid, *shifted), *_ = data
    base = NESClassifier(
        N_TRIALS,
        n_members=max(SIZES),
        space=CellSpace(8, 3),
        epochs=EPOCHS,
        random_state=seed,
        verbose=1,
    )
    fitted = partial(fit, train=train, valid=valid, shift_validation=shifted)
    if {"NES-RS", "DeepEns (RS)"} & methods.keys():
        random, seconds = fitted(sklearn.clone(base).set_params(search="random"))
    for name in methods:
        models, trained, used = [random] * 4 if name == "NES-RS" else [], N_TRIALS, 0.0
        if name == "NES-RE":
            evolved, used = fitted(sklearn.clone(base).set_params(search="re"))
            models = [evolved] * 4
        elif name == "DeepEns (RS)":  # equal architectures share one
            each, trained = {}, N_TRIALS + max(SIZES)
            for severity in range(4):
                model = random.baseline("deep-ensemble", severity=severity)
                key = tuple(model.fixed.items())
                if key not in each:
                    each[key], more = fitted(model)
                    used += more
                models.append(each[key])
        seconds_of_all = used + (0.0 if name == "NES-RE" else seconds)
        found = judged_images(models, data, chooses=name != "DeepEns (RS)")
        yield name, {"seconds": seconds_of_all, "networks": trained, "severities": found}


def judged_images(models, data, chooses):
    """Scores by severity and size, of a model for each severity.

    `chooses` is False where members are as good as each other.
    """
    _, valids, tests, y_test, digits = data
    found, on_digits = {}, pool_proba(models[0], digits)
    for severity, model, held_out, X in zip((0, *SEVERITIES), models, valids, tests):
        likelihood = log_likelihood(pool_proba(model, held_out[0]), held_out[1])
        proba = pool_proba(model, X)
        found[str(severity)] = {}
        for size in SIZES:
            part = likelihood if chooses else likelihood[:size]
            chosen = select_by(*likelihood_statistics(part), min(size, len(part)))
            cell = scores(y_test, proba[chosen.indices], chosen.weights)
            if severity == 0:
                for name, members in (("entropy", proba), ("entropy_ood", on_digits)):
                    mixture = members[chosen.indices].mean(axis=0)
                    cell[name] = round(float(entropy(mixture, axis=1).mean()), 4)
            found[str(severity)][str(size)] = cell
    return found


SPLITS = {name: partial(split, name) for name in DATASETS}
BENCHMARKS = {
    "nes": Benchmark(SPLITS, dict.fromkeys(METHODS + BOOSTING), of_tables, 3),
    "nes_searches": Benchmark(
        {name: partial(inner, MIDDLE[name], stratify=True) for name in SUITE_CLASSES[:12]},
        {"NES-RE": "re", "NES-RS": "random"},
        each(searched),
        2,
    ),
    "nes_images": Benchmark({"fashion": fashion}, dict.fromkeys(METHODS[:3]), of_images, 3),
}
