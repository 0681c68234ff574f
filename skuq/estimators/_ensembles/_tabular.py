"""Tabular ensembles: modern networks for tables, calibrated, the recommended estimators."""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any, NamedTuple

import numpy as np
from sklearn.base import is_classifier

from skuq._params import Interval, StrOptions, resolve_settings, settings_constraint
from skuq._utils._environment import generator
from skuq._utils._records import saved_as
from skuq.backend import in_thread
from skuq.ensembles import stacking_weights
from skuq.estimators import _base
from skuq.estimators._base import UncertaintyClassifier, UncertaintyRegressor
from skuq.estimators._ensembles import _shared as shared
from skuq.estimators._task import join_validation
from skuq.networks import TabularNetwork, TabularSpace
from skuq.networks._space import Space
from skuq.predictive._calibration import fit_out_of_bag
from skuq.tables._inputs import PREPROCESS_CONSTRAINTS, TableInputs
from skuq.tables._targets import (
    CLASS_CONSTRAINTS,
    HEADS,
    TARGET_CONSTRAINTS,
    normal_components,
    unpack_copies,
)
from skuq.training import TrainingJob, predict_members
from skuq.training._checks import find_completed

_N_MEMBERS, _N_CLASS_MEMBERS = 8, 9
_VALIDATION = 0.1  # share of the rows, up to
_MOST_VALIDATION_ROWS = 10_000
_MOST_CALIBRATION_ROWS = 5_000  # drawn at random if there are more
_NORMAL_LOSSES = ("nll", "beta-nll", "crps", "gaussian-mixture")  # those that can be calibrated
# Kinds of networks. Which one is best differs between data sets, much more for classes.
_CLASS_KINDS: tuple[dict, ...] = (
    {"frequency_scale": 0.3},
    {"embedding": "none"},
    {"frequency_scale": 3.0},
)

_AUTO = StrOptions({"auto"})
_SETTINGS = {**shared.SETTINGS, "network": {"tabular": TabularNetwork}}
_RUN = ("learning_rate", "batch_size", "epochs", "early_stopping_patience", "validation")
_CONSTRAINTS: dict = {
    **shared.NETWORK_CONSTRAINTS,
    **{name: [*shared.NETWORK_CONSTRAINTS[name], _AUTO] for name in _RUN},
    "n_members": [Interval(Integral, 1, None, closed="left"), _AUTO],
    "network": settings_constraint(_SETTINGS["network"], TabularNetwork),
    "max_time": [Interval(Real, 0, None, closed="neither"), None],
    **PREPROCESS_CONSTRAINTS,
}


class _Origin(NamedTuple):
    """Origin of a member of an ensemble of several kinds: its kind of networks and its rows."""

    kind: int  # position of its kind of networks
    split: int  # number of its split of the rows, which it shares with one member of each kind
    part: Any  # its training and validation rows; None if all members have the same rows


