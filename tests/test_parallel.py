"""Nested parallel work uses at most all cores and does not deadlock."""

import pickle
from concurrent.futures import ThreadPoolExecutor

import joblib
import numpy as np
import pytest
from numpy.testing import assert_array_equal
from processes import run_python
from sklearn.base import clone
from sklearn.model_selection import cross_val_score
from tiers import slow_after

from skuq import AutoDEUQRegressor, DeepEnsembleRegressor, MCDropoutRegressor, NEONRegressor
from skuq.networks import MLP, OperatorNetwork

pytestmark = pytest.mark.filterwarnings("ignore::skuq.exceptions.SmallValidationWarning")

MODEL = DeepEnsembleRegressor(2, network=MLP(8), epochs=20, learning_rate=0.03, random_state=0)

DROPOUT = MCDropoutRegressor(5, network=MLP(8), epochs=20, random_state=0)
SMALL = OperatorNetwork(encoder_units=8, latent=8, decoder_units=8)
OPERATOR = NEONRegressor(network=SMALL, epochs=2, random_state=0)


TOLD = """
import os
from skuq.backend import keras
told = os.environ["TF_NUM_INTRAOP_THREADS"], os.environ.get("TF_NUM_INTEROP_THREADS")
"""


def _threads_of_a_worker():
    exec(TOLD, names := {})
    return names["told"]


@pytest.mark.slow
def test_backend_in_a_joblib_worker_keeps_to_its_share_of_the_cores():
    share = str(max(1, joblib.cpu_count() // 2))
    with joblib.parallel_config(backend="loky"):
        told = joblib.Parallel(n_jobs=2)(joblib.delayed(_threads_of_a_worker)() for _ in range(2))
    assert set(told) == {(share, share)}
    # The user's setting stays.
    done = run_python(f"{TOLD}\nprint(told[0])", OMP_NUM_THREADS="2", TF_NUM_INTRAOP_THREADS="1")
    assert done.stdout.strip() == "1"


@pytest.mark.parametrize("backend", slow_after(1, ["threading", "loky"]))
def test_fit_in_parallel_cross_validation_gives_the_same(backend, table):
    alone = cross_val_score(MODEL, *table, cv=2)
    with joblib.parallel_config(backend=backend):
        together = cross_val_score(MODEL, *table, cv=2, n_jobs=2)
    np.testing.assert_allclose(together, alone, rtol=1e-4)


@pytest.mark.parametrize("model", [MODEL, DROPOUT, OPERATOR])
def test_predict_in_eight_threads_gives_what_one_does(model, table):
    X, y = table
    model = pickle.loads(pickle.dumps(clone(model).fit(X, y)))  # which has not predicted yet
    with ThreadPoolExecutor(8) as pool:
        several = list(pool.map(lambda _: model.predict(X, return_std=True), range(32)))
    expected = model.predict(X, return_std=True)
    for parts in several:
        assert_array_equal(parts, expected)


@pytest.mark.slow
def test_catalog_dir_is_shared_by_folds_in_processes(tiny_space, table, tmp_path):
    settings = {"epochs": 5, "space": tiny_space, "random_state": 0, "catalog_dir": tmp_path}
    model = AutoDEUQRegressor(2, n_jobs=2, **settings)
    first = cross_val_score(model, *table, cv=3, n_jobs=2, error_score="raise")
    assert len(list(tmp_path.glob("*/trial-*.skuq"))) == 6
    written = {file: file.stat().st_mtime_ns for file in tmp_path.glob("*/trial-*.skuq")}
    np.testing.assert_array_equal(cross_val_score(model, *table, cv=3, n_jobs=2), first)
    assert {file: file.stat().st_mtime_ns for file in written} == written


# In a process of its own: another test's thread may set the limit of this one.
LIMITS = """
import os, signal
from threadpoolctl import threadpool_info, threadpool_limits
from skuq.backend import _scopes

def told():
    print({p["num_threads"] for p in threadpool_info() if p["user_api"] == "blas"}, end="")

with threadpool_limits(2, user_api="blas"):
    with _scopes.one_thread_if_small(100):
        told()
    with _scopes.one_thread_if_small(10_000):
        told()
    told()
    first, second = _scopes.one_thread_if_small(1), _scopes.one_thread_if_small(1)
    first.__enter__()
    second.__enter__()  # as two threads overlap
    first.__exit__(None, None, None)
    told()
    second.__exit__(None, None, None)
    told()

_scopes._one_thread._lock.acquire()  # as another thread does, which a child does not have
if hasattr(os, "fork"):
    if not os.fork():
        signal.alarm(10)
        with _scopes.one_thread_if_small(1):
            os._exit(0)
    assert os.wait()[1] == 0
"""


def test_one_thread_if_small_leaves_the_number_of_threads_as_it_was():
    assert run_python(LIMITS).stdout == "{1}{2}{2}{1}{2}"
