"""What AutoDEUQ and NES share: search, train, keep everything, select.

They differ in who proposes (`_proposer`), in the space (`_space`) and in what is selected by
(`_select`); what is learnt is a target's business.
"""

from __future__ import annotations

import warnings
from dataclasses import replace
from numbers import Integral

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from skuq._seeds import draw_entropy, generator
from skuq.catalog import Catalog, HeldOut
from skuq.estimators._durable import DurableSearchMixin
from skuq.estimators._keras_model import KerasModelMixin
from skuq.estimators._rows import (
    check_groups,
    check_validation_data,
    fold_rows,
    split,
    warn_of_few_rows,
)
from skuq.search import FixedSequence, Limits, RunOptions, run_trials
from skuq.tables import TrainingData
from skuq.training import MemberRefitter, MemberTrainer, predict_members

__all__ = ["SearchEstimator"]


class SearchEstimator(KerasModelMixin, DurableSearchMixin, BaseEstimator):
    """Many networks of a search, and an ensemble of some of them."""

    def _fit(self, X, y, sample_weight, validation_data, groups, shifted=()):
        """`shifted` holds pairs (name, data) of further validation sets."""
        is_fitted = hasattr(self, "selection_")
        # A fit that fails must not leave half of another.
        for name in ("selection_", "selections_", "refitted_", "catalog_", "catalog_path_"):
            self.__dict__.pop(name, None)
        if self.cv is not None and validation_data is not None:
            raise ValueError(
                "With `cv` every row validates, and `validation_data` are others to validate on: "
                f"give one of them. Got cv={self.cv!r}."
            )
        X, y = self._check_table(X, y)
        self.entropy_ = draw_entropy(self.random_state)
        rows = self._encoded_rows(X, y, sample_weight)
        self._weigh_classes(rows)
        rows = rows._replace(weight=self._weight(rows))
        groups = check_groups(groups, rows.X)
        beside = None
        if validation_data is not None:
            beside = self._check_rows_beside(validation_data, "validation_data")
        shifted = [self._check_rows_beside(part, name) for name, part in shifted]
        given = None  # folds that are the user's: they may be others every time
        if not isinstance(self.cv, Integral | None):
            given = self._folds(rows, groups)
        store = self._open_store(
            is_fitted,
            X=rows.X,
            y=rows.y,
            sample_weight=rows.weight,
            groups=groups,
            validation_data=beside,
            shift_validation=shifted,
            **({} if given is None else {"cv": given}),
        )
        with store as store:
            self.catalog_path_ = None if store is None else store.path
            if store is not None:
                self.entropy_ = store.entropy or self.entropy_
            train, valid, positions = self._divided(rows, beside, groups)
            folds = given or self._folds(rows, groups)
            self._head = self._make_head(rows.y.shape[1])
            self.scaling_ = self._fit_scaling(train)
            if folds is None:
                data = TrainingData(*self._scaled(train), *self._scaled(valid))
            else:
                data = TrainingData.without_validation(*self._scaled(train))
            held_out, inputs = self._held_out(positions, data, shifted, folds)
            space = self._make_space(data, folds)
            trainer = MemberTrainer(
                space,
                data,
                self._head,
                self._epochs(space, _n_train(data, folds)),
                inputs,
                folds,
                timeout=self.trial_timeout,
            )
            proposer = self._proposer(space, self.decisions_, held_out)
            if store is not None:
                self._begin(store, held_out)
            records = self._train(trainer, proposer, self.entropy_, store)
        self.catalog_ = Catalog(records, held_out)
        self.refitted_ = {}
        self.selection_ = self._select()
        if self.refit:
            self.refitted_ = self._trained_anew(trainer)
        return self

    def _divided(self, rows, beside, groups):
        """Rows to train on, rows to validate on (None: folds do), and positions of these."""
        if self.cv is not None:
            used = np.flatnonzero(rows.weight > 0)
            train, valid, validate = rows.take(used), None, used
            warn_of_few_rows(len(used), "")
            return train, valid, validate
        if beside is None:
            rng, labels = generator(self.entropy_, "split"), self._labels(rows.y)
            train, validate = split(rows, self.validation_fraction, rng, groups, labels)
            parts = rows.take(train), rows.take(validate), validate
        else:
            parts = rows.take(rows.weight > 0), beside, None
        warn_of_few_rows(
            len(parts[1].X), "`cv`, a larger validation_fraction or validation_data may help."
        )
        return parts

    def _folds(self, rows, groups):
        """Pairs of positions among the rows of positive weight; None without `cv`."""
        if self.cv is None:
            return None
        used = np.flatnonzero(rows.weight > 0)
        rows, groups = rows.take(used), None if groups is None else groups[used]
        return fold_rows(
            rows, self.cv, generator(self.entropy_, "split"), groups, self._labels(rows.y)
        )

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

    def _held_out(self, positions, data, shifted, folds):
        """What members are judged on, and the inputs they predict for it; None for the usual."""
        sets, inputs = [], [data.x_valid]
        for rows in shifted:
            # Through the same door as the validation rows: float32, weights with mean 1.
            part = TrainingData.without_validation(*self._scaled(rows))
            sets.append(HeldOut(None, part.y, part.weight))
            inputs.append(part.x)
        own = (data.y_valid, data.weight_valid) if folds is None else (data.y, data.weight)
        held_out = HeldOut(positions, *own, tuple(sets))
        return held_out, np.concatenate(inputs) if shifted else None

    def _make_space(self, data, folds):
        """The search space; what it decides becomes `decisions_`."""
        if self._is_tabular:
            space = self._tabular_space(data.x, _n_train(data, folds))
        else:
            space = self._space()
        self.decisions_ = space.decisions(data.x.shape[1:], self._head.n_raw)
        return space

    def _epochs(self, space, n_train):
        return self.epochs

    def _train(self, trainer, proposer, entropy, store):
        options = self._run_options()
        return run_trials(trainer, proposer, self.n_trials, entropy, store=store, options=options)

    def _trained_anew(self, trainer):
        """By trial, the networks of the ensemble trained on all rows; without those that fail."""
        records = [self.catalog_[k] for k in self._kept()]
        asked = FixedSequence([{"trial": record.trial_number} for record in records])
        limits = Limits(trial_timeout=self.trial_timeout, raise_on_failures=False)
        options = RunOptions(self.n_jobs, limits, self.verbose, name="refit")
        found, why = [], ""
        try:
            refitter = MemberRefitter(trainer, records)
            found = run_trials(refitter, asked, len(records), self.entropy_, options=options)
        # The search is done, and must not be lost for anything that comes after it.
        except (Exception, KeyboardInterrupt) as error:
            why = f"{type(error).__name__}: {error}"
        anew = {r.configuration["trial"]: r.result for r in found if r.completed}
        if len(anew) < len(records):
            why = why or next((r.message for r in found if not r.completed), "interrupted")
            warnings.warn(
                f"{len(records) - len(anew)} of {len(records)} networks could not be trained anew "
                f"on all rows: those of the search stand in for them ({why}).",
                stacklevel=5,
            )
        positions = {record.trial_number: k for k, record in enumerate(self.catalog_)}
        return {positions[number]: member for number, member in anew.items()}

    # -------------------------------------------------------------- selection

    def _check_selection(self):
        """Raise where parameters of the selection contradict each other."""

    def _judged_on(self):
        """The held-out sets that the ensemble is for: the shifted ones, if there are any."""
        clean, *shifted = self.catalog_.held_out.sets
        return shifted or [clean]

    def _held_out_of(self, sets):
        """What trials gave on some of the held-out sets, and targets, weights and groups.

        Each set counts the same. Sets are often versions of the same rows, in the same order:
        rows of one position are a group.
        """
        self._check_catalog_is_whole()
        members = [self.catalog_.member(k) for k in self.catalog_.completed]
        raws = [np.concatenate([m.held_out[part] for part, _, _ in sets]) for m in members]
        y = np.concatenate([y for _, y, _ in sets]).astype("float64")
        weight = np.concatenate([weight / weight.sum() for _, _, weight in sets])
        return raws, y, weight, np.concatenate([np.arange(len(y)) for _, y, _ in sets])

    def reselect(self, X=None, y=None, sample_weight=None, **settings):
        """Choose another ensemble out of the networks there are: nothing is trained.

        With ``refit=True`` members are then the networks of the search, with a warning.

        Parameters
        ----------
        X, y, sample_weight : optional
            Rows to choose on, as in `fit`: not those trained on, and best from where the
            model is used now. By default the rows that were held out in `fit`.
        **settings : dict
            Instead of the parameters of the same names, which stay what they are:
            `n_members`, `selection`, and what else decides on the ensemble.

        Returns
        -------
        self
            With another `selection_`.

        Raises
        ------
        ValueError
            If the estimator was pickled, which keeps the members alone, or the arguments
            cannot be used.
        """
        check_is_fitted(self)
        if (X is None) != (y is None) or (X is None and sample_weight is not None):
            raise ValueError("`reselect` needs both X and y, or neither and no weights.")
        chooser = self._with_settings(settings)
        if X is None:
            held_out = self._held_out_of(self._judged_on())
        else:
            self._check_catalog_is_whole()
            data = (X, y) if sample_weight is None else (X, y, sample_weight)
            x, targets, weight = self._scaled(self._check_rows_beside(data, "X, y"))
            raws = [self._raw_of_trial(k, x) for k in self.catalog_.completed]
            held_out = raws, targets, weight, np.arange(len(x))
        self.selection_ = chooser._choose(*held_out)
        if self.refitted_:
            self.refitted_ = {}
            warnings.warn(
                "`reselect` trains nothing: from now on members are the networks of the search, "
                "not those that were trained anew on all rows. `fit` trains them.",
                stacklevel=2,
            )
        return self

    def _raw_of_trial(self, index, x):
        """Raw outputs (n, n_raw) of one trial, of all its folds together."""
        raw = predict_members(self.catalog_.member(index).networks, x, once=True)
        return raw[0] if len(raw) == 1 else self._head.pooled(raw)

    def _with_settings(self, settings):
        """The same estimator with other parameters of the selection, checked."""
        allowed = (*self._selection_parameters, *self._also_reselected)
        unknown = sorted(set(settings) - set(allowed))
        if unknown:
            raise ValueError(f"`reselect` knows {list(allowed)}. Got {unknown}.")
        other = self._with_selection(self.selection_)
        other.__dict__.update(settings)
        other._validate_params()
        other._check_selection()
        return other

    _also_reselected: tuple = ()

    # ------------------------------------------------------------- prediction

    _dropout_mask = None  # predictions drop nothing

    def _members(self):
        return [network for networks in self._networks_of_trials() for network in networks]

    def _networks_of_trials(self):
        """Of each trial in the ensemble one network, or those of its folds."""
        anew, own = self.refitted_, self.catalog_.member
        return [(anew[k],) if k in anew else own(k).networks for k in self.selection_.indices]

    def _raw(self, X):
        """Raw outputs (n_members, n, n_raw)."""
        return predict_members(self._members(), self.scaling_.inputs(X))

    def _mixture_weights(self, n):
        """Weights (n,) of what `_raw` gives."""
        counts = [len(networks) for networks in self._networks_of_trials()]
        return np.repeat(self.selection_.weights / counts, counts)

    def _with_selection(self, selection, **changes):
        """The same fitted estimator with another ensemble."""
        other = object.__new__(type(self))  # copy.copy would drop what a pickle drops
        other.__dict__.update(self.__dict__, selection_=selection, **changes)
        return other

    def member_estimators(self, *, every_trial=False):
        """Members as fitted estimators of one trial each: a pool to choose from.

        Parameters
        ----------
        every_trial : bool, default=False
            The whole catalog instead of the members of the ensemble, as the search has trained it.

        Returns
        -------
        list of (str, estimator) tuples
            For example for ``HQEnsembleSelector(pool, cv="prefit")``, on rows that the networks
            have not seen: those held out, or with `cv` and `refit`, which train on all, others.
        """
        check_is_fitted(self)
        indices, changes = self.selection_.indices, {}
        if every_trial:
            self._check_catalog_is_whole()
            indices, changes = self.catalog_.completed, {"refitted_": {}}
        one = replace(self.selection_, weights=np.ones(1), loss=float("nan"), path=())
        return [
            (f"trial{k}", self._with_selection(replace(one, indices=np.array([k])), **changes))
            for k in indices
        ]

    def _check_catalog_is_whole(self):
        members = [self.catalog_.member(k) for k in self.catalog_.completed]
        if any(network.weights is None for member in members for network in member.networks):
            raise ValueError(
                "The catalog has lost the networks that are not in the ensemble: pickling keeps "
                "the members only. Do this before pickling, or fit again."
            )

    def __sklearn_is_fitted__(self):
        return hasattr(self, "selection_")

    def __getstate__(self):
        # As small as its members: the other networks of the catalog stay behind.
        state = super().__getstate__()
        state = {name: value for name, value in state.items() if name != "_memory"}
        if "selection_" in state:
            kept = [k for k in self._kept() if k not in self.refitted_]
            catalog = state["catalog_"].keep_arrays_of(kept)
            state = {**state, "catalog_": catalog}
        return state

    def __setstate__(self, state):
        if "selection_" in state:  # of a file that is older than `refit`
            state = {**state, "refitted_": state.get("refitted_", {})}
        super().__setstate__(state)

    def _kept(self):
        """Trials of the ensemble."""
        return self.selection_.indices

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.non_deterministic = self.n_jobs not in (None, 1)
        return tags


def _n_train(data, folds):
    """Rows that a network is trained on."""
    return len(data.x) if folds is None else min(len(train) for train, _ in folds)
