"""A search on disk, without networks: files that are written, found again and refused."""

import json
import logging
import os
import signal
import threading
import time
import warnings
from dataclasses import fields, replace
from pathlib import Path

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
SPACE = {"units": "Integer(1, 8)"}
SHIFTED = _records.HeldOut(None, np.zeros((2, 1)), np.ones(2))
HELD_OUT = _records.HeldOut(np.arange(3), np.ones((3, 1)), np.ones(3), (SHIFTED,))

# A network whose weights cannot be counted without building it.
LAYERS = {"layers": [{"class_name": "Flatten", "module": "keras.layers", "config": {}}]}
NETWORK = json.dumps({"class_name": "Functional", "module": "keras", "config": LAYERS})


def member(number, n_weights=50):
    rng = np.random.default_rng(number)
    return Member(
        network=NETWORK,
        weights=rng.normal(size=n_weights).astype("float32"),
        state=(rng.normal(size=4).astype("float32"), np.zeros((), "float32")),
        history={"loss": rng.normal(size=5), "val_loss": rng.normal(size=5)},
        best_epoch=int(rng.integers(5)),
        held_out=rng.normal(size=(5, 2)).astype("float32"),
        seed=number + 1,
        seconds=0.1 * number,
        tier="graph",
    )


def trial(number):
    trained = member(number)
    configuration = {"units": number, "activation": None, "rate": 0.1 / 3, "skip": True}
    result = {"score": trained.score, "seconds": 1.5, "result": trained}
    return TrialRecord(number, configuration, trained.seed, **result)


def failure(number):
    return TrialRecord(number, {"units": 0}, 3, "failed", message="ValueError: näh\n", seconds=0.1)


def begun(path, records=(), parts=PARTS, space=SPACE):
    with CatalogFolder(path, parts) as folder:
        folder.begin(11, space, HELD_OUT, b"estimator")
        for record in records:
            folder.add(record)
    return folder.path


def assert_same(one, other):
    for field in fields(TrialRecord):
        if field.name not in ("result", "score"):
            assert getattr(one, field.name) == getattr(other, field.name)
            assert type(getattr(one, field.name)) is type(getattr(other, field.name))
    assert_array_equal(one.score, other.score)
    if one.result is None:
        assert other.result is None
        return
    for field in fields(Member):
        a, b = (getattr(record.result, field.name) for record in (one, other))
        assert type(a) is type(b)
        if field.name == "state":
            assert all(p.dtype == q.dtype and (p == q).all() for p, q in zip(a, b, strict=True))
        elif field.name == "history":
            assert list(a) == list(b) and all((a[key] == b[key]).all() for key in a)
        else:
            assert_array_equal(a, b)


def test_trials_come_back_to_the_bit_in_the_order_they_finished(tmp_path):
    records = [trial(2), failure(0), trial(5), trial(1)]
    path = begun(tmp_path, records)
    assert path.parent == tmp_path
    with CatalogFolder(tmp_path, PARTS) as again:
        assert again.path == path and again.entropy == 11 and len(again.records) == 4
        for one, other in zip(records, again.records):
            assert_same(one, other)
        again.begin(99, SPACE, HELD_OUT, b"another estimator")
        again.add(trial(7))
    with CatalogFolder(tmp_path, PARTS) as third:
        assert [r.trial_number for r in third.records] == [2, 0, 5, 1, 7] and third.entropy == 11


def test_the_catalog_alone(tmp_path):
    begun(tmp_path, [trial(2), failure(0), trial(1)])
    catalog = Catalog.load(tmp_path)
    assert [r.trial_number for r in catalog] == [0, 1, 2] and catalog.completed.tolist() == [1, 2]
    assert_array_equal(catalog.held_out.rows, HELD_OUT.rows)
    assert len(catalog.held_out.sets) == 2 and catalog.held_out.shifted[0].rows is None
    assert catalog.to_frame().shape[0] == 3


def test_each_search_has_a_folder_of_its_own(tmp_path):
    first = begun(tmp_path, [trial(0)])
    other = begun(tmp_path, [trial(0), trial(1)], {**PARTS, "epochs": 11})
    assert first != other and first.parent == other.parent == tmp_path
    assert len(Catalog.load(first)) == 1
    with pytest.raises(ValueError, match=r"holds 2 searches.*\n.*1 trials\)|2 trials\)"):
        Catalog.load(tmp_path)
    with pytest.raises(FileNotFoundError, match="holds no search"):
        Catalog.load(tmp_path / "nothing")
    with pytest.raises(NotADirectoryError, match="Use skuq.load for files"):
        Catalog.load(first / "search.skuq")


