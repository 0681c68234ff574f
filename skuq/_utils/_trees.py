"""Encode trees as JSON, npy arrays and texts, and decode files that are not trusted.

A tree is made of None, bool, int, float, str, NumPy scalars, lists, tuples, dicts, arrays, and
objects of registered classes. A JSON object with the key "@" stands for something that JSON cannot
express; the value of "@" says what it is.
"""

from __future__ import annotations

import io
import json
import math
import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from skuq._utils._records import find_by_class, find_by_name, make_object, state_of
from skuq.exceptions import FileFormatError, UnsavableError

# Limits of what is read, and therefore written. They bound time and memory of loading.
MAX_DEPTH = 100
MAX_NODES = 2_500_000  # values of one JSON text: about 4 s and 700 MB at worst
MAX_TEXT_NODES = 20_000_000  # values of all texts, which are parsed one by one
# One part can be referred to many times, and each reference can cost as much as a part of its own:
# all references together have at most these bytes plus this many times the bytes of the file.
MAX_REFERRED, MAX_REPEATS = 128 * 2**20, 8
# An object takes up to 0.1 ms and one of another library, or a column of a table, up to 1 ms: the
# dicts of a file, most of which are states of objects, have at most this price together.
MAX_PRICE, FOREIGN_PRICE = 40_000, 10
_LONG = 4096  # characters of a string that is stored as a text of its own
_PLAIN_KINDS = "biufcUmM"  # numbers, truth values, strings and dates: types without pointers


class Place(list[Any]):
    """Keys that lead to a part of a tree; ``str(place)`` is a path such as ``estimator.a[3]``."""

    def __str__(self) -> str:
        steps = (f".{k[:80]}" if type(k) is str else f"[{k!r:.80}]" for k in self[1:])
        return "".join([*map(str, self[:1]), *steps])


def count_nodes(text: bytes) -> int:
    """Count the values of a JSON text, or more if its strings hold commas and brackets."""
    return text.count(b",") + text.count(b"[") + text.count(b"{") + 1


def read_json(text: bytes, **options: Any) -> Any:
    """Parse JSON of limited size; `options` are those of `json.loads`."""
    if not text.isascii():  # other texts would take four times the memory
        raise FileFormatError("it has a JSON text with other characters than those of ASCII")
    if (n := count_nodes(text)) > MAX_NODES:
        raise FileFormatError(f"it has a JSON text of {n} values; at most {MAX_NODES} are read")
    return json.loads(text, **options)


def text_size(parts: Mapping[str, bytes]) -> int:
    """Add up the bytes of JSON and texts, as they are in memory."""
    texts = (data for name, data in parts.items() if not name.endswith(".npy"))
    return sum(len(data) * (1 if data.isascii() else 4) for data in texts)


def max_referred(n_bytes: int) -> int:
    """Compute the bytes to which all references in a file of `n_bytes` can add up."""
    return MAX_REFERRED + MAX_REPEATS * n_bytes


def check_dtype(dtype: Any) -> np.dtype[Any]:
    """Make a dtype of its text, if it is one that files can hold."""
    made = np.dtype(dtype)
    # With items of no bytes, a short file could claim any number of rows.
    if made.kind not in _PLAIN_KINDS or not made.itemsize:
        raise FileFormatError(f"arrays of type {str(dtype)[:50]!r} are not read")
    return made


def check_values(flat: np.ndarray) -> np.ndarray:
    """Refuse bytes that are no values of their type, which NumPy does not check."""
    if flat.dtype.kind == "b" and flat.size and flat.view(np.uint8).max() > 1:
        raise FileFormatError("it has truth values other than 0 and 1")
    if flat.dtype.kind == "U" and flat.size:
        points = flat.view(np.dtype(np.uint32).newbyteorder(flat.dtype.byteorder))
        if points.max() > sys.maxunicode:
            raise FileFormatError("it has characters beyond Unicode")
    return flat


def _is_key(value: Any) -> bool:
    """Tell whether a value can be the key of a dict in a file.

    Large integers, complex numbers and tuples cannot: it is easy to make many with one hash, and
    a dict of those takes quadratic time.
    """
    if isinstance(value, np.generic):
        return value.dtype.kind in _PLAIN_KINDS and value.dtype.kind != "c"
    if type(value) is int:
        return -(2**63) <= value < 2**63
    return value is None or type(value) in (bool, float, str)


def _is_scalar(value: Any) -> bool:
    is_numpy = isinstance(value, np.generic) and value.dtype.kind in _PLAIN_KINDS
    return is_numpy or value is None or type(value) in (bool, int, float, str)


