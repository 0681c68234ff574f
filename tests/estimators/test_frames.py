"""Unprocessed tables for every estimator of tables; and targets on other scales."""

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse
from sklearn.base import BaseEstimator, TransformerMixin, clone
from sklearn.compose import TransformedTargetRegressor, make_column_transformer
from sklearn.impute import SimpleImputer
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, StandardScaler
from sklearn.utils import get_tags
from small_models import TinySpace
from tiers import cases
from training_data import NumberTargets

import skuq
from skuq.estimators.tabular._targets import ScalingByTails
from skuq.exceptions import TableWarning
from skuq.networks import MLP, ArtificialInputs, NOMUNetwork, NOMUReadout
from skuq.predictive import TransformedMixture
from skuq.tables import TablePreprocessor

RUN = {"epochs": 4, "batch_size": 16, "random_state": 0}
NETWORK, LOGARITHM = {"network": MLP((8,)), **RUN}, FunctionTransformer(np.log, np.exp)
SEARCH = {"n_trials": 2, "n_members": 2, "epochs": 4, "random_state": 0}
NOMU = {"network": NOMUNetwork(8), "artificial": ArtificialInputs(n=5), **RUN}
FIXED, SPARSE = NOMUReadout(l_min=0.01, l_max=2, c=1), sparse.csr_array(np.ones((70, 2)))
DENSE = "dense data is required.*sparse_output=False.*sparse_threshold=0"
LONGER = {"epochs": 60, "random_state": 0}
UNSEEN = skuq.DeepEnsembleRegressor(5, network=MLP(16), learning_rate=0.01, **LONGER)


@pytest.fixture
def ensemble():
    return skuq.DeepEnsembleRegressor(2, **NETWORK)


@pytest.fixture(scope="module")
def rows():
    """70 rows of a frame of every kind of column, with numbers and classes to learn."""
    rng, n = np.random.default_rng(0), 70
    city = rng.choice(["Rome", "Oslo", "Bonn", None], n)
    X = pd.DataFrame(
        {
            "age": np.where(rng.random(n) < 0.2, np.nan, rng.normal(40, 9, n)),
            "city": city.astype(object),
            "new": rng.random(n) < 0.5,
            "rooms": pd.array(rng.integers(1, 6, n), dtype="Int64"),
            "sex": pd.Categorical(rng.choice(["f", "m"], n)),
        }
    )
    y = np.where(city == "Rome", 2.0, 0.0) + X["age"].fillna(40).to_numpy() / 40
    return X, y + 0.1 * rng.normal(size=n)


def _predictions(model, X):
    return np.stack(model.predict(X, return_std=True))


def test_sklearn_tags_say_what_is_taken():
    model = skuq.NOMURegressor()
    assert get_tags(model).input_tags.allow_nan and get_tags(model).input_tags.string
    assert get_tags(model).input_tags.categorical
    model.set_params(preprocess=None)
    tags = get_tags(model).input_tags
    assert not (tags.allow_nan or tags.string or tags.categorical)
    model.set_params(preprocess=SimpleImputer())
    assert get_tags(model).input_tags.allow_nan and not get_tags(model).input_tags.string
    model.set_params(preprocess=Folding())
    assert not get_tags(model).input_tags.sparse


@cases(
    ("preprocess", "make", "kind", "message"),
    (None, lambda X: X, ValueError, "could not convert|NaN|float"),
    (None, lambda X: X[["age"]], ValueError, "NaN"),
    *((given, lambda X: SPARSE, TypeError, DENSE) for given in ("auto", None)),
)
def test_fit_refuses_tables(ensemble, rows, preprocess, make, kind, message):
    with pytest.raises(kind, match=message):
        ensemble.set_params(preprocess=preprocess).fit(make(rows[0]), rows[1])


