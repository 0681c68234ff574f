"""A search on disk, without networks: files that are written, found again and refused."""

import functools
import json
import logging
import os
import signal
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from processes import start_python
from tiers import cases

from skuq import exceptions
from skuq.exceptions import CatalogLockedError, FileFormatError, UnsavableError
from skuq.files import _archive
from skuq.networks import Member
from skuq.search import Catalog, CatalogFolder, TrialRecord, _records

PARTS = {"X": "digest:00", "epochs": 10, "space": None, "random_state": 7}
SPACE, SHIFTED = {"units": "Integer(1, 8)"}, _records.HeldOut(None, np.zeros((2, 1)), np.ones(2))
HELD_OUT = _records.HeldOut(np.arange(3), np.ones((3, 1)), np.ones(3), (SHIFTED,))
# A network whose weights cannot be counted without building it.
LAYERS = {"layers": [{"class_name": "Flatten", "module": "keras.layers", "config": {}}]}
NETWORK = json.dumps({"class_name": "Functional", "module": "keras", "config": LAYERS})
FAILURE = TrialRecord(0, {"units": 0}, 3, "failed", message="ValueError: näh\n", seconds=0.1)
TREE = _archive.to_bytes({}, kind="trial"), _archive.to_bytes({}, kind="search")


def trial(number):
    rng = np.random.default_rng(number)
    weights, state = rng.normal(size=50).astype("float32"), rng.normal(size=4).astype("float32")
    history = {"loss": rng.normal(size=5), "val_loss": rng.normal(size=5)}
    held_out, states = rng.normal(size=(5, 2)).astype("float32"), (state, np.zeros((), "float32"))
    numbers = int(rng.integers(5)), held_out, number + 1, 0.1 * number
    trained = Member(NETWORK, weights, states, history, *numbers, "graph")
    configuration = {"units": number, "activation": None, "rate": 0.1 / 3, "skip": True}
    result = {"score": trained.score, "seconds": 1.5, "result": trained}
    return TrialRecord(number, configuration, trained.seed, **result)


def begun(path, records=(), parts=PARTS, space=SPACE):
    with CatalogFolder(path, parts) as folder:
        folder.begin(11, space, HELD_OUT, b"estimator")
        for record in records:
            folder.add(record)
    return folder.path


def numbers(records):
    return [record.trial_number for record in records]


def assert_same(one, other):
    assert _archive.to_bytes(one, kind="trial") == _archive.to_bytes(other, kind="trial")


def test_trials_come_back_to_the_bit_in_the_order_they_finished(tmp_path):
    records = [trial(2), FAILURE, trial(5), trial(1)]
    path = begun(tmp_path, records)
    assert path.parent == tmp_path
    with CatalogFolder(tmp_path, PARTS) as again:
        assert again.path == path and again.entropy == 11
        for one, other in zip(records, again.records, strict=True):
            assert_same(one, other)
        again.begin(99, SPACE, HELD_OUT, b"another estimator")
        again.add(trial(7))
    with CatalogFolder(tmp_path, PARTS) as third:
        assert numbers(third.records) == [2, 0, 5, 1, 7] and third.entropy == 11
    catalog = Catalog.load(tmp_path)
    assert numbers(catalog) == [0, 1, 2, 5, 7] and catalog.completed.tolist() == [1, 2, 3, 4]
    assert_array_equal(catalog.held_out.rows, HELD_OUT.rows)
    assert len(catalog.held_out.sets) == 2 and catalog.held_out.shifted[0].rows is None


def test_each_search_has_a_folder_of_its_own_whose_name_is_said(tmp_path, caplog, monkeypatch):
    first = begun(tmp_path, [trial(0)])
    with pytest.warns(UserWarning, match=f"that in {first} has other sett.*\n  epochs: 10.*, 11"):
        other = begun(tmp_path, [trial(0), trial(1)], {**PARTS, "epochs": 11})
    assert first != other and first.parent == other.parent == tmp_path
    assert len(Catalog.load(first)) == 1
    with pytest.raises(ValueError, match=r"holds 2 searches.*\n.*1 trials\)|2 trials\)"):
        Catalog.load(tmp_path)
    with pytest.raises(FileNotFoundError, match="holds no search"):
        Catalog.load(tmp_path / "nothing")
    with pytest.raises(NotADirectoryError, match="Use skuq.load for files"):
        Catalog.load(first / "search.skuq")
    with warnings.catch_warnings(action="error"), caplog.at_level(logging.INFO, logger="skuq"):
        for other in ({"X": "digest:11"}, {"random_state": 8}, {"a": 1, "b": 2, "c": 3}):
            new = begun(tmp_path, (), {**PARTS, **other})
            assert f"a new search starts in {new}" in caplog.text
        begun(tmp_path)
    assert f"the search in {first} goes on; it has 1 trials" in caplog.text
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    path = begun("runs here/ü")
    monkeypatch.chdir("/")
    assert path.is_absolute() and path.parent == tmp_path / "runs here" / "ü"
    assert begun("~/tilde").parent == tmp_path / "tilde" and len(Catalog.load("~/tilde")) == 0
    with pytest.raises(ValueError, match="`catalog_dir` must be the name of a folder"):
        begun("")
    (tmp_path / "file").touch()
    for name in ("~/file", "~/file/inside"):
        with pytest.raises(NotADirectoryError, match="`catalog_dir` must be a folder, .*file"):
            begun(name)


