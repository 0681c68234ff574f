"""
Five estimators on one data set, in one table and one figure
=============================================================

Scorers know `predict_distribution` and `predict(X, return_std=True)`, so neural ensembles and
scikit-learn's Gaussian process stand in one table. On the diabetes data, or with ``--data-dir``
on concrete. Saves ``compare.png``; takes about three minutes.
"""

# %%
# The data and the five
# ---------------------
import argparse
from pathlib import Path

import matplotlib
import numpy as np
import pandas as pd
from sklearn.base import clone
from sklearn.datasets import load_diabetes
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.model_selection import KFold, cross_validate, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from skuq import (
    AutoDEUQRegressor,
    CalibratedUncertaintyRegressor,
    MCDropoutRegressor,
    TabularEnsembleRegressor,
)
from skuq.metrics import make_scorers
from skuq.plotting import QuantileCalibrationDisplay, RetentionDisplay

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402

parser = argparse.ArgumentParser()
parser.add_argument("--data-dir", type=Path, help="folder of the benchmark data")
data_dir = parser.parse_args().data_dir
if data_dir:
    data = np.load(data_dir / "uci_regression" / "concrete.npz")
    X, y, title = data["X"], data["y"], "concrete"
else:
    X, y = load_diabetes(return_X_y=True)
    title = "diabetes"

kernel = ConstantKernel() * RBF(np.ones(X.shape[1])) + WhiteKernel()
process = GaussianProcessRegressor(kernel, normalize_y=True, random_state=0)
dropout = MCDropoutRegressor(random_state=0)
estimators = {
    "AutoDEUQ, half a minute": AutoDEUQRegressor(max_time=30, random_state=0),
    "tabular ensemble": TabularEnsembleRegressor(random_state=0),
    "MC dropout": dropout,
    "MC dropout, calibrated": CalibratedUncertaintyRegressor(dropout, cv=3),
    "Gaussian process": make_pipeline(StandardScaler(), process),
}

# %%
# One table
# ---------
# Larger is better in every column but the seconds and the coverage, which is best at 0.9.
scorers = make_scorers("neg_nll", "neg_crps", "coverage_90", "neg_calibration_error", "r2")
folds = KFold(3, shuffle=True, random_state=0)
rows = {}
for name, estimator in estimators.items():
    found = cross_validate(estimator, X, y, cv=folds, scoring=scorers)
    rows[name] = {score: found[f"test_{score}"].mean() for score in scorers}
    rows[name]["seconds"] = found["fit_time"].mean()
print(pd.DataFrame(rows).T.round(3).to_string())

# %%
# One figure
# ----------
# Left: does a share q of the rows lie below the predicted q-quantile? Right: if the rows
# that an estimator is least sure of are handed to somebody else, does its error fall?
X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=0.3, random_state=0)
figure, axes = plt.subplots(1, 2, figsize=(12, 7), layout="constrained")
left, right = axes
for name, estimator in estimators.items():
    model = clone(estimator).fit(X_train, y_train)
    QuantileCalibrationDisplay.from_estimator(model, X_test, y_test, name=name, ax=left)
    RetentionDisplay.from_estimator(model, X_test, y_test, name=name, ax=right, bounds=False)
left.set_title(f"Calibration on {title}")
right.set_title("Error left if the less certain rows are handed over")
for axis in axes:  # the curves leave no corner free: legends go below
    drawn = axis.get_legend()
    names = [text.get_text() for text in drawn.get_texts()]
    below = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.1), "frameon": False}
    axis.legend(drawn.legend_handles, names, **below)
figure.savefig("compare.png", dpi=110)
# sphinx_gallery_thumbnail_path = "images/thumbs/compare.png"
