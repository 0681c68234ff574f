"""Trees are written and read again, and files are written atomically."""

import os
import stat
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.testing import assert_array_equal
from tiers import cases

from skuq.exceptions import FileFormatError, UnsavableError
from skuq.files import _archive

atomic_write, read, write = _archive.atomic_write, _archive.read, _archive.write

TREE = {"w": np.arange(6.0).reshape(2, 3), "names": ["a", ("b", 1)], "n": 3}


def of(tree):
    return _archive.to_bytes(tree, kind="tree")


def back(data):
    return _archive.from_bytes(data, kinds=("tree",))


def assert_same(one, other):
    assert type(one) is type(other)
    if isinstance(one, np.ndarray):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        if one.dtype == object:
            assert_same(one.tolist(), other.tolist())
        else:
            assert one.tobytes() == other.tobytes()
            assert other.flags.writeable
    elif isinstance(one, list | tuple):
        assert len(one) == len(other)
        for ours, others in zip(one, other):
            assert_same(ours, others)
    elif isinstance(one, dict):
        assert_same(list(one), list(other))
        assert_same(list(one.values()), list(other.values()))
    elif isinstance(one, np.generic):
        assert (one.dtype, one.tobytes()) == (other.dtype, other.tobytes())
    else:
        assert one == other or (one != one and other != other)
        assert repr(one) == repr(other)  # -0.0


numbers = (
    hnp.boolean_dtypes()
    | hnp.integer_dtypes(endianness="?")
    | hnp.unsigned_integer_dtypes(endianness="?")
    | hnp.floating_dtypes(endianness="?", sizes=(16, 32, 64))
    | hnp.complex_number_dtypes(endianness="?", sizes=(64, 128))
    | hnp.datetime64_dtypes(endianness="?")
    | hnp.timedelta64_dtypes(endianness="?")
)
arrays = hnp.arrays(numbers, hnp.array_shapes(min_dims=0, min_side=0, max_side=4))
scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | numbers.flatmap(lambda dtype: hnp.arrays(dtype, ()).map(lambda a: a[()]))
)
keys = (
    st.tuples(st.integers())
    | st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
)
trees = st.recursive(
    scalars
    | arrays
    | hnp.arrays("<U3", 2, elements=st.text("a\u00fc", max_size=3))
    | st.lists(scalars, max_size=4).map(lambda items: np.array([None, *items], dtype=object)[1:]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(keys | st.sampled_from(["@", "a"]), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(trees)
@settings(max_examples=40, suppress_health_check=list(HealthCheck))
def test_from_bytes_returns_any_tree(tree):
    data = of(tree)
    loaded = back(data)
    assert_same(tree, loaded)
    assert of(loaded) == data


def test_to_bytes_keeps_order_and_identity_of_arrays():
    fortran = np.asfortranarray(np.arange(6).reshape(2, 3))
    loaded = back(of({"one": fortran, "two": [fortran, np.arange(20)[::-3]]}))
    assert_array_equal(loaded["one"], fortran)
    assert loaded["one"].flags.f_contiguous
    assert loaded["one"] is loaded["two"][0]
    assert_array_equal(loaded["two"][1], np.arange(20)[::-3])
    # Empty strings come back a character wider, and strings of NumPy as those of Python.
    assert_array_equal(back(of(np.array(["", ""], dtype="<U0"))), ["", ""])
    assert_same(back(of(np.str_("x"))), "x")


def _cycle():
    tree = {"a": []}
    tree["a"].append(tree)
    return tree


@cases(
    ("tree", "message"),
    ({"a": [1, {2}]}, r"tree\.a\[1\] is a builtins.set"),
    ({(1, 2): [print]}, r"tree\[\(1, 2\)\]\[0\] is a builtins.builtin_function"),
    (_cycle(), "holds itself"),
    ({"a": np.array([(1, 2.0)], dtype="i4,f8")}, r"tree\.a is a numpy.ndarray"),
    ({frozenset(): 1}, "tree key is a builtins.frozenset"),
    (np.ma.masked_array([1.0]), "MaskedArray"),
    ("x" * 10_000, "10002 bytes of text"),
)
def test_to_bytes_refuses(tree, message, monkeypatch):
    monkeypatch.setattr(_archive, "MAX_GROWTH", 9_000)
    with pytest.raises(UnsavableError, match=message):
        of(tree)


def test_write_and_read(tmp_path):
    path = tmp_path / "tree.skuq"
    for tree in (1, TREE):
        write(path, tree, kind="tree")
    assert_same(TREE, read(str(path), kind="tree"))
    with pytest.raises(FileNotFoundError):
        read(tmp_path / "none", kind="tree")
    with pytest.raises(IsADirectoryError):
        read(tmp_path, kind="tree")
    with pytest.raises(FileFormatError, match=r"tree\.skuq cannot be read: it holds a 'tree'"):
        read(path, kind="trial")
    assert os.listdir(tmp_path) == ["tree.skuq"]


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
        kind = "folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file"
        calls.append((kind, os.fstat(descriptor).st_size if kind == "file" else None))
        fsync(descriptor)

    def note_replace(source, target):
        calls.append(("replace", Path(source).name.startswith(".")))
        assert Path(source).parent == Path(target).parent
        replace(source, target)

    monkeypatch.setattr(os, "fsync", note_fsync)
    monkeypatch.setattr(os, "replace", note_replace)
    atomic_write(tmp_path / "file", b"12345")
    assert calls == [("file", 5), ("replace", True), ("folder", None)]


def test_atomic_write_gives_permissions_of_new_files(tmp_path):
    (tmp_path / "plain").touch()
    atomic_write(tmp_path / "file", b"x")
    assert (tmp_path / "file").stat().st_mode == (tmp_path / "plain").stat().st_mode