class _TabularEnsemble:
    """Tabular ensemble of numbers or classes: its `fit`."""

    _settings: Mapping[str, Mapping[Any, Any]] = _SETTINGS
    members_, weights_ = shared.members_, shared.weights_
    preprocessor_ = shared.preprocessor_
    member_estimators, to_keras = shared.member_estimators, _base.to_keras

    @_base.fits
    def fit(
        self,
        X,
        y,
        sample_weight=None,
        *,
        X_val=None,
        y_val=None,
        sample_weight_val=None,
        validation_data=None,
        groups=None,
    ):
        """Train the members.

        Parameters
        ----------
        X : array-like or DataFrame of shape (n, n_features)
            Numbers, booleans, strings and categories, with missing values; see `preprocess`.
        y : array-like of shape (n,) or, for several outputs, (n, n_outputs)
            Targets: numbers or classes.
        sample_weight : array-like of shape (n,), optional
            Non-negative weights of the rows.
        X_val : array-like or DataFrame of shape (n_val, n_features), optional
            Rows on which all members validate, instead of a share of the rows above. Pipelines of
            `skuq.make_pipeline` transform them as they do X, and those of scikit-learn with
            ``transform_input=["X_val"]``.
        y_val : array-like of shape (n_val,) or (n_val, n_outputs), optional
            Targets of `X_val`.
        sample_weight_val : array-like of shape (n_val,), optional
            Non-negative weights of the rows of `X_val`.
        validation_data : tuple (X, y) or (X, y, sample_weight), optional
            `X_val`, `y_val` and `sample_weight_val` as one tuple, in place of these.
        groups : array-like of shape (n,), optional
            Groups; all rows of a group either train or validate. With groups all members validate
            on the same rows. They have no effect without validation or with `validation_data`.

        Returns
        -------
        self
        """
        network, given = resolve_settings(self, "network"), shared.training_fields(self)
        n_members = self.n_members
        if isinstance(n_members, str):
            n_members = _N_CLASS_MEMBERS if is_classifier(self) else _N_MEMBERS
        # Fewer members than kinds: the first kinds only.
        kinds = _list_kinds(self, network)[:n_members]
        validation_data = join_validation(validation_data, X_val, y_val, sample_weight_val)
        _refuse_contradictions(self, network, validation_data, groups)
        inputs = TableInputs(self.preprocess, embed=True)
        task = shared.read(
            self,
            inputs,
            X,
            y,
            sample_weight,
            validation_data,
            groups,
            n_copies=network.n_copies,
        )
        validation = self.validation
        if isinstance(validation, str):
            validation = min(_VALIDATION, _MOST_VALIDATION_ROWS / len(task.rows.X))
        # The k-th members of all kinds have the same split, so that kinds can be compared.
        task = task.split(validation, n_members=math.ceil(n_members / len(kinds)))
        jobs, origins = _make_jobs(self, task, network, kinds, given, n_members)
        # Stacks of all kinds train at the same time, as many as there are cores.
        members = shared.train_jobs(self, jobs, task.data)
        kept = find_completed(members)
        members, origins = [members[k] for k in kept], [origins[k] for k in kept]
        weights = _weigh(task, members, origins, len(kinds))
        targets, parts = task.targets, None
        if task.splits.parts is not None:
            parts = [origin.part for origin in origins]
            if not is_classifier(self) and self.calibrate and self.loss in _NORMAL_LOSSES:
                targets = _calibrate(task, members, weights, parts)
        return shared.finish(self, task, members, weights, targets=targets, parts=parts)


def _list_kinds(estimator, network):
    """List the decisions of each kind of networks: classifiers have several."""
    decisions = network.decisions()
    if not is_classifier(estimator) or "embedding" in decisions:
        return [decisions]
    # Decisions of the user hold for all kinds, some of which they may make equal.
    kinds = [{**kind, **decisions} for kind in _CLASS_KINDS]
    return [kind for k, kind in enumerate(kinds) if kind not in kinds[:k]]


def _refuse_contradictions(estimator, network, validation_data, groups):
    """Raise ValueError if parameters of a regressor contradict each other."""
    if is_classifier(estimator):
        return
    loss = estimator.loss
    if network.n_copies > 1 and loss == "mse":
        raise ValueError(
            f'loss="mse" needs n_copies=1. Got n_copies={network.n_copies}. Use loss="nll".'
        )
    if isinstance(estimator.calibrate, str) or not estimator.calibrate:
        return
    reasons = {
        f"loss={loss!r} trains no normals": loss not in _NORMAL_LOSSES,
        "validation=None leaves no unseen rows": estimator.validation is None,
        "with `groups` all members validate on the same rows": groups is not None,
        "with `validation_data` all members validate on them": validation_data is not None,
    }
    for reason, holds in reasons.items():
        if holds:
            raise ValueError(
                f'`calibrate=True` is not possible: {reason}. Use calibrate=False or "auto"; '
                "CalibratedUncertaintyRegressor calibrates any regressor."
            )


