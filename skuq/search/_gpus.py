"""Which GPUs there are to share among processes, without loading a backend."""

from __future__ import annotations

import itertools
import os
import re
from pathlib import Path

__all__ = ["gpu_of_slot"]

_DEVICES = Path("/dev")  # where NVIDIA's driver has a file for each GPU


def gpu_of_slot(slot: int) -> str | None:
    """What a slot's process is to see as ``CUDA_VISIBLE_DEVICES``; None where that is no matter.

    With several GPUs each slot has one, in turn. With one or none all see what the caller sees.
    """
    gpus = _visible()
    return gpus[slot % len(gpus)] if len(gpus) > 1 else None


def _visible() -> list[str]:
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        names = [name.strip() for name in named.split(",")]
        usable = itertools.takewhile(lambda name: name not in ("", "-1"), names)  # as CUDA reads it
        return list(dict.fromkeys(usable))
    files = [p.name for p in _DEVICES.glob("nvidia*") if re.fullmatch(r"nvidia\d+", p.name)]
    return [str(k) for k in range(len(files))]
