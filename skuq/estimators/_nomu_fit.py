"""Train NOMU's networks on one table.

The mean f is trained together with the raw uncertainty r, or before it (as when noise is learnt
too), or it is given. Notation: n rows, m outputs, n_sides raw uncertainties of each output.
"""

from __future__ import annotations

from numbers import Real
from typing import Any, NamedTuple

import numpy as np

from skuq import training
from skuq._seeds import generator, trial_seed
from skuq.estimators._artificial import ArtificialInputs
from skuq.fitted._nomu import NomuNetwork, predict_mean
from skuq.networks import GaussianHead, NomuHead, build_mean, build_nomu
from skuq.networks._mlp import check_units
from skuq.tables import TrainingData
from skuq.tables._splits import standardise_rows
from skuq.training._members import has_diverged

_FULL_BATCH = 2**30  # rows of a batch that takes all rows
_FEW_ROWS = 100  # with fewer rows, or rows without noise, the mean f should interpolate its rows
_HIDDEN_UNITS = {True: (64, 64), False: (50,)}  # key: whether f should interpolate
_DEFAULT_EPOCHS, _MIN_STEPS = 400, {True: 1000, False: 2000}  # key: as above
# Smallest and largest default of `box_margin`, as a share of each range. Between them it is three
# mean distances of uniform rows: in 95 % of samples the gap beyond the outermost row is smaller.
_MIN_MARGIN, _MAX_MARGIN, _MARGIN_SPACINGS = 0.05, 1.0, 3
_NOISELESS_FACTOR = 10  # of pi_sqr without noise, where Eq. 57 would make it infinite
_N_BAND = 256  # artificial inputs over which a band's width is averaged
_MIN_PATIENCE = 10  # epochs
_MEAN, _SIDE = 1, 2  # purposes of seeds; 0 is for networks that are trained in one step


class Job(NamedTuple):
    """One network to train, with everything in which networks of one program may differ.

    Attributes
    ----------
    entropy : int
        Seed of all random numbers.
    learning_rate : float
    loss_settings : tuple of (str, float)
        Weights of the terms of the loss.
    train : ndarray
        Positions of the rows to train on.
    valid : ndarray or None
        Positions of the held-out rows, on which f may stop early.
    mean_epochs : int or None
        Number of epochs of f if that is trained first; None for the trainer's own number.
    """

    entropy: int
    learning_rate: float
    loss_settings: tuple[tuple[str, float], ...]
    train: np.ndarray
    valid: np.ndarray | None = None
    mean_epochs: int | None = None

    @classmethod
    def of(cls, model, entropy, train, valid) -> Job:
        """Make the job of a model, by its parameters."""
        weights = {name: float(getattr(model, name)) for name in ("pi_sqr", "pi_exp", "c_exp")}
        if is_noiseless(model):
            weights["pi_sqr"] *= _NOISELESS_FACTOR
        return cls(entropy, model.learning_rate, tuple(weights.items()), train, valid)


def is_noiseless(model) -> bool:
    """Tell whether the parameters say that the data have no noise."""
    return isinstance(model.noise, Real) and model.noise == 0


def should_interpolate(model, n_rows: int) -> bool:
    """Tell whether the mean f should interpolate its rows, as they are few or have no noise."""
    return n_rows < _FEW_ROWS or is_noiseless(model)


def default_margin(n_rows: int) -> float:
    """Compute how far the default box reaches beyond the rows, as a share of each range.

    Of n uniform rows the outermost are about 1 / (n - 1) of their range away from the ends.
    """
    return max(_MIN_MARGIN, min(_MARGIN_SPACINGS / max(n_rows - 1, 1), _MAX_MARGIN))


