"""Plain trees as checked zip files: JSON for the structure, npy for the arrays.

A tree is made of None, bool, int, float, str, NumPy scalars, lists, tuples, dicts and arrays. Two
hooks encode and decode objects, so this module makes none itself. Nothing in a file is trusted:
every value is checked before it is used, and memory is allocated only for bytes that are there.

A file holds ``header.json`` (format, versions, sizes and SHA-256 of the others), ``tree.json``,
``arrays/0.npy``, ``arrays/1.npy`` and so on, and long strings as ``texts/0.txt`` and so on. In
``tree.json`` a JSON object with the key "@" stands for something that JSON cannot express; the
value of "@" says what it is. Files are written atomically: a reader sees the old or the new one.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.metadata
import io
import json
import os
import platform
import re
import secrets
import stat
import struct
import sys
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np

import skuq
from skuq._utils._trees import MAX_TEXT, TreeDecoder, TreeEncoder, encode_npy, read_json
from skuq.exceptions import FileFormatError, FileVersionError, UnsavableError


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
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    """Make the new name durable, where the file system can."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


FORMAT_VERSION = 1
# Compressed parts may unpack to MAX_TEXT bytes plus this many times the length of the file.
MAX_RATIO = 200
_HEADER, _TREE = "header.json", "tree.json"
_ARRAY = re.compile(r"arrays/(0|[1-9][0-9]{0,8})\.npy")
_TEXT = re.compile(r"texts/(0|[1-9][0-9]{0,8})\.txt")
_LOCAL = struct.Struct("<4s5H3L2H")  # the header before a file's bytes
# Name, in error messages, of the function that reads each kind of file.
_READERS = {
    "estimator": "load of skuq",
    "catalog": "load of skuq",
    "search": "Catalog.load of skuq.catalog, from its folder",
    "trial": "Catalog.load of skuq.catalog, from its folder",
    "Bayesian optimisation": "BayesianOptimizer.load of skuq.bayesopt",
}
_WATCHED = {"keras": "keras", "tensorflow": "tensorflow", "scikit-learn": "sklearn"}


# ------------------------------------------------------------------------------------- writing


def write(path: str | os.PathLike[str], tree: Any, *, kind: str, describe: Any = None) -> None:
    """Write a tree to a file atomically; see `to_bytes`."""
    atomic_write(path, to_bytes(tree, kind=kind, describe=describe))


def to_bytes(tree: Any, *, kind: str, describe: Any = None) -> bytes:
    """Encode a tree as the bytes of a file; equal trees give equal bytes under equal versions.

    The `kind`, for example "estimator", is checked on reading. ``describe(object, where)`` gives
    ``(name, state)`` or None for objects that are not plain; `state` is again a tree, which may
    hold such objects. ``str(where)`` is a path for people: ``estimator.catalog_.records[3]``.
    Raise UnsavableError, which names the part, if one is not plain, holds itself, or is nested too
    deeply.
    """
    encoder = TreeEncoder(describe)
    encoded = encoder.encode(tree, kind)
    text = json.dumps(
        {"tree": encoded, "objects": encoder.objects}, allow_nan=False, separators=(",", ":")
    ).encode()
    if len(text) > MAX_TEXT:
        raise UnsavableError(
            f"The {kind} takes {len(text) / 2**20:.0f} MiB without its arrays; at most "
            f"{MAX_TEXT // 2**20} MiB can be saved."
        )
    files = {_TREE: text}
    for index, array in enumerate(encoder.arrays):
        files[f"arrays/{index}.npy"] = encode_npy(array)
    for index, long in enumerate(encoder.texts):
        files[f"texts/{index}.txt"] = long
    header = {
        "format": "skuq",
        "format_version": FORMAT_VERSION,
        "kind": kind,
        "versions": _versions(),
        "members": {
            name: {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
            for name, data in files.items()
        },
    }
    files = {_HEADER: json.dumps(header, indent=1).encode(), **files}
    data = _zip_files(files, compressed=(".json", ".txt"))
    if sum(map(len, [text, *encoder.texts])) > _max_decompressed_bytes(data):
        # Texts that are so repetitive that reading would take the file for a zip bomb.
        data = _zip_files(files, compressed=(".json",))
    return data


def _zip_files(files, compressed):
    """Make a zip file of ``{name: bytes}``, and compress the files with a `compressed` suffix.

    Arrays are stored as they are, since weights hardly shrink.
    """
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in files.items():
            info = zipfile.ZipInfo(name)  # its date is 1980, so that the bytes repeat
            info.create_system, info.external_attr = 3, 0o644 << 16
            is_compressed = name.endswith(compressed)
            info.compress_type = zipfile.ZIP_DEFLATED if is_compressed else zipfile.ZIP_STORED
            archive.writestr(info, data)
    return buffer.getvalue()


def _max_decompressed_bytes(data):
    """Compute how many bytes the compressed parts of a zip file may have once decompressed."""
    return MAX_TEXT + MAX_RATIO * len(data)


@functools.cache
def _version(package):
    return importlib.metadata.version(package)


def _versions():
    """List the versions that wrote a file: Python's, and those of the packages in use."""
    versions = {
        "skuq": skuq.__version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
    }
    for package, module in _WATCHED.items():
        if module in sys.modules:
            versions[package] = _version(package)
    return versions


# ------------------------------------------------------------------------------------- reading


def read(path: str | os.PathLike[str], *, kind: str | tuple[str, ...], restore: Any = None) -> Any:
    """Read the tree of a file; see `from_bytes`. An OSError of opening it passes through."""
    path = Path(path)
    with open(path, "rb", opener=_open_regular) as file:
        data = file.read()
    return from_bytes(data, kind=kind, restore=restore, source=str(path))


def _open_regular(path, flags):
    """Open a regular file only: pipes would block and devices may be endless."""
    descriptor = os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):  # open() refuses folders itself
        os.close(descriptor)
        raise FileFormatError(f"{path} is a device or a pipe, not a file.")
    return descriptor


