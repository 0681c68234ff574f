"""Refuse TensorFlow in processes that were forked after it had been used.

Its threads do not survive a fork: the child would wait for them for ever.
"""

from __future__ import annotations

import os
import sys

_is_forked = False


def watch_forks() -> None:
    """Refuse TensorFlow in every process that is forked from now on."""
    if hasattr(os, "register_at_fork"):  # not on Windows, which has no forks
        os.register_at_fork(after_in_child=_refuse)


def _refuse() -> None:
    """Make this process one in which TensorFlow is refused."""
    global _is_forked
    _is_forked = True
    # The package keeps names that were used; without them it looks them up again, and refuses.
    package = sys.modules[__name__.rpartition(".")[0]]
    for name in package.__all__:
        vars(package).pop(name, None)


def check_fork() -> None:
    """Raise RuntimeError if TensorFlow would wait for ever."""
    if _is_forked:
        raise RuntimeError(
            "This process was forked after TensorFlow had been used, which would now wait for "
            "ever. Train in processes that start from scratch: those of joblib's backend 'loky' "
            "(its default), or of multiprocessing.get_context('spawn'). Fitted estimators predict "
            "here, unless their networks have convolutions or layers of your own."
        )
