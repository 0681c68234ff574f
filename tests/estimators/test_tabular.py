"""Modern networks for tables in the estimators: settings, heads, copies, frames, searches."""

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from tiers import slow_after

from skuq import (
    AutoDEUQRegressor,
    CalibratedUncertaintyRegressor,
    DeepEnsembleRegressor,
    TabularEnsembleClassifier,
    TabularEnsembleRegressor,
)
from skuq.networks import MLP, TabularNetwork, TabularSpace
from skuq.predictive import GaussianMixture, NestedGaussianMixture, QuantileMixture, StudentTMixture
from skuq.training import Training

SMALL = {"n_layers": 1, "width": 32, "embedding_dim": 2}
TINY = {"n_members": 2, "network": TabularNetwork(**SMALL), "epochs": 12, "random_state": 0}
# One kind of networks compiles faster than the two of the default loss.
ONE_KIND = {**TINY, "loss": "crps"}
COPIES = {**ONE_KIND, "network": TabularNetwork(**SMALL, n_copies=3)}


@pytest.fixture(scope="module")
def frame():
    rng = np.random.default_rng(0)
    n = 160
    X = pd.DataFrame(
        {
            "size": rng.normal(size=n),
            "town": rng.choice([f"town {k}" for k in range(20)], n),
            "kind": rng.choice(["flat", "house", None], n),
        }
    )
    X.loc[::7, "size"] = np.nan
    y = X["size"].fillna(0) + (X["kind"] == "house") + 0.1 * rng.normal(size=n)
    return X, y.to_numpy()


def assert_bounded(model, X):
    """Inputs are scaled robustly, smoothly bounded by 3."""
    inputs, far = model.fitted_.inputs, X[:2].assign(size=[1e9, -1e9])
    np.testing.assert_allclose(inputs.transform(inputs.encode(far))[:, 0], [3, -3])


@pytest.mark.parametrize(
    ("loss", "record"),
    slow_after(
        3,
        [
            ("mse", GaussianMixture),
            ("gaussian-mixture", NestedGaussianMixture),
            ("quantiles", QuantileMixture),
            ("student-t", StudentTMixture),
            ("crps", NestedGaussianMixture),  # calibrated: the normal and its tail
            ("nll", NestedGaussianMixture),
        ],
    ),
)
def test_fit_with_every_loss_gives_the_whole_prediction(frame, loss, record):
    X, y = frame
    model = TabularEnsembleRegressor(**TINY, loss=loss).fit(X, y)
    distribution = model.predict_distribution(X[:9])
    assert type(distribution) is record
    parts = model.predict_uncertainty(X[:9])
    np.testing.assert_allclose(parts.total**2, parts.aleatoric**2 + parts.epistemic**2)
    quantiles = model.predict_quantiles(X[:9], [0.1, 0.5, 0.9])
    assert (np.diff(quantiles, axis=1) > 0).all()
    np.testing.assert_allclose(distribution.cdf(quantiles[:, 1]), 0.5, atol=1e-6)
    assert np.isfinite(model.log_prob(X[:9], y[:9])).all()
    assert model.sample_y(X[:9], 4, random_state=0).shape == (9, 4)
    draws = model.posterior_fn(n_draws=8)
    assert draws.n_draws >= 2


@pytest.mark.slow
def test_fit_makes_copies_members(frame):
    X, y = frame
    model = TabularEnsembleRegressor(**COPIES, calibrate=False).fit(X, y)
    distribution = model.predict_distribution(X)
    assert distribution.loc.shape == (6, len(X))
    assert len(np.unique(distribution.loc[:, 0])) == 6
    alone = model.member_estimators()[1][1].predict_distribution(X)
    np.testing.assert_array_equal(alone.loc, distribution.loc[3:])
    calibrated = TabularEnsembleRegressor(**COPIES).fit(X, y)
    assert calibrated.fitted_.targets.calibration is not None
    np.testing.assert_allclose(calibrated.predict(X), model.predict(X), rtol=1e-9)
    classes = {name: value for name, value in COPIES.items() if name != "loss"}
    classifier = TabularEnsembleClassifier(**classes).fit(X, y > 0)
    np.testing.assert_allclose(classifier.predict_proba(X).sum(axis=1), 1)


