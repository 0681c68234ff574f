"""
NEON: a whole field, with its uncertainty
=========================================

A cloud of dye drifts down a channel and spreads. `NEONRegressor` learns the operator from inputs u
(where the dye was let in, how fast the water flows, how fast dye diffuses) to the concentration
over place and time, from 20 such functions, each known at 150 scattered points. It then
predicts the field on a fine grid, none of whose points it has seen.

One draw is one possible field: all its values belong together. So draws are smooth, and differ from
the prediction by whole patterns, not by noise from point to point.

The solution is a formula here, which stands for a simulation. Takes half a minute.
"""

# %%
# The concentration obeys ds/dt = D d2s/dx2 - v ds/dx, from a bell of width 0.1 around x0.
import argparse
import time

import matplotlib
import numpy as np
from scipy.stats import qmc

from skuq import NEONRegressor
from skuq.training import Training

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402

BOUNDS = np.array([[0.1, 0.4], [0.1, 0.6], [0.002, 0.03]])  # of x0, v and D
N_FUNCTIONS, N_POINTS = 20, 150
N_TEST, SIDE = 50, 64


def concentration(U, points):
    """Fields (n, q) of inputs U (n, 3) at points (q, 2) of place and time."""
    start, speed, diffusivity = U.T[:, :, None]
    x, t = points.T
    variance = 0.1**2 + 2 * diffusivity * t
    return 0.1 / np.sqrt(variance) * np.exp(-((x - start - speed * t) ** 2) / (2 * variance))


def inputs(n, seed):
    return qmc.scale(qmc.LatinHypercube(3, rng=seed).random(n), *BOUNDS.T)


SCATTERED = np.random.default_rng(0).uniform(size=(N_POINTS, 2))
AXIS = (np.arange(SIDE) + 0.5) / SIDE
GRID = np.stack(np.meshgrid(AXIS, AXIS), axis=-1).reshape(-1, 2)  # time by time


# %%
# Training. What is looked at: the relative error of held-out fields, and the share of
# their values within two standard deviations of the prediction. Nothing calibrates these: see
# the ``scale`` of ``skuq.networks.EpiNet``, and ``CalibratedUncertaintyRegressor``.
def fitted(n_train_steps):
    U = inputs(N_FUNCTIONS, seed=0)
    model = NEONRegressor(
        query_points=SCATTERED,
        prior="epinet",
        noise_std=0.0,
        training=Training(steps=n_train_steps),
        random_state=0,
    )
    started = time.perf_counter()
    model.fit(U, concentration(U, SCATTERED))
    print(f"trained on {N_FUNCTIONS} functions: {time.perf_counter() - started:.0f} s", flush=True)
    return model


def report(model):
    U, points = inputs(N_TEST, seed=1), GRID[::29]
    truth = concentration(U, points)
    mean, std = model.predict(U, return_std=True, query_points=points)
    error = np.linalg.norm(mean - truth, axis=1) / np.linalg.norm(truth, axis=1)
    held = (abs(mean - truth) <= 2 * std).mean()
    print(
        f"{N_TEST} held-out fields: relative error {np.median(error):.3f} (median), "
        f"{error.max():.3f} (largest); {held:.0%} of the values within 2 std; correlation of a "
        f"field's error with its std {np.corrcoef(error, std.mean(axis=1))[0, 1]:.2f}"
    )


# %%
# Two fields: of an input in the middle of the training data, and of a corner of the box that they
# leave empty. White dots are the points at which the functions were known in training, the last
# columns are draws, less the prediction. Mind that each row has scales of its own.
def main(path, n_train_steps):
    model = fitted(n_train_steps)
    report(model)
    corner = np.array([BOUNDS[0, 0], BOUNDS[1, 1], BOUNDS[2, 0]])  # fast, and hardly spreading
    U = np.stack([BOUNDS.mean(axis=1), corner])
    truth = concentration(U, GRID)
    mean, std = model.predict(U, return_std=True, query_points=GRID)
    draws = model.sample_y(U, n_samples=3, random_state=0, query_points=GRID)
    figure, axes = plt.subplots(
        2, 7, figsize=(16, 5), layout="constrained", sharex=True, sharey=True
    )
    for row, name in enumerate(("amid the training data", "a corner without data")):
        parts = axes[row]
        error = abs(mean[row] - truth[row])
        most = max(error.max(), std[row].max())
        for axis, field in zip(parts[:2], (truth[row], mean[row])):
            value = show(axis, field, "viridis", 0, 1)
        for axis, field in zip(parts[2:4], (error, std[row])):
            doubt = show(axis, field, "magma", 0, most)
            axis.text(0.04, 0.94, f"mean {field.mean():.3f}", color="white", va="top")
        departures = draws[row].T - mean[row]
        largest = abs(departures).max()
        for axis, field in zip(parts[4:], departures):
            departure = show(axis, field, "RdBu_r", -largest, largest)
        for image, where in ((value, parts[1]), (doubt, parts[3]), (departure, parts[6])):
            figure.colorbar(image, ax=where, shrink=0.75)
        parts[0].set_ylabel(f"{name}\n\ntime t")
        for axis in parts[1:]:
            axis.tick_params(left=False)
    figure.get_layout_engine().set(w_pad=0.08)
    titles = ["true concentration", "prediction", "absolute error", "std"]
    titles += [f"draw {k} − prediction" for k in (1, 2, 3)]
    for axis, title in zip(axes[0], titles):
        axis.set_title(title, fontsize=11)
    for axis in axes[-1]:
        axis.set(xlabel="place x", xticks=[0, 0.5, 1], xticklabels=["0", "0.5", "1"])
    axes[0, 0].plot(*SCATTERED.T, ".", color="white", mec="0.5", mew=0.3, ms=4)
    axes[0, 0].set(xlim=(0, 1), ylim=(0, 1))
    figure.savefig(path, dpi=100)
    print(f"saved {path}")


def show(axis, field, colours, low, high):
    return axis.imshow(
        field.reshape(SIDE, SIDE),
        cmap=colours,
        vmin=low,
        vmax=high,
        origin="lower",
        extent=(0, 1, 0, 1),
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Draw a field, its prediction and its draws.")
    parser.add_argument("--output", default="neon_operator.png")
    parser.add_argument("--steps", type=int, default=6_000, help="of training")
    arguments = parser.parse_args()
    main(arguments.output, arguments.steps)

# sphinx_gallery_thumbnail_path = "images/thumbs/neon_operator.png"