def precision(noise) -> np.ndarray:
    """Compute weights (n,) of rows from their noise (n, m): Eq. 57, rescaled.

    Eq. 57 divides the terms (a) and (b) of Eq. 4 by 2 noise**2; pi_exp and the L2 penalties are
    divided by a constant of that size too. Multiplied by it, the loss is Eq. 4 with rows weighted
    by 1 / noise**2, scaled to a mean of 1; with constant noise it is Eq. 4 itself. With several
    outputs a row gets the mean of their weights. Noise below a hundredth of the median counts as
    a hundredth.
    """
    # The median of each output's noise; zeros are left out, and become a hundredth of it.
    typical = [np.median(column[column > 0]) if column.any() else 1.0 for column in noise.T]
    weights = 1 / np.maximum(noise / typical, 1e-2) ** 2
    return (weights / weights.mean(axis=0)).mean(axis=1)


class NomuTrainer:
    """Trains NOMU's networks on one table.

    Parameters
    ----------
    model : NOMURegressor
        Its parameters are read, nothing is set.
    rows : Rows
        All rows that may train.
    inputs : Inputs
        Fitted.
    targets : NumberTargets
        Fitted.
    given : GivenMean or None
    noise : KnownNoise or None
    source : {"uniform", "grid"}, callable or ndarray
        Source of artificial inputs, as in `ArtificialInputs`.
    stops_early : bool
        Whether f trains first and stops when its held-out rows improve no more.
    validation : Rows or None
        Held-out rows that are not among `rows`.

    Attributes
    ----------
    interpolates : bool
        Whether f should interpolate its rows; some defaults depend on it.
    hidden_units, side_hidden_units : list of int
    artificial : ArtificialInputs
    head : NomuHead
    """

    def __init__(
        self, model, rows, inputs, targets, *, given, noise, source, stops_early, validation
    ):
        self.model, self.inputs, self.targets = model, inputs, targets
        self.given, self.noise = given, noise
        self.rows, self.stops_early = rows, stops_early
        self.validation = validation if stops_early else None
        self.n_outputs = targets.n_outputs
        self.interpolates = should_interpolate(model, len(rows.X))
        units = model.hidden_units
        if isinstance(units, str):
            units = _HIDDEN_UNITS[self.interpolates]
        self.hidden_units = check_units("hidden_units", units)
        side = model.side_hidden_units
        self.side_hidden_units = (
            self.hidden_units if side is None else check_units("side_hidden_units", side)
        )
        margin = model.box_margin
        if isinstance(margin, str):
            margin = default_margin(len(rows.X))
        self.artificial = ArtificialInputs(
            source, model.n_artificial, model.box, margin, rows.X, inputs.scaling
        )
        self.learns_noise = isinstance(model.noise, str)
        self.head = NomuHead(
            self.n_outputs,
            with_mean=given is None and not (self.learns_noise or stops_early or model.refine),
            n_sides=1 + (model.bounds == "asymmetric"),
            stable=model.stable_loss,
            detached=None if model.connect_gradient else NomuHead.detached,
        )

    def train(self, jobs, report) -> list[NomuNetwork]:
        """Train a network for each job, side by side where possible."""
        if not jobs:
            return []
        if self.head.with_mean or self.given is not None:
            return self._networks(self._train_together(jobs, report), [None] * len(jobs))
        means = self._train_means(jobs, report)
        # The loss of the uncertainty r may depend on errors and noise of its mean f. Then each
        # network trains by itself.
        if self.learns_noise or self.head.n_sides == 2:
            sides = [self._train_side(job, mean, report) for job, mean in zip(jobs, means)]
        else:
            sides = self._train_together(jobs, report, means)
        return self._networks(sides, means)

    def refit_job(self, jobs, networks) -> Job:
        """Make the job that trains on all rows; f trains for the mean of the folds' best epochs."""
        epochs = None
        if self.stops_early:
            best = [network.mean_member.best_epoch + 1 for network in networks]
            epochs = round(float(np.mean(best)))
        return jobs[0]._replace(train=np.arange(len(self.rows.X)), valid=None, mean_epochs=epochs)

    def raw_between_rows(self, network, entropy) -> np.ndarray:
        """Predict the raw uncertainty (256, n_sides * m) of a network at artificial inputs."""
        x = self.artificial(_N_BAND, generator(entropy, "band"))
        return network.head.split(training.predict_members([network.member], x)[0])[1]

    def _networks(self, members, mean_members):
        _check_completed(members)
        return [
            NomuNetwork(self.head, member, mean, self.given, self.noise)
            for member, mean in zip(members, mean_members)
        ]

    def _train_means(self, jobs, report):
        """Train the mean f, and the noise if that is learnt, as the first of two steps."""
        gaussian = GaussianHead(self.n_outputs)
        head = gaussian if self.learns_noise else NomuHead(self.n_outputs, n_sides=0)
        targets = self.targets.transform(self.rows.y)
        data = self._data(targets, self.rows.weight * self._precision(self.rows.X), self.validation)
        recipes = [self._mean_recipe(job) for job in jobs]
        template = training.build_checked(
            self._build_mean, self.rows.X.shape[1:], head.n_raw, "NOMU's network of the mean"
        )
        seeds = [trial_seed(job.entropy, _MEAN) for job in jobs]
        members = self._train_stacks(
            jobs, report, template, head, recipes, data, seeds, validates=self.stops_early
        )
        _check_completed(members)
        if not self.model.refine:
            return members
        rows = [(data.x[job.train], data.y[job.train], data.weight[job.train]) for job in jobs]
        return [
            training.refine_dense(member, x, y, weight)
            for member, (x, y, weight) in zip(members, rows)
        ]

    def _train_together(self, jobs, report, means=None):
        """Train the uncertainty r on top of the mean f, or both at once, on common targets."""
        if self.given is not None:
            mean = self.given(self.rows.X, self.n_outputs)
            targets = (self.rows.y - mean) / self.targets.scaling.scale_
        else:
            targets = self.targets.transform(self.rows.y)
        data = self._data(targets, self.rows.weight * self._precision(self.rows.X))
        if means is None:
            template, start = self._template(), None
        else:
            # Each template holds its own frozen mean f. They differ in weights only, which are in
            # `start`.
            start = []
            for job, mean in zip(jobs, means):
                template = self._template(mean)
                start.append(training.draw_variables(template, trial_seed(job.entropy, _SIDE)))
        recipes = [self._recipe(job) for job in jobs]
        seeds = [trial_seed(job.entropy, 0) for job in jobs]
        return self._train_stacks(
            jobs, report, template, self.head, recipes, data, seeds, start=start
        )

    def _train_side(self, job, mean, report):
        """Train the uncertainty r on top of one mean f, whose errors and noise weigh the rows."""
        rows = self.rows.take(job.train)
        loc, noise = predict_mean(mean, self.inputs.transform(rows.X), self.n_outputs)
        weight = rows.weight * self._precision(rows.X)
        if noise is not None:
            weight = rows.weight * precision(noise)
        data = self._data(self.targets.transform(rows.y) - loc, weight, rows=rows)
        alone = [job._replace(train=np.arange(len(rows.X)), valid=None)]
        seeds = [trial_seed(job.entropy, 0)]
        return self._train_stacks(
            alone, report, self._template(mean), self.head, [self._recipe(job)], data, seeds
        )[0]

    def _train_stacks(
        self, jobs, report, template, head, recipes, data, seeds, *, start=None, validates=False
    ):
        """Train a network for each job; jobs of as many rows and epochs share a program."""
        members: list[Any] = [None] * len(jobs)
        sizes = [(len(job.train), recipe.epochs) for job, recipe in zip(jobs, recipes)]
        for size in sorted(set(sizes)):
            positions = [k for k in range(len(jobs)) if sizes[k] == size]
            trained = training.train_stack(
                template,
                head,
                [recipes[k] for k in positions],
                data,
                [seeds[k] for k in positions],
                splits=[(jobs[k].train, jobs[k].valid if validates else None) for k in positions],
                start=None if start is None else [start[k] for k in positions],
                artificial=self.artificial,
                report=report,
            )
            for k, member in zip(positions, trained):
                members[k] = member
        return members

    def _precision(self, X):
        """Compute weights (n,) of rows by their known noise."""
        if self.noise is None:
            return np.ones(len(X))
        return precision(self.noise(X))

    def _data(self, targets, weight, validation=None, rows=None):
        x = self.inputs.transform((rows or self.rows).X)
        if validation is None:
            return TrainingData.without_validation(x, targets, weight)
        return TrainingData(
            x, targets, weight, *standardise_rows(validation, self.inputs, self.targets)
        )

    def _template(self, mean=None):
        """Build the network of the uncertainty r, which contains the layers of the mean f.

        They are frozen if f is trained already: as `mean`, or as the parameter `pretrained`.
        """
        model, given = self.model, None
        if mean is not None:
            given = training.keras_model(mean), 1.0, 0.0
        elif self.given is not None and not self.given.shows_layers:
            given = "apart"
        elif self.given is not None:  # it takes encoded rows, and the network standardised ones
            scaling = self.inputs.scaling
            given = self.given.model, scaling.scale_.tolist(), scaling.mean_.tolist()

        def build(input_shape, n_raw):
            return build_nomu(
                input_shape,
                self.n_outputs,
                hidden_units=self.hidden_units,
                side_hidden_units=self.side_hidden_units,
                activation=model.activation,
                connect_layers=model.connect_layers,
                n_sides=self.head.n_sides,
                l2=float(model.l2),  # Keras takes no numbers of NumPy
                side_l2=float(model.side_l2),
                initial_range=model.initial_range,
                build_f=model.build_f,
                build_r=model.build_r,
                given=given,
                sample=None if self.given is None else self.inputs.transform(self.rows.X),
            )

        input_shape = self.rows.X.shape[1:]
        return training.build_checked(build, input_shape, self.head.n_raw, "NOMU's network")

    def _build_mean(self, input_shape, n_raw):
        model = self.model
        return build_mean(
            input_shape,
            n_raw,
            hidden_units=self.hidden_units,
            activation=model.activation,
            l2=float(model.l2),
            initial_range=model.initial_range,
            build_f=model.build_f,
        )

    def _epochs(self, job):
        """Resolve the parameter `epochs`; by default few rows get enough steps."""
        if self.model.epochs is not None:
            return self.model.epochs
        n_batches = -(-len(job.train) // (self.model.batch_size or len(job.train)))
        return max(_DEFAULT_EPOCHS, -(-_MIN_STEPS[self.interpolates] // n_batches))

    def _schedule(self):
        """Resolve `schedule`: the rate falls if f should interpolate and does not stop early."""
        if self.model.schedule != "auto":
            return self.model.schedule
        return "cosine" if self.interpolates and not self.stops_early else "constant"

    def _mean_recipe(self, job):
        changes = {"n_artificial": 0, "loss_settings": ()}
        if job.mean_epochs is not None:
            changes["epochs"] = job.mean_epochs
        elif self.stops_early:
            changes["early_stopping_patience"] = max(_MIN_PATIENCE, self._epochs(job) // 8)
        return self._recipe(job, **changes)

    def _recipe(self, job, **changes):
        """Make the training recipe of a job, with these fields changed."""
        model = self.model
        settings = {
            "optimizer": model.optimizer,
            "learning_rate": job.learning_rate,
            "batch_size": _FULL_BATCH if model.batch_size is None else model.batch_size,
            "epochs": self._epochs(job),
            "schedule": self._schedule(),
            "reduce_lr_patience": None,
            "early_stopping_patience": None,
            "clip_norm": model.clip_norm,
            "n_artificial": self.artificial.n_each,
            "loss_settings": job.loss_settings,
        }
        return training.Recipe(**{**settings, **changes})


def _check_completed(members):
    wild = [member for member in members if has_diverged(member)]
    if wild:
        reason = f" ({wild[0]})" if isinstance(wild[0], FloatingPointError) else ""
        raise FloatingPointError(
            f"{len(wild)} of {len(members)} networks diverged{reason}. Try a smaller "
            "`learning_rate`, smaller `pi_sqr`, `pi_exp` or `c_exp`, `clip_norm=1.0` or "
            "`stable_loss=True`."
        )
