"""Neural ensemble search, whatever is learnt: proposing, selecting, selecting again."""

from __future__ import annotations

import warnings
from dataclasses import replace
from numbers import Integral, Real

import numpy as np
from sklearn.base import clone
from sklearn.utils.validation import check_is_fitted

from skuq._params import HasMethods, Interval, StrOptions, fit_context
from skuq._seeds import generator
from skuq.ensembles import SELECTORS, check_selection, select_by
from skuq.ensembles._likelihood import likelihood_statistics
from skuq.estimators._durable import DURABLE_CONSTRAINTS
from skuq.estimators._frames import PREPROCESS_CONSTRAINTS
from skuq.estimators._search import SearchEstimator
from skuq.networks._resolve import NES_SPACES, resolve_nes_space
from skuq.search import (
    EnsembleEvolution,
    Fixed,
    Mutation,
    RandomProposer,
    ensemble_population,
    pin,
    run_together,
)
from skuq.training import Recipe

__all__ = ["NeuralEnsembleSearch"]

_IMAGE_EPOCHS = 100  # the paper's
_TABLE_EPOCHS = 30, 100
_ENOUGH_STEPS = 500  # of an optimiser: of the smallest tables these take more epochs

_ONE_ARCHITECTURE = ("hyperparameters", "initialisation")  # of `vary`

_BASELINES = {
    "deep-ensemble": {"vary": "initialisation", "selection": "top"},
    "deep-ensemble-es": {"vary": "initialisation", "selection": "forward"},
    "hyper-ensemble": {"vary": "hyperparameters", "selection": "forward"},
}


