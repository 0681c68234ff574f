"""Tabular ensembles: modern networks for tables, calibrated, the recommended estimators."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import field, replace
from numbers import Integral, Real
from typing import Any, NamedTuple

import numpy as np
from sklearn.base import is_classifier

from skuq._params import Interval, StrOptions, parameters, resolve_settings, settings_constraint
from skuq.estimators._base import UncertaintyClassifier, UncertaintyRegressor
from skuq.estimators._task import Task
from skuq.estimators.methods import _one_architecture as shared
from skuq.estimators.methods._one_architecture import OneArchitecture
from skuq.estimators.tabular import _kinds
from skuq.estimators.tabular._far import with_far_uncertainty
from skuq.estimators.tabular._linear import with_linear_part
from skuq.estimators.tabular._targets import ScalingByTails
from skuq.networks import TabularNetwork
from skuq.predictive._calibration import UNCALIBRATED
from skuq.tables._targets import CLASS_CONSTRAINTS, HEADS, TARGET_CONSTRAINTS
from skuq.training import Training
from skuq.training._train import find_completed

_AUTO = StrOptions({"auto"})
_SETTINGS: Any = {**shared.SETTINGS, "network": {"tabular": TabularNetwork}}
_RUN = ("learning_rate", "batch_size", "epochs", "early_stopping_patience", "validation")
_CONSTRAINTS: dict = {
    **shared.NETWORK_CONSTRAINTS,
    **{name: [*shared.NETWORK_CONSTRAINTS[name], _AUTO] for name in _RUN},
    "n_members": [Interval(Integral, 1, None, closed="left"), _AUTO],
    "network": settings_constraint(_SETTINGS["network"], TabularNetwork),
    "max_time": [Interval(Real, 0, None, closed="neither"), None],
}


class _Trained(NamedTuple):
    """Trained members that did not diverge, each with its origin, and the task of their rows."""

    task: Task
    members: list[Any]
    origins: list[_kinds.Origin]
    n_kinds: int


def _train(estimator, given):
    """Read the arguments of `fit`, and train the members of all kinds."""
    network, fields = resolve_settings(estimator, "network"), shared.training_fields(estimator)
    task = shared.read(estimator, given, embed=True, of_auto=ScalingByTails())
    _refuse_contradictions(estimator, task)
    kinds, n_members = _kinds.list_kinds(estimator, task, network)
    # The k-th members of all kinds have the same split, so that kinds can be compared.
    task = _kinds.split_rows(estimator, task, math.ceil(n_members / len(kinds)))
    task = with_linear_part(task)
    members, origins = _kinds.train_kinds(estimator, task, network, kinds, fields, n_members)
    kept = find_completed(members)
    return _Trained(task, [members[k] for k in kept], [origins[k] for k in kept], len(kinds))


def _refuse_contradictions(estimator, task):
    """Raise ValueError if parameters of a regressor contradict each other."""
    if is_classifier(estimator) or isinstance(estimator.calibrate, str) or not estimator.calibrate:
        return
    reasons = {
        'loss="mse" trains no normals': estimator.loss == "mse",
        "validation=None leaves no unseen rows": estimator.validation is None,
        "with `groups` all members validate on the same rows": task.groups is not None,
        "with `validation_data`, or a `preprocess` that learns from y, all members validate on "
        "the same rows": task.validation is not None,
    }
    for reason, holds in reasons.items():
        if holds:
            raise ValueError(
                f'`calibrate=True` is not possible: {reason}. Use calibrate=False or "auto"; '
                "CalibratedUncertaintyRegressor calibrates any regressor."
            )


@parameters("estimators.TabularEnsembleRegressor", kind="estimator")
class TabularEnsembleRegressor(OneArchitecture, UncertaintyRegressor):
    """Ensemble of modern networks for tables, calibrated: the recommended regressor.

    Members are networks with embedded columns and training settings that are tuned for tables.
    They differ in their seeds and in the rows that they validate on. The average noise that they
    predict is the aleatoric uncertainty, and the disagreement of their means the epistemic
    uncertainty, which grows away from the training rows. Its mean CRPS is below that of the plain
    network of `DeepEnsembleRegressor` on five of six sets measured, and it is slower to train.

    Parameters
    ----------
    n_members : int or "auto", default="auto"
        Number of members. "auto" is 8 for numbers, where more than 5 still improve every score. For
        classes it is five of each kind up to 2,000 rows, and three of each with more.
    network : "tabular" or TabularNetwork, default="tabular"
        Modern network for tables, see `skuq.networks.TabularNetwork`.
    loss : str, default="gaussian-mixture"
        Distribution that each network predicts, and its loss. "gaussian-mixture": three normals,
        whose mixture can have any shape. Half of the members learn it by likelihood, the others by
        the sum of the "crps" below and a weighted likelihood, and stacking weighs both halves.
        "nll": mean and standard deviation of a normal, by likelihood. "beta-nll": the same with the
        likelihood's gradient weighted by the predicted standard deviation (Seitzer et al. 2022,
        beta 0.5), so that rows believed to be noisy are learnt from, too. "crps": the same two
        numbers by the continuous ranked probability score, which gives better means and intervals
        where most of y can be predicted. "mse": means only, for noise that is known or the same
        everywhere.
    learning_rate : float or "auto", default="auto"
        Learning rate of the optimiser. "auto", here and below, is the setting that the network was
        tuned with.
    batch_size : int, None or "auto", default="auto"
        Number of rows of a batch. None takes all rows.
    epochs : int or "auto", default="auto"
        Number of epochs of one network. Early stopping may end it sooner, and "auto" depends on the
        number of rows.
    early_stopping_patience : int, None or "auto", default="auto"
        Number of epochs without a better validation loss after which training ends; the best epoch
        is kept. None never ends it early, "auto" after a cycle of the rate that brought nothing.
    validation : float, None or "auto", default="auto"
        Share of the rows, of each class in proportion, that is held out for validation. None trains
        on all rows for all `epochs`. "auto" is 0.1, and at most 10,000 rows. Of classes it is a
        fold for each member, a fifth of up to 2,000 rows, and without validation kinds are neither
        weighed nor calibrated.
    training : "auto" or Training, default="auto"
        Further settings of the training, such as optimiser, schedule and penalties, see
        `skuq.training.Training`. Settings without effect here are refused.
    calibrate : bool or "auto", default="auto"
        Whether predicted distributions are scaled, and a share of them more, by the rows that
        single members have not trained on. It needs a loss other than "mse", and a validation split
        of each member's own: no `groups`, no `validation_data` and not ``validation=None``. "auto"
        calibrates where it can; True refuses what it cannot.
    preprocess : "auto", transformer or None, default="auto"
        Encoding of X as numbers. "auto" is `skuq.tables.TablePreprocessor`: missing numbers become
        medians and are flagged in columns of their own, and categories become indicator columns, at
        most 50 for a column of X. A scikit-learn transformer is cloned and fitted, without
        validation rows if it learns from y. None takes finite numbers only. Tabular networks embed
        columns of more than ten categories instead.
    target_transform : {"auto", "standard", "yeo-johnson", "quantile", transformer}, default="auto"
        Scale of y on which noise is assumed to be normal. "yeo-johnson" and "quantile" are for
        skewed targets and far values; predictions are in units of y in any case. A transformer of
        scikit-learn with an inverse, such as ``FunctionTransformer(np.log1p, np.expm1)``, is cloned
        and fitted to each output; it must be increasing. "auto" takes "yeo-johnson" or "quantile"
        if the standard deviation of y is above 2.5 times that of a normal with the same quartiles,
        otherwise "standard".
    max_time : float, optional
        Maximum seconds of `fit`. If all `epochs` would take longer, the schedule is shortened to
        the epochs that fit; each member keeps its best epoch. One epoch is always trained, so that
        the loading of the backend and a compilation can exceed the limit. Results then depend on
        the speed of the machine. None sets no limit.
    random_state : int, RandomState instance or None, default=None
        Seed of all random numbers. With an integer results repeat exactly.
    verbose : int or None, default=None
        Whether to show a progress bar: 1 always, 0 never, None on a terminal after 20 seconds.

    Attributes
    ----------
    members_ : list of Member
        Records of the trained networks, such as weights and history. They hold validation
        predictions, too.
    weights_ : ndarray of shape (n_members,)
        Weights of the members, which sum to 1. Members of a kind weigh the same, and kinds are
        weighed by stacking on the rows that they hold out.
    noise_std_ : float or ndarray of shape (n_outputs,)
        With ``loss="mse"``, known or estimated standard deviation of the noise, in units of y (of
        transformed y, with a `target_transform`).
    preprocessor_ : transformer or None
        Fitted transformer of X; it is fitted on the rows of positive weight.
    fitted_ : FittedEnsemble
        Fitted model, which predicts; `fitted_.inputs` and `fitted_.targets` hold the scales of X
        and y.
    entropy_ : int
        Integer drawn from `random_state`; every random number of the fit follows from it.
    n_features_in_ : int
        Number of features seen during `fit`.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the features; only if X has string column names.

    Raises
    ------
    FloatingPointError
        If every network diverged.

    See Also
    --------
    DeepEnsembleRegressor : The paper's method with a plain network, faster to train, or your own.
    AutoDEUQRegressor : Members from a search in the space of this network.

    Notes
    -----
    X is scaled by its quartiles and y is standardised. Each member holds out other rows for
    validation, and members of one kind keep the epoch that is best for them on average. Members
    whose loss stops being finite are left out, with a warning.
    docs/methods/tabular.md describes the recipe.

    Networks may agree for no reason where they have seen nothing. There the epistemic uncertainty
    grows with the distance from the rows, until the whole is about that of y without X;
    docs/methods/ensembles.md has the formula. It needs 10 rows, and at most 256 encoded columns.

    References
    ----------
    D. Holzmueller, L. Grinsztajn, I. Steinwart. "Better by default: Strong pre-tuned MLPs and
    boosted trees on tabular data", NeurIPS 2024. B. Lakshminarayanan, A. Pritzel, C. Blundell.
    "Simple and Scalable Predictive Uncertainty Estimation using Deep Ensembles", NeurIPS 2017.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from skuq import TabularEnsembleRegressor
    >>> X, y = load_diabetes(return_X_y=True)
    >>> model = TabularEnsembleRegressor(n_members=2, epochs=10, random_state=0).fit(X, y)
    >>> lower, upper = model.predict_interval(X[:3], coverage=0.9)
    >>> lower.shape, bool((lower < upper).all())
    ((3,), True)
    """

    n_members: int | str = field(default="auto", kw_only=False)
    network: TabularNetwork | str = "tabular"
    loss: str = "gaussian-mixture"
    learning_rate: float | str = "auto"
    batch_size: int | str | None = "auto"
    epochs: int | str = "auto"
    early_stopping_patience: int | str | None = "auto"
    validation: float | str | None = "auto"
    training: Training | str = "auto"
    calibrate: bool | str = "auto"
    preprocess: Any = "auto"
    target_transform: Any = "auto"
    max_time: float | None = None
    random_state: Any = None
    verbose: int | None = None

    _settings = _SETTINGS
    _parameter_constraints = {
        **_CONSTRAINTS,
        **TARGET_CONSTRAINTS,
        "loss": [StrOptions(set(HEADS))],
        "calibrate": ["boolean", _AUTO],
    }

    def _fit(self, given):
        task, members, origins, n_kinds = _train(self, given)
        weights, calibration = _kinds.weigh_members(task, members, origins, n_kinds), UNCALIBRATED
        parts = None if task.splits.parts is None else [origin.part for origin in origins]
        if parts is not None and self.calibrate and self.loss != "mse":
            calibration = _kinds.calibrate(task, members, weights, origins)
        fit = shared.finish(self, task, members, weights, calibration=calibration, parts=parts)
        if not self.calibrate:
            return fit
        return replace(fit, fitted=with_far_uncertainty(fit.fitted, task))


@parameters("estimators.TabularEnsembleClassifier", kind="estimator")
class TabularEnsembleClassifier(OneArchitecture, UncertaintyClassifier):
    """Ensemble of several kinds of networks for tables, calibrated: the recommended classifier.

    Members are modern networks for tables, which embed numbers differently and whose weights decay
    more or less. On few rows the members of each kind validate on folds, so that every row is
    predicted by a member of each kind that was not trained on it. On these rows the kinds are
    weighted by stacking, and their mixture gets a temperature and a small share of the classes'
    frequencies: no class is impossible because few rows did not have it. Its log loss is below that
    of `DeepEnsembleClassifier` on most tables measured.

    Parameters
    ----------
    n_members : int or "auto", default="auto"
        Number of members. "auto" is 8 for numbers, where more than 5 still improve every score. For
        classes it is five of each kind up to 2,000 rows, and three of each with more.
    network : "tabular" or TabularNetwork, default="tabular"
        Modern network for tables, see `skuq.networks.TabularNetwork`.
    learning_rate : float or "auto", default="auto"
        Learning rate of the optimiser. "auto", here and below, is the setting that the network was
        tuned with.
    batch_size : int, None or "auto", default="auto"
        Number of rows of a batch. None takes all rows.
    epochs : int or "auto", default="auto"
        Number of epochs of one network. Early stopping may end it sooner, and "auto" depends on the
        number of rows.
    early_stopping_patience : int, None or "auto", default="auto"
        Number of epochs without a better validation loss after which training ends; the best epoch
        is kept. None never ends it early, "auto" after a cycle of the rate that brought nothing,
        and of more than 128 epochs after 64.
    validation : float, None or "auto", default="auto"
        Share of the rows, of each class in proportion, that is held out for validation. None trains
        on all rows for all `epochs`. "auto" is 0.1, and at most 10,000 rows. Of classes it is a
        fold for each member, a fifth of up to 2,000 rows, and without validation kinds are neither
        weighed nor calibrated.
    training : "auto" or Training, default="auto"
        Further settings of the training, such as optimiser, schedule and penalties, see
        `skuq.training.Training`. Settings without effect here are refused.
    class_weight : dict, "balanced" or None, default=None
        Weights of classes, by label, which multiply sample weights. None weighs all classes alike,
        and "balanced" weighs them inversely to their frequencies in y. They count wherever rows
        count: in training, in early stopping, and where members are selected or weighed.
    preprocess : "auto", transformer or None, default="auto"
        Encoding of X as numbers. "auto" is `skuq.tables.TablePreprocessor`: missing numbers become
        medians and are flagged in columns of their own, and categories become indicator columns, at
        most 50 for a column of X. A scikit-learn transformer is cloned and fitted, without
        validation rows if it learns from y. None takes finite numbers only. Tabular networks embed
        columns of more than ten categories instead.
    max_time : float, optional
        Maximum seconds of `fit`. If all `epochs` would take longer, the schedule is shortened to
        the epochs that fit; each member keeps its best epoch. Kinds of members that would begin
        after a quarter of the time are left out, unless all epochs fit. One epoch is always
        trained, so that the loading of the backend and a compilation can exceed the limit. Results
        then depend on the speed of the machine. None sets no limit.
    random_state : int, RandomState instance or None, default=None
        Seed of all random numbers. With an integer results repeat exactly.
    verbose : int or None, default=None
        Whether to show a progress bar: 1 always, 0 never, None on a terminal after 20 seconds.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        Labels, in the order of probabilities.
    members_ : list of Member
        Records of the trained networks, such as weights and history. They hold validation
        predictions, too.
    weights_ : ndarray of shape (n_members,)
        Weights of the members, which sum to 1.
    preprocessor_ : transformer or None
        Fitted transformer of X; it is fitted on the rows of positive weight.
    fitted_ : FittedEnsemble
        Fitted model, which predicts; `fitted_.inputs` and `fitted_.targets` hold the scales of X
        and y.
    entropy_ : int
        Integer drawn from `random_state`; every random number of the fit follows from it.
    n_features_in_ : int
        Number of features seen during `fit`.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the features; only if X has string column names.

    Raises
    ------
    FloatingPointError
        If every network diverged.

    See Also
    --------
    DeepEnsembleClassifier : The paper's method with a plain network, faster to train, or your own.
    AutoDEUQClassifier : Members from a search in the space of this network.

    Notes
    -----
    X is scaled by its quartiles. Members of one kind keep the epoch that is best for all of them
    together, once their probabilities have the temperature that is best then (Berta et al. 2025,
    "Rethinking Early Stopping: Refine, Then Calibrate"). Members whose loss stops being finite are
    left out, with a warning. Decisions of `network` hold for all members; with one about
    `embedding` they differ in their training alone. docs/methods/tabular.md describes the recipe.

    Networks may agree for no reason where they have seen nothing. The farther a row is from those
    of training, the more its probabilities move to the shares of the classes, and members
    disagree; the predicted class stays. docs/methods/ensembles.md has the formula.

    References
    ----------
    D. Holzmueller, L. Grinsztajn, I. Steinwart. "Better by default: Strong pre-tuned MLPs and
    boosted trees on tabular data", NeurIPS 2024. B. Lakshminarayanan, A. Pritzel, C. Blundell.
    "Simple and Scalable Predictive Uncertainty Estimation using Deep Ensembles", NeurIPS 2017.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from skuq import TabularEnsembleClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> model = TabularEnsembleClassifier(n_members=2, epochs=5, random_state=0).fit(X, y)
    >>> model.predict_proba(X[:2]).shape
    (2, 3)
    """

    n_members: int | str = field(default="auto", kw_only=False)
    network: TabularNetwork | str = "tabular"
    learning_rate: float | str = "auto"
    batch_size: int | str | None = "auto"
    epochs: int | str = "auto"
    early_stopping_patience: int | str | None = "auto"
    validation: float | str | None = "auto"
    training: Training | str = "auto"
    class_weight: Mapping[Any, float] | str | None = None
    preprocess: Any = "auto"
    max_time: float | None = None
    random_state: Any = None
    verbose: int | None = None

    _settings = _SETTINGS
    _parameter_constraints = {**_CONSTRAINTS, **CLASS_CONSTRAINTS}

    def _fit(self, given):
        task, members, origins, _ = _train(self, given)
        weights, calibration = _kinds.mix_classes(task, members, origins)
        # Members of kinds without weight would only make predictions slower.
        used = np.flatnonzero(weights)
        members, weights = [members[k] for k in used], weights[used]
        parts = None if task.splits.parts is None else [origins[k].part for k in used]
        fit = shared.finish(self, task, members, weights, calibration=calibration, parts=parts)
        return replace(fit, fitted=with_far_uncertainty(fit.fitted, task))
