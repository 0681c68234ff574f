"""Keep programs that XLA has compiled in a folder, from which later processes load them.

TensorFlow writes and reads such files if a flag names a folder. By itself, a training fails where
a file is damaged or cannot be written, the files are never removed, and they are seldom found
again, because a program's name has a number that counts all operations of the process before it.
Here the flag names a folder in memory. Files are copied between it and the disk with checksums,
and a training goes on if that fails. The numbers in names depend on the program alone.
"""

import contextlib
import hashlib
import itertools
import os
import re
import stat
import sys
import threading
from collections.abc import Callable
from multiprocessing import current_process
from pathlib import Path
from typing import Any

import joblib

import skuq
from skuq._messages import warn_user

#: Environment variable: a folder, 1 for the user's cache folder, or 0 for none.
VARIABLE = "SKUQ_COMPILE_CACHE"
_ON, _OFF = ("1", "true", "yes", "on"), ("0", "false", "no", "off")
_MAX_BYTES = 256e6  # of all files; a program of the estimators for tables takes 1.3 MB
_MEMORY = "ram://skuq"  # TensorFlow's name of a folder in memory
_FLAGS = "--tf_xla_persistent_cache_device_types=CPU --tf_xla_persistent_cache_directory="
# Lines of /proc/cpuinfo that are the same each time and tell for what XLA compiles.
_FEATURES = "(?m)^(?:vendor_id|cpu family|model|[fF]lags|[fF]eatures|CPU |isa).*"

_LATE = "Compiled programs are not kept: ask for it before TensorFlow is first used."

_start: Path | None = None  # beginning of all paths of this process; None if nothing is kept
_n_traced: dict[str, int] = {}  # how often this process has traced each program
_lock = threading.RLock()  # the folder in memory is for one program at a time


def set_flags(tensorflow: Any, is_own: bool) -> str:
    """Have TensorFlow keep programs if the user asks for it; return a warning, or nothing.

    In joblib's processes, in which skuq's programs run, this is the default if skuq has loaded
    TensorFlow there (`is_own`).
    """
    flags = os.environ.get("TF_XLA_FLAGS", "")
    is_worker = is_own and type(current_process()).__name__ == "LokyProcess"
    asked = os.environ.get(VARIABLE) or str(int(is_worker))
    # The user's own cache stays, and so does a file of flags. Windows has no owners as below.
    is_free = "persistent_cache" not in flags and flags.strip()[:1] in ("", "-")
    if asked.lower() in _OFF or not is_free or not hasattr(os, "getuid"):
        return ""
    context = sys.modules["tensorflow.python.eager.context"].context()
    if context._context_handle or context._physical_devices:  # it has read its flags
        return _LATE
    setting = _setting(tensorflow.__version__, context._intra_op_parallelism_threads)
    problem = _use_folder(asked, setting)
    if not problem:
        os.putenv("TF_XLA_FLAGS", f"{flags} {_FLAGS}{_MEMORY}")  # leaves `os.environ` as it is
        tensorflow.config.list_physical_devices()  # reads them
        os.putenv("TF_XLA_FLAGS", flags)
    return problem if os.environ.get(VARIABLE) else ""


def change_folder(asked: str) -> None:
    """Keep the next programs in another folder, or warn if that is not possible."""
    if problem := _use_folder(asked, _start.name) if _start else _LATE:
        warn_user(problem)


def _setting(version: str, n_threads: int | None) -> str:
    """Name the version, processor and flags for which programs are compiled."""
    info = Path("/proc/cpuinfo")
    lines = re.findall(_FEATURES, info.read_text()) if info.exists() else []
    # XLA divides loops among as many threads as TensorFlow has.
    threads = n_threads or os.environ.get("TF_NUM_INTRAOP_THREADS") or joblib.cpu_count()
    flags = os.environ.get("XLA_FLAGS"), os.environ.get("TF_XLA_FLAGS")
    code = _digest((sorted(set(lines)) or os.uname(), str(threads), flags))
    return f"skuq-{skuq.__version__}-{version}-{code}"


