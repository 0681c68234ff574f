"""Find the GPUs to share among processes, without loading a backend."""

from __future__ import annotations

import itertools
import os
import re
from pathlib import Path

_DEVICES = Path("/dev")  # NVIDIA's driver has a file for each GPU here


def gpu_of_slot(slot: int) -> str | None:
    """Return ``CUDA_VISIBLE_DEVICES`` for a slot's process, or None to leave it as it is.

    With several GPUs the slots take them in turn. With one or none, every process sees the same
    devices as the caller.
    """
    gpus = _visible_gpus()
    return gpus[slot % len(gpus)] if len(gpus) > 1 else None


def _visible_gpus() -> list[str]:
    """List the GPUs that this process may use, by their names in ``CUDA_VISIBLE_DEVICES``."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        names = [name.strip() for name in visible.split(",")]
        # Like CUDA, ignore everything after the first invalid name.
        usable = itertools.takewhile(lambda name: name not in ("", "-1"), names)
        return list(dict.fromkeys(usable))
    files = [p.name for p in _DEVICES.glob("nvidia*") if re.fullmatch(r"nvidia\d+", p.name)]
    return [str(k) for k in range(len(files))]
