"""Tabular ensembles: modern networks for tables, calibrated, the recommended estimators."""

from __future__ import annotations

import contextlib
import math
import time
import warnings
from collections.abc import Mapping
from dataclasses import replace
from numbers import Integral, Real
from typing import Any, NamedTuple

import numpy as np
from sklearn.base import is_classifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression

from skuq._params import Interval, StrOptions, resolve_settings, settings_constraint
from skuq._utils._environment import generator
from skuq._utils._records import saved_as
from skuq.backend import in_thread
from skuq.catalog import Member
from skuq.ensembles import stacking_weights
from skuq.ensembles._selection import drop_light, fit_class_mixture
from skuq.estimators import _base
from skuq.estimators._base import UncertaintyClassifier, UncertaintyRegressor
from skuq.estimators._ensembles import _shared as shared
from skuq.estimators._task import join_validation
from skuq.networks import TabularNetwork, TabularSpace, build_tabular
from skuq.networks._space import Space
from skuq.networks._tabular import class_recipes
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

_N_MEMBERS = 8
_VALIDATION = 0.1  # share of the rows, up to
_MOST_VALIDATION_ROWS = 10_000
_MOST_CALIBRATION_ROWS = 5_000  # drawn at random if there are more
_NORMAL_LOSSES = ("nll", "beta-nll", "crps", "gaussian-mixture")  # those that can be calibrated
# Classes: rows up to which every row validates, in folds; with more, some of the folds do.
_FEW_ROWS = 2_000
_N_FOLDS, _N_TENTHS = 5, 3
_FEWEST_FOLDED = 10  # rows, or groups
_STRENGTHS = (0.003, 0.03, 0.3, 3.0, 30.0)  # inverse penalties that logistic regression tries
_MOST_NEWTON_STEPS = 200
_IMPOSSIBLE = -10.0  # logit of classes without a training row

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


