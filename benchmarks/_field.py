"""One rival of the leaderboard on one split, in the virtual environment that it needs.

    python benchmarks/_field.py METHOD IN.npz OUT.npz

IN holds X, y, X_test; OUT gets what the method predicts and its seconds. This file imports nothing
of skuq: rivals need other versions of common libraries.
"""

import sys
import time

import numpy as np

#: Packages that each rival needs.
REQUIREMENTS = {
    "catboost": ["catboost", "scikit-learn"],
    "catboost ensemble": ["catboost", "scikit-learn"],
    "ngboost": ["ngboost"],
    "lightgbmlss": ["lightgbmlss"],
    "treeffuser": ["treeffuser", "scikit-learn<1.6"],
    "realmlp": ["pytabkit"],
}
LEVELS = np.linspace(0.05, 0.95, 19)


def catboost(X, y, X_test):
    """CatBoost's likelihood with uncertainty, early stopped on a tenth; else its defaults."""
    from catboost import CatBoostRegressor
    from sklearn.model_selection import train_test_split

    X_fit, X_stop, y_fit, y_stop = train_test_split(X, y, test_size=0.1, random_state=0)
    model = CatBoostRegressor(
        loss_function="RMSEWithUncertainty", verbose=0, random_seed=0, allow_writing_files=False
    )
    started = time.perf_counter()
    model.fit(X_fit, y_fit, eval_set=(X_stop, y_stop))
    fitted = time.perf_counter()
    mean, variance = model.predict(X_test).T
    return {"mean": mean, "std": np.sqrt(variance)}, started, fitted


def catboost_ensemble(X, y, X_test):
    """Ten virtual members of one CatBoost model (Malinin et al. 2021)."""
    from catboost import CatBoostRegressor

    model = CatBoostRegressor(
        loss_function="RMSEWithUncertainty",
        posterior_sampling=True,
        verbose=0,
        random_seed=0,
        allow_writing_files=False,
    )
    started = time.perf_counter()
    model.fit(X, y)
    fitted = time.perf_counter()
    mean, knowledge, noise = model.virtual_ensembles_predict(
        X_test, prediction_type="TotalUncertainty", virtual_ensembles_count=10
    ).T
    std = np.sqrt(knowledge + noise)
    return {"mean": mean, "std": std, "epistemic": np.sqrt(knowledge)}, started, fitted


def ngboost(X, y, X_test):
    """NGBoost with normals, early stopped on a tenth."""
    from ngboost import NGBRegressor

    model = NGBRegressor(n_estimators=2000, verbose=False, random_state=0)
    started = time.perf_counter()
    order = np.random.RandomState(0).permutation(len(X))
    stop, fit = order[: len(X) // 10], order[len(X) // 10 :]
    model.fit(X[fit], y[fit], X_val=X[stop], Y_val=y[stop], early_stopping_rounds=50)
    fitted = time.perf_counter()
    predicted = model.pred_dist(X_test)
    return {"mean": predicted.loc, "std": predicted.scale}, started, fitted


def treeffuser(X, y, X_test):
    """Treeffuser at its defaults, 100 samples a row."""
    from treeffuser import Treeffuser

    model = Treeffuser(seed=0)
    started = time.perf_counter()
    model.fit(X, y)
    fitted = time.perf_counter()
    samples = np.asarray(model.sample(X_test, n_samples=100, seed=0)).reshape(100, len(X_test))
    return {"mean": samples.mean(0), "std": samples.std(0), "samples": samples}, started, fitted


def realmlp(X, y, X_test):
    """RealMLP trained on 19 quantiles, whose moments are those of the steps between them."""
    from pytabkit import RealMLP_TD_Regressor

    loss = "multi_pinball(" + ",".join(f"{level:.2f}" for level in LEVELS) + ")"
    model = RealMLP_TD_Regressor(
        random_state=0, device="cpu", train_metric_name=loss, val_metric_name=loss
    )
    started = time.perf_counter()
    model.fit(X, y)
    fitted = time.perf_counter()
    quantiles = np.sort(np.asarray(model.predict(X_test)), axis=1)
    from scipy.stats import norm

    z = norm.ppf(LEVELS)
    std = (quantiles @ z) / (z @ z)
    predicted = {"mean": quantiles.mean(1), "std": np.maximum(std, 1e-6)}
    return {**predicted, "quantiles": quantiles}, started, fitted


def lightgbmlss(X, y, X_test):
    """LightGBMLSS with normals and its documented example's settings."""
    import lightgbm
    from lightgbmlss.distributions.Gaussian import Gaussian
    from lightgbmlss.model import LightGBMLSS

    model = LightGBMLSS(Gaussian(stabilization="None", response_fn="exp", loss_fn="nll"))
    started = time.perf_counter()
    model.train(
        {"verbose": -1, "seed": 0, "learning_rate": 0.05},
        lightgbm.Dataset(X, label=y),
        num_boost_round=200,
    )
    fitted = time.perf_counter()
    predicted = model.predict(X_test, pred_type="parameters")
    return {"mean": predicted["loc"], "std": predicted["scale"]}, started, fitted


METHODS = {
    "catboost": catboost,
    "catboost ensemble": catboost_ensemble,
    "ngboost": ngboost,
    "treeffuser": treeffuser,
    "realmlp": realmlp,
    "lightgbmlss": lightgbmlss,
}

if __name__ == "__main__":
    method, source, target = sys.argv[1:]
    data = np.load(source)
    predicted, started, fitted = METHODS[method](data["X"], data["y"], data["X_test"])
    ended = time.perf_counter()
    seconds = {"fit_seconds": fitted - started, "predict_seconds": ended - fitted}
    np.savez(target, **{k: np.asarray(v, float) for k, v in {**predicted, **seconds}.items()})