def from_bytes(
    data: bytes, *, kind: str | tuple[str, ...], restore: Any = None, source: str = "the file"
) -> Any:
    """Decode the tree that `to_bytes` has encoded, of the `kind` or one of the kinds expected.

    ``restore(name, state, where) -> object`` is called for each object, innermost first; `source`
    names the data in errors. Raise FileFormatError if anything is not as `to_bytes` writes it, and
    FileVersionError if a newer skuq wrote it.
    """
    try:
        files, header = _unpack_zip(data)
        _check_header(header, kind)
        _check_contents(files, header)
        document = read_json(files[_TREE], _TREE)
        return TreeDecoder(files, restore).decode_all(document, header["kind"])
    except FileFormatError as error:
        message = f"{source} cannot be read: {str(error)[:2000]}"
        raise type(error)(message if message.endswith(".") else message + ".") from error.__cause__
    except RecursionError:
        raise FileFormatError(f"{source} cannot be read: it is nested too deeply.") from None


def _unpack_zip(data):
    """Unpack a zip file: ``({name: bytes}, header)``. Only its header is decoded."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            infos, end = archive.infolist(), archive.start_dir
    # Errors that zipfile raises for broken directories, found by mutating files.
    except (zipfile.BadZipFile, ValueError, OverflowError, OSError, struct.error) as error:
        raise FileFormatError(f"it is no zip file, or a broken one ({error})") from error
    except (NotImplementedError, EOFError, LookupError) as error:
        raise FileFormatError(f"it is a zip file of another kind ({error})") from error
    infos = sorted(infos, key=lambda info: info.header_offset)
    # Nothing may stand before the first part, or behind the directory (a comment, say).
    if data[-22:-18] != b"PK\x05\x06" or (infos and infos[0].header_offset):
        raise FileFormatError("it holds more than its parts")
    seen = set()
    for info in infos:
        _check_info(info)
        if info.filename in seen:
            raise FileFormatError(f"it holds {info.filename!r} twice")
        seen.add(info.filename)
    for name in (_HEADER, _TREE):
        if name not in seen:
            raise FileFormatError(f"it holds no {name}: it was not written by skuq")
    packed = sum(info.file_size for info in infos if info.compress_type == zipfile.ZIP_DEFLATED)
    if packed > _max_decompressed_bytes(data):
        raise FileFormatError(f"it would grow to {packed} bytes from {len(data)}")
    ends = [info.header_offset for info in infos[1:]] + [end]
    view = memoryview(data)
    files = {info.filename: _read_file(view, info, end) for info, end in zip(infos, ends)}
    return files, read_json(files[_HEADER], _HEADER)


def _check_info(info):
    """Check a file's name, kind and compression; raise FileFormatError if it is not allowed."""
    name = info.filename
    allowed = _allowed_methods(name)
    if info.orig_filename != name or not allowed:
        raise FileFormatError(f"it holds {info.orig_filename!r:.200}, which does not belong there")
    mode = info.external_attr >> 16
    if stat.S_IFMT(mode) not in (0, stat.S_IFREG):
        raise FileFormatError(f"its {name} is a link or another thing that is no file")
    if info.flag_bits:
        raise FileFormatError(
            f"its {name} is encrypted or uses another feature of zip (flags {info.flag_bits:#x})"
        )
    if info.compress_type not in allowed:
        raise FileFormatError(f"its {name} is compressed by method {info.compress_type}")
    if info.compress_type == zipfile.ZIP_STORED and info.file_size != info.compress_size:
        raise FileFormatError(f"its {name} is stored, but in two sizes")
    if not name.endswith(".npy") and info.file_size > MAX_TEXT:
        raise FileFormatError(
            f"its {name} is {info.file_size} bytes long; at most {MAX_TEXT} are read"
        )


