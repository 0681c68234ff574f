"""Neural ensemble search, whatever is learnt: proposing, selecting, selecting again."""

from __future__ import annotations

from dataclasses import replace
from numbers import Integral, Real

import numpy as np
from sklearn.base import clone
from sklearn.utils.validation import check_is_fitted

from skuq._params import HasMethods, Interval, StrOptions, fit_context
from skuq._seeds import generator
from skuq.ensembles import SELECTORS, check_selection, select_by
from skuq.ensembles._likelihood import likelihood_statistics
from skuq.estimators._rows import check_validation_data
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
from skuq.training import predict_members

__all__ = ["NeuralEnsembleSearch"]

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
            StrOptions(set(NES_SPACES)),
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
        "epochs": [Interval(Integral, 1, None, closed="left")],
        "validation_fraction": [Interval(Real, 0, 1, closed="neither")],
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
        X : array-like of shape (n, n_features), or ndarray of shape (n, h, w, c)
            Finite numbers; see `sklearn.compose.ColumnTransformer` for strings.
        y : array-like of shape (n,) or, of numbers, (n, n_outputs)
        sample_weight : array-like of shape (n,), optional
            Non-negative.
        validation_data : tuple (X, y) or (X, y, sample_weight), optional
            Rows to validate on, instead of a share of the rows above.
        shift_validation : tuple (X, y[, sample_weight]) or list of such tuples, optional
            Labelled rows from where the model will be used, or a simulation of it (see
            `skuq.datasets.corrupt_table`). A list holds several severities, the highest last.
            Never trained on: the ensemble is selected on them (on all severities together,
            each counting the same; see `at_severity`), and evolution looks at the highest.
        groups : array-like of shape (n,), optional
            Rows of one group are never divided between training and validation.

        Returns
        -------
        self
        """
        if self.selection == "hq" and self.n_members < 2:
            raise ValueError('`selection="hq"` makes teams: `n_members` must be at least 2. Got 1.')
        if shift_validation is None:
            shifted = []
        elif isinstance(shift_validation, list):
            shifted = [(f"shift_validation[{k}]", part) for k, part in enumerate(shift_validation)]
        else:
            shifted = [("shift_validation", shift_validation)]
        if self.evolve_on == "shift" and not shifted:
            raise ValueError('`evolve_on="shift"` needs `shift_validation`.')
        self._fit(X, y, sample_weight, validation_data, groups, shifted)
        self.selections_ = tuple(self._select_on([part]) for part in self.catalog_.held_out.sets)
        return self

    # ----------------------------------------------------------------- search

    def _space(self):
        return resolve_nes_space(self.search_space, self.image_shape_ is not None)

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
        if self.strategy == "rs" or p >= self.n_trials:
            return RandomProposer(both)
        clean, *shifted = held_out.sets
        judged = {"clean": [clean], "shift": shifted[-1:], "both": [clean, *shifted[-1:]]}
        judges = [_Judge(self._statistics, part) for part in judged[self.evolve_on]]
        mutation = Mutation(*pinned, getattr(space, "mutate", None))
        return EnsembleEvolution(both.sample, mutation, judges, p, m)

    def _train(self, trainer, proposer):
        """Networks of one architecture whose settings are known beforehand make stacks."""
        if not isinstance(proposer, EnsembleEvolution) and self.vary in _ONE_ARCHITECTURE:
            rngs = [generator(self.entropy_, "ask", k) for k in range(self.n_trials)]
            configurations = [proposer.ask([], [], rng) for rng in rngs]
            if trainer.fit_together(configurations):
                return run_together(
                    trainer.together, configurations, self.entropy_, verbose=self.verbose
                )
        return super()._train(trainer, proposer)

    # -------------------------------------------------------------- selection

    def _select(self, catalog):
        return self._select_on(self._judged_on())

    def _judged_on(self):
        """The held-out sets that the ensemble is for: the shifted ones, if there are any."""
        clean, *shifted = self.catalog_.held_out.sets
        return shifted or [clean]

    def _select_on(self, sets, n_members=None):
        return self._choose(self.catalog_.completed, *self._pooled(sets), n_members)

    def _pooled(self, sets):
        """Raw outputs, targets and weights on some of the held-out sets, each counting the same."""
        self._check_catalog_is_whole()
        parts = [
            self._raw_held_out(self.catalog_, self.catalog_.completed, part) for part, _, _ in sets
        ]
        y = np.concatenate([y for _, y, _ in sets]).astype("float64")
        weight = np.concatenate([weight / weight.sum() for _, _, weight in sets])
        return np.concatenate(parts, axis=1), y, weight

    def _choose(self, candidates, raw, y, weight, n_members=None):
        """An ensemble of trials, from raw outputs (n_candidates, n_rows, n_raw)."""
        n_members = self.n_members if n_members is None else n_members
        if self.selection == "hq":
            chosen = self._choose_hq(y, raw, weight, n_members)
        elif isinstance(self.selection, str):
            chosen = select_by(
                *self._statistics(y, raw),
                n_members,
                self.selection,
                use_best=self.use_best,
                sample_weight=weight,
            )
        else:
            likelihood = self._head.log_likelihood(y, raw)
            chosen = self.selection(likelihood, n_members, sample_weight=weight)
            check_selection(chosen, len(candidates))
        return replace(chosen, indices=candidates[np.asarray(chosen.indices)])

    def _statistics(self, y, raw):
        """What an ensemble averages, and its loss, for targets and raw outputs."""
        return likelihood_statistics(self._head.log_likelihood(y, raw))

    def reselect(self, X=None, y=None, sample_weight=None, *, n_members=None):
        """Choose another ensemble out of the networks there are: nothing is trained.

        Parameters
        ----------
        X, y, sample_weight : optional
            Rows to choose on, as in `fit`: not those trained on, and best from where the
            model is used now. By default the rows that were held out in `fit`.
        n_members : int, optional
            Instead of the parameter.

        Returns
        -------
        self
            With another `selection_`.

        Raises
        ------
        ValueError
            If the estimator was pickled, which keeps the members alone.
        """
        check_is_fitted(self)
        if X is None:
            self.selection_ = self._select_on(self._judged_on(), n_members)
            return self
        self._check_catalog_is_whole()
        data = (X, y) if sample_weight is None else (X, y, sample_weight)
        rows = self._weighted(check_validation_data(self, data, self._check_targets, "X, y"))
        x, targets, weight = self._scaled(rows)
        candidates = self.catalog_.completed
        raw = predict_members([self.catalog_.member(k) for k in candidates], x, once=True)
        self.selection_ = self._choose(candidates, raw, targets, weight, n_members)
        return self

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
        """
        check_is_fitted(self)
        raw, y, weight = self._pooled(self._judged_on())
        best = select_by(*self._statistics(y, raw), 1, "top", sample_weight=weight).indices[0]
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
            Not fitted yet. Networks trained in all: those of this search, and its own.
        """
        if kind not in _BASELINES:
            raise ValueError(f"`kind` must be one of {sorted(_BASELINES)}. Got {kind!r}.")
        configuration = self.best_configuration()
        architecture, hyperparameters = self._decisions()
        settings = {
            **_BASELINES[kind],
            "strategy": "rs",
            "n_trials": self.n_members if kind == "deep-ensemble" else self.n_trials,
            "fixed_architecture": architecture.restrict(configuration),
        }
        if kind != "hyper-ensemble":
            settings["fixed_hyperparameters"] = hyperparameters.restrict(configuration)
        return clone(self).set_params(**settings)

    def _kept(self):
        chosen = [self.selection_, *getattr(self, "selections_", ())]
        return np.unique(np.concatenate([selection.indices for selection in chosen]))


class _Judge:
    """What records predict of one held-out set, for `EnsembleEvolution`."""

    def __init__(self, statistics, part):
        self._statistics = statistics
        self._rows, y, self._weight = part
        self._y = y.astype("float64")

    def __call__(self, records):
        raw = np.stack([record.result.held_out[self._rows] for record in records])
        return *self._statistics(self._y, raw.astype("float64")), self._weight