def test_the_folder_of_another_search_or_process_is_refused_with_what_differs(tmp_path):
    path = begun(tmp_path, [trial(0)])
    other = {**PARTS, "epochs": 11, "X": "digest:11", "new": [1]}
    with pytest.raises(exceptions.CatalogMismatchError) as error, CatalogFolder(path, other):
        pass
    message = str(error.value)
    assert "epochs: 10 there, 11 here" in message and "X: other values" in message
    assert "new: None there, [1] here" in message and "random_state" not in message
    with CatalogFolder(path, PARTS) as same:  # the lock is free again
        assert same.path == path and len(same.records) == 1
    told = r"units: 'Integer\(1, 8\)' there, None"
    with pytest.raises(exceptions.CatalogMismatchError, match=told):
        begun(tmp_path, space={"width": "Integer(1, 8)"})
    tmp_path = tmp_path / "locked"
    with CatalogFolder(tmp_path, PARTS) as first:
        with pytest.raises(CatalogLockedError, match=f'"pid": {os.getpid()}'):
            CatalogFolder(tmp_path, PARTS).__enter__()
        with CatalogFolder(tmp_path, {**PARTS, "epochs": 12}):  # another search may go on
            pass
        first.begin(11, SPACE, HELD_OUT, b"estimator")
        (first.path / "lock-holder.json").unlink()  # its name is lost, and not the lock
        for path in (first.path, tmp_path):
            with pytest.raises(CatalogLockedError, match="unknown process"):
                CatalogFolder(path, PARTS).__enter__()
        first.add(trial(0))
    with CatalogFolder(tmp_path, PARTS) as again:
        assert len(again.records) == 1


def test_equal_searches_wait_for_each_other(tmp_path):
    held, released = threading.Event(), threading.Event()

    def run():
        with CatalogFolder(tmp_path, PARTS) as folder:
            folder.begin(11, SPACE, HELD_OUT, b"estimator")
            held.set()
            released.wait(60)
            folder.add(trial(0))

    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(run)
        assert held.wait(60)
        waits = functools.partial(pytest.warns, UserWarning, match="This fit waits for it")
        with waits(), pytest.raises(CatalogLockedError):
            CatalogFolder(tmp_path, PARTS, max_wait=0.01).__enter__()
        threading.Timer(0.2, released.set).start()
        with waits(), CatalogFolder(tmp_path, PARTS, max_wait=60) as second:
            assert len(second.records) == 1
            with pytest.raises(CatalogLockedError):  # waiting for itself would never end
                CatalogFolder(tmp_path, PARTS, max_wait=60).__enter__()
        assert first.result() is None


WRITE = """
import sys
sys.path.insert(0, sys.argv[2])
from test_folder import PARTS, SPACE, HELD_OUT, trial
from skuq.search import CatalogFolder
with CatalogFolder(sys.argv[1], PARTS) as folder:
    folder.begin(11, SPACE, HELD_OUT, b"estimator")
    for number in range(len(folder.records), 10_000):
        folder.add(trial(number))
        print(number, flush=True)
"""


def test_what_another_process_wrote_survives_its_kill_at_any_moment(tmp_path):
    writer = start_python("-c", WRITE, tmp_path, Path(__file__).parent)
    first = int(writer.stdout.readline())
    with pytest.raises(CatalogLockedError, match=f'"pid": {writer.pid}'):
        begun(tmp_path)
    time.sleep(0.1)
    writer.send_signal(signal.SIGKILL)
    said = [first, *map(int, writer.stdout.read().split())][-1]
    writer.wait()
    catalog = Catalog.load(tmp_path)  # no warning: all are whole
    assert numbers(catalog) == list(range(len(catalog))) and len(catalog) > said
    assert_same(catalog[said], trial(said))
    begun(tmp_path, [trial(len(catalog))])  # a stale lock is none


