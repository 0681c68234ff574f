"""Files that are safe to read: zip archives of JSON and npy arrays.

A file holds ``header.json`` (format, kind and version), ``tree.json``, ``arrays/0.npy``,
``arrays/1.npy`` and so on, and ``sha256sums`` of these parts. `TreeEncoder` and `TreeDecoder` turn
objects into JSON and arrays and back. Nothing in a file is trusted: no code in it is run, no path
in it is followed, and the sizes that it declares are bounded. Files are written atomically: a
reader sees the old or the new one.
"""

import contextlib
import errno
import hashlib
import importlib
import io
import json
import os
import re
import secrets
import sys
import zipfile
from collections.abc import Callable, Container, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import skuq
from skuq.backend._scopes import without_collection
from skuq.exceptions import FileFormatError, UnsavableError
from skuq.files._registry import BY_CLASS, BY_NAME, make_object, state_of

FORMAT_VERSION = 5
#: Bytes by which all parts of a file together may exceed the file, since JSON is compressed.
MAX_GROWTH = 64 * 2**20
_HEADER, _TREE, _SUMS = "header.json", "tree.json", "sha256sums"


class DamagedFileError(FileFormatError):
    """The file is no whole file of skuq, in distinction from one with unexpected content."""


# ----------------------------------------------------------------------------------- trees and JSON

_PLAIN = (type(None), bool, int, float, str)
_PLAIN_KINDS = "biufcUmM"  # numbers, truth values, strings and dates: types without pointers


class TreeEncoder:
    """Encode a tree as JSON, and collect its arrays, each once.

    ``describe(value, where)`` gives ``(name, state)`` of an object whose class is not registered,
    or None.

    Attributes
    ----------
    arrays : dict of str to bytes
        npy files by their names in the archive.
    modules : set of str
        Modules that define the registered classes of the tree.
    """

    def __init__(self, describe: Callable[[Any, str], tuple[str, Any] | None] | None):
        self._describe = describe
        self.arrays: dict[str, bytes] = {}
        self.modules: set[str] = set()
        # Name of a part by the id of the array, which is kept alive with it, as ids of freed arrays
        # are used again.
        self._names: dict[int, tuple[np.ndarray, str]] = {}

    def encode(self, value: Any, where: str) -> Any:
        """Encode a part of the tree; `where` is its path for error messages."""
        kind = type(value)
        # Exact types, since a subclass of a plain one may hold more than JSON keeps.
        if kind in _PLAIN:
            return value
        if kind is np.str_:
            return str(value)
        if isinstance(value, np.generic) and value.dtype.kind in _PLAIN_KINDS:
            return {"@": "scalar", "dtype": value.dtype.str, "hex": value.tobytes().hex()}
        if kind in (np.ndarray, np.memmap) and value.dtype.kind in _PLAIN_KINDS:
            return {"@": "array", "part": self._part(value)}
        if kind is np.ndarray and value.dtype == object:
            items = self._items(value.ravel(), where)
            return {"@": "objects", "shape": list(value.shape), "items": items}
        if kind is list:
            return self._items(value, where)
        if kind is tuple:
            return {"@": "tuple", "items": self._items(value, where)}
        # Texts as keys make a JSON object. "@" marks all other kinds, so it needs pairs itself.
        if kind is dict and "@" not in value and all(type(key) is str for key in value):
            return {key: self.encode(item, f"{where}.{key}") for key, item in value.items()}
        if kind is dict:
            pairs = [
                [self.encode(key, f"{where} key"), self.encode(item, f"{where}[{key!r}]")]
                for key, item in value.items()
            ]
            return {"@": "dict", "items": pairs}
        return self._object(value, where)

    def _items(self, values: Any, where: str) -> list[Any]:
        return [
            item if type(item) in _PLAIN else self.encode(item, f"{where}[{k}]")
            for k, item in enumerate(values)
        ]

    def _part(self, array: np.ndarray) -> str:
        if id(array) not in self._names:
            name, buffer = f"arrays/{len(self.arrays)}.npy", io.BytesIO()
            # NumPy does not read strings of no characters.
            whole = array if array.dtype.itemsize else array.astype("U1")
            np.lib.format.write_array(buffer, whole, version=(1, 0), allow_pickle=False)
            self._names[id(array)], self.arrays[name] = (array, name), buffer.getvalue()
        return self._names[id(array)][1]

    def _object(self, value: Any, where: str) -> dict[str, Any]:
        """Encode an object of a registered class, or one that `describe` knows."""
        saved = BY_CLASS.get(type(value))
        if saved is not None:
            name, state = saved.name, state_of(value)
            self.modules.add(type(value).__module__)
            if saved.check is not None:
                try:
                    saved.check(state)
                except FileFormatError as error:  # what cannot be loaded must not be saved
                    raise UnsavableError(f"{where} cannot be saved: {error}.") from error
        else:
            described = None if self._describe is None else self._describe(value, where)
            if described is None:
                kind = f"{type(value).__module__}.{type(value).__qualname__}"
                raise UnsavableError(f"{where} is a {kind}, which cannot be saved.")
            name, state = described
        return {"@": "object", "name": name, "state": self.encode(state, where)}


