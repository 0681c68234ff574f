"""Searches on a real Dask cluster of two worker processes, which need not import this module."""

import os
import signal
import threading
import time
from types import SimpleNamespace

import cloudpickle
import distributed
import joblib
import numpy as np
import pytest
from numpy.testing import assert_allclose
from processes import wait_until
from slots import SPACE, DaskSlots, RandomProposer, open_slots, processes, search

from skuq import AutoDEUQRegressor
from skuq.exceptions import SlotsLostError

pytestmark = pytest.mark.slow


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


def noted(folder, sleep=0.0, kill=()):
    """x is the score. Each trial leaves a file named by its process and seed when it begins."""

    def evaluate(configuration, seed):
        (folder / f"{os.getpid()}-{seed}-{time.monotonic_ns()}").touch()
        if configuration["k"] in kill:
            os._exit(1)
        time.sleep(sleep)
        return SimpleNamespace(score=configuration["x"], pid=os.getpid())

    return evaluate


def begun(folder):
    """(process, seed) of each trial that has begun, in that order."""
    names = sorted((path.name.split("-") for path in folder.iterdir()), key=lambda n: int(n[2]))
    return [(int(pid), int(seed)) for pid, seed, _ in names]


def contents(records):
    records = sorted(records, key=lambda r: r.trial_number)
    return [(r.trial_number, r.configuration, r.seed, r.score, r.message) for r in records]


def searches_on(client):
    """Return the names of skuq's plugins on the workers."""

    def names(dask_worker):
        return [name for name in dask_worker.plugins if name.startswith("skuq")]

    return sum(client.run(names).values(), [])


def test_a_cluster_gives_the_same_search_as_processes(client, tmp_path):
    with joblib.parallel_config(backend="dask"):
        slots = open_slots(noted(tmp_path, sleep=0.05), None, 12)
    assert isinstance(slots, DaskSlots) and slots.n_slots == 2
    records = search(slots)
    assert contents(records) == contents(search(processes(noted(tmp_path), 2)))
    assert {r.result.pid for r in records} == set(client.run(os.getpid).values())


@pytest.mark.parametrize(
    "n_jobs, n_trials, n_slots",
    [(None, 9, 2), (-1, 9, 2), (-2, 9, 1), (1, 9, 1), (7, 9, 2), (2, 1, 1)],
)
def test_slots_are_threads_of_the_workers(n_jobs, n_trials, n_slots, client):
    with joblib.parallel_config(backend="dask"):
        assert open_slots(print, n_jobs, n_trials).n_slots == n_slots
    if n_jobs is not None:
        with joblib.parallel_config(backend="dask", n_jobs=n_jobs):
            assert open_slots(print, None, n_trials).n_slots == n_slots


def test_a_cluster_without_workers_says_so():
    with (
        distributed.LocalCluster(n_workers=0, dashboard_address=":0") as cluster,
        distributed.Client(cluster),
        joblib.parallel_config(backend="dask", wait_for_workers_timeout=0.1),
        pytest.raises(TimeoutError, match="no worker after 0.1 seconds"),
    ):
        open_slots(print, None, 9)


def test_settings_of_joblibs_backend_reach_each_trial(client, tmp_path):
    (address, other) = client.nthreads()
    pids = client.run(os.getpid)
    with joblib.parallel_config(backend="dask", workers=[other]):
        records = search(open_slots(noted(tmp_path), None, 6), 6)
    assert {r.result.pid for r in records} == {pids[other]} != {pids[address]}


def test_inside_a_task_trials_run_inline(client):
    def kind(backend):
        with joblib.parallel_config(backend=backend):
            return type(open_slots(print, 2, 10)).__name__

    assert client.submit(kind, "loky").result() == "InlineSlots"
    assert client.submit(kind, "dask").result() == "InlineSlots"
    with joblib.parallel_config(backend="dask"):
        kinds = joblib.Parallel()(joblib.delayed(kind)("dask") for _ in range(2))
    assert kinds == ["InlineSlots"] * 2


def heavy(folder):
    """Make 20 MB of data that record the process in which they are unpickled."""

    class Heavy:
        def __init__(self):
            self.array = np.arange(2.5e6)

        def __setstate__(self, state):
            self.__dict__.update(state)
            (folder / f"{os.getpid()}-{time.monotonic_ns()}").touch()

        def __call__(self, configuration, seed):
            return SimpleNamespace(score=self.array[seed % 7])

    return Heavy()


def test_data_are_sent_once_and_not_with_each_trial(client, tmp_path, monkeypatch):
    sent, submit = [], client.submit

    def spy(*args, **kwargs):
        sent.append(len(cloudpickle.dumps((args, kwargs))))
        return submit(*args, **kwargs)

    monkeypatch.setattr(client, "submit", spy)
    records = search(DaskSlots(heavy(tmp_path), client, 2), n_trials=20)
    assert all(r.completed for r in records) and len(records) == 20
    assert len(sent) == 20 and max(sent) < 2000
    unpacked = [path.name.split("-")[0] for path in tmp_path.iterdir()]
    assert sorted(unpacked) == sorted(map(str, client.run(os.getpid).values()))
    assert searches_on(client) == []  # nothing stays behind


