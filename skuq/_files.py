"""Files that are whole or not there."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path

__all__ = ["atomic_write"]


def atomic_write(path, data: bytes) -> None:
    """Write a file so that whoever looks sees the old one or the new one, never a part.

    The bytes go to a hidden neighbour ``.<random>.tmp`` first. When this returns they are on
    the disk, not only with the system.

    Raises
    ------
    OSError
        As the system gives it, with the name of the file; the neighbour is removed then.
    """
    path = Path(path)
    temporary = path.parent / f".{secrets.token_hex(8)}.tmp"
    try:
        # "x": a name that is there already, or a link laid there, is never written through.
        with open(temporary, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        if isinstance(error, OSError) and error.filename == str(temporary):
            # The caller has never heard of the neighbour. From the number follows the class.
            raise OSError(error.errno, error.strerror, str(path)) from None
        raise
    _sync_folder(path.parent)


def _sync_folder(folder):
    """Make the new name durable; not every system and file system can."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
