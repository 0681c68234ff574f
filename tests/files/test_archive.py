"""Trees are written and read again, and files are written atomically."""

import os
import stat
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from tiers import cases

from skuq.exceptions import UnsavableError
from skuq.files import _archive

atomic_write = _archive.atomic_write

TREE = {
    "plain": [None, True, 3, -(10**30), "ü", 0.1, -0.0, float("nan"), float("-inf")],
    "scalars": (np.float32(0.1), np.int8(-3), np.bool_(True), np.complex64(1j)),
    "times": [np.datetime64("2020-01-01"), np.timedelta64("NaT"), np.array([3], "m8[s]")],
    "arrays": [np.array(7, ">i4"), np.zeros((0, 2), "f2"), np.arange(6.0).reshape(2, 3) / 7],
    "others": [np.array([True, False]), np.array(["a", "üü"]), np.array([1j])],
    "objects": np.array([[None, "a"], [("b",), np.arange(2)]], dtype=object),
    "keys": {1: "a", "@": {"a": ()}, None: [], (1, 2): {}, 0.5: [[[]]]},
}


def of(tree):
    return _archive.to_bytes(tree, kind="tree")


def back(data):
    return _archive.from_bytes(data, kinds=("tree",))


@cases("name", *TREE)
def test_from_bytes_returns_any_tree(name):
    data = of({name: TREE[name]})
    loaded = back(data)
    assert repr(loaded) == repr({name: TREE[name]})
    assert of(loaded) == data


def test_to_bytes_keeps_order_and_identity_of_arrays():
    fortran = np.asfortranarray(np.arange(6).reshape(2, 3))
    loaded = back(of({"one": fortran, "two": [fortran, np.arange(20)[::-3]]}))
    assert_array_equal(loaded["one"], fortran)
    assert loaded["one"].flags.f_contiguous and loaded["one"].flags.writeable
    assert loaded["one"] is loaded["two"][0]
    assert_array_equal(loaded["two"][1], np.arange(20)[::-3])
    # Empty strings come back a character wider, and strings of NumPy as those of Python.
    assert_array_equal(back(of(np.array(["", ""], dtype="<U0"))), ["", ""])
    assert type(back(of(np.str_("x")))) is str


@cases(
    ("tree", "message"),
    ({"a": [1, {2}]}, r"tree\.a\[1\] is a builtins.set"),
    ({(1, 2): [print]}, r"tree\[\(1, 2\)\]\[0\] is a builtins.builtin_function"),
    ({"a": np.array([(1, 2.0)], dtype="i4,f8")}, r"tree\.a is a numpy.ndarray"),
    ({frozenset(): 1}, "tree key is a builtins.frozenset"),
    (np.ma.masked_array([1.0]), "MaskedArray"),
    ("x" * 10_000, "10002 bytes of text"),
)
def test_to_bytes_refuses(tree, message, monkeypatch):
    monkeypatch.setattr(_archive, "MAX_GROWTH", 9_000)
    with pytest.raises(UnsavableError, match=message):
        of(tree)


@pytest.mark.parametrize("call", ["replace", "fsync"])
def test_atomic_write_that_fails_leaves_the_old_file(tmp_path, monkeypatch, call):
    path = tmp_path / "file"
    atomic_write(path, b"old")

    def fail(*args):
        raise OSError("disk full")

    monkeypatch.setattr(os, call, fail)
    with pytest.raises(OSError, match="disk full"):
        atomic_write(path, b"new")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]


def test_atomic_write_syncs_before_it_renames(tmp_path, monkeypatch):
    calls = []
    fsync, replace = os.fsync, os.replace

    def note_fsync(descriptor):
        status = os.fstat(descriptor)
        calls.append("folder" if stat.S_ISDIR(status.st_mode) else status.st_size)
        fsync(descriptor)

    def note_replace(source, target):
        calls.append("replace")
        assert Path(source).name.startswith(".") and Path(source).parent == Path(target).parent
        replace(source, target)

    monkeypatch.setattr(os, "fsync", note_fsync)
    monkeypatch.setattr(os, "replace", note_replace)
    atomic_write(tmp_path / "file", b"12345")
    assert calls == [5, "replace", "folder"]
    (tmp_path / "plain").touch()  # permissions are those of new files
    assert (tmp_path / "file").stat().st_mode == (tmp_path / "plain").stat().st_mode
