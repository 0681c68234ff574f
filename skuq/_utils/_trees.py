"""Encode plain trees as JSON and npy files, and decode files that are not trusted.

Trees and their hooks are as in `_archive`. Arrays and long strings are stored apart from the JSON.
"""

from __future__ import annotations

import io
import json
import math
import re
import sys
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from skuq.exceptions import FileFormatError, UnsavableError

_DTYPE = re.compile(r"[<>|=]?[biufcUmM][0-9]{1,18}(\[[0-9]{0,9}[a-zA-Z]{1,3}\])?")
# The only form of a header that NumPy writes for plain arrays.
_NPY_HEADER = re.compile(
    rf"{{'descr': '({_DTYPE.pattern})', 'fortran_order': (?:True|False), "
    r"'shape': \((?:[0-9]{1,18}(?:, [0-9]{1,18})*)?,?\), } *\n"
)
_MAX_NPY_HEADER = 4096


def is_plain_dtype(dtype: np.dtype[Any]) -> bool:
    """Whether a dtype is of numbers, truth values, strings or dates, without pointers."""
    return _DTYPE.fullmatch(dtype.str) is not None


def encode_npy(array: np.ndarray) -> bytes:
    """Encode an array of a plain dtype as a npy file."""
    if array.dtype.itemsize == 0:  # with "<U0" a short file could claim any number of rows
        array = array.astype(array.dtype.str.replace("0", "1"))
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, array, allow_pickle=False)
    return buffer.getvalue()


def check_dtype(text: Any, where: Any) -> np.dtype[Any]:
    """Parse the text of a plain dtype."""
    if type(text) is not str or not _DTYPE.fullmatch(text):
        raise FileFormatError(f"{where} has the type {str(text)[:50]!r}, which is not read")
    try:
        dtype = np.dtype(text)
    except (TypeError, ValueError, OverflowError) as error:
        raise FileFormatError(f"{where} has no type known here ({error})") from error
    if not dtype.itemsize or dtype.hasobject:
        raise FileFormatError(f"{where} has the type {text!r}, which is not read")
    return dtype


def decode_npy(data: bytes, where: Any) -> np.ndarray:
    """Decode a npy file, whose length must fit its header."""
    file = io.BytesIO(data)
    try:
        version = np.lib.format.read_magic(file)
    except ValueError as error:
        raise FileFormatError(f"{where} is no npy file ({error})") from error
    if version != (1, 0):  # (2, 0) is for structured types with long headers
        raise FileFormatError(f"{where} has a npy header of version {version}")
    begin = file.tell() + 2
    end = begin + int.from_bytes(data[begin - 2 : begin], "little")
    text = bytes(data[begin : min(end, begin + _MAX_NPY_HEADER)]).decode("latin1")
    found = _NPY_HEADER.fullmatch(text)
    if found is None:
        raise FileFormatError(f"{where} has a npy header that skuq does not write")
    dtype = check_dtype(found[1], where)
    try:
        shape, fortran, _ = np.lib.format.read_array_header_1_0(
            file, max_header_size=_MAX_NPY_HEADER
        )
    except (ValueError, SyntaxError, TypeError) as error:
        raise FileFormatError(f"{where} has a broken npy header ({error})") from error
    if math.prod(shape) * dtype.itemsize != len(data) - end:
        raise FileFormatError(
            f"{where} declares shape {shape} of {dtype.str!r}, but {len(data) - end} bytes follow"
        )
    flat = check_values(np.frombuffer(data, dtype, offset=end), where)
    return reshape_checked(flat.copy(), shape, "F" if fortran else "C", where)


def check_values(flat: np.ndarray, where: Any) -> np.ndarray:
    """Refuse bytes that are no values of their type, which NumPy does not check."""
    if flat.dtype.kind == "b" and flat.size and flat.view(np.uint8).max() > 1:
        raise FileFormatError(f"{where} has truth values other than 0 and 1")
    if flat.dtype.kind == "U" and flat.size:
        order = flat.dtype.byteorder
        points = flat.view(np.dtype(np.uint32).newbyteorder(order))
        if points.max() > sys.maxunicode:
            raise FileFormatError(f"{where} has characters beyond Unicode")
    return flat


