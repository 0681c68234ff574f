"""Base class of the methods of searches: what AutoDEUQ and NES define for `SearchEstimator`."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any

import numpy as np
from sklearn.base import is_classifier

from skuq._params import HasMethods, Hidden, Interval, StrOptions
from skuq.catalog import HeldOut
from skuq.estimators._durable import DURABLE_CONSTRAINTS, RUNNING_PARAMETERS
from skuq.networks import TabularSpace
from skuq.predictive._calibration import fit_scale
from skuq.search import CandidatePredictions
from skuq.tables import ClassTargets, NumberTargets, TableInputs
from skuq.tables._inputs import PREPROCESS_CONSTRAINTS

_N_TRIALS = 50  # default number of trials without `max_time`
_MOST_TRIALS = 10_000  # largest number of trials with `max_time`

#: Constraints of the parameters of all searches.
SEARCH_CONSTRAINTS: dict = {
    "n_trials": [Interval(Integral, 1, None, closed="left"), StrOptions({"auto"})],
    "n_members": [Interval(Integral, 1, None, closed="left")],
    "search_space": [
        None,
        HasMethods(["decisions", "build", "recipe"]),
        callable,
        tuple,
        Hidden(HasMethods(["build"])),  # Keras-Tuner's HyperModel
        Hidden(HasMethods(["run_trial"])),  # its tuners, which are told what to give instead
    ],
    "fixed_architecture": [dict, None],
    "fixed_hyperparameters": [dict, None],
    "population_size": [Interval(Integral, 1, None, closed="left"), None],
    "epochs": [Interval(Integral, 1, None, closed="left")],
    "validation_fraction": [Interval(Real, 0, 1, closed="neither")],
    "cv": ["cv_object"],
    "refit": ["boolean"],
    **PREPROCESS_CONSTRAINTS,
    **DURABLE_CONSTRAINTS,
    "n_jobs": [Integral, None],
    "random_state": ["random_state"],
    "verbose": ["verbose", None],
}


#: Factor of the standard deviation, and floor of the noise, of ensembles without a calibration.
NO_CALIBRATION = (1.0, 0.0)


class SearchMethod:
    """The parts of a search and a selection, made from an estimator's parameters.

    The estimator's parameters and fitted attributes are only read, never set.
    """

    #: Parameters that only change the selection of the ensemble.
    selection_parameters: tuple[str, ...] = ()
    #: Parameters that change the selection of the ensemble, and trials, too.
    reselect_parameters: tuple[str, ...] = ()
    #: Parameters that only change predictions.
    prediction_parameters: tuple[str, ...] = ()
    #: Name of the score that the search minimises, for messages.
    score_name = "NLL"
    #: Whether the ensemble's standard deviation is calibrated on errors on held-out rows.
    calibrates = False
    #: Number of times that the selected trials are trained again on other folds.
    n_repeats = 0
    #: Share of `max_time` for the search itself; the rest is for repeats.
    search_share = 1.0
    #: The user's function that the search minimises instead of a trial's score.
    objective: Any = None

    def __init__(self, estimator):
        self.estimator = estimator
        self.classifies = is_classifier(estimator)
        space = estimator.search_space
        self.is_tabular = isinstance(space, str) and space == "tabular"

    @property
    def n_trials(self) -> int:
        """Number of trials of the search; with `max_time`, "auto" is as many as fit into it."""
        if isinstance(self.estimator.n_trials, str):
            return _N_TRIALS if self.estimator.max_time is None else _MOST_TRIALS
        return self.estimator.n_trials

    @property
    def n_planned(self) -> int:
        """Number of trials that determines the default sizes of populations."""
        return _N_TRIALS if isinstance(self.estimator.n_trials, str) else self.estimator.n_trials

    def validation(self, n_rows: int, given: bool) -> dict[str, Any]:
        """Return `fraction` and `cv` for the split of rows.

        `given` tells that the user gives validation rows.
        """
        return {"fraction": self.estimator.validation_fraction, "cv": self.estimator.cv}

    @property
    def params_not_in_fingerprint(self) -> set[str]:
        """Parameters that do not change trials."""
        return {*self.selection_parameters, *self.prediction_parameters, *RUNNING_PARAMETERS}

    def identifying_parameters(self) -> dict[str, Any]:
        """Return the parameters that change trials, by name."""
        params = self.estimator.get_params(deep=False)
        return {k: params[k] for k in params if k not in self.params_not_in_fingerprint}

    @property
    def head(self):
        """Head of the fitted targets."""
        return self.estimator.targets_.head

    def check(self, shifted) -> None:
        """Raise ValueError if parameters contradict each other or the shifted sets."""
        self.check_selection()

    def check_selection(self) -> None:
        """Raise ValueError if parameters of the selection contradict each other."""

    def attributes(self, inputs, targets) -> dict[str, Any]:
        """Return fitted attributes that depend on the kind of inputs and targets, by name."""
        return {"classes_": targets.classes} if self.classifies else {}

    def inputs(self, X):
        """Make the unfitted inputs."""
        return TableInputs(self.estimator.preprocess, embed=self.is_tabular)

    def targets(self):
        """Make the unfitted targets."""
        if self.classifies:
            return ClassTargets(self.estimator.class_weight)
        return NumberTargets(self.estimator.target_transform)

    def resolve_space(self, inputs, n_rows: int):
        """Convert the parameter `search_space` to a space, if it is not "tabular"."""
        raise NotImplementedError

    def make_space(self, inputs, n_rows: int, x, n_train: int):
        """Make the search space for `n_rows` rows, of which networks train on `n_train`."""
        if self.is_tabular:
            return TabularSpace(x, inputs.n_codes, n_train, self.classifies)
        return self.resolve_space(inputs, n_rows)

    def halving(self, proposer):
        """Return the rule that discards trials early, or None."""
        return

    def epochs(self, space, inputs, n_train: int) -> tuple[int, int | None]:
        """Return the default number of epochs of a trial, and the maximum of all trials."""
        return self.estimator.epochs, None

    def proposer(self, space, held_out: HeldOut):
        """Make the proposer of configurations."""
        raise NotImplementedError

    def trial_entropy(self, entropy: int) -> int:
        """Derive the entropy of proposals and trials from that of the fit."""
        return entropy

    def is_stackable(self, proposer) -> bool:
        """Tell whether all configurations are known in advance and have one architecture."""
        return False

    def choose(self, candidates: CandidatePredictions) -> Any:
        """Select an ensemble, as a `Selection` of positions among the candidates."""
        raise NotImplementedError

    def calibration(self, chosen, candidates: CandidatePredictions) -> tuple[float, float]:
        """Fit the factor and the floor of the standard deviation of the selected ensemble.

        Without folds there is no calibration, because the rows of a single split are few and were
        used to stop the training of all members.
        """
        if not self.calibrates or candidates.centers is None:
            return NO_CALIBRATION
        raw = np.stack([candidates.raw[k] for k in chosen.indices]).astype("float64")
        loc, scale = self.head.distribution(raw)
        centers = np.stack([candidates.centers[k] for k in chosen.indices]).astype("float64")

        def average(values):
            return np.tensordot(chosen.weights, values, 1)

        # Variance of the mixture of trials = mean of variances + variance of means.
        total = average(scale**2 + (centers - average(centers)) ** 2)
        return fit_scale((candidates.y - average(loc)) ** 2, total, candidates.weight)


def check_takes(
    name: str, function: Any, positional: Sequence[str], keywords: Sequence[str]
) -> None:
    """Raise TypeError if a parameter is a function that cannot be called with these arguments."""
    if not callable(function):
        return
    try:
        signature = inspect.signature(function)
    except ValueError:  # some built-in functions have none
        return
    try:
        signature.bind(*positional, **dict.fromkeys(keywords))
    except TypeError as error:
        arguments = [*positional, *(f"{keyword}=..." for keyword in keywords)]
        raise TypeError(
            f"`{name}` must be a function of ({', '.join(arguments)}). Got {function!r} with the "
            f"parameters {signature}: {error}."
        ) from error
