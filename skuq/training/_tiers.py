"""Choose between a plain graph and XLA: the tier that is expected to finish a run first.

A plain graph starts at once, but each operation of each step passes over memory on its own. XLA
fuses operations into loops, and takes a second or two to compile them. The time it saves in a
step grows with the number of weights that the optimiser updates. It hardly depends on the rows
of a batch, since matrix products cost the same in both. The numbers were set by eye from 30
random networks of AutoDEUQ's space (``benchmarks/engine.py --only tiers`` repeats it).

Convolutions stay in plain graphs: on a CPU, XLA's convolutions take about nine times as long,
and on a GPU both call the same library.
"""

from __future__ import annotations

import math
import re

_OWN_LAYER = re.compile(r'"registered_name": "skuq>')  # skuq's layers for tables
_CONVOLUTION = re.compile(r'"class_name": "\w*Conv')

_COMPILE_SECONDS = 1.2  # additional time to compile for XLA
_SAVED_PER_STEP = 1.5e-4  # seconds
_SAVED_PER_WEIGHT = 2e-9  # seconds a step
# Seconds a step for each of skuq's layers for tables, which has many small operations: five
# networks of nine such layers took 5 ms a step as a graph and 1.7 ms in XLA.
_SAVED_PER_OWN_LAYER = 3.5e-4
# Seconds a step with artificial inputs, for which the network runs and is differentiated a second
# time: NOMU's networks of 350 to 35,000 weights took 1.6 to 3 ms of processor time a step as a
# graph and 0.1 to 0.6 ms in XLA.
_SAVED_PER_ARTIFICIAL_STEP = 1.3e-3
_SHARE_OF_EPOCHS = 0.6  # share of its epochs that a run with early stopping takes on average
_RUNS_AT_ONCE = 2  # runs of one program that train at the same time, on the smallest usual machine


def worth_xla(
    network: str,
    n_steps: int,
    n_weights: int,
    *,
    stops_early: bool,
    n_alike: int = 1,
    has_artificial: bool = False,
) -> bool:
    """Tell whether XLA's compilation pays for itself in `n_alike` runs of at most `n_steps` steps.

    The answer depends only on the configuration and not on the machine or on measured times,
    because graph and XLA round differently and runs must be reproducible. `n_weights` counts the
    weights of all members of one run, and `has_artificial` tells whether steps have artificial
    inputs.
    """
    if _CONVOLUTION.search(network):
        return False
    n_in_turn = math.ceil(n_alike / _RUNS_AT_ONCE)
    expected = n_in_turn * n_steps * (_SHARE_OF_EPOCHS if stops_early else 1.0)
    saved = _SAVED_PER_STEP + _SAVED_PER_WEIGHT * n_weights
    saved += _SAVED_PER_OWN_LAYER * len(_OWN_LAYER.findall(network))
    saved += _SAVED_PER_ARTIFICIAL_STEP * has_artificial
    return expected * saved > _COMPILE_SECONDS
