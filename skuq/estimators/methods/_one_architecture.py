"""Base class of ensembles of one architecture, and the steps that they share, as functions."""

import copy
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from numbers import Integral, Real
from operator import attrgetter
from typing import Any

import numpy as np
from sklearn.base import is_classifier

from skuq import backend, training
from skuq._params import Interval, StrOptions, refuse, resolve_settings, settings_constraint
from skuq.estimators import _task
from skuq.estimators._base import Fit, Given, Predictor, training_progress
from skuq.estimators._task import Task
from skuq.fitted._ensemble import DropoutPasses, FittedEnsemble
from skuq.networks import MLP, Member
from skuq.networks._plan import make_plan
from skuq.predictive._calibration import UNCALIBRATED, Calibration, fit_correlation
from skuq.tables._inputs import PREPROCESS_CONSTRAINTS, TableInputs
from skuq.tables._transforms import TARGET_TRANSFORMS
from skuq.training import Recipe, Training, TrainingJob, predict_members
from skuq.training._job import pad_splits
from skuq.training._network_checks import build_checked
from skuq.training._recipe import TRAINING
from skuq.training._train import plan_epochs, train_jointly

#: Short forms of the parameters that are settings.
SETTINGS: Mapping[str, Mapping[Any, Any]] = {"network": {"mlp": MLP}, "training": TRAINING}

#: Settings of `training` that have an effect on these ensembles.
TRAINING_FIELDS: set[str] = set(Training().get_params()) - {"steps"}

#: Constraints of the parameters of all ensembles of one architecture.
NETWORK_CONSTRAINTS: dict = {
    "network": [*settings_constraint(SETTINGS["network"], MLP), callable],
    "learning_rate": [Interval(Real, 0, None, closed="neither")],
    "batch_size": [Interval(Integral, 1, None, closed="left"), None],
    "epochs": [Interval(Integral, 1, None, closed="left")],
    "early_stopping_patience": [Interval(Integral, 1, None, closed="left"), None],
    "validation": [Interval(Real, 0, 1, closed="neither"), None],
    "training": settings_constraint(SETTINGS["training"], Training),
    **PREPROCESS_CONSTRAINTS,
    "random_state": ["random_state"],
    "verbose": ["verbose", None],
}

#: Constraints of the parameters of regressors only.
REGRESSION_CONSTRAINTS: dict = {
    "loss": [StrOptions({"nll", "mse"})],
    "noise_std": [Interval(Real, 0, None, closed="left"), "array-like", None],
    "target_transform": TARGET_TRANSFORMS,
}

# Parameters of estimators that are fields of the recipe.
_RECIPE_PARAMETERS = ("learning_rate", "batch_size", "epochs", "early_stopping_patience")

# Ten columns that vary together train at the default rate of 0.01, and more of them at a lower one.
# Without it the CRPS is 3.8 to 13.5 times as large on spectra of 200 to 300 columns.
_LARGEST_INPUT_STEP = 0.1

_SMALLEST_NOISE = 1e-9  # standard deviation of standardised y that replaces noise_std=0


