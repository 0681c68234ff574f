"""
Neural ensemble search on small images
======================================

Members of different architectures against members that differ in their seeds alone (Zaidi et
al., 2021, Figs. 1, 3, 6 and 10), on scikit-learn's digits of 8 x 8 pixels, clean and corrupted.
Twice: dense networks of flat rows, 40 trials, and small DARTS cells of images, 10 trials. The
paper trains 400 networks of 100 epochs on a GPU each; here all of it takes minutes on two
cores, so that differences are small and those of other seeds may point the other way. Saves a
picture.
"""

# %%
# Images and their shift
# ----------------------
# Ensembles are chosen on images with one family of corruptions, and judged on images with
# another: a shift that is known in advance is no test. Each test image occurs five times, each
# time with another corruption.
import argparse
import time

import numpy as np
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from skuq import NESClassifier
from skuq.datasets import corrupt_images
from skuq.metrics import (
    average_member_nll_loss,
    ensemble_nll_loss,
    oracle_nll_loss,
    predictive_entropy,
)
from skuq.networks import CellSpace
from skuq.plotting import MemberDiversityDisplay

SHAPE, SEVERITIES, M = (8, 8), range(6), 5
COLOURS = ["#0072B2", "#E69F00", "#009E73"]

X, y = load_digits(return_X_y=True)
X /= 16  # black is 0, white is 1
X_train, X_rest, y_train, y_rest = train_test_split(
    X, y, train_size=800, random_state=0, stratify=y
)
X_val, X_test, y_val, y_test = train_test_split(
    X_rest, y_rest, train_size=400, random_state=0, stratify=y_rest
)


def corrupted(images, family, severity):
    return corrupt_images(
        images, family, severity, image_shape=SHAPE, value_range=(0, 1), random_state=severity
    )


HELD_OUT = {
    "validation_data": (X_val, y_val),
    "shift_validation": [(corrupted(X_val, "validation", k), y_val) for k in SEVERITIES[1:]],
}
y_test = np.tile(y_test, 5)
TEST = [corrupted(np.tile(X_test, (5, 1)), "test", k) for k in SEVERITIES]
NOISE = np.random.default_rng(0).normal(X_train.mean(), X_train.std(), size=(500, 64))

SEARCHES = {
    "dense": NESClassifier(40, n_members=M, search_space="dense", epochs=30, random_state=0),
    "cells": NESClassifier(
        10,
        n_members=M,
        search_space=CellSpace(channels=6, n_cells=3, batch_size=32),
        image_shape=SHAPE,
        epochs=20,
        random_state=0,
    ),
}


# %%
# Searching, and predicting at every severity
# -------------------------------------------
# The deep ensemble has the architecture that does best alone on the corrupted images.
def compare(search):
    """{ensemble: distributions on `TEST`, clean first, and on noise}; `search` gets fitted."""
    search.fit(X_train, y_train, **HELD_OUT)
    on_clean = search.at_severity(0)
    deep_ensemble = search.baseline("deep-ensemble").fit(X_train, y_train, **HELD_OUT)
    models = {
        "NES, chosen on clean images": [on_clean] * 7,
        "NES, chosen on corrupted ones": [*map(search.at_severity, SEVERITIES), search],
        "deep ensemble of the best network": [deep_ensemble] * 7,
    }
    return {
        name: [model.predict_distribution(images) for model, images in zip(each, [*TEST, NOISE])]
        for name, each in models.items()
    }


def members_of_more_seeds(search, n_seeds):
    """Probabilities of networks like the members, and which member each is like (Fig. 1)."""
    probabilities, groups = [], []
    for k in search.selection_.indices:
        decisions = search.catalog_[int(k)].configuration
        architecture = {
            name: decisions[name] for name in decisions if name not in ("learning_rate", "l2")
        }
        seeds = clone(search).set_params(
            vary="initialisation", fixed_architecture=architecture, n_trials=n_seeds,
            n_members=n_seeds, strategy="rs",
        )  # fmt: skip
        seeds.fit(X_train, y_train, validation_data=HELD_OUT["validation_data"])
        probabilities.extend(seeds.predict_distribution(X_test).proba)
        groups += [f"trial {k}"] * n_seeds
    return probabilities, groups


