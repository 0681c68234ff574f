"""Plain graph or XLA: which is the sooner done with a run."""

from __future__ import annotations

__all__ = ["worth_xla"]

_STEPS_WORTH_XLA = 10_000


def worth_xla(n_steps: int) -> bool:
    return n_steps > _STEPS_WORTH_XLA