class OneArchitecture(Predictor):
    """Base class of ensembles of one architecture: `fit` and public parts."""

    _settings = SETTINGS
    _exports_keras = True

    # Parts of the fitted model, which the class docstrings describe.
    members_ = property(lambda self: list(self.fitted_.members), doc="")
    weights_ = property(attrgetter("fitted_.weights"), doc="")
    preprocessor_ = property(attrgetter("fitted_.inputs.preprocessor"), doc="")

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
        """Train the networks.

        Parameters
        ----------
        X : array-like or DataFrame of shape (n, n_features)
            Numbers, booleans, strings and categories, with missing values; see `preprocess`.
        y : array-like of shape (n,) or, for several outputs, (n, n_outputs)
            Targets: numbers or classes.
        sample_weight : array-like of shape (n,), optional
            Non-negative weights of the rows.
        X_val : array-like or DataFrame of shape (n_val, n_features), optional
            Rows on which all members validate, instead of a share of the rows above. Pipelines
            transform them with ``transform_input=["X_val"]``.
        y_val : array-like of shape (n_val,) or (n_val, n_outputs), optional
            Targets of `X_val`.
        sample_weight_val : array-like of shape (n_val,), optional
            Non-negative weights of the rows of `X_val`.
        validation_data : tuple (X, y) or (X, y, sample_weight), optional
            `X_val`, `y_val` and `sample_weight_val` as one tuple, in place of these.
        groups : array-like of shape (n,), optional
            Groups; all rows of a group either train or validate. With groups all members validate
            on the same rows, except in tabular classifiers with the default `validation`. They
            have no effect without validation or with `validation_data`.

        Returns
        -------
        self
        """
        validation = _task.join_validation(validation_data, X_val, y_val, sample_weight_val)
        return self._fit_by(Given(X, y, sample_weight, validation, groups))

    def member_estimators(self):
        """Return each network as a fitted estimator of its own.

        Each takes a category that `fit` did not see for the known one in the middle, by mean
        target; in the ensemble members take different ones, which adds uncertainty.

        Returns
        -------
        list of (str, estimator) tuples
            Named estimators. Classifiers can be a pool for
            ``HQEnsembleSelector(pool, cv="prefit")``.
        """
        # Copies share everything but the fitted model.
        pool = []
        for k, member in enumerate(self.fitted_.members):
            alone = copy.copy(self)
            alone.fitted_ = replace(self.fitted_, members=(member,), weights=np.ones(1))
            pool.append((f"member{k}", alone))
        return pool


def read(estimator: Any, given: Given, *, embed: bool = False, of_auto: Any = None) -> Task:
    """Read the arguments of `fit`, and check the known noise against them.

    Raise ValueError for arguments that cannot be fitted. See `TableInputs` and `make_targets`.
    """
    # Classes, and rows to validate on, need more than one row.
    needs_two = is_classifier(estimator) or estimator.validation is not None
    inputs = TableInputs(estimator.preprocess, embed=embed)
    targets = _task.make_targets(estimator, of_auto=of_auto)
    task = _task.read_task(estimator, inputs, targets, given, min_rows=1 + needs_two)
    if getattr(estimator, "noise_std", None) is not None:
        _check_noise(estimator, task.targets.n_outputs)
    return task


def training_fields(estimator: Any, known: Collection[str] = TRAINING_FIELDS) -> dict[str, Any]:
    """Return the given settings of the parameter `training`; refuse those not in `known`."""
    return resolve_settings(estimator, "training").fields(known)


def resolve_network(estimator: Any, *, drops: str | None = None) -> Any:
    """Return the parameter `network`, an `MLP` or the user's function.

    `drops` is the name of the parameter that sets the rates of dropout, if there is one.
    """
    network = resolve_settings(estimator, "network")
    if drops is not None and isinstance(network, MLP) and network.dropout:
        raise ValueError(
            f"`dropout` of the network has no effect beside `{drops}`, which sets the rates. Got "
            f"MLP(dropout={network.dropout!r}): leave it out."
        )
    return network


@backend.in_thread
def build_network(network: Any, task: Task, *, dropout: float | None = None) -> Any:
    """Build the Keras model of a task, by the settings or by the user's function."""
    input_shape, head = task.data.x.shape[1:], task.targets.head
    if isinstance(network, MLP):
        return network.build(input_shape, head, dropout)
    return build_checked(network, input_shape, head.n_raw, "`network`")


def check_dropout_layers(model: Any) -> None:
    """Raise ValueError if a network has no dropout layer, or layers that only Keras can run."""
    plan = make_plan(model.to_json())
    if plan is None or not plan.n_dropouts:
        raise ValueError(
            "`network` must return a model with Dropout layers, made of Dense, Activation, Add, "
            "Multiply, Concatenate, BatchNormalization and LayerNormalization layers only."
        )