def _allowed_methods(name):
    """List the compression methods that a file of this name may have; none for unknown names."""
    if name in (_HEADER, _TREE):
        return (zipfile.ZIP_DEFLATED,)
    if _TEXT.fullmatch(name):
        return (zipfile.ZIP_DEFLATED, zipfile.ZIP_STORED)
    return (zipfile.ZIP_STORED,) if _ARRAY.fullmatch(name) else ()


def _read_file(view, info, end):
    """Get a file's bytes. They must end before the next file, so that none count twice."""
    name, start = info.filename, info.header_offset
    begin = start + _LOCAL.size
    if begin > end:
        raise FileFormatError(f"its {name} overlaps another part")
    fields = _LOCAL.unpack(view[start:begin])
    signature, method, n_name, n_extra = fields[0], fields[3], fields[9], fields[10]
    if signature != b"PK\x03\x04" or method != info.compress_type:
        raise FileFormatError(f"its {name} is described in two ways")
    if bytes(view[begin : begin + n_name]) != name.encode():
        raise FileFormatError(f"its {name} has another name where its bytes are")
    begin += n_name + n_extra
    if begin + info.compress_size > end:
        raise FileFormatError(f"its {name} is cut off, or overlaps another part")
    raw = view[begin : begin + info.compress_size]
    if info.compress_type == zipfile.ZIP_DEFLATED:
        raw = _decompress(raw, info)
    if zlib.crc32(raw) != info.CRC:
        raise FileFormatError(f"its {name} is damaged (its CRC-32 does not fit)")
    return raw


def _decompress(raw, info):
    """Decompress a file of the archive, up to the declared number of bytes."""
    inflater = zlib.decompressobj(-zlib.MAX_WBITS)
    try:
        data = inflater.decompress(raw, info.file_size + 1)
    except zlib.error as error:
        raise FileFormatError(f"its {info.filename} is damaged ({error})") from error
    if len(data) != info.file_size or not inflater.eof or inflater.unused_data:
        raise FileFormatError(f"its {info.filename} is not as long as declared")
    return data


def _check_header(header, kind):
    """Check that skuq wrote the file, in a known version, and that it is of the given kind."""
    if type(header) is not dict or header.get("format") != "skuq":
        raise FileFormatError("it was not written by skuq")
    version, versions = header.get("format_version"), header.get("versions")
    if type(version) is not int or version < 1 or not _is_text_dict(versions):
        raise FileFormatError("its header is broken")
    if version > FORMAT_VERSION:
        listed = ", ".join(f"{package} {text}" for package, text in versions.items())
        raise FileVersionError(
            f"it has format version {version} and was written by a newer skuq ({listed}); this "
            f"one, {skuq.__version__}, reads up to {FORMAT_VERSION}. Upgrade skuq"
        )
    kinds = (kind,) if isinstance(kind, str) else kind
    if header.get("kind") not in kinds:
        found = header.get("kind")
        reader = _READERS.get(found) if isinstance(found, str) else None
        raise FileFormatError(
            f"it holds a {found!r:.50}, not a {' or a '.join(map(repr, kinds))}"
            + ("" if reader is None else f". Read it with {reader}")
        )


def _is_text_dict(value):
    return type(value) is dict and all(type(text) is str for text in value.values())


def _check_contents(files, header):
    """Check that the files are exactly those that the header lists, byte by byte."""
    declared = header.get("members")
    if type(declared) is not dict or set(declared) != set(files) - {_HEADER}:
        raise FileFormatError("its parts are not those that its header lists")
    n_arrays = sum(name.startswith("arrays/") for name in files)
    numbered = [f"arrays/{i}.npy" for i in range(n_arrays)]
    numbered += [f"texts/{i}.txt" for i in range(len(files) - 2 - n_arrays)]
    if set(numbered) != set(files) - {_HEADER, _TREE}:
        raise FileFormatError("its arrays or texts are not numbered one after the other")
    for name, facts in declared.items():
        data = files[name]
        digest = hashlib.sha256(data).hexdigest()
        if facts != {"size": len(data), "sha256": digest}:
            raise FileFormatError(f"its {name} is damaged (size or SHA-256 does not fit)")
