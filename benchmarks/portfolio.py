"""Train a table of configurations of the tabular space on many sets, and replay searches on it.

    python benchmarks/portfolio.py --data-dir DIR --table TABLE
    python benchmarks/portfolio.py --data-dir DIR --table TABLE --only classes
    python benchmarks/portfolio.py --table TABLE --summary
    python benchmarks/portfolio.py --picture docs/images/portfolio.png

The first command trains configurations on every set, cheap sets first, and goes on where it was
stopped: each trial is a file in the folder TABLE, some 200 kB. The stored replays are of the first
eight sets of numbers, and of all sets of classes. The third command writes the scores of all trials
to ``benchmarks/results/portfolio.json`` and prints the replays; docs/results/equal_time.md has
them.

Rows are training rows of split 0 only, at most 1,000 of them, drawn at random. A quarter of them is
held out to score ensembles; on the others a trial trains four folds, as AutoDEUQ does with eight.
"""

import argparse
import json
import time
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from _stored import STORED, read, rounded, write
from leaderboard import regression_data
from scipy.special import logsumexp
from sklearn.ensemble import RandomForestRegressor

from skuq import AutoDEUQRegressor
from skuq.catalog import TrialRecord
from skuq.ensembles import GreedySelection, StackingSelection
from skuq.ensembles._likelihood import likelihood_statistics
from skuq.estimators._task import read_task
from skuq.networks import Space, TabularSpace
from skuq.networks._heads import CategoricalHead
from skuq.networks._mixture_heads import GaussianMixtureHead
from skuq.search import AgEBO
from skuq.search._strategies import SearchProblem
from skuq.tables._inputs import TableInputs
from skuq.tables._targets import ClassTargets, NumberTargets
from skuq.training import predict_members
from skuq.training._train import JointTraining
from skuq.training._trainer import MemberTrainer

RESULTS = STORED / "portfolio.json"
#: Cheap sets first.
NUMBERS = [
    *("real_estate_valuation", "yacht", "wankara", "excitation_current", "boston", "medical_cost"),
    *("boom_bikes", "energy", "qsar_fish_toxicity", "mortgage", "concrete", "wine", "power"),
    *("kin8nm", "naval", "compactiv", "protein"),
]
CLASSES = [
    *("ecoli", "ionosphere", "dermatology", "saheart", "australian", "pima", "vowel"),
    *("contraceptive", "yeast", "car", "kc1", "segment", "hypothyroid", "page_blocks"),
]
MOST_ROWS, N_FOLDS = 1_000, 4
N_ARCHITECTURES, N_TRAININGS = 5, 3  # random ones, and random trainings of each
#: The first seeds with which the five architectures have every value of each decision; for classes
#: with 256 units only where there are at most two layers.
SEEDS = {False: 146, True: 2829}
SIZES = (1, 2, 3, 5, 8, 12)  # numbers of trials after which searches are compared
N_MEMBERS, N_FIRST = 5, 8  # trials of an ensemble, and of a portfolio
#: Positions of the hand-written first trials, and the position of a portfolio's first trial.
RECIPES = {False: (0, 1, 2, 4, 6, 8), True: (0, 1, 3, 4, 5, 11, 12)}
FEWEST_ROWS, RECIPES_OF_FEWEST = 200, (7, 8, 10, 2, 9, 11, 12)  # of classes
FIRST = {False: 1, True: 0}
#: Numbers of the configurations that are trained; of numbers all but one wide network, and two
#: trainings each.
TRAINED = {False: (*range(10), 13, 14, 16, 17, 19, 20, 22, 23), True: range(28)}
LOSSES = ("crps", "nll")
#: Decisions that differ between the random trainings of an architecture.
TRAINING = ("learning_rate", "weight_decay", "frequency_scale", "dropout", "epochs", "loss")

