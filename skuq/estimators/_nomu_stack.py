"""Fit several NOMU models together: rows are read once, and networks train in one program."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from skuq._seeds import draw_entropy
from skuq.estimators._base import training_progress
from skuq.estimators._nomu_choice import (
    Evidence,
    check_parameters,
    choose_readout,
    chooses_readout,
    warn_of_few_rows,
)
from skuq.estimators._nomu_fit import Job, NomuTrainer, is_noiseless
from skuq.estimators._nomu_folds import training_parts
from skuq.fitted import FittedNomu
from skuq.fitted._nomu import GivenMean, KnownNoise, NomuNetwork, Readout
from skuq.tables import (
    NoScaling,
    NumberTargets,
    TableInputs,
    check_groups,
    read_rows,
    read_validation_rows,
)

_MIN_ROWS_TO_STOP_EARLY = 100  # with early_stopping="auto"


class NomuData(NamedTuple):
    """Rows of a fit, and how they become numbers.

    Attributes
    ----------
    inputs : TableInputs
        Fitted on `rows`.
    targets : NumberTargets
        Fitted on `rows`.
    rows : Rows
        Rows of positive weight.
    groups : ndarray or None
        Codes of their groups.
    validation : Rows or None
        Held-out rows, if the user gives them.
    """

    inputs: TableInputs
    targets: NumberTargets
    rows: Any
    groups: np.ndarray | None
    validation: Any


@dataclass
class _ModelFit:
    """Fit of one of several models: its jobs, and the networks that these give.

    There is one job for each fold, or one for all rows. The network `final`, of the job
    `final_job`, predicts.
    """

    model: Any
    entropy: int
    jobs: list[Job]
    networks: list[NomuNetwork] = field(default_factory=list)
    final_job: Any = None
    final: Any = None

    @classmethod
    def of(cls, model, data) -> _ModelFit:
        """Plan the fit of a model, by its parameters."""
        entropy = draw_entropy(model.random_state)
        parts = training_parts(model, data.rows, entropy, data.validation, data.groups)
        return cls(model, entropy, [Job.of(model, entropy, *part) for part in parts])

    def readout(self, data, trainer) -> Readout:
        """Take the readout from the parameters, or choose it by the held-out rows."""
        model = self.model
        if not chooses_readout(model):
            return Readout(model.readout, model.bounds, model.l_min, model.l_max, model.c)
        held_out = [
            (network, data.validation if fold.valid is None else data.rows.take(fold.valid))
            for network, fold in zip(self.networks, self.jobs)
        ]
        warn_of_few_rows(model, sum(len(rows.X) for _, rows in held_out))
        seen = data.rows.take(self.final_job.train)
        raw = trainer.raw_between_rows(self.final, self.entropy)
        evidence = Evidence(held_out, self.final, seen, raw)
        return choose_readout(model, evidence, data.inputs, data.targets)


def fit_together(models, X, y, sample_weight, validation_data, groups) -> None:
    """Fit models that differ only in the parameters that `NOMURegressor.fit_many` allows.

    The readout (c, l_min and l_max) turns the raw uncertainty r into standard deviations. Either
    all models choose it on held-out rows or none does. Their fitted attributes are set at the end,
    so that an error leaves every model unfitted.
    """
    first, chooses = models[0], chooses_readout(models[0])
    for model in models:
        check_parameters(model)
    data = _read(first, X, y, sample_weight, validation_data, groups, chooses)
    trainer = _make_trainer(first, data)
    fits = [_ModelFit.of(model, data) for model in models]
    with training_progress(first.verbose) as progress:
        trained = iter(trainer.train([job for fit in fits for job in fit.jobs], progress.epochs))
        for fit in fits:
            fit.networks = [next(trained) for _ in fit.jobs]
            # Without a refit, a model has a single network: on all rows, or on those of one split.
            fit.final_job, fit.final = fit.jobs[0], fit.networks[0]
        # With validation data given, a model has trained on all rows already.
        if chooses and first.refit and data.validation is None:
            jobs = [trainer.refit_job(fit.jobs, fit.networks) for fit in fits]
            for fit, job, network in zip(fits, jobs, trainer.train(jobs, progress.epochs)):
                fit.final_job, fit.final = job, network
    readouts = [fit.readout(data, trainer) for fit in fits]
    for model, fit, readout in zip(models, fits, readouts):
        model.n_features_in_ = first.n_features_in_
        if data.inputs.feature_names is not None:
            model.feature_names_in_ = data.inputs.feature_names
        model.entropy_, model.box_ = fit.entropy, trainer.artificial.box
        model.hidden_units_ = trainer.hidden_units
        model.side_hidden_units_ = trainer.side_hidden_units
        model.fitted_ = FittedNomu(data.inputs, data.targets, fit.final, readout)


def _read(model, X, y, sample_weight, validation_data, groups, chooses) -> NomuData:
    """Validate the arguments of `fit`, and fit inputs and targets on rows of positive weight."""
    inputs = TableInputs(model.preprocess, scaling=None if model.standardize else NoScaling())
    targets = NumberTargets(
        standardize=model.standardize, narrow_constants=model.pretrained is None
    )
    rows = read_rows(model, inputs, targets, X, y, sample_weight, min_rows=2 if chooses else 1)
    groups, used = check_groups(groups, rows.X), rows.used
    if len(used) < 2 and chooses:
        raise ValueError(
            "Training and validation need at least 2 rows of positive weight. "
            f"Got {len(used)} (n_samples={len(rows.X)})."
        )
    if groups is not None:  # names may be of any kind, None included
        groups = pd.factorize(groups, use_na_sentinel=False)[0][used]
    rows, validation = rows.take(used), None
    if validation_data is not None:
        validation = read_validation_rows(model, inputs, targets, validation_data)
    inputs.fit(rows.X, rows.weight)
    targets.fit(rows.y, rows.weight)
    return NomuData(inputs, targets, rows, groups, validation)


def _make_trainer(model, data: NomuData) -> NomuTrainer:
    """Make the trainer that the parameters of a model describe."""
    given = None if model.pretrained is None else GivenMean(model.pretrained)
    if given is not None:
        # A model of encoded columns may know them by any names.
        names = None if data.inputs.encodes else data.inputs.feature_names
        given.check(data.rows.X.shape[1], names)
    stops_early = model.early_stopping
    if stops_early == "auto":
        enough = len(data.rows.X) >= _MIN_ROWS_TO_STOP_EARLY
        stops_early = enough and not model.connect_gradient and not is_noiseless(model)
    noise = None
    if model.noise is not None and not isinstance(model.noise, str):
        noise = KnownNoise(model.noise, data.targets.n_outputs)
    return NomuTrainer(
        model,
        data.rows,
        data.inputs,
        data.targets,
        given=given,
        noise=noise,
        source=_artificial_source(model, data.inputs),
        stops_early=stops_early and chooses_readout(model) and given is None,
        validation=data.validation,
    )


def _artificial_source(model, inputs):
    """Return the parameter `artificial_inputs`; encode the rows of a table as those of X."""
    source = model.artificial_inputs
    has_names, is_table = hasattr(source, "columns"), np.ndim(source) == 2
    if is_table and not has_names and inputs.encodes and inputs.feature_names is not None:
        source = pd.DataFrame(source, columns=inputs.feature_names)
    if has_names or (is_table and inputs.encodes):
        return inputs.encode(inputs.validate(source, model))
    return source