@in_thread
def _make_jobs(estimator, task, network, kinds, given, n_members):
    """Make a stack of each kind of networks, and list the origins of all members."""
    data, targets, parts = task.data, task.targets, task.splits.parts
    space = TabularSpace().bind(
        data.x, task.inputs.n_codes, task.splits.n_train, is_classifier(estimator)
    )
    # Of both parts, the architecture and its training: they share one configuration.
    decisions = sum(space.decisions(), Space())
    jobs, origins = [], []
    for kind, changes in enumerate(kinds):
        configuration = decisions.check(changes, "network")
        model = space.build(
            configuration, data.x.shape[1:], targets.head.n_raw, n_copies=network.n_copies
        )
        recipe = shared.make_recipe(estimator, task, given, space.recipe(configuration))
        # Members of all kinds are numbered in turn; seeds go by these numbers.
        numbers = range(kind, n_members, len(kinds))
        own_parts = parts and parts[: len(numbers)]
        seeds = [task.seeds(1, first=k)[0] for k in numbers]
        jobs.append(
            TrainingJob.of_model(model, targets.head, recipe, seeds, stacked=True, splits=own_parts)
        )
        own_parts = own_parts or [None] * len(numbers)
        origins += [_Origin(kind, k, part) for k, part in enumerate(own_parts)]
    return jobs, origins


def _weigh(task, members, origins, n_kinds):
    """Weigh the kinds by stacking on validation rows; members of a kind have equal weights."""
    kinds = np.array([origin.kind for origin in origins])
    counts = np.bincount(kinds, minlength=n_kinds)
    shares = np.full(n_kinds, 1 / n_kinds)
    if n_kinds > 1 and counts.all() and len(members[0].held_out):
        shares = _stack_kinds(task, members, origins, n_kinds)
    # A kind whose members all diverged has no share.
    shares = np.where(counts, shares, 0)
    return (shares / np.maximum(counts, 1))[kinds] / shares.sum()


def _stack_kinds(task, members, origins, n_kinds):
    """Find the shares of the kinds whose mixture has the highest likelihood on held-out rows.

    This is stacking of predictive distributions (Yao et al. 2018). The members with the same
    split, one of each kind, are compared on their common validation rows.
    """
    data, head = task.data, task.targets.head
    by_split: dict = {}  # log likelihood and weight of each validation row, by split and kind
    for member, (kind, split, part) in zip(members, origins):
        y, weight = data.y_valid, data.weight_valid
        if part is not None and part[1] is not None:
            _, valid = part
            y, weight = data.y[valid], data.weight[valid]
        found = head.log_likelihood(y, member.held_out), weight
        by_split.setdefault(split, {})[kind] = found
    # Splits in which a member diverged cannot be compared.
    complete = [kinds for kinds in by_split.values() if len(kinds) == n_kinds]
    if not complete:
        return np.full(n_kinds, 1 / n_kinds)
    log_likelihood = np.concatenate(
        [np.stack([kinds[k][0] for k in range(n_kinds)]) for kinds in complete], axis=1
    )
    weight = np.concatenate([kinds[0][1] for kinds in complete])
    # All weights can underflow in float32.
    return stacking_weights(log_likelihood, weight if weight.any() else None)


