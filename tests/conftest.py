"""Small things every test may use, and which tests the quick suite has."""

import gc
import os
import re
import sys

import hypothesis
import numpy as np
import pytest
from sklearn.datasets import load_iris
from small_models import TinySpace
from threadpoolctl import threadpool_limits
from tiers import slow_after

hypothesis.settings.register_profile("quick", max_examples=50, deadline=None)
hypothesis.settings.register_profile("slow", max_examples=300, deadline=None)


def pytest_configure(config):
    """More examples where slow tests are asked for; one thread, since small arrays need no more."""
    threadpool_limits(1)
    os.environ.setdefault("SKUQ_COMPILE_CACHE", "0")  # workers would write to the user's folder
    if _has_slow_tests(config):
        hypothesis.settings.load_profile("slow")
    else:
        hypothesis.settings.load_profile("quick")
        os.environ.setdefault("TF_NUM_INTEROP_THREADS", "1")
        os.environ.setdefault("TF_NUM_INTRAOP_THREADS", "1")  # until TensorFlow has read it


def _has_slow_tests(config):
    return "slow" in config.option.markexpr.replace("not slow", "")


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Leave modules and tests, which stay until the end, out of all garbage collections."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(10_000, 20, 1000)  # the cache of programs collects now and then
        gc.enable()


def pytest_collection_finish(session):
    """Quick tests find earlier programs, and collect garbage more rarely."""
    if _has_slow_tests(session.config):
        return
    if "tensorflow" in sys.modules:
        sys.modules["tensorflow"].config.list_logical_devices()  # makes the threads
    # skuq would train less at once, and so would processes that tests start.
    os.environ.pop("TF_NUM_INTRAOP_THREADS", None)
    if "skuq.training._train" in sys.modules:
        sys.modules["skuq.training._train"].programs.max_size = 64
        sys.modules["skuq.backend._scopes"]._DROPPED_PER_COLLECTION = 64


@pytest.fixture(scope="session", autouse=True)
def trials_of_one_job_run_here():
    """Run one-job trials in this process, however much memory earlier tests hold."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("skuq.search._slots._MAX_BYTES", float("inf"))
        yield


class Planned(BaseException):
    """Raised with what a fit is about to train."""


@pytest.fixture
def plan(monkeypatch):
    """Return the jobs and the data that a fit is about to train, where it ends."""

    def end(jobs, data, **options):
        raise Planned(jobs if isinstance(jobs, list) else [jobs], data)

    def plan_of(model, *arguments, **given):
        with monkeypatch.context() as patch, pytest.raises(Planned) as planned:
            patch.setattr("skuq.training.train", end)
            model.fit(*arguments, **given)
        return planned.value.args

    return plan_of


@pytest.fixture(scope="session")
def tiny_space():
    return TinySpace()


@pytest.fixture(params=slow_after(1, [0, 1, 7]))
def global_random_seed(request):
    return request.param


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.fixture(scope="session")
def wave():
    """Make 120 noisy rows of a smooth function of two inputs."""
    rng = np.random.RandomState(0)
    X = rng.uniform(-1, 1, (120, 2))
    return X, 3 * np.sin(2 * X[:, 0]) + X[:, 1] + 0.1 * rng.normal(size=120) + 10


@pytest.fixture(scope="session")
def table():
    """Make 40 rows of two normal numbers, the first of which is y up to noise."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 2))
    return X, X[:, 0] + 0.1 * rng.normal(size=40)


@pytest.fixture(scope="session")
def iris():
    X, y = load_iris(return_X_y=True)
    order = np.random.RandomState(0).permutation(150)
    return X[order], np.array(["setosa", "versicolor", "virginica"])[y[order]]


def pytest_make_parametrize_id(config, val, argname):
    """Settings as they are, but for addresses: they differ between the processes tests run in."""
    return re.sub(" at 0x[0-9a-f]+", "", str(val)) if isinstance(val, dict) else None
