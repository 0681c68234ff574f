"""Plain trees as checked files: round trips and refused files."""

import io
import json
import os
import pickle
import stat
import struct
import sys
import tracemalloc
import warnings
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.testing import assert_array_equal

import skuq
from skuq._utils import _archive
from skuq._utils._archive import atomic_write, from_bytes, read, to_bytes, write
from skuq.exceptions import FileFormatError, FileVersionError, UnsavableError

sys.path.insert(0, str(Path(__file__).parent))
from archives import packed, unpacked, with_member, with_tree  # noqa: E402

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


# ------------------------------------------------------------------------- what comes back

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
keys = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
keys |= st.tuples(keys, keys)
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
def test_trees_come_back(tree):
    data = of(tree)
    loaded = back(data)
    assert_same(tree, loaded)
    assert of(loaded) == data


@pytest.mark.parametrize(
    "tree",
    [
        {"@": "tuple", "items": [1]},
        {"@": {"@": {"@": 1}}},
        {"a": 1, 1: "a", None: 2, (1, ("x", None)): 3, 2.5: 4},
        [True, 1, 1.0, -0.0, float("nan"), float("inf"), -float("inf"), 2**63, -(2**200)],
        "half a \ud800 character",
        ["long " * 1000, "long " * 1000, "\u00fc" * 5000, "\ud800" * 5000],
        [np.float64(0.1), np.int8(-3), np.bool_(True), np.str_("x"), np.datetime64("2020-01-01")],
        [np.datetime64("NaT"), np.timedelta64(3, "25s"), np.complex64(1 + 2j), np.str_("")],
        np.array(["a", None, 1.5, float("nan"), np.int64(2)], dtype=object).reshape(1, 5),
        np.empty((3, 0, 2)),
        np.array(5.0),
        np.array(["\u00e9", "\U0001f600"]),
        np.array([["2020", "NaT"]], dtype="M8[ns]"),
        [],
        {},
        (),
    ],
    ids=str,
)
def test_examples_come_back(tree):
    assert_same(tree, back(of(tree)))


def test_empty_strings_come_back_a_character_wider():
    loaded = back(of(np.array(["", ""], dtype="<U0")))
    assert_array_equal(loaded, ["", ""])


def test_arrays_keep_their_order_and_their_identity():
    fortran = np.asfortranarray(np.arange(6).reshape(2, 3))
    strided, names = np.arange(20)[::-3], np.array(["a", None], dtype=object)
    tree = {"one": fortran, "two": [fortran, strided], "names": (names, names)}
    data = of(tree)
    loaded = back(data)
    assert_same(tree, loaded)
    assert loaded["one"].flags.f_contiguous
    assert loaded["one"] is loaded["two"][0]
    assert loaded["names"][0] is loaded["names"][1]
    assert set(unpacked(data)[1]) == {"tree.json", "arrays/0.npy", "arrays/1.npy"}


def test_mapped_arrays_are_arrays(tmp_path):
    np.save(tmp_path / "a.npy", np.arange(4.0))
    assert_same(np.arange(4.0), back(of(np.load(tmp_path / "a.npy", mmap_mode="r"))))


def test_alike_texts_are_no_bomb(monkeypatch):
    monkeypatch.setattr(_archive, "MAX_TEXT", 10_000)
    monkeypatch.setattr(_archive, "MAX_RATIO", 2)
    tree = [f"{k}" + "x" * 5000 for k in range(20)]
    data = of(tree)
    assert len(data) > 100_000
    assert back(data) == tree


def test_header_tells_what_it_is():
    header, members = unpacked(of(TREE))
    assert header["format"] == "skuq"
    assert header["format_version"] == 1
    assert header["kind"] == "tree"
    assert header["versions"]["skuq"] == skuq.__version__
    assert header["versions"]["numpy"] == np.__version__
    assert set(header["members"]) == set(members)
    np.testing.assert_array_equal(np.load(io.BytesIO(members["arrays/0.npy"])), TREE["w"])


def test_hooks_make_objects():
    def describe(value, where):
        assert str(where) == "tree['a'][1]"
        return ("range", {"start": value.start, "stop": value.stop, "own": {"@": value.step}})

    def restore(name, state, where):
        assert (name, str(where)) == ("range", "tree['a'][1]")
        return range(state["start"], state["stop"], state["own"]["@"])

    data = to_bytes({"a": [1, range(1, 9, 2)]}, kind="tree", describe=describe)
    loaded = from_bytes(data, kind="tree", restore=restore)
    assert loaded == {"a": [1, range(1, 9, 2)]}
    refused(data, r"tree\['a'\]\[1\] is an object \('range'\)")
    assert from_bytes(data, kind=("other", "tree"), restore=restore) == loaded