#: Hand-written changes of the default: what was known before the table, for each loss.
KNOWN = (
    {},
    {"frequency_scale": 3.0},
    {"embedding": "piecewise-linear"},
    {"residual": True, "dropout": 0.1},
    {"embedding": "none"},
)
#: For classes: the trainings and embeddings of `class_recipes`, whose defaults depend on the rows.
FEW = {"epochs": 64, "weight_decay": 0.3, "frequency_scale": 0.3}
LONG = {"epochs": 256, "weight_decay": 0.02, "frequency_scale": 0.3}
FEWEST = {"epochs": 128, "weight_decay": 0.1, "frequency_scale": 0.3}
STRONG = {"epochs": 64, "weight_decay": 1.0, "frequency_scale": 0.3}
NONE, LINEAR = {"embedding": "none"}, {"embedding": "none", "n_layers": 0, "weight_decay": 0.1}
KNOWN_CLASSES = (
    *(FEW, FEW | NONE, STRONG, FEW | LINEAR, LONG, LONG | NONE, LONG | {"frequency_scale": 3.0}),
    *(FEWEST, FEWEST | NONE, STRONG | NONE, FEWEST | LINEAR),
    *(FEW | {"residual": True}, FEW | {"embedding": "piecewise-linear"}),
)


def changes(classifies):
    """List the changes of the default that are hand-written; for numbers with each loss."""
    if classifies:
        return list(KNOWN_CLASSES)
    return [{**change, "loss": loss} for change in KNOWN for loss in LOSSES]


def configurations(space, classifies):
    """List the configurations of the table: the hand-written ones, then random ones.

    Several trainings share an architecture and a loss, and with them a compiled program.
    """
    decisions, rng = sum(space.decisions(), Space()), np.random.default_rng(SEEDS[classifies])
    by_name = {decision.name: decision for decision in decisions.decisions}
    training = Space([by_name.pop(name) for name in TRAINING if name in by_name])
    architecture = Space([*by_name.values()])
    known = [decisions.check(change, "network") for change in changes(classifies)]
    drawn = []
    for k in range(N_ARCHITECTURES):
        shared = architecture.sample(rng) | ({} if classifies else {"loss": LOSSES[k % 2]})
        drawn += [{**training.sample(rng), **shared} for _ in range(N_TRAININGS)]
    return known + drawn


def rows_of(data_dir, name, classifies):
    """Draw the rows of a set: X, y to train on, and X, y held out."""
    if classifies:
        stored = np.load(data_dir / "suite" / "classes" / f"{name}.npz")
        train = np.setdiff1d(np.arange(len(stored["X"])), stored["test_idx"][0])
        X, y = stored["X"][train], stored["y"][train]
    else:
        X, y, _, _ = regression_data(data_dir, name, 0)
    order = np.random.default_rng(0).permutation(len(X))[:MOST_ROWS]
    n_held = len(order) // 4
    return X[order[n_held:]], y[order[n_held:]], X[order[:n_held]], y[order[:n_held]]


def make_trainer(data_dir, name, classifies):
    """Make the trainer of a set, and its held-out rows as the networks see them."""
    X, y, X_held, y_held = rows_of(data_dir, name, classifies)
    if classifies:  # few rows of a class may all be held out
        X_held, y_held = X_held[np.isin(y_held, y)], y_held[np.isin(y_held, y)]
    targets = ClassTargets(None) if classifies else NumberTargets(loss="gaussian-mixture")
    task = read_task(
        AutoDEUQRegressor(random_state=0), TableInputs("auto", embed=True), targets, X, y
    ).split(N_FOLDS)
    space = TabularSpace().bind(
        task.data.x,
        task.inputs.n_codes,
        task.splits.n_train,
        classifies,
        () if classifies else LOSSES,
    )
    trainer = MemberTrainer(space, task.data, task.targets.head, 100, folds=task.splits.parts)
    x_held = task.inputs.transform(task.inputs.encode(X_held)).astype("float32")
    return trainer, x_held, task.targets.transform(task.targets.encode(y_held))


def train(trainer, configuration, seed, x_held):
    """Train a trial; return arrays of its raw outputs and its seconds."""
    started = time.perf_counter()
    training = JointTraining(trainer.jobs(configuration, seed))
    training.advance()
    members = training.members()
    seconds = np.array([sum(m.seconds for m in members), time.perf_counter() - started])
    raw = np.zeros((len(trainer.data.x), trainer.head.n_raw), dtype="float32")
    for member, (_, valid) in zip(members, trainer.folds):
        raw[valid] = member.held_out[: len(valid)]
    return {"seconds": seconds, "raw": raw, "held": predict_members(members, x_held)}


