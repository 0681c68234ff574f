"""Files that are safe to read: zip archives of JSON and npy arrays.

A file holds ``header.json`` (format, kind and version), ``tree.json``, ``arrays/0.npy``,
``arrays/1.npy`` and so on, which `_trees` encodes and decodes, and ``sha256sums`` of these parts.
Nothing in a file is trusted: no code in it is run, no path in it is followed, and the sizes that it
declares are bounded. Files are written atomically: a reader sees the old or the new one.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import io
import json
import os
import re
import secrets
import zipfile
from collections.abc import Callable, Container, Iterator
from pathlib import Path
from typing import Any

import skuq
from skuq._threads import without_collection
from skuq.exceptions import FileFormatError, UnsavableError
from skuq.files._registry import TreeDecoder, TreeEncoder

FORMAT_VERSION = 4
#: Bytes by which all parts of a file together may exceed the file, since JSON is compressed.
MAX_GROWTH = 64 * 2**20
_HEADER, _TREE, _SUMS = "header.json", "tree.json", "sha256sums"


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
