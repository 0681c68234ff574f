"""Malicious and damaged files are refused, and no code in them is run."""

import copy
import functools
import json
import os
import shutil
import sys
import tempfile
import warnings
from collections import Counter

import numpy as np
import pandas as pd
import pytest
from archives import packed, to_bytes, unpacked, with_member, with_tree
from heads import build_mlp
from sklearn.linear_model import BayesianRidge
from sklearn.preprocessing import FunctionTransformer
from tiers import cases, slow_after
from training_data import HeldOut

import skuq
from skuq.backend import keras
from skuq.exceptions import FileFormatError
from skuq.networks import MLP, DenseSpace, EpiNet, OperatorNetwork, TabularSpace
from skuq.networks._safe import check_network
from skuq.persistence import dumps, loads
from skuq.training import Training

rng = np.random.default_rng(0)
X = rng.normal(size=(30, 2))
Y = X[:, 0] + 0.1 * rng.normal(size=30)
FRAME = pd.DataFrame({"a": X[:, 0], "kind": rng.choice(["u", "v"], 30)})
SMALL = {"network": MLP(3), "epochs": 2, "random_state": 0}


@functools.cache
def saved():
    return dumps(skuq.DeepEnsembleRegressor(2, **SMALL).fit(FRAME, Y))


def refused(data, match=None, **options):
    with pytest.raises(FileFormatError, match=match):
        loads(data, **options)


def _objects(item, name):
    """All stored objects of a name in a decoded tree."""
    found = []
    if isinstance(item, dict):
        if item.get("@") == "object" and item["name"] == name:
            found.append(item)
        item = list(item.values())
    if isinstance(item, list):
        for part in item:
            found += _objects(part, name)
    return found


def changed(name, change):
    """The saved ensemble where ``change(object)`` was made to the first object of a name."""

    def with_change(tree):
        change(_objects(tree, name)[0])
        return tree

    return with_tree(saved(), with_change)


def set_state(**fields):
    return lambda item: item["state"].update(fields)


def exchange(first, second):
    """Exchange two attributes of a stored object."""

    def with_exchange(item):
        state = item["state"]
        state[first], state[second] = state[second], state[first]

    return with_exchange


# -------------------------------------------------------------------------------- objects


# Names of what is not registered: of other packages, and of skuq.
@cases(
    "name",
    *("os.system", "skuq.estimators._nomu._training.NomuTrainer", "catalog.CatalogFolder"),
    *("sklearn.pipeline.Pipeline", "networks.GaussianHead.evil", "networks.build_mlp"),
    *("training.train_stack", "fitted.attach", "tables._load_saved", "load.__globals__"),
    *("__builtins__.eval", "lazy_loader.attach", "networks.__getattr__", "", "x" * 10**6),
    *("networks._heads.GaussianHead", "networks.DenseSpace.Scaling"),
)
def test_loads_refuses_classes_that_are_not_registered(name):
    refused(changed("tables.Scaling", lambda item: item.update(name=name)), "is not known")


SCALAR = {"@": "scalar", "dtype": "<f4"}
NUMBERED = {"@": "dict", "items": [[1, 2]]}
OTHER_NETWORK = build_mlp((2,), 2, [3]).to_json().replace('"units": 3', '"units": 9')