def reshape_checked(
    flat: np.ndarray, shape: Sequence[int], order: Literal["C", "F"], where: Any
) -> np.ndarray:
    """Reshape an array to a shape that may be impossible."""
    try:
        return flat.reshape(shape, order=order)
    except (ValueError, OverflowError) as error:
        raise FileFormatError(f"{where} has an impossible shape ({error})") from error


MAX_DEPTH = 100
MAX_TEXT = 64 * 2**20  # bytes of JSON: at worst 1.5 GB of Python objects
_LONG = 4096  # characters of a string that gets a member of its own


class _Place:
    """Place of a part in its tree; ``str(place)`` is a path for people, made on demand.

    The path has ``.key`` for an attribute of an object, and ``[key]`` for an item of a container.
    """

    __slots__ = ("attribute", "key", "parent")

    def __init__(self, parent, key, attribute=False):
        self.parent, self.key, self.attribute = parent, key, attribute

    def __str__(self):
        steps, place = [], self
        while type(place) is _Place:
            if place.attribute:
                steps.append(f".{place.key[:80]}")
            else:
                key = place.key[:80] if type(place.key) is str else place.key
                steps.append(f"[{key!r:.80}]")
            place = place.parent
        return place + "".join(reversed(steps))


class TreeEncoder:
    """Encode a tree as JSON, and collect its arrays, each once."""

    def __init__(self, describe):
        self.describe = describe
        self.arrays, self.objects = [], []
        self.texts: dict[bytes, int] = {}  # long strings and their numbers
        self._places = {}  # id of an array -> (the array, its reference)
        self._open = set()  # ids of the containers around the current part

    def encode(self, value, where):
        """Encode a part of the tree as JSON."""
        kind = type(value)
        if value is None or kind is bool:
            return value
        if kind is str:
            return value if len(value) < _LONG else self._text(value)
        if kind is int:
            return value if -(2**63) <= value < 2**63 else {"@": "int", "hex": hex(value)}
        if kind is float:
            return value if math.isfinite(value) else {"@": "float", "value": repr(value)}
        if kind in (np.ndarray, np.memmap) and _is_plain_array(value):
            return self._array(value, where)
        if isinstance(value, np.generic) and is_plain_dtype(value.dtype):
            if not value.dtype.itemsize:  # an empty string
                return {"@": "scalar", "dtype": "<U1", "hex": "00000000"}
            return {"@": "scalar", "dtype": value.dtype.str, "hex": value.tobytes().hex()}
        return self._encode_container(value, where)

    def _text(self, value):
        """Encode a long string: a reference to a text, or the string where it cannot be one."""
        try:
            data = value.encode()
        except UnicodeEncodeError:  # half a character, which JSON can write
            return value
        if len(data) > MAX_TEXT:
            return value  # the tree will be refused as too long
        return {"@": "text", "index": self.texts.setdefault(data, len(self.texts))}

    def _encode_container(self, value, where):
        """Encode a container, which must neither hold itself nor be nested too deeply."""
        if id(value) in self._open:
            raise UnsavableError(f"{where} holds itself; what is saved must be a tree.")
        if len(self._open) >= MAX_DEPTH:
            raise UnsavableError(f"{where} lies more than {MAX_DEPTH} levels deep.")
        self._open.add(id(value))
        try:
            return self._encode_items(value, where)
        finally:
            self._open.discard(id(value))

    def _encode_items(self, value, where):
        """Encode a list, tuple, dict or described object."""
        kind = type(value)
        if kind is list or kind is tuple:
            items = [self.encode(item, _Place(where, i)) for i, item in enumerate(value)]
            return items if kind is list else {"@": "tuple", "items": items}
        if kind is dict:
            return self._dict(value, where, attribute=False)
        described = self.describe(value, where) if self.describe else None
        if described is None:
            of = f" of {value.dtype}" if isinstance(value, np.ndarray) else ""
            raise UnsavableError(
                f"{where} is a {kind.__module__}.{kind.__qualname__}{of}, which cannot be saved."
            )
        name, state = described
        if type(state) is dict:
            return {"@": "object", "name": name, "state": self._dict(state, where, attribute=True)}
        return {"@": "object", "name": name, "state": self.encode(state, where)}

    def _dict(self, value, where, attribute):
        """Encode a dict; keys that are not plain strings make it a list of pairs."""
        if all(type(key) is str for key in value) and "@" not in value:
            return {
                key: self.encode(item, _Place(where, key, attribute)) for key, item in value.items()
            }
        items = []
        for key, item in value.items():
            if not _is_key(key):
                raise UnsavableError(f"{where} has a key of type {type(key).__name__}: {key!r}.")
            place = _Place(where, key)
            items.append([self.encode(key, place), self.encode(item, place)])
        return {"@": "dict", "items": items}

    def _array(self, array, where):
        """Encode an array: a reference to the place where its content is collected, once."""
        if id(array) not in self._places:
            if array.dtype == object:
                items = [self.encode(item, where) for item in array.ravel()]
                tag, stored, part = "objects", self.objects, [list(array.shape), items]
            else:
                tag, stored, part = "array", self.arrays, array
            stored.append(part)
            # The array is kept alive with its reference, as ids of freed arrays are reused.
            self._places[id(array)] = array, {"@": tag, "index": len(stored) - 1}
        return self._places[id(array)][1]