def _calibrate(task, members, weights, parts):
    """Calibrate the distribution on rows on which some members were not trained."""
    data, targets = task.data, task.targets
    # Each row is predicted by the members that have not trained on it.
    unseen = np.zeros((len(parts), len(data.x)), dtype=bool)
    for k, (_, valid) in enumerate(parts):
        unseen[k, valid] = True
    rows = np.flatnonzero(unseen.any(axis=0))
    if len(rows) > _MOST_CALIBRATION_ROWS:
        rng = generator(task.entropy, "calibration")
        rows = np.sort(rng.choice(rows, _MOST_CALIBRATION_ROWS, replace=False))
    # Copies in one network have seen the same rows.
    head, raw, _ = unpack_copies(targets.head, predict_members(members, data.x[rows]), weights)
    unseen = np.repeat(unseen[:, rows], len(raw) // len(parts), axis=0)
    predicted = normal_components(head, raw.astype("float64"))
    fitted = fit_out_of_bag(*predicted, unseen, data.y[rows], data.weight[rows])
    return targets.with_calibration(*fitted)


@saved_as("estimators.TabularEnsembleRegressor", kind="estimator")
class TabularEnsembleRegressor(_TabularEnsemble, UncertaintyRegressor):
    """Ensemble of modern networks for tables, calibrated: the recommended regressor.

    Members are networks with embedded columns and training settings that are tuned for tables.
    They differ in their seeds and in the rows that they validate on. The average noise that they
    predict is the aleatoric uncertainty, and the disagreement of their means the epistemic
    uncertainty. It is better than the plain network of `DeepEnsembleRegressor` on all five UCI
    sets measured, and slower to train.

    Parameters
    ----------
    n_members : int or "auto", default="auto"
        Number of members. "auto" is 8 for numbers, where more than 5 still improve every score, and
        9 for classes, three of each of three kinds of network.
    network : "tabular" or TabularNetwork, default="tabular"
        Modern network for tables, see `skuq.networks.TabularNetwork`.
    loss : str, default="crps"
        Distribution that each network predicts, and its loss. "nll": mean and standard deviation of
        a normal, by likelihood. "beta-nll": the same with the likelihood's gradient weighted by the
        predicted standard deviation (Seitzer et al. 2022, beta 0.5), so that rows believed to be
        noisy are learnt from, too. "crps": the same two numbers by the continuous ranked
        probability score, which gives better means and intervals where most of y can be predicted.
        "student-t" and "gaussian-mixture" (three components): heavier tails or several modes.
        "quantiles": 19 quantiles that do not cross. "mse": means only, for noise that is known or
        the same everywhere.
    learning_rate : float or "auto", default="auto"
        Learning rate of the optimiser. "auto", here and below, is the setting that the network was
        tuned with.
    batch_size : int, None or "auto", default="auto"
        Number of rows of a batch. None takes all rows.
    epochs : int or "auto", default="auto"
        Number of epochs of one network. Early stopping may end it sooner, and "auto" depends on the
        number of rows.
    early_stopping_patience : int, None or "auto", default="auto"
        Number of epochs without a better validation loss after which a network stops; its best
        epoch is kept. None never stops early and still keeps the best epoch.
    validation : float, None or "auto", default="auto"
        Share of the rows, of each class in proportion, that is held out for validation. None trains
        on all rows for all `epochs`. "auto" is 0.1, and at most 10,000 rows.
    training : "auto" or Training, default="auto"
        Further settings of the training, such as optimiser, schedule and penalties, see
        `skuq.training.Training`. Settings without effect here are refused.
    calibrate : bool or "auto", default="auto"
        Whether predicted distributions are scaled, and given a floor and a tail, by the rows that
        single members have not trained on. It needs a loss that trains normals ("nll", "beta-nll",
        "crps" or "gaussian-mixture"), and a validation split of each member's own: no `groups`, no
        `validation_data` and not ``validation=None``. "auto" calibrates where it can; True refuses
        what it cannot.
    max_time : float, optional
        Maximum seconds of training, after compilation. If all `epochs` would take longer, the
        schedule is shortened to the epochs that fit; each member keeps its best epoch. Results then
        depend on the speed of the machine. None sets no limit.
    preprocess : "auto", transformer or None, default="auto"
        Encoding of X as numbers. "auto" is `skuq.tables.TablePreprocessor`: missing numbers become
        medians and are flagged in columns of their own, and categories become indicator columns, at
        most 50 for a column of X. A scikit-learn transformer is cloned and fitted. None takes
        finite numbers only. Tabular networks embed columns of more than ten categories instead.
    target_transform : {"standard", "yeo-johnson", "quantile"}, default="standard"
        Scale of y on which noise is assumed to be normal, see `skuq.tables.TargetTransform`.
        "yeo-johnson" and "quantile" are for skewed targets; predictions are in units of y in any
        case.
    random_state : int, RandomState instance or None, default=None
        Seed of all random numbers. With an integer results repeat exactly.
    verbose : int or None, default=None
        Whether to show progress: 1 always does and 0 never. None shows a bar on a terminal if the
        fit is expected to take above 20 seconds, and writes to the logger "skuq" elsewhere.

    Attributes
    ----------
    members_ : list of Member
        Records of the trained networks, such as weights and history. They hold validation
        predictions, too.
    weights_ : ndarray of shape (n_members,)
        Weights of the members, which sum to 1.
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
    validation. Members whose loss stops being finite are left out, with a warning.
    docs/methods/tabular.md describes how the recipe was found.

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
    >>> model.predict_interval(X[:3], coverage=0.9).shape
    (3, 2)
    """

    _parameter_constraints: dict = {
        **_CONSTRAINTS,
        **TARGET_CONSTRAINTS,
        "loss": [StrOptions(set(HEADS))],
        "calibrate": ["boolean", _AUTO],
    }

    def __init__(
        self,
        n_members="auto",
        *,
        network="tabular",
        loss="crps",
        learning_rate="auto",
        batch_size="auto",
        epochs="auto",
        early_stopping_patience="auto",
        validation="auto",
        training="auto",
        calibrate="auto",
        max_time=None,
        preprocess="auto",
        target_transform="standard",
        random_state=None,
        verbose=None,
    ):
        self.n_members = n_members
        self.network = network
        self.loss = loss
        self.learning_rate = learning_rate
        self.batch_size = batch_size
        self.epochs = epochs
        self.early_stopping_patience = early_stopping_patience
        self.validation = validation
        self.training = training
        self.calibrate = calibrate
        self.max_time = max_time
        self.preprocess = preprocess
        self.target_transform = target_transform
        self.random_state = random_state
        self.verbose = verbose


@saved_as("estimators.TabularEnsembleClassifier", kind="estimator")
class TabularEnsembleClassifier(_TabularEnsemble, UncertaintyClassifier):
    """Ensemble of modern networks for tables: the recommended classifier.

    Members are networks of three kinds, which embed numbers differently, with training settings
    that are tuned for tables. The kinds are weighted by stacking on held-out rows. It is better
    than the plain network of `DeepEnsembleClassifier` on three of the six sets measured, and
    slower to train.

    Parameters
    ----------
    n_members : int or "auto", default="auto"
        Number of members. "auto" is 8 for numbers, where more than 5 still improve every score, and
        9 for classes, three of each of three kinds of network.
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
        Number of epochs without a better validation loss after which a network stops; its best
        epoch is kept. None never stops early and still keeps the best epoch.
    validation : float, None or "auto", default="auto"
        Share of the rows, of each class in proportion, that is held out for validation. None trains
        on all rows for all `epochs`. "auto" is 0.1, and at most 10,000 rows.
    training : "auto" or Training, default="auto"
        Further settings of the training, such as optimiser, schedule and penalties, see
        `skuq.training.Training`. Settings without effect here are refused.
    max_time : float, optional
        Maximum seconds of training, after compilation. If all `epochs` would take longer, the
        schedule is shortened to the epochs that fit; each member keeps its best epoch. Results then
        depend on the speed of the machine. None sets no limit.
    class_weight : dict, "balanced" or None, default=None
        Weights of classes, by label, which multiply sample weights. None weighs all classes alike,
        and "balanced" weighs them inversely to their frequencies in y. They count wherever rows
        count: in training, in early stopping, and where members are selected or weighed.
    preprocess : "auto", transformer or None, default="auto"
        Encoding of X as numbers. "auto" is `skuq.tables.TablePreprocessor`: missing numbers become
        medians and are flagged in columns of their own, and categories become indicator columns, at
        most 50 for a column of X. A scikit-learn transformer is cloned and fitted. None takes
        finite numbers only. Tabular networks embed columns of more than ten categories instead.
    random_state : int, RandomState instance or None, default=None
        Seed of all random numbers. With an integer results repeat exactly.
    verbose : int or None, default=None
        Whether to show progress: 1 always does and 0 never. None shows a bar on a terminal if the
        fit is expected to take above 20 seconds, and writes to the logger "skuq" elsewhere.

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
    X is scaled by its quartiles and y is standardised. Each member holds out other rows for
    validation. Members whose loss stops being finite are left out, with a warning.
    docs/methods/tabular.md describes how the recipe was found.

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

    _parameter_constraints: dict = {**_CONSTRAINTS, **CLASS_CONSTRAINTS}

    def __init__(
        self,
        n_members="auto",
        *,
        network="tabular",
        learning_rate="auto",
        batch_size="auto",
        epochs="auto",
        early_stopping_patience="auto",
        validation="auto",
        training="auto",
        max_time=None,
        class_weight=None,
        preprocess="auto",
        random_state=None,
        verbose=None,
    ):
        self.n_members = n_members
        self.network = network
        self.learning_rate = learning_rate
        self.batch_size = batch_size
        self.epochs = epochs
        self.early_stopping_patience = early_stopping_patience
        self.validation = validation
        self.training = training
        self.max_time = max_time
        self.class_weight = class_weight
        self.preprocess = preprocess
        self.random_state = random_state
        self.verbose = verbose
