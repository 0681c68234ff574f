"""Loading and running the backend: in any thread, under any signal, with any settings."""

import gc
import json
import re
import signal
import sys
import threading
import time
import weakref

import numpy as np
import pytest
from heads import build_mlp
from processes import run_python
from tiers import slow

from skuq import DeepEnsembleRegressor, TabularEnsembleRegressor, backend
from skuq.backend import _scopes as _processes
from skuq.backend._scopes import without_collection


@pytest.mark.parametrize("was_enabled", [True, False])
def test_garbage_collection_is_paused_and_restored(was_enabled):
    enabled_before = gc.isenabled()
    try:
        (gc.enable if was_enabled else gc.disable)()
        with pytest.raises(ImportError), without_collection():
            assert not gc.isenabled()
            raise ImportError
        assert gc.isenabled() == was_enabled
    finally:
        (gc.enable if enabled_before else gc.disable)()


TABLE = """
import warnings; warnings.simplefilter("ignore")
import numpy as np
from skuq import DeepEnsembleRegressor
X = np.random.default_rng(0).normal(size=(40, 2)); y = X[:, 0]
"""

# The second fit checks whether its network is one of Keras', which the first is importing.
FIRST_FITS = """
import sys, threading, time
from concurrent.futures import ThreadPoolExecutor

half_imported = threading.Event()

class Finder:
    def find_spec(self, name, path, target=None):
        if name == "keras.src.layers.layer":
            sys.meta_path.remove(self)
            half_imported.set()
            time.sleep(0.5)

def network(input_shape, n_outputs):
    import keras  # its float type is float64
    return keras.Sequential([keras.Input(input_shape), keras.layers.Dense(n_outputs)])

def fit(seed):
    return DeepEnsembleRegressor(1, network=network, epochs=1, random_state=seed).fit(X, y)

sys.meta_path.insert(0, Finder())
with ThreadPoolExecutor(2) as pool:
    first = pool.submit(fit, 0)
    half_imported.wait()
    second = pool.submit(fit, 1)
    print(first.result().predict(X).shape, second.result().predict(X).shape)
"""


@slow
def test_the_first_fits_of_a_process_may_be_in_threads_under_other_defaults_of_keras(tmp_path):
    defaults = {"floatx": "float64", "epsilon": 1e-7, "backend": "tensorflow"}
    (tmp_path / "keras.json").write_text(json.dumps(defaults))
    done = run_python(TABLE + FIRST_FITS, KERAS_HOME=str(tmp_path))
    assert done.stdout.strip() == "(40,) (40,)"


# Ctrl-C comes in the middle of an import, and between two lines that switch to graph mode.
INTERRUPTED = """
import os, signal, sys, time
from skuq.networks._dense import build_mlp

def interrupt():
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(0.3)  # Python calls the handler as soon as it can

class Finder:
    def find_spec(self, name, path, target=None):
        if name == "tensorflow.python.ops.ragged.ragged_string_ops":
            sys.meta_path.remove(self)
            interrupt()

def tracer(frame, event, argument):
    if frame.f_code.co_name != "_mode":
        return None
    seen = frame.f_locals
    if event == "line" and seen.get("old_is_eager") and not seen["ctx"].is_eager:
        sys.settrace(None)
        interrupt()
    return tracer

def fit(n_units, trace=None):
    def network(input_shape, n_outputs):
        sys.settrace(trace)  # in the thread that builds and traces
        return build_mlp(input_shape, n_outputs, [n_units])

    try:
        DeepEnsembleRegressor(1, network=network, epochs=1).fit(X, y)
    except KeyboardInterrupt:
        return "interrupted"
    return "fitted"

signal.signal(signal.SIGINT, signal.default_int_handler)
sys.meta_path.insert(0, Finder())
print(fit(2), fit(2))
print(fit(3, tracer), fit(3), fit(4))
"""


@slow
def test_an_interrupted_import_or_trace_leaves_the_process_usable():
    lines = run_python(TABLE + INTERRUPTED).stdout.splitlines()
    assert lines == ["interrupted fitted", "interrupted fitted fitted"]


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
    assert done == ["dropped", "built"]


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