class TreeDecoder:
    """Decode what a `TreeEncoder` has encoded, from a file that is not trusted.

    ``restore(name, state)`` makes objects whose class is not registered.
    """

    def __init__(
        self, parts: dict[str, bytes], restore: Callable[[str, dict[str, Any]], Any] | None
    ):
        self._parts, self._restore = parts, restore
        self._arrays: dict[str, np.ndarray] = {}

    def decode(self, value: Any) -> Any:
        """Decode a part of the tree. All references to a part give the same array."""
        if type(value) is list:
            return [self.decode(item) for item in value]
        if type(value) is not dict:
            return value
        match value.get("@"):
            case "tuple":
                return tuple([self.decode(item) for item in value["items"]])
            case "dict":
                return {self.decode(key): self.decode(item) for key, item in value["items"]}
            case "scalar":
                return _read_items(bytes.fromhex(value["hex"]), np.dtype(value["dtype"]))[0]
            case "objects":
                items = [self.decode(item) for item in value["items"]]
                return np.fromiter(items, object, len(items)).reshape(value["shape"])
            case "array":
                name = value["part"]
                if name not in self._arrays:
                    self._arrays[name] = _read_npy(self._parts[name])
                return self._arrays[name]
            case "object":
                return self._object(value["name"], self.decode(value["state"]))
        return {key: self.decode(item) for key, item in value.items()}

    def _object(self, name: str, state: dict[str, Any]) -> Any:
        """Make an object from the name of its class and its attributes."""
        saved = BY_NAME.get(name)
        # A name in a file chooses among registered classes, and imports or calls nothing by itself.
        if saved is not None:
            if saved.check is not None:
                saved.check(state)
            return make_object(saved.cls, state)
        if self._restore is None:
            raise FileFormatError(f"class {name[:100]!r} is not known")
        return self._restore(name, state)


def _read_items(data: bytes, dtype: np.dtype, offset: int = 0) -> np.ndarray:
    """Read the items of a plain type; refuse bytes that are no values of it."""
    if dtype.kind not in _PLAIN_KINDS:
        raise FileFormatError(f"it has an array of type {dtype}")
    flat = np.frombuffer(data, dtype, offset=offset).copy()
    if dtype.kind == "b":  # masks that hold other bytes than 0 and 1 let NumPy write anywhere
        return flat.view(np.uint8) != 0
    if dtype.kind == "U" and (flat.view(dtype.byteorder + "u4") > sys.maxunicode).any():
        raise FileFormatError("it has a text with characters that there are not")
    return flat


def _read_npy(data: bytes) -> np.ndarray:
    """Read an npy file; memory is allocated for the bytes that are there only.

    `numpy.frombuffer` makes no objects, and `reshape` refuses other numbers of elements.
    """
    file = io.BytesIO(data)
    np.lib.format.read_magic(file)
    shape, is_fortran, dtype = np.lib.format.read_array_header_1_0(file)
    return _read_items(data, dtype, file.tell()).reshape(shape, order="F" if is_fortran else "C")


# ------------------------------------------------------------------------------------- writing