def _is_plain_scalar(value):
    return value is None or type(value) in (bool, int, float, str) or isinstance(value, np.generic)


def _is_key(value):
    if type(value) is tuple:
        return all(map(_is_key, value))
    return _is_plain_scalar(value)


def _is_plain_array(array):
    if array.dtype == object:
        return all(map(_is_plain_scalar, array.ravel()))
    return is_plain_dtype(array.dtype)


def read_json(text, name):
    """Parse JSON as strictly as skuq writes it."""
    try:
        return json.loads(bytes(text).decode("ascii"), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise FileFormatError(f"its {name} is not the JSON that skuq writes ({error})") from error


def _refuse_constant(text):
    raise ValueError(f"{text} is no number of JSON")


class TreeDecoder:
    """Decode JSON to a tree, checking every part."""

    def __init__(self, files, restore):
        self.files, self.restore = files, restore  # the files of the archive: {name: bytes}
        self.arrays, self.objects, self.texts = {}, {}, {}  # decoded, by index
        self.stored = []  # object arrays as JSON

    def decode_all(self, document, kind):
        """Decode a whole document; all its arrays and texts must be used."""
        if type(document) is not dict or set(document) != {"tree", "objects"}:
            raise FileFormatError("its tree is not what skuq writes")
        self.stored = document["objects"]
        if type(self.stored) is not list:
            raise FileFormatError("its tree has no list of object arrays")
        tree = self.decode(document["tree"], kind, 0)
        n_used = len(self.arrays) + len(self.texts)
        if n_used != len(self.files) - 2 or len(self.objects) != len(self.stored):
            raise FileFormatError("it holds arrays or texts that belong to nothing")
        return tree

    def decode(self, value, where, depth):
        """Decode a part of the tree."""
        kind = type(value)
        if kind is float and not math.isfinite(value):  # "1e999"
            raise FileFormatError(f"{where} is a number beyond floats")
        if kind is not list and kind is not dict:
            return value
        if depth > MAX_DEPTH:
            raise FileFormatError(f"{where} is nested more than {MAX_DEPTH} levels deep")
        if kind is list:
            return self._list(value, where, depth + 1)
        if "@" not in value:
            return self._fields(value, where, depth + 1)
        tag = value["@"]
        fields, method = _TAGS.get(tag, (None, None)) if type(tag) is str else (None, None)
        if set(value) != fields:
            raise FileFormatError(f"{where} is not as skuq writes a {str(tag)[:50]!r}")
        return method(self, value, where, depth + 1)

    def _list(self, value, where, depth):
        """Decode the items of a list."""
        if type(value) is not list:
            raise FileFormatError(f"{where} has no list of items")
        return [self.decode(item, _Place(where, i), depth) for i, item in enumerate(value)]

    def _fields(self, value, where, depth, attribute=False):
        """Decode a dict whose keys are strings."""
        return {
            key: self.decode(item, _Place(where, key, attribute), depth)
            for key, item in value.items()
        }

    def _tuple(self, value, where, depth):
        return tuple(self._list(value["items"], where, depth))

    def _dict(self, value, where, depth):
        """Decode a dict that was encoded as a list of pairs."""
        if type(value["items"]) is not list:
            raise FileFormatError(f"{where} has no list of items")
        decoded = {}
        for i, pair in enumerate(value["items"]):
            if type(pair) is not list or len(pair) != 2:
                raise FileFormatError(f"{where} has an item that is not a key and a value")
            place = _Place(where, i)
            key = self.decode(pair[0], place, depth)
            if not _is_key(key) or key in decoded:
                raise FileFormatError(f"{where} has a key twice, or one that is none")
            decoded[key] = self.decode(pair[1], place, depth)
        return decoded

    def _object(self, value, where, depth):
        """Decode an object; `restore` makes it from the name of its class and its state."""
        name, state = value["name"], value["state"]
        if type(name) is not str:
            raise FileFormatError(f"{where} has no name of a class")
        if self.restore is None:
            raise FileFormatError(
                f"{where} is an object ({name[:100]!r}), which is not allowed here"
            )
        if type(state) is dict and "@" not in state:  # attributes by name
            state = self._fields(state, where, depth, attribute=True)
        else:
            state = self.decode(state, where, depth)
        return self.restore(name, state, where)

    def _int(self, value, where, depth):
        if type(value["hex"]) is not str or not re.fullmatch("-?0x[0-9a-f]+", value["hex"]):
            raise FileFormatError(f"{where} is no whole number")
        return int(value["hex"], 16)

    def _float(self, value, where, depth):
        if value["value"] not in ("nan", "inf", "-inf"):
            raise FileFormatError(f"{where} is no number")
        return float(value["value"])

    def _scalar(self, value, where, depth):
        dtype = check_dtype(value["dtype"], where)
        try:
            data = bytes.fromhex(value["hex"])
        except (TypeError, ValueError) as error:
            raise FileFormatError(f"{where} is no scalar ({error})") from error
        if len(data) != dtype.itemsize:
            raise FileFormatError(f"{where} has {len(data)} bytes, its type {dtype.itemsize}")
        return check_values(np.frombuffer(data, dtype), where)[0]

    def _array(self, value, where, depth):
        """Decode a reference to an array; equal references give the same object."""
        index = value["index"]
        if type(index) is not int or f"arrays/{index}.npy" not in self.files:
            raise FileFormatError(f"{where} is an array that is not there")
        if index not in self.arrays:
            self.arrays[index] = decode_npy(self.files[f"arrays/{index}.npy"], where)
        return self.arrays[index]

    def _text(self, value, where, depth):
        index = value["index"]
        if type(index) is not int or f"texts/{index}.txt" not in self.files:
            raise FileFormatError(f"{where} is a text that is not there")
        if index not in self.texts:
            try:
                self.texts[index] = bytes(self.files[f"texts/{index}.txt"]).decode()
            except UnicodeDecodeError as error:
                raise FileFormatError(f"{where} is no text ({error})") from error
        return self.texts[index]

    def _object_array(self, value, where, depth):
        """Decode a reference to an array of Python objects, as `_array` does."""
        index = value["index"]
        if type(index) is not int or not 0 <= index < len(self.stored):
            raise FileFormatError(f"{where} is an array that is not there")
        if index not in self.objects:
            self.objects[index] = self._object_array_of(self.stored[index], where)
        return self.objects[index]

    def _object_array_of(self, stored, where):
        """Decode an array of plain scalars from its shape and items."""
        if type(stored) is not list or [type(part) for part in stored] != [list, list]:
            raise FileFormatError(f"{where} is no array of objects")
        shape, items = stored
        if not all(type(n) is int and n >= 0 for n in shape) or math.prod(shape) != len(items):
            raise FileFormatError(f"{where} has not as many elements as its shape says")
        array = np.empty(len(items), dtype=object)
        for i, item in enumerate(items):
            if type(item) is dict and item.get("@") not in ("int", "float", "scalar", "text"):
                raise FileFormatError(f"{where} has elements that are more than scalars")
            array[i] = self.decode(item, _Place(where, i), 0)
            if not _is_plain_scalar(array[i]):
                raise FileFormatError(f"{where} has elements that are more than scalars")
        return reshape_checked(array, shape, "C", where)


_TAGS = {
    "int": ({"@", "hex"}, TreeDecoder._int),
    "float": ({"@", "value"}, TreeDecoder._float),
    "scalar": ({"@", "dtype", "hex"}, TreeDecoder._scalar),
    "tuple": ({"@", "items"}, TreeDecoder._tuple),
    "dict": ({"@", "items"}, TreeDecoder._dict),
    "object": ({"@", "name", "state"}, TreeDecoder._object),
    "array": ({"@", "index"}, TreeDecoder._array),
    "text": ({"@", "index"}, TreeDecoder._text),
    "objects": ({"@", "index"}, TreeDecoder._object_array),
}
