"""Draw a run's random numbers on the host: batch orders and artificial inputs."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from skuq.training._job import TrainingJob, TrainingState, seed_words
from skuq.training._program_key import ProgramKey


class HostStreams:
    """Random generators of each member, whose positions are part of a run's state."""

    def __init__(self, job: TrainingJob):
        self._splits, self._artificial = job.splits, job.artificial
        words = [seed_words(seed) for seed in job.seeds]
        self._shuffles = [np.random.default_rng(word.orders) for word in words]
        self._artificial_rngs = [np.random.default_rng(word.artificial) for word in words]
        self._permutations = job.permutations
        if isinstance(job.start, TrainingState):  # continue where the paused run ended
            for shuffle, draw, positions in zip(
                self._shuffles, self._artificial_rngs, job.start.streams
            ):
                shuffle.bit_generator.state, draw.bit_generator.state = positions

    def positions(self) -> tuple[tuple[Any, Any], ...]:
        """Return the positions of all generators, for `TrainingState.streams`."""
        return tuple(
            (shuffle.bit_generator.state, draw.bit_generator.state)
            for shuffle, draw in zip(self._shuffles, self._artificial_rngs)
        )

    def orders(self, key: ProgramKey, n_epochs: int, n_rows: int, n_train: int) -> np.ndarray:
        """Draw the row numbers of each epoch's batches.

        The result has shape (epochs_per_call, .., n_steps * batch_size).
        """
        shape = (key.epochs_per_call, len(self._shuffles), key.n_steps * key.batch_size)
        orders = np.zeros(shape, dtype="int32")
        # Whole batches, as the program reads them.
        width = math.ceil(n_train / key.batch_size) * key.batch_size
        for epoch in orders[:n_epochs]:
            for k, order in enumerate(epoch):
                # The last batch is padded with rows from the start of the epoch, whose share in
                # the loss is zero.
                order[:width] = np.resize(self._order(k, n_rows, n_train), width)
        return orders if key.n_members else orders[:, 0]

    def _order(self, k: int, n_rows: int, n_train: int) -> Any:
        """Draw `n_train` of a member's rows for one epoch, in random order."""
        if self._permutations is not None:
            order = self._permutations[k](n_rows)[:n_train]
        elif n_train == n_rows:
            order = self._shuffles[k].permutation(n_rows)
        else:
            order = self._shuffles[k].choice(n_rows, n_train, replace=False)
        return order if self._splits is None else np.asarray(self._splits[k][0])[order]

    def artificial(self, key: ProgramKey, n_epochs: int, n_steps: int) -> np.ndarray:
        """Draw the artificial inputs of each member in each step of `n_epochs` epochs.

        The result has the program's shape, (epochs_per_call, key.n_steps, .., n_artificial,
        *input_shape); epochs and steps that are not run are 0.
        """
        draw: Any = self._artificial
        shape = (len(self._artificial_rngs), key.n_artificial, *key.input_shape)
        inputs = np.zeros((key.epochs_per_call, key.n_steps, *shape), dtype="float32")
        for epoch in inputs[:n_epochs, :n_steps]:
            # One call for all steps of the epoch.
            for k, rng in enumerate(self._artificial_rngs):
                drawn = draw(n_steps * key.n_artificial, rng=rng)
                epoch[:, k] = np.reshape(drawn, (n_steps, *shape[1:]))
        return inputs if key.n_members else inputs[:, :, 0]
