"""
A table as it comes: categories, missing values, noise that is not normal
=========================================================================

Prices of synthetic flats, from a pandas frame with numbers, strings and gaps that goes straight
into `fit`. A deep ensemble of plain networks beside a tabular ensemble: predictions
with their intervals; how much of the uncertainty is noise, and how much comes from having seen
few flats of a district; and what kinds of `loss` make of a flat whose price has two peaks.
"""

# %%
# The flats. Of those at the harbour half look out to sea and cost 80 % more, which no
# column says; the island has sold very few; prices of flats that need work scatter widely.
import argparse
import time

import numpy as np
import pandas as pd
from scipy import stats

import skuq

DISTRICTS = {"centre": 1.5, "harbour": 1.2, "hills": 1.0, "suburb": 0.8, "island": 1.9}
SHARES = [0.2, 0.3, 0.25, 0.244, 0.006]
NOISE = {"new": 0.03, "good": 0.06, "needs work": 0.2}  # as shares of the price
SEA_VIEW = 1.8


def make_flats(n, rng):
    """Columns as a user might have them, and the price expected without the view."""
    flats = pd.DataFrame(
        {
            "area": rng.gamma(9, 9, n).clip(20, 250).round(),
            "built": rng.integers(1900, 2024, n).astype(float),
            "floor": rng.integers(0, 8, n).astype(float),
            "lift": rng.random(n) < 0.4,
            "district": rng.choice(list(DISTRICTS), n, p=SHARES),
            "condition": rng.choice(list(NOISE), n, p=[0.2, 0.55, 0.25]),
        }
    )
    stairs = 0.04 * flats["floor"] * np.where(flats["lift"], 1.0, -1.0)
    age = 0.2 * np.cos((flats["built"] - 1900) / 20)  # some decades built better than others
    per_metre = 4.0 * flats["district"].map(DISTRICTS) * (1 + stairs + age)
    price = per_metre * flats["area"] * (1 - 0.2 * (flats["condition"] == "needs work"))
    flats.loc[rng.random(n) < 0.15, "built"] = np.nan
    flats.loc[rng.random(n) < 0.1, "floor"] = np.nan
    return flats, price.to_numpy()


def sell(flats, price, rng):
    """Prices in thousands, with what the frame does not say."""
    view = (flats["district"] == "harbour") & (rng.random(len(flats)) < 0.5)
    scatter = 1 + flats["condition"].map(NOISE) * rng.standard_normal(len(flats))
    return price * np.where(view, SEA_VIEW, 1.0) * scatter.to_numpy()


rng = np.random.default_rng(0)
flats, price = make_flats(2400, rng)
sold = sell(flats, price, rng)
train, test = flats.iloc[:1600], flats.iloc[1600:]
y_train, y_test = sold[:1600], sold[1600:]

# %%
# The models, with their defaults but for what the names say.
MODELS = {
    "plain": skuq.DeepEnsembleRegressor(random_state=0),
    "tabular": skuq.TabularEnsembleRegressor(random_state=0),
    'loss="crps"': skuq.TabularEnsembleRegressor(loss="crps", random_state=0),
}
COLOURS = dict(zip(MODELS, ["#7f7f7f", "#0072B2", "#E69F00"]))


def scores(model):
    """RMSE, mean negative log density and share of the 90 % intervals that hold their row."""
    error = model.predict(test) - y_test
    low, high = model.predict_interval(test, coverage=0.9)
    return (
        np.sqrt((error**2).mean()),
        -model.log_prob(test, y_test).mean(),
        ((low <= y_test) & (y_test <= high)).mean(),
    )


