"""Keep programs that XLA has compiled in a folder, from which later processes load them.

TensorFlow writes and reads such files if a flag names a folder. By itself, a training fails where
a file is damaged or cannot be written, the files are never removed, and they are seldom found
again, because a program's name has a number that counts all operations of the process before it.
Here each file gets a checksum, and files without one are removed before TensorFlow reads any. The
numbers in names depend on the program alone. A program that fails is compiled without the files.
"""

import contextlib
import hashlib
import itertools
import os
import re
import sys
from collections.abc import Callable, Sequence
from multiprocessing import current_process
from pathlib import Path
from typing import Any

import joblib

import skuq
from skuq._messages import warn_user

#: Environment variable: a folder, 1 for the user's cache folder, or 0 for none.
VARIABLE = "SKUQ_COMPILE_CACHE"
_MAX_BYTES = 256e6  # of all files; a program of the estimators for tables takes 1.3 MB
# A file ends with its checksum, as a field of 32 bytes that TensorFlow does not know and skips.
_FIELD, _N_ADDED = b"\xc2\x3e\x20", 35
# Lines of /proc/cpuinfo that are the same each time and tell for what XLA compiles.
_FEATURES = "(?m)^(?:vendor_id|cpu family|model|[fF]lags|[fF]eatures|CPU |isa).*"

_folder: Path | None = None  # that TensorFlow uses in this process
_n_traced: dict[str, int] = {}  # how often this process has traced each program


def set_flags(tensorflow: Any, is_own: bool) -> bool:
    """Have TensorFlow keep programs if the user asks for it; return whether it is too late.

    In joblib's processes, in which skuq's programs run, this is the default if skuq has loaded
    TensorFlow there (`is_own`).
    """
    global _folder
    flags = os.environ.get("TF_XLA_FLAGS", "")
    is_worker = is_own and type(current_process()).__name__ == "LokyProcess"
    asked = os.environ.get(VARIABLE) or str(int(is_worker))
    # The user's own cache stays, and so does a file of flags. Windows has no owners as below.
    is_free = "persistent_cache" not in flags and flags.strip()[:1] in ("", "-")
    if asked == "0" or not is_free or not hasattr(os, "getuid"):
        return False
    context = sys.modules["tensorflow.python.eager.context"].context()
    if context._context_handle or context._physical_devices:  # it has read its flags
        return True
    with contextlib.suppress(OSError, RuntimeError):  # RuntimeError: the user has no home
        folder = _make_folder(asked, tensorflow.__version__, context._intra_op_parallelism_threads)
        options = f"directory='{folder}'", "prefix=skuq", "device_types=CPU"
        added = [f"--tf_xla_persistent_cache_{option}" for option in options]
        os.putenv("TF_XLA_FLAGS", " ".join([flags, *added]))  # leaves `os.environ` as it is
        tensorflow.config.list_physical_devices()  # reads them
        os.putenv("TF_XLA_FLAGS", flags)
        _folder = folder
    return False


def warn_if_off() -> None:
    """Warn if this process does not keep programs."""
    if _folder is None:
        warn_user("Compiled programs are not kept: ask for it before TensorFlow is first used.")


def _make_folder(asked: str, version: str, n_threads: int | None) -> Path:
    """Make the folder of this version, processor and flags; raise OSError if it is of no use."""
    info = Path("/proc/cpuinfo")
    lines = re.findall(_FEATURES, info.read_text()) if info.exists() else []
    # XLA divides loops among as many threads as TensorFlow has.
    threads = n_threads or os.environ.get("TF_NUM_INTRAOP_THREADS") or joblib.cpu_count()
    flags = os.environ.get("XLA_FLAGS"), os.environ.get("TF_XLA_FLAGS")
    code = _digest((sorted(set(lines)) or os.uname(), str(threads), flags))
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    base = Path(f"{cache}/skuq" if asked == "1" else asked).expanduser().absolute()
    folder = base / f"skuq-{skuq.__version__}-{version}-{code}"
    for part in (base, folder):
        part.mkdir(0o700, parents=True, exist_ok=True)
        found, disk = part.stat(), os.statvfs(part)
        is_safe = found.st_uid == os.getuid() and not found.st_mode & 0o022
        has_room = os.access(part, os.W_OK) and disk.f_bavail * disk.f_frsize > _MAX_BYTES
        if not (is_safe and has_room) or "'" in str(part):
            raise PermissionError(part)
    _clean(folder, _MAX_BYTES)
    return folder


def _digest(value: Any) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()[:12]


def _checked(path: Path, content: bytes) -> bytes:
    """Append the checksum of a file's name and content."""
    return content + _FIELD + hashlib.sha256(path.name.encode() + content).digest()


def _clean(folder: Path, max_bytes: float) -> None:
    """Remove programs without a checksum, and the oldest ones of all versions and processors."""
    with contextlib.suppress(OSError):  # another process that begins removes files, too
        for path in sorted(folder.parent.glob("skuq-*/skuq__*"), key=os.path.getmtime)[::-1]:
            content = path.read_bytes()
            max_bytes -= len(content)
            is_whole = path.suffix != ".pb" or content == _checked(path, content[:-_N_ADDED])
            if max_bytes < 0 or not is_whole:
                path.unlink()


def keep_program(
    make: Any, example: Sequence[Any], key: Any, quiet: Any = contextlib.nullcontext
) -> Callable[..., Any]:
    """Trace the TensorFlow function ``make()``; if programs are kept, load or compile it, too.

    In all processes, programs are the same if their keys have the same `repr`. TensorFlow loads
    within the context ``quiet()``.
    """
    if _folder is None:
        return make().get_concrete_function(*example)
    before, program = set(_folder.glob("*.pb")), _trace_as(key, make, example)
    with quiet():
        try:
            program(*example)
        except Exception:  # a file is damaged or has vanished, or none can be written
            _clean(_folder, 0)
            before.clear()
            program = _trace_as(key, make, example)
            program(*example)
    for path in set(_folder.glob("*.pb")) - before:
        with contextlib.suppress(OSError):
            copy = path.with_suffix(f".{os.getpid()}.tmp")
            copy.write_bytes(_checked(path, path.read_bytes()))
            copy.replace(path)
    return program


def _trace_as(key: Any, make: Any, example: Sequence[Any]) -> Callable[..., Any]:
    """Trace the function ``make()``, with names that depend on the key alone."""
    # Programs of a process must not share names, not even if one has been dropped.
    code = _digest(key)
    _n_traced[code] = _n_traced.get(code, 0) + 1
    number = int(_digest((code, _n_traced[code])), 16) * 10**4
    operations: Any = sys.modules["tensorflow.python.framework.ops"]
    operations.get_default_graph()  # each thread makes one when it first traces, with a number
    count, operations.uid = getattr(operations, "uid", None), itertools.count(number).__next__
    try:
        return make().get_concrete_function(*example)
    finally:
        operations.uid = count