class NeuralEnsembleSearch(SearchEstimator):
    """What classifier and regressor share."""

    _parameter_constraints: dict = {
        "n_trials": [Interval(Integral, 1, None, closed="left")],
        "n_members": [Interval(Integral, 1, None, closed="left")],
        "strategy": [StrOptions({"re", "rs"})],
        "vary": [StrOptions({"architecture", "hyperparameters", "both", "initialisation"})],
        "search_space": [
            None,
            StrOptions({*NES_SPACES, "tabular"}),
            HasMethods(["decisions", "build", "recipe"]),
            callable,
            tuple,
        ],
        "fixed_architecture": [dict, None],
        "fixed_hyperparameters": [dict, None],
        "image_shape": [tuple, list, None],
        "population_size": [Interval(Integral, 1, None, closed="left"), None],
        "n_parents": [Interval(Integral, 1, None, closed="left"), None],
        "evolve_on": [StrOptions({"both", "clean", "shift"})],
        "selection": [StrOptions({*SELECTORS, "hq"}), callable],
        "use_best": ["boolean"],
        "epochs": [Interval(Integral, 1, None, closed="left"), None],
        "validation_fraction": [Interval(Real, 0, 1, closed="neither")],
        "cv": ["cv_object"],
        "refit": ["boolean"],
        **PREPROCESS_CONSTRAINTS,
        **DURABLE_CONSTRAINTS,
        "n_jobs": [Integral, None],
        "random_state": ["random_state"],
        "verbose": ["verbose"],
    }

    @fit_context(prefer_skip_nested_validation=True)
    def fit(
        self,
        X,
        y,
        sample_weight=None,
        *,
        validation_data=None,
        shift_validation=None,
        groups=None,
    ):
        """Search, train and select.

        Parameters
        ----------
        X : array-like or DataFrame of shape (n, n_features), or ndarray of shape (n, h, w, c)
            Numbers, booleans, strings and categories, with missing values, see `preprocess`;
            images of finite numbers.
        y : array-like of shape (n,) or, of numbers, (n, n_outputs)
        sample_weight : array-like of shape (n,), optional
            Non-negative.
        validation_data : tuple (X, y) or (X, y, sample_weight), optional
            Rows to validate on, instead of a share of the rows above. Not with `cv`.
        shift_validation : tuple (X, y[, sample_weight]) or list of such tuples, optional
            Labelled rows from where the model will be used, or a simulation of it (see
            `skuq.datasets.corrupt_table`). A list holds several severities, the highest last.
            Never trained on: the ensemble is selected on them (on all severities together,
            each counting the same; see `at_severity`), and evolution looks at the highest.
        groups : array-like of shape (n,), optional
            Rows of one group are never divided between training and validation, unless a splitter
            given as `cv` does so.

        Returns
        -------
        self

        Raises
        ------
        ValueError
            If the data or parameters cannot be used; the message says which and why.
        SearchFailedError
            If no network could be trained; it shows the reasons.
        """
        self._check_selection()
        shifted = _named_sets(shift_validation)
        if self.evolve_on == "shift" and not shifted:
            raise ValueError('`evolve_on="shift"` needs `shift_validation`.')
        return self._fit(X, y, sample_weight, validation_data, groups, shifted)

    _selection_parameters = ("n_members", "selection", "use_best")

    def _check_selection(self):
        least = 2 if self.selection == "hq" else 1  # HQ makes teams
        if self.n_members < least:
            raise ValueError(
                f"With `selection={self.selection!r}`, `n_members` must be an integer >= {least}. "
                f"Got {self.n_members!r}."
            )
        if self.use_best and self.selection not in SELECTORS:
            raise ValueError(
                f"`use_best=True` is for `selection` in {SELECTORS}. Got {self.selection!r}."
            )

    # ----------------------------------------------------------------- search

    def _space(self):
        return resolve_nes_space(self.search_space, self.image_shape_ is not None, self._n_rows)

    def _epochs(self, space, n_train):
        if self.epochs is not None:
            return self.epochs
        if self._sees_images:
            return _IMAGE_EPOCHS
        architecture, hyperparameters = self.decisions_
        decided = space.recipe({**architecture.default(), **hyperparameters.default()})
        n_steps = -(-n_train // Recipe(**decided).batch_size)
        return int(np.clip(-(-_ENOUGH_STEPS // n_steps), *_TABLE_EPOCHS))

    def _pinned(self, decisions):
        """The decisions, those that do not vary with one value each."""
        architecture = dict(self.fixed_architecture or {})
        hyperparameters = dict(self.fixed_hyperparameters or {})
        if self.vary in _ONE_ARCHITECTURE:
            architecture = {**decisions.architecture.default(), **architecture}
        if self.vary in ("architecture", "initialisation"):
            hyperparameters = {**decisions.hyperparameters.default(), **hyperparameters}
        return pin(decisions, architecture, hyperparameters)

    def _proposer(self, space, decisions, held_out):
        pinned = self._pinned(decisions)
        both = pinned.architecture + pinned.hyperparameters
        if both.size == 1:
            return Fixed(both.default())
        p, m = ensemble_population(self.n_trials, self.population_size, self.n_parents)
        if self.strategy == "re" and (self.population_size or 0) >= self.n_trials:
            warnings.warn(
                f"Evolution begins when `population_size={p}` networks have been trained, and "
                f"`n_trials` is {self.n_trials}: all are drawn at random.",
                stacklevel=6,
            )
        if self.strategy == "rs" or p >= self.n_trials:
            return RandomProposer(both)
        clean, *shifted = held_out.sets
        judged = {"clean": [clean], "shift": shifted[-1:], "both": [clean, *shifted[-1:]]}
        judges = [_Judge(self._statistics, part) for part in judged[self.evolve_on]]
        mutation = Mutation(*pinned, getattr(space, "mutate", None))
        return EnsembleEvolution(both.sample, mutation, judges, p, m)

    def _train(self, trainer, proposer, entropy, store):
        """Networks of one architecture whose settings are known beforehand make stacks."""
        if self.vary in _ONE_ARCHITECTURE:
            # A baseline splits the rows as its search did, but repeats none of its networks.
            entropy = int(generator(entropy, "one architecture").integers(1, 2**31 - 1))
            if not isinstance(proposer, EnsembleEvolution):
                rngs = [generator(entropy, "ask", k) for k in range(self.n_trials)]
                configurations = [proposer.ask([], [], rng) for rng in rngs]
                if trainer.fit_together(configurations):
                    return run_together(
                        trainer.together,
                        configurations,
                        entropy,
                        store=store,
                        options=self._run_options(),
                    )
        return super()._train(trainer, proposer, entropy, store)

    # -------------------------------------------------------------- selection

    def _select(self):
        sets = self.catalog_.held_out.sets
        self.selections_ = tuple(self._choose(*self._held_out_of([part])) for part in sets)
        if len(sets) <= 2:  # the clean rows, or one shifted set: chosen on already
            return self.selections_[-1]
        return self._choose(*self._held_out_of(self._judged_on()))

    def _choose(self, raws, y, weight, groups):
        """An ensemble of trials, from the raw outputs (n_rows, n_raw) of each."""
        n_members = self.n_members
        if self.selection == "hq":
            chosen = self._choose_hq(y, raws, weight, n_members)
        elif isinstance(self.selection, str):
            chosen = select_by(
                *self._statistics(y, raws),
                n_members,
                self.selection,
                use_best=self.use_best,
                sample_weight=weight,
                groups=groups,
            )
        else:
            likelihood = self._log_likelihood(y, raws)
            chosen = self.selection(likelihood, n_members, sample_weight=weight)
            check_selection(chosen, len(raws))
        return replace(chosen, indices=self.catalog_.completed[np.asarray(chosen.indices)])

    def _log_likelihood(self, y, raws):
        """Of every trial and row; trial by trial, since raw outputs are many times as many."""
        return np.stack([self._head.log_likelihood(y, raw.astype("float64")) for raw in raws])

    def _statistics(self, y, raws):
        """What an ensemble averages, and its loss, for targets and raw outputs."""
        return likelihood_statistics(self._log_likelihood(y, raws))

    def at_severity(self, severity):
        """The same networks with the ensemble chosen for one held-out set.

        Parameters
        ----------
        severity : int
            0 is the clean validation rows, k the k-th set of `shift_validation`.

        Returns
        -------
        estimator
            Fitted; a copy that shares its networks with this one.
        """
        check_is_fitted(self)
        if not isinstance(severity, Integral) or not 0 <= severity < len(self.selections_):
            raise ValueError(
                f"`severity` must be an integer in 0..{len(self.selections_) - 1}. "
                f"Got {severity!r}."
            )
        return self._with_selection(self.selections_[severity])

    # -------------------------------------------------------------- baselines

    def best_configuration(self):
        """The trial that does best alone on the rows that ensembles are selected on.

        Returns
        -------
        dict
            ``{decision name: value}``.

        Raises
        ------
        ValueError
            If the estimator was pickled, which keeps the members alone.
        """
        check_is_fitted(self)
        raws, y, weight, _ = self._held_out_of(self._judged_on())
        best = select_by(*self._statistics(y, raws), 1, "top", sample_weight=weight).indices[0]
        return dict(self.catalog_[int(self.catalog_.completed[best])].configuration)

    def baseline(self, kind):
        """What the paper compares with, on the best configuration of this search.

        Parameters
        ----------
        kind : {"deep-ensemble", "deep-ensemble-es", "hyper-ensemble"}
            "deep-ensemble" trains `n_members` networks that differ in their seeds (DeepEns
            (RS), if this search was random); "deep-ensemble-es" trains `n_trials` such
            networks and selects among them (appendix C.3); "hyper-ensemble" trains
            `n_trials` of random learning rates and L2 penalties and selects (C.4).

        Returns
        -------
        estimator
            Not fitted yet. Networks trained in all: those of this search, and its own. With
            the same `random_state` it splits rows as this search did, but trains other
            networks.

        Raises
        ------
        ValueError
            If the estimator was pickled, which keeps the members alone.
        """
        if kind not in _BASELINES:
            raise ValueError(f"`kind` must be one of {sorted(_BASELINES)}. Got {kind!r}.")
        configuration = self.best_configuration()
        architecture, hyperparameters = self.decisions_
        settings = {
            **_BASELINES[kind],
            "strategy": "rs",
            "n_trials": self.n_members if kind == "deep-ensemble" else self.n_trials,
            "fixed_architecture": architecture.restrict(configuration),
        }
        if kind == "hyper-ensemble":
            settings["fixed_hyperparameters"] = None
        else:
            settings["fixed_hyperparameters"] = hyperparameters.restrict(configuration)
        return clone(self).set_params(**settings)

    def _kept(self):
        chosen = [self.selection_, *getattr(self, "selections_", ())]
        return np.unique(np.concatenate([selection.indices for selection in chosen]))


def _named_sets(shift_validation):
    """Pairs (name, data), from one set or several."""
    if shift_validation is None:
        return []
    several = isinstance(shift_validation, list) or (
        isinstance(shift_validation, tuple)
        and all(isinstance(part, tuple) for part in shift_validation)
    )
    if not several:
        return [("shift_validation", shift_validation)]
    if not shift_validation:
        raise ValueError("`shift_validation` is empty: give (X, y), a list of such, or None.")
    return [(f"shift_validation[{k}]", part) for k, part in enumerate(shift_validation)]


class _Judge:
    """What records predict of one held-out set, for `EnsembleEvolution`."""

    def __init__(self, statistics, part):
        self._statistics = statistics
        self._rows, y, self._weight = part
        self._y = y.astype("float64")

    def __call__(self, records):
        raws = [record.result.held_out[self._rows] for record in records]
        return *self._statistics(self._y, raws), self._weight