# ----------------------------------------------------------------------- what is not saved


def _cycle():
    tree = {"a": []}
    tree["a"].append(tree)
    return tree


def _deep(n):
    tree = 0
    for _ in range(n):
        tree = [tree]
    return tree


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"a": [1, {2}]}, r"tree\['a'\]\[1\] is a builtins.set"),
        ({"a": b"x"}, "bytes"),
        ([print], "builtin_function"),
        (_cycle(), r"tree\['a'\]\[0\] holds itself"),
        (_deep(101), "more than 100 levels"),
        ({"a": np.array([(1, 2.0)], dtype="i4,f8")}, "ndarray of"),
        ({"a": np.array([{1}], dtype=object)}, "ndarray of object"),
        ({frozenset(): 1}, "a key of type frozenset"),
        ({(1, (b"x",)): 1}, "a key of type tuple"),
        (np.ma.masked_array([1.0]), "MaskedArray"),
        (np.void(b"x"), "void"),
    ],
)
def test_what_is_not_plain_is_named(tree, message):
    with pytest.raises(UnsavableError, match=message):
        of(tree)


def test_as_deep_as_it_can_be_written_it_can_be_read():
    assert_same(_deep(100), back(of(_deep(100))))
    deep = np.array([np.float64(1), float("nan"), 2**70], dtype=object)
    for kind in (tuple, lambda parts: {1: parts[0]}, lambda parts: {"@": parts[0]}):
        tree = [deep, float("nan"), 2**70, np.float32(1)]
        for _ in range(99):
            tree = kind([tree])
        assert_same(tree, back(of(tree)))


def test_too_long_a_tree(monkeypatch):
    monkeypatch.setattr(_archive, "MAX_TEXT", 1000)
    with pytest.raises(UnsavableError, match="without its arrays"):
        of(list(range(1000)))


# ------------------------------------------------------------------------- broken files


def test_every_truncation_is_refused():
    data = of(TREE)
    for n in range(len(data)):
        refused(data[:n])


def test_a_flipped_bit_is_found_or_does_not_matter(global_random_seed):
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
    assert len(unnoticed) < 0.2 * len(data)
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        for info in archive.infolist():  # all that does not matter is dates and the like
            begin = info.header_offset + 30 + len(info.filename)
            # The last bits of a compressed stream are filling.
            end = begin + info.compress_size - (info.compress_type == zipfile.ZIP_DEFLATED)
            assert not unnoticed & set(range(begin, end))


@pytest.mark.parametrize(
    "data", [b"", b"PK", b"x" * 100, pickle.dumps([1]), b"PK\x05\x06" + b"\0" * 18]
)
def test_other_files_are_refused(data):
    refused(data, "the file cannot be read")


def test_damage_with_the_right_crc_is_found():
    header, members = unpacked(of(TREE))
    wrong = packed(header, members)
    other = bytearray(members["arrays/0.npy"])
    other[-1] ^= 1
    old = {**json.loads(zipfile.ZipFile(io.BytesIO(wrong)).read("header.json"))}
    text = json.dumps(old).encode()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("header.json", text, zipfile.ZIP_DEFLATED)
        archive.writestr("tree.json", members["tree.json"], zipfile.ZIP_DEFLATED)
        archive.writestr("arrays/0.npy", bytes(other))
    refused(buffer.getvalue(), "SHA-256")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "other"}, "not written by skuq"),
        ({"format_version": 0}, "header is broken"),
        ({"format_version": "1"}, "header is broken"),
        ({"format_version": True}, "header is broken"),
        ({"format_version": None}, "header is broken"),
        ({"versions": {"skuq": 3}}, "header is broken"),
        ({"kind": "estimator"}, "it holds a 'estimator', not a 'tree'"),
        ({"kind": {}}, "it holds a {}"),
    ],
)
def test_headers_that_are_not_ours(change, message):
    header, members = unpacked(of(TREE))
    refused(packed({**header, **change}, members), message)


def test_files_of_newer_versions_say_so():
    header, members = unpacked(of(TREE))
    newer = {**header, "format_version": 2, "versions": {"skuq": "9.9"}}
    with pytest.raises(FileVersionError, match=r"newer skuq \(skuq 9.9\).*Upgrade"):
        back(packed(newer, {**members}))


