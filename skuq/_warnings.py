"""Warnings that point at the user's line."""

from __future__ import annotations

import sys
import warnings
from types import FrameType

# skuq, and the libraries that stand between it and the user or the start of a process.
_PASSED_OVER = {
    "skuq",
    "sklearn",
    "joblib",
    "concurrent",
    "contextlib",
    "functools",
    "multiprocessing",
    "runpy",
    "threading",
}


def warn_user(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn at the first line up the stack that is neither skuq's nor a library's in between.

    In a thread or a worker process no line is the user's. The warning then points at the function
    that raises it.
    """
    warnings.warn(message, category, stacklevel=_level_of_user())


def _level_of_user() -> int:
    """Return the `stacklevel` of the user's line for `warn_user`."""
    level = 1
    frame: FrameType | None = sys._getframe(1)  # the frame of `warn_user`
    while frame is not None:
        if _package(frame) not in _PASSED_OVER:
            return level
        level, frame = level + 1, frame.f_back
    return 2


def _package(frame: FrameType) -> str:
    # A module that is run as a script is called "__main__", but its spec has its name.
    spec = frame.f_globals.get("__spec__")
    name: str = getattr(spec, "name", None) or frame.f_globals.get("__name__", "")
    return name.partition(".")[0]