@pytest.mark.parametrize("damage", [b"PK not a zip", None])
def test_a_broken_trial_is_put_aside_and_said(tmp_path, damage):
    path = begun(tmp_path, [trial(0), trial(1), trial(2)])
    file = path / "trial-000001.skuq"
    flipped = bytearray(file.read_bytes())
    flipped[len(flipped) // 2] ^= 1
    file.write_bytes(damage or bytes(flipped))
    (path / "trial-000001.broken").touch()
    with pytest.warns(UserWarning, match="trial-000001.skuq cannot be read.*left out"):
        assert numbers(Catalog.load(path)) == [0, 2]
    assert file.exists()  # looking changes nothing
    with (
        pytest.warns(UserWarning, match="trial-000001.broken1, and the trial is run again"),
        CatalogFolder(tmp_path, PARTS) as folder,
    ):
        assert numbers(folder.records) == [0, 2]
        folder.add(trial(1))
    assert numbers(Catalog.load(path)) == [0, 1, 2] and (path / "trial-000001.broken1").exists()
    with CatalogFolder(tmp_path, PARTS) as folder:
        assert numbers(folder.records) == [0, 2, 1]  # in the order they finished


@cases(
    ("name", "data", "message"),
    ("search.skuq", None, "has trials, and no search.skuq.*Restore it from a copy"),
    ("search.skuq", b"what?", "trials in .* cannot be used. Restore it from a copy, or delete"),
    ("search.skuq", TREE[0], "cannot be read: it holds a 'trial'.*It describes the search"),
    ("trial-000001.skuq", TREE[1], "trial-000001.skuq cannot be read: .*delete its file"),
    ("trial-000005.skuq", "here", "trial-000005.skuq .* it has the number of another"),
    ("trial-000001.skuq", "there", "it is of another search"),
    ids=["no search", "broken search", "a trial", "a search", "copy", "of another search"],
)
def test_folders_with_something_else_are_refused_and_stay(tmp_path, name, data, message):
    path = begun(tmp_path, [trial(0), trial(1)])
    if isinstance(data, str):
        there = begun(tmp_path, [trial(0), trial(1)], {**PARTS, "X": "digest:99"})
        data = ((path if data == "here" else there) / "trial-000001.skuq").read_bytes()
    (path / name).unlink(missing_ok=True)
    if data is not None:
        (path / name).write_bytes(data)
        with pytest.raises(FileFormatError, match=message):
            Catalog.load(path)
    with pytest.raises(FileFormatError, match=message):
        begun(tmp_path)
    assert (path / "trial-000000.skuq").exists()


def test_a_lock_is_free_after_any_error_and_a_beginning_cut_off_is_new(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        full = Mock(side_effect=OSError(28, "No space left on device"))
        patch.setattr("skuq.search._folder.atomic_write", full)
        folder = CatalogFolder(tmp_path, PARTS)
        with pytest.raises(OSError, match="No space"):
            folder.__enter__()
    begun(tmp_path)  # while `folder` is still there
    assert not list(folder.path.glob("lock-holder*"))
    with CatalogFolder(tmp_path / "other", PARTS) as folder:
        pass  # killed before `begin`
    (folder.path / ".left-over.tmp").write_bytes(b"half")
    with CatalogFolder(tmp_path / "other", PARTS) as again:
        assert again.entropy is None and again.records == []
        again.begin(5, SPACE, HELD_OUT, b"")
    assert not list(folder.path.glob(".*.tmp"))


def test_catalogs_hold_trials_and_members_and_write_only_what_can_be_read(tmp_path):
    catalog = Catalog([trial(2), trial(0), replace(FAILURE, trial_number=1)])
    assert numbers(catalog) == [0, 1, 2] and catalog.completed.tolist() == [0, 2]
    assert repr(catalog) == "<Catalog of 3 trials, 2 completed>"
    assert catalog.member(2).score == catalog[2].score
    with pytest.raises(LookupError, match="Trial 1 has no member: ValueError: näh"):
        catalog.member(1)
    small = catalog.keep_arrays_of([2])
    assert small.member(0).weights is None and small.member(0).score == catalog[0].score
    assert small.member(2).weights is not None
    assert catalog.member(0).weights is not None  # the original is as it was
    frame = catalog.to_frame()
    assert frame["status"].tolist() == ["completed", "failed", "completed"]
    assert frame["units"].tolist() == [0, 0, 2] and frame["message"][1] == FAILURE.message
    best = [-1 if record.failed else record.result.best_epoch for record in catalog]
    assert frame["best_epoch"].tolist() == best
    record = TrialRecord(0, {"score": 7, "message": "hello", "units": 8}, score=0.5)
    (row,) = Catalog([record]).to_frame().to_dict("records")
    assert (row["score"], row["decision_score"], row["units"]) == (0.5, 7, 8)
    assert (row["message"], row["decision_message"]) == ("", "hello")
    harmful = replace(trial(1).result, network=NETWORK.replace("Flatten", "Lambda"))
    with pytest.raises(UnsavableError, match="Trial 1: .*Lambda.*catalog_dir=None"):
        begun(tmp_path, [replace(trial(1), result=harmful)])