class TreeEncoder:
    """Encode a tree as JSON, and collect its arrays and long texts, each once.

    ``describe(value, place)`` gives ``(name, state)`` of an object whose class is not registered,
    or None.

    Attributes
    ----------
    parts : dict of str to bytes
        Files of arrays and texts, by their names in the archive.
    n_referred : int
        Bytes of these parts, each counted as often as the tree refers to it.
    price : int
        Price of the tree's dicts.
    """

    def __init__(self, describe: Callable[..., tuple[str, Any] | None] | None, root: str):
        self._describe, self._place = describe, Place([root])
        self.parts: dict[str, bytes] = {}
        self.n_referred, self.price, self._price_of_dict = 0, 0, 1
        # Name of a part by the text, or by the id of the array, which is kept alive with it, as
        # ids of freed arrays are used again.
        self._texts: dict[str, str] = {}
        self._arrays: dict[int, tuple[np.ndarray, str]] = {}

    def encode(self, value: Any) -> Any:
        """Encode a part of the tree as JSON."""
        kind = type(value)
        if kind is str and len(value) >= _LONG:
            if value not in self._texts:
                self._texts[value] = f"texts/{len(self._texts)}.txt"
                self.parts[self._texts[value]] = value.encode(errors="surrogatepass")
            return self._reference("text", self._texts[value])
        if value is None or kind in (bool, int, float, str):
            return value
        if isinstance(value, np.generic) and value.dtype.kind in _PLAIN_KINDS:
            if not value.dtype.itemsize:  # an empty string
                return {"@": "scalar", "dtype": "<U1", "hex": "00000000"}
            return {"@": "scalar", "dtype": value.dtype.str, "hex": value.tobytes().hex()}
        if kind in (np.ndarray, np.memmap) and value.dtype.kind in _PLAIN_KINDS:
            if id(value) not in self._arrays:
                name = f"arrays/{len(self._arrays)}.npy"
                array, buffer = value, io.BytesIO()
                if array.dtype.itemsize == 0:  # empty strings
                    array = array.astype(array.dtype.str.replace("0", "1"))
                np.lib.format.write_array(buffer, array, version=(1, 0), allow_pickle=False)
                self._arrays[id(value)], self.parts[name] = (value, name), buffer.getvalue()
            return self._reference("array", self._arrays[id(value)][1])
        if kind is np.ndarray and value.dtype == object and all(map(_is_scalar, value.flat)):
            items = [self._at(k, item) for k, item in enumerate(value.ravel())]
            return {"@": "objects", "shape": list(value.shape), "items": items}
        if len(self._place) > MAX_DEPTH:
            raise UnsavableError(
                f"{self._place} lies more than {MAX_DEPTH} levels deep, or holds itself."
            )
        if kind in (list, tuple):
            items = [self._at(k, item) for k, item in enumerate(value)]
            return items if kind is list else {"@": "tuple", "items": items}
        if kind is dict:
            return self._dict(value)
        return self._object(value)

    def _reference(self, tag: str, name: str) -> dict[str, str]:
        """Refer to a part, and count its bytes."""
        self.n_referred += len(self.parts[name])
        return {"@": tag, "part": name}

    def _at(self, key: Any, value: Any) -> Any:
        """Encode the value at a key of the current container."""
        self._place.append(key)
        encoded = self.encode(value)
        self._place.pop()
        return encoded

    def _dict(self, value: dict[Any, Any]) -> dict[str, Any]:
        """Encode a dict; keys that are not plain strings make it a list of pairs."""
        self.price += self._price_of_dict
        if all(type(key) is str for key in value) and "@" not in value:
            return {key: self._at(key, item) for key, item in value.items()}
        if wrong := [key for key in value if not _is_key(key)]:
            raise UnsavableError(
                f"{self._place} has a key of type {type(wrong[0]).__name__}: {wrong[0]!r:.100}."
            )
        pairs = [[self.encode(key), self._at(key, item)] for key, item in value.items()]
        return {"@": "dict", "items": pairs}

    def _object(self, value: Any) -> dict[str, Any]:
        """Encode an object of a registered class, or one that `describe` knows."""
        saved = find_by_class(type(value))
        described = None
        if saved is not None:
            described = saved.name, state_of(value)
            if saved.check is not None:
                try:
                    saved.check(described[1], {})
                except FileFormatError as error:  # what cannot be loaded must not be saved
                    raise UnsavableError(f"{self._place} cannot be saved: {error}.") from error
        elif self._describe is not None:
            described = self._describe(value, self._place)
        if described is None:
            kind = f"{type(value).__module__}.{type(value).__qualname__}"
            of = f" of {value.dtype}" if isinstance(value, np.ndarray) else ""
            raise UnsavableError(f"{self._place} is a {kind}{of}, which cannot be saved.")
        name, state = described
        if type(state) is not dict or not all(type(key) is str for key in state):
            raise UnsavableError(f"{self._place} has attributes whose names are no strings.")
        outer = self._price_of_dict
        self._price_of_dict = outer if saved is not None else FOREIGN_PRICE
        encoded = self._dict(state)
        self._price_of_dict = outer
        return {"@": "object", "name": name, "state": encoded}


