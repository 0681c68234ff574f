"""Uncertainty far from the data.

    python benchmarks/shift.py --data-dir DIR [--rivals FOLDER]

Rise of the epistemic standard deviation, and NLL, on the middle third of a feature after training
on the outer thirds, and on corrupted tables. CatBoost and NGBoost run with ``--rivals``, a folder
for their virtual environments.

Results are added to ``benchmarks/results/shift.json``; stored runs are not repeated.
"""

import argparse
import time
import warnings
from pathlib import Path

import numpy as np
from _data import uci_rows
from _stored import STORED, add, matches, read, rounded
from leaderboard import run_rival
from problems import corrupt_table
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from skuq import DeepEnsembleRegressor, MCDropoutRegressor, NOMURegressor, TabularEnsembleRegressor
from skuq.exceptions import SmallValidationWarning
from skuq.metrics import gaussian_nll_loss
from skuq.networks import NOMUNetwork

RESULTS = STORED / "shift.json"


def models(seed):
    kernel = ConstantKernel() * RBF(1.0) + WhiteKernel(0.1)
    process = GaussianProcessRegressor(kernel, normalize_y=True, random_state=seed)
    return {
        "plain ensemble": DeepEnsembleRegressor(random_state=seed),
        "tabular ensemble": TabularEnsembleRegressor(random_state=seed),
        "MC dropout": MCDropoutRegressor(random_state=seed),
        "NOMU": NOMURegressor(random_state=seed),
        "NOMU, folds with gaps": NOMURegressor(
            NOMUNetwork(connect_layers=0), validation="gaps", random_state=seed
        ),
        "Gaussian process": make_pipeline(StandardScaler(), process),
    }


RIVALS = {"CatBoost, ten virtual members": "catboost ensemble", "NGBoost": "ngboost"}


def predict_parts(method, X, y, X_test, feature, rivals_dir):
    """Predict mean, std and epistemic std, if there is one, of all rows of X_test."""
    if method in RIVALS:
        predicted = run_rival(rivals_dir, RIVALS[method], X, y, X_test)
        return predicted["mean"], predicted["std"], predicted.get("epistemic")
    model = models(feature)[method].fit(X, y)
    mean, std = model.predict(X_test, return_std=True)
    if hasattr(model, "predict_uncertainty"):
        return mean, std, model.predict_uncertainty(X_test).epistemic
    # The variance of a Gaussian process without that of its noise.
    noise = np.sqrt(np.exp(model[-1].kernel_.theta[-1])) * model[-1]._y_train_std
    return mean, std, np.sqrt(np.maximum(std**2 - noise**2, 0))


def run(arguments, name, feature):
    """Train on nine tenths of the outer thirds of a feature, and test on all else."""
    name, method = name.split(", ", 1)
    X, y = uci_rows(arguments.data_dir, name)
    order, third = np.argsort(X[:, feature], kind="stable"), len(y) // 3
    gap, outer = order[third:-third], np.r_[order[:third], order[-third:]]
    inside, train = np.split(np.random.default_rng(feature).permutation(outer), [len(outer) // 10])
    corrupted = corrupt_table(X[inside], "all", 5, reference=X[train], random_state=0)
    X_test = np.concatenate([X[inside], X[gap], corrupted])
    ends = np.cumsum([len(inside), len(gap)])
    started = time.perf_counter()
    predicted = predict_parts(method, X[train], y[train], X_test, feature, arguments.rivals)
    found = {"seconds": time.perf_counter() - started}
    mean, std, epistemic = (None if a is None else np.split(a, ends) for a in predicted)
    for k, (part, rows) in enumerate([("inside", inside), ("gap", gap), ("corrupted", inside)]):
        found[part] = {
            "nll": gaussian_nll_loss(y[rows], mean[k], std[k]),
            "rmse": float(np.sqrt(np.mean((mean[k] - y[rows]) ** 2))),
        }
        if epistemic is not None:
            found[part]["epistemic"] = float(np.median(epistemic[k]))
            scores = np.concatenate([epistemic[0], epistemic[k]])
            is_out = np.arange(len(scores)) >= len(epistemic[0])
            found[part]["auc"] = float(roc_auc_score(is_out, scores))
    return found


JOBS = [
    (f"{name}, {method}", feature)
    for feature in range(8)
    for name in ("energy", "boston", "concrete")
    for method in (*models(0), *RIVALS)
]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--kinds", nargs="+", default=None, help="methods to run")
    parser.add_argument("--features", type=int, default=8, help="gaps of each set, at most")
    parser.add_argument("--rivals", type=Path, help="folder of the rivals' environments")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", SmallValidationWarning)
    for name, split in JOBS:
        key = {"name": name, "split": split}
        if any(matches(record, key) for record in read(RESULTS)):
            continue
        kind = name.split(", ", 1)[-1]
        if arguments.kinds and kind not in arguments.kinds:
            continue
        if split >= arguments.features or (kind in RIVALS and arguments.rivals is None):
            continue
        add(RESULTS, {**key, "found": rounded(run(arguments, name, split))})
        print(name, split, flush=True)


if __name__ == "__main__":
    main()