def draw_predictions(axis, name, model, shown=150):
    rmse, nll, coverage = scores(model)
    mean, (low, high) = model.predict(test), model.predict_interval(test, coverage=0.9)
    part = slice(shown)
    axis.vlines(mean[part], low[part], high[part], color=COLOURS[name], alpha=0.25, lw=1.5)
    axis.plot(mean[part], y_test[part], ".", color=COLOURS[name], ms=5)
    axis.axline((0, 0), slope=1, color="black", lw=0.8)
    axis.set(
        title=f"{name}\nRMSE {rmse:.0f}, NLL {nll:.2f}, {coverage:.0%} inside",
        xlabel="predicted price (thousands), 90 % interval",
        ylabel="price",
        xlim=(0, 1400),
        ylim=(0, 1400),
    )


def draw_parts(axis, model):
    """Share of the price, district by district; the noise known beside it."""
    parts = model.predict_uncertainty(test)
    table = pd.DataFrame(
        {
            "aleatoric": parts.aleatoric / parts.mean,
            "epistemic": parts.epistemic / parts.mean,
            "district": test["district"],
        }
    )
    table = table.groupby("district").median().loc[list(DISTRICTS)]
    n_seen = train["district"].value_counts()
    labels = [f"{district}\n({n_seen[district]} rows)" for district in table.index]
    place = np.arange(len(table))
    axis.bar(place - 0.2, table["aleatoric"], 0.4, color="#56B4E9", label="aleatoric")
    axis.bar(place + 0.2, table["epistemic"], 0.4, color="#E69F00", label="epistemic")
    axis.set(title="standard deviation as a share of the price", ylabel="median of test flats")
    axis.set_xticks(place, labels, fontsize="small")
    axis.legend(frameon=False)


def draw_densities(axis, models, row):
    """Draw the models' densities of one flat at the harbour, and the true one."""
    flat = test.iloc[[row]]
    expected = price[1600 + row]
    scale = NOISE[flat["condition"].iloc[0]] * expected
    y = np.linspace(0.6 * expected, 2.3 * expected, 400)
    truth = 0.5 * stats.norm.pdf(y, expected, scale)
    truth += 0.5 * stats.norm.pdf(y, SEA_VIEW * expected, SEA_VIEW * scale)
    axis.fill_between(y, truth, color="0.85", lw=0, label="truth")
    for name, label in zip(list(MODELS)[1:], ["mixture of normals, the default", "normal"]):
        density = np.exp(models[name].predict_distribution(flat).log_prob(y))
        axis.plot(y, density, color=COLOURS[name], lw=1.6, label=label)
    axis.set(title="a flat at the harbour", xlabel="price (thousands)", ylabel="density")
    axis.set(yticks=[], ylim=(0, None))
    axis.legend(frameon=False)


# %%
# Training, one model after another: each is one compiled program for all its members.
def main(path):
    import matplotlib.pyplot as plt

    print(f"{'':26s}{'RMSE':>8s}{'NLL':>8s}{'inside':>8s}{'seconds':>9s}")
    for name, model in MODELS.items():
        started = time.perf_counter()
        model.fit(train, y_train)
        seconds = time.perf_counter() - started
        rmse, nll, inside = scores(model)
        print(f"{name:26s}{rmse:8.1f}{nll:8.3f}{inside:8.3f}{seconds:9.1f}", flush=True)
    figure, axes = plt.subplots(2, 2, figsize=(10, 8), layout="constrained")
    for axis, name in zip(axes[0], MODELS):
        draw_predictions(axis, name, MODELS[name])
    draw_parts(axes[1, 0], MODELS["tabular"])
    at_harbour = (test["district"] == "harbour") & (test["condition"] == "good")
    candidates = np.flatnonzero(at_harbour & test[["built", "floor"]].notna().all(axis=1))
    by_price = candidates[np.argsort(price[1600 + candidates])]
    draw_densities(axes[1, 1], MODELS, by_price[len(by_price) // 2])
    figure.savefig(path, dpi=100)
    print(f"saved {path}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Draw a table's uncertainty in four panels.")
    parser.add_argument("--output", default="tabular.png")
    main(parser.parse_args().output)

# sphinx_gallery_thumbnail_path = "images/thumbs/tabular.png"
