"""
A market that drifts: choosing the ensemble again, without training
===================================================================

Half-hourly electricity prices of New South Wales, in the order of time: is the price above its
mean of the last day? Networks learn from 29 weeks and are asked about the 54 that follow.
Neural ensemble search leaves a pool of networks of different architectures, out of which an
ensemble is chosen on rows of the same 29 weeks, on the six weeks after them, or, by `reselect`,
on the latest six weeks again and again: new labels choose, and nothing is trained.

What comes out: chosen on the training weeks, the ensemble has the lowest NLL there and the
highest ever after. Chosen on the weeks that follow it is better, and chosen again better still,
mostly in the worst weeks; in how often they are wrong the four hardly differ. A deep ensemble
of the one network that does best in the weeks that follow does almost as well as the second.
And no ensemble knows that it is lost: where all are worst by NLL, in weeks 31 to 36, NES members
disagree no more than in weeks 13 to 18, and those of the deep ensemble hardly disagree anywhere.

With ``--data-dir``, a folder that holds ``tabular/electricity.csv.gz``; without, the data are
downloaded from OpenML. Saves a picture; takes one to two minutes.
"""

# %%
# The data
# --------
# The neighbour Victoria has numbers from row 17424 on; earlier rows are left out. Two rows in
# three of the first 29 weeks are for training, and the third shows how good the model is where
# nothing has changed.
import argparse
import time
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.datasets import fetch_openml

from skuq import NESClassifier
from skuq.metrics import ece_loss

COLUMNS = ["period", "nswprice", "nswdemand", "vicprice", "vicdemand", "transfer"]
FIRST, WEEK = 17424, 48 * 7


def load(folder):
    """Six columns, and 1 where the price was above its mean of the last day."""
    if folder:
        table = pd.read_csv(folder / "tabular" / "electricity.csv.gz")
        up = table["class"] == 1
    else:
        table = fetch_openml("electricity", version=1, as_frame=True, parser="auto").frame
        up = table["class"].astype(str) == "UP"
    return table[COLUMNS].to_numpy("float64")[FIRST:], up.to_numpy().astype(int)[FIRST:]


def divide(X, y):
    """Rows to train on, others of the same 29 weeks, and then blocks of six weeks."""
    early = np.arange(29 * WEEK)
    parts = [early[early % 3 > 0], early[early % 3 == 0]]
    parts += np.split(np.arange(29 * WEEK, 83 * WEEK), 9)
    return [(X[rows], y[rows]) for rows in parts]


# %%
# Four ensembles
# --------------
# Three share one pool of networks. Whatever they choose on is known when they are used.
def predict_blocks(train, same, recent, test, n_trials):
    """Distributions on the test blocks, by ensemble; the first block is of the same weeks."""
    search = NESClassifier(n_trials, search="re", space="dense", random_state=0).fit(
        *train, shift_validation=recent
    )
    models = {
        "NES, chosen on the training weeks": search.at_severity(0),
        "NES, chosen on the 6 weeks after": search.at_severity(1),
        "deep ensemble of the best network": search.baseline("deep-ensemble").fit(*train),
    }
    blocks = [same, *test]
    predicted = {
        name: [model.predict_distribution(X) for X, _ in blocks] for name, model in models.items()
    }
    rolling, again = search.at_severity(1), [None]
    for latest, (X, _) in zip([recent, *test], test):
        again.append(rolling.reselect(*latest).predict_distribution(X))
    return {**predicted, "NES, chosen again every 6 weeks": again}


SCORES = {
    "NLL (nats)": lambda y, p: -p.log_prob(y).mean(),
    "error (share of rows)": lambda y, p: np.mean(p.mode != y),
    "calibration error, ECE (share)": lambda y, p: ece_loss(y, p.mean, labels=[0, 1]),
    "mutual information (nats)": lambda y, p: p.uncertainty().epistemic.mean(),
}


# %%
# The figure
# ----------
# The first place on each axis is the training weeks, rows that no network has seen. Weeks 1 to 6
# are missing: ensembles are chosen on them.
WEEKS = ["training\nweeks"] + [f"{k}-{k + 5}" for k in range(7, 55, 6)]
STYLES = [
    {"color": "#0072B2", "marker": "o", "ls": "-"},
    {"color": "#E69F00", "marker": "s", "ls": "--"},
    {"color": "#000000", "marker": "D", "ls": ":"},
    {"color": "#009E73", "marker": "^", "ls": "-."},
]


def main(path, folder, n_trials):
    import matplotlib.pyplot as plt

    started = time.perf_counter()
    train, same, recent, *test = divide(*load(folder))
    predicted = predict_blocks(train, same, recent, test, n_trials)
    print(f"searched, trained and predicted in {time.perf_counter() - started:.0f} s")
    truth = [y for _, y in (same, *test)]
    figure, axes = plt.subplots(2, 2, figsize=(11, 7.5), layout="constrained", sharex=True)
    for ax, (what, score) in zip(axes.flat, SCORES.items()):
        print(f"\n{what:34s}   same" + "".join(f"{w:>7s}" for w in WEEKS[1:]) + "  after")
        for (name, blocks), style in zip(predicted.items(), STYLES):
            values = [np.nan if p is None else score(y, p) for y, p in zip(truth, blocks)]
            ax.plot(values, label=name, markersize=5, **style)
            print(f"{name:34s}" + "".join(f"{value:7.3f}" for value in values)
                  + f"{np.mean(values[1:]):7.3f}")  # fmt: skip
        ax.axvline(0.5, color="0.6", lw=1)
        ax.set(ylabel=what, ylim=(0, None))
        ax.grid(alpha=0.3)
    axes[0, 0].set_title("Negative log likelihood")
    axes[0, 1].set_title("Share of wrong classes")
    axes[1, 0].set_title("Calibration error")
    axes[1, 1].set_title("Disagreement of the members")
    for ax in axes[1]:
        ax.set_xticks(range(9), WEEKS)
        ax.set_xlabel("weeks after the training weeks")
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    figure.savefig(path, dpi=100)
    print(f"\nsaved {path}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Draw how ensembles fare as a market drifts.")
    parser.add_argument("--data-dir", type=Path, help="folder of the benchmark data")
    parser.add_argument("--n-trials", type=int, default=40, help="networks trained")
    parser.add_argument("--output", default="nes_shift.png")
    arguments = parser.parse_args()
    main(arguments.output, arguments.data_dir, arguments.n_trials)

# sphinx_gallery_thumbnail_path = "images/thumbs/nes_shift.png"
