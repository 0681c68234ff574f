"""Method of neural ensemble search: proposers of networks, and selection of ensembles."""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Integral

import numpy as np
from sklearn.base import clone
from sklearn.utils.validation import check_is_fitted

from skuq._params import Interval, StrOptions
from skuq._utils._environment import generator
from skuq._utils._messages import warn_user
from skuq.ensembles import SELECTORS, check_selection, select_by, select_hq, select_hq_proba
from skuq.ensembles._likelihood import likelihood_statistics
from skuq.ensembles._selection import ensemble_of, normal_nll, normal_statistics
from skuq.estimators._search_method import SEARCH_CONSTRAINTS, SearchMethod, check_takes
from skuq.networks._given_spaces import NES_SPACES, resolve_nes_space
from skuq.search import EnsembleEvolution, Fixed, Mutation, RandomProposer, ensemble_population, pin
from skuq.tables import ImageInputs
from skuq.training import Recipe

_IMAGE_EPOCHS = 100  # the paper's
_TABLE_EPOCHS = 30, 100  # smallest and largest default for tables
_ENOUGH_STEPS = 500  # optimiser steps of a training; small tables need more epochs for them

_VARY_WITH_ONE_ARCHITECTURE = ("hyperparameters", "initialisation")

_BASELINES = {
    "deep-ensemble": {"vary": "initialisation", "selection": "top"},
    "deep-ensemble-es": {"vary": "initialisation", "selection": "forward"},
    "hyper-ensemble": {"vary": "hyperparameters", "selection": "forward"},
}


#: Constraints of the parameters of classifier and regressor.
NES_CONSTRAINTS: dict = {
    **SEARCH_CONSTRAINTS,
    "strategy": [StrOptions({"re", "rs"})],
    "vary": [StrOptions({"architecture", "hyperparameters", "both", "initialisation"})],
    "search_space": [StrOptions({*NES_SPACES, "tabular"}), *SEARCH_CONSTRAINTS["search_space"]],
    "image_shape": [tuple, list, None],
    "n_parents": [Interval(Integral, 1, None, closed="left"), None],
    "evolve_on": [StrOptions({"both", "clean", "shift"})],
    "selection": [StrOptions({*SELECTORS, "hq"}), callable],
    "use_best": ["boolean"],
    "epochs": [*SEARCH_CONSTRAINTS["epochs"], None],
}