def make_recipe(
    estimator: Any, task: Task, given: Mapping[str, Any], defaults: Mapping[str, Any] | None = None
) -> Recipe:
    """Make the recipe of a training.

    Parameters
    ----------
    estimator : estimator
        Its parameters that are not "auto" replace the defaults.
    task : Task
        Without validation rows, the last epoch is kept.
    given : mapping
        Settings of the parameter `training`, from `training_fields`.
    defaults : mapping, optional
        Other defaults of any fields of `Recipe`, such as `keep`. The estimator's parameters and
        `given` take precedence.
    """
    params = {name: getattr(estimator, name) for name in _RECIPE_PARAMETERS}
    params = {name: v for name, v in params.items() if not isinstance(v, str)}
    fields: dict[str, Any] = {"reduce_lr_patience": None}
    fields |= {"largest_input_step": _LARGEST_INPUT_STEP, **(defaults or {}), **params, **given}
    # Recipes have no None: any size above the number of rows is a full batch.
    if fields["batch_size"] is None:
        fields["batch_size"] = len(task.rows.X)
    if not task.splits.validates:
        fields |= {"early_stopping_patience": None, "keep": "last"}
    # The recipe of tabular networks has a decay that other optimisers do not use.
    if "beta_2" in fields and fields["optimizer"] not in ("adam", "adamax", "nadam"):
        del fields["beta_2"]
    recipe = Recipe(**fields)
    if "final_lr_factor" in given and recipe.schedule not in ("cosine", "exponential"):
        raise ValueError(
            '`final_lr_factor` needs schedule="cosine" or "exponential". Got '
            f"final_lr_factor={recipe.final_lr_factor!r} and schedule={recipe.schedule!r}."
        )
    return recipe


def pad_parts(task: Task, parts: Any) -> tuple[Any, Any]:
    """Return the data and the parts of the splits with equally many rows; see `pad_splits`."""
    own = parts is not None and parts[0][1] is not None
    if own and len({tuple(map(len, part)) for part in parts}) > 1:
        return pad_splits(task.data, parts)
    return task.data, parts


def train_jobs(
    estimator: Any, task: Task, jobs: Sequence[TrainingJob], data: Any, parts: Sequence[Any]
) -> list[Any]:
    """Train jobs together, within `max_time`; list their members, or errors in place of them.

    If there is no time for all of the jobs, only members of the first ones are listed. `data` can
    be padded, and `parts` are training and validation rows of each member without padding.
    """
    with training_progress(estimator.verbose) as progress:
        if estimator.max_time is None:
            members = training.train(jobs, data, report=progress.epochs)
        else:
            deadline = time.monotonic() + task.seconds_left(estimator.max_time)
            pairs = [(job, data) for job in jobs]
            pairs, deadline, needed = plan_epochs(pairs, deadline, needs_all=False)
            started = time.monotonic()
            members, share = train_jointly(pairs, report=progress.epochs, deadline=deadline)
    if estimator.max_time is not None:
        # The first epochs, by which the time was planned, are slower than others.
        needed = min(needed, (time.monotonic() - started) / share)
        # Jobs for which there was no time need as long.
        seconds = (started - task.started + needed) * len(jobs) / len(pairs)
        _task.warn_of_short_training(share, estimator.max_time, seconds)
    for k, (member, part) in enumerate(zip(members, parts)):
        is_own = part is not None and part[1] is not None
        if is_own and isinstance(member, Member) and member.held_out is not None:
            members[k] = member.with_held_out(member.held_out[: len(part[1])])
    return members


