"""HQ pruning on pools of real classifiers: which teams it keeps, and how good they are.

    python benchmarks/hq.py --data-dir DIR [--only cifar10 imagenet ..] [--plot hq.png]

Teams are chosen on one part of the rows and judged on another, over several random parts;
the networks of CIFAR-10 and ImageNet also on new test sets of the same classes. For each of
the six measures: Q with the mean threshold, Q with the alpha filter, HQ with the alpha
filter, and with the K-means filter after it; beside them all teams and as many of the teams
most accurate on the rows to choose on. What is served is compared with the best single
model, the vote of all, and greedy selection. The paper's pattern is that the worst team kept
and the share of teams above the best single model rise from one rule to the next.

`speed` measures seconds and memory. Adds to ``benchmarks/results/hq.json``; what it holds is
not run again. `--plot` draws the accuracies of the teams kept.
"""

import argparse
import multiprocessing
import resource
import time
from functools import partial
from pathlib import Path
from typing import NamedTuple

import matplotlib
import numpy as np
from _stored import STORED, read, write
from scipy import sparse
from scipy.special import softmax
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis as LDA
from sklearn.discriminant_analysis import QuadraticDiscriminantAnalysis as QDA
from sklearn.ensemble import ExtraTreesClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB, MultinomialNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from sklearn.svm import SVC
from sklearn.tree import DecisionTreeClassifier

from skuq.ensembles import select_forward, select_teams
from skuq.ensembles._teams import all_teams, hard_vote_accuracy, soft_vote_accuracy

RESULTS = STORED / "hq.json"
# The available models nearest to the pool of the paper.
CIFAR10_TEN = ["densenet_BC_100_12", "resnext_29_8x64d", "wrn_28_10", "vgg_15_BN_64"]
CIFAR10_TEN += [f"resnet_basic_{depth}" for depth in (32, 44, 56, 110)]
CIFAR10_TEN += ["resnet_preact_bottleneck_164", "wide_resnet_tf"]
MEASURES = ("ck", "qs", "bd", "fk", "kw", "gd")  # the six of the stored results
RULES = {
    "Q mean": {"score": "q", "filters": ("mean",)},
    "Q alpha": {"score": "q", "filters": ("alpha",)},
    "HQ alpha": {"filters": ("alpha",)},
    "HQ alpha+K": {},
}
# Teams kept and scored; their lowest, highest and mean accuracy on the rows to judge on (%);
# how many are above the best single model there; accuracy and size of the team served.
COLUMNS = ("kept", "scored", "low", "high", "mean", "above", "served", "size")


class Part(NamedTuple):
    """Labels (M, N) or probabilities (M, N, C) of the models, and the truth."""

    predictions: np.ndarray
    y: np.ndarray
    X: np.ndarray | None = None

    @property
    def right(self):
        labels = self.predictions if self.predictions.ndim == 2 else self.predictions.argmax(2)
        return labels == self.y

    @property
    def accuracies(self):
        return self.right.mean(axis=1)

    def team_accuracies(self, teams, members):
        """Accuracy of the vote of teams (n_teams, S); of tied `members` the best decides."""
        weight = np.ones(len(self.y))
        if self.predictions.ndim == 3:
            return soft_vote_accuracy(self.predictions, self.y, weight)(teams)
        return hard_vote_accuracy(self.predictions, self.y, weight, members)(teams)


class Split(NamedTuple):
    """Rows to choose on, sets of rows to judge on, and the models where there are any."""

    choose: Part
    judge: dict
    models: tuple = ()