def test_fit_preprocesses_with_any_transformer(ensemble, rows):
    X, y = rows
    encoder = OneHotEncoder(handle_unknown="ignore")
    columns = make_column_transformer((SimpleImputer(), ["age"]), (encoder, ["city"]))
    ensemble.set_params(preprocess=columns).fit(X, y)
    assert not hasattr(columns, "transformers_")  # a clone was fitted
    encoded = ensemble.preprocessor_.transform(X)
    by_hand = clone(ensemble).set_params(preprocess=None).fit(encoded, y)
    assert_array_equal(_predictions(ensemble, X), _predictions(by_hand, encoded))
    assert ensemble.feature_names_in_.tolist() == list(X)
    ensemble.set_params(preprocess__simpleimputer__strategy="median").fit(X, y)
    assert ensemble.preprocessor_.named_transformers_["simpleimputer"].strategy == "median"
    labels = [[str(city)] for city in X["city"]]  # lists, and then a sparse table
    ensemble.set_params(preprocess=OneHotEncoder()).fit(labels, y)
    assert ensemble.predict(labels[:3]).shape == (3,)
    few = sparse.random_array((70, 4), density=0.5, rng=np.random.default_rng(0)).tocsr()
    ensemble.set_params(preprocess=StandardScaler(with_mean=False)).fit(few, y)
    assert np.isfinite(_predictions(ensemble, few)).all()


class Folding(TransformerMixin, BaseEstimator):
    """Gives the rows it learns from other numbers, as encoders do that learn from targets."""

    def fit(self, X, y):
        self.mean_ = np.mean(y)
        return self

    def transform(self, X):
        return np.asarray(X, dtype=float) + self.mean_

    def fit_transform(self, X, y):
        return self.fit(X, y).transform(X) + 100


def test_fit_lets_encoders_that_learn_from_targets_fold_the_rows(ensemble, rows):
    X, y = rows[0][["new", "rooms"]], rows[1]
    ensemble.set_params(preprocess=Folding(), validation=None).fit(X, y)
    expected = X.astype(float).mean() + y.mean()
    assert_allclose(ensemble.fitted_.inputs.scaling.mean_, expected + 100)
    assert_allclose(ensemble.preprocessor_.transform(X).mean(axis=0), expected)


@cases(
    ("wrong", "why"),
    (FunctionTransformer(lambda X: X), "NaN|could not convert"),
    (FunctionTransformer(lambda X: X[["age"]].fillna(0).iloc[:-1]), "inconsistent numbers"),
    (FunctionTransformer(lambda X: X["age"].fillna(0)), "2-dimensional|2D array"),
)
def test_fit_needs_numbers_of_every_row_from_a_transformer(ensemble, rows, wrong, why):
    with pytest.raises(ValueError, match=f"(?s)`preprocess` must convert X to a table.*({why})"):
        ensemble.set_params(preprocess=wrong).fit(*rows)


def test_fit_does_not_preprocess_images():
    class Flat(TinySpace):
        takes_images = False  # but flat rows of them

    rng = np.random.default_rng(0)
    images, y = rng.random((30, 3, 3, 1)), rng.integers(2, size=30)
    model = skuq.NESClassifier(**SEARCH, space=Flat()).fit(images, y)
    assert model.preprocessor_ is None
    flat = clone(model).set_params(image_shape=(3, 3)).fit(images.reshape(30, 9), y)
    assert flat.preprocessor_ is None
    assert_array_equal(flat.predict_proba(images.reshape(30, 9)), model.predict_proba(images))
    assert_array_equal(model.predict_proba(images.tolist()), model.predict_proba(images))
    listed = clone(model).fit(images.tolist(), y)
    assert_array_equal(listed.predict_proba(images), model.predict_proba(images))
    with pytest.raises(ValueError, match=r"four axes.* Got \(3, 3, 1\). One image is X\[None\]"):
        model.predict(images[0])
    with pytest.raises(ValueError, match="NaN"):
        model.fit(np.full((30, 3, 3, 1), np.nan), y)
    with pytest.raises(ValueError, match="`preprocess` must be .* for images"):
        model.set_params(preprocess=StandardScaler()).fit(images, y)


