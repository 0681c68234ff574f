"""Train deep ensembles: kinds of networks, weights of members, and calibration."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from skuq import training
from skuq._utils._environment import generator
from skuq.ensembles import stacking_weights
from skuq.estimators._network_estimator import Outcome, TrainingMethod, find_completed
from skuq.networks import GaussianHead, TabularSpace
from skuq.networks._space import Space
from skuq.predictive._calibration import fit_out_of_bag_scale
from skuq.tables import ClassTargets, NumberTargets, TableInputs
from skuq.tables._targets import unpack_copies

#: Values of "auto" for networks other than "tabular".
PLAIN = {
    "learning_rate": 0.01,
    "batch_size": 100,
    "epochs": 1000,
    "early_stopping_patience": 50,
    "schedule": "constant",
    "weight_decay": 0.0,
}

# Values of "auto" with network="tabular" (True) and with other networks (False).
_VALIDATION_FRACTION = {True: 0.1, False: 0.2}
_N_MEMBERS = 5
_N_TABULAR_MEMBERS = {"regressor": 8, "classifier": 9}
_MOST_VALIDATION_ROWS = 10_000  # limits the default of `validation_fraction`
_MOST_CALIBRATION_ROWS = 5_000  # drawn at random if there are more
_PRIOR_ROWS = 100  # weight of equal shares of the kinds, in rows
# Kinds of networks. Which one is best differs between data sets, much more for classes.
_CLASS_KINDS = ({"frequency_scale": 0.3}, {"embedding": "none"}, {"frequency_scale": 3.0})


class _Origin(NamedTuple):
    """Origin of a member of an ensemble of several kinds: its kind of networks and its rows."""

    kind: int  # position of its kind of networks
    split: int  # number of its split of the rows, which it shares with one member of each kind
    part: Any  # its training and validation rows; None if all members have the same rows


class DeepEnsembleMethod(TrainingMethod):
    """Method of deep ensembles: members of one architecture, or of a few kinds, train as stacks."""

    def __init__(self, estimator):
        super().__init__(estimator)
        network = estimator.network
        self.is_tabular = isinstance(network, str) and network == "tabular"
        is_auto = isinstance(estimator.n_members, str)
        default = _N_MEMBERS
        if self.is_tabular:
            default = _N_TABULAR_MEMBERS["classifier" if self.classifies else "regressor"]
        self.n_members = default if is_auto else estimator.n_members
        self.kinds = self._kinds()[: self.n_members]
        self.n_kinds = len(self.kinds)
        self.n_splits = math.ceil(self.n_members / self.n_kinds)
        self.dropout = estimator.dropout or None
        self._defaults = [PLAIN]
        if self.loss == "auto":
            self.loss = "crps" if self.is_tabular else "nll"

    @property
    def validation_fraction(self):
        fraction = self.estimator.validation_fraction
        is_auto = isinstance(fraction, str)
        return _VALIDATION_FRACTION[self.is_tabular] if is_auto else fraction

    def validation_share(self, n_rows):
        fraction = self.validation_fraction
        if not isinstance(self.estimator.validation_fraction, str):
            return fraction
        return min(fraction, _MOST_VALIDATION_ROWS / n_rows)

    def inputs(self):
        return TableInputs(self.estimator.preprocess, embed=self.is_tabular)

    def targets(self):
        n_copies = self.estimator.n_copies
        if self.classifies:
            return ClassTargets(n_copies=n_copies)
        return NumberTargets(self.estimator.target_transform, loss=self.loss, n_copies=n_copies)

    def check_parameters(self):
        """Raise ValueError if parameters contradict each other."""
        estimator = self.estimator
        if estimator.n_copies > 1 and not self.is_tabular:
            raise ValueError(
                '`n_copies` > 1 needs network="tabular". '
                f"Got n_copies={estimator.n_copies} and network={estimator.network!r}."
            )
        if estimator.n_copies > 1 and self.loss == "mse":
            raise ValueError(
                f'loss="mse" needs n_copies=1. Got n_copies={estimator.n_copies}. Use loss="nll".'
            )
        if estimator.network_settings is not None and not self.is_tabular:
            raise ValueError(
                '`network_settings` needs network="tabular". '
                f"Got {estimator.network_settings!r} and network={estimator.network!r}."
            )

    def _kinds(self):
        """List the settings of each kind of networks."""
        settings = self.estimator.network_settings or {}
        if not (self.is_tabular and self.classifies) or "embedding" in settings:
            return [settings]
        kinds = [{**kind, **settings} for kind in _CLASS_KINDS]
        return [kind for k, kind in enumerate(kinds) if kind not in kinds[:k]]

    def build(self, data, splits, inputs, targets):
        """Build the network of each kind, and set the defaults of its training."""
        if not self.is_tabular:
            return [super().build(data, splits, inputs, targets)]
        estimator = self.estimator
        space = TabularSpace(data.x, inputs.n_codes, splits.n_train, self.classifies)
        decisions = sum(space.decisions(), Space())
        configurations = [decisions.check(kind, "network_settings") for kind in self.kinds]
        self._defaults = [space.recipe(configuration) for configuration in configurations]
        shapes = data.x.shape[1:], targets.head.n_raw
        return [space.build(c, *shapes, n_copies=estimator.n_copies) for c in configurations]

    def recipe_fields(self, kind=0):
        given = {name: v for name, v in super().recipe_fields().items() if v != "auto"}
        fields = {**self._defaults[kind], **given}
        if "beta_2" in fields and fields["optimizer"] not in ("adam", "adamax", "nadam"):
            del fields["beta_2"]
        return fields

    def train(self, models, head, data, splits, report):
        """Train the members of each kind; the k-th members of all kinds have the same split."""
        estimator, jobs, origins, deadline = self.estimator, [], [], math.inf
        for kind, model in enumerate(models):
            numbers = range(kind, self.n_members, self.n_kinds)  # of the members of this kind
            own_parts = splits.parts and splits.parts[: len(numbers)]
            if estimator.bootstrap:
                own_parts = self._bootstrap(len(data.x), own_parts, numbers)
            penalties = {"l2": estimator.l2, "adversarial_epsilon": estimator.adversarial_epsilon}
            recipe = self.recipe(splits.validates, kind=kind, **penalties)
            seeds = [self.seeds(1, first=k)[0] for k in numbers]
            fields = {"stacked": True, "splits": own_parts}
            jobs.append(training.TrainingJob.of_model(model, head, recipe, seeds, **fields))
            origins += [
                _Origin(kind, k, part) for k, part in enumerate(own_parts or [None] * len(numbers))
            ]
        if estimator.max_time is not None:
            jobs, deadline = training.shorten(jobs, data, estimator.max_time)
        members = training.train(jobs, data, report=report, deadline=deadline)
        kept = find_completed(members)
        members, origins = [members[k] for k in kept], [origins[k] for k in kept]
        weights = self._weights(members, origins, head, data)
        parts = [origin.part for origin in origins] if splits.parts else None
        return Outcome(members, weights, parts)

    def _weights(self, members, origins, head, data):
        """Weigh the kinds by stacking on validation rows; members of a kind have equal weights."""
        kinds = np.array([origin.kind for origin in origins])
        counts = np.bincount(kinds, minlength=self.n_kinds)
        shares = np.full(self.n_kinds, 1 / self.n_kinds)
        if self.n_kinds > 1 and counts.all() and len(members[0].held_out):
            shares = self._stacked_kinds(members, origins, head, data)
        shares = np.where(counts, shares, 0)
        return (shares / np.maximum(counts, 1))[kinds] / shares.sum()

    def _stacked_kinds(self, members, origins, head, data):
        """Find the shares of the kinds whose mixture has the highest likelihood on held-out rows.

        This is stacking of predictive distributions (Yao et al. 2018). The members with the same
        split, one of each kind, are compared on their common validation rows.
        """
        by_split = {}  # log likelihood and weight of each validation row, by split and kind
        for member, (kind, split, part) in zip(members, origins):
            y, weight = data.y_valid, data.weight_valid
            if part is not None and part[1] is not None:
                _, valid = part
                y, weight = data.y[valid], data.weight[valid]
            found = head.log_likelihood(y, member.held_out), weight
            by_split.setdefault(split, {})[kind] = found
        complete = [kinds for kinds in by_split.values() if len(kinds) == self.n_kinds]
        if not complete:
            return np.full(self.n_kinds, 1 / self.n_kinds)
        log_likelihood = np.concatenate(
            [np.stack([kinds[k][0] for k in range(self.n_kinds)]) for kinds in complete], axis=1
        )
        weight = np.concatenate([kinds[0][1] for kinds in complete])
        # All weights can underflow in float32.
        return stacking_weights(log_likelihood, weight if weight.any() else None)

    def calibrate(self, targets, outcome, data):
        """Calibrate the standard deviation on rows on which some members were not trained."""
        parts, head = outcome.parts, getattr(targets.head, "head", targets.head)  # head of a copy
        if not self.is_tabular or parts is None or not isinstance(head, GaussianHead):
            return targets
        if not self.estimator.calibrate:
            return targets
        unseen = np.zeros((len(parts), len(data.x)), dtype=bool)
        for k, (_, valid) in enumerate(parts):
            unseen[k, valid] = True
        rows = np.flatnonzero(unseen.any(axis=0))
        if len(rows) > _MOST_CALIBRATION_ROWS:
            rng = generator(self.estimator.entropy_, "calibration")
            rows = np.sort(rng.choice(rows, _MOST_CALIBRATION_ROWS, replace=False))
        raw = training.predict_members(outcome.members, data.x[rows])
        _, raw, _ = unpack_copies(targets.head, raw, outcome.weights)
        unseen = np.repeat(unseen[:, rows], len(raw) // len(parts), axis=0)
        predicted = head.distribution(raw)
        factor, floor = fit_out_of_bag_scale(*predicted, unseen, data.y[rows], data.weight[rows])
        return targets.with_calibration(factor, floor)

    def _bootstrap(self, n_rows, parts, numbers):
        """Draw a bootstrap sample of the training rows of each of the members `numbers`."""
        entropy = self.estimator.entropy_
        parts = parts or [(np.arange(n_rows), None)] * len(numbers)
        rngs = [generator(entropy, "bootstrap", k) for k in numbers]
        return [
            (rng.choice(train, size=len(train)), valid) for rng, (train, valid) in zip(rngs, parts)
        ]
