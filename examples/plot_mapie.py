"""
Guaranteed coverage with MAPIE
==============================

`MAPIE <https://mapie.readthedocs.io>`_ turns the predictions of any scikit-learn regressor into
intervals whose coverage is guaranteed, if new rows are exchangeable with those set aside. Alone it
gives all rows intervals of one width. Given the standard deviation of a skuq ensemble it makes each
interval as wide as the row needs: the coverage is the same, and the intervals tell easy rows from
hard ones. Needs ``pip install mapie``; takes a few seconds and saves ``mapie.png``.
"""

# %%
# Noise that grows from left to right
# -----------------------------------
# A third of the rows trains, a third sets the intervals, a third judges them.
import matplotlib
import numpy as np
from mapie.conformity_scores import StdConformityScore
from mapie.regression import SplitConformalRegressor

from skuq import DeepEnsembleRegressor

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402

rng = np.random.default_rng(0)
x = rng.uniform(0, 6, 1500)
y = np.sin(x) + (0.02 + 0.1 * x) * rng.standard_normal(1500)
X = x[:, None]
train, calibrate, test = slice(500), slice(500, 1000), slice(1000, None)
model = DeepEnsembleRegressor(random_state=0).fit(X[train], y[train])

# %%
# Two kinds of intervals
# ----------------------
# ``"absolute"`` looks at errors alone, `StdConformityScore` at errors in units of the predicted
# standard deviation, which MAPIE gets by ``predict(X, return_std=True)``.
intervals = {}
for name, score in {"one width": "absolute", "width from the model": StdConformityScore()}.items():
    conformal = SplitConformalRegressor(model, confidence_level=0.9, conformity_score=score)
    conformal.conformalize(X[calibrate], y[calibrate])
    intervals[name] = conformal.predict_interval(X[test])[1][:, :, 0]

for name, (low, high) in ((name, bounds.T) for name, bounds in intervals.items()):
    inside = (low <= y[test]) & (y[test] <= high)
    easy, hard = inside[x[test] < 2].mean(), inside[x[test] > 4].mean()
    print(f"{name:21s} inside: all {inside.mean():.2f}, x < 2 {easy:.2f}, x > 4 {hard:.2f}")

# %%
# What the intervals look like
# ----------------------------
figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained", sharey=True)
order = x[test].argsort()
for axis, (name, bounds) in zip(axes, intervals.items()):
    axis.plot(x[test], y[test], ".", color="0.4", ms=3)
    axis.fill_between(x[test][order], *bounds[order].T, color="#56B4E9", alpha=0.4, lw=0)
    axis.set(xlabel="x", title=f"90 % intervals: {name}")
axes[0].set_ylabel("y")
figure.savefig("mapie.png", dpi=110)

# sphinx_gallery_thumbnail_path = "images/mapie.png"
