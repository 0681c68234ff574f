"""The static facts of a training program: what its compilation depends on."""

from __future__ import annotations

import math
from dataclasses import dataclass

from skuq.networks._epinet import EpistemicNetwork
from skuq.networks._head_protocol import Head
from skuq.networks._plan import Plan

_ORDER_ENTRIES = 2**20  # row numbers sent with one call: 4 MB
_MAX_EPOCHS_PER_CALL = 64


@dataclass(frozen=True)
class ProgramKey:
    """Everything that shapes a program; two runs with equal keys share one compilation."""

    network: Plan | EpistemicNetwork | str  # a Keras model without a plan: its JSON, without names
    head: Head
    optimizer: str
    batch_size: int
    input_shape: tuple[int, ...]
    n_outputs: int  # columns of y
    n_rows: int  # of the table the batches are taken from, padded
    n_steps: int  # of one epoch, for the padded number of training rows
    n_valid: int  # padded; 0 where nothing is held out
    jit: bool
    n_members: int = 0  # 0: one network, without a member axis
    own_validation: bool = False  # every member has validation rows of its own
    clip: bool = False
    l2: bool = False
    decay: bool = False
    dropout: bool = False  # rates come with the run
    adversarial: bool = False
    momentum: float = 0.0
    n_artificial: int = 0  # inputs without targets in every step
    n_draws: int = 0  # epistemic indices in every step
    detached: tuple[int, ...] = ()  # variables that the head's uncertainty terms do not move
    beta_2: float = 0.999
    dropout_schedule: bool = False
    rate_factors: bool = False  # of variables
    epsilon: float = 1e-7

    @property
    def lead(self) -> tuple[int, ...]:
        """The member axis, where there is one."""
        return (self.n_members,) if self.n_members else ()

    @property
    def epochs_per_call(self) -> int:
        """Most epochs of one call, so that the orders sent with it stay small."""
        numbers = self.batch_size + self.n_artificial * math.prod(self.input_shape)
        width = self.n_steps * numbers * max(1, self.n_members)
        return max(1, min(_MAX_EPOCHS_PER_CALL, _ORDER_ENTRIES // width))


def padded_rows(n_rows: int) -> int:
    """Round up to a ladder of four sizes an octave, hence by at most a quarter."""
    if n_rows <= 8:
        return 8
    step: int = 2 ** (math.ceil(math.log2(n_rows)) - 3)
    return step * math.ceil(n_rows / step)


def table_rows(n_rows: int) -> int:
    """Round up to the size of a table of training rows: a power of two, unless that is large.

    Padding of this table costs memory alone, and a data set that grows by a row at a time compiles
    once an octave.
    """
    return padded_rows(2 ** math.ceil(math.log2(max(n_rows, 1))) if n_rows <= 2**14 else n_rows)
