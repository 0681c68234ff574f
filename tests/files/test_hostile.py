"""Malicious and damaged files are refused, and no code in them is run."""

import functools
import io
import json
import os
import pickle
import struct
import sys
import tempfile
import tracemalloc
import warnings
import zipfile
import zlib

import numpy as np
import pandas as pd
import pytest
from heads import build_mlp
from sklearn.linear_model import BayesianRidge
from sklearn.preprocessing import FunctionTransformer, SplineTransformer
from tiers import cases

import skuq
from skuq.backend import keras
from skuq.exceptions import FileFormatError
from skuq.files import _archive, dumps, loads
from skuq.files import _archive as _trees
from skuq.networks import MLP
from skuq.networks._member import check_network

rng = np.random.default_rng(0)
X = rng.normal(size=(30, 2))
Y = X[:, 0] + 0.1 * rng.normal(size=30)
FRAME = pd.DataFrame({"a": X[:, 0], "kind": rng.choice(["u", "v"], 30)})
SMALL = {"network": MLP(3), "epochs": 2, "random_state": 0}


@functools.cache
def saved():
    return dumps(skuq.DeepEnsembleRegressor(2, **SMALL).fit(FRAME, Y))


@functools.cache
def foreign():
    return dumps(skuq.CalibratedUncertaintyRegressor(BayesianRidge(), cv=2).fit(X, Y))


# ----------------------------------------------------------------------- files with one fault


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
    parts = unpacked(saved() if data is None else data)
    return packed({**parts, name: new(parts[name]) if callable(new) else new}, **options)


def with_header(**changes):
    return with_part("header.json", lambda text: json.dumps(json.loads(text) | changes).encode())


def _objects(item, name):
    """All stored objects of a name in a decoded tree."""
    found = [item] if isinstance(item, dict) and item.get("name") == name else []
    parts = item.values() if isinstance(item, dict) else item if isinstance(item, list) else []
    return found + [one for part in parts for one in _objects(part, name)]


def changed(name, **fields):
    """A saved file with other attributes of the first object of a name."""

    def change(text):
        tree = json.loads(text)
        _objects(tree, name)[0]["state"].update(fields)
        return json.dumps(tree).encode()

    return with_part("tree.json", change)


def of_tree(tree):
    return with_part("tree.json", tree if isinstance(tree, bytes) else json.dumps(tree).encode())


def of_class(name):
    return of_tree({"@": "object", "name": name, "state": {}})


