"""
Conformal prediction with MAPIE
===============================

MAPIE takes the estimators of skuq as they are: split and cross conformal intervals, jackknife+,
conformalised quantiles, sets of classes and control of a risk. skuq does not write these again;
``CalibratedUncertaintyRegressor`` is for whole distributions. Needs ``pip install mapie``. Saves
``mapie.png``.
"""

# %%
# Rows to train on, to calibrate on and to judge on
# -------------------------------------------------
import matplotlib
import numpy as np
from mapie.classification import SplitConformalClassifier
from mapie.conformity_scores import StdConformityScore
from mapie.regression import (
    ConformalizedQuantileRegressor,
    CrossConformalRegressor,
    JackknifeAfterBootstrapRegressor,
    SplitConformalRegressor,
)
from mapie.risk_control import BinaryClassificationController
from sklearn.base import BaseEstimator, RegressorMixin

from skuq import DeepEnsembleClassifier, DeepEnsembleRegressor
from skuq.metrics import coverage_score, mean_width
from skuq.networks import MLP

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402

rng = np.random.default_rng(0)
X = rng.uniform(-1, 1, (900, 3))
y = 2 * X[:, 0] + np.sin(3 * X[:, 1]) + (0.05 + 0.6 * abs(X[:, 2])) * rng.normal(size=900)
train, held_out, test = slice(300), slice(300, 600), slice(600, None)
settings = {"network": MLP((32,)), "epochs": 200, "learning_rate": 0.02, "random_state": 0}
network = DeepEnsembleRegressor(2, **settings)
fitted = DeepEnsembleRegressor(2, **settings).fit(X[train], y[train])


class Quantile(RegressorMixin, BaseEstimator):
    """One quantile of a fitted regressor, for MAPIE's conformalised quantiles."""

    def __init__(self, regressor, level):
        self.regressor = regressor
        self.level = level

    def fit(self, X, y):
        return self

    def predict(self, X):
        return self.regressor.predict_quantiles(X, [self.level])[:, 0]

    def __sklearn_is_fitted__(self):
        return True


# %%
# Intervals
# ---------
# Those from standard deviations or quantiles are narrow where the noise is small.
both = slice(0, 600)
conformal = {
    "split": SplitConformalRegressor(fitted, confidence_level=0.9).conformalize(
        X[held_out], y[held_out]
    ),
    "split, in standard deviations": SplitConformalRegressor(
        fitted, confidence_level=0.9, conformity_score=StdConformityScore()
    ).conformalize(X[held_out], y[held_out]),
    "conformalised quantiles": ConformalizedQuantileRegressor(
        [Quantile(fitted, level) for level in (0.05, 0.95, 0.5)], confidence_level=0.9, prefit=True
    ).conformalize(X[held_out], y[held_out]),
    "cross (CV+)": CrossConformalRegressor(network, confidence_level=0.9, cv=3).fit_conformalize(
        X[both], y[both]
    ),
    "jackknife+ after bootstrap": JackknifeAfterBootstrapRegressor(
        network, confidence_level=0.9, resampling=4
    ).fit_conformalize(X[both], y[both]),
}
# Colours of Okabe and Ito, and another marker for each curve.
STYLES = {
    "color": ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9"),
    "marker": ("o", "s", "D", "^", "v"),
    "linestyle": ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1))),
}
figure, ax = plt.subplots(figsize=(7.5, 4.5), layout="constrained")
ax.set_prop_cycle(**STYLES)
bins = np.array_split(np.argsort(abs(X[test, 2])), 8)  # rows by the size of their noise
centers = [abs(X[test, 2])[rows].mean() for rows in bins]
found = {}
for name, model in conformal.items():
    _, interval = model.predict_interval(X[test])
    low, high = interval[:, :, 0].T
    found[name] = coverage_score(y[test], low, high), mean_width(low, high)
    print(f"{name:30s} holds {found[name][0]:.3f}, width {found[name][1]:.2f}")
    widths = [(high - low)[rows].mean() for rows in bins]
    ax.plot(centers, widths, label=f"{name}: {found[name][0]:.0%} inside")
exact = 2 * 1.645 * (0.05 + 0.6 * np.array(centers))
look = {"color": "black", "lw": 3, "alpha": 0.3, "marker": "", "linestyle": "-"}
ax.plot(centers, exact, **look, label="the noise's own 90 % interval")
ax.set(xlabel="|third feature|, on which the noise depends", ylabel="width of 90 % intervals")
ax.set(ylim=(0, None), title="Conformal intervals around a deep ensemble")
ax.legend(fontsize="small", loc="upper left")
figure.savefig("mapie.png", dpi=100)

# %%
# Sets of classes, and a threshold that holds a precision
# -------------------------------------------------------
label = (y > 0).astype(int)
classifier = DeepEnsembleClassifier(2, **settings).fit(X[train], label[train])
sets = SplitConformalClassifier(classifier, confidence_level=0.9).conformalize(
    X[held_out], label[held_out]
)
_, members = sets.predict_set(X[test])
held = members[np.arange(300), label[test], 0].mean()
print(f"sets hold the class of {held:.3f} of the rows")
controller = BinaryClassificationController(
    classifier.predict_proba, "precision", target_level=0.8
).calibrate(X[held_out], label[held_out])
predicted = controller.predict(X[test])
precision = label[test][predicted == 1].mean()
print(f"threshold {controller.best_predict_param:.2f}: precision {precision:.3f}")

# sphinx_gallery_thumbnail_path = "images/thumbs/mapie.png"
