"""Loading and running the backend: in any thread, under any signal, with any settings."""

import functools
import gc
import importlib
import re
import signal
import sys
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from heads import build_mlp
from processes import run_python
from tiers import cases, slow

from skuq import DeepEnsembleRegressor, TabularEnsembleRegressor, backend
from skuq.backend._scopes import import_locked, keep_scopes, without_collection


@pytest.mark.parametrize("switch", [gc.enable, gc.disable])
def test_garbage_collection_is_paused_and_restored(switch):
    enabled_before = gc.isenabled()
    try:
        switch()
        with pytest.raises(ImportError), without_collection():
            assert not gc.isenabled()
            raise ImportError
        assert gc.isenabled() == (switch is gc.enable)
    finally:
        (gc.enable if enabled_before else gc.disable)()


@pytest.fixture
def interrupt():
    """A function that sends Ctrl-C to the main thread, and gives it time to arrive."""

    def send():
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        time.sleep(0.3)

    # Tests that run in the background of a shell ignore SIGINT otherwise.
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield send
    signal.signal(signal.SIGINT, handler)


def test_an_interrupt_waits_for_the_end_of_what_runs(interrupt):
    done = []

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


def test_threads_never_see_half_of_a_backend(tmp_path, monkeypatch):
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


def test_a_second_interrupt_acts_at_once(interrupt):
    started = time.monotonic()
    ends = threading.Event()

    def task():
        interrupt()
        interrupt()
        ends.wait(30)

    with pytest.raises(KeyboardInterrupt):
        backend.run_in_threads([task])
    backend.run_in_threads([time.monotonic])  # does not wait for what goes on
    ends.set()
    assert time.monotonic() - started < 20


def test_work_is_done_in_threads_that_stay_and_keep_nothing_of_it():
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
    gone = weakref.ref(backend.run_in_threads([Result])[0])
    deadline = time.monotonic() + 20
    while gone() is not None:
        assert time.monotonic() < deadline


def test_threads_keep_the_scopes_of_their_caller():
    import tensorflow as tf

    keras = backend.keras
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

    left = []
    thread = threading.Thread(target=work)
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
    np.testing.assert_array_equal(found, predictions())
    np.testing.assert_array_equal(tf.function(predictions, autograph=False)(), found)


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
    import keras
    reshaped = keras.layers.Reshape((2, 1, 1))
    layers = [reshaped, keras.layers.Conv2D(2, 1), keras.layers.Flatten()]
    return keras.Sequential([keras.Input(input_shape), *layers, keras.layers.Dense(n_outputs)])

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
    np.testing.assert_allclose(eval(changed), eval(usual), rtol=1e-4)


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
REFUSED = [
    *(f"Got '{name}': set KERAS_BACKEND=tensorflow" for name in ("jax", "torch")),
    ".*remove the call of .*disable_eager_execution",
]


@cases(("code", "n"), (TOLD_OF_JAX, 1), (TOLD_OF_JAX + TOLD_OF_OTHERS, 3), quick=1)
def test_other_backends_and_modes_are_refused(code, n):
    told = run_python(code, KERAS_BACKEND="jax").stdout.splitlines()
    assert len(told) == n
    assert all(re.search(*pair) for pair in zip(REFUSED, told))


def test_a_mode_that_is_set_after_a_fit_is_refused(monkeypatch):
    assert backend.keras  # loads TensorFlow
    context = sys.modules["tensorflow.python.eager.context"]
    monkeypatch.setattr(context, "default_execution_mode", context.GRAPH_MODE)
    with pytest.raises(RuntimeError, match="remove the call of .*disable_v2_behavior"):
        backend.run_in_threads([int])
