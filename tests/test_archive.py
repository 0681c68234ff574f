"""Plain trees as checked files: round trips and refused files."""

import io
import json
import os
import pickle
import stat
import struct
import sys
import tracemalloc
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.testing import assert_array_equal
from tiers import cases

import skuq
from skuq._utils import _archive, _trees
from skuq.exceptions import FileFormatError, FileVersionError, UnsavableError

sys.path.insert(0, str(Path(__file__).parent))
from archives import packed, unpacked, with_member, with_tree  # noqa: E402

atomic_write, from_bytes = _archive.atomic_write, _archive.from_bytes
read, to_bytes, write = _archive.read, _archive.to_bytes, _archive.write

TREE = {"w": np.arange(6.0).reshape(2, 3), "names": ["a", ("b", 1)], "n": 3}


def of(tree):
    return to_bytes(tree, kind="tree")


def back(data):
    return from_bytes(data, kind="tree")


def refused(data, match=None):
    with pytest.raises(FileFormatError, match=match):
        back(data)


def assert_same(one, other):
    assert type(one) is type(other)
    if isinstance(one, np.ndarray):
        assert one.dtype == other.dtype
        assert one.shape == other.shape
        if one.dtype == object:
            for ours, others in zip(one.ravel(), other.ravel()):
                assert_same(ours, others)
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
        assert one.dtype == other.dtype
        assert one.tobytes() == other.tobytes()
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
texts = hnp.arrays(
    "<U5",
    hnp.array_shapes(max_side=3),
    # NumPy drops zeros at the end.
    elements=st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=5),
)
scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.integers(-(2**40), 2**40).map(lambda n: n**7)
    | numbers.flatmap(lambda dtype: hnp.arrays(dtype, ()).map(lambda a: a[()]))
)
whole = st.integers(-(2**63), 2**63 - 1)
keys = st.none() | st.booleans() | whole | st.floats(allow_nan=False) | st.text()
trees = st.recursive(
    scalars
    | arrays
    | texts
    | st.lists(scalars, max_size=4).map(lambda items: np.array([None, *items], dtype=object)[1:]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(keys | st.sampled_from(["@", "a"]), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(trees)
@settings(suppress_health_check=list(HealthCheck))
def test_from_bytes_returns_any_tree(tree):
    data = of(tree)
    loaded = back(data)
    assert_same(tree, loaded)
    assert of(loaded) == data


@cases(
    "tree",
    {"@": "tuple", "items": [1]},
    {"@": {"@": {"@": 1}}},
    [True, 1, 1.0, -0.0, float("nan"), float("inf"), -float("inf"), 2**63, -(2**200)],
    "half a \ud800 character",
    ["long " * 1000, "long " * 1000, "\u00fc" * 5000, "\ud800" * 5000],
    [np.float64(0.1), np.int8(-3), np.bool_(True), np.str_("x"), np.datetime64("2020-01-01")],
    [np.datetime64("NaT"), np.timedelta64(3, "25s"), np.complex64(1 + 2j), np.str_("")],
    np.array(["a", None, 1.5, float("nan"), np.int64(2)], dtype=object).reshape(1, 5),
    np.array([["2020", "NaT"]], dtype="M8[ns]"),
    ids=str,
)
def test_from_bytes_returns_examples(tree):
    assert_same(tree, back(of(tree)))


def test_to_bytes_keeps_order_and_identity_of_arrays(tmp_path):
    fortran = np.asfortranarray(np.arange(6).reshape(2, 3))
    strided, names = np.arange(20)[::-3], np.array(["a", None], dtype=object)
    tree = {"one": fortran, "two": [fortran, strided], "names": (names, names)}
    data = of(tree)
    loaded = back(data)
    assert_same(tree, loaded)
    assert loaded["one"].flags.f_contiguous
    assert loaded["one"] is loaded["two"][0]
    assert set(unpacked(data)[1]) == {"tree.json", "arrays/0.npy", "arrays/1.npy"}
    # Mapped arrays come back in memory, empty strings a character wider.
    np.save(tmp_path / "a.npy", np.arange(4.0))
    assert_same(np.arange(4.0), back(of(np.load(tmp_path / "a.npy", mmap_mode="r"))))
    assert_array_equal(back(of(np.array(["", ""], dtype="<U0"))), ["", ""])


def test_to_bytes_stores_long_texts_once():
    tree = ["x" * 5000, "\u00fc" * 5000, "x" * 5000]
    parts = [name for name in unpacked(of(tree))[1] if "texts" in name]
    assert parts == ["texts/0.txt", "texts/1.txt"]
    loaded = back(of(tree))
    assert loaded == tree and loaded[0] is loaded[2]
    assert len(of(tree)) < 2000  # they are compressed
    header, members = unpacked(of(TREE))
    assert (header["format"], header["format_version"], header["kind"]) == ("skuq", 2, "tree")
    assert header["versions"]["skuq"] == skuq.__version__
    assert header["versions"]["numpy"] == np.__version__
    np.testing.assert_array_equal(np.load(io.BytesIO(members["arrays/0.npy"])), TREE["w"])


def test_from_bytes_calls_hooks():
    def describe(value, where):
        assert str(where) == "tree.a[1]"
        return ("range", {"start": value.start, "stop": value.stop, "own": {"@": value.step}})

    def restore(name, state):
        assert name == "range"
        return range(state["start"], state["stop"], state["own"]["@"])

    data = to_bytes({"a": [1, range(1, 9, 2)]}, kind="tree", describe=describe)
    loaded = from_bytes(data, kind=("other", "tree"), restore=restore)
    assert loaded == {"a": [1, range(1, 9, 2)]}
    refused(data, r"the file: tree\.a\[1\] cannot be read: class 'range' is not known")


def _cycle():
    tree = {"a": []}
    tree["a"].append(tree)
    return tree


def _deep(n):
    tree = 0
    for _ in range(n):
        tree = [tree]
    return tree


@cases(
    ("tree", "message"),
    ({"a": [1, {2}]}, r"tree\.a\[1\] is a builtins.set"),
    ({"a": b"x"}, "bytes"),
    ([print], "builtin_function"),
    (_cycle(), "levels deep, or holds itself"),
    (_deep(101), "more than 100 levels"),
    ({"a": np.array([(1, 2.0)], dtype="i4,f8")}, "ndarray of"),
    ({"a": np.array([{1}], dtype=object)}, "ndarray of object"),
    ({frozenset(): 1}, "a key of type frozenset"),
    ({(1, 2): 1}, "a key of type tuple"),
    ({2**63: 1}, "a key of type int"),
    ({1j: 1}, "a key of type complex"),
    (np.ma.masked_array([1.0]), "MaskedArray"),
    (np.void(b"x"), "void"),
)
def test_to_bytes_refuses(tree, message):
    with pytest.raises(UnsavableError, match=message):
        of(tree)


def test_from_bytes_reads_what_is_as_deep_as_it_can_be_written():
    assert_same(_deep(100), back(of(_deep(100))))
    deep = np.array([np.float64(1), float("nan"), 2**70], dtype=object)
    for kind in (tuple, lambda parts: {1: parts[0]}, lambda parts: {"@": parts[0]}):
        tree = [deep, float("nan"), 2**70, np.float32(1)]
        for _ in range(99):
            tree = kind([tree])
        assert_same(tree, back(of(tree)))


def test_from_bytes_refuses_every_truncation():
    data = of(TREE)
    for n in range(len(data)):
        refused(data[:n])


def test_from_bytes_finds_flipped_bits_of_contents(global_random_seed):
    data = of(TREE)
    rng = np.random.default_rng(global_random_seed)
    unnoticed = set()
    for place in range(len(data)):
        flipped = bytearray(data)
        flipped[place] ^= 1 << rng.integers(8)
        try:
            assert_same(TREE, back(bytes(flipped)))
        except FileFormatError:
            continue
        unnoticed.add(place)
    # Dates and the like do not matter, nor do the first bit of a compressed stream and the code of
    # its end, of up to 15 bits, which is not read: the bytes that are declared are there before.
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        for info in archive.infolist():
            begin = info.header_offset + 30 + len(info.filename)
            is_compressed = info.compress_type == zipfile.ZIP_DEFLATED
            end = begin + info.compress_size - 3 * is_compressed
            assert not unnoticed & set(range(begin + is_compressed, end))


def _zipped(method=zipfile.ZIP_DEFLATED, **members):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for name, data in members.items():
            archive.writestr(name.replace("__", "/").replace("_", "."), data)
    return buffer.getvalue()


def _directory(data, name, field, value):
    """The archive with another number at a place in a part's entry of its directory."""
    data = bytearray(data)
    start = data.rindex(name.encode()) - 46
    assert data[start : start + 4] == b"PK\x01\x02"
    struct.pack_into("<L" if field > 10 else "<H", data, start + field, value)
    return bytes(data)


def _spaces(n_megabytes):
    """Spaces, deflated: one block again and again."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    block = packer.compress(b" " * 2**20) + packer.flush(zlib.Z_FULL_FLUSH)
    return block * n_megabytes + packer.flush()


def _bomb(declared):
    """An archive whose tree is 4 GB long and declared to be shorter."""
    raw, label = _spaces(4096), b"tree.json"
    fields = (20, 0, 8, 0, 33, 0, len(raw), declared, len(label), 0)
    local = struct.pack("<4s5H3L2H", b"PK\x03\x04", *fields) + label + raw
    central = struct.pack("<4s6H3L5H2L", b"PK\x01\x02", 20, *fields, 0, 0, 0, 0, 0) + label
    end = struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, 1, 1, len(central), len(local), 0)
    return local + central + end


def _array_file(descr="'<f8'", shape="(2, 3)", body=b"\0" * 48, version=b"\x01\x00", header=None):
    header = header or f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}"
    text = header.encode("latin1")
    text += b" " * (-(len(text) + 11) % 64) + b"\n"
    return b"\x93NUMPY" + version + struct.pack("<H", len(text)) + text + body


class _Evil:
    def __reduce__(self):
        return open, ("evil", "w")


def _pickled():
    buffer = io.BytesIO()
    np.save(buffer, np.array([_Evil()], dtype=object), allow_pickle=True)
    return buffer.getvalue()


def _with_header(**changes):
    header, members = unpacked(of(TREE))
    return packed({**header, **changes}, members)


def _without(name):
    _, members = unpacked(of(TREE))
    return packed({}, {n: data for n, data in members.items() if n != name})


def _tree(tree):
    return with_tree(of(TREE), lambda document: [document, tree])


def _text(text):
    return with_tree(of(1), lambda document: text)


def _array(*args, **kwargs):
    return with_member(of(TREE), "arrays/0.npy", _array_file(*args, **kwargs))


ARRAY = {"@": "array", "part": "arrays/0.npy"}
# name -> (bytes, expected message)
HOSTILE = {
    # Zip archives
    "nothing": (b"", "no.* zip"),
    "text": (b"x" * 100, "no.* zip"),
    "pickle": (pickle.dumps([1]), "no.* zip"),
    "empty zip": (b"PK\x05\x06" + b"\0" * 18, "header.json"),
    "no tree": (_without("tree.json"), "not written by skuq"),
    "no array": (packed(unpacked(of(1))[0], {"tree.json": json.dumps(ARRAY).encode()}), "arrays/0"),
    "bzip2": (_zipped(zipfile.ZIP_BZIP2, header_json="{}"), "another way"),
    "lzma": (_zipped(zipfile.ZIP_LZMA, header_json="{}"), "another way"),
    "encrypted": (_directory(of(TREE), "tree.json", 8, 1), "encrypted"),
    "short tree": (_directory(of(TREE), "tree.json", 24, 10), "CRC"),
    "huge tree": (_directory(of(TREE), "tree.json", 24, 2**31), "would grow"),
    "long array": (_directory(of(TREE), "arrays/0.npy", 24, 2**31), "would grow"),
    "bomb declared": (_bomb(2**32 - 2), "would grow"),
    "bomb": (_bomb(2), "CRC"),
    # Headers
    "format": (_with_header(format="other"), "not written by skuq"),
    "version 1": (_with_header(format_version=1), "never released"),
    "version text": (_with_header(format_version="2"), "TypeError"),
    "version none": (_with_header(format_version=None), "TypeError"),
    "other kind": (_with_header(kind="estimator"), "holds a 'estimator', not a 'tree'. Read it"),
    "no kind": (_with_header(kind={}), "TypeError"),
    # Arrays
    "pickled array": (with_member(of(TREE), "arrays/0.npy", _pickled()), "'O'|object"),
    "objects": (_array("'|O'"), "are not read"),
    "records": (_array("[('a', '<f8')]"), "are not read"),
    "void": (_array("'|V8'"), "are not read"),
    "large": (_array(shape="(1000000000000,)"), "declares"),
    "overflow": (_array(shape="(4294967296, 4294967296, 4294967296)"), "declares"),
    "negative": (_array(shape="(-2, -3)"), "declares"),
    "no shape": (_array(shape="(6)"), "shape"),
    "large and empty": (_array(shape="(0, 999999999999999999, 99999999999)", body=b""), "Error"),
    "dimensions": (_array(shape="(" + "1, " * 99 + "6)"), "Error"),
    "no bytes": (_array("'<U0'", "(1000000000000,)", b""), "are not read"),
    "odd type": (_array("'<f3'"), "Error"),
    "short": (_array(body=b"\0" * 47), "47 bytes follow"),
    "long": (_array(body=b"\0" * 49), "49 bytes follow"),
    "version of npy": (_array(version=b"\x02\x00"), "version"),
    "code": (_array(header="{'descr': __import__('os').system('touch evil')}"), "Error"),
    "nested header": (_array(header="(" * 3000), "Error"),
    "long header": (_array(header=" " * 20000), "Error"),
    "no npy": (with_member(of(TREE), "arrays/0.npy", b""), "Error"),
    "truth values": (_array("'|b1'", "(3,)", b"\x01\x02\x00"), "truth values"),
    "characters": (_array("'<U1'", "(1,)", b"\xff\xff\xff\xff"), "beyond Unicode"),
    "big-endian characters": (_array("'>U1'", "(1,)", b"\x00\x11\x00\x00"), "beyond Unicode"),
    # Trees
    "odd tag": (_tree({"@": "nothing"}), "'nothing' is nothing that skuq writes"),
    "no tag": (_tree({"@": None}), "nothing that skuq writes"),
    "tuple of nothing": (_tree({"@": "tuple", "items": 3}), "nothing that skuq writes"),
    "pairs": (_tree({"@": "dict", "items": [[1]]}), "ValueError: not enough"),
    "key twice": (_tree({"@": "dict", "items": [[1, 2], [1, 3]]}), "a key twice"),
    "key": (_tree({"@": "dict", "items": [[{"@": "tuple", "items": []}, 2]]}), "one that is none"),
    "large key": (_tree({"@": "dict", "items": [[2**61 * 8, 2]]}), "one that is none"),
    "array missing": (_tree({"@": "array", "part": "arrays/1.npy"}), "arrays/1.npy"),
    "array elsewhere": (_tree({"@": "array", "part": "/etc/passwd"}), "KeyError"),
    "scalar": (_tree({"@": "scalar", "dtype": "O", "hex": "00"}), "are not read"),
    "short scalar": (_tree({"@": "scalar", "dtype": "<f8", "hex": "00"}), "ValueError"),
    "long scalar": (_tree({"@": "scalar", "dtype": "<f8", "hex": "00" * 16}), "ValueError"),
    "odd scalar": (_tree({"@": "scalar", "dtype": "|b1", "hex": "02"}), "truth values"),
    "object": (_tree({"@": "object", "name": "x", "state": {}}), "not known"),
    "nameless": (_tree({"@": "object", "name": 3, "state": {}}), "nothing that skuq writes"),
    "elements": (_tree({"@": "objects", "shape": [3], "items": [1, 2]}), "not as many elements"),
    "shape": (_tree({"@": "objects", "shape": [-1], "items": [1]}), "not as many"),
    "nested": (_tree({"@": "objects", "shape": [1], "items": [[]]}), "more than scalars"),
    "deep JSON": (_text(b"[" * 100_000 + b"]" * 100_000), "RecursionError"),
    "deep lists": (_text(b"[" * 150 + b"]" * 150), "more than 100 levels"),
    "deep dicts": (_text(b'{"a":' * 150 + b"1" + b"}" * 150), "more than 100 levels"),
    "digits": (_text(b"9" * 5000), "ValueError"),
    "no JSON": (_text(b"[1"), "JSONDecodeError"),
    "no UTF-8": (_text(b'"\xff"'), "other characters than those of ASCII"),
    "no text": (with_member(of(["x" * 5000]), "texts/0.txt", b"\xff\xff"), "UnicodeDecodeError"),
    # Costs
    "many values": (_text(b"[" + b"[]," * 2_000_000 + b"[]]"), "at most 2500000 are read"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_from_bytes_refuses(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data, message = HOSTILE[name]
    tracemalloc.start()
    try:
        refused(data, f"^the file.* cannot be read: (?s:.*){message}")
        assert tracemalloc.get_traced_memory()[1] < 50 * 2**20
    finally:
        tracemalloc.stop()
    assert not os.listdir(tmp_path)


def test_from_bytes_names_newer_versions():
    data = _with_header(format_version=3, versions={"skuq": "9.9"})
    with pytest.raises(FileVersionError, match=r"newer skuq \(skuq 9.9\).*Upgrade"):
        back(data)


@cases(
    ("module", "limit", "n", "tree", "message"),
    (_archive, "MAX_TEXT", 10_000, [f"{k}" + "x" * 5000 for k in range(9)], "would grow"),
    (_archive, "MAX_TEXT", 17_000, ["ä" * 4500], "than 17000 bytes of memory"),
    (_archive, "MAX_PARTS", 5, [np.zeros(k) for k in range(9)], "in 11 parts"),
    (_trees, "MAX_NODES", 50, list(range(99)), "at most 50 are read"),
    (_trees, "MAX_TEXT_NODES", 9000, ["x," * 5000, "y," * 5000], "too long to be parsed"),
    (_trees, "MAX_PRICE", 50, [{"a": {k: 0}} for k in range(26)], "too many objects"),
    (_trees, "MAX_REFERRED", -30_000, [np.zeros(1000)] * 9, "too often"),
)
def test_limits_of_reading_and_writing_agree(monkeypatch, module, limit, n, tree, message):
    data = of(tree)
    monkeypatch.setattr(module, limit, n)
    monkeypatch.setattr(_archive, limit, n, raising=False)
    refused(data, message)
    with pytest.raises(UnsavableError):
        of(tree)


def test_from_bytes_takes_no_time_for_places():
    # A place is put in words only when it is asked for.
    deep = {"k" * 10**5: 1}
    for _ in range(90):
        deep = {"k" * 10**5: deep, "all": list(range(100))}
    assert back(_text(json.dumps(deep).encode())) == deep


def test_write_and_read(tmp_path):
    path = tmp_path / "tree.skuq"
    for tree in (1, TREE):
        write(path, tree, kind="tree")
    assert_same(TREE, read(path, kind="tree"))
    assert_same(TREE, read(str(path), kind="tree"))
    with pytest.raises(FileNotFoundError):
        read(tmp_path / "none", kind="tree")
    with pytest.raises(IsADirectoryError):
        read(tmp_path, kind="tree")
    with pytest.raises(FileFormatError, match=r"tree\.skuq cannot be read: it holds a 'tree'"):
        read(path, kind="trial")
    write(path, 1, kind="estimator")
    with pytest.raises(FileFormatError, match=r"not a 'tree'\. Read it with load of skuq\."):
        read(path, kind="tree")
    assert os.listdir(tmp_path) == ["tree.skuq"]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="named pipes are a matter of Unix")
def test_read_refuses_pipes_and_devices(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", "/dev/zero"):
        with pytest.raises(FileFormatError, match="not a file"):
            read(path, kind="tree")


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


@pytest.mark.parametrize(("name", "error"), [("none/file", FileNotFoundError), ("folder", OSError)])
def test_atomic_write_names_the_file_in_errors(tmp_path, name, error):
    (tmp_path / "folder").mkdir()
    with pytest.raises(error) as caught:
        atomic_write(tmp_path / name, b"x")
    assert caught.value.filename == str(tmp_path / name)
    assert caught.value.errno is not None and ".tmp" not in str(caught.value)
    assert os.listdir(tmp_path) == ["folder"]


def test_atomic_write_gives_permissions_of_new_files(tmp_path):
    (tmp_path / "plain").touch()
    atomic_write(tmp_path / "file", b"x")
    assert (tmp_path / "file").stat().st_mode == (tmp_path / "plain").stat().st_mode