def test_the_folder_of_another_search_is_refused_with_what_differs(tmp_path):
    path = begun(tmp_path, [trial(0)])
    other = {**PARTS, "epochs": 11, "X": "digest:11", "new": [1]}
    with pytest.raises(exceptions.CatalogMismatchError) as error, CatalogFolder(path, other):
        pass
    message = str(error.value)
    assert "epochs: 10 there, 11 here" in message and "X: other values" in message
    assert "new: None there, [1] here" in message and "random_state" not in message
    with CatalogFolder(path, PARTS) as same:  # the lock is free again
        assert same.path == path and len(same.records) == 1
    begun(tmp_path, [trial(0)])
    other, told = {"width": "Integer(1, 8)"}, r"units: 'Integer\(1, 8\)' there, None"
    with pytest.raises(exceptions.CatalogMismatchError, match=told):
        begun(tmp_path, [], space=other)


def test_a_second_one_is_refused_and_told_who_is_there(tmp_path):
    with CatalogFolder(tmp_path, PARTS):
        with pytest.raises(CatalogLockedError, match=f'"pid": {os.getpid()}'):
            CatalogFolder(tmp_path, PARTS).__enter__()
        with CatalogFolder(tmp_path, {**PARTS, "epochs": 12}):  # another search may go on
            pass
    with CatalogFolder(tmp_path, PARTS):
        pass


@pytest.mark.parametrize("is_own", [True, False])
def test_a_lost_name_of_the_holder_lets_no_second_one_in(tmp_path, is_own):
    with CatalogFolder(tmp_path, PARTS) as first:
        first.begin(11, SPACE, HELD_OUT, b"estimator")
        (first.path / "lock-holder.json").unlink()
        with pytest.raises(CatalogLockedError):
            CatalogFolder(first.path if is_own else tmp_path, PARTS).__enter__()
        first.add(trial(0))
    assert len(Catalog.load(tmp_path)) == 1
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

    thread = threading.Thread(target=run)
    thread.start()
    try:
        assert held.wait(60)
        with (
            pytest.warns(UserWarning, match="This fit waits for it"),
            pytest.raises(CatalogLockedError),
        ):
            CatalogFolder(tmp_path, PARTS, max_wait=0.01).__enter__()
        threading.Timer(0.3, released.set).start()
        with (
            pytest.warns(UserWarning, match="This fit waits for it"),
            CatalogFolder(tmp_path, PARTS, max_wait=60) as second,
        ):
            assert len(second.records) == 1
            with pytest.raises(CatalogLockedError):  # waiting for itself would never end
                CatalogFolder(tmp_path, PARTS, max_wait=60).__enter__()
    finally:
        released.set()
        thread.join()


def test_it_is_said_which_search_goes_on_and_which_is_new(tmp_path, caplog):
    path = begun(tmp_path, [trial(0)])
    with pytest.warns(UserWarning, match=f"that in {path} has other sett.*\n  epochs: 10.*, 11"):
        begun(tmp_path, (), {**PARTS, "epochs": 11})
    with warnings.catch_warnings(), caplog.at_level(logging.INFO, logger="skuq"):
        warnings.simplefilter("error")
        for other in ({"X": "digest:11"}, {"random_state": 8}, {"a": 1, "b": 2, "c": 3}):
            new = begun(tmp_path, (), {**PARTS, **other})
            assert f"a new search starts in {new}" in caplog.text
        begun(tmp_path)
    assert f"the search in {path} goes on; it has 1 trials" in caplog.text


HOLD = """
import sys, time
from skuq.search import CatalogFolder
with CatalogFolder(sys.argv[1], {"a": 1}):
    print("held", flush=True)
    time.sleep(600)
"""


def test_another_process_is_refused_until_it_is_killed(tmp_path):
    holder = start_python("-c", HOLD, tmp_path)
    try:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(CatalogLockedError, match=f'"pid": {holder.pid}'):
            CatalogFolder(tmp_path, {"a": 1}).__enter__()
    finally:
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    with CatalogFolder(tmp_path, {"a": 1}) as folder:  # a stale lock is none
        assert folder.records == []


@pytest.mark.parametrize("damage", [b"", b"PK not a zip", None])
def test_a_broken_trial_is_put_aside_and_said(tmp_path, damage):
    path = begun(tmp_path, [trial(0), trial(1), trial(2)])
    file = path / "trial-000001.skuq"
    whole = file.read_bytes()
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 1
    file.write_bytes(bytes(flipped) if damage is None else damage)
    with pytest.warns(UserWarning, match="trial-000001.skuq cannot be read.*left out"):
        assert [r.trial_number for r in Catalog.load(path)] == [0, 2]
    assert file.exists()  # looking changes nothing
    with (
        pytest.warns(UserWarning, match="trial-000001.broken, and the trial is run again"),
        CatalogFolder(tmp_path, PARTS) as folder,
    ):
        assert [r.trial_number for r in folder.records] == [0, 2]
        folder.add(trial(1))
    assert [r.trial_number for r in Catalog.load(path)] == [0, 1, 2]
    assert (path / "trial-000001.broken").exists()


