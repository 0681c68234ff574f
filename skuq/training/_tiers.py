"""The choice between a plain graph and XLA: which ends a run sooner.

A plain graph runs at once, but every operation of every step passes over memory on its
own. XLA joins operations into loops, and takes a second or two to compile them. What a
step saves grows with the weights that an optimiser moves; it hardly depends on the rows
of a batch, since products of matrices cost the same in both. The numbers were set by eye from
30 random networks of the paper's space (``benchmarks/engine.py --only tiers`` repeats it).

Convolutions stay in plain graphs: on a CPU those of XLA take about nine times as long, and
on a GPU both call the same library.
"""

from __future__ import annotations

import re

_OWN_LAYER = re.compile(r'"registered_name": "skuq>')
_CONVOLUTION = re.compile(r'"class_name": "\w*Conv')

_COMPILE_SECONDS = 1.2
_SAVED_PER_STEP = 1.5e-4  # seconds
_SAVED_PER_WEIGHT = 2e-9  # seconds a step
# For each layer for tables, which is many small operations: five networks of nine such
# layers took 5 ms a step as a graph and 1.7 ms in XLA.
_SAVED_PER_OWN_LAYER = 3.5e-4
_SHARE_OF_EPOCHS = 0.6  # taken on average by a run with early stopping


def worth_xla(network: str, n_steps: int, n_weights: int, *, stops_early: bool) -> bool:
    """Tell whether XLA's compilation pays for itself, in a run of at most `n_steps` steps.

    A function of the configuration alone, not of the clock: the two differ in rounding, and a run
    must repeat. `n_weights` counts the weights of all members.
    """
    if _CONVOLUTION.search(network):
        return False
    expected = n_steps * (_SHARE_OF_EPOCHS if stops_early else 1.0)
    saved = _SAVED_PER_STEP + _SAVED_PER_WEIGHT * n_weights
    saved += _SAVED_PER_OWN_LAYER * len(_OWN_LAYER.findall(network))
    return expected * saved > _COMPILE_SECONDS