class Table:
    """Log likelihoods that the trials on one set give its rows.

    `oof` (trials, rows) are of rows out of folds, and `held` of rows held out from all. Scores are
    divided by `unit`, the interquartile range of single trials.
    """

    def __init__(self, folder, classifies):
        truth, paths = np.load(folder / "y.npz"), sorted(folder.glob("[0-9]*.npz"))
        stored = [dict(np.load(path)) for path in paths]
        head = GaussianMixtureHead()
        if classifies:
            head = CategoricalHead(stored[0]["raw"].shape[-1])

        def likelihoods(name, y):
            """Compute log likelihoods of the rows y (n_trials, n)."""
            raws = [trial[name].astype(float) for trial in stored]
            found = [head.log_likelihood(y, raw) for raw in raws]
            # A trial predicts held-out rows with all of its networks.
            mixed = [logsumexp(one.reshape(-1, len(y)), axis=0) for one in found]
            return np.array(mixed) - np.log(raws[0].size / (len(y) * head.n_raw))

        self.name, self.numbers = folder.name, [int(path.stem) for path in paths]
        self.classifies = classifies
        self.recipes = RECIPES[classifies]
        if classifies and len(truth["y"]) <= FEWEST_ROWS:
            self.recipes = RECIPES_OF_FEWEST
        self.configurations = [json.loads(str(trial["configuration"])) for trial in stored]
        self.seconds = [float(trial["seconds"][0]) for trial in stored]
        self.oof, self.held = likelihoods("raw", truth["y"]), likelihoods("held", truth["held"])
        self.scores = -self.oof.mean(axis=1)  # out of fold, (n_trials,)
        quarters = np.quantile(-self.held.mean(axis=1), [0.25, 0.75])
        self.unit, self._known = quarters[1] - quarters[0], {}

    def restrict(self, numbers):
        """Keep the trials with these numbers, in this order."""
        kept = [self.numbers.index(k) for k in numbers]
        self.numbers, self.oof, self.held = numbers, self.oof[kept], self.held[kept]
        self.scores = self.scores[kept]
        self.configurations = [self.configurations[k] for k in kept]
        self.seconds = [self.seconds[k] for k in kept]

    def nll(self, trials):
        """Select among trials by out-of-fold rows; return the ensemble's NLL of held-out ones.

        `trials` are positions.
        """
        key = tuple(trials)
        if not self.classifies:  # the prior of stacking prefers the first trials
            key = tuple(sorted(key))
        if key not in self._known:
            oof, held = self.oof[list(key)], self.held[list(key)]
            rule = StackingSelection() if self.classifies else GreedySelection("mixture")
            chosen = rule.choose(_Likelihoods(oof), N_MEMBERS)
            mixed = logsumexp(held[chosen.indices], axis=0, b=chosen.weights[:, None])
            self._known[key] = -mixed.mean()
        return self._known[key]

    def regret(self, trials):
        """Compute how much worse an ensemble of some trials is than one of all, in units."""
        return (self.nll(trials) - self.nll(range(len(self.numbers)))) / self.unit


class _Likelihoods:
    """Candidates of which only log likelihoods are known."""

    sample_weight, classifies = None, False  # so that no temperature is fitted

    def __init__(self, log_likelihood):
        self.log_likelihood = log_likelihood

    def __len__(self):
        return len(self.log_likelihood)

    def statistics(self, loss):
        return likelihood_statistics(self.log_likelihood)


def learn(tables, size):
    """Order configurations so that the first of them give the best ensembles on average.

    The first is the network of the tabular ensemble, for numbers trained by the likelihood.
    """
    return learn_order(tables, [range(len(table.numbers)) for table in tables], size)


def learn_order(tables, candidates, size):
    """Order the candidates, positions in each table, greedily by the mean regret."""
    first = FIRST[tables[0].classifies]
    order, n = [first], len(candidates[0])
    while len(order) < min(size, n):
        left = [c for c in range(n) if c not in order]
        regrets = [
            np.mean([t.regret([of[k] for k in [*order, c]]) for t, of in zip(tables, candidates)])
            for c in left
        ]
        order.append(left[int(np.argmin(regrets))])
    return order