def _use_folder(asked: str, setting: str) -> str:
    """Make the folder that is asked for and use it; return a warning if that is not possible."""
    global _start
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    path = Path(f"{cache}/skuq" if asked.lower() in _ON else asked)
    try:
        folder = path.expanduser().resolve()  # RuntimeError: the user has no home
        for part in (folder.parent, folder):
            part.mkdir(0o700, parents=True, exist_ok=True)
        found, disk = folder.stat(), os.statvfs(folder)
        above = [part.stat().st_mode for part in folder.parents]
        is_open = found.st_mode & 0o022 or any(m & 0o022 and not m & stat.S_ISVTX for m in above)
        has_room = os.access(folder, os.W_OK) and disk.f_bavail * disk.f_frsize > _MAX_BYTES
        if is_open or found.st_uid != os.getuid() or not has_room:
            raise PermissionError("others can write to it, or you cannot, or the disk is full")
        # Remove the oldest programs of all versions and processors.
        left, files = _MAX_BYTES, []
        for file in folder.glob("skuq-*.pb"):
            with contextlib.suppress(OSError):  # another process that begins removes files, too
                files.append((file.stat().st_mtime, file.stat().st_size, file))
        for _, size, file in sorted(files)[::-1]:
            left -= size
            if left < 0:
                file.unlink(missing_ok=True)
    except (OSError, RuntimeError) as error:
        return f"Compiled programs are not kept in {str(path)!r}: {error}."
    _start = folder / setting
    return ""


def _digest(value: Any) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()[:12]


def keep_program(make: Any, example: Any, key: Any, quiet: Any) -> Callable[..., Any]:
    """Trace the TensorFlow function ``make()``; if programs are kept, load or compile it, too.

    In all processes, programs are the same if their keys have the same `repr`. TensorFlow loads
    within the context ``quiet()``.
    """
    if _start is None:
        return make().get_concrete_function(*example)
    files: Any = sys.modules["tensorflow"].io.gfile
    with _lock:
        # Programs of a process must not share names, not even if one has been dropped.
        code = _digest(key)
        number = _n_traced[code] = _n_traced.get(code, 0) + 1
        path = Path(f"{_start}-{code}-{number}.pb")
        with contextlib.suppress(OSError):
            # A file has a checksum, its name in memory, and what TensorFlow has written there.
            if (content := path.read_bytes())[:32] == hashlib.sha256(content[32:]).digest():
                name, _, written = content[32:].partition(b"\n")
                files.GFile(name.decode(), "wb").write(written)
        before = files.glob(f"{_MEMORY}/*.pb")  # programs of the user, too
        try:
            program = _trace_as(int(_digest((code, number)), 16) * 10**4, make, example)
            with quiet():
                program(*example)
        except Exception:
            if not path.exists():
                raise
            path.unlink(missing_ok=True)  # it may be whole, but of no use here
            return keep_program(make, example, key, quiet)
        for name in files.glob(f"{_MEMORY}/*.pb"):
            content = name.encode() + b"\n" + files.GFile(name, "rb").read()
            files.remove(name)
            if name not in before:
                with contextlib.suppress(OSError):  # what is read halfway has a wrong checksum
                    path.write_bytes(hashlib.sha256(content).digest() + content)
    return program


def _trace_as(first: int, make: Any, example: Any) -> Callable[..., Any]:
    """Trace the function ``make()``, with this number and the next ones in names."""
    operations: Any = sys.modules["tensorflow.python.framework.ops"]
    operations.get_default_graph()  # each thread makes one when it first traces, with a number
    count, operations.uid = getattr(operations, "uid", None), itertools.count(first).__next__
    try:
        return make().get_concrete_function(*example)
    finally:
        operations.uid = count
