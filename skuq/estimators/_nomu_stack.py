"""Fits of NOMU models side by side: rows are read once and networks train in one program."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from skuq._seeds import draw_entropy
from skuq.estimators._network_estimator import training_progress
from skuq.estimators._nomu_choice import (
    Evidence,
    check_parameters,
    choose_readout,
    is_to_choose,
    warn_of_few_rows,
)
from skuq.estimators._nomu_fit import Job, NomuTrainer, is_noiseless
from skuq.estimators._nomu_folds import MIN_ROWS_TO_STOP_EARLY, training_parts
from skuq.fitted import FittedNomu
from skuq.fitted._nomu import GivenMean, KnownNoise, Readout
from skuq.tables import (
    NoScaling,
    NumberTargets,
    TableInputs,
    check_groups,
    read_rows,
    read_validation_rows,
)


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


def fit_side_by_side(models, X, y, sample_weight, validation_data, groups) -> None:
    """Fit models that differ only in the parameters that `NOMURegressor.fit_many` allows.

    Either all of them choose a readout or none does. They get their fitted attributes at the end.
    """
    first, chooses = models[0], is_to_choose(models[0])
    for model in models:
        check_parameters(model)
    data = _read(first, X, y, sample_weight, validation_data, groups, chooses)
    entropies = [draw_entropy(model.random_state) for model in models]
    trainer = _make_trainer(first, data)
    jobs_of_models = []  # one job for each fold, or one for all rows
    for model, entropy in zip(models, entropies):
        parts = training_parts(model, data.rows, entropy, data.validation, data.groups)
        jobs_of_models.append([Job.of(model, entropy, *part) for part in parts])
    with training_progress(first.verbose) as progress:
        trained = iter(trainer.train(sum(jobs_of_models, []), progress.epochs))
        networks_of_models = [[next(trained) for _ in jobs] for jobs in jobs_of_models]
        final_jobs = [jobs[0] for jobs in jobs_of_models]
        final = [networks[0] for networks in networks_of_models]
        # With validation data given, a model has trained on all rows already.
        if chooses and first.refit and data.validation is None:
            pairs = zip(jobs_of_models, networks_of_models)
            final_jobs = [trainer.refit_job(*pair) for pair in pairs]
            final = trainer.train(final_jobs, progress.epochs)
    for k, (model, entropy, network) in enumerate(zip(models, entropies, final)):
        readout = Readout(model.readout, model.bounds, model.l_min, model.l_max, model.c)
        if chooses:
            held_out = [
                (own, data.validation if job.valid is None else data.rows.take(job.valid))
                for own, job in zip(networks_of_models[k], jobs_of_models[k])
            ]
            warn_of_few_rows(model, sum(len(rows.X) for _, rows in held_out))
            seen = data.rows.take(final_jobs[k].train)
            raw = trainer.raw_between_rows(network, entropy)
            evidence = Evidence(held_out, network, seen, raw)
            readout = choose_readout(model, evidence, data.inputs, data.targets)
        model.n_features_in_ = first.n_features_in_
        if data.inputs.feature_names is not None:
            model.feature_names_in_ = data.inputs.feature_names
        model.entropy_, model.box_ = entropy, trainer.artificial.box
        model.hidden_units_ = trainer.hidden_units
        model.side_hidden_units_ = trainer.side_hidden_units
        model.fitted_ = FittedNomu(data.inputs, data.targets, network, readout)


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
        enough = len(data.rows.X) >= MIN_ROWS_TO_STOP_EARLY
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
        stops_early=stops_early and is_to_choose(model) and given is None,
        validation=data.validation,
    )


def _artificial_source(model, inputs):
    """Return the parameter `artificial_inputs`; a table's rows are encoded as X is."""
    source = model.artificial_inputs
    has_names, is_table = hasattr(source, "columns"), np.ndim(source) == 2
    if is_table and not has_names and inputs.encodes and inputs.feature_names is not None:
        source = pd.DataFrame(source, columns=inputs.feature_names)
    if has_names or (is_table and inputs.encodes):
        return inputs.encode(inputs.validate(source, model))
    return source