def nearest(space, configuration, configurations):
    """Find the position of the configuration that is nearest in the encoded space."""
    x = space.encode([configuration, *configurations])
    x = (x - x.min(axis=0)) / np.maximum(np.ptp(x, axis=0), 1e-12)
    return int(np.argmin(np.square(x[1:] - x[0]).sum(axis=1)))


def order_of(strategy, table, others, decisions, rng, starts):
    """Replay a search on the table of one set: the order in which it tries the configurations.

    `starts` are the first trials of the strategies that begin with given ones.
    """
    space, left = sum(decisions[1:], decisions[0]), list(range(len(table.numbers)))
    order, first = [], starts.get(strategy, [])
    proposer = AgEBO().proposer(SearchProblem(decisions, n_trials=50))
    history = []
    while left and len(order) < SIZES[-1]:
        if len(order) < len(first):
            taken = first[len(order)]
        elif strategy == "warm forest":
            taken = left[int(np.argmin(forecast(space, table, others, order, rng)[left]))]
        else:
            proposed = space.sample(rng)
            if strategy == "AgEBO":
                proposed = proposer.ask(history, [], rng)
            taken = left[nearest(space, proposed, [table.configurations[c] for c in left])]
        order.append(taken)
        left.remove(taken)
        score = table.scores[taken]
        history.append(TrialRecord(len(history), table.configurations[taken], score=score))
    return order


def forecast(space, table, others, order, rng):
    """Predict standardised scores of all configurations by a forest of other sets and own trials.

    Other sets have together the weight of five own trials.
    """
    x = space.encode(table.configurations)
    known = np.stack([standardised(other.scores) for other in others])
    y, weight = known.ravel(), np.full(known.size, 5 / known.size)
    x_all = np.tile(x, (len(others), 1))
    if order:
        own = table.scores[order]
        middle = np.median(own) if len(order) > 2 else own.min()
        y = np.append(y, np.clip((own - middle) / table.unit, -3, 3))
        x_all, weight = np.concatenate([x_all, x[order]]), np.append(weight, np.ones(len(order)))
    forest = RandomForestRegressor(20, random_state=int(rng.integers(2**31 - 1)))
    return forest.fit(x_all, y, weight).predict(x)


def standardised(scores):
    """Express scores as distances from their median, in interquartile ranges."""
    low, middle, high = np.quantile(scores, [0.25, 0.5, 0.75])
    return np.clip((scores - middle) / max(high - low, 1e-9), -3, 3)


def replay(tables, decisions, n_repeats=6):
    """Compute regrets (n_sets, n_sizes) of searches, leaving one set out, and the portfolios."""
    found, portfolios, classifies = {}, [], tables[0].classifies
    for table in tables:
        others = [other for other in tables if other is not table]
        portfolios.append(learn(others, N_FIRST))
        starts = {"portfolio": portfolios[-1], "known recipes": table.recipes}
        if classifies:
            order = learn_order(others, [other.recipes for other in others], N_FIRST)
            starts["ordered recipes"] = [table.recipes[k] for k in order]
        for strategy in (*starts, "warm forest", "AgEBO", "random"):
            orders = [
                order_of(strategy, table, others, decisions, np.random.default_rng(k), starts)
                for k in range(n_repeats)
            ]
            regrets = [np.mean([table.regret(o[:k]) for o in orders]) for k in SIZES]
            found.setdefault(strategy, []).append(regrets)
    return found, portfolios


def summarise(folder, classifies):
    """Replay all searches on the stored trials; print the figures, and return their record."""
    counts = {path: len(list(path.glob("[0-9]*.npz"))) for path in sorted(folder.iterdir())}
    whole = [path for path, count in counts.items() if count >= np.median(list(counts.values()))]
    tables = [Table(path, classifies) for path in whole]
    common = sorted(set.intersection(*(set(table.numbers) for table in tables)))
    for table in tables:
        table.restrict(common)
    x = np.random.default_rng(0).normal(size=(MOST_ROWS, 2))
    decisions = (
        TabularSpace().bind(x, classes=classifies, losses=() if classifies else LOSSES).decisions()
    )
    regrets, portfolios = replay(tables, decisions)
    return {
        "sets": [table.name for table in tables],
        "numbers": common,
        "configurations": tables[0].configurations,
        "unit": [table.unit for table in tables],
        "oof": [table.scores.tolist() for table in tables],
        "held": [(-table.held.mean(axis=1)).tolist() for table in tables],
        "seconds": [table.seconds for table in tables],
        "best": [table.nll(range(len(common))) for table in tables],
        "sizes": list(SIZES),
        "regrets": regrets,
        "portfolios": portfolios,
        "portfolio": learn(tables, N_FIRST),
    }