@cases(
    ("name", "change", "message"),
    ("catalog.Member", lambda item: item.update(state=[1]), "nothing that skuq writes"),
    ("catalog.Member", lambda item: item.update(state=NUMBERED), "names are no strings"),
    ("catalog.Member", lambda item: item["state"].pop("network"), "KeyError: 'network'"),
    ("catalog.Member", lambda item: item["state"].pop("history"), "lacks field 'history'"),
    ("catalog.Member", set_state(evil=1), "no field 'evil'"),
    ("networks.GaussianHead", set_state(evil=1), "no field 'evil'"),
    (
        "estimators.DeepEnsembleRegressor",
        lambda item: item["state"].pop("bootstrap"),
        "lacks the parameter 'bootstrap'",
    ),
    ("tables.Scaling", set_state(__class__=1), "no attribute '__class__'"),
    ("tables.Scaling", set_state(**{"a b": 1}), "no attribute 'a b'"),
    ("estimators.DeepEnsembleRegressor", set_state(__dict__={}), "no attribute '__dict__'"),
    # Members that do not fit their network
    ("catalog.Member", set_state(weights=[0.0]), "no vector of float32"),
    ("catalog.Member", set_state(weights={**SCALAR, "hex": "00" * 4}), "no vector"),
    ("catalog.Member", set_state(state=[]), "no tuple of arrays"),
    ("catalog.Member", set_state(state={"@": "tuple", "items": [1]}), "no tuple of arrays"),
    ("catalog.Member", set_state(network=3), "network is not loaded"),
    ("catalog.Member", set_state(network=build_mlp((2,), 2, [4]).to_json()), "its network 22"),
    ("catalog.Member", set_state(network=OTHER_NETWORK), "its network 47"),
    # Arrays of `FarUncertainty` with shapes or numbers that do not fit together
    ("fitted.FarUncertainty", exchange("rows", "y"), "'rows' has shape .* fits no other"),
    ("fitted.FarUncertainty", exchange("mean", "slopes"), "'slopes' has shape"),
    ("fitted.FarUncertainty", exchange("rows", "centre"), "'centre' is no array .* 1 axes"),
    ("fitted.FarUncertainty", exchange("near", "doubt"), "'doubt' is no array"),
    ("fitted.FarUncertainty", set_state(kernel="linear"), "kernel is not known"),
    ("fitted.FarUncertainty", set_state(noise=-1.0), "'noise' is no positive number"),
    ("fitted.FarUncertainty", set_state(length="long"), "'length' is no positive number"),
)
def test_loads_refuses_states_that_do_not_fit(name, change, message):
    refused(changed(name, change), message)


def test_loads_refuses_what_is_no_estimator():
    for thing in (1, [1], HeldOut(None, X, Y)):
        refused(to_bytes(thing, kind="estimator"), "no estimator")
    header, members = unpacked(saved())
    for kind in ("trial", "search"):
        refused(packed({**header, "kind": kind}, members), f"it holds a '{kind}'")


def _held(value, **arrays):
    """A saved estimator with a stored value in the place of a parameter."""
    arrays = [np.zeros(3, "M8[ns]"), np.zeros(3, bool), np.array(["a", "b", "c"])]
    data = dumps(skuq.DeepEnsembleRegressor(random_state=arrays))

    def change(tree):
        tree["state"]["random_state"] = value
        return tree

    return with_tree(data, change)


def _object(name, /, **state):
    return {"@": "object", "name": name, "state": state}


ARRAY = {"@": "array", "part": "arrays/0.npy"}  # three dates
BYTES = {"@": "array", "part": "arrays/1.npy"}  # three truth values
TEXTS = {"@": "array", "part": "arrays/2.npy"}


def _frame(*columns, **changes):
    index = {"dtype": "object", "values": [0, 1, 2]}
    state = {"columns": columns, "labels": list(range(len(columns))), "index": index}
    state["names"] = [None, None]
    return _object("pandas.DataFrame", **{**state, **changes})


def _zone(zone):
    return _frame({"dtype": "datetimetz", "values": ARRAY, "zone": zone})


def _generator(kind, **fields):
    """The stored form of a generator, with other fields."""
    generator = np.random.Generator(getattr(np.random, kind)(1))
    _, members = unpacked(dumps(skuq.DeepEnsembleRegressor(random_state=generator)))
    stored = json.loads(members["tree.json"])["state"]["random_state"]
    inner = stored["state"]["state"] if "pos" in fields else stored["state"]
    inner.update(fields)
    return stored