def test_one_killed_worker_costs_no_more_than_its_trial(client, tmp_path):
    def kill():
        wait_until(lambda: len(begun(tmp_path)) >= 3)
        os.kill(begun(tmp_path)[-1][0], signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    records = search(DaskSlots(noted(tmp_path, sleep=0.3), client, 2), n_trials=12)
    killer.join()
    assert contents(records) == contents(search(processes(noted(tmp_path), 2)))
    assert len({pid for pid, _ in begun(tmp_path)}) >= 3  # a new one has taken part


class Counting:
    """k is the number of the trial."""

    def ask(self, history, running, rng):
        return {"x": 0.5, "k": len(history) + len(running)}


def test_a_trial_that_kills_every_worker_fails_alone(client, tmp_path):
    records = search(DaskSlots(noted(tmp_path, kill=(3,)), client, 2), 8, Counting())
    (failed,) = (r for r in records if not r.completed)
    assert len(records) == 8 and failed.configuration["k"] == 3
    assert failed.message.startswith("RuntimeError: The Dask worker died, and so did those")
    n_kills = [seed for _, seed in begun(tmp_path)].count(failed.seed)
    assert n_kills == 4  # Dask's allowed-failures are 3
    client.wait_for_workers(2, timeout=60)


def test_a_stopped_trial_gives_its_slot_back(client, tmp_path):
    slow, quick = noted(tmp_path, sleep=60), {"x": 0.5, "k": 0}

    def evaluate(configuration, seed):
        return slow(configuration, seed) if seed == 1 else SimpleNamespace(score=0.0)

    with DaskSlots(evaluate, client, 2) as slots:
        slots.submit(0, quick, 1)
        wait_until(lambda: begun(tmp_path))
        ((pid, _),) = begun(tmp_path)
        assert slots.stop(0) is True
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
        futures = [slots.submit(slot, quick, 2) for slot in range(2)]
        for slot, future in enumerate(futures):
            assert future.result(timeout=20) and slots.result(slot, future).score == 0


def test_a_trial_of_a_worker_that_cannot_be_restarted_is_not_stopped(tmp_path):
    with (
        distributed.LocalCluster(1, threads_per_worker=2, processes=False, **OPTIONS) as cluster,
        distributed.Client(cluster) as client,
        DaskSlots(noted(tmp_path, sleep=1), client, 2) as slots,
    ):
        future = slots.submit(0, {"x": 0.5, "k": 0}, 1)
        wait_until(lambda: begun(tmp_path))
        assert slots.stop(0) is False
        assert slots.result(0, future).score == 0.5


def cancellable(folder):
    """Trials that run until they are told to end, and note that they were."""

    class Cancellable:
        cancelled = False

        def __call__(self, configuration, seed):
            (folder / f"begun-{seed}").touch()
            while not self.cancelled:
                time.sleep(0.02)
            (folder / f"cancelled-{seed}").touch()
            raise InterruptedError

        def cancel(self):
            self.cancelled = True

    return Cancellable()


def test_leaving_ends_what_runs_and_takes_the_data_away(client, tmp_path):
    with DaskSlots(cancellable(tmp_path), client, 2) as slots:
        futures = [slots.submit(slot, {}, slot) for slot in range(2)]
        wait_until(lambda: len(list(tmp_path.iterdir())) == 2)
        assert len(searches_on(client)) == 2
    wait_until(lambda: all((tmp_path / f"cancelled-{seed}").exists() for seed in range(2)))
    assert all(isinstance(future.exception(20), BaseException) for future in futures)
    assert searches_on(client) == []


def test_a_client_that_is_closed_in_the_middle_is_named(cluster, tmp_path):
    client = distributed.Client(cluster)

    class Closing(RandomProposer):
        def ask(self, history, running, rng):
            if len(history) + len(running) == 5:
                client.close()
            return super().ask(history, running, rng)

    started = time.monotonic()
    # Finished trials are kept.
    with pytest.warns(UserWarning, match="of 20 trials: .*client is closed.*search has ended"):
        records = search(DaskSlots(noted(tmp_path, sleep=0.1), client, 2), 20, Closing(SPACE))
    assert 3 <= len(records) <= 5 and all(record.completed for record in records)
    assert time.monotonic() - started < 120
    with pytest.raises(SlotsLostError, match="client is closed"):
        search(DaskSlots(noted(tmp_path), client, 2))


def test_a_cluster_that_goes_away_ends_the_search(tmp_path):
    cluster = distributed.LocalCluster(1, threads_per_worker=1, **OPTIONS)
    client = distributed.Client(cluster)
    closer = threading.Thread(
        target=lambda: (wait_until(lambda: len(begun(tmp_path)) > 2), cluster.close())
    )
    closer.start()
    with pytest.warns(UserWarning, match="of 20 trials: .*lost its cluster"):
        records = search(DaskSlots(noted(tmp_path, sleep=0.2), client, 1), 20)
    assert 1 <= len(records) < 20 and all(record.completed for record in records)
    closer.join()
    client.close()


@pytest.mark.smoke
@pytest.mark.filterwarnings("ignore::skuq.exceptions.SmallValidationWarning")
def test_an_estimator_searches_on_a_cluster(client, tiny_space, wave):
    X, y = wave
    settings = {"epochs": 2, "search": "random", "space": tiny_space, "random_state": 0}
    model = AutoDEUQRegressor(4, n_members=2, **settings)
    with joblib.parallel_config(backend="dask"):
        there = model.fit(X, y).predict(X)
    catalog = model.catalog_
    here = model.fit(X, y).predict(X)
    assert len(catalog.completed) == 4
    # Programs are compiled for other numbers of threads there.
    assert_allclose(there, here, rtol=1e-4)