def test_a_broken_description_is_an_error(tmp_path):
    path = begun(tmp_path, [trial(0)])
    (path / "search.skuq").write_bytes(b"what?")
    advice = "the trials in .* cannot be used. Restore it from a copy, or delete this folder"
    with pytest.raises(FileFormatError, match=advice):
        CatalogFolder(tmp_path, PARTS).__enter__()
    with pytest.raises(FileFormatError, match=advice):
        Catalog.load(path)


def test_a_beginning_that_was_cut_off_is_a_new_search(tmp_path):
    with CatalogFolder(tmp_path, PARTS) as folder:
        pass  # killed before `begin`
    (folder.path / ".left-over.tmp").write_bytes(b"half")
    with CatalogFolder(tmp_path, PARTS) as again:
        assert again.entropy is None and again.records == []
        again.begin(5, SPACE, HELD_OUT, b"")
    assert not list(folder.path.glob(".*.tmp"))
    path = begun(tmp_path, [trial(k) for k in (0, 1, 2, 3)])
    (path / "trial-000001.skuq").unlink()
    begun(tmp_path, [trial(1)])
    begun(tmp_path, [trial(4)])
    with CatalogFolder(tmp_path, PARTS) as folder:
        assert [r.trial_number for r in folder.records] == [0, 2, 3, 1, 4]


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


def test_what_was_written_survives_a_kill_at_any_moment(tmp_path):
    said = -1
    for wait in (0.0, 0.1):
        writer = start_python("-c", WRITE, tmp_path, Path(__file__).parent)
        first = int(writer.stdout.readline())
        assert first >= said + 1
        time.sleep(wait)
        writer.send_signal(signal.SIGKILL)
        numbers = [first, *map(int, writer.stdout.read().split())]
        writer.wait()
        said = numbers[-1]
        catalog = Catalog.load(tmp_path)
        there = [record.trial_number for record in catalog]
        assert there == list(range(len(there))) and len(there) >= said + 1  # no warning: all whole
        assert_same(catalog[said], trial(said))


@cases(
    ("name", "kind", "message"),
    ("search.skuq", "trial", "cannot be read: it holds a 'trial'.*It describes the search"),
    ("trial-000001.skuq", "search", "trial-000001.skuq cannot be read: .*delete its file"),
)
def test_files_of_something_else_are_an_error(tmp_path, name, kind, message):
    path = begun(tmp_path, [trial(0), trial(1)])
    _archive.write(path / name, {}, kind=kind)
    for read in (Catalog.load, lambda path: CatalogFolder(path, PARTS).__enter__()):
        with pytest.raises(FileFormatError, match=message):
            read(path)


def test_trials_of_other_searches_and_copies_are_refused(tmp_path):
    path = begun(tmp_path, [trial(0), trial(1)])
    other = begun(tmp_path, [trial(0), trial(1)], {**PARTS, "epochs": 99})
    copy = path / "trial-000005.skuq"
    copy.write_bytes((path / "trial-000001.skuq").read_bytes())
    with pytest.raises(FileFormatError, match="trial-000005.skuq .* it has the number of another"):
        Catalog.load(path)
    copy.unlink()
    (path / "trial-000001.skuq").write_bytes((other / "trial-000001.skuq").read_bytes())
    with pytest.raises(FileFormatError, match="it is of another search"):
        Catalog.load(path)


def test_a_lock_is_free_again_after_any_error(tmp_path, monkeypatch):
    def full(path, data):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("skuq.search._folder.atomic_write", full)
        folder = CatalogFolder(tmp_path, PARTS)
        with pytest.raises(OSError, match="No space"):
            folder.__enter__()
    begun(tmp_path)  # while `folder` is still there
    assert not list(folder.path.glob("lock-holder*"))


def test_networks_that_could_not_be_read_are_not_written(tmp_path):
    harmful = replace(member(1), network=NETWORK.replace("Flatten", "Lambda"))
    with (
        pytest.raises(UnsavableError, match="Trial 1: .*Lambda.*catalog_dir=None"),
        CatalogFolder(begun(tmp_path), PARTS) as folder,
    ):
        folder.add(replace(trial(1), result=harmful))


def test_names_of_folders(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    path = begun("runs here/ü")
    monkeypatch.chdir("/")
    assert path.is_absolute() and path.parent == tmp_path / "runs here" / "ü"
    assert begun("~/tilde").parent == tmp_path / "tilde"
    assert len(Catalog.load("~/tilde")) == 0
    with pytest.raises(ValueError, match="`catalog_dir` must be the name of a folder"):
        begun("")
    for name in ("~/file", "~/file/inside"):
        (tmp_path / "file").touch()
        with pytest.raises(NotADirectoryError, match="`catalog_dir` must be a folder, .*file"):
            begun(name)


def test_trials_without_their_description_are_not_overwritten(tmp_path):
    path = begun(tmp_path, [trial(0)])
    (path / "search.skuq").unlink()
    before = (path / "trial-000000.skuq").read_bytes()
    with pytest.raises(FileFormatError, match="no search.skuq.*copy"):
        CatalogFolder(tmp_path, PARTS).__enter__()
    assert (path / "trial-000000.skuq").read_bytes() == before