def atomic_write(path: str | os.PathLike[str], data: bytes) -> None:
    """Write a file atomically: readers see the old one or the new one, never a part.

    The bytes go to a hidden file ``.<random>.tmp`` in the same folder first, which is removed on
    errors. When this returns, they are on disk and not only in the system's cache.
    """
    path = Path(path)
    if not path.parent.is_dir():  # an error of the hidden file would name that one
        raise FileNotFoundError(errno.ENOENT, "There is no such folder", str(path.parent))
    temporary = path.parent / f".{secrets.token_hex(8)}.tmp"
    try:
        # "x" never writes through an existing file or link of this name.
        with open(temporary, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    # Make the new name durable, too, where the file system can.
    with contextlib.suppress(OSError):
        descriptor = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def write(path: str | os.PathLike[str], tree: Any, *, kind: str) -> None:
    """Write a tree to a file atomically; see `to_bytes`."""
    atomic_write(path, to_bytes(tree, kind=kind))


def to_bytes(
    tree: Any, *, kind: str, describe: Callable[[Any, str], tuple[str, Any] | None] | None = None
) -> bytes:
    """Encode a tree as the bytes of a file; equal trees give equal bytes under equal versions.

    The `kind`, for example "estimator", is checked on reading. ``describe(object, where)`` gives
    ``(name, state)`` or None for objects whose class is not registered; `state` is again a tree,
    and `where` is a path for people: ``estimator.catalog_.records[3]``. Raise UnsavableError, which
    names the part, if one cannot be saved, or the file would be too large to be read.
    """
    encoder = TreeEncoder(describe)
    try:
        text = json.dumps(encoder.encode(tree, kind), separators=(",", ":"))
    except RecursionError as error:
        raise UnsavableError(f"The {kind} has too many levels, or holds itself.") from error
    header = {
        "format": "skuq",
        "format_version": FORMAT_VERSION,
        "kind": kind,
        "skuq": skuq.__version__,
        "modules": sorted(encoder.modules),
    }
    parts = {_HEADER: json.dumps(header, indent=1).encode(), _TREE: text.encode()}
    parts |= encoder.arrays
    parts[_SUMS] = _sums(parts)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in parts.items():
            info = zipfile.ZipInfo(name)  # its date is 1980, so that the bytes repeat
            info.create_system, info.external_attr = 3, 0o644 << 16
            # Arrays are stored as they are, since weights hardly shrink.
            is_array = name.endswith(".npy")
            info.compress_type = zipfile.ZIP_STORED if is_array else zipfile.ZIP_DEFLATED
            archive.writestr(info, data)
    data = buffer.getvalue()
    if sum(map(len, parts.values())) > len(data) + MAX_GROWTH:
        raise UnsavableError(
            f"The {kind} has {len(text)} bytes of text. At most about {MAX_GROWTH} can be saved."
        )
    return data


def _sums(parts: dict[str, bytes]) -> bytes:
    """Compute the checksums of all parts, in the form that the program sha256sum reads."""
    lines = (f"{hashlib.sha256(data).hexdigest()}  {name}\n" for name, data in parts.items())
    return "".join(lines).encode()


# ------------------------------------------------------------------------------------- reading


@contextlib.contextmanager
def refuse_broken(
    source: Any, error_class: type[FileFormatError] = FileFormatError
) -> Iterator[None]:
    """Raise FileFormatError, with the reason, for every error that a broken file can cause.

    This is the one door for what is read, since content can be wrong in more ways than any check
    foresees. ``str(source)`` names the file.
    """
    try:
        yield
    except Warning:
        raise
    except Exception as error:
        reason = str(error)
        if not isinstance(error, FileFormatError):
            reason = f"{type(error).__name__}: {reason}"
        raise error_class(f"{source} cannot be read: {reason[:2000].rstrip('.')}.") from error


def read(path: str | os.PathLike[str], *, kind: str) -> Any:
    """Read the tree of a file; see `from_bytes`. An OSError of opening it passes through."""
    return from_bytes(Path(path).read_bytes(), kinds=(kind,), source=str(path))


def from_bytes(
    data: bytes,
    *,
    kinds: tuple[str, ...],
    restore: Callable[[str, dict[str, Any]], Any] | None = None,
    source: str = "the file",
) -> Any:
    """Decode the tree that `to_bytes` has encoded, of one of these kinds.

    ``restore(name, state)`` makes objects whose class is not registered; `source` names the data
    in errors. Raise FileFormatError if anything is not as `to_bytes` writes it (DamagedFileError
    if it is not even a whole file).
    """
    # First whether this is a whole file: a search repeats the trial of a damaged one.
    with refuse_broken(source, error_class=DamagedFileError):
        parts = unzip(data)
        sums, header = parts.pop(_SUMS, None), json.loads(parts[_HEADER])
        if header["format"] != "skuq":
            raise FileFormatError("it was not written by skuq")
        version = header["format_version"]
        if version == FORMAT_VERSION and sums != _sums(parts):
            raise FileFormatError("it was changed after it was written: checksums differ")
    with refuse_broken(source), without_collection():
        if version != FORMAT_VERSION:
            raise FileFormatError(
                f"it has format version {version}. skuq {skuq.__version__} reads version "
                f"{FORMAT_VERSION} only: use the skuq that wrote it"
            )
        if header["kind"] not in kinds:
            raise FileFormatError(
                f"it holds a {header['kind']!r:.50}, not a {' or a '.join(map(repr, kinds))}. "
                "Files of skuq.save are read by skuq.load, folders of searches by Catalog.load"
            )
        for module in header["modules"]:  # they register the classes
            if re.fullmatch(r"skuq(\.\w+)+", module):
                importlib.import_module(module)
        return TreeDecoder(parts, restore).decode(json.loads(parts[_TREE]))


def unzip(
    data: bytes, methods: Container[int] = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
) -> dict[str, bytes]:
    """Unpack a zip archive of limited size in memory: ``{name: bytes}``.

    `zipfile` compares the CRC-32 of each part.
    """
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        infos = archive.infolist()
        if any(info.compress_type not in methods for info in infos):
            raise FileFormatError("it is compressed in another way than skuq does")
        if (size := sum(info.file_size for info in infos)) > len(data) + MAX_GROWTH:
            raise FileFormatError(f"it would grow to {size} bytes")
        parts = {}
        for info in infos:
            with archive.open(info) as part:
                parts[info.filename] = part.read(info.file_size)  # no more than is declared
        return parts
