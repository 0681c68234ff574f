"""
Calibrating an overconfident ensemble
=====================================

Five networks that are trained on all rows without validation underestimate the noise: only two in
three of their 90 % intervals contain the truth. Two methods of calibration correct this with
out-of-fold predictions. A third gives a random forest, which predicts points only, intervals that
differ from row to row. Saves ``calibration.png``; takes half a minute.
"""

# %%
# The ensemble, as it is and calibrated
# -------------------------------------
import matplotlib
import numpy as np
from sklearn.datasets import load_diabetes, make_friedman1
from sklearn.ensemble import RandomForestRegressor
from sklearn.model_selection import KFold, train_test_split

from skuq import CalibratedUncertaintyRegressor, DeepEnsembleRegressor
from skuq.metrics import coverage_score, gaussian_nll_loss
from skuq.plotting import QuantileCalibrationDisplay

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402

X, y = load_diabetes(return_X_y=True)
X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=0.4, random_state=0)
overconfident = DeepEnsembleRegressor(validation=None, epochs=300, random_state=0)
folds = KFold(5, shuffle=True, random_state=0)
models = {"as it is": overconfident}
for method in ("scale", "conformal"):
    models[method] = CalibratedUncertaintyRegressor(overconfident, method, cv=folds)

# %%
# Results on the test rows
# ------------------------
# The mean is the same in all rows of the table: calibration does not touch it.
print(f"{'':10s}{'NLL':>8s}{'90 % interval holds':>21s}{'width':>8s}")
for name, model in models.items():
    model.fit(X_train, y_train)
    low, high = model.predict_interval(X_test, coverage=0.9)
    nll = gaussian_nll_loss(y_test, *model.predict(X_test, return_std=True))
    held = coverage_score(y_test, low, high)
    print(f"{name:10s}{nll:8.2f}{held:21.3f}{(high - low).mean():8.0f}")

# %%
# Intervals of twenty patients, and calibration at every level
# ------------------------------------------------------------
figure, (left, middle, right) = plt.subplots(1, 3, figsize=(16, 4.8), layout="constrained")
rows, place = y_test[:20].argsort(), range(20)
for shift, name, look in (
    (-0.15, "as it is", {"fmt": "s", "color": "#0072B2"}),
    (0.15, "conformal", {"fmt": "o", "color": "#D55E00"}),
):
    mean = models[name].predict(X_test[:20])[rows]
    low, high = (end[rows] for end in models[name].predict_interval(X_test[:20], coverage=0.9))
    at = [k + shift for k in place]
    left.errorbar(at, mean, (mean - low, high - mean), ms=4, label=name, **look)
left.plot(place, y_test[:20][rows], "kx", label="observed")
left.set(xlabel="patient, by progression", ylabel="disease progression (score)")
left.set_title("90 % intervals of 20 test rows")
left.set_xticks(range(0, 20, 5))
left.legend(loc="upper left")
for name in ("as it is", "scale", "conformal"):
    QuantileCalibrationDisplay.from_estimator(models[name], X_test, y_test, name=name, ax=middle)
middle.set_title("Share of rows below each predicted quantile")

# %%
# A point model with intervals that differ from row to row
# --------------------------------------------------------
# The noise of these rows grows with the sixth column. All rows have one width with "scale". With
# "conditional" networks learn from the out-of-fold errors where these are large.
X, y = make_friedman1(800, random_state=0)
y += 5 * X[:, 5] * np.random.default_rng(0).normal(size=800)
X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=0.5, random_state=0)
forest = RandomForestRegressor(200, random_state=0)
for method, colour in (("scale", "0.6"), ("conditional", "#0072B2")):
    model = CalibratedUncertaintyRegressor(forest, method, cv=folds).fit(X_train, y_train)
    low, high = model.predict_interval(X_test, coverage=0.9)
    held, nll = coverage_score(y_test, low, high), -model.log_prob(X_test, y_test).mean()
    label = f"{method}: {held:.0%} held, NLL {nll:.2f}"
    error = np.abs(y_test - model.predict(X_test))
    right.plot((high - low) / 2, error, ".", color=colour, ms=8, label=label)
end = error.max() * 1.1
right.plot([0, end], [0, end], "k-", lw=1)
right.set(xlabel="half width of the 90 % interval", ylabel="absolute error", ylim=(0, end))
right.set(xlim=(0, end), title="A random forest: rows below the line are held")
right.legend(loc="upper left")
figure.savefig("calibration.png", dpi=110)

# sphinx_gallery_thumbnail_path = "images/thumbs/calibration.png"
