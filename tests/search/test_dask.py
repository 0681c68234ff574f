"""Searches on a real Dask cluster of two worker processes, which need not import this module."""

import os
import signal
import sys
import threading
import time
from types import SimpleNamespace

import cloudpickle
import distributed
import joblib
import pytest
from numpy.testing import assert_allclose
from processes import wait_until
from slots import SPACE, DaskSlots, RandomProposer, contents, inline, open_slots, search

from skuq import AutoDEUQRegressor
from skuq.exceptions import SlotsLostError

pytestmark = pytest.mark.slow
cloudpickle.register_pickle_by_value(sys.modules[__name__])
OPTIONS = {"dashboard_address": ":0", "silence_logs": 50}


@pytest.fixture(scope="module")
def cluster():
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, **OPTIONS) as cluster:
        yield cluster


@pytest.fixture
def client(cluster):
    with distributed.Client(cluster) as client:
        client.wait_for_workers(2, timeout=60)
        yield client


def noted(folder, sleep=0.0):
    """x is the score. Each trial leaves a file named by its process and seed when it begins."""

    def evaluate(configuration, seed):
        (folder / f"{os.getpid()}-{seed}-{time.monotonic_ns()}").touch()
        time.sleep(sleep)
        return SimpleNamespace(score=configuration["x"], pid=os.getpid())

    return evaluate


def begun(folder):
    names = sorted((path.name.split("-") for path in folder.iterdir()), key=lambda n: int(n[2]))
    return [(int(pid), int(seed)) for pid, seed, _ in names]


def test_a_cluster_gives_the_same_search_though_a_worker_is_killed(client, tmp_path):
    def kill():
        wait_until(lambda: len(begun(tmp_path)) >= 3)
        os.kill(begun(tmp_path)[-1][0], signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    with joblib.parallel_config(backend="dask"):
        slots = open_slots(noted(tmp_path, sleep=0.3), None, 12)
    assert isinstance(slots, DaskSlots) and slots.n_slots == 2
    records = search(slots)
    killer.join()
    assert sorted(contents(records)) == sorted(contents(search(inline(noted(tmp_path)))))
    assert len({r.result.pid for r in records}) >= 3  # a new one has taken part
    names = client.run(lambda dask_worker: [*dask_worker.plugins]).values()
    assert not [name for name in sum(names, []) if name.startswith("skuq")]  # nothing stays behind


def test_slots_are_threads_of_the_workers_and_inside_a_task_inline(client, tmp_path):
    expected = {(None, 9): 2, (-1, 9): 2, (-2, 9): 1, (1, 9): 1, (7, 9): 2, (2, 1): 1}
    for (n_jobs, n_trials), n_slots in expected.items():
        with joblib.parallel_config(backend="dask"):
            assert open_slots(print, n_jobs, n_trials).n_slots == n_slots
    with joblib.parallel_config(backend="dask", n_jobs=1):
        assert open_slots(print, None, 9).n_slots == 1
    _, other = client.nthreads()
    with joblib.parallel_config(backend="dask", workers=[other]):  # settings reach each trial
        records = search(open_slots(noted(tmp_path), None, 6), 6)
    assert {r.result.pid for r in records} == {client.run(os.getpid)[other]}

    def kind():
        return type(open_slots(print, 2, 10)).__name__

    assert client.submit(kind).result() == "InlineSlots"
    with joblib.parallel_config(backend="dask"):
        assert joblib.Parallel()([joblib.delayed(kind)()]) == ["InlineSlots"]


def test_a_stopped_trial_gives_its_slot_back(client, tmp_path):
    slow, quick = noted(tmp_path, sleep=60), {"x": 0.5, "k": 0}

    def evaluate(configuration, seed):
        return slow(configuration, seed) if seed == 1 else SimpleNamespace(score=0.0)

    with DaskSlots(evaluate, client, 2, {}) as slots:
        slots.submit(0, quick, 1)
        wait_until(lambda: begun(tmp_path))
        ((pid, _),) = begun(tmp_path)
        assert slots.stop(0) is True
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
        futures = [slots.submit(slot, quick, 2) for slot in range(2)]
        for slot, future in enumerate(futures):
            assert future.result(timeout=20) and slots.result(slot, future).score == 0


def test_a_client_that_is_closed_in_the_middle_is_named(cluster, tmp_path):
    client = distributed.Client(cluster)

    class Closing(RandomProposer):
        def ask(self, history, running, rng):
            if len(history) + len(running) == 5:
                client.close()
            return super().ask(history, running, rng)

    # Finished trials are kept.
    with pytest.warns(UserWarning, match="of 20 trials: .*client is closed.*search has ended"):
        records = search(DaskSlots(noted(tmp_path, sleep=0.1), client, 2, {}), 20, Closing(SPACE))
    assert 3 <= len(records) <= 5 and all(record.completed for record in records)
    with pytest.raises(SlotsLostError, match="client is closed"):
        search(DaskSlots(noted(tmp_path), client, 2, {}))


@pytest.mark.smoke
@pytest.mark.filterwarnings("ignore::skuq.exceptions.SmallValidationWarning")
def test_an_estimator_searches_on_a_cluster(client, tiny_space, wave):
    X, y = wave
    settings = {"epochs": 2, "search": "random", "space": tiny_space, "random_state": 0}
    model = AutoDEUQRegressor(4, n_members=2, **settings)
    with joblib.parallel_config(backend="dask"):
        there = model.fit(X, y).predict(X)
    catalog, here = model.catalog_, model.fit(X, y).predict(X)
    assert len(catalog.completed) == 4
    # Programs are compiled for other numbers of threads there.
    assert_allclose(there, here, rtol=1e-4)