MANY = [*range(999)]
PAIRS = {"@": "dict", "items": [["start", 0], ["stop", 0], ["step", 0]]}
OBJECTS = {
    "no generator": _generator("PCG64", bit_generator="Evil"),
    "function": _generator("PCG64", bit_generator="default_rng"),
    "no state": _generator("PCG64", state=3),
    "odd state": _generator("PCG64", state={"state": "x", "inc": 1}),
    **{f"pos {p}": _generator("MT19937", pos=p) for p in (-1, 10**6, 1.5, None)},
    **{f"buffer_pos {p}": _generator("Philox", buffer_pos=p) for p in (-1, 5, 1.5, None)},
    "type": _object("numpy.dtype", dtype="V8", is_type=False),
    "no type": _object("numpy.dtype"),
    "path": _object("pathlib.Path", path=3),
    "columns": _frame(columns=1),
    "index": _frame(index=[]),
    "category": _frame({"dtype": "category", "values": ARRAY}),
    "column": _frame({"dtype": "int8", "values": 3}),
    "part": _object("part", name=3, description=""),
    "no part": _object("part"),
    "skops": _object("sklearn", name="x", data=[1]),
    "space": _object("networks.Space", decisions=[], more=1),
    "decisions": _object("networks.Decisions", architecture=1),
    "scores": _object("tables.TargetTransform.Scores", scores=[1], values=[1]),
    "many scores": _object("tables.TargetTransform.Scores", scores=MANY, values=MANY),
    "path as zone": _zone("dateutil//etc/passwd"),
    "zone": _zone("dateutil/Europe/Berlin"),
    "file as zone": _zone("/usr/share/zoneinfo/Europe/Berlin"),
    "parent as zone": _zone("../zoneinfo/Europe/Berlin"),
    # Each column copies the array.
    "many columns": _frame(*[{"dtype": "int8", "values": ARRAY}] * 900_000),
    # Small in the file and large in memory, or slow.
    "wide values": _frame({"dtype": "Float64", "values": BYTES, "missing": BYTES}),
    "column of texts": _frame({"dtype": "object", "values": TEXTS}),
    "long path": _object("pathlib.Path", path="a/" * 2049),
    "many names": _frame(*[{"dtype": "object", "values": [0, 1, 2]}] * 4001),
    "many tables": [_frame({"dtype": "object", "values": [0, 1, 2]})] * 4001,
    "many generators": [_generator("PCG64")] * 2001,
    "many paths": [_object("pathlib.Path", path="a")] * 4001,
    "many estimators": [_object("sklearn.StandardScaler")] * 40_001,
    "many objects of pairs": [_object("slice") | {"state": PAIRS}] * 4001,
    "colliding keys": {"@": "dict", "items": [[(k + 9) * (2**61 - 1), 0] for k in range(60_000)]},
}


watch_opened = []  # lists that get the names of opened files of a stranger's choice
sys.addaudithook(
    lambda event, arguments: (
        event == "open"
        and watch_opened
        and any(text in str(arguments[0]) for text in ("passwd", "Berlin"))
        and watch_opened[0].append(arguments[0])
    )
)


@pytest.mark.parametrize("name", OBJECTS)
def test_loads_refuses_broken_objects(name):
    opened = []
    watch_opened.append(opened)
    try:
        refused(_held(OBJECTS[name]), "cannot be read")
    finally:
        watch_opened.clear()
    assert not opened


def test_loads_knows_time_zones():
    for zone in ("Europe/Berlin", "UTC+01:30"):
        assert str(loads(_held(_zone(zone))).random_state.dtypes[0].tz) == zone


def _network(**layer):
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
    {"class_name": "Popen", "module": "subprocess"},
    {"class_name": "Dense", "module": "evil.layers"},
    {"class_name": "Dense", "module": None},
    {"class_name": "get_file", "module": "keras.utils"},
    {"class_name": "function", "config": "get_file", "registered_name": "function"},
    {"class_name": "function", "module": "builtins", "config": "eval"},
    {"class_name": "function", "module": "keras.utils", "config": "relu"},
    {"class_name": "__lambda__", "config": {"value": "evil"}},
    {"class_name": "__typespec__", "spec_name": "x", "module": "evil"},
    {"class_name": "__tensor__", "config": {"value": [1], "dtype": "string"}},
    {"class_name": "__numpy__", "config": {"value": [1], "dtype": "O"}},
    {"class_name": "__numpy__", "config": None},
    {"class_name": "Evil", "registered_name": "evil>Evil", "module": "evil"},
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
def test_check_network_refuses_layers_that_do_more_than_compute(layer):
    network = _network(**layer)
    with pytest.raises(FileFormatError, match="its network is not loaded"):
        check_network(network)
    base = {"class_name": "EpistemicNetwork", "base": json.loads(network), "n_raw": 1}
    for inside in (network, json.dumps({**base, "epinet": None, "prior_scale": 0.0})):
        data = changed("catalog.Member", set_state(network=inside))
        refused(data, "members.0. cannot be read: its network is not loaded")