# ------------------------------------------------------------------------- hostile archives


@pytest.mark.parametrize(
    "name",
    [
        "evil.txt",
        "../evil.npy",
        "arrays/../../evil.npy",
        "/etc/evil.npy",
        "C:\\evil.npy",
        "arrays\\1.npy",
        "arrays/1.npy/",
        "arrays/",
        "arrays/01.npy",
        "arrays/-1.npy",
        "arrays/\u0661.npy",
        "texts/../0.txt",
        "",
    ],
)
def test_names_that_do_not_belong(name):
    header, members = unpacked(of(TREE))
    refused(packed(header, {**members, name: b"x"}), "does not belong|numbered|belong to nothing")


def test_names_that_end_early():
    header, members = unpacked(of([TREE, np.zeros(2)]))
    longer = {name.replace("1.npy", "1.npy_.txt"): data for name, data in members.items()}
    data = packed(header, longer)
    assert data.count(b"1.npy_.txt") == 2  # before its bytes, and in the directory
    refused(data.replace(b"1.npy_.txt", b"1.npy\0.txt"), "does not belong")


def test_a_member_that_nothing_uses():
    header, members = unpacked(of(TREE))
    refused(packed(header, {**members, "arrays/1.npy": members["arrays/0.npy"]}), "to nothing")
    refused(packed(header, {**members, "arrays/2.npy": members["arrays/0.npy"]}), "numbered")
    refused(packed(header, {**members, "texts/0.txt": b"x"}), "to nothing")
    extra = {**members, "arrays/1.npy": members["arrays/0.npy"]}
    refused(packed(header, extra, listed=members), "not those that its header lists")
    refused(packed(header, {"tree.json": members["tree.json"]}), "not there")
    refused(packed(header, {"arrays/0.npy": members["arrays/0.npy"]}), "no tree.json")


@pytest.mark.parametrize("name", ["tree.json", "header.json", "arrays/0.npy"])
def test_names_that_come_twice(name):
    header, members = unpacked(of(TREE))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        data = packed(header, members, repeat=[(name, members.get(name, b"{}"))])
    refused(data, "twice")


def _changed(name, **fields):
    def change(info):
        if info.filename == name:
            for field, value in fields.items():
                setattr(info, field, value)

    return packed(*unpacked(of(TREE)), change=change)


@pytest.mark.parametrize("name", ["tree.json", "arrays/0.npy"])
def test_links_and_devices(name):
    for mode in (stat.S_IFLNK, stat.S_IFIFO, stat.S_IFBLK, stat.S_IFDIR):
        refused(_changed(name, external_attr=(mode | 0o777) << 16), "is a link")
    assert_same(TREE, back(_changed(name, external_attr=0)))


def test_other_compressions():
    for method in (zipfile.ZIP_STORED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA):
        refused(_changed("tree.json", compress_type=method), "compressed by method|another feature")
    refused(_changed("arrays/0.npy", compress_type=zipfile.ZIP_DEFLATED), "compressed by method")


def _patched(data, name, **fields):
    """The archive with other fields in the central directory (and the member's own header)."""
    data = bytearray(data)
    central = {"flags": (8, "<H"), "crc": (16, "<L"), "packed": (20, "<L"), "size": (24, "<L")}
    central |= {"offset": (42, "<L")}
    start = data.index(b"PK\x01\x02")
    while data[start : start + 4] == b"PK\x01\x02":
        n_name, n_extra, n_comment = struct.unpack_from("<3H", data, start + 28)
        if data[start + 46 : start + 46 + n_name].decode() == name:
            for field, value in fields.items():
                place, form = central[field]
                struct.pack_into(form, data, start + place, value)
            return bytes(data)
        start += 46 + n_name + n_extra + n_comment
    raise LookupError(name)


def test_encrypted_members():
    for flags in (1, 0x8, 0x20, 0x40, 0x800):
        refused(
            _patched(of(TREE), "tree.json", flags=flags),
            "encrypted or uses|no zip file|another kind",
        )


def test_sizes_that_are_not_so():
    data = of(TREE)
    header, members = unpacked(data)
    n = len(members["arrays/0.npy"])
    refused(_patched(data, "arrays/0.npy", size=n + 1), "in two sizes")
    refused(_patched(data, "arrays/0.npy", size=2**31, packed=2**31), "cut off")
    refused(_patched(data, "arrays/0.npy", size=n - 1, packed=n - 1), "CRC-32")
    refused(_patched(data, "tree.json", size=10), "not as long as declared")
    refused(_patched(data, "tree.json", size=10**6), "not as long as declared")
    refused(_patched(data, "tree.json", size=2**31), "at most")


