"""Replay early discarding on searches in which every trial ran to its end.

    python benchmarks/discarding.py --data-dir DIR --sets boston concrete
    python benchmarks/discarding.py --summary

AutoDEUQ searches the tabular space one trial at a time, with the populations that it has with
`max_time`, and records each trial's score at the stages of `SuccessiveHalving` without discarding
any. The rule is then applied to these records, in their order: which trials it would have
discarded, and which are left when half of the search's time has passed. Scores are those of
out-of-fold predictions, so that no test row is used. Later proposals would depend on what was
discarded before, which this leaves out.

Finished searches are written at once to ``benchmarks/results/discarding.json`` and not repeated;
docs/results/equal_time.md has the table.
"""

import argparse
import warnings
from pathlib import Path

import numpy as np
from _stored import STORED, add, matches, read, rounded
from leaderboard import regression_data
from scipy.stats import spearmanr
from tabular import SMALL

from skuq import AutoDEUQRegressor
from skuq.catalog import TrialRecord
from skuq.search import AgEBO, SuccessiveHalving

RESULTS = STORED / "discarding.json"
N_RECIPES = 6  # the first trials, which are never discarded
COMPILATION = 0.3  # share of a trial's time for compilation, timed on concrete; it is not saved
N_BEST = 10


def run(data_dir, name, split, n_trials):
    """Search without discarding; return each trial's scores and seconds, and the members."""
    X, y, _, _ = regression_data(data_dir, name, split)
    model = AutoDEUQRegressor(
        n_trials=n_trials,
        search=AgEBO(
            discard=SuccessiveHalving(min_trials=n_trials + 1),  # stages, but nothing is discarded
            population_size=12,
            sample_size=4,
        ),
        repeats=0,
        random_state=split,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(X, y)
    return as_record(model)


def as_record(model):
    """Return the record of a fitted search; the score of a failed trial is None."""
    trials = [
        {"score": r.score, "stages": list(r.stage_scores), "seconds": r.seconds}
        if r.completed
        else {"score": None, "stages": [], "seconds": r.seconds}
        for r in model.catalog_
    ]
    return rounded({"trials": trials, "members": model.selection_.indices.tolist()})


def shares(trials, rule):
    """Compute the share of its training after which the rule ends each trial; NaN if it failed."""
    history, found = [], []
    for number, trial in enumerate(trials):
        share, passed = (np.nan, ()) if trial["score"] is None else (1.0, ())
        for (stage, largest), score in zip(rule.stages(history), trial["stages"]):
            passed = (*passed, score)
            if not score <= largest:
                share = stage
                break
        if passed:
            history.append(TrialRecord(number, score=passed[-1], stage_scores=passed))
        found.append(share)
    return np.array(found)


def figures(record):
    """Compute the figures of one search, by name."""
    trials = record["trials"]
    share = shares(trials, SuccessiveHalving(min_trials=N_RECIPES))
    done = ~np.isnan(share)
    score = np.array([np.nan if t["score"] is None else t["score"] for t in trials])
    stages = np.array([t["stages"] for t in trials if t["score"] is not None])
    seconds = np.array([t["seconds"] for t in trials])
    best = np.argsort(score)[:N_BEST]  # NaN is last
    spent = seconds * np.where(done, COMPILATION + (1 - COMPILATION) * share, 1.0)
    half = seconds.sum() / 2
    left = {
        False: np.sort(score[done & (np.cumsum(seconds) <= half)]),
        True: np.sort(score[(share == 1) & (np.cumsum(spent) <= half)]),
    }
    return {
        "correlations": [float(spearmanr(k, score[done])[0]) for k in stages.T],
        "discarded": int(np.sum(share < 1)),
        "saved": float(1 - spent.sum() / seconds.sum()),
        "best_discarded": int(np.sum(share[best] < 1)),
        "members": len(record["members"]),
        "members_discarded": int(np.sum(share[record["members"]] < 1)),
        "left": (len(left[False]), len(left[True])),
        "ratio": float(left[True][:5].mean() / left[False][:5].mean()),
    }


HEAD = (
    "search",
    "rank correlation of stages 1, 2, 3 with the final score",
    "trials discarded",
    "time saved",
    f"of the {N_BEST} best discarded",
    "of the ensemble discarded",
    "trials left at half time: without, with discarding",
    "score of the five best then, with to without",
)


def rows(records):
    """Make the head of the table, and a row of text for each search."""
    table = []
    for record in sorted(records, key=lambda r: (r["set"], r["split"])):
        f = figures(record)
        table.append(
            [
                f"{record['set']}, split {record['split']}",
                ", ".join(f"{c:.2f}" for c in f["correlations"]),
                f"{f['discarded']} of {len(record['trials'])}",
                f"{f['saved']:.0%}",
                f"{f['best_discarded']}",
                f"{f['members_discarded']} of {f['members']}",
                "{}, {}".format(*f["left"]),
                f"{f['ratio']:.3f}",
            ]
        )
    return list(HEAD), table


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--sets", nargs="+", default=list(SMALL))
    parser.add_argument("--splits", type=int, nargs="+", default=[0])
    parser.add_argument("--n-trials", type=int, default=40)
    parser.add_argument("--summary", action="store_true", help="only print what is stored")
    arguments = parser.parse_args()
    for split in [] if arguments.summary else arguments.splits:
        for name in arguments.sets:
            key = {"set": name, "split": split, "n_trials": arguments.n_trials}
            if not any(matches(record, key) for record in read(RESULTS)):
                add(RESULTS, {**key, **run(arguments.data_dir, name, split, arguments.n_trials)})
    head, table = rows(read(RESULTS))
    for line in [head, *table]:
        print(" | ".join(line))


if __name__ == "__main__":
    main()
