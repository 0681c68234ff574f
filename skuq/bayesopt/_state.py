"""A search as a file: arrays and JSON in one npz, which is read without unpickling."""

from __future__ import annotations

import json
import os
import zipfile
from pathlib import Path

import numpy as np

__all__ = ["read_state", "write_state"]

_FORMAT = "skuq search 1"


def write_state(path, state: dict) -> None:
    """Write ``{"settings": JSON types, name: array, ..}``: the file is whole, or as before."""
    path = Path(path)
    # NumPy's numbers, as users give them, are no JSON.
    settings = json.dumps({"format": _FORMAT, **state["settings"]}, default=lambda v: v.item())
    arrays = {name: value for name, value in state.items() if name != "settings"}
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(unfinished, "wb") as file:
            np.savez(file, settings=np.array(settings), **arrays)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def read_state(path) -> dict:
    """What `write_state` has written.

    Raises
    ------
    ValueError
        If the file is something else.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            state = dict(file)
        settings = json.loads(str(state.pop("settings")))
        if settings.pop("format") != _FORMAT:
            raise KeyError("format")
    except FileNotFoundError:
        raise
    except (AttributeError, KeyError, OSError, TypeError, ValueError, zipfile.BadZipFile) as error:
        raise ValueError(
            f"{os.fspath(path)!r} is no file that BayesianOptimizer.save has written."
        ) from error
    return {"settings": settings, **state}