def test_nomu_regressor_draws_inputs_among_the_columns_of_numbers(rows):
    X, y = rows
    model = skuq.NOMURegressor(**NOMU, readout=FIXED).fit(X, y)
    names = model.preprocessor_.get_feature_names_out().tolist()
    low, high = model.box_[names.index("city_Rome")]
    assert_allclose([low, high], [-0.05, 1.05])
    posterior = model.posterior_fn(4, random_state=0)
    draws = posterior.function(np, posterior.arguments, X.to_numpy(dtype=object))
    assert draws.shape == (4, 70)
    assert_allclose(draws.mean(axis=0), model.predict(X), atol=1e-9)
    by_table = clone(model).set_params(artificial__kind=X[:20]).fit(X, y)
    by_array = clone(model).set_params(artificial__kind=X[:20].to_numpy(dtype=object)).fit(X, y)
    assert_array_equal(_predictions(by_table, X), _predictions(by_array, X))


def make_levels():
    """300 rows with one column of 8 categories with effects, and new rows: known, and unseen."""
    rng = np.random.default_rng(1)
    level = rng.integers(8, size=300)
    X = pd.DataFrame({"x": rng.uniform(-1, 1, 300), "c": [f"level {k}" for k in level]})
    y = 1.5 * rng.normal(size=8)[level] + np.sin(3 * X["x"]) + 0.3 * rng.normal(size=300)
    return X[:250], y.to_numpy()[:250], X[250:], X[250:].assign(c=list("uv") * 25)


@cases(
    ("model", "preprocess"),
    (UNSEEN, TablePreprocessor(50)),
    (UNSEEN, TablePreprocessor(2, max_categories=5)),  # the rest in one column
    (skuq.TabularEnsembleClassifier(5, **LONGER), TablePreprocessor(2)),
    (skuq.NOMURegressor(readout=FIXED, random_state=0), TablePreprocessor(50)),
    quick=2,
)
def test_predict_is_less_sure_of_unseen_categories(model, preprocess):
    X, y, known, unseen = make_levels()
    y = y > 0 if hasattr(model, "predict_proba") else y
    model = clone(model).set_params(preprocess=preprocess).fit(X, y)
    with pytest.warns(TableWarning, match=r"'c' \(100 % of the rows; such as \['u', 'v'\]") as told:
        of_unseen = model.predict_uncertainty(unseen).epistemic
    assert len(told) == 1
    of_known = model.predict_uncertainty(known).epistemic
    # Seen: 3 to 20 times as much; the effects of the categories have a standard deviation of 1.
    assert of_unseen.mean() > 2 * of_known.mean() and np.median(of_unseen) > 2 * np.median(of_known)
    # A row does not depend on the others, whether their categories are known or not.
    both = pd.concat([known, unseen])
    with pytest.warns(TableWarning, match="50 % of the rows"):
        found = model.predict_uncertainty(both).epistemic
    assert_allclose(found, np.concatenate([of_known, of_unseen]), rtol=1e-9, atol=1e-12)