def two_halves(predictions, y, run):
    """Random halves; of two runs in a row the second has them swapped."""
    order = np.random.default_rng(run // 2).permutation(len(y))
    halves = np.array_split(order, 2)[:: -1 if run % 2 else 1]
    return [Part(predictions[:, rows], y[rows]) for rows in halves]


def cifar10(data_dir, run, names=CIFAR10_TEN):
    data = np.load(data_dir / "ensemble_predictions" / "cifar10_testbed_top1.npz")
    pool = [data["models"].tolist().index(name) for name in names or data["models"]]
    choose, judge = two_halves(data["pred_test"][pool], data["labels_test"], run)
    shifted = {v: Part(data[f"pred_{v}"][pool], data[f"labels_{v}"]) for v in ("c101v4", "c101v6")}
    return Split(choose, {"test": judge} | shifted)


def cifar10_all(data_dir, run):
    return cifar10(data_dir, run, names=None)


def imagenet(data_dir, run):
    data = np.load(data_dir / "ensemble_predictions" / "imagenet_10models_top5.npz")
    choose, judge = two_halves(data["top5_val"][:, :, 0], data["labels_val"], run)
    return Split(choose, {"val": judge, "v2b": Part(data["top5_v2b"][:, :, 0], data["labels_v2b"])})


def fitted_split(models, X, y, train, choose, judge):
    def part(rows):
        proba = np.stack([model.predict_proba(X[rows]) for model in models])
        return Part(proba, y[rows], X[rows])

    models = [model.fit(X[train], y[train]) for model in models]
    return Split(part(choose), {"test": part(judge)}, tuple(models))


def digits(_, run):
    X, y = load_digits(return_X_y=True)
    order = np.random.default_rng(run // 2).permutation(len(y))
    train, *held_out = np.array_split(order, 3)
    seed = run // 2
    models = [
        make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)),
        LDA(),
        make_pipeline(PCA(15, svd_solver="full"), QDA(reg_param=0.1)),
        GaussianNB(var_smoothing=1e-3),
        KNeighborsClassifier(),
        DecisionTreeClassifier(random_state=seed),
        RandomForestClassifier(random_state=seed),
        ExtraTreesClassifier(20, random_state=seed),
        CalibratedClassifierCV(SVC(), ensemble=False),
        make_pipeline(StandardScaler(), MLPClassifier(max_iter=500, random_state=seed)),
    ]
    return fitted_split(models, X, y, train, *held_out[:: -1 if run % 2 else 1])


