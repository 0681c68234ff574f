"""The backend in threads, signals, forks and settings of any kind; progress of what runs long."""

import functools
import gc
import importlib
import logging
import pickle
import re
import signal
import sys
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import joblib
import numpy as np
import pytest
from heads import build_mlp
from numpy.testing import assert_allclose, assert_array_equal
from processes import run_python
from sklearn.base import clone
from sklearn.model_selection import cross_val_score
from tiers import cases, slow
from training_data import unplanned

import skuq
from skuq import DeepEnsembleRegressor, NEONRegressor, TabularEnsembleRegressor, _messages, backend
from skuq.backend._scopes import import_locked, keep_scopes, refuse_tensorflow, without_collection
from skuq.networks import MLP, OperatorNetwork


def test_imports_pause_garbage_collection_and_are_never_seen_by_halves(tmp_path, monkeypatch):
    for switch in (gc.disable, gc.enable):
        switch()
        with pytest.raises(ImportError), without_collection():
            assert not gc.isenabled()
            raise ImportError
        assert gc.isenabled() == (switch is gc.enable)
    (tmp_path / "slow_to_load.py").write_text("import time; time.sleep(0.5); is_whole = True")
    monkeypatch.syspath_prepend(tmp_path)
    both = threading.Barrier(2)
    with ThreadPoolExecutor(3) as pool:
        loading = pool.submit(importlib.import_module, "slow_to_load")
        while "slow_to_load" not in sys.modules:
            time.sleep(0.01)
        assert backend.loaded("slow_to_load").is_whole and loading.result()
        alone = [pool.submit(import_locked, lambda _: both.wait(0.3), "") for _ in range(2)]
    assert {type(each.exception()) for each in alone} == {threading.BrokenBarrierError}


def test_an_interrupt_waits_for_the_end_of_what_runs_and_a_second_does_not(request):
    def interrupt():
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        time.sleep(0.3)  # until it arrives

    done = []
    # Tests that run in the background of a shell ignore SIGINT otherwise.
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, handler))

    class Value:
        def __del__(self):  # Python loses what is raised here
            interrupt()
            done.append("dropped")

    cache = backend.BoundedCache(1)
    cache.get("first", Value)
    with pytest.raises(KeyboardInterrupt):
        cache.get("second", lambda: 2)
    assert done == ["dropped"]
    assert cache.get("second", lambda: 3) == 2  # what was made meanwhile is kept

    def build(input_shape, n_outputs):
        interrupt()
        done.append("built")
        return build_mlp(input_shape, n_outputs, [2])

    X = np.random.default_rng(0).normal(size=(20, 2))
    with pytest.raises(KeyboardInterrupt):
        DeepEnsembleRegressor(1, network=build, epochs=1).fit(X, X[:, 0])

    def load(name):
        interrupt()
        done.append(name)

    with pytest.raises(KeyboardInterrupt):
        import_locked(load, "imported")
    assert done == ["dropped", "built", "imported"]
    started, ends = time.monotonic(), threading.Event()

    def task():
        interrupt()
        interrupt()
        ends.wait(30)

    with pytest.raises(KeyboardInterrupt):
        backend.run_in_threads([task])
    backend.run_in_threads([time.monotonic])  # does not wait for what goes on
    ends.set()
    assert time.monotonic() - started < 20


