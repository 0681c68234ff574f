"""
NOMU on top of a model that is already there
============================================

A random forest and a Keras network have been trained, and give no uncertainty.
`NOMURegressor(pretrained=model)` leaves their predictions as they are, to the bit, and trains
only the part that says how far from the rows an input is. Of a Keras network it also sees the
last hidden layer, so that what matters to the prediction matters to the uncertainty.

The wave below has a gap. Neither model knows of it; the bands do. Takes a quarter of a minute.
"""

# %%
# Two models as they may be lying about, and the rows they were trained on.
import argparse

import matplotlib
import numpy as np
from sklearn.ensemble import RandomForestRegressor

from skuq import NOMURegressor
from skuq.networks import ArtificialInputs, NOMUNetwork

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402

rng = np.random.default_rng(0)


def wave(x):
    return 20 + 5 * np.sin(x) + x


X = np.r_[rng.uniform(0, 4, 20), rng.uniform(7, 10, 15)][:, None]
y = wave(X[:, 0])
X_valid = np.r_[rng.uniform(-1, 4, 14), rng.uniform(4, 11, 16)][:, None]
y_valid = wave(X_valid[:, 0])
line = np.linspace(-1, 11, 400)[:, None]


def random_forest():
    return RandomForestRegressor(random_state=0).fit(X, y)


def keras_network():
    import keras

    keras.utils.set_random_seed(0)
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((1,)),
            layers.Rescaling(0.2, -1.0),
            layers.Dense(64, activation="tanh"),
            layers.Dense(64, activation="tanh"),
            layers.Dense(1),
            layers.Rescaling(6.0, 25.0),
        ]
    )
    # An epoch is fifty passes here: of so few rows, the pass costs less than the epoch.
    model.compile(keras.optimizers.Adam(1e-2), "mse", steps_per_execution=50)
    repeated = np.tile(X, (50, 1)), np.tile(y, 50)
    model.fit(*repeated, batch_size=len(X), epochs=40, shuffle=False, verbose=0)
    return model


# %%
# The uncertainty. `fit` gets the rows that the model was trained on. A model's errors there say
# nothing of its errors elsewhere, so the scale c is learnt from other rows; a `NOMUReadout`
# with numbers for c, l_min and l_max would do without.
def with_uncertainty(model):
    nomu = NOMURegressor(
        NOMUNetwork((64, 64)),
        artificial=ArtificialInputs(box=[(-1, 11)]),
        pretrained=model,
        random_state=0,
    )
    return nomu.fit(X, y, validation_data=(X_valid, y_valid))


def main(path):
    figure, axes = plt.subplots(1, 2, figsize=(12, 4.6), layout="constrained", sharey=True)
    models = {"random forest": random_forest(), "Keras network": keras_network()}
    for axis, (name, model) in zip(axes, models.items()):
        nomu = with_uncertainty(model)
        mean, std = nomu.predict(line, return_std=True)
        expected = (
            model.predict(line) if name == "random forest" else model.predict(line, verbose=0)
        )
        assert np.array_equal(mean, np.ravel(expected).astype("float64"))  # to the bit
        near = abs(line - X.T).min(axis=1)
        print(
            f"{name}: c = {nomu.c_:.2f}, std within 0.1 of a row {std[near < 0.1].mean():.2f}, "
            f"further than 1 {std[near > 1].mean():.2f}; "
            f"f ± 2 σ holds {(abs(mean - wave(line[:, 0])) <= 2 * std).mean():.0%} of the wave"
        )
        draw(axis, name, mean, std)
    axes[0].set_ylabel("y")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=5, frameon=False)
    figure.savefig(path, dpi=100)
    print(f"saved {path}")


def draw(axis, name, mean, std):
    x = line[:, 0]
    axis.fill_between(x, mean - 2 * std, mean + 2 * std, color="#9ecae1", lw=0, label="f ± 2 σ")
    axis.plot(x, wave(x), color="black", lw=1, ls="--", label="function")
    axis.plot(x, mean, color="#08519c", lw=1.4, label="prediction, as it was")
    axis.plot(X[:, 0], y, "o", color="crimson", ms=4, label="rows trained on")
    axis.plot(X_valid[:, 0], y_valid, "x", color="#E69F00", ms=5, label="rows for c")
    axis.set(title=name, xlabel="x")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Draw bands around models already trained.")
    parser.add_argument("--output", default="nomu_pretrained.png")
    main(parser.parse_args().output)

# sphinx_gallery_thumbnail_path = "images/thumbs/nomu_pretrained.png"