@cases(
    "network",
    *("", "3", "[]", "{}", "[" * 50_000 + "]" * 50_000, '{"a":' * 80 + "1" + "}" * 80),
    *(f'{{"class_name": {name}}}' for name in ("3", '"Functional"', '"EpistemicNetwork"')),
    '{"class_name": "EpistemicNetwork", "base": 3, "epinet": 3}',
    '{"class_name": "Sequential", "module": "keras", "config": 3}',
    '{"class_name": "Sequential", "module": "keras", "config": {"layers": {}}}',
    ids=lambda text: text[:30],
)
def test_loads_refuses_networks_that_are_none(network):
    refused(changed("catalog.Member", set_state(network=network)), "network")


def test_check_network_passes_networks_of_skuq():
    assert check_network(build_mlp((2,), 3, [4]).to_json()) == (2 * 4 + 4 + 4 * 3 + 3, 0)
    space = DenseSpace()
    configuration = space.decisions((2,), 2).architecture.sample(rng)
    check_network(space.build(configuration, (2,), 2).to_json())
    space = TabularSpace().bind(X)
    for embedding in ("periodic", "piecewise-linear"):
        configuration = {**space.decisions().architecture.default(), "embedding": embedding}
        configuration = {**space.decisions().hyperparameters.default(), **configuration}
        check_network(space.build(configuration, (2,), 2).to_json())


@cases(
    "build",
    lambda x: keras.layers.Conv1D(2, 2, kernel_initializer="he_normal")(x[:, :, None]),
    lambda x: keras.layers.LSTM(3)(x[:, :, None]),
    lambda x: keras.layers.Bidirectional(keras.layers.GRU(2))(x[..., None]),
    lambda x: keras.ops.sin(2 * x + 1) / keras.ops.mean(x, axis=-1, keepdims=True),
    lambda x: keras.layers.Dense(3, kernel_regularizer="l2", kernel_constraint="max_norm")(x),
    lambda x: keras.layers.Activation(keras.activations.mish)(x),
    lambda x: keras.layers.Add()([x, keras.ops.ones_like(x)]),
    lambda x: keras.ops.matmul(x, np.ones((2, 3), "float32")),
    lambda x: keras.layers.MultiHeadAttention(2, 2)(x[:, :, None], x[:, :, None]),
    lambda x: keras.layers.RNN([keras.layers.LSTMCell(2), keras.layers.GRUCell(2)])(x[..., None]),
    lambda x: keras.layers.RandomFlip()(keras.layers.Reshape((1, 2, 1))(x)),
    lambda x: keras.ops.erf(x) + keras.ops.logsumexp(x, (1,), keepdims=True) * keras.ops.rsqrt(x),
    lambda x: keras.ops.logaddexp(keras.ops.cumsum(x, 1), keras.ops.cumprod(x, 1)),
    lambda x: keras.ops.log2(x) + keras.ops.log10(x) + keras.ops.sinh(x) + keras.ops.cosh(x),
    lambda x: keras.ops.arcsin(x) + keras.ops.floor(x) + keras.ops.ceil(x) + keras.ops.round(x),
    lambda x: keras.ops.trunc(x) + keras.ops.norm(x, axis=-1, keepdims=True),
    lambda x: keras.ops.tensordot(x, np.ones((2, 3), "float32"), 1),
    lambda x: keras.ops.one_hot(keras.ops.argmax(x, axis=-1), 2) + keras.ops.celu(x),
    lambda x: keras.ops.slice(keras.ops.sort(x), (0, 0), (1, 1)),
    lambda x: keras.ops.hard_silu(x) + keras.ops.normalize(x) + keras.ops.squareplus(x),
)
def test_check_network_passes_usual_layers(build):
    x = keras.Input((2,))
    model = keras.Model(x, build(x))
    check_network(model.to_json())
    read = keras.models.model_from_json(model.to_json())
    assert read.output_shape == model.output_shape


