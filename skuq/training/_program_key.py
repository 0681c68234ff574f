"""Define the key of a compiled training program: everything its compilation depends on."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from skuq.networks._epinet import EpistemicNetwork
from skuq.networks._head_protocol import Head
from skuq.networks._plan import Plan
from skuq.training._recipe import BETA_2, EPSILON

_ORDER_ENTRIES = 2**20  # row numbers sent with one call: 4 MB
_MAX_EPOCHS_PER_CALL = 64  # of a compiled program


@dataclass(frozen=True)
class ProgramKey:
    """Everything that a program's compilation depends on: equal keys share one program."""

    network: Plan | EpistemicNetwork | str  # str: JSON of a Keras model without a plan, no names
    head: Head
    optimizer: str
    batch_size: int
    input_shape: tuple[int, ...]
    n_outputs: int  # columns of y
    n_rows: int  # padded rows of the table that batches are taken from
    n_steps: int  # steps of one epoch, for the padded number of training rows
    n_valid: int  # padded number of validation rows; 0 without any
    jit: bool
    n_members: int = 0  # 0: one network, without a member axis
    own_validation: bool = False  # every member has validation rows of its own
    clip: bool = False  # this and the next flags: some recipe has clip_norm, l2, weight_decay
    l2: bool = False
    decay: bool = False
    dropout: bool = False  # the recipe's dropout rate, an argument, replaces the layers' own
    adversarial: bool = False
    momentum: float = 0.0
    n_artificial: int = 0  # inputs without targets in every step
    n_draws: int = 0  # epistemic indices in every step
    detached: tuple[int, ...] = ()  # variables without gradient from the head's uncertainty terms
    beta_2: float = BETA_2
    dropout_schedule: bool = False
    rate_factors: bool = False  # variables have factors of the learning rate
    epsilon: float = EPSILON
    own_classes: tuple[Any, ...] = ()  # the user's classes that the network's JSON only names

    @property
    def lead(self) -> tuple[int, ...]:
        """Shape of the member axis: (n_members,), or () for one network."""
        return (self.n_members,) if self.n_members else ()

    @property
    def epochs_per_call(self) -> int:
        """Largest number of epochs in one call, which bounds the batch orders sent with it."""
        numbers = self.batch_size + self.n_artificial * math.prod(self.input_shape)
        width = self.n_steps * numbers * max(1, self.n_members)
        return max(1, min(_MAX_EPOCHS_PER_CALL, _ORDER_ENTRIES // width))


def padded_rows(n_rows: int) -> int:
    """Round up to a ladder of sizes, four between a power of two and the next: by at most 25%."""
    if n_rows <= 8:
        return 8
    step: int = 2 ** (math.ceil(math.log2(n_rows)) - 3)
    return step * math.ceil(n_rows / step)


def full_batch_rows(n_rows: int) -> int:
    """Round up to the size of a batch of all rows: a power of two up to 128 rows, or the ladder.

    A data set that grows row by row, as in Bayesian optimisation, compiles a program for each size.
    With so few rows a step takes little longer for the padding: a fifth, if networks are large.
    """
    return table_rows(n_rows) if n_rows <= 128 else padded_rows(n_rows)


def table_rows(n_rows: int) -> int:
    """Round up to the size of a table of training rows: a power of two, up to 2**14 rows.

    Padding of this table costs only memory. A data set that grows row by row, as in Bayesian
    optimisation, then compiles only each time that it doubles.
    """
    return padded_rows(2 ** math.ceil(math.log2(max(n_rows, 1))) if n_rows <= 2**14 else n_rows)
