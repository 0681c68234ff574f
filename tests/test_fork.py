"""After a fork TensorFlow would wait for ever: training is refused, NumPy goes on predicting."""

import pytest
from heads import build_mlp
from numpy.testing import assert_array_equal
from processes import run_python
from sklearn.base import clone
from tiers import slow

import skuq
from skuq import DeepEnsembleRegressor, backend
from skuq.backend import _scopes as _processes
from skuq.networks import MLP

REFUSED = "forked after TensorFlow had been used.*loky.*spawn"


@pytest.fixture
def forked(monkeypatch):
    """Make this process believe that it is a child of a fork."""
    loaded = {name: vars(backend)[name] for name in backend.__all__ if name in vars(backend)}
    monkeypatch.setattr(_processes, "_is_forked", False)
    yield _processes._refuse
    vars(backend).update(loaded)


def convolving(input_shape, n_outputs):
    """A network that runs through Keras."""
    keras = backend.keras
    reshaped = keras.layers.Reshape((2, 1))
    layers = [reshaped, keras.layers.Conv1D(2, 2), keras.layers.Flatten()]
    return keras.Sequential([keras.Input(input_shape), *layers, keras.layers.Dense(n_outputs)])


def test_a_fork_predicts_in_numpy_and_refuses_all_else(table, forked):
    X, y = table
    model = DeepEnsembleRegressor(2, network=MLP(3), epochs=1, random_state=0).fit(X, y)
    in_keras = DeepEnsembleRegressor(1, network=convolving, epochs=1).fit(X, y)
    in_keras.predict(X)  # compiled, and kept
    expected = model.predict(X), model.predict_interval(X)
    forked()
    assert_array_equal(model.predict(X), expected[0])
    assert_array_equal(model.predict_interval(X), expected[1])
    search = skuq.AutoDEUQRegressor(n_trials=2, random_state=0)
    for other in (clone(model), skuq.NOMURegressor(epochs=1), search):
        with pytest.raises(Exception, match=REFUSED):
            other.fit(X, y)
    for call in (model.to_keras, lambda: in_keras.predict(X), lambda: build_mlp((2,), 2, [3])):
        with pytest.raises(RuntimeError, match=REFUSED):
            call()
    assert backend.BoundedCache(1).get("key", lambda: 3) == 3
    with pytest.raises(AttributeError):
        _ = backend.no_such_name


FORKS = """
import multiprocessing, warnings
import joblib, numpy as np
from sklearn.base import clone
from skuq import AutoDEUQRegressor, DeepEnsembleRegressor

warnings.simplefilter("ignore")
X = np.random.default_rng(0).normal(size=(60, 3))
y = X[:, 0]
model = DeepEnsembleRegressor(2, epochs=2, random_state=0)

def fit_again(own):
    try:
        clone(own).fit(X, y)
    except Exception as error:
        return str(error).replace("\\n", " ")
    return "fitted"

def predict(own):
    return float(abs(own.predict(X) - expected).max())

context = multiprocessing.get_context("fork")
if FRESH:  # TensorFlow is first used in the child
    with context.Pool(1) as pool:
        print(pool.apply_async(fit_again, (model,)).get(120))
model.fit(X, y)
expected = model.predict(X)
search = AutoDEUQRegressor(n_trials=2, n_jobs=2, validation=2, random_state=0)
with context.Pool(2) as pool:
    print(pool.apply_async(predict, (model,)).get(60))
    print(pool.apply_async(fit_again, (model,)).get(60))
    print(pool.apply_async(fit_again, (search,)).get(120))
with joblib.parallel_config(backend="multiprocessing"):
    print(*joblib.Parallel(2, timeout=60)([joblib.delayed(fit_again)(model)] * 2), sep="\\n")
"""


@slow
@pytest.mark.smoke
def test_fit_in_forked_processes_does_not_hang():
    fresh, difference, *told = run_python(f"FRESH = True\n{FORKS}").stdout.splitlines()
    assert fresh == "fitted"
    assert float(difference) == 0
    assert len(told) == 4 and all("forked after TensorFlow had been used" in text for text in told)
