"""Trees and files are written and read again; damaged and malicious files are refused."""

import contextlib
import functools
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
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import skops.io as skops
from heads import build_mlp
from numpy.testing import assert_array_equal
from sklearn.linear_model import BayesianRidge
from sklearn.preprocessing import FunctionTransformer
from tiers import cases

import skuq
from skuq.backend import keras
from skuq.exceptions import FileFormatError, UnsavableError
from skuq.files import _archive, dumps, loads
from skuq.networks import MLP
from skuq.networks._member import check_network

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


def test_from_bytes_returns_any_tree_with_order_and_identity_of_arrays():
    loaded = back(of(TREE))
    assert repr(loaded) == repr(TREE) and of(loaded) == of(TREE)
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


def test_atomic_write_syncs_before_it_renames(tmp_path, monkeypatch):
    calls, fsync, replace = [], os.fsync, os.replace

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
    _archive.atomic_write(tmp_path / "file", b"12345")
    assert calls == [5, "replace", "folder"]
    (tmp_path / "plain").touch()  # permissions are those of new files
    assert (tmp_path / "file").stat().st_mode == (tmp_path / "plain").stat().st_mode


rng = np.random.default_rng(0)
X = rng.normal(size=(30, 2))
Y = X[:, 0] + 0.1 * rng.normal(size=30)
FRAME = pd.DataFrame({"a": X[:, 0], "kind": rng.choice(["u", "v"], 30)})


@functools.cache
def saved():
    small = {"network": MLP(3), "epochs": 2, "random_state": 0}
    return dumps(skuq.DeepEnsembleRegressor(2, **small).fit(FRAME, Y))


@functools.cache
def foreign():
    return dumps(skuq.CalibratedUncertaintyRegressor(BayesianRidge(), cv=2).fit(X, Y))


def unpacked(data):
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def packed(parts, method=zipfile.ZIP_DEFLATED, right_sums=True):
    """An archive of these parts, with right checksums as of an attacker, or those there."""
    if right_sums:
        parts = {name: data for name, data in parts.items() if name != "sha256sums"}
        parts["sha256sums"] = _archive._sums(parts)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for name, data in parts.items():
            archive.writestr(name, data)
    return buffer.getvalue()


def with_part(name, new, data=None, **options):
    """A saved file with other bytes of a part: `new`, or what it makes of the old ones."""
    parts = unpacked(data or saved())
    return packed({**parts, name: new(parts[name]) if callable(new) else new}, **options)


def with_header(**changes):
    return with_part("header.json", lambda text: json.dumps(json.loads(text) | changes).encode())


def with_members(network, name="networks.Member"):
    """A saved file with another network in its members, or with members of another class."""

    def change(item):
        if item.get("name") == "networks.Member":
            item["name"], item["state"]["network"] = name, network
        return item

    tree = json.loads(unpacked(saved())["tree.json"], object_hook=change)
    return with_part("tree.json", json.dumps(tree).encode())


def of_tree(tree):
    return with_part("tree.json", tree if isinstance(tree, bytes) else json.dumps(tree).encode())


def npy(array):
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, array, version=(1, 0))
    return buffer.getvalue()


def of_array(array, data=None):
    tree = of_tree({"@": "array", "part": "arrays/0.npy"})
    return with_part("arrays/0.npy", npy(array) if data is None else data, tree)


def bomb(declared):
    """An archive whose header is 16 MB of spaces, and declared to have another size."""
    data = packed({"header.json": b" " * 2**24}, right_sums=False)
    return data.replace(struct.pack("<L", 2**24), struct.pack("<L", declared))


class Evil:
    def __reduce__(self):
        return open, ("evil", "w")


def of_skops(data):
    """A file with other bytes for a foreign object; the checksums are right."""
    parts = unpacked(foreign())
    name = next(name for name in parts if b"schema.json" in parts[name])
    return with_part(name, npy(np.frombuffer(data, np.uint8)), foreign())


def out_of_place(kind, within=False):
    """A file with a generator at a position at which NumPy would read foreign memory."""
    made = np.random.RandomState(0) if kind is None else np.random.Generator(kind(0))
    bits = made._bit_generator if kind is None else made.bit_generator
    state = bits.state
    state.update(buffer_pos=10**8) if "buffer_pos" in state else state["state"].update(pos=10**8)
    bits.state = state
    if not within:
        return dumps(skuq.DeepEnsembleRegressor(random_state=made))
    transformer = FunctionTransformer()
    transformer.seed = [{"a": made}]
    return dumps(skuq.DeepEnsembleRegressor(preprocess=transformer))


