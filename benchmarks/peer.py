"""One peer of the regressors on one split, in the virtual environment that it needs.

    python benchmarks/peer.py METHOD IN.npz OUT.npz

IN holds X, y, X_test; OUT gets what the method predicts and its seconds. This file imports nothing
of skuq: peers need other versions of common libraries. Settings are documented defaults; CatBoost
and NGBoost stop early on a tenth of the rows.
"""

import importlib
import sys
import time

import numpy as np

#: Packages that each peer needs.
REQUIREMENTS = {
    "catboost": ["catboost", "scikit-learn"],
    "ngboost": ["ngboost"],
    "treeffuser": ["treeffuser", "scikit-learn<1.6"],
}
LEVELS = np.linspace(0.05, 0.95, 19)


def catboost(X, y):
    """CatBoost's likelihood with uncertainty."""
    from catboost import CatBoostRegressor
    from sklearn.model_selection import train_test_split

    X_fit, X_stop, y_fit, y_stop = train_test_split(X, y, test_size=0.1, random_state=0)
    model = CatBoostRegressor(
        loss_function="RMSEWithUncertainty", verbose=0, random_seed=0, allow_writing_files=False
    )
    model.fit(X_fit, y_fit, eval_set=(X_stop, y_stop))

    def predict(X):
        mean, variance = model.predict(X).T
        return {"mean": mean, "std": np.sqrt(variance)}

    return predict


def ngboost(X, y):
    """NGBoost with normals."""
    from ngboost import NGBRegressor

    model = NGBRegressor(n_estimators=2000, verbose=False, random_state=0)
    order = np.random.RandomState(0).permutation(len(X))
    stop, fit = order[: len(X) // 10], order[len(X) // 10 :]
    model.fit(X[fit], y[fit], X_val=X[stop], Y_val=y[stop], early_stopping_rounds=50)

    def predict(X):
        predicted = model.pred_dist(X)
        return {"mean": predicted.loc, "std": predicted.scale}

    return predict


def treeffuser(X, y):
    """Treeffuser, 100 samples a row."""
    from treeffuser import Treeffuser

    model = Treeffuser(seed=0)
    model.fit(X, y)

    def predict(X):
        samples = np.asarray(model.sample(X, n_samples=100, seed=0)).reshape(100, len(X))
        return {"mean": samples.mean(0), "std": samples.std(0), "samples": samples}

    return predict


if __name__ == "__main__":
    method, source, target = sys.argv[1:]
    data, fit = np.load(source), globals()[method]
    for package in REQUIREMENTS[method]:  # before the clock starts
        importlib.import_module(package.split("<")[0].replace("scikit-learn", "sklearn"))
    started = time.perf_counter()
    predict = fit(data["X"], data["y"])
    fitted = time.perf_counter()
    predicted = predict(data["X_test"])
    ended = time.perf_counter()
    seconds = {"fit_seconds": fitted - started, "predict_seconds": ended - fitted}
    np.savez(target, **{k: np.asarray(v, float) for k, v in {**predicted, **seconds}.items()})