@pytest.fixture(scope="module")
def skewed():
    """200 rows whose logarithm has normal noise, of equal size everywhere."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (200, 2))
    return X, np.exp(1 + 1.5 * X[:, 0] + 0.5 * rng.normal(size=200))


@cases(
    ("model", "kind"),
    (skuq.DeepEnsembleRegressor(2, **NETWORK), "yeo-johnson"),
    (skuq.DeepEnsembleRegressor(2, **NETWORK), "quantile"),
    (skuq.TabularEnsembleRegressor(2, **RUN), "yeo-johnson"),
    (skuq.AutoDEUQRegressor(**SEARCH, space=TinySpace()), "quantile"),
    (skuq.AutoDEUQRegressor(**SEARCH, space=TinySpace()), LOGARITHM),
    (skuq.TabularEnsembleRegressor(2, **RUN), LOGARITHM),
    quick=2,
)
def test_target_transform_leaves_predictions_in_units_of_y(model, kind, skewed):
    X, y = skewed
    model = clone(model).set_params(target_transform=kind).fit(X, y)
    distribution = model.predict_distribution(X[:3])
    assert isinstance(distribution, TransformedMixture)
    transform, levels = model.fitted_.targets.scaling.output(0), [0.01, 0.3, 0.5, 0.99]
    inner = distribution.inner.quantile(levels)
    assert_allclose(model.predict_quantiles(X[:3], levels), transform.inverse(inner))
    mean, std = model.predict(X[:3], return_std=True)
    assert_array_equal(mean, distribution.mean)
    assert_array_equal(std, distribution.std)
    eps = 1e-5 * y[:3]
    density = (distribution.cdf(y[:3] + eps) - distribution.cdf(y[:3] - eps)) / (2 * eps)
    assert_allclose(model.log_prob(X[:3], y[:3]), np.log(density), atol=1e-4)


def test_target_transform_of_scikit_learn_is_a_fit_of_transformed_targets(skewed):
    (X, y), model = skewed, skuq.DeepEnsembleRegressor(1, **NETWORK)
    by_hand = clone(model).fit(X, np.log(y))
    outer = TransformedTargetRegressor(model, transformer=LOGARITHM).fit(X, y)
    model = clone(model).set_params(target_transform=LOGARITHM).fit(X, y)
    levels = [0.01, 0.5, 0.9]
    found = model.predict_quantiles(X, levels)
    assert_allclose(found, np.exp(by_hand.predict_quantiles(X, levels)), rtol=1e-5)
    assert_allclose(found[:, 1], outer.predict(X), rtol=1e-5)  # of one normal, no mean of y
    assert_allclose(model.log_prob(X, y), by_hand.log_prob(X, np.log(y)) - np.log(y), atol=1e-4)


@cases(
    ("y", "kind"),
    (lambda e: e, "standard"),
    (lambda e: np.exp(0.5 * e), "standard"),
    (lambda e: np.exp(3 * e), "yeo-johnson"),
    (lambda e: np.where(np.arange(200) % 20, e, 1000.0), "yeo-johnson"),
    (lambda e: np.where(np.arange(200) % 20, e, 1e9 * e), "quantile"),
    (lambda e: np.maximum(e - 1, 0), "standard"),  # its quartiles are equal
    (lambda e: np.column_stack([e, np.exp(3 * e)]), "yeo-johnson"),
)
@pytest.mark.filterwarnings("ignore:y has values so far")
def test_target_transform_auto_follows_the_tails(y, kind):
    y = y(np.random.default_rng(0).normal(size=200)).reshape(200, -1)
    auto, given = NumberTargets(scaling=ScalingByTails()).fit(y), NumberTargets(kind).fit(y)
    assert_array_equal(auto.transform(y), given.transform(y))


def test_log_prob_changes_by_the_factor_of_units(skewed):
    X, y = skewed
    model = skuq.DeepEnsembleRegressor(2, **NETWORK, target_transform="quantile")
    in_metres = model.fit(X, y).log_prob(X, y)
    in_millimetres = clone(model).fit(X, 1000 * y).log_prob(X, 1000 * y)
    assert_allclose(in_millimetres, in_metres - np.log(1000), atol=1e-4)
    posterior = model.posterior_fn()  # Draws are those of the members' means, on the scale of y.
    assert posterior.key is None
    assert_allclose(posterior(X).mean(axis=0), model.predict(X))
    by_squares = clone(model).set_params(loss="mse").fit(X, y)
    assert_allclose(by_squares.predict_distribution(X).inner.scale, by_squares.noise_std_)
