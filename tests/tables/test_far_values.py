"""Absurd values are found, named and limited, and nothing else changes."""

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.preprocessing import FunctionTransformer
from training_data import NumberTargets, Scaling

from skuq import DeepEnsembleRegressor
from skuq.backend import keras
from skuq.networks import MLP
from skuq.tables import _columns, _inputs


def found(*columns):
    """Rows and columns of the far values."""
    far = _columns.find_far_values(np.column_stack(columns))
    return [] if far is None else list(zip(far.rows.tolist(), far.columns.tolist()))


@pytest.fixture
def rng(global_random_seed):
    return np.random.default_rng(global_random_seed)


def replace(x, **values):
    x = x.copy()
    for row, value in values.items():
        x[int(row[1:])] = value
    return x


def test_slips_and_sentinels_are_far(rng):
    x = rng.normal(size=1000)
    assert found(x, replace(x, _17=1e30)) == [(17, 1)]
    assert found(replace(x, _17=-1e300, _900=1e300)) == [(17, 0), (900, 0)]
    assert found(replace(5e8 + 1e-3 * x, _3=0.0)) == [(3, 0)]
    mostly_zero = np.where(x > 1, x, 0.0)
    assert found(replace(mostly_zero, _5=1e12)) == [(5, 0)]
    assert found(replace(np.round(x), _5=99999999.0)) == [(5, 0)]


def test_ordinary_columns_have_none(rng):
    x = rng.normal(size=1000)
    columns = [
        x,
        rng.standard_cauchy(1000),
        np.exp(2 * x),
        (x > 2.5) * 1.0,
        np.full(1000, 7.0),
        replace(np.zeros(1000), _4=1e30),  # a yes or no, in a unit of its own
        rng.poisson(0.01, 1000),
        1e300 * x,
    ]
    assert not found(*columns)
    assert not found([1.0]) and not found([0.0, 1.0]) and not found([0.0, 1.0, 1e30])


def test_the_first_ones_are_named():
    x = replace(np.arange(100.0), _7=1e30, _8=1e30, _30=-1e25, _31=1e30)
    table = np.column_stack([np.arange(100.0), x])
    text = _columns.find_far_values(table).describe(table, 1000 + np.arange(100), ["a", "b"])
    first = "1e+30 in column b, row 1007; 1e+30 in column b, row 1008"
    assert text == f"{first}; -1e+25 in column b, row 1030; and 1 more"


def fit_inputs(X, weight=None, **settings):
    """Inputs fitted as estimators do it."""
    y, inputs = np.arange(len(X)) * 1.0, _inputs.TableInputs(**settings)
    rows = _inputs.read_rows(DeepEnsembleRegressor(), inputs, NumberTargets(), X, y, weight)
    return inputs.fit(rows.X[rows.used], rows.weight[rows.used]), rows


def as_frame(X):
    return pd.DataFrame(X, columns=["age", "income"])


@pytest.mark.parametrize(
    ("make", "settings", "name"),
    [
        (np.array, {}, "'x1'"),
        (as_frame, {}, "'income'"),
        (as_frame, {"preprocess": None}, "'income'"),
        (np.array, {"preprocess": None}, "x1"),
        (np.array, {"preprocess": FunctionTransformer()}, "1 of what `preprocess` gives"),
    ],
)
def test_columns_and_rows_are_named_and_limited(rng, make, settings, name):
    X = rng.normal(size=(200, 2))
    X[150, 1] = 1e30
    weight = (np.arange(200) >= 20) * 1.0  # rows are numbered as the user has them
    with pytest.warns(UserWarning, match=rf"X has values so far.*1e\+30 in column {name}, row 150"):
        inputs, rows = fit_inputs(make(X), weight, **settings)
    others = np.delete(X[20:, 1], 130)
    assert rows.X[150, 1] == others.max()
    assert_allclose(inputs.transform(rows.X[20:]).std(axis=0), 1)
    new = np.array([[0.0, 1e9], [0.0, -1e9]])
    ends = inputs.transform(np.array([[0.0, others.max()], [0.0, others.min()]]))
    assert_array_equal(inputs.transform(inputs.encode(new)), ends)
    assert not inputs.scales_only


def test_far_values_of_rows_without_weight_do_not_count(rng, recwarn):
    X = rng.normal(size=(200, 2))
    X[150, 1] = 1e30
    inputs, _ = fit_inputs(X, (np.arange(200) != 150) * 1.0)
    assert not recwarn and inputs.scaling.limits is None and inputs.scales_only


def test_ordinary_tables_are_scaled_as_ever(rng):
    X = rng.standard_cauchy((300, 3))
    inputs, rows = fit_inputs(X)
    assert_array_equal(rows.X, X)
    assert_array_equal(inputs.transform(X), Scaling().fit(X, np.ones(300)).transform(X))


def test_limits_hold_on_tensors_too(rng):
    X = rng.normal(size=(50, 2))
    scaling = Scaling(limits=(np.array([-np.inf, -1.0]), np.array([np.inf, 1.0]))).fit(X)
    tensors = keras.ops.convert_to_tensor(9 * X)
    assert_allclose(scaling.transform(tensors, keras.ops), scaling.transform(9 * X), rtol=1e-12)


def test_far_targets_are_named(rng):
    y = replace(rng.normal(size=200), _11=1e20)
    X = np.arange(400.0).reshape(200, 2)
    with pytest.warns(UserWarning, match=r"y has values so far.*1e\+20 in column y, row 11"):
        _inputs.read_rows(DeepEnsembleRegressor(), _inputs.TableInputs(), NumberTargets(), X, y)
    both = np.column_stack([X[:, 0], y])
    with pytest.warns(UserWarning, match=r"1e\+20 in column 1 of y, row 11"):
        _inputs.read_rows(DeepEnsembleRegressor(), _inputs.TableInputs(), NumberTargets(), X, both)


def test_a_quantile_transform_takes_far_targets(rng, recwarn):
    y = replace(rng.normal(size=200), _11=1e20)
    X = np.arange(400.0).reshape(200, 2)
    _inputs.read_rows(
        DeepEnsembleRegressor(), _inputs.TableInputs(), NumberTargets("quantile"), X, y
    )
    assert not recwarn


def test_an_absurd_row_ruins_no_network(rng):
    X = rng.uniform(-1, 1, (301, 2))
    y = 3 * X[:, 0] + X[:, 1]
    X[300, 0] = 1e30
    model = DeepEnsembleRegressor(2, network=MLP(16), epochs=60, learning_rate=0.01, random_state=0)
    with pytest.warns(UserWarning, match="row 300"):
        model.fit(X, y)
    assert model.score(X[:300], y[:300]) > 0.95
    served = model.to_keras()(X)["mean"]
    assert_allclose(served, model.predict(X), atol=1e-4)