@cases(
    "module, name",
    *(("keras.layers", "Lambda"), ("keras.layers", "StringLookup")),
    *(("keras.src.ops.core", "Map"), ("keras.src.ops.linalg", "JVP")),
)
def test_check_network_asks_for_no_registration_of_keras_classes(module, name):
    with pytest.raises(FileFormatError, match=f"'{name}' of '{module}'") as caught:
        check_network(_network(module=module, class_name=name))
    assert "register" not in str(caught.value)


def test_check_network_asks_for_registration_of_functions():
    def halved(x):
        return x / 2

    x = keras.Input((2,))
    network = keras.Model(x, keras.layers.Dense(2, activation=halved)(x)).to_json()
    with pytest.raises(FileFormatError, match="'function halved'.*register_keras_serializable"):
        check_network(network)


@keras.saving.register_keras_serializable("skuq_tests")
class Tripled(keras.layers.Layer):
    def call(self, x):
        return 3 * x


def test_check_network_asks_for_registration_of_layers(monkeypatch):
    x = keras.Input((2,))
    network = keras.Model(x, Tripled()(x)).to_json()
    check_network(network)
    names = keras.saving.get_custom_objects()
    monkeypatch.delitem(names, "skuq_tests>Tripled")
    with pytest.raises(FileFormatError, match="'Tripled'.*register_keras_serializable"):
        check_network(network)
    monkeypatch.delitem(sys.modules, "keras")  # where nothing can have been registered
    with pytest.raises(FileFormatError, match="'Tripled'"):
        check_network(network)


@pytest.mark.slow
def test_loads_counts_weights_of_networks_that_draw():
    network = OperatorNetwork(encoder_units=3, latent=3, decoder_units=3)
    settings = {"training": Training(steps=2), "random_state": 0}
    prior = EpiNet(units=3, prior_units=2, n_index=2)
    neon = skuq.NEONRegressor(network=network, prior=prior, **settings)
    data = dumps(neon.fit(X, Y))

    def change(tree):
        state = _objects(tree, "catalog.Member")[0]["state"]
        state["network"] = state["network"].replace('"latent": 3', '"latent": 4')
        return tree

    assert loads(data).n_parameters_ == neon.n_parameters_
    refused(with_tree(data, change), "weights, its network")


@functools.cache
def foreign():
    model = skuq.CalibratedUncertaintyRegressor(BayesianRidge(), cv=2).fit(X, Y)
    return dumps(model)


def _foreign_members():
    header, members = unpacked(foreign())
    names = [name for name in members if b"schema.json" in members[name]]
    assert names
    return header, members, names[0]


def _npy_of(data):
    header, members = unpacked(to_bytes(np.frombuffer(data, np.uint8), kind="x"))
    return members["arrays/0.npy"]


def test_loads_refuses_foreign_objects_that_run_something(tmp_path, monkeypatch):
    import skops.io

    monkeypatch.chdir(tmp_path)
    _, _, name = _foreign_members()
    evil = skops.io.dumps(FunctionTransformer(os.mkdir, kw_args={"a": 1}))
    data = with_member(foreign(), name, _npy_of(evil))
    refused(data, r"not known to be safe: \['(posix|nt)\.mkdir'")
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize(
    "data",
    [b"", b"x" * 100, b"PK\x05\x06" + b"\0" * 18, foreign, "compressed"],
    ids=["nothing", "text", "empty zip", "whole", "compressed"],
)
def test_loads_refuses_foreign_objects_that_are_broken(data):
    import skops.io

    _, _, name = _foreign_members()
    if data == "compressed":
        data = skops.io.dumps(BayesianRidge(), compression=8)
    data = data() if callable(data) else data
    refused(with_member(foreign(), name, _npy_of(data)), "cannot be read")