def test_fit_learns_more_than_the_mean(frame):
    X, y = frame
    model = TabularEnsembleRegressor(**{**ONE_KIND, "epochs": 128}).fit(X[:120], y[:120])
    assert_bounded(model, X)
    error = np.mean((model.predict(X[120:]) - y[120:]) ** 2)
    assert error < 0.3 * np.var(y[120:])


def test_fit_embeds_columns_of_codes(frame):
    X, y = frame
    model = TabularEnsembleRegressor(**ONE_KIND).fit(X, y)
    assert len(model.preprocessor_.code_columns_) == 1
    assert '"CategoryEmbedding"' in model.members_[0].network
    unseen = X[:3].assign(town="elsewhere")
    assert np.isfinite(model.predict(unseen)).all()
    plain = DeepEnsembleRegressor(1, network=MLP(4), epochs=1, random_state=0).fit(X, y)
    assert not plain.preprocessor_.code_columns_


def test_fit_takes_the_recipe_of_the_network(frame):
    X, y = frame

    def first_rate(model):
        return model.fit(X, y).members_[0].history["learning_rate"][0]

    settings = {**TINY, "epochs": 2}
    tabular = TabularEnsembleRegressor(**settings, loss="crps")
    assert first_rate(tabular) == pytest.approx(0.1)
    assert first_rate(DeepEnsembleRegressor(1, network=MLP(4), epochs=2)) == pytest.approx(0.01)
    given = TabularEnsembleRegressor(**settings, loss="crps", learning_rate=0.02)
    assert first_rate(given) == pytest.approx(0.02)
    classifier = TabularEnsembleClassifier(**{**settings, "n_members": 1}).fit(X, y > 0)
    assert "Dropout" in classifier.members_[0].network
    assert "Dropout" not in tabular.members_[0].network


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"network__width": 48}, "width"),
        ({"network__n_layers": 9}, "n_layers"),
        (
            {"network__embedding": "piecewise-linear", "network__frequency_scale": 1.0},
            "`frequency_scale` has no effect with embedding='piecewise-linear'",
        ),
        ({"network__embedding": "none"}, "`embedding_dim` has no effect with embedding='none'"),
        ({"loss": "mse", "network__n_copies": 2}, "n_copies"),
        ({"network": "tabulr"}, "network"),
        ({"network": lambda shape, n: None}, "network"),
        ({"loss": "normal"}, "loss"),
        ({"loss": "auto"}, "loss"),
        ({"max_time": -1.0}, "max_time"),
        ({"training": Training(steps=3)}, "`training` must only have"),
        ({"calibrate": True, "loss": "student-t"}, "`calibrate=True` is not possible: loss='stud"),
        ({"calibrate": True, "validation": None}, "`calibrate=True` is not .*: validation=None"),
    ],
)
def test_fit_refuses(frame, settings, message):
    model = clone(TabularEnsembleRegressor(**TINY))  # not to change its network for others
    with pytest.raises(ValueError, match=message):
        model.set_params(**settings).fit(*frame)


def test_tabular_space_of_other_rows_is_refused(frame):
    space = TabularSpace().bind(np.zeros((3, 2)))
    with pytest.raises(ValueError, match="must not be bound to rows"):
        AutoDEUQRegressor(2, space=space).fit(*frame)


@pytest.mark.parametrize("loss", slow_after(1, ["quantiles", "student-t", "gaussian-mixture"]))
def test_calibrated_uncertainty_scales_every_head(frame, loss):
    X, y = frame
    inner = TabularEnsembleRegressor(**TINY, loss=loss).fit(X[:100], y[:100])
    model = CalibratedUncertaintyRegressor(inner, "scale", cv="prefit").fit(X[100:], y[100:])
    before, after = inner.predict_distribution(X[100:]), model.predict_distribution(X[100:])
    assert after.log_prob(y[100:]).sum() >= before.log_prob(y[100:]).sum() - 1e-6
    isotonic = CalibratedUncertaintyRegressor(inner, "isotonic", cv="prefit")
    if loss == "gaussian-mixture":
        lower, upper = isotonic.fit(X[100:], y[100:]).predict_interval(X[100:]).T
        assert (lower < upper).all()
        return
    with pytest.raises(TypeError, match="scale"):
        isotonic.fit(X[100:], y[100:])
