"""Draw the picture of the paper, the README and the front page: docs/images/uncertainty.png.

    python paper/figures.py

It trains an ensemble on synthetic data in a few seconds. The paper's other picture is drawn by
``benchmarks/results_pictures.py``.
"""

from pathlib import Path

import matplotlib
import numpy as np

from skuq import TabularEnsembleRegressor

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "images"
BLUE, ORANGE, SKY, GREY = "#0072B2", "#D55E00", "#56B4E9", "0.35"  # Okabe and Ito


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
    lower, upper = model.predict_interval(line[:, None], coverage=0.9)

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


if __name__ == "__main__":
    draw_uncertainty()