def zeros(text):
    """An npy file of zeros whose header has another text for the shape."""
    return npy(np.zeros((2, 3))).replace(b"(2, 3)", text)


# name -> (maker of the file, expected message)
BROKEN = {
    "pickle": (lambda: pickle.dumps(Evil()), "no.* zip"),
    "half": (lambda: saved()[: len(saved()) // 2], "no.* zip"),
    "empty zip": (lambda: b"PK\x05\x06" + b"\0" * 18, "header.json"),
    "other zip": (lambda: packed({"header.json": b'{"format": "x"}'}), "not written by skuq"),
    "bzip2": (lambda: packed(unpacked(saved()), zipfile.ZIP_BZIP2), "another way"),
    "bomb, declared": (lambda: bomb(2**32 - 2), "would grow to 4294967294 bytes"),
    "bomb": (lambda: bomb(2), "CRC"),
    "older version": (lambda: with_header(format_version=2), "version 2.*reads version 5 only"),
    "newer version": (lambda: with_header(format_version=9), "version 9.*reads version 5 only"),
    "trial": (lambda: with_header(kind="trial"), "it holds a 'trial'.*Catalog.load"),
    "list": (lambda: _archive.to_bytes([1, 2], kind="estimator"), "holds a list"),
    # Whoever changes a file without making its checksums right
    "changed byte": (
        lambda: with_part("arrays/0.npy", lambda a: a[:-1] + b"\7", right_sums=False),
        "changed after it was written",
    ),
    "additional part": (lambda: with_part("../x", b"", right_sums=False), "checksums differ"),
    # Whoever makes them right
    "deep JSON": (lambda: of_tree(b"[" * 100_000 + b"]" * 100_000), "RecursionError"),
    "no JSON": (lambda: of_tree(b"[1"), "JSONDecodeError"),
    "path outside": (lambda: of_tree({"@": "array", "part": "/etc/passwd"}), "KeyError"),
    "pickled array": (lambda: of_array(np.array([Evil()], dtype=object)), "type object"),
    "fields": (lambda: of_array(np.ones(3, [("a", "?")])), "of type"),
    "void": (lambda: of_array(np.zeros(3, "V4")), "of type"),
    "characters": (lambda: of_array(np.full(4, 2**32 - 1, "u4").view("<U4")), "characters"),
    "large array": (lambda: of_array(None, zeros(b"(9**9)")), "ValueError"),
    "short array": (lambda: of_array(None, zeros(b"(2, 4)")), "cannot reshape"),
    "scalar": (lambda: of_tree({"@": "scalar", "dtype": "O", "hex": "00" * 8}), "type object"),
    "module": (lambda: with_header(modules=["skuq.nothing"]), "ModuleNotFoundError"),
    "number for a network": (lambda: with_members(3), "network is not loaded"),
    "deep network": (lambda: with_members("[" * 50_000), "network is not loaded"),
    "forged folder": (
        lambda: of_skops(skops.dumps(FunctionTransformer(os.mkdir, kw_args={"a": 1}))),
        r"to be safe: \['(posix|nt)\.mkdir'",
    ),
    "no skops": (lambda: of_skops(b"x" * 100), "no.* zip"),
    "compressed skops": (
        lambda: of_skops(skops.dumps(BayesianRidge(), compression=zipfile.ZIP_DEFLATED)),
        "another way",
    ),
    "old generator": (lambda: out_of_place(None), "position"),
    "generator": (lambda: out_of_place(np.random.MT19937), "position"),
    "buffer": (lambda: out_of_place(np.random.Philox), "position"),
    "generator within": (lambda: out_of_place(None, within=True), "position"),
}
BROKEN |= {
    name: (lambda name=name: of_tree({"@": "object", "name": name, "state": {}}), "is not known")
    for name in ("os.system", "sklearn.pipeline.Pipeline", "networks.GaussianHead.evil")
}


@pytest.mark.parametrize("name", BROKEN)
def test_loads_refuses(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make, message = BROKEN[name]
    data = make()
    tracemalloc.start()
    try:
        with (
            warnings.catch_warnings(action="ignore"),
            pytest.raises(FileFormatError, match=f"cannot be read: (?s:.*){message}"),
        ):
            loads(data)
        assert tracemalloc.get_traced_memory()[1] < 10 * 2**20
    finally:
        tracemalloc.stop()
    assert not os.listdir(tmp_path)


def test_modules_masks_and_objects_in_the_place_of_members_do_no_harm():
    loads(with_header(modules=["antigravity", "skuq.search._records"]))
    assert "antigravity" not in sys.modules
    read = _archive._read_npy(npy(np.array([0, 1, 2], "u1").view("?")))
    assert read.view("u1").tolist() == [0, 1, 1]
    # Only networks of members are checked when they are read; OneHot takes any attributes.
    with pytest.raises(TypeError, match="OneHot is no member"):
        loads(with_members("TFSMLayer", "tables.TablePreprocessor.OneHot")).predict(FRAME)


@pytest.mark.slow
def test_loads_refuses_mutated_files_or_reads_the_same():
    for k in range(1000):
        base, table = (foreign(), X) if k % 8 < 2 else (saved(), FRAME)
        a, b, n = np.random.default_rng([20, k]).integers([len(base), len(base), 40])
        flipped = bytes([base[a] ^ 1 << n % 8]) + base[a + 1 :]
        data = base[:a] + (flipped, b"", base[b : b + n] + base[a + 20 :])[k % 3]
        with warnings.catch_warnings(action="ignore"), contextlib.suppress(FileFormatError):
            assert_array_equal(loads(data).predict(table), loads(base).predict(table))


@cases(
    "layer",
    {"class_name": "Lambda", "config": {"function": {"class_name": "__lambda__"}}},
    {"class_name": "StringLookup", "config": {"vocabulary": "/etc/passwd"}},
    *({"class_name": "Dense", "module": module} for module in ("evil.layers", None)),
    {"class_name": "Map", "module": "keras.src.ops.core"},
    {"class_name": "get_file", "module": "keras.src.ops.nn"},
    {"class_name": "function", "config": "get_file", "registered_name": "function"},
    {"class_name": "function", "module": "keras.utils", "config": "relu"},
    {"class_name": "__lambda__", "config": {"value": "evil"}},
    {"class_name": "__typespec__", "spec_name": "x", "module": "evil"},
    {"class_name": "__tensor__", "config": {"value": [1], "dtype": "string"}},
    {"class_name": "__numpy__", "config": None},
    {"class_name": "Evil", "registered_name": "skuq>NTKDense"},
    {"class_name": "Dense", "registered_name": "evil>Evil"},
    {"class_name": ["Dense"]},
    {"config": {"a": [[{"b": {"class_name": "Lambda", "module": "keras.layers"}}]]}},
    ids=lambda layer: json.dumps(layer)[:60],
)
def test_check_network_refuses_layers_that_do_more_than_compute(layer):
    config = json.loads(build_mlp((2,), 2, [3]).to_json())
    entry = {"module": "keras.layers", "class_name": "Dense", "config": {}, "registered_name": None}
    config["config"]["layers"].append({**entry, **layer})
    epistemic = {"class_name": "EpistemicNetwork", "base": config, "n_raw": 1}
    for network in (config, epistemic):
        with pytest.raises(FileFormatError, match="its network is not loaded: "):
            check_network(json.dumps(network))


def halved(x):
    return x / 2


@keras.saving.register_keras_serializable("skuq_tests")
class Tripled(keras.layers.Layer):
    def call(self, x):
        return 3 * x


def test_check_network_passes_usual_layers_and_asks_for_registration(monkeypatch):
    x = keras.Input((2,))
    network = keras.Model(x, keras.layers.Dense(2, activation=halved)(x)).to_json()
    with pytest.raises(FileFormatError, match="'function halved'.*register_keras_serializable"):
        check_network(network)
    network = keras.Model(x, Tripled()(x)).to_json()
    check_network(network)
    monkeypatch.delitem(keras.saving.get_custom_objects(), "skuq_tests>Tripled")
    with pytest.raises(FileFormatError, match="'Tripled'.*register_keras_serializable"):
        check_network(network)
    monkeypatch.delitem(sys.modules, "keras")  # where nothing can have been registered
    with pytest.raises(FileFormatError, match="'Tripled'"):
        check_network(network)
    layers, ops, x = keras.layers, keras.ops, keras.Input((2,))
    outputs = [
        layers.Bidirectional(layers.GRU(2, kernel_initializer="he_normal"))(x[..., None]),
        layers.Dense(3, kernel_regularizer="l2", kernel_constraint="max_norm")(x),
        layers.Activation(keras.activations.mish)(x),
        layers.MultiHeadAttention(2, 2)(x[:, :, None], x[:, :, None]),
        ops.matmul(x, np.ones((2, 3), "float32")) / ops.mean(x, axis=-1, keepdims=True),
        ops.erf(x) + ops.logsumexp(x, (1,), keepdims=True) * ops.norm(x, axis=-1, keepdims=True),
        ops.slice(ops.sort(x), (0, 0), (1, 1)),
    ]
    check_network(keras.Model(x, outputs).to_json())