_FORBIDDEN = (
    *("os.system", "os.exec", "os.posix_spawn", "os.remove", "os.rename", "os.mkdir", "os.rmdir"),
    *("pickle.find_class", "marshal.loads"),
    *("shutil.", "socket.", "subprocess.", "tempfile.", "webbrowser."),
)


class _Watch:
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


def _raw(data, rng):
    """Damage, as disks and lines do it and as those do who do not mind the checksums."""
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
        starts = [i for i in range(len(data) - 50) if data[i : i + 2] == b"PK"]
        place = int(rng.choice(starts)) + int(rng.integers(4, 46))
        width = int(rng.choice([1, 2, 4]))
        data[place : place + width] = rng.bytes(width)
    return f"raw: {kind}", bytes(data)


_ODD = [None, True, 0, -1, 1, 2**31, 2**63, -1.5, 1e308, "", "x", "@", "a" * 200, [], {}, [[]]]
_ODD += [{"@": "tuple", "items": []}, ARRAY, {"@": "array", "part": "tree.json"}]
_ODD += [{"@": "objects", "shape": [0], "items": []}, {"@": "text", "part": "arrays/0.npy"}]
_ODD += [{"@": "object", "name": "catalog.Member", "state": {}}, float("nan")]


def _nodes(item, found):
    """All places in a JSON document, as (container, key)."""
    parts = item.items() if isinstance(item, dict) else enumerate(item)
    for key, part in parts:
        found.append((item, key))
        if isinstance(part, dict | list):
            _nodes(part, found)
    return found


def _other_json(text, rng):
    document = json.loads(text)
    for _ in range(rng.integers(1, 3)):
        nodes = _nodes(document, [])
        if not nodes:
            return json.dumps(document).encode()
        where, key = nodes[rng.integers(len(nodes))]
        other, other_key = nodes[rng.integers(len(nodes))]
        action = rng.choice(["odd", "delete", "copy", "swap", "rename", "number", "letter"])
        value = where[key]
        if action == "delete":
            del where[key]
        elif action == "copy":
            where[key] = copy.deepcopy(other[other_key])
        elif action == "swap":
            where[key], other[other_key] = copy.deepcopy((other[other_key], value))
        elif action == "rename" and isinstance(where, dict):
            new = str(rng.choice(["@", "state", "name", "items", "x", "__class__"]))
            where[new] = where.pop(key)
        elif action == "number" and type(value) in (int, float):
            where[key] = value * int(rng.choice([-1, 0, 2, 10**6])) + int(rng.integers(-1, 2))
        elif action == "letter" and isinstance(value, str) and value:
            place = int(rng.integers(len(value)))
            where[key] = value[:place] + chr(int(rng.integers(32, 127))) + value[place + 1 :]
        else:
            where[key] = copy.deepcopy(_ODD[rng.integers(len(_ODD))])
    return json.dumps(document).encode()


def _checked(header, members, rng):
    """Changes of whoever makes the checksums right."""
    members = dict(members)
    arrays = [name for name in members if name.endswith(".npy")]
    texts = [name for name in members if name.endswith(".txt")]
    kind = str(rng.choice(["tree", "tree", "array header", "array", "text", "header", "members"]))
    if kind == "text" and not texts:
        kind = "tree"
    if kind == "tree":
        members["tree.json"] = _other_json(members["tree.json"], rng)
    elif kind == "text":
        name = str(rng.choice(texts))
        members[name] = _other_json(members[name], rng)
    elif kind in ("array", "array header"):
        name = str(rng.choice(arrays))
        data = bytearray(members[name])
        end = 128 if kind == "array header" else len(data)
        for place in rng.integers(min(end, len(data)), size=rng.integers(1, 4)):
            data[place] = int(rng.integers(256) if rng.integers(2) else rng.choice([*b"0189(),'"]))
        end = int(rng.integers(len(data))) if rng.integers(5) == 0 else len(data)
        members[name] = bytes(data[:end])
    elif kind == "header":
        header = json.loads(_other_json(json.dumps(header), rng))
        if not isinstance(header, dict):
            header = {}
    else:
        one, other = rng.choice(list(members), 2)
        members[one], members[other] = members[other], members[one]
        if rng.integers(3) == 0:
            members.pop(one)
    return f"checked: {kind}", packed(header, members)