class NeuralEnsembleSearch(SearchMethod):
    """Method of NES: evolution or random search, with forward selection."""

    selection_parameters = ("n_members", "selection", "use_best")

    @property
    def reselect_parameters(self):
        return () if self.classifies else ("selection_loss",)  # evolution uses it, too

    def check(self, shifted):
        super().check(shifted)
        if self.estimator.evolve_on == "shift" and not shifted:
            raise ValueError('`evolve_on="shift"` needs `shift_validation`.')

    def check_selection(self):
        """Raise ValueError if `n_members` or `use_best` do not fit the selection."""
        estimator = self.estimator
        names = ("log_likelihood", "n_members")
        check_takes("selection", estimator.selection, names, ("sample_weight",))
        least = 2 if estimator.selection == "hq" else 1  # HQ makes teams
        if estimator.n_members < least:
            raise ValueError(
                f"With `selection={estimator.selection!r}`, `n_members` must be an integer >= "
                f"{least}. Got {estimator.n_members!r}."
            )
        if estimator.use_best and estimator.selection not in SELECTORS:
            raise ValueError(
                f"`use_best=True` needs a `selection` in {SELECTORS}. Got {estimator.selection!r}."
            )

    # ----------------------------------------------------------------- search

    def inputs(self, X):
        """Choose how X is converted: as images, as flat rows of images, or as a table."""
        estimator = self.estimator
        n_axes = np.ndim(X) if isinstance(X, list | tuple) else getattr(X, "ndim", 2)
        holds_images = n_axes == 4 or estimator.image_shape is not None
        if holds_images and estimator.preprocess not in ("auto", None):
            raise ValueError(
                '`preprocess` must be "auto" or None for images, which are arrays of numbers. '
                f"Got {estimator.preprocess!r}."
            )
        if not holds_images and n_axes != 3:
            return super().inputs(X)
        space = None if self.is_tabular else resolve_nes_space(estimator.search_space, True, len(X))
        # Networks for tables get flat rows, and a user's space gets images unless it refuses them.
        flat = getattr(space, "takes_images", None) is False
        return ImageInputs(estimator.image_shape, flat=flat, embed=self.is_tabular)

    def attributes(self, inputs, targets):
        shape = getattr(inputs, "shape", None)
        return {**super().attributes(inputs, targets), "image_shape_": shape}

    def resolve_space(self, inputs, n_rows):
        estimator, holds_images = self.estimator, isinstance(inputs, ImageInputs)
        space = resolve_nes_space(estimator.search_space, holds_images, n_rows)
        if getattr(space, "takes_images", None) and not holds_images:
            raise ValueError(
                f"`search_space={estimator.search_space!r}` needs images: X of shape "
                "(n, height, width, channels), or flat rows and `image_shape=`."
            )
        return space

    def epochs(self, space, inputs, n_train):
        """Choose the number of epochs, and the limit if the user gives it."""
        if self.estimator.epochs is not None:
            return self.estimator.epochs, self.estimator.epochs
        if isinstance(inputs, ImageInputs) and not inputs.flat:
            return _IMAGE_EPOCHS, None
        architecture, hyperparameters = self.estimator.decisions_
        recipe = Recipe(**space.recipe({**architecture.default(), **hyperparameters.default()}))
        n_steps = math.ceil(n_train / recipe.batch_size)
        return int(np.clip(math.ceil(_ENOUGH_STEPS / n_steps), *_TABLE_EPOCHS)), None

    def _fix_decisions(self):
        """Return the decisions, with a single value for those that are not searched.

        Decisions that the user fixes have the user's value. Those that `vary` leaves out have
        their default.
        """
        estimator, decisions = self.estimator, self.estimator.decisions_
        architecture = dict(estimator.fixed_architecture or {})
        hyperparameters = dict(estimator.fixed_hyperparameters or {})
        if estimator.vary in _VARY_WITH_ONE_ARCHITECTURE:
            architecture = {**decisions.architecture.default(), **architecture}
        if estimator.vary in ("architecture", "initialisation"):
            hyperparameters = {**decisions.hyperparameters.default(), **hyperparameters}
        return pin(decisions, architecture, hyperparameters)

    def proposer(self, space, held_out):
        """Make the proposer of the strategy: random search, or evolution by ensembles."""
        estimator, decisions = self.estimator, self._fix_decisions()
        both = decisions.architecture + decisions.hyperparameters
        if both.size == 1:
            return Fixed(both.default())
        p, m = ensemble_population(self.n_planned, estimator.population_size, estimator.n_parents)
        if estimator.strategy == "re" and (estimator.population_size or 0) >= self.n_trials:
            warn_user(
                f"Evolution starts after `population_size={p}` networks, and `n_trials` is "
                f"{self.n_trials}: all networks are drawn at random. Set a smaller "
                "`population_size` or more trials.",
            )
        if estimator.strategy == "rs" or p >= self.n_trials:
            return RandomProposer(both)
        clean, *shifted = held_out.sets
        sets = {"clean": [clean], "shift": shifted[-1:], "both": [clean, *shifted[-1:]]}
        criteria = [_Criterion(self._statistics, part) for part in sets[estimator.evolve_on]]
        mutation = Mutation(*decisions, getattr(space, "mutate", None))
        return EnsembleEvolution(both.sample, mutation, criteria, p, m)

    def trial_entropy(self, entropy):
        if self.estimator.vary not in _VARY_WITH_ONE_ARCHITECTURE:
            return entropy
        # A baseline has the same split of the rows as its search, and other networks.
        return int(generator(entropy, "one architecture").integers(1, 2**31 - 1))

    def is_stackable(self, proposer):
        known = not isinstance(proposer, EnsembleEvolution)
        return known and self.estimator.vary in _VARY_WITH_ONE_ARCHITECTURE

    # -------------------------------------------------------------- selection

    def choose(self, candidates):
        """Select the members by the predictions of all trials on the held-out rows."""
        estimator, weight = self.estimator, candidates.weight
        if estimator.selection == "hq":
            return self._choose_hq(candidates.y, candidates.raw, weight, estimator.n_members)
        if isinstance(estimator.selection, str):
            return select_by(
                *self._statistics(candidates.y, candidates.raw),
                estimator.n_members,
                estimator.selection,
                use_best=estimator.use_best,
                sample_weight=weight,
                groups=candidates.groups,
            )
        likelihood = self._log_likelihood(candidates.y, candidates.raw)
        chosen = estimator.selection(likelihood, estimator.n_members, sample_weight=weight)
        return check_selection(chosen, len(candidates.raw))

    def _choose_hq(self, y, raws, weight, n_members):
        if self.classifies:
            codes, proba = y[:, 0].astype(int), self.head.probabilities(np.stack(raws))
            return select_hq_proba(codes, proba, n_members, sample_weight=weight)
        chosen = select_hq(y, *self._distributions(raws), n_members, sample_weight=weight)
        return ensemble_of(chosen.indices, *self._statistics(y, raws), weight)

    def _log_likelihood(self, y, raws):
        """Compute log likelihoods (n_trials, n_rows), trial by trial to save memory."""
        return np.stack([self.head.log_likelihood(y, raw.astype("float64")) for raw in raws])

    def _distributions(self, raws):
        return self.head.distribution(np.stack(raws).astype("float64"))

    def _statistics(self, y, raws):
        """Make the statistics that an ensemble averages, and the loss of their average."""
        if not self.classifies and self.estimator.selection_loss == "normal":
            return normal_statistics(y, *self._distributions(raws)), normal_nll
        return likelihood_statistics(self._log_likelihood(y, raws))

    def best_trial(self, candidates) -> int:
        """Find the position of the best single candidate."""
        statistics, loss = self._statistics(candidates.y, candidates.raw)
        weight = candidates.weight
        return int(select_by(statistics, loss, 1, "top", sample_weight=weight).indices[0])