def test_work_is_done_in_threads_that_stay_and_keep_only_the_scopes_of_their_caller():
    class Result:
        pass

    def threads():
        return backend.run_in_threads([threading.get_ident])

    def workers():
        return {thread.ident for thread in threading.enumerate() if thread.name.startswith("skuq")}

    assert threads() != [threading.get_ident()]
    own = workers()  # earlier tests may have left several
    (nested,) = backend.run_in_threads([threads])
    assert set(nested) | set(threads()) <= own == workers()
    both = threading.Barrier(2, timeout=20)
    two = functools.partial(backend.run_in_threads, [both.wait, both.wait], n_threads=2)
    assert sorted(backend.run_in_threads([two])[0]) == [0, 1]
    with pytest.raises(ZeroDivisionError):
        backend.run_in_threads([lambda: 1 // 0])
    gone, deadline = weakref.ref(backend.run_in_threads([Result])[0]), time.monotonic() + 20
    while gone() is not None:
        assert time.monotonic() < deadline
    keras, tf = backend.keras, importlib.import_module("tensorflow")
    scope, found = keras.saving.custom_object_scope, keras.saving.get_registered_object

    def seen():
        return found("tests>mine"), str(backend.ops.zeros(1).device), keras.layers.Dense(1).name

    with scope({"tests>mine": dict}), tf.device("/CPU:0"):
        own = keras.layers.Dense(1).name
        ((custom, device, name),) = backend.run_in_threads([seen])
        assert (custom, device) == seen()[:2] and custom is dict
        assert name != own  # names stay unique in models that join layers of both

    def work():
        keep_scopes(scope({"tests>left": dict}).__enter__)()
        keep_scopes(lambda: left.append(found("tests>left")))()

    left, thread = [], threading.Thread(target=work)
    thread.start()
    thread.join()
    assert left == [None]  # what was left there is another caller's


@cases("model", DeepEnsembleRegressor, TabularEnsembleRegressor, quick=1)
def test_fits_inside_of_graphs_and_functions_are_those_outside(model):
    import tensorflow as tf

    X = np.random.default_rng(0).normal(size=(40, 2))

    def predictions():
        return model(1, epochs=1, random_state=0).fit(X, X[:, 0]).predict(X)

    with tf.Graph().as_default(), backend.keras.name_scope("mine"):  # names of weights decide
        found = predictions()
    assert_array_equal(found, predictions())
    assert_array_equal(tf.function(predictions, autograph=False)(), found)


# Settings of the user's that are not skuq's, which computes in float32 on any of them.
SETTINGS = """
import keras, tensorflow as tf
keras.config.set_floatx("float64")
keras.config.set_dtype_policy("mixed_float16")
tf.debugging.enable_check_numerics()
tf.config.run_functions_eagerly(True)
tf.Graph().as_default().__enter__()
"""
FITS = """
import warnings; warnings.simplefilter("ignore")
import numpy as np, skuq
from skuq.networks import MLP
from skuq.tables._targets import HEADS
rng = np.random.default_rng(0)
X = rng.normal(size=(30, 2)); y = X[:, 0]
small = {"network": MLP(2), "epochs": 2, "random_state": 0}

def convolving(input_shape, n_outputs):
    from keras import Input, Sequential, layers
    convolved = [layers.Reshape((2, 1, 1)), layers.Conv2D(2, 1), layers.Flatten()]
    return Sequential([Input(input_shape), *convolved, layers.Dense(n_outputs)])

# The first fit of the process builds with Keras' defaults.
models = [skuq.DeepEnsembleRegressor(1, **{**small, "network": convolving})]
models += [skuq.DeepEnsembleRegressor(1, **small, loss=loss) for loss in HEADS]
models += [
    skuq.NOMURegressor(epochs=2, random_state=0),
    skuq.AutoDEUQRegressor(n_trials=1, epochs=2, random_state=0),
    skuq.TabularEnsembleRegressor(1, epochs=2, random_state=0),
]
sums = [float(model.fit(X, y).predict(X).sum()) for model in models]
model = skuq.DeepEnsembleClassifier(1, **small).fit(X, y > 0)
sums.append(float(model.predict_proba(X)[:, 0].sum()))
"""


@slow
def test_fits_do_not_depend_on_settings_of_keras_and_tensorflow():
    usual = run_python(f"{FITS}\nprint(sums)").stdout
    assert run_python(f"{SETTINGS}\n{FITS}\nprint(sums)").stdout == usual
    # With the promotions of NumPy some operations of the backend itself differ in the last digit.
    enable = "tensorflow.experimental.numpy.experimental_enable_numpy_behavior()"
    changed = run_python(f"import tensorflow; {enable}\n{FITS}\nprint(sums)").stdout
    assert_allclose(eval(changed), eval(usual), rtol=1e-4)


# Keras loads no other backend without its library.
TOLD_OF_JAX = """
import os, numpy as np
from skuq import DeepEnsembleRegressor

def told():
    try:
        DeepEnsembleRegressor(1, epochs=1).fit(np.ones((40, 2)), np.arange(40))
    except RuntimeError as error:
        print(error)

told()
"""
TOLD_OF_OTHERS = """
os.environ["KERAS_BACKEND"] = "tensorflow"
import keras, tensorflow as tf
own, keras.backend.backend = keras.backend.backend, lambda: "torch"
told()
keras.backend.backend = own
tf.compat.v1.disable_eager_execution()
told()
"""
REFUSED = ["Got 'jax': set KERAS_BACKEND=", "Got 'torch'", ".*remove the call .*disable_eager_"]


@cases(("code", "n"), (TOLD_OF_JAX, 1), (TOLD_OF_JAX + TOLD_OF_OTHERS, 3), quick=1)
def test_other_backends_and_modes_are_refused(code, n):
    told = run_python(code, KERAS_BACKEND="jax").stdout.splitlines()
    assert len(told) == n and all(re.search(*pair) for pair in zip(REFUSED, told))


def test_a_mode_that_is_set_after_a_fit_is_refused(monkeypatch):
    assert backend.keras  # loads TensorFlow
    context = sys.modules["tensorflow.python.eager.context"]
    monkeypatch.setattr(context, "default_execution_mode", context.GRAPH_MODE)
    with pytest.raises(RuntimeError, match="remove the call of .*disable_v2_behavior"):
        backend.run_in_threads([int])


def test_a_fork_predicts_in_numpy_and_refuses_all_else(monkeypatch):
    """TensorFlow would wait for ever."""
    X = np.random.default_rng(0).normal(size=(40, 3))
    model = DeepEnsembleRegressor(2, network=MLP(3), epochs=1, random_state=0).fit(X, X[:, 0])
    in_keras = clone(model).set_params(network=lambda shape, n: unplanned()).fit(X, X[:, 0])
    in_keras.predict(X)  # compiled, and kept
    expected = model.predict(X), model.predict_interval(X)
    monkeypatch.setattr("skuq.backend._scopes._is_forked", False)
    for name in set(backend.__all__) & set(vars(backend)):
        monkeypatch.setitem(vars(backend), name, vars(backend)[name])  # comes back afterwards
    refuse_tensorflow()  # as in a child of a fork
    assert_array_equal(model.predict(X), expected[0])
    assert_array_equal(model.predict_interval(X), expected[1])
    search = skuq.AutoDEUQRegressor(n_trials=2, random_state=0)
    for other in (clone(model), skuq.NOMURegressor(epochs=1), search):
        with pytest.raises(Exception, match="forked after .*loky.*spawn"):
            other.fit(X, X[:, 0])
    for call in (model.to_keras, lambda: in_keras.predict(X), lambda: build_mlp((2,), 2, [3])):
        with pytest.raises(RuntimeError, match="forked after .*loky.*spawn"):
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
with context.Pool(1) as pool:  # TensorFlow is first used in the child
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
    fresh, difference, *told = run_python(FORKS).stdout.splitlines()
    assert fresh == "fitted" and float(difference) == 0
    assert len(told) == 4 and all("forked after TensorFlow had been used" in text for text in told)


# Nested parallel work uses at most all cores and does not deadlock.
SMALL = {"network": MLP(8), "epochs": 20, "random_state": 0}
MODEL = DeepEnsembleRegressor(2, learning_rate=0.03, **SMALL)
DROPOUT = skuq.MCDropoutRegressor(5, **SMALL)
NET = OperatorNetwork(encoder_units=8, latent=8, decoder_units=8)
OPERATOR = NEONRegressor(network=NET, epochs=2, random_state=0)
TOLD = """
import os
from skuq.backend import keras
told = os.environ["TF_NUM_INTRAOP_THREADS"], os.environ.get("TF_NUM_INTEROP_THREADS")
"""


def _threads_of_a_worker():
    exec(TOLD, names := {})
    return names["told"]


@slow
def test_backend_in_a_joblib_worker_keeps_to_its_share_of_the_cores():
    share = str(max(1, joblib.cpu_count() // 2))
    with joblib.parallel_config(backend="loky"):
        told = joblib.Parallel(n_jobs=2)(joblib.delayed(_threads_of_a_worker)() for _ in range(2))
    assert set(told) == {(share, share)}
    # The user's setting stays.
    done = run_python(f"{TOLD}\nprint(told[0])", OMP_NUM_THREADS="2", TF_NUM_INTRAOP_THREADS="1")
    assert done.stdout.strip() == "1"


@cases("kind", "threading", "loky", quick=1)
def test_fit_in_parallel_cross_validation_gives_the_same(kind, table):
    alone = cross_val_score(MODEL, *table, cv=2)
    with joblib.parallel_config(backend=kind):
        together = cross_val_score(MODEL, *table, cv=2, n_jobs=2)
    assert_allclose(together, alone, rtol=1e-4)


@pytest.mark.parametrize("model", [MODEL, DROPOUT, OPERATOR])
def test_predict_in_eight_threads_gives_what_one_does(model, table):
    X, y = table
    model = pickle.loads(pickle.dumps(clone(model).fit(X, y)))  # which has not predicted yet
    with ThreadPoolExecutor(8) as pool:
        several = list(pool.map(lambda _: model.predict(X, return_std=True), range(32)))
    expected = model.predict(X, return_std=True)
    for parts in several:
        assert_array_equal(parts, expected)


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


@pytest.fixture
def terminal(monkeypatch):
    stderr = SimpleNamespace(isatty=lambda: True)
    monkeypatch.setattr(_messages, "sys", SimpleNamespace(stderr=stderr, _getframe=sys._getframe))


def progress(n, **fields):
    with _messages.Progress("search", "trial", n, **fields) as shown:
        for k in range(n):
            shown.step(message=f"trial {k}: fine", **{"best NLL": 0.5 - k, "failed": 0})


def test_progress_shows_bars_logs_messages_and_leaves_compilation_out(capsys, caplog, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    with caplog.at_level(logging.INFO, logger="skuq"):
        progress(3, verbose=1, seconds_left=lambda: 20.0)
    shown = "search: 100%.* 3/3 .*, best NLL=-1.5, failed=0, time limit=00:20"
    assert re.search(shown, capsys.readouterr().err)
    assert caplog.messages == [f"trial {k}: fine" for k in range(3)]
    with _messages.Progress("training", "epoch", verbose=1) as training:
        for n_epochs, n_left in ((10, 90), (30, 60), (10, 0)):  # stopped early
            training.epochs(n_epochs, n_left)
    assert "50/50" in capsys.readouterr().err
    monkeypatch.setattr("tqdm.std.time", lambda: now)
    now = 0.0
    with _messages.Progress("training", "epoch", verbose=1) as training:
        for now in (100.0, 101.0):  # the first epoch compiles
            training.epochs(1, 99 if now == 100.0 else 98)
        assert "2/100 [01:41<01:38" in capsys.readouterr().err


@pytest.mark.parametrize("verbose", [None, 0])
def test_progress_shows_a_bar_of_what_takes_long(capsys, terminal, monkeypatch, verbose):
    n_threads = threading.active_count()
    progress(3, verbose=verbose)
    assert capsys.readouterr().err == ""
    assert threading.active_count() <= n_threads + 1  # that of tqdm
    monkeypatch.setattr(_messages, "_LONG", 1e-9)
    progress(3, verbose=verbose)
    assert ("search: 100%" in capsys.readouterr().err) == (verbose is None)


@cases("kind", "threading", "loky", quick=1)
def test_progress_of_workers_shows_nothing(terminal, kind):
    watched = [joblib.delayed(_messages._is_watched)()] * 2
    assert joblib.Parallel(2, backend=kind)(watched) == [False, False]
    assert joblib.Parallel(1)(watched) == [True, True]