def test_work_is_done_in_a_thread_that_stays():
    def threads():
        return backend.run_in_threads([threading.get_ident])

    def two():
        both = threading.Barrier(2, timeout=20)
        return backend.run_in_threads([both.wait, both.wait], n_threads=2)

    def workers():
        return {thread.ident for thread in threading.enumerate() if thread.name.startswith("skuq")}

    assert threads() != [threading.get_ident()]
    own = workers()  # earlier tests may have left several
    assert set(threads()) <= own
    with pytest.raises(ZeroDivisionError):
        backend.run_in_threads([lambda: 1 // 0])
    (nested,) = backend.run_in_threads([threads])
    assert set(nested) | set(threads()) <= own == workers()
    assert sorted(backend.run_in_threads([two])[0]) == [0, 1]


def test_a_thread_that_stays_keeps_nothing_of_its_work():
    class Result:
        pass

    (result,) = backend.run_in_threads([Result])
    gone = weakref.ref(result)
    del result
    deadline = time.monotonic() + 20
    while gone() is not None:
        assert time.monotonic() < deadline


def test_threads_keep_the_scopes_of_their_caller():
    keras = backend.keras

    def seen():
        custom = keras.saving.get_registered_object("tests>mine")
        return custom, str(backend.ops.zeros(1).device), keras.layers.Dense(1).name

    import tensorflow as tf

    with keras.saving.custom_object_scope({"tests>mine": dict}), tf.device("/CPU:0"):
        own = keras.layers.Dense(1).name
        (found,) = backend.run_in_threads([seen])
        assert found[:2] == seen()[:2] and found[0] is dict
        assert found[2] != own  # names stay unique in models that join layers of both

    def work():
        left = keras.saving.custom_object_scope({"tests>left": dict}).__enter__
        _processes.keep_scopes(left)()

        def look():
            seen.append(keras.saving.get_registered_object("tests>left"))

        _processes.keep_scopes(look)()

    seen = []
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [None]  # what was left there is another caller's


@pytest.mark.parametrize("model", [DeepEnsembleRegressor, TabularEnsembleRegressor])
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
    names = {}
    exec(FITS, names)
    changed = run_python(f"{SETTINGS}\n{FITS}\nprint(sums)").stdout
    assert eval(changed) == names["sums"]
    # With the promotions of NumPy some operations of the backend itself differ in the last digit.
    enable = "tensorflow.experimental.numpy.experimental_enable_numpy_behavior()"
    changed = run_python(f"import tensorflow; {enable}\n{FITS}\nprint(sums)").stdout
    np.testing.assert_allclose(eval(changed), names["sums"], rtol=1e-4)


REFUSED = """
import os

def told():
    try:
        DeepEnsembleRegressor(1, epochs=1).fit(X, y)
    except RuntimeError as error:
        print(error)
"""

# Keras loads no other backend without its library.
IMPORTED = """
told()
os.environ["KERAS_BACKEND"] = "tensorflow"
import keras, tensorflow as tf
own, keras.backend.backend = keras.backend.backend, lambda: "torch"
told()
keras.backend.backend = own
tf.compat.v1.disable_eager_execution()
told()
"""


def test_other_backends_and_modes_are_refused():
    backends = "Got '{}': set KERAS_BACKEND=tensorflow"
    told = run_python(TABLE + REFUSED + IMPORTED, KERAS_BACKEND="jax").stdout.splitlines()
    jax, torch, mode = told
    assert re.search(backends.format("jax"), jax)
    assert re.search(backends.format("torch"), torch)
    assert re.search("remove the call of .*disable_eager_execution", mode)


def test_a_mode_that_is_set_after_a_fit_is_refused(monkeypatch):
    assert backend.keras  # loads TensorFlow
    context = sys.modules["tensorflow.python.eager.context"]
    monkeypatch.setattr(context, "default_execution_mode", context.GRAPH_MODE)
    with pytest.raises(RuntimeError, match="remove the call of .*disable_v2_behavior"):
        backend.run_in_threads([int])