class _Criterion:
    """Criterion of `EnsembleEvolution`: the trials' predictions for one held-out set."""

    def __init__(self, statistics, part):
        self._statistics = statistics
        self._rows, y, self._weight = part
        self._y = y.astype("float64")

    def __call__(self, records):
        raws = [record.result.held_out[self._rows] for record in records]
        return *self._statistics(self._y, raws), self._weight


def best_configuration(self, severity=None):
    """Return the configuration of the best single trial.

    Parameters
    ----------
    severity : int or None, default=None
        Held-out set on which trials are compared: 0 is the clean validation rows, k the k-th set
        of `shift_validation`. None is all shifted sets together, with the same weight for each, or
        the clean rows if there are no shifted sets.

    Returns
    -------
    dict
        ``{decision name: value}``.

    Raises
    ------
    ValueError
        If there is no such set, or the estimator was pickled, which keeps the members only.
    """
    check_is_fitted(self)
    result, sets = self._result, None
    if severity is not None:
        self.at_severity(severity)  # raises if there is no such set
        sets = [result.sets[severity]]
    best = self._method.best_trial(result.candidate_predictions(sets))
    return dict(self.catalog_[int(self.catalog_.completed[best])].configuration)


def baseline(self, kind, severity=None, *, architecture=None):
    """Make an estimator that the paper compares with, on the best configuration of this search.

    Parameters
    ----------
    kind : {"deep-ensemble", "deep-ensemble-es", "hyper-ensemble"}
        "deep-ensemble" trains `n_members` networks that differ in their seeds (DeepEns
        (RS), if this search was random); "deep-ensemble-es" trains `n_trials` such
        networks and selects among them (appendix C.3); "hyper-ensemble" trains
        `n_trials` of random learning rates and L2 penalties and selects (C.4).
    severity : int or None, default=None
        Held-out set on which the configuration is the best, see `best_configuration`.
    architecture : dict or None, default=None
        Architecture to use instead of the best one; decisions that it does not name have the
        space's defaults. With that of `skuq.networks.best_nas_bench_201` a deep ensemble is
        DeepEns (Optimal).

    Returns
    -------
    estimator
        Not fitted yet. Networks trained in all: those of this search, and its own. With
        the same `random_state` it splits rows as this search did, but trains other
        networks.

    Raises
    ------
    ValueError
        If there is no such kind, set or architecture, or the estimator was pickled, which keeps
        the members alone.
    """
    if kind not in _BASELINES:
        raise ValueError(f"`kind` must be one of {sorted(_BASELINES)}. Got {kind!r}.")
    configuration = self.best_configuration(severity)
    architectures, hyperparameters = self.decisions_
    if architecture is None:
        architecture = architectures.restrict(configuration)
    elif not isinstance(architecture, Mapping):
        raise ValueError(
            f"`architecture` must be a dict {{decision name: value}}. Got {architecture!r}."
        )
    settings = {
        **_BASELINES[kind],
        "strategy": "rs",
        "n_trials": self.n_members if kind == "deep-ensemble" else self.n_trials,
        "fixed_architecture": architectures.check(architecture, "architecture"),
    }
    if kind == "hyper-ensemble":
        settings["fixed_hyperparameters"] = None
    else:
        settings["fixed_hyperparameters"] = hyperparameters.restrict(configuration)
    return clone(self).set_params(**settings)