# %%
# Panels
# ------
def draw_nll(ax, space, predicted):
    print(f"\n{space}: NLL by severity{'':15s}" + "".join(f"{k:7d}" for k in SEVERITIES))
    for (name, parts), style in zip(predicted.items(), STYLES):
        values = [-part.log_prob(y_test).mean() for part in parts[:-1]]
        print(f"  {name:34s}" + "".join(f"{value:7.3f}" for value in values))
        ax.plot(SEVERITIES, values, label=name, **style)
    ax.set(xlabel="severity of corruption", ylabel="NLL of test images (nats)", ylim=(0, None))
    ax.set_title(f"{space}: choosing on clean or corrupted images")
    ax.legend()


def draw_members(ax, both, severity=5):
    print(f"\nNLL at severity {severity}{'':26s} oracle  ensemble  average member")
    for k, (label, part) in enumerate(both.items()):
        members = y_test, part.proba
        values = [
            oracle_nll_loss(*members),
            ensemble_nll_loss(*members, part.weights),
            average_member_nll_loss(*members, part.weights),
        ]
        print(f"  {label:38s}{values[0]:8.3f}{values[1]:10.3f}{values[2]:16.3f}")
        for value, name, hatch, shift, colour in zip(
            values, ("oracle", "ensemble", "average member"), ("//", "", ".."), (-1, 0, 1), COLOURS
        ):
            ax.bar(
                k + 0.27 * shift, value, 0.25, color=colour, hatch=hatch, edgecolor="white",
                label=name if k == 0 else None,
            )  # fmt: skip
    ax.set_xticks(range(len(both)), [label.replace(", ", "\n") for label in both])
    ax.set(ylabel="NLL of test images (nats)", title=f"Proposition 3.1, severity {severity}")
    ax.legend()


def draw_entropy(ax, space, predicted):
    print(f"\n{space}: median entropy (nats){'':8s}  digits  severity 5   noise")
    chosen = [parts for name, parts in predicted.items() if "corrupted" not in name]
    for parts, name, shift, style in zip(chosen, ("NES", "deep ensemble"), (-0.2, 0.2), STYLES[::2]):
        entropies = [predictive_entropy(parts[k].mean) for k in (0, 5, 6)]
        print(f"  {name:34s}" + "".join(f"{np.median(e):9.3f}" for e in entropies))
        boxes = ax.boxplot(
            entropies, positions=np.arange(3) + shift, widths=0.35, patch_artist=True,
            showfliers=False, medianprops={"color": "black"},
        )  # fmt: skip
        for box in boxes["boxes"]:
            box.set(facecolor=style["color"], alpha=0.6)
        boxes["boxes"][0].set_label(name)
    ax.axhline(np.log(10), color="0.4", ls=":", label="ten classes alike")
    ax.set_xticks(range(3), ["test digits", "corrupted,\nseverity 5", "Gaussian\nnoise"])
    ax.set(ylabel="entropy of a prediction (nats)", title=f"{space}: is noise recognised?")
    ax.legend(loc="lower right")


# %%
# The figure
# ----------
def main(path):
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(2, 3, figsize=(15, 8.5), layout="constrained")
    both = {}
    for k, (space, search) in enumerate(SEARCHES.items()):
        started = time.perf_counter()
        predicted = compare(search)
        print(f"{space}: searched and predicted in {time.perf_counter() - started:.0f} s")
        draw_nll(axes[0, k], space, predicted)
        draw_entropy(axes[1, k], space, predicted)
        on_clean, _, deep_ensemble = predicted.values()
        both |= {f"{space}, NES": on_clean[5], f"{space}, deep ensemble": deep_ensemble[5]}
    draw_members(axes[0, 2], both)
    started = time.perf_counter()
    points, groups = members_of_more_seeds(SEARCHES["dense"].at_severity(0), 8)
    MemberDiversityDisplay.from_predictions(points, groups=groups, ax=axes[1, 2])
    axes[1, 2].set_title("dense: five architectures of eight seeds each")
    print(f"\neight seeds each in {time.perf_counter() - started:.0f} s")
    figure.savefig(path, dpi=90)
    print(f"saved {path}")


STYLES = [
    {"color": COLOURS[0], "marker": "o", "ls": "-"},
    {"color": COLOURS[1], "marker": "s", "ls": "--"},
    {"color": "#000000", "marker": "D", "ls": ":"},
]

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Draw neural ensemble search on digits.")
    parser.add_argument("--output", default="nes_digits.png")
    main(parser.parse_args().output)