@pytest.fixture(scope="module")
def search_folder(tmp_path_factory):
    """Make the folder of a search."""
    path = tmp_path_factory.mktemp("searches")
    search = skuq.AutoDEUQRegressor(2, space=DenseSpace(1), epochs=1, refit=True, random_state=0)
    return search.set_params(catalog_dir=path).fit(X, Y).catalog_path_


def _with_parameter(name, value):
    def change(tree):
        tree["state"][name] = value
        return tree

    return change


@cases(
    ("name", "change"),
    ("estimator.skuq", _with_parameter("epochs", "144-hard_sigmoid")),
    ("estimator.skuq", _with_parameter("n_members", 0)),
    ("search.skuq", lambda tree: tree | {"parts": {"X": ARRAY}}),
    ("search.skuq", lambda tree: tree | {"space": {"X": ARRAY}}),
)
def test_from_catalog_refuses_values_of_no_search(search_folder, tmp_path, name, change):
    path = shutil.copytree(search_folder, tmp_path / "copy")
    (path / name).write_bytes(with_tree((path / name).read_bytes(), change))
    with pytest.raises(FileFormatError, match="cannot be read"):
        skuq.AutoDEUQRegressor.from_catalog(path)


def test_searches_are_read_or_refused_if_their_files_are_mutated(search_folder, tmp_path):
    outcomes, watch = Counter(), _Watch()
    for k in range(90):
        rng = np.random.default_rng([21, k])
        path = shutil.copytree(search_folder, tmp_path / "copy")
        file = rng.choice(sorted(path.rglob("*.skuq")))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # names that come twice, damaged trials
            data = file.read_bytes()
            file.write_bytes(_checked(*unpacked(data), rng)[1] if k % 4 else _raw(data, rng)[1])
            before = {file: file.stat().st_mtime_ns for file in path.rglob("*")}
            watch.on = True
            try:
                skuq.AutoDEUQRegressor.from_catalog(path)
                outcomes["loaded"] += 1
            except FileFormatError:
                outcomes["refused"] += 1
            finally:
                watch.on = False
        assert before == {file: file.stat().st_mtime_ns for file in path.rglob("*")}
        shutil.rmtree(path)
    assert not watch.seen
    assert min(outcomes["loaded"], outcomes["refused"]) > 20


def test_names_of_no_class_import_no_further_modules(monkeypatch):
    monkeypatch.delitem(sys.modules, "skuq.catalog._folder", raising=False)
    with pytest.raises(FileFormatError):
        loads(with_tree(saved(), lambda tree: tree | {"name": "catalog.Nothing"}))
    assert "skuq.catalog._folder" not in sys.modules


@pytest.mark.parametrize("n_mutations", slow_after(1, [300, 20_000]))
def test_loads_reads_or_refuses_mutated_files(tmp_path, monkeypatch, n_mutations):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    outcomes, watch = Counter(), _Watch()
    for k in range(n_mutations):
        rng = np.random.default_rng([20, k])
        base = foreign() if k % 8 == 0 else saved()  # skops writes other bytes every time
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # names that come twice, other versions
            kind, mutated = _raw(base, rng) if k % 2 else _checked(*unpacked(base), rng)
            watch.on = True
            try:
                loaded = loads(mutated)
            except FileFormatError:
                loaded = None
            finally:
                watch.on = False
        outcomes[kind, "refused" if loaded is None else "loaded"] += 1
        # Damage is found, but for bits of the zip format that nothing reads.
        assert loaded is None or not kind.startswith("raw") or dumps(loaded) == base
    assert not watch.seen and not os.listdir(tmp_path)
    assert outcomes["checked: tree", "refused"] > n_mutations / 50
    assert outcomes["checked: tree", "loaded"] > n_mutations / 100
