"""HQ pruning on pools of real classifiers: which teams it keeps, and how good they are.

Teams are chosen on one part of the rows and judged on another, over several random parts (the
seed); the networks of CIFAR-10 and ImageNet also on new test sets of the same classes. For each of
the six measures: Q with the mean threshold, Q with the alpha filter, HQ with the alpha filter, and
with the K-means filter after it; beside them all teams and as many of the teams most accurate on
the rows to choose on. What is served is compared with the best single model, the vote of all, and
greedy selection. The paper's pattern is that the worst team kept and the share of teams above the
best single model rise from one rule to the next.
"""

from typing import NamedTuple

import numpy as np
from data import folder
from runner import Benchmark, each
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis as LDA
from sklearn.discriminant_analysis import QuadraticDiscriminantAnalysis as QDA
from sklearn.ensemble import ExtraTreesClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC
from sklearn.tree import DecisionTreeClassifier

from skuq.ensembles import select_forward, select_teams
from skuq.ensembles._teams import all_teams, hard_vote_accuracy, soft_vote_accuracy

# The available models nearest to the pool of the paper.
CIFAR10_TEN = ["densenet_BC_100_12", "resnext_29_8x64d", "wrn_28_10", "vgg_15_BN_64"]
CIFAR10_TEN += [f"resnet_basic_{depth}" for depth in (32, 44, 56, 110)]
CIFAR10_TEN += ["resnet_preact_bottleneck_164", "wide_resnet_tf"]
MEASURES = ("ck", "qs", "bd", "fk", "kw", "gd")  # the six of the stored results
RULES = {
    "Q mean": {"diversity": "q", "filters": ("mean",)},
    "Q alpha": {"diversity": "q", "filters": ("alpha",)},
    "HQ alpha": {"filters": ("alpha",)},
    "HQ alpha+K": {},
    "HQ alpha+K drop": {"empty_sizes": "drop"},
}
# Teams kept and scored; their lowest, highest and mean accuracy on the rows to judge on (%);
# how many are above the best single model there; accuracy and size of the team served.
COLUMNS = ("kept", "scored", "low", "high", "mean", "above", "served", "size")


class Part(NamedTuple):
    """Labels (M, N) or probabilities (M, N, C) of the models, and the truth."""

    predictions: np.ndarray
    y: np.ndarray

    @property
    def accuracies(self):
        labels = self.predictions if self.predictions.ndim == 2 else self.predictions.argmax(2)
        return (labels == self.y).mean(axis=1)

    def team_accuracies(self, teams, members):
        """Accuracy of the vote of teams (n_teams, S); of tied `members` the best decides."""
        weight = np.ones(len(self.y))
        if self.predictions.ndim == 3:
            return soft_vote_accuracy(self.predictions, self.y, weight)(teams)
        return hard_vote_accuracy(self.predictions, self.y, weight, members)(teams)


class Split(NamedTuple):
    """Rows to choose on, and sets of rows to judge on."""

    choose: Part
    judge: dict
    max_size: int | None = None  # of teams


def two_halves(predictions, y, run):
    """Random halves; of two runs in a row the second has them swapped."""
    order = np.random.default_rng(run // 2).permutation(len(y))
    halves = np.array_split(order, 2)[:: -1 if run % 2 else 1]
    return [Part(predictions[:, rows], y[rows]) for rows in halves]


def cifar10(run, names=CIFAR10_TEN):
    data = np.load(folder() / "ensemble_predictions" / "cifar10_testbed_top1.npz")
    pool = [data["models"].tolist().index(name) for name in names or data["models"]]
    choose, judge = two_halves(data["pred_test"][pool], data["labels_test"], run)
    shifted = {v: Part(data[f"pred_{v}"][pool], data[f"labels_{v}"]) for v in ("c101v4", "c101v6")}
    return Split(choose, {"test": judge} | shifted)


def cifar10_all(run):
    return cifar10(run, names=None)._replace(max_size=4)


def imagenet(run):
    data = np.load(folder() / "ensemble_predictions" / "imagenet_10models_top5.npz")
    choose, judge = two_halves(data["top5_val"][:, :, 0], data["labels_val"], run)
    return Split(choose, {"val": judge, "v2b": Part(data["top5_v2b"][:, :, 0], data["labels_v2b"])})


def fitted_split(models, X, y, train, choose, judge):
    def part(rows):
        return Part(np.stack([model.predict_proba(X[rows]) for model in models]), y[rows])

    models = [model.fit(X[train], y[train]) for model in models]
    return Split(part(choose), {"test": part(judge)})


def digits(run):
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


def selections(choose, max_size):
    """The teams each rule keeps, how many it scored, and the one it serves."""
    found = {}
    rules = {f"{m} {rule}": {"metric": m} | RULES[rule] for m in MEASURES for rule in RULES}
    for name, settings in ({"all teams": {"filters": ()}} | rules).items():
        chosen = select_teams(choose.predictions, choose.y, max_team_size=max_size, **settings)
        frame = chosen.teams_
        found[name] = frame["team"][frame["kept"]].tolist(), chosen.n_scored_, chosen.selected_
        if name == "all teams":
            best_first = frame.sort_values("accuracy", ascending=False, kind="stable")["team"]
    as_many = best_first.iloc[: len(found["gd HQ alpha+K"][0])].tolist()
    return found | {"as many best": (as_many, *found["all teams"][1:])}


def judged_teams(part, members, max_size):
    """Accuracies of all teams there are."""
    result = {}
    for size in range(2, (max_size or len(members)) + 1):
        teams = all_teams(len(members), size)
        result |= zip(map(tuple, teams.tolist()), part.team_accuracies(teams, members).tolist())
    return result


def percent(value):
    return round(100 * float(value), 4)


def outcome(split, rules, seed):
    """Results of a run: a list of `COLUMNS` for each rule, and the rivals."""
    members, max_size = split.choose.accuracies, split.max_size
    found = selections(split.choose, max_size)
    kinds = ["error", "NLL"] if split.choose.predictions.ndim == 3 else ["error"]
    rivals = {
        f"greedy {kind}": greedy(split.choose, split.judge, max_size or len(members), kind)
        for kind in kinds
    }
    judged = {}
    for name, part in split.judge.items():
        accuracy = judged_teams(part, members, max_size)
        single, rules = part.accuracies.max(), {}
        for rule, (kept, n_scored, served) in found.items():
            values = np.array([accuracy[team] for team in kept])
            shares = [values.min(), values.max(), values.mean()]
            rules[rule] = [len(kept), n_scored, *map(percent, shares), int((values > single).sum())]
            rules[rule] += [percent(accuracy[served]), len(served)]
        judged[name] = {
            "best single": percent(single),
            "chosen single": percent(part.accuracies[members.argmax()]),
            "vote of all": percent(vote_of_all(part)),
            **{kind: percent(accuracies[name]) for kind, accuracies in rivals.items()},
            "rules": rules,
        }
    return {"judged": judged}


POOLS = {f.__name__: f for f in (cifar10, imagenet, cifar10_all, digits)}
BENCHMARKS = {"hq": Benchmark(POOLS, {"all rules": None}, each(outcome), 10)}
