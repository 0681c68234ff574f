"""Atomic writing of files."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path


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
