"""What AutoDEUQ and NES share: search, train, keep everything, select.

They differ in who proposes (`_proposer`), in the space (`_space`) and in what is selected by
(`_select`); what is learnt is a target's business.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from skuq._seeds import draw_entropy, generator
from skuq.catalog import Catalog, HeldOut
from skuq.estimators._rows import (
    check_groups,
    check_validation_data,
    split,
    warn_of_few_rows,
)
from skuq.search import open_slots, run_search
from skuq.tables import TrainingData
from skuq.training import MemberTrainer, predict_members

__all__ = ["SearchEstimator"]


class SearchEstimator(BaseEstimator):
    """Many networks of a search, and an ensemble of some of them."""

    def _fit(self, X, y, sample_weight, validation_data, groups, shifted=()):
        """`shifted` holds pairs (name, data) of further validation sets."""
        if hasattr(self, "selection_"):  # a fit that fails must not leave half of another
            del self.selection_
        X, y = self._check_table(X, y)
        self.entropy_ = draw_entropy(self.random_state)
        rows = self._encoded_rows(X, y, sample_weight)
        self._weigh_classes(rows)
        rows = rows._replace(weight=self._weight(rows))
        train, valid, positions = self._split(rows, validation_data, groups)
        shifted = [self._check_rows_beside(part, name) for name, part in shifted]
        self._head = self._make_head(rows.y.shape[1])
        self.scaling_ = self._fit_scaling(train)
        data = TrainingData(*self._scaled(train), *self._scaled(valid))
        held_out, inputs = self._held_out(positions, data, shifted)
        records = self._run_search(data, held_out, inputs)
        self.catalog_ = Catalog(records, held_out)
        self.selection_ = self._select(self.catalog_)
        return self

    def _split(self, rows, validation_data, groups):
        """Rows to train on, rows to validate on, and the positions of the latter."""
        groups = check_groups(groups, rows.X)
        if validation_data is None:
            rng = generator(self.entropy_, "split")
            train, valid = split(rows, self.validation_fraction, rng, groups, self._labels(rows.y))
            parts = rows.take(train), rows.take(valid), valid
        else:
            valid = self._check_rows_beside(validation_data, "validation_data")
            parts = rows.take(rows.weight > 0), valid, None
        warn_of_few_rows(len(parts[1].X))
        return parts

    def _check_rows_beside(self, data, name):
        """Checked rows of positive weight that the user gives beside those to train on."""
        rows = check_validation_data(self, data, self._check_targets, name)
        rows = rows._replace(weight=self._weight(rows))
        if not (rows.weight > 0).any():
            raise ValueError(f"`{name}` has no row of positive weight.")
        return rows.take(rows.weight > 0)

    def _weigh_classes(self, rows):
        """Learn what else weighs rows, before any are weighed."""

    def _weight(self, rows):
        """Weights (n,) with what else weighs the rows."""
        return rows.weight

    def _scaled(self, rows):
        return self.scaling_.inputs(rows.X), self._scaled_targets(rows.y), rows.weight

    def _held_out(self, positions, data, shifted):
        """What members are judged on, and the inputs they predict for it."""
        sets, inputs = [], [data.x_valid]
        for rows in shifted:
            # Through the same door as the validation rows: float32, weights with mean 1.
            scaled = self._scaled(rows)
            part = TrainingData(*scaled, *(array[:0] for array in scaled))
            sets.append(HeldOut(None, part.y, part.weight))
            inputs.append(part.x)
        held_out = HeldOut(positions, data.y_valid, data.weight_valid, tuple(sets))
        return held_out, np.concatenate(inputs) if shifted else None

    def _run_search(self, data, held_out, inputs):
        space = self._tabular_space(data.x, len(data.x)) if self._is_tabular else self._space()
        self.decisions_ = space.decisions(data.x.shape[1:], self._head.n_raw)
        proposer = self._proposer(space, self.decisions_, held_out)
        epochs = self._epochs(space, len(data.x))
        trainer = MemberTrainer(space, data, self._head, epochs, inputs)
        return self._train(trainer, proposer, self.entropy_)

    def _epochs(self, space, n_train):
        return self.epochs

    def _train(self, trainer, proposer, entropy):
        with open_slots(trainer, self.n_jobs, self.n_trials) as slots:
            return run_search(proposer, slots, self.n_trials, entropy, verbose=self.verbose)

    _dropout_mask = None  # predictions drop nothing

    def _members(self):
        return [self.catalog_.member(index) for index in self.selection_.indices]

    def _raw(self, X):
        """Raw outputs (n_members, n, n_raw)."""
        return predict_members(self._members(), self.scaling_.inputs(X))

    def _mixture_weights(self, n):
        """Weights (n,) of what `_raw` gives."""
        return self.selection_.weights

    def _with_selection(self, selection):
        """The same fitted estimator with another ensemble."""
        other = object.__new__(type(self))  # copy.copy would drop what a pickle drops
        other.__dict__.update(self.__dict__, selection_=selection)
        return other

    def member_estimators(self, *, every_trial=False):
        """Members as fitted estimators of one network each: a pool to choose from.

        Parameters
        ----------
        every_trial : bool, default=False
            The whole catalog instead of the members of the ensemble.

        Returns
        -------
        list of (str, estimator) tuples
            For example for ``HQEnsembleSelector(pool, cv="prefit")``.
        """
        check_is_fitted(self)
        indices = self.catalog_.completed if every_trial else self.selection_.indices
        if every_trial:
            self._check_catalog_is_whole()
        one = replace(self.selection_, weights=np.ones(1), loss=float("nan"), path=())
        return [
            (f"trial{k}", self._with_selection(replace(one, indices=np.array([k]))))
            for k in indices
        ]

    def _check_catalog_is_whole(self):
        if any(self.catalog_.member(k).weights is None for k in self.catalog_.completed):
            raise ValueError(
                "The catalog has lost the networks that are not in the ensemble: pickling keeps "
                "the members only. Do this before pickling, or fit again."
            )

    def __sklearn_is_fitted__(self):
        return hasattr(self, "selection_")

    def __getstate__(self):
        # As small as its members: the other networks of the catalog stay behind.
        state = super().__getstate__()
        if "selection_" in state:
            catalog = state["catalog_"].keep_arrays_of(self._kept())
            state = {**state, "catalog_": catalog}
        return state

    def _kept(self):
        """Trials whose networks a pickle keeps."""
        return self.selection_.indices

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.non_deterministic = self.n_jobs not in (None, 1)
        return tags