def test_members_that_overlap():
    data = of([np.zeros(50), np.zeros(50)])
    first, second = (data.index(name) - 30 for name in (b"arrays/0.npy", b"arrays/1.npy"))
    assert first < second
    refused(_patched(data, "arrays/1.npy", offset=first), "overlaps|another name")
    refused(_patched(data, "arrays/1.npy", offset=first + 1), "overlaps|described")


def test_bytes_around_the_archive():
    data = of(TREE)
    refused(b"#!/bin/sh\n" + data, "more than its parts")
    refused(data + b"x", "more than its parts")
    commented = data[:-2] + struct.pack("<H", 3) + b"abc"
    refused(commented, "more than its parts")


def _bomb(n_megabytes):
    """Spaces, deflated: one block again and again."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    block = packer.compress(b" " * 2**20) + packer.flush(zlib.Z_FULL_FLUSH)
    return block * n_megabytes + packer.flush()


@pytest.mark.parametrize("name", ["tree.json", "header.json", "texts/0.txt"])
@pytest.mark.parametrize("declared", [2, 64 * 2**20, 2**32 - 2])
def test_zip_bombs_do_not_go_off(name, declared):
    bomb = _bomb(4 * 1024)  # 4 GB in 4 MB
    buffer = io.BytesIO()
    tree = [TREE, "x" * 5000]
    header, members = unpacked(of(tree))
    data = packed(header, members)
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        parts = [(info, archive.read(info)) for info in archive.infolist()]
    central, count = b"", 0
    for info, part in parts:
        method = info.compress_type
        raw = part
        if method == zipfile.ZIP_DEFLATED:
            raw = zlib.compress(part, wbits=-zlib.MAX_WBITS)
        crc, size = zlib.crc32(part), len(part)
        if info.filename == name:
            raw, crc, size = bomb, 0, declared
        label = info.filename.encode()
        fields = (20, 0, method, 0, 33, crc, len(raw), size, len(label), 0)
        offset = buffer.tell()
        buffer.write(struct.pack("<4s5H3L2H", b"PK\x03\x04", *fields) + label + raw)
        central += struct.pack("<4s6H3L5H2L", b"PK\x01\x02", 20, *fields, 0, 0, 0, 0, offset)
        central += label
        count += 1
    end = (b"PK\x05\x06", 0, 0, count, count, len(central), buffer.tell(), 0)
    data = buffer.getvalue() + central + struct.pack("<4s4H2LH", *end)
    tracemalloc.start()
    try:
        refused(data, "not as long as declared|at most|grow")
        assert tracemalloc.get_traced_memory()[1] < 250 * 2**20
    finally:
        tracemalloc.stop()


def test_many_small_bombs(monkeypatch):
    tree = [f"{k}" + "x" * 10**6 for k in range(30)]
    monkeypatch.setattr(_archive, "MAX_RATIO", 10**6)
    data = of(tree)
    assert len(data) < 200_000
    monkeypatch.setattr(_archive, "MAX_RATIO", 200)
    monkeypatch.setattr(_archive, "MAX_TEXT", 2 * 10**6)
    refused(data, "would grow to")


# --------------------------------------------------------------------------- hostile arrays


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


def test_arrays_are_written_as_here():
    assert_array_equal(back(with_member(of(TREE), "arrays/0.npy", _array_file()))["w"], 0)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (_pickled(), "header that skuq does not write"),
        (_array_file("'|O'"), "does not write"),
        (_array_file("[('a', '<f8')]"), "does not write"),
        (_array_file(shape="(1000000000000,)"), "declares shape"),
        (_array_file(shape="(4294967296, 4294967296, 4294967296)"), "declares shape"),
        (_array_file(shape="(2, -3)"), "does not write"),
        (_array_file(shape="(6)"), "broken npy header"),
        (_array_file(shape="(True,)"), "does not write"),
        (_array_file(shape="(0, 999999999999999999, 999999999999999999)", body=b""), "shape"),
        (_array_file(shape="(" + "1, " * 99 + ")"), "does not write|shape"),
        (_array_file(shape="(" + "1, " * 99 + "6)"), "shape"),
        (_array_file("'<U0'", "(1000000000000,)", b""), "is not read"),
        pytest.param(
            _array_file("'<U99999999999'", "(0,)", b""),
            "no type|is not read|shape",
            marks=pytest.mark.skipif(
                np.lib.NumpyVersion(np.__version__) < "2.0.0",
                reason="a type for NumPy 1",
            ),
        ),
        (_array_file("'<f3'"), "no type"),
        (_array_file("'<M8[xyz]'"), "no type"),
        (_array_file("'|V8'"), "does not write"),
        (_array_file(body=b"\0" * 47), "bytes follow"),
        (_array_file(body=b"\0" * 49), "bytes follow"),
        (_array_file(version=b"\x02\x00"), "version"),
        (_array_file(version=b"\x09\x09"), "version"),
        (_array_file(header="{'descr': __import__('os').system('touch evil')}"), "does not write"),
        (_array_file(header="(" * 3000), "does not write"),
        (_array_file(header=" " * 9000), "does not write"),
        (b"", "no npy file"),
        (b"\x93NUMPY\x01\x00\xff\xff", "does not write"),
        (_array_file("'|b1'", "(3,)", b"\x01\x02\x00"), "truth values"),
        (_array_file("'<U1'", "(1,)", b"\xff\xff\xff\xff"), "beyond Unicode"),
        (_array_file("'>U1'", "(1,)", b"\x00\x11\x00\x00"), "beyond Unicode"),
    ],
)
def test_arrays_that_are_not_what_they_say(data, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tracemalloc.start()
    try:
        refused(with_member(of(TREE), "arrays/0.npy", data), message)
        assert tracemalloc.get_traced_memory()[1] < 10 * 2**20
    finally:
        tracemalloc.stop()
    assert not os.listdir(tmp_path)


# ---------------------------------------------------------------------------- hostile trees


def _tag(**fields):
    return {("@" if name == "tag" else name): value for name, value in fields.items()}


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        (_tag(tag="nothing"), "not as skuq writes a 'nothing'"),
        (_tag(tag=None), "not as skuq writes"),
        (_tag(tag=["tuple"]), "not as skuq writes"),
        (_tag(tag="tuple"), "not as skuq writes"),
        (_tag(tag="tuple", items=3), "no list of items"),
        (_tag(tag="tuple", items=[], more=1), "not as skuq writes"),
        (_tag(tag="dict", items=[[1]]), "not a key and a value"),
        (_tag(tag="dict", items=[1]), "not a key and a value"),
        (_tag(tag="dict", items={"a": 1}), "no list of items"),
        (_tag(tag="dict", items=[[1, 2], [1, 3]]), "a key twice"),
        (_tag(tag="dict", items=[[[1], 2]]), "one that is none"),
        (_tag(tag="dict", items=[[{"a": 1}, 2]]), "one that is none"),
        (_tag(tag="array", index=1), "not there"),
        (_tag(tag="array", index=-1), "not there"),
        (_tag(tag="array", index=True), "not there"),
        (_tag(tag="array", index="0"), "not there"),
        (_tag(tag="objects", index=0), "not there"),
        (_tag(tag="text", index=0), "not there"),
        (_tag(tag="int", hex=3), "no whole number"),
        (_tag(tag="int", hex="0xg"), "no whole number"),
        (_tag(tag="float", value="1"), "no number"),
        (_tag(tag="float", value=[]), "no number"),
        (_tag(tag="scalar", dtype="O", hex="00"), "is not read"),
        (_tag(tag="scalar", dtype="<f8", hex="00"), "has 1 bytes"),
        (_tag(tag="scalar", dtype="<f8", hex="zz"), "no scalar"),
        (_tag(tag="scalar", dtype="<f8", hex=None), "no scalar"),
        (_tag(tag="scalar", dtype="|b1", hex="02"), "truth values"),
        (_tag(tag="scalar", dtype="<U999999999999", hex=""), "no type|bytes"),
        (_tag(tag="scalar", dtype=None, hex=""), "is not read"),
        (_tag(tag="object", name="x", state={}), "not allowed here"),
        (_tag(tag="object", name=3, state={}), "no name of a class"),
    ],
)
def test_trees_that_are_not_ours(tree, message):
    refused(
        with_tree(of(TREE), lambda document: {**document, "tree": [document["tree"], tree]}),
        message,
    )


@pytest.mark.parametrize(
    ("stored", "message"),
    [
        ([[3], [1, 2]], "not as many elements"),
        ([[10**12, 10**12], []], "not as many elements"),
        ([[-1], [1]], "not as many elements"),
        ([[True], [1]], "not as many elements"),
        ([[1.0], [1]], "not as many elements"),
        ([[2]], "no array of objects"),
        ({}, "no array of objects"),
        ([[1], [[]]], "more than scalars"),
        ([[1], [_tag(tag="objects", index=0)]], "more than scalars"),
        ([[1], [_tag(tag="array", index=0)]], "more than scalars"),
        ([[1], [{}]], "more than scalars"),
        ([[0, 10**18, 10**18], []], "impossible shape"),
        ([[1] * 99, [1]], "impossible shape"),
    ],
)
def test_object_arrays_that_are_not_ours(stored, message):
    def change(document):
        tree = [document["tree"], {"@": "objects", "index": 0}]
        return {"tree": tree, "objects": [stored]}

    refused(with_tree(of(TREE), change), message)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"[" * 100_000 + b"]" * 100_000, "JSON|nested"),
        (b'{"tree": ' + b"[" * 100_000 + b"]" * 100_000 + b', "objects": []}', "JSON|nested"),
        (b'{"tree": ' + b"[" * 150 + b"]" * 150 + b', "objects": []}', "more than 100 levels"),
        (b'{"tree": ' + b'{"a":' * 150 + b"1" + b"}" * 150 + b', "objects": []}', "100 levels"),
        (b'{"tree": NaN, "objects": []}', "no number of JSON"),
        (b'{"tree": 1e999, "objects": []}', "beyond floats"),
        (b'{"tree": ' + b"9" * 5000 + b', "objects": []}', "not the JSON"),
        (b'{"tree": 1}', "not what skuq writes"),
        (b'{"tree": 1, "objects": {}}', "no list of object arrays"),
        (b'{"tree": 1, "objects": [[[0], []]]}', "belong to nothing"),
        (b"[]", "not what skuq writes"),
        (b"", "not the JSON"),
        (b'{"tree": "\xff", "objects": []}', "not the JSON"),
        (b'{"tree": 1, "objects": []', "not the JSON"),
    ],
)
def test_texts_that_are_not_ours(text, message):
    header, _ = unpacked(of(1))
    refused(packed(header, {"tree.json": text}), message)


def test_broken_texts():
    tree = ["x" * 5000]
    assert back(with_member(of(tree), "texts/0.txt", b"y")) == ["y"]
    refused(with_member(of(tree), "texts/0.txt", b"\xff\xff"), "no text")


def test_long_keys_and_deep_trees_take_no_time():
    # A place is put in words only when it is asked for.
    deep = {"k" * 10**5: 1}
    for _ in range(90):
        deep = {"k" * 10**5: deep, "all": list(range(100))}
    text = json.dumps({"tree": deep, "objects": []}).encode()
    assert back(packed(unpacked(of(1))[0], {"tree.json": text})) == deep


# -------------------------------------------------------------------------------- the disk


def test_files_are_written_and_read(tmp_path):
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
def test_pipes_and_devices_are_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", "/dev/zero"):
        with pytest.raises(FileFormatError, match="not a file"):
            read(path, kind="tree")


@pytest.mark.parametrize("call", ["replace", "fsync"])
def test_a_write_that_fails_leaves_the_old_file(tmp_path, monkeypatch, call):
    path = tmp_path / "file"
    atomic_write(path, b"old")

    def fail(*args):
        raise OSError("disk full")

    monkeypatch.setattr(os, call, fail)
    with pytest.raises(OSError, match="disk full"):
        atomic_write(path, b"new")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]


def test_a_file_is_on_the_disk_before_it_has_its_name(tmp_path, monkeypatch):
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
def test_errors_name_the_file_and_not_its_neighbour(tmp_path, name, error):
    (tmp_path / "folder").mkdir()
    with pytest.raises(error) as caught:
        atomic_write(tmp_path / name, b"x")
    assert caught.value.filename == str(tmp_path / name)
    assert caught.value.errno is not None and ".tmp" not in str(caught.value)
    assert os.listdir(tmp_path) == ["folder"]


def test_permissions_are_those_of_new_files(tmp_path):
    (tmp_path / "plain").touch()
    atomic_write(tmp_path / "file", b"x")
    assert (tmp_path / "file").stat().st_mode == (tmp_path / "plain").stat().st_mode
    with pytest.raises(FileNotFoundError):
        atomic_write(tmp_path / "nowhere" / "file", b"x")