def finish(
    estimator: Any,
    task: Task,
    members: Sequence[Any],
    weights: np.ndarray,
    *,
    calibration: Calibration = UNCALIBRATED,
    parts: Sequence[Any] | None = None,
    passes: DropoutPasses | None = None,
) -> Fit:
    """Assemble the fit of trained members, and warn if they are worse than a constant.

    Parameters
    ----------
    estimator, task : estimator, Task
    members, weights : sequence of Member, ndarray
        The mixture.
    calibration : Calibration, optional
        Calibration of the mixture; by default none.
    parts : sequence, optional
        Training and validation rows of each member, if they have rows of their own.
    passes : DropoutPasses, optional
        Masks of MC dropout.
    """
    targets, attributes = task.targets, task.attributes
    # Rows that each member validated on alone; None if they are common to all members.
    parts = None if parts is None or parts[0][1] is None else parts
    if is_classifier(estimator):
        attributes["classes_"] = targets.classes
    elif estimator.loss == "mse":
        scale, noise = _noise(estimator, task, targets, members, weights, parts)
        targets = targets.with_noise(np.maximum(scale, _SMALLEST_NOISE).tolist())
        attributes["noise_std_"] = float(noise[0]) if targets.is_1d else noise
    if task.splits.validates:
        data = task.data
        # Members' predictions of the rows that each validated on, with weights and rows.
        if parts is None:
            raw = np.stack([member.held_out for member in members])
            held_out = [(raw, weights, data.y_valid, data.weight_valid)]
        else:
            held_out = [
                (member.held_out[None], np.ones(1), data.y[rows], weight * data.weight[rows])
                for member, weight, (_, rows) in zip(members, weights, parts)
            ]
        _task.warn_if_worse_than_constant(targets.head, calibration, data, held_out)
        if not is_classifier(estimator):
            levels = [targets.head.levels(y, raw, mix) for raw, mix, y, _ in held_out]
            correlation = fit_correlation(
                np.concatenate(levels),
                np.concatenate([weight for *_, weight in held_out]),
                None if parts is None else np.concatenate([rows for _, rows in parts]),
            )
            calibration = replace(calibration, correlation=correlation)
    ensemble = FittedEnsemble(
        task.inputs, targets, tuple(members), weights, passes, calibration=calibration
    )
    return Fit(ensemble, attributes)


# ------------------------------------------------------------------ noise with loss="mse"


def _check_noise(estimator: Any, n_outputs: int) -> None:
    """Raise ValueError if a given `noise_std` has no effect, or is not one of each output."""
    given, loss, transform = estimator.noise_std, estimator.loss, estimator.target_transform
    try:
        noise = np.broadcast_to(np.asarray(given, dtype=float), n_outputs)
        usable = (noise >= 0).all() and np.isfinite(noise).all()
    except (TypeError, ValueError):
        usable = False
    problems = {
        f'`noise_std` needs loss="mse": with loss={loss!r} networks learn the noise. Got '
        f"noise_std={given!r}.": loss != "mse",
        f"`noise_std` must be None with `target_transform={transform!r}`: it is in units of y, in "
        "which the noise then depends on y. None estimates it. Or use "
        'target_transform="standard".': transform != "standard",
        f"`noise_std` must be a number >= 0, or {n_outputs} of them, one for each output. "
        f"Got {given!r}.": not usable,
    }
    refuse(problems)


def _noise(estimator, task, targets, members, weights, parts):
    """Return the given or estimated noise (n_outputs,), of standardised y and in units of y.

    With a `target_transform`, the second is in units of transformed y.
    """
    given = getattr(estimator, "noise_std", None)
    if given is not None:
        noise = np.broadcast_to(np.array(given, dtype=float), targets.n_outputs)
        return noise / targets.scaling.scale_, noise
    scale = _residual_std(task.data, members, weights, parts)
    return scale, scale if targets.is_transformed else scale * targets.scaling.scale_


def _residual_std(data, members, weights, parts):
    """Compute the root mean squared error (n_outputs,), on held-out rows if there are any.

    It is the error of the ensemble's mean if all members have the same rows, and otherwise the
    root of the members' weighted mean squared errors.
    """
    if parts is not None:
        squares = [
            _mean_square(member.held_out - data.y[rows], data.weight[rows])
            for member, (_, rows) in zip(members, parts)
        ]
        return np.sqrt(np.average(squares, axis=0, weights=weights))
    if len(data.x_valid):
        raw, y, weight = [m.held_out for m in members], data.y_valid, data.weight_valid
    else:
        raw, y, weight = predict_members(members, data.x, cache=False), data.y, data.weight
    return np.sqrt(_mean_square(np.average(raw, axis=0, weights=weights) - y, weight))


def _mean_square(error, weight):
    """Average squares over rows with weights; unweighted if all weights underflow in float32."""
    weight = weight if weight.sum() > 0 else None
    return np.average(np.square(error, dtype=float), axis=0, weights=weight)