class TreeDecoder:
    """Decode JSON to a tree, checking every part.

    ``restore(name, state)`` makes objects whose class is not registered.

    Attributes
    ----------
    place : Place
        Where the decoder is. It stays as it was at an error, and so tells where that happened.
    """

    def __init__(
        self,
        parts: dict[str, bytes],
        restore: Callable[[str, dict[str, Any]], Any] | None,
        root: str,
    ):
        self._parts, self._restore, self.place = parts, restore, Place([root])
        self._n_left = max_referred(sum(map(len, parts.values())))
        self._n_nodes = self._price = 0
        self._price_of_dict = 1
        self._decoded: dict[str, Any] = {}  # arrays and texts by the name of their part
        self._seen: dict[Any, Any] = {}  # what checks have found in this file

    def decode(self, value: Any) -> Any:
        """Decode a part of the tree."""
        if type(value) is list:
            return self._list(value)
        if type(value) is not dict:
            return value
        match value:
            case {"@": "tuple", "items": list(items)}:
                return tuple(self._list(items))
            case {"@": "dict", "items": list(items)}:
                return self._dict(items)
            case {"@": "objects", "shape": list(shape), "items": list(items)}:
                array = np.empty(len(items), dtype=object)
                for k, item in enumerate(items):
                    array[k] = self._at(k, item)
                    if not _is_scalar(array[k]):
                        raise FileFormatError("an array has elements that are more than scalars")
                if math.prod(shape) != len(items):
                    raise FileFormatError("an array has not as many elements as its shape says")
                return array.reshape(shape)
            case {"@": "scalar", "dtype": str(text), "hex": str(digits)}:
                (scalar,) = check_values(np.frombuffer(bytes.fromhex(digits), check_dtype(text)))
                return scalar
            case {"@": "array" | "text" as tag, "part": str(name)}:
                return self._part(tag, name)
            case {"@": "object", "name": str(name), "state": dict(state)}:
                outer = self._price_of_dict
                self._price_of_dict = FOREIGN_PRICE if find_by_name(name) is None else outer
                decoded = self.decode(state)
                self._price_of_dict = outer
                return self._object(name, decoded)
            case {"@": tag}:
                raise FileFormatError(f"{str(tag)[:50]!r} is nothing that skuq writes")
        self._pay_for_dict()
        return {key: self._at(key, item) for key, item in value.items()}

    def _enter(self) -> None:
        if len(self.place) > MAX_DEPTH:
            raise FileFormatError(f"it lies more than {MAX_DEPTH} levels deep")

    def _pay_for_dict(self) -> None:
        self._enter()
        self._price += self._price_of_dict
        if self._price > MAX_PRICE:
            raise FileFormatError("it has too many objects or columns of tables")

    def _at(self, key: Any, value: Any) -> Any:
        """Decode the value at a key of the current container."""
        if type(value) is not dict and type(value) is not list:
            return value
        self.place.append(key)
        decoded = self.decode(value)
        self.place.pop()
        return decoded

    def _list(self, items: list[Any]) -> list[Any]:
        self._enter()
        return [self._at(k, item) for k, item in enumerate(items)]

    def _dict(self, items: list[Any]) -> dict[Any, Any]:
        """Decode a dict that was encoded as a list of pairs."""
        self._pay_for_dict()
        decoded: dict[Any, Any] = {}
        for key, value in items:
            key = self.decode(key)
            if not _is_key(key) or key in decoded:
                raise FileFormatError("it has a key twice, or one that is none")
            decoded[key] = self._at(key, value)
        return decoded

    def _part(self, tag: str, name: str) -> Any:
        """Get an array or a text; all references to it give the same object."""
        data = self._parts[name]
        # Whoever refers to a part may copy it.
        self._n_left -= len(data)
        if self._n_left < 0:
            raise FileFormatError("it refers to its arrays and texts too often for its size")
        if name not in self._decoded:
            if tag == "array":
                file = io.BytesIO(data)
                if (version := np.lib.format.read_magic(file)) != (1, 0):
                    raise FileFormatError(f"npy files of version {version} are not read")
                shape, is_fortran, dtype = np.lib.format.read_array_header_1_0(file)
                check_dtype(dtype)
                n_bytes = len(data) - file.tell()  # memory is allocated for these only
                if min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize != n_bytes:
                    raise FileFormatError(
                        f"an array declares {shape} of {dtype}, but {n_bytes} bytes follow"
                    )
                flat = np.frombuffer(data, dtype, offset=file.tell()).copy()
                self._decoded[name] = check_values(flat).reshape(
                    shape, order="F" if is_fortran else "C"
                )
            else:
                self._n_nodes += count_nodes(data)
                if self._n_nodes > MAX_TEXT_NODES:
                    raise FileFormatError("its texts are too long to be parsed")
                self._decoded[name] = data.decode(errors="surrogatepass")
        return self._decoded[name]

    def _object(self, name: str, state: dict[str, Any]) -> Any:
        """Make an object from the name of its class and its attributes."""
        if type(state) is not dict or not all(type(key) is str for key in state):
            raise FileFormatError("it has attributes whose names are no strings")
        saved = find_by_name(name)
        if saved is None:
            if self._restore is None:
                raise FileFormatError(f"class {name[:100]!r} is not known")
            return self._restore(name, state)
        if saved.check is not None:
            saved.check(state, self._seen)
        return make_object(saved.cls, state)
