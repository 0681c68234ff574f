"""Draw the two pictures of the paper, the README and the front page into docs/images.

    python paper/figures.py

``uncertainty.png`` trains an ensemble on synthetic data in a few seconds. ``peers.png`` reads what
``benchmarks/leaderboard.py`` has stored.
"""

import json
from pathlib import Path

import matplotlib
import numpy as np

from skuq import TabularEnsembleRegressor

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "images"
BLUE, ORANGE, SKY, GREY = "#0072B2", "#D55E00", "#56B4E9", "0.35"  # Okabe and Ito
SETS = ("yacht", "boston", "energy", "concrete", "wine", "diabetes")
PEERS = {
    "gaussian process": ("Gaussian process", "o", BLUE),
    "ngboost": ("NGBoost", "s", ORANGE),
    "catboost": ("CatBoost", "^", GREY),
    "treeffuser": ("Treeffuser", "D", "#009E73"),
    "boosted quantiles": ("boosted quantiles", "v", SKY),
}


def noise_at(x):
    """Standard deviation of the noise: small on the left, large on the right."""
    return 0.05 + 0.3 / (1 + np.exp(-4 * (x - 1)))


def draw_uncertainty():
    """A mean with its interval on data with a gap, and the two parts of its uncertainty."""
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.uniform(-3, -0.8, 150), rng.uniform(0.8, 3, 150)])
    y = np.sin(2 * x) + x / 2 + noise_at(x) * rng.standard_normal(len(x))
    line = np.linspace(-3, 3, 301)
    model = TabularEnsembleRegressor(20, random_state=0).fit(x[:, None], y)
    mean, aleatoric, epistemic, _ = model.predict_uncertainty(line[:, None])
    lower, upper = model.predict_interval(line[:, None], coverage=0.9).T

    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained", sharex=True)
    left.fill_between(line, lower, upper, color=SKY, alpha=0.4, lw=0, label="90 % interval")
    left.plot(x, y, ".", color=GREY, ms=4, label="data")
    left.plot(line, mean, color=BLUE, lw=2, label="mean")
    left.set(xlabel="x", ylabel="y", title="Predictions")
    left.legend(frameon=False)
    right.plot(line, noise_at(line), ":", color=GREY, lw=2, label="true noise")
    right.plot(line, aleatoric, color=BLUE, lw=2, label="noise in the data (aleatoric)")
    right.plot(
        line, epistemic, "--", color=ORANGE, lw=2, label="what the model does not know (epistemic)"
    )
    right.set(xlabel="x", ylabel="standard deviation (units of y)", title="Why it is unsure")
    right.set_ylim(0, 1.45 * max(aleatoric.max(), epistemic.max()))
    right.legend(frameon=False, loc="upper left")
    figure.savefig(IMAGES / "uncertainty.png", dpi=130)


def draw_peers():
    """CRPS of other methods over that of skuq's tabular ensemble, on the splits that all have."""
    stored = json.loads((ROOT / "benchmarks" / "results" / "leaderboard.json").read_text())
    figure, axes = plt.subplots(figsize=(7.5, 3), layout="constrained")
    for place, name in enumerate(SETS):
        scores = {
            method: {
                r["split"]: r["crps"] for r in stored if (r["set"], r["method"]) == (name, method)
            }
            for method in ("tabular", *PEERS)
        }
        splits = set.intersection(*map(set, scores.values()))
        means = {m: np.mean([own[s] for s in splits]) for m, own in scores.items()}
        for offset, (method, (label, marker, colour)) in enumerate(PEERS.items()):
            axes.semilogx(
                means[method] / means["tabular"],
                place + 0.12 * (offset - 2),
                marker,
                color=colour,
                ms=7,
                label=label if place == 0 else None,
            )
    axes.axvline(1, color=GREY, lw=1)
    ticks = [1, 1.5, 2, 3, 5, 10]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.set_yticks(range(len(SETS)), SETS)
    axes.invert_yaxis()
    axes.set_xlabel("CRPS relative to skuq's tabular ensemble (smaller is better)")
    axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    figure.savefig(IMAGES / "peers.png", dpi=130)


if __name__ == "__main__":
    draw_uncertainty()
    draw_peers()