def npy(descr="'<f8'", shape="(2, 3)", body=b"\0" * 48, header=None):
    text = (header or f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}").encode()
    text += b" " * (-(len(text) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + body


def of_array(*args, **options):
    array = {"@": "array", "part": "arrays/0.npy"}
    parts = unpacked(of_tree(array)) | {"arrays/0.npy": npy(*args, **options)}
    return packed(parts)


def bomb(declared):
    """An archive whose header is 4 GB of spaces and declared to be shorter."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    block = packer.compress(b" " * 2**20) + packer.flush(zlib.Z_FULL_FLUSH)
    raw, label = block * 4096 + packer.flush(), b"header.json"
    fields = (20, 0, 8, 0, 33, zlib.crc32(b"  "), len(raw), declared, len(label), 0)
    local = struct.pack("<4s5H3L2H", b"PK\x03\x04", *fields) + label + raw
    central = struct.pack("<4s6H3L5H2L", b"PK\x01\x02", 20, *fields, 0, 0, 0, 0, 0) + label
    end = struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, 1, 1, len(central), len(local), 0)
    return local + central + end


class Evil:
    def __reduce__(self):
        return open, ("evil", "w")


def pickled():
    buffer = io.BytesIO()
    np.save(buffer, np.array([Evil()], dtype=object), allow_pickle=True)
    return buffer.getvalue()


def of_skops(data):
    """A file with other bytes for a foreign object; the checksums are right."""
    buffer = io.BytesIO()
    np.save(buffer, np.frombuffer(data, np.uint8))
    parts = unpacked(foreign())
    name = next(name for name in parts if b"schema.json" in parts[name])
    return with_part(name, buffer.getvalue(), foreign())


def making_a_folder():
    import skops.io

    return skops.io.dumps(FunctionTransformer(os.mkdir, kw_args={"a": 1}))


def compressed():
    import skops.io

    return skops.io.dumps(BayesianRidge(), compression=zipfile.ZIP_DEFLATED)


# name -> (maker of the file, expected message)
BROKEN = {
    "nothing": (lambda: b"", "no.* zip"),
    "text": (lambda: b"x" * 100, "no.* zip"),
    "pickle": (lambda: pickle.dumps(Evil()), "no.* zip"),
    "half": (lambda: saved()[: len(saved()) // 2], "no.* zip"),
    "empty zip": (lambda: b"PK\x05\x06" + b"\0" * 18, "header.json"),
    "other zip": (lambda: packed({"header.json": b'{"format": "x"}'}), "not written by skuq"),
    "bzip2": (lambda: packed(unpacked(saved()), zipfile.ZIP_BZIP2), "another way"),
    "zip bomb, declared": (lambda: bomb(2**32 - 2), "would grow"),
    "zip bomb": (lambda: bomb(2), "JSON"),
    "older version": (
        lambda: with_header(format_version=2),
        "version 2.*reads version 3 only",
    ),
    "newer version": (lambda: with_header(format_version=9), "version 9.*reads version 3 only"),
    "trial": (lambda: with_header(kind="trial"), "it holds a 'trial'.*Catalog.load"),
    # Whoever changes a file without making its checksums right
    "changed byte": (
        lambda: with_part("arrays/0.npy", lambda a: a[:-1] + b"\7", right_sums=False),
        "changed after it was written",
    ),
    "changed tree": (
        lambda: with_part("tree.json", lambda t: t.replace(b":2", b":3", 1), right_sums=False),
        "changed after it was written",
    ),
    "additional part": (lambda: with_part("../x", b"", right_sums=False), "checksums differ"),
    # Whoever makes them right
    "deep JSON": (lambda: of_tree(b"[" * 100_000 + b"]" * 100_000), "RecursionError"),
    "deep lists": (lambda: of_tree(b"[" * 900 + b"]" * 900), "RecursionError"),
    "long number": (lambda: of_tree(b"9" * 5000), "ValueError"),
    "no JSON": (lambda: of_tree(b"[1"), "JSONDecodeError"),
    "path outside": (lambda: of_tree({"@": "array", "part": "/etc/passwd"}), "KeyError"),
    "pickled array": (lambda: with_part("arrays/0.npy", pickled()), "type object"),
    "objects": (lambda: of_array("'|O'"), "type object"),
    "object in a record": (lambda: of_array("[('a', '|O')]"), "of type"),
    "large array": (lambda: of_array(shape="(1000000000000,)"), "cannot reshape"),
    "array of no bytes": (lambda: of_array("'<U0'", "(1000000000000,)", b""), "itemsize"),
    "short array": (lambda: of_array(body=b"\0" * 40), "cannot reshape"),
    "code in an array": (lambda: of_array(header="{'descr': __import__('os').x}"), "Error"),
    "objects in a scalar": (
        lambda: of_tree({"@": "scalar", "dtype": "O", "hex": "00" * 8}),
        "type object",
    ),
    "module": (lambda: with_header(modules=["skuq.nothing"]), "ModuleNotFoundError"),
    "network": (lambda: changed("networks.Member", network=3), "network is not loaded"),
    "forged folder": (lambda: of_skops(making_a_folder()), r"to be safe: \['(posix|nt)\.mkdir'"),
    "no skops": (lambda: of_skops(b"x" * 100), "no.* zip"),
    "compressed skops": (lambda: of_skops(compressed()), "another way"),
}
BROKEN |= {
    name: (functools.partial(of_class, name), "is not known")
    for name in (
        *("os.system", "builtins.eval", "sklearn.pipeline.Pipeline", "networks.build_mlp", ""),
        *("skuq.training.train_stack", "networks.GaussianHead.evil", "load.__globals__"),
    )
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
        assert tracemalloc.get_traced_memory()[1] < 50 * 2**20
    finally:
        tracemalloc.stop()
    assert not os.listdir(tmp_path)


def test_loads_imports_modules_of_skuq_only():
    loads(with_header(modules=["antigravity", "skuq.search._records"]))
    assert "antigravity" not in sys.modules


_FORBIDDEN = (
    *("os.system", "os.exec", "os.posix_spawn", "os.remove", "os.rename", "os.mkdir", "os.rmdir"),
    *("pickle.find_class", "marshal.loads"),
    *("shutil.", "socket.", "subprocess.", "tempfile.", "webbrowser."),
)


class Watch:
    """Notes whatever this process does that loading must not."""

    def __init__(self):
        self.on, self.seen = False, []
        sys.addaudithook(self)  # there is no way to remove one

    def __call__(self, event, arguments):
        if not self.on:
            return
        writes = event == "open" and (
            set(str(arguments[1] or "")) & set("wax+") or (arguments[2] or 0) & os.O_ACCMODE
        )
        if writes or event.startswith(_FORBIDDEN):
            self.seen.append((event, arguments))


def mutated(data, rng):
    """Damage bytes, as disks and lines do it."""
    data = bytearray(data)
    kind = rng.choice(["flip", "truncate", "splice", "duplicate", "swap", "zero", "directory"])
    a, b = sorted(rng.integers(len(data), size=2))
    n = int(rng.integers(1, 40))
    if kind == "flip":
        for place in rng.integers(len(data), size=rng.integers(1, 4)):
            data[place] ^= 1 << rng.integers(8)
    elif kind == "truncate":
        del data[b:]
    elif kind == "splice":
        data[a : a + n] = data[b : b + int(rng.integers(1, 40))]
    elif kind == "duplicate":
        data[a:a] = data[a:b]
    elif kind == "swap":
        data[a : a + n], data[b : b + n] = data[b : b + n], data[a : a + n]
    elif kind == "zero":
        data[a : a + n] = bytes([int(rng.choice([0, 255]))]) * n
    else:  # fields of the directory and of the headers before the parts
        starts = [i for i in range(len(data) - 50) if data[i : i + 2] == b"PK"] or [0]
        place = int(rng.choice(starts)) + int(rng.integers(4, 46))
        data[place : place + 4] = rng.bytes(int(rng.choice([1, 2, 4])))
    return bytes(data)


@pytest.mark.slow
def test_loads_refuses_mutated_files_or_reads_the_same(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    watch, n_same = Watch(), 0
    for k in range(1000):
        base, table = (foreign(), X) if k % 8 < 2 else (saved(), FRAME)
        # Parts packed anew have right CRCs, so that only the checksums tell of the damage.
        rng = np.random.default_rng([20, k])
        if k % 2:
            data = mutated(base, rng)
        else:
            parts = unpacked(base)
            name = str(rng.choice(list(parts)))
            data = packed({**parts, name: mutated(parts[name], rng)}, right_sums=False)
        loaded = None
        with warnings.catch_warnings(action="ignore"):  # names that come twice
            watch.on = True
            try:
                loaded = loads(data)
            except FileFormatError:
                pass
            finally:
                watch.on = False
        if loaded is not None:
            n_same += 1
            assert np.array_equal(loaded.predict(table), loads(base).predict(table))
    assert not watch.seen and not os.listdir(tmp_path)
    print(f"{1000 - n_same} of 1000 mutants were refused, {n_same} predict the same.")


# ------------------------------------------------------------------------------- networks


def with_layer(**layer):
    """A network's JSON with one layer more."""
    config = json.loads(build_mlp((2,), 2, [3]).to_json())
    entry = {"module": "keras.layers", "class_name": "Dense", "config": {}, "registered_name": None}
    config["config"]["layers"].append({**entry, **layer})
    return json.dumps(config)


@cases(
    "layer",
    {"class_name": "Lambda", "config": {"function": {"class_name": "__lambda__"}}},
    {"class_name": "TFSMLayer", "config": {"filepath": "/tmp/evil"}},
    {"class_name": "TorchModuleWrapper"},
    {"class_name": "StringLookup", "config": {"vocabulary": "/etc/passwd"}},
    {"class_name": "IntegerLookup"},
    {"class_name": "TextVectorization"},
    {"class_name": "Pipeline"},
    {"class_name": "system", "module": "os"},
    {"class_name": "Dense", "module": "evil.layers"},
    {"class_name": "Dense", "module": None},
    {"class_name": "Map", "module": "keras.src.ops.core"},
    {"class_name": "get_file", "module": "keras.utils"},
    {"class_name": "function", "config": "get_file", "registered_name": "function"},
    {"class_name": "function", "module": "builtins", "config": "eval"},
    {"class_name": "function", "module": "keras.utils", "config": "relu"},
    {"class_name": "__lambda__", "config": {"value": "evil"}},
    {"class_name": "__typespec__", "spec_name": "x", "module": "evil"},
    {"class_name": "__tensor__", "config": {"value": [1], "dtype": "string"}},
    {"class_name": "__numpy__", "config": None},
    {"class_name": "Evil", "registered_name": "skuq>NTKDense"},
    {"class_name": "Dense", "registered_name": "evil>Evil"},
    {"class_name": ["Dense"]},
    {"class_name": "Bidirectional", "config": {"layer": {"class_name": "Lambda"}}},
    {"class_name": "Dense", "config": {"kernel_initializer": {"class_name": "x", "module": "os"}}},
    {"config": {"activation": {"class_name": "function", "module": "os", "config": "system"}}},
    {"config": {"a": [[{"b": {"class_name": "Lambda", "module": "keras.layers"}}]]}},
    {"build_config": {"class_name": "Lambda", "module": "keras.layers"}},
    ids=lambda layer: json.dumps(layer)[:60],
)
def test_loads_refuses_layers_that_do_more_than_compute(layer):
    network = with_layer(**layer)
    base = {"class_name": "EpistemicNetwork", "base": json.loads(network), "n_raw": 1}
    for inside in (network, json.dumps(base)):
        with pytest.raises(FileFormatError, match="cannot be read: its network is not loaded"):
            loads(changed("networks.Member", network=inside))


@pytest.mark.parametrize("network", ["", "[1", "[" * 50_000 + "]" * 50_000], ids=len)
def test_loads_refuses_networks_that_are_none(network):
    with pytest.raises(FileFormatError, match="network is not loaded"):
        loads(changed("networks.Member", network=network))


def test_objects_in_the_place_of_members_bring_no_network():
    # Only networks of members are checked when they are read.
    def disguise(text):
        tree = json.loads(text)
        for member in _objects(tree, "networks.Member"):
            member["name"] = "tables.TablePreprocessor.OneHot"  # takes any attributes
            member["state"]["network"] = with_layer(class_name="TFSMLayer")
        return json.dumps(tree).encode()

    loaded = loads(with_part("tree.json", disguise))
    with pytest.raises(TypeError, match="OneHot is no member"):
        loaded.predict(FRAME)


@cases(
    "build",
    lambda x: keras.layers.Conv1D(2, 2, kernel_initializer="he_normal")(x[:, :, None]),
    lambda x: keras.layers.Bidirectional(keras.layers.GRU(2))(x[..., None]),
    lambda x: keras.ops.sin(2 * x + 1) / keras.ops.mean(x, axis=-1, keepdims=True),
    lambda x: keras.layers.Dense(3, kernel_regularizer="l2", kernel_constraint="max_norm")(x),
    lambda x: keras.layers.Activation(keras.activations.mish)(x),
    lambda x: keras.ops.matmul(x, np.ones((2, 3), "float32")),
    lambda x: keras.layers.MultiHeadAttention(2, 2)(x[:, :, None], x[:, :, None]),
    lambda x: keras.ops.erf(x) + keras.ops.logsumexp(x, (1,), keepdims=True) * keras.ops.rsqrt(x),
    lambda x: keras.ops.trunc(x) + keras.ops.norm(x, axis=-1, keepdims=True),
    lambda x: keras.ops.slice(keras.ops.sort(x), (0, 0), (1, 1)),
)
def test_check_network_passes_usual_layers(build):
    x = keras.Input((2,))
    check_network(keras.Model(x, build(x)).to_json())


def halved(x):
    return x / 2


@keras.saving.register_keras_serializable("skuq_tests")
class Tripled(keras.layers.Layer):
    def call(self, x):
        return 3 * x


def test_check_network_asks_for_registration(monkeypatch):
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


def beyond_its_numbers(kind):
    """A generator with a position at which NumPy would read foreign memory."""
    made = np.random.RandomState(0) if kind == "RandomState" else np.random.Generator(kind(0))
    bits = made._bit_generator if kind == "RandomState" else made.bit_generator
    state = bits.state
    if "buffer_pos" in state:
        state["buffer_pos"] = 10**8
    else:
        state["state"]["pos"] = 10**8
    bits.state = state
    return made


@pytest.mark.parametrize(
    ("kind", "is_inside"),
    [
        ("RandomState", False),
        ("RandomState", True),
        (np.random.MT19937, False),
        (np.random.Philox, False),
    ],
)
def test_loads_refuses_generators_with_a_position_beyond_their_numbers(kind, is_inside):
    given = beyond_its_numbers(kind)
    inside = {"preprocess": SplineTransformer(), "random_state": 0}
    if is_inside:
        inside["preprocess"].seed = given
    model = skuq.DeepEnsembleRegressor(2, **(inside if is_inside else {"random_state": given}))
    data = dumps(model)
    with pytest.raises(FileFormatError, match="position"):
        loads(data)


@pytest.mark.parametrize(
    "array",
    [
        np.full(4, 2**32 - 1, "u4").view("<U4"),
        np.ones(3, [("a", "?")]),
        np.zeros(3, "V4"),
    ],
    ids=["characters", "fields", "void"],
)
def test_arrays_of_values_that_there_are_not_are_refused(array):
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, array, version=(1, 0), allow_pickle=False)
    with pytest.raises(FileFormatError):
        _trees._read_npy(buffer.getvalue())


def test_load_refuses_what_is_no_estimator_or_catalog(tmp_path):
    (tmp_path / "list.skuq").write_bytes(_archive.to_bytes([1, 2], kind="estimator"))
    with pytest.raises(FileFormatError, match="holds a list"):
        skuq.load(tmp_path / "list.skuq")