NAMES = {
    "portfolio": "portfolio of the other sets, then random",
    "known recipes": "hand-written recipes, then random",
    "ordered recipes": "these in the order of the other sets",
    "warm forest": "forest that knows the other sets",
    "AgEBO": "AgEBO without recipes",
    "random": "random",
}


def rows(record):
    """Make the head of the table of searches, and its rows of text."""
    head = ["search", *(f"{k} trials" if k > 1 else "1 trial" for k in record["sizes"])]

    def cell(values):
        error = np.std(values, ddof=1) / np.sqrt(len(values))
        return f"{np.mean(values):.2f} ± {error:.2f}"

    return head, [
        [NAMES[name], *map(cell, np.transpose(regrets))]
        for name, regrets in record["regrets"].items()
    ]


COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#000000")
MARKERS = "os^DvPX"


def draw(stored, path):
    """Draw the regret of each search against its number of trials."""
    figure, axes = plt.subplots(1, 2, figsize=(10, 4.2), layout="constrained", sharey=True)
    for ax, (kind, record) in zip(axes, stored.items()):
        for name, regrets in record["regrets"].items():
            mean, error = np.mean(regrets, axis=0), np.std(regrets, axis=0, ddof=1)
            error, color = error / np.sqrt(len(regrets)), COLOURS[list(NAMES).index(name)]
            style = {"color": color, "marker": MARKERS[list(NAMES).index(name)]}
            ax.plot(record["sizes"], mean, label=NAMES[name], **style)
            ax.fill_between(record["sizes"], mean - error, mean + error, color=color, alpha=0.12)
        ax.set_title(f"{len(record['sets'])} sets of {kind}")
        ax.set_xlabel("trials")
    axes[0].set_ylabel("regret, in interquartile ranges of single trials")
    axes[1].legend(title="mean and its standard error")
    figure.savefig(path, dpi=120)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--table", type=Path, help="folder of the trials")
    parser.add_argument("--only", choices=["numbers", "classes"], default="numbers")
    parser.add_argument("--sets", nargs="+")
    parser.add_argument("--numbers", type=int, nargs="+", help="of trials")
    parser.add_argument("--summary", action="store_true", help="only replay what is stored")
    parser.add_argument("--picture", type=Path, help="only draw what is stored")
    arguments = parser.parse_args()
    if arguments.picture:
        draw(read(RESULTS, dict), arguments.picture)
        return
    classifies = arguments.only == "classes"
    trained = arguments.numbers or TRAINED[classifies]
    if arguments.summary:
        found = summarise(arguments.table / arguments.only, classifies)
        stored = {**read(RESULTS, dict), arguments.only: rounded(found, 4)}
        write(RESULTS, stored)
        head, table = rows(stored[arguments.only])
        print(*(" | ".join(line) for line in [head, *table]), sep="\n")
        return
    for name in arguments.sets or (CLASSES if classifies else NUMBERS):
        folder = arguments.table / arguments.only / name
        folder.mkdir(parents=True, exist_ok=True)
        trainer, x_held, y_held = make_trainer(arguments.data_dir, name, classifies)
        np.savez(folder / "y.npz", y=trainer.data.y, held=y_held)
        for number, configuration in enumerate(configurations(trainer.space, classifies)):
            path = folder / f"{number:03d}.npz"
            if path.exists() or number not in trained:
                continue
            found = train(trainer, configuration, number, x_held)
            np.savez(path, configuration=json.dumps(configuration), **found)
            print(name, number, found["seconds"].round(1), flush=True)


if __name__ == "__main__":
    main()