# Kinds of training of mixtures of normals: the CRPS gives the better means where there is little
# noise, the likelihood the better shapes.
_MIXTURE_KINDS: tuple[dict, ...] = ({"loss": "crps"}, {"loss": "nll"})
_EQUAL_ROWS = 100
_SHARE_STEPS = 8  # their shares are eighths: a few draws then stand for all members


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
            Groups; all rows of a group either train or validate. With groups all members of a
            regressor validate on the same rows, and those of a classifier too if `validation` is
            a number. They have no effect without validation or with `validation_data`.

        Returns
        -------
        self
        """
        network, given = resolve_settings(self, "network"), shared.training_fields(self)
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
        kinds, n_members = _list_kinds(self, task, network)
        # The k-th members of all kinds have the same split, so that kinds can be compared.
        task = _split(self, task, math.ceil(n_members / len(kinds)))
        members, origins = _train(self, task, network, kinds, given, n_members)
        kept = find_completed(members)
        members, origins = [members[k] for k in kept], [origins[k] for k in kept]
        targets = task.targets
        parts = None if task.splits.parts is None else [origin.part for origin in origins]
        if is_classifier(self):
            weights, targets = _mix_classes(task, members, origins)
            # Members of kinds without weight would only make predictions slower.
            used = np.flatnonzero(weights)
            members, weights = [members[k] for k in used], weights[used]
            parts = parts and [parts[k] for k in used]
        else:
            weights = _weigh(task, members, origins, len(kinds))
            if parts is not None and self.calibrate and self.loss in _NORMAL_LOSSES:
                targets = _calibrate(task, members, weights, origins)
        return shared.finish(self, task, members, weights, targets=targets, parts=parts)


def _list_kinds(estimator, task, network):
    """List the kinds of networks, several for classes and mixtures, and the number of members."""
    decisions, n_members = network.decisions(), estimator.n_members
    is_auto = isinstance(n_members, str)
    if not is_classifier(estimator):
        n_members = _N_MEMBERS if is_auto else n_members
        changes = _MIXTURE_KINDS if estimator.loss == "gaussian-mixture" else ({},)
        kinds = [{**change, **decisions} for change in changes]
        return kinds[:n_members], n_members
    n_rows, validates = len(task.rows.used), task.validation or estimator.validation is not None
    # Decisions of the user hold for all networks. One about embeddings leaves no other kinds.
    is_given = "embedding" in decisions
    kinds = []
    for recipe in class_recipes(n_rows):
        if recipe.get("n_layers") != 0:
            given = ("embedding", "frequency_scale") if is_given else ()
            recipe = {k: v for k, v in recipe.items() if k not in given} | decisions
        elif is_given or network.n_copies > 1:
            continue
        # Without validation nothing ends longer trainings in time.
        is_first = not kinds or recipe["epochs"] == kinds[0]["epochs"]
        if recipe not in kinds and (validates or is_first):
            kinds.append(recipe)
    if is_auto:
        return kinds, len(kinds) * (_N_FOLDS if n_rows <= _FEW_ROWS else _N_TENTHS)
    # Fewer members than kinds: the first kinds only.
    return kinds[:n_members], n_members


def _split(estimator, task, n_splits):
    """Split the rows for each of the members of a kind.

    Classifiers validate on folds, of few rows on all of them, so that every row is out of the bag
    once. Others hold out a share for each member.
    """
    validation, n_rows = estimator.validation, len(task.rows.used)
    if not isinstance(validation, str):
        return task.split(validation, n_members=n_splits)
    share = min(_VALIDATION, _MOST_VALIDATION_ROWS / n_rows)
    n_units = task.n_units
    if is_classifier(estimator) and task.validation is None and n_units >= _FEWEST_FOLDED:
        n_folds = min(_N_FOLDS if n_rows <= _FEW_ROWS else round(1 / share), n_units)
        # More members than folds have further folds, drawn anew.
        repeats = range(math.ceil(n_splits / n_folds))
        with contextlib.suppress(ValueError):  # no class has rows in two folds
            splits = [task.make_splits(n_folds, repeat=repeat) for repeat in repeats]
            parts = [part for found in splits for part in found.parts][:n_splits]
            return task.with_splits(replace(splits[0], parts=parts))
    return task.split(share, n_members=n_splits)


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


def _train(estimator, task, network, kinds, given, n_members):
    """Train all members, and list their origins; members of all kinds train at the same time."""
    data, parts = task.data, task.splits.parts
    padded = parts
    own = parts is not None and parts[0][1] is not None
    uneven = own and len({tuple(map(len, part)) for part in parts}) > 1
    if uneven:
        # Members of a stack have equally many rows: folds are padded with a row of weight 0.
        data, padded = data.with_empty_row(), _pad(parts, len(data.x))
    jobs, origins = _make_jobs(estimator, task, network, kinds, given, n_members, padded)
    members = shared.train_jobs(estimator, jobs, data) if jobs else []
    for k, (member, origin) in enumerate(zip(members, origins)):
        if uneven and isinstance(member, Member):
            members[k] = member.with_held_out(member.held_out[: len(origin.part[1])])
    for kind, decisions in enumerate(kinds):
        if decisions.get("n_layers") == 0:
            numbers = range(kind, n_members, len(kinds))
            own_parts = parts[: len(numbers)] if parts else [None] * len(numbers)
            members += _fit_linear(task, own_parts, [task.seeds(1, first=k)[0] for k in numbers])
            origins += [_Origin(kind, k, part) for k, part in enumerate(own_parts)]
    return members, origins


def _pad(parts, number):
    """Pad the rows of all parts to equal sizes, with the number of a row of weight 0."""
    largest = [max(map(len, rows)) for rows in zip(*parts)]
    return [
        tuple(
            np.pad(rows, (0, size - len(rows)), constant_values=number)
            for rows, size in zip(part, largest)
        )
        for part in parts
    ]


@in_thread
def _make_jobs(estimator, task, network, kinds, given, n_members, padded):
    """Make a stack of each kind of networks, and list the origins of all members.

    `padded` are the parts of the splits, with equally many rows.
    """
    data, targets, parts = task.data, task.targets, task.splits.parts
    losses = ("crps", "nll") if "loss" in kinds[0] else ()
    space = TabularSpace().bind(
        data.x, task.inputs.n_codes, task.splits.n_train, is_classifier(estimator), losses
    )
    # Of both parts, the architecture and its training: they share one configuration.
    decisions = sum(space.decisions(), Space())
    jobs, origins = [], []
    for kind, changes in enumerate(kinds):
        if changes.get("n_layers") == 0:
            continue
        configuration = decisions.check(changes, "network")
        model = space.build(
            configuration, data.x.shape[1:], targets.head.n_raw, n_copies=network.n_copies
        )
        # The best epochs of single members would be those of chance, and their validation rows
        # would then seem too easy to the calibration.
        fields = space.recipe(configuration) | {"keep": "best-jointly"}
        head = space.head(configuration, targets.head)
        recipe = shared.make_recipe(estimator, task, given, fields)
        # Members of all kinds are numbered in turn; seeds go by these numbers.
        numbers = range(kind, n_members, len(kinds))
        splits = padded and padded[: len(numbers)]
        seeds = [task.seeds(1, first=k)[0] for k in numbers]
        jobs.append(TrainingJob.of_model(model, head, recipe, seeds, stacked=True, splits=splits))
        own_parts = parts[: len(numbers)] if parts else [None] * len(numbers)
        origins += [_Origin(kind, k, part) for k, part in enumerate(own_parts)]
    return [TrainingJob.joined(jobs)] if losses else jobs, origins


def _weigh(task, members, origins, n_kinds):
    """Weigh the kinds of regressors by stacking on rows held out; members of a kind are equal.

    The members with the same split, one of each kind, are compared on their validation rows, as in
    `_mix_classes`.
    """
    data, head = task.data, task.targets.head
    kinds = np.array([origin.kind for origin in origins])
    counts, shares = np.bincount(kinds, minlength=n_kinds), np.full(n_kinds, 1 / n_kinds)
    by_split: dict = {}  # log likelihood and weight of each validation row, by split and kind
    for member, (kind, split, part) in zip(members, origins):
        y, weight = data.y_valid, data.weight_valid
        if part is not None and part[1] is not None:
            y, weight = data.y[part[1]], data.weight[part[1]]
        if n_kinds > 1 and len(member.held_out):
            found = head.log_likelihood(y, member.held_out.astype("float64")), weight
            by_split.setdefault(split, {})[kind] = found
    # Splits in which a member diverged cannot be compared.
    complete = [found for found in by_split.values() if len(found) == n_kinds]
    if complete:
        likelihoods, weights = (
            np.concatenate([np.stack([f[k][i] for k in range(n_kinds)]) for f in complete], axis=1)
            for i in range(2)
        )
        # All weights can underflow in float32.
        weight = weights[0] if weights[0].any() else None
        # Averaged with equal shares, which count as much as some rows.
        trust = likelihoods.shape[1] / (likelihoods.shape[1] + _EQUAL_ROWS)
        shares += trust * (stacking_weights(likelihoods, weight) - shares)
        # Every kind keeps a share, and shares sum to 1.
        shares = np.clip(np.round(shares * _SHARE_STEPS), 1, None)
        shares[shares.argmax()] += _SHARE_STEPS - shares.sum()
    # A kind whose members all diverged has no share.
    shares = np.where(counts, shares, 0)
    return (shares / np.maximum(counts, 1))[kinds] / shares.sum()


@in_thread
def _fit_linear(task, parts, seeds):
    """Fit logistic regressions, with the penalty that is best on the rows held out.

    A member is a dense layer. Columns of codes have a vector of one number for each class.
    """
    started, data, head, n_codes = (
        time.perf_counter(),
        task.data,
        task.targets.head,
        task.inputs.n_codes,
    )
    x, y = data.x.astype("float64"), data.y[:, 0].astype(int)
    columns = [x[:, [k for k in range(x.shape[1]) if k not in n_codes]]]
    columns += [np.eye(n)[x[:, k].astype(int)] for k, n in sorted(n_codes.items())]
    design, n_classes = np.concatenate(columns, axis=1), head.n_classes
    model = build_tabular(
        data.x.shape[1:], n_classes, hidden_units=(), categories=n_codes, category_dim=n_classes
    )
    network = model.to_json()
    fits, losses = [], []
    for strength in _STRENGTHS if task.splits.validates else (0.3,):
        found = []
        for part, seed in zip(parts, seeds):
            train = np.arange(len(x)) if part is None else part[0]
            kernel, bias = _logistic_regression(
                design[train], y[train], data.weight[train], n_classes, strength
            )
            # Numbers of each class, then tables of codes, whose vectors the layer passes on.
            tables = np.split(kernel, np.cumsum([c.shape[1] for c in columns])[:-1])
            passed = [tables[0], *[np.eye(n_classes)] * len(n_codes)]
            blocks = [*tables[1:], np.concatenate(passed), bias]
            weights = np.concatenate([block.ravel() for block in blocks]).astype("float32")
            history = {name: np.zeros(1) for name in ("loss", "val_loss", "learning_rate")}
            member = Member(network, weights, (), history, 0, None, seed, 0.0, "graph")
            x_valid, y_valid, weight = data.x_valid, data.y_valid, data.weight_valid
            if part is not None and part[1] is not None:
                x_valid, y_valid, weight = data.x[part[1]], data.y[part[1]], data.weight[part[1]]
            raw = predict_members([member], x_valid, cache=False)[0]
            found.append(member.with_held_out(raw.astype("float32")))
            losses.append((weight @ head.scores(y_valid, raw)) if len(raw) else 0.0)
        fits.append(found)
    best = np.argmin(np.reshape(losses, (len(fits), -1)).sum(axis=1))
    seconds = (time.perf_counter() - started) / len(parts)
    return [replace(member, seconds=seconds) for member in fits[best]]


def _logistic_regression(x, y, weight, n_classes, strength):
    """Fit a kernel (d, n_classes) and a bias; classes without a row are nearly impossible."""
    kernel, bias = np.zeros((x.shape[1], n_classes)), np.full(n_classes, _IMPOSSIBLE)
    used = weight > 0  # others would be classes of their own
    present = np.unique(y[used])
    bias[present] = 0.0
    if len(present) > 1:
        model = LogisticRegression(C=strength, max_iter=_MOST_NEWTON_STEPS)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            model.fit(x[used], y[used], weight[used])
        coefficients, intercept = model.coef_, model.intercept_
        if len(present) == 2:  # one logit, that of the second class
            coefficients = np.concatenate([-coefficients, coefficients]) / 2
            intercept = np.concatenate([-intercept, intercept]) / 2
        kernel[:, present], bias[present] = coefficients.T, intercept
    return kernel, bias


def _mix_classes(task, members, origins):
    """Weigh the kinds of classifiers, and calibrate their mixture, on rows held out.

    This is stacking of predictive distributions (Yao et al. 2018), with the shares of the classes
    as a further kind. Members of a kind have equal weights. Return the weights of the members and
    the calibrated targets.
    """
    data, targets = task.data, task.targets
    found, kinds = np.unique([origin.kind for origin in origins], return_inverse=True)
    counts = np.bincount(kinds)
    weights, shares = np.full(len(found), 1 / len(found)), None
    if task.splits.validates:
        n_classes = len(targets.classes)
        counted = np.bincount(data.y[:, 0].astype(int), data.weight, minlength=n_classes) + 0.5
        logits, y, weight = _held_out_logits(task, members, origins)
        if len(y) and weight.sum() > 0:
            shares = counted / counted.sum()
            weights, temperature, share = fit_class_mixture(logits, y, weight.astype(float), shares)
            targets = targets.with_calibration(temperature, share * shares)
            weights = drop_light(weights)
    return (weights / counts)[kinds], targets


def _held_out_logits(task, members, origins):
    """Compute the logits (n_kinds, n, n_classes) of rows by members that have not seen them.

    Several members of a kind give the logarithm of their average probability. Rows that a kind has
    no such prediction of are left out. Return their classes and weights, too.
    """
    data, head = task.data, task.targets.head
    kinds = np.unique([origin.kind for origin in origins]).tolist()
    y, weight = (
        (data.y_valid, data.weight_valid) if task.splits.parts is None else (data.y, data.weight)
    )
    proba = np.zeros((len(kinds), len(y), len(task.targets.classes)))
    counts = np.zeros((len(kinds), len(y)))
    for member, (kind, _, part) in zip(members, origins):
        rows = slice(None) if part is None or part[1] is None else part[1]
        own, raw, _ = unpack_copies(head, member.held_out[None].astype("float64"), np.ones(1))
        proba[kinds.index(kind), rows] += own.probabilities(raw).mean(axis=0)
        counts[kinds.index(kind), rows] += 1
    complete = counts.all(axis=0) & (weight > 0)
    proba = proba[:, complete] / counts[:, complete, None]
    logits = np.log(np.maximum(proba, np.finfo(float).tiny))
    return logits, y[complete, 0].astype(int), weight[complete]


def _calibrate(task, members, weights, origins):
    """Calibrate the distribution on rows on which some members were not trained."""
    data, targets = task.data, task.targets
    # Each row is predicted by the members that have not trained on it.
    unseen = np.zeros((len(origins), len(data.x)), dtype=bool)
    for k, origin in enumerate(origins):
        unseen[k, origin.part[1]] = True
    rows = np.flatnonzero(unseen.any(axis=0))
    if len(rows) > _MOST_CALIBRATION_ROWS:
        rng = generator(task.entropy, "calibration")
        rows = np.sort(rng.choice(rows, _MOST_CALIBRATION_ROWS, replace=False))
    # By the members of each kind alone: those that share a split have all not seen the same rows,
    # and their mean would err less than the mean of all members may elsewhere.
    kinds = np.array([origin.kind for origin in origins])[:, None]
    unseen = np.concatenate([unseen[:, rows] & (kinds == k) for k in np.unique(kinds)], axis=1)
    times = unseen.shape[1] // len(rows)
    # Copies in one network have seen the same rows.
    raw = predict_members(members, data.x[rows])
    head, raw, weights = unpack_copies(targets.head, raw, weights)
    unseen = np.repeat(unseen, len(raw) // len(origins), axis=0)
    loc, scale, probability = (
        np.concatenate([part] * times, axis=2)
        for part in normal_components(head, raw.astype("float64"))
    )
    rows = np.tile(rows, times)
    fitted = fit_out_of_bag(
        loc, scale, probability, weights, unseen, data.y[rows], data.weight[rows]
    )
    return targets.with_calibration(*fitted)


@saved_as("estimators.TabularEnsembleRegressor", kind="estimator")
class TabularEnsembleRegressor(_TabularEnsemble, UncertaintyRegressor):
    """Ensemble of modern networks for tables, calibrated: the recommended regressor.

    Members are networks with embedded columns and training settings that are tuned for tables.
    They differ in their seeds and in the rows that they validate on. The average noise that they
    predict is the aleatoric uncertainty, and the disagreement of their means the epistemic
    uncertainty, which grows away from the training rows. Its mean CRPS is below that of the plain
    network of `DeepEnsembleRegressor` on each of six sets measured, and it is slower to train.

    Parameters
    ----------
    n_members : int or "auto", default="auto"
        Number of members. "auto" is 8 for numbers, where more than 5 still improve every score. For
        classes it is five of each kind up to 2,000 rows, and three of each with more; kinds that
        the stacking gives nearly no weight are dropped after training.
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
        where most of y can be predicted. "student-t": heavier tails.
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
        on all rows for all `epochs`. "auto" is 0.1, and at most 10,000 rows. Of classes it is a
        fold for each member, a fifth of up to 2,000 rows, and without validation kinds are neither
        weighed nor calibrated.
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
    validation, and members of one kind keep the epoch that is best for them on average. Members
    whose loss stops being finite are left out, with a warning.
    docs/methods/tabular.md describes how the recipe was found.

    Networks may agree for no reason where they have seen nothing. The epistemic uncertainty there
    is what a Gaussian process of the same rows leaves open; docs/methods/ensembles.md has the
    formula. It needs 10 rows and a loss that predicts normals or mixtures of them.

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
        loss="gaussian-mixture",
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
    """Ensemble of several kinds of networks for tables, calibrated: the recommended classifier.

    Members are modern networks for tables, which embed numbers differently and whose weights decay
    more or less, and logistic regressions. On few rows the members of each kind
    validate on folds, so that every row is predicted by a member of each kind that was not trained
    on it. On these rows the kinds are weighted by stacking, and their mixture gets a temperature
    and a small share of the classes' frequencies: no class is impossible because few rows did not
    have it. It is better than the plain network of `DeepEnsembleClassifier` on nearly all tables.

    Parameters
    ----------
    n_members : int or "auto", default="auto"
        Number of members. "auto" is 8 for numbers, where more than 5 still improve every score. For
        classes it is five of each kind up to 2,000 rows, and three of each with more; kinds that
        the stacking gives nearly no weight are dropped after training.
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
        on all rows for all `epochs`. "auto" is 0.1, and at most 10,000 rows. Of classes it is a
        fold for each member, a fifth of up to 2,000 rows, and without validation kinds are neither
        weighed nor calibrated.
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
    X is scaled by its quartiles. Members of one kind stop at the epoch that is best for all of them
    together. Members whose loss stops being finite are left out, with a warning. Decisions of
    `network` hold for the modern networks; with one about `embedding`, or with `n_copies`, there
    are no linear members. docs/methods/tabular.md describes how the recipe was found.

    Networks may agree for no reason where they have seen nothing. There a Gaussian process of the
    same rows turns the probabilities towards the shares of the classes, and members disagree;
    docs/methods/ensembles.md has the formula.

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