def first_half(X):
    return X[:, : X.shape[1] // 2]


def second_half(X):
    return X[:, X.shape[1] // 2 :]


def cora(data_dir, run):
    """Words of papers; run 0 is the published split, others shuffle what it held out."""
    data = np.load(data_dir / "citation_graphs" / "cora.npz")
    raw = sparse.csr_matrix(
        (data["x_data"], data["x_indices"], data["x_indptr"]), data["x_shape"], dtype=float
    )
    n, edges = raw.shape[0], data["edges"]
    graph = sparse.coo_matrix((np.ones(edges.shape[1]), edges), (n, n))
    graph = graph + graph.T + sparse.identity(n)
    scale = sparse.diags(np.ravel(graph.sum(axis=1)) ** -0.5)
    smoother = scale @ graph @ scale
    # One matrix for all models, as DESlib wants it; each model takes its half of the columns.
    X = np.hstack([raw.toarray(), (smoother @ smoother @ raw).toarray()])
    choose, judge = data["val_idx"], data["test_idx"]
    if run:
        held_out = np.random.default_rng(run).permutation(np.concatenate([choose, judge]))
        choose, judge = np.split(held_out, [len(choose)])
    models = [
        make_pipeline(FunctionTransformer(half), model)
        for half in (first_half, second_half)
        for model in (
            LogisticRegression(C=10, max_iter=1000),
            MultinomialNB(),
            KNeighborsClassifier(10, metric="cosine"),
            RandomForestClassifier(random_state=run),
            MLPClassifier(max_iter=300, random_state=run),
        )
    ]
    return fitted_split(models, X, data["y"].astype(int), data["train_idx"], choose, judge)


POOLS = {
    "cifar10": (cifar10, 10, None),  # how to get it, runs, largest team
    "imagenet": (imagenet, 10, None),
    "cifar10_all": (cifar10_all, 10, 4),
    "digits": (digits, 10, None),
    "cora": (cora, 10, None),
}


def options(part, order):
    """Return the options of a vote (M, N, K), the models' support of each, and the right ones.

    For labels option k is the label that model k predicts, the best models first as in `order`.
    """
    if part.predictions.ndim == 3:
        return part.predictions, np.eye(part.predictions.shape[2], dtype=bool)[part.y]
    labels = part.predictions[order].T
    votes = part.predictions[:, :, None] == labels
    return votes.astype(float), labels == part.y[:, None]


def vote_of_all(part):
    """Vote like scikit-learn's `VotingClassifier`: the lowest of tied labels wins."""
    if part.predictions.ndim == 3:
        winner = part.predictions.mean(axis=0).argmax(axis=1)
    else:
        labels = part.predictions
        votes = np.sum([labels == label for label in labels], axis=1)
        winner = np.where(votes == votes.max(axis=0), labels.astype(int), 2**31).min(axis=0)
    return np.mean(winner == part.y)


def greedy(choose, judge, n_members, kind):
    """Accuracies of Caruana's greedy selection, on each set of rows to judge on."""
    order = np.argsort(-choose.accuracies, kind="stable")
    votes, right = options(choose, order)
    losses = {
        "error": lambda mean: ~right[np.arange(len(right)), mean.argmax(axis=-1)] * 1.0,
        "NLL": lambda mean: -np.log(np.maximum((mean * right).sum(axis=-1), 1e-12)),
    }
    # With two votes the better model always wins, so a greedy step can only improve at three.
    least = 2 if choose.predictions.ndim == 3 else 3
    chosen = select_forward([votes], losses[kind], n_members, min_members=least)
    result = {}
    for name, part in judge.items():
        votes, right = options(part, order)
        winner = np.tensordot(chosen.weights, votes[chosen.indices], 1).argmax(axis=1)
        result[name] = right[np.arange(len(right)), winner].mean()
    return result


def selections(choose, max_size, measures=MEASURES):
    """The teams each rule keeps, how many it scored, and the one it serves."""
    found = {}
    rules = {f"{m} {rule}": {"metric": m} | RULES[rule] for m in measures for rule in RULES}
    for name, settings in ({"all teams": {"filters": ()}} | rules).items():
        chosen = select_teams(choose.predictions, choose.y, max_team_size=max_size, **settings)
        frame = chosen.teams_
        found[name] = frame["team"][frame["kept"]].tolist(), chosen.n_scored_, chosen.selected_
        if name == "all teams":
            best_first = frame.sort_values("accuracy", ascending=False, kind="stable")["team"]
    as_many = len(found["gd HQ alpha+K"][0])
    _, n_scored, served = found["all teams"]
    found["as many best"] = best_first.iloc[:as_many].tolist(), n_scored, served
    return found


def judged_teams(part, members, max_size):
    """Accuracies of all teams there are."""
    result = {}
    for size in range(2, (max_size or len(members)) + 1):
        teams = all_teams(len(members), size)
        result |= zip(map(tuple, teams.tolist()), part.team_accuracies(teams, members).tolist())
    return result


def percent(value):
    return round(100 * float(value), 4)


def outcome(load, data_dir, run, max_size):
    """All that is kept of a run: a row of `COLUMNS` a rule, and the rivals."""
    split = load(data_dir, run)
    members = split.choose.accuracies
    found = selections(split.choose, max_size)
    kinds = ["error", "NLL"] if split.choose.predictions.ndim == 3 else ["error"]
    rivals = {
        f"greedy {kind}": greedy(split.choose, split.judge, max_size or len(members), kind)
        for kind in kinds
    }
    record = {}
    for name, part in split.judge.items():
        accuracy = judged_teams(part, members, max_size)
        single = part.accuracies.max()
        rules = {}
        for rule, (kept, n_scored, served) in found.items():
            values = np.array([accuracy[team] for team in kept])
            shares = [values.min(), values.max(), values.mean()]
            rules[rule] = [len(kept), n_scored, *map(percent, shares), int((values > single).sum())]
            rules[rule] += [percent(accuracy[served]), len(served)]
        record[name] = {
            "best single": percent(single),
            "chosen single": percent(part.accuracies[members.argmax()]),
            "vote of all": percent(vote_of_all(part)),
            **{kind: percent(accuracies[name]) for kind, accuracies in rivals.items()},
            "rules": rules,
        }
    return {"judged": record}


def cifar10_first(data_dir, n_models):
    data = np.load(data_dir / "ensemble_predictions" / "cifar10_testbed_top1.npz")
    return data["pred_test"][:n_models], data["labels_test"]


def synthetic_proba(_, n_models):
    """Each model is right on 86 % of the rows; some rows are hard for all."""
    rng = np.random.default_rng(0)
    y = rng.integers(10, size=10_000)
    signal = np.eye(10)[y] * rng.normal(4, 2, (len(y), 1))
    return softmax(signal + rng.normal(size=(n_models, len(y), 10)), axis=2), y


SPEED = {  # models, largest team, measures, most seconds
    "10 models, 6 measures": (10, None, MEASURES, 5),
    "20 models, teams to 5, gd": (20, 5, ("gd",), 30),
    "30 models, teams to 4, gd": (30, 4, ("gd",), 60),
}
SPEED_CASES = [
    (name, voting, scored)
    for name in SPEED
    for voting in ("hard", "soft")
    for scored in ("all scored", "alpha+K")
    if (SPEED[name][0], voting) != (30, "soft")  # there are no real probabilities of thirty
]


def peak_megabytes():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def speed(data_dir, name, voting, scored):
    n_models, max_size, measures, goal = SPEED[name]
    source = cifar10_first if voting == "hard" else synthetic_proba
    predictions, y = source(data_dir, n_models)
    filters = () if scored == "all scored" else ("alpha", "kmeans")
    before, started = peak_megabytes(), time.perf_counter()
    for measure in measures:
        chosen = select_teams(
            predictions, y, metric=measure, filters=filters, max_team_size=max_size
        )
    return {
        "seconds": time.perf_counter() - started,
        "goal": goal,
        "scored": chosen.n_scored_,
        "possible": chosen.n_possible_,
        "megabytes_before": before,
        "megabytes": peak_megabytes(),
    }


def in_new_process(function, *arguments):
    """So that the peak of memory is its own."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(function, arguments)


def relative_accuracies(load, data_dir, n_runs, rules):
    """Accuracies of the teams kept minus the best single model's, over all runs."""
    values = {rule: [] for rule in rules}
    for run in range(n_runs):
        split = load(data_dir, run)
        part = next(iter(split.judge.values()))
        accuracy = judged_teams(part, split.choose.accuracies, None)
        found = selections(split.choose, None, ("gd",))
        for rule in rules:
            values[rule] += [accuracy[team] - part.accuracies.max() for team in found[rule][0]]
    return [100 * np.array(differences) for differences in values.values()]


def plot(data_dir, path):
    """The paper's Figure 4: accuracies of the teams that are kept."""
    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    rows = {
        "all teams": ("all teams", "0.45"),
        "Q-GD, mean": ("gd Q mean", "#D55E00"),
        "HQ-GD (α)": ("gd HQ alpha", "#E69F00"),
        "HQ-GD (α + K)": ("gd HQ alpha+K", "#0072B2"),
    }
    rules, colors = zip(*rows.values())
    figure, axes = plt.subplots(1, 2, figsize=(11, 4), layout="constrained", sharey=True)
    rng = np.random.default_rng(0)
    for axis, (pool, title) in zip(axes, (("cifar10", "CIFAR-10"), ("imagenet", "ImageNet"))):
        load, n_runs, _ = POOLS[pool]
        kept = relative_accuracies(load, data_dir, n_runs, rules)
        for height, (values, color) in enumerate(zip(kept, colors)):
            spread = rng.uniform(-0.25, 0.25, len(values))
            axis.scatter(values, height + spread, s=5, color=color, alpha=0.25, linewidths=0)
            mean = values.mean()
            bar = axis.plot([mean, mean], [height - 0.32, height + 0.32], "k", lw=2.5)
            label = f"{len(values) / n_runs:.0f} teams, {np.mean(values > 0):.0%} better"
            axis.annotate(label, (0.02, height - 0.33), xycoords=("axes fraction", "data"))
        line = axis.axvline(0, color="k", ls="--", lw=1)
        axis.set(title=f"{title}, {n_runs} splits", ylim=(len(rows) - 0.6, -0.6))
        axis.set_xlabel("accuracy minus best single model's (percentage points)")
    axes[0].set_yticks(range(len(rows)), rows)
    handles = {"mean of the teams kept": bar[0], "best single model": line}
    figure.legend(handles.values(), handles, loc="outside lower center", ncols=2, frameon=False)
    figure.savefig(path, dpi=100)


def steps(data_dir, parts):
    """Yield all runs: the key of a record, and a function that makes it."""
    # Memory first: a new process starts with the peak of this one.
    for case in SPEED_CASES if "speed" in parts else ():
        yield ("speed", list(case)), partial(in_new_process, speed, data_dir, *case)
    for pool, (load, n_runs, max_size) in POOLS.items():
        for run in range(n_runs):
            if pool in parts:
                yield (pool, run), partial(outcome, load, data_dir, run, max_size)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parts = ("speed", *POOLS)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--only", nargs="+", default=parts, choices=parts)
    parser.add_argument("--plot", type=Path)
    arguments = parser.parse_args()
    records = read(RESULTS)
    for (part, run), make in steps(arguments.data_dir, arguments.only):
        if not any((r["part"], r["run"]) == (part, run) for r in records):
            records.append({"part": part, "run": run} | make())
            write(RESULTS, records)
    if arguments.plot:
        plot(arguments.data_dir, arguments.plot)


if __name__ == "__main__":
    main()
