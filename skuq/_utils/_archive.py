"""Files that are safe to read: zip archives of JSON, npy arrays and texts.

A file holds ``header.json`` (format, kind and versions), ``tree.json``, ``arrays/0.npy``,
``arrays/1.npy`` and so on, and long strings as ``texts/0.txt`` and so on; `_trees` encodes and
decodes them. Nothing in a file is trusted: no code in it is run, no path in it is followed, and
time and memory of reading are bounded. Files are written atomically: a reader sees the old or the
new one.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import io
import json
import os
import platform
import secrets
import stat
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import skuq
from skuq._utils._environment import without_collection
from skuq._utils._trees import (
    MAX_NODES,
    MAX_PRICE,
    MAX_TEXT_NODES,
    TreeDecoder,
    TreeEncoder,
    count_nodes,
    max_referred,
    read_json,
    text_size,
)
from skuq.exceptions import FileFormatError, FileVersionError, UnsavableError

FORMAT_VERSION = 2
# Limits of what is read, and therefore written; those of JSON are in `_trees`.
MAX_TEXT = 128 * 2**20  # bytes of all compressed parts of a file, once they are unpacked
MAX_PARTS = 50_000  # arrays and texts: about 4 s at worst
_HEADER, _TREE = "header.json", "tree.json"
# Name, in error messages, of the function that reads each kind of file.
_READERS = {
    "estimator": "load of skuq",
    "catalog": "load of skuq",
    "search": "Catalog.load of skuq.catalog, from its folder",
    "trial": "Catalog.load of skuq.catalog, from its folder",
}
_version = functools.cache(importlib.metadata.version)
_WATCHED = {"keras": "keras", "tensorflow": "tensorflow", "scikit-learn": "sklearn"}


class DamagedFileError(FileFormatError):
    """The file is no whole file of skuq, in distinction from one with unexpected content."""


# ------------------------------------------------------------------------------------- writing


def atomic_write(path: str | os.PathLike[str], data: bytes) -> None:
    """Write a file atomically: readers see the old one or the new one, never a part.

    The bytes go to a hidden file ``.<random>.tmp`` in the same folder first, which is removed on
    errors. When this returns, they are on disk and not only in the system's cache.
    """
    path = Path(path)
    temporary = path.parent / f".{secrets.token_hex(8)}.tmp"
    try:
        # "x" never writes through an existing file or link of this name.
        with open(temporary, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        if isinstance(error, OSError) and error.filename == str(temporary):
            # Name the file that the caller knows. The class follows from the number.
            raise OSError(error.errno, error.strerror, str(path)) from None
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
    tree: Any, *, kind: str, describe: Callable[..., tuple[str, Any] | None] | None = None
) -> bytes:
    """Encode a tree as the bytes of a file; equal trees give equal bytes under equal versions.

    The `kind`, for example "estimator", is checked on reading. ``describe(object, place)`` gives
    ``(name, state)`` or None for objects whose class is not registered; `state` is again a tree.
    ``str(place)`` is a path for people: ``estimator.catalog_.records[3]``. Raise UnsavableError,
    which names the part, if one cannot be saved, or the file would be too large to be read.
    """
    encoder = TreeEncoder(describe, kind)
    text = json.dumps(encoder.encode(tree), separators=(",", ":")).encode()
    versions = {
        "skuq": skuq.__version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        **{name: _version(name) for name, module in _WATCHED.items() if module in sys.modules},
    }
    header = {
        "format": "skuq",
        "format_version": FORMAT_VERSION,
        "kind": kind,
        "versions": versions,
    }
    parts = {_HEADER: json.dumps(header, indent=1).encode(), _TREE: text, **encoder.parts}
    n_text = text_size(parts)
    n_nodes = sum(count_nodes(data) for name, data in parts.items() if name.endswith(".txt"))
    # What could not be read again is not written.
    if (
        n_text > MAX_TEXT
        or count_nodes(text) > MAX_NODES
        or n_nodes > MAX_TEXT_NODES
        or len(parts) > MAX_PARTS
    ):
        raise UnsavableError(
            f"The {kind} has {n_text} bytes of text and {len(parts)} parts, with "
            f"{count_nodes(text)} values in its tree and {n_nodes} in its texts. At most "
            f"{MAX_TEXT}, {MAX_PARTS}, {MAX_NODES} and {MAX_TEXT_NODES} can be saved."
        )
    if encoder.price > MAX_PRICE:
        raise UnsavableError(f"The {kind} has too many objects, or tables with too many columns.")
    if encoder.n_referred > max_referred(sum(map(len, parts.values()))):
        raise UnsavableError(f"The {kind} holds the same arrays too many times.")
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in parts.items():
            info = zipfile.ZipInfo(name)  # its date is 1980, so that the bytes repeat
            info.create_system, info.external_attr = 3, 0o644 << 16
            # Arrays are stored as they are, since weights hardly shrink.
            is_array = name.endswith(".npy")
            info.compress_type = zipfile.ZIP_STORED if is_array else zipfile.ZIP_DEFLATED
            archive.writestr(info, data)
    return buffer.getvalue()


# ------------------------------------------------------------------------------------- reading


@contextlib.contextmanager
def refuse_broken(
    source: Any,
    let: tuple[type[BaseException], ...] = (),
    error_class: type[FileFormatError] = FileFormatError,
) -> Iterator[None]:
    """Raise FileFormatError, with the reason, for every error that a broken file can cause.

    This is the one door for what is read, since content can be wrong in more ways than any check
    foresees. ``str(source)`` names the file, and the part in it. Errors of the classes `let` pass.
    """
    let = (*let, Warning)
    try:
        yield
    except let:
        raise
    except Exception as error:
        reason = str(error)
        if "cannot be read: " in reason:  # an inner door has named the file
            raise
        if isinstance(error, FileVersionError):
            error_class = FileVersionError
        elif not isinstance(error, FileFormatError):
            reason = f"{type(error).__name__}: {reason}"
        raise error_class(f"{source} cannot be read: {reason[:2000].rstrip('.')}.") from error


def read(
    path: str | os.PathLike[str],
    *,
    kind: str | tuple[str, ...],
    restore: Callable[[str, dict[str, Any]], Any] | None = None,
) -> Any:
    """Read the tree of a file; see `from_bytes`. An OSError of opening it passes through."""
    with open(path, "rb", opener=_open_regular) as file:
        data = file.read()
    return from_bytes(data, kind=kind, restore=restore, source=str(path))


def _open_regular(path: str, flags: int) -> int:
    """Open a regular file only: pipes would block and devices may be endless."""
    descriptor = os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):  # open() refuses folders itself
        os.close(descriptor)
        raise FileFormatError(f"{path} is a device or a pipe, not a file.")
    return descriptor


def from_bytes(
    data: bytes,
    *,
    kind: str | tuple[str, ...],
    restore: Callable[[str, dict[str, Any]], Any] | None = None,
    source: str = "the file",
) -> Any:
    """Decode the tree that `to_bytes` has encoded, of the `kind` or one of the kinds expected.

    ``restore(name, state)`` makes objects whose class is not registered; `source` names the data
    in errors. Raise FileFormatError if anything is not as `to_bytes` writes it (DamagedFileError
    if it is not even a whole file), and FileVersionError if a newer skuq wrote it.
    """
    with refuse_broken(source, error_class=DamagedFileError):
        parts = unzip(data)
        if text_size(parts) > MAX_TEXT:
            raise FileFormatError(f"it has texts that take more than {MAX_TEXT} bytes of memory")
        header = read_json(parts.pop(_HEADER))
        if type(header) is not dict or header.get("format") != "skuq":
            raise FileFormatError("it was not written by skuq")
        version, found = header["format_version"], header["kind"]
        if version > FORMAT_VERSION:
            listed = ", ".join(f"{package} {text}" for package, text in header["versions"].items())
            raise FileVersionError(
                f"it has format version {version} and was written by a newer skuq ({listed}); this "
                f"one, {skuq.__version__}, reads up to {FORMAT_VERSION}. Upgrade skuq"
            )
        if version != FORMAT_VERSION:
            raise FileFormatError(f"it has format version {version}, which was never released")
        kinds = (kind,) if isinstance(kind, str) else kind
        if found not in kinds:
            reader = _READERS.get(found)
            raise FileFormatError(
                f"it holds a {found!r:.50}, not a {' or a '.join(map(repr, kinds))}"
                + ("" if reader is None else f". Read it with {reader}")
            )
        document = read_json(parts.pop(_TREE))
    decoder = TreeDecoder(parts, restore, f"{source}: {found}")
    # Errors name the place that is decoded when they are raised.
    with refuse_broken(decoder.place), without_collection():
        return decoder.decode(document)


def unzip(data: bytes) -> dict[str, bytes]:
    """Unpack a zip archive of limited size in memory: ``{name: bytes}``.

    `zipfile` compares the CRC-32 of each part.
    """
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        infos = archive.infolist()
        packed = [info.file_size for info in infos if info.compress_type == zipfile.ZIP_DEFLATED]
        stored = [info.file_size for info in infos if info.compress_type == zipfile.ZIP_STORED]
        if len(packed) + len(stored) < len(infos):
            raise FileFormatError("it is compressed in another way than skuq does")
        # Stored parts together are smaller than the file, unless they overlap.
        if sum(packed) > MAX_TEXT or sum(stored) > len(data) or len(infos) > MAX_PARTS:
            raise FileFormatError(
                f"it would grow to {sum(packed)} bytes of text and {sum(stored)} of arrays, in "
                f"{len(infos)} parts; at most {MAX_TEXT}, {len(data)} and {MAX_PARTS} are read"
            )
        parts = {}
        for info in infos:
            with archive.open(info) as part:
                parts[info.filename] = part.read(info.file_size)  # no more than is declared
        return parts
