"""Train NOMU's networks on one table.

The mean f is trained together with the raw uncertainty r, or before it (as when noise is learnt
too), or it is given. Notation: n rows, m outputs, n_sides raw uncertainties of each output.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from scipy import spatial

from skuq import training
from skuq._random import generator, trial_seed
from skuq.estimators.methods._nomu_rows import ArtificialSampler
from skuq.fitted._fitted_nomu import GivenMean, KnownNoise, TrainedNomu, predict_mean
from skuq.networks import GaussianHead, Member, NOMULoss, NOMUNetwork
from skuq.networks._head_nomu import NomuHead
from skuq.networks._nomu_network import build_mean, build_nomu
from skuq.tables import TrainingData
from skuq.tables._inputs import Rows, TableInputs
from skuq.tables._splits import standardise_rows
from skuq.tables._targets import NumberTargets
from skuq.training._network_checks import build_checked, draw_variables, has_diverged, keras_model
from skuq.training._predict import refine

_FULL_BATCH = 2**30  # rows of a batch that takes all rows
_FEW_ROWS = 100  # with fewer rows, or rows without noise, the mean f should interpolate its rows
_HIDDEN_UNITS = {True: (64, 64), False: (50,)}  # key: whether f should interpolate
_DEFAULT_EPOCHS, _MIN_STEPS = 400, {True: 1000, False: 2000}  # key: as above
_NOISELESS_STEPS = 4000  # in fewer r does not close at the rows; with noise f would learn it
_NOISELESS_FACTOR = 10  # of pi_sqr without noise, where Eq. 57 would make it infinite
_N_BAND = 256  # artificial inputs over which a band's width is averaged
_MIN_PATIENCE = 10  # epochs
_MEAN, _SIDE = 1, 2  # purposes of seeds; 0 is for networks that are trained in one step


class Setup(NamedTuple):
    """Rows of one network, and the number of epochs of its mean.

    Attributes
    ----------
    train : ndarray
        Positions of the rows to train on.
    valid : ndarray or None
        Positions of the held-out rows, on which f may stop early.
    mean_epochs : int or None
        Number of epochs of f if that is trained first; None for the trainer's own number.
    """

    train: np.ndarray
    valid: np.ndarray | None = None
    mean_epochs: int | None = None


def precision(noise: np.ndarray) -> np.ndarray:
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


@dataclass(frozen=True, eq=False)
class NomuTrainer:
    """Trains NOMU's networks on one table.

    Attributes
    ----------
    rows : Rows
        All rows that may train.
    inputs, targets : TableInputs, NumberTargets
        Fitted encodings.
    network : NOMUNetwork
        Networks of f and r.
    loss : NOMULoss
        Loss of r.
    sampler : ArtificialSampler
        Artificial inputs of r's loss.
    recipe : dict
        Fields of the recipes that are given: optimizer, schedule, clip_norm.
    entropy : int
        Seed of all random numbers.
    learning_rate : float
    batch_size : int or None
        Number of rows of a batch; None takes all rows.
    epochs : int or None
        Number of epochs; None makes enough steps.
    noiseless : bool
        Whether the data have no noise.
    validation : Rows or None
        The user's held-out rows, on which f may stop early.
    patience : int, "auto" or None
        Epochs without improvement after which f stops, which is then trained before r. "auto" is
        an eighth of the epochs. None does not stop early.
    n_sides : {1, 2}
        Number of uncertainties of each output.
    learns_noise : bool
        Whether f is trained with a Gaussian likelihood, before r.
    refines : bool
        Whether f is trained before r, and refined in double precision.
    given : GivenMean or None
        Model in place of f.
    noise : KnownNoise or None
        Known noise, which weighs the rows.
    """

    rows: Rows
    inputs: TableInputs
    targets: NumberTargets
    network: NOMUNetwork
    loss: NOMULoss
    sampler: ArtificialSampler
    recipe: Mapping[str, Any]
    entropy: int
    learning_rate: float
    batch_size: int | None
    epochs: int | None
    noiseless: bool
    validation: Rows | None = None
    patience: Any = None
    n_sides: int = 1
    learns_noise: bool = False
    refines: bool = False
    given: GivenMean | None = None
    noise: KnownNoise | None = None

    @property
    def interpolates(self) -> bool:
        """Whether f should interpolate its rows; some defaults depend on it."""
        return len(self.rows.X) < _FEW_ROWS or self.noiseless

    @property
    def head(self) -> NomuHead:
        """Loss of the network of r, which holds f too if they train together."""
        mean_first = self.learns_noise or self.patience is not None or self.refines
        return NomuHead(
            self.targets.n_outputs,
            with_mean=self.given is None and not mean_first,
            n_sides=self.n_sides,
            stable=self.loss.stable,
            detached=None if self.network.connect_gradient else NomuHead.detached,
        )

    def train(self, setups: Sequence[Setup], report: Callable | None) -> list[TrainedNomu]:
        """Train a network for each setup, side by side where possible."""
        means: list[Any] = [None] * len(setups)
        if not setups:
            return []
        # One step: f and r train together, or f is given and r trains alone.
        if self.head.with_mean or self.given is not None:
            members = self._train_together(setups, report)
        else:
            means = self._train_means(setups, report)
            # The loss of r may depend on errors and noise of its mean f. Then each network trains
            # by itself.
            if self.learns_noise or self.n_sides == 2:
                members = [
                    self._train_side(setup, mean, report) for setup, mean in zip(setups, means)
                ]
            else:
                members = self._train_together(setups, report, means)
        _check_completed(members)
        return [
            TrainedNomu(self.head, member, mean, self.given, self.noise)
            for member, mean in zip(members, means)
        ]

    def refit_setup(self, networks: Sequence[TrainedNomu]) -> Setup:
        """Make the setup for all rows; f trains for the mean of the folds' best epochs."""
        epochs = None
        # Without held-out rows f cannot stop by itself.
        if self.patience is not None:
            best = [network.mean_member.best_epoch + 1 for network in networks]  # type: ignore[union-attr]
            epochs = round(float(np.mean(best)))
        return Setup(np.arange(len(self.rows.X)), mean_epochs=epochs)

    def draw_between_rows(self, network: TrainedNomu) -> tuple[np.ndarray, ...]:
        """Predict the raw uncertainty (256, n_sides * m) of a network at artificial inputs.

        Also returns the distances (256,) of these inputs to the nearest row, standardised.
        """
        x = self.sampler(_N_BAND, generator(self.entropy, "band"))
        rows = self.inputs.transform(self.rows.X)
        distance = spatial.cKDTree(rows).query(x)[0]
        return network.head.split(training.predict_members([network.member], x)[0])[1], distance

    def _train_means(self, setups: Sequence[Setup], report: Callable | None) -> list[Member]:
        """Train the mean f, and the noise if that is learnt, as the first of two steps."""
        n_outputs, stops_early = self.targets.n_outputs, self.patience is not None
        # A head without sides has term (a) of the loss only.
        gaussian = GaussianHead(n_outputs)
        head = gaussian if self.learns_noise else NomuHead(n_outputs, n_sides=0)
        seed = trial_seed(self.entropy, _MEAN)
        template, start = self._templates(
            setups, seed, lambda linear: self._mean_template(head.n_raw, linear)
        )
        data = self._data(
            self.rows,
            self.targets.transform(self.rows.y),
            validation=self.validation if stops_early else None,
        )
        members = self._train_stacks(
            setups,
            report,
            template,
            head,
            [self._mean_recipe(setup) for setup in setups],
            data,
            seed,
            start=start,
            validates=stops_early,
        )
        _check_completed(members)
        if not self.refines:
            return members
        # Refinement goes on with the rows in float32 that the training has seen.
        rows = [
            (data.x[setup.train], data.y[setup.train], data.weight[setup.train]) for setup in setups
        ]
        return [refine(member, x, y, weight) for member, (x, y, weight) in zip(members, rows)]

    def _train_together(
        self,
        setups: Sequence[Setup],
        report: Callable | None,
        means: Sequence[Member] | None = None,
    ) -> list[Any]:
        """Train the uncertainty r on top of the mean f, or both at once, on common targets."""
        if self.given is not None:
            # The loss of r takes the errors of f where f is not part of the network.
            mean = self.given(self.rows.X, self.targets.n_outputs)
            y = (self.rows.y - mean) / self.targets.scaling.scale_
        else:
            y = self.targets.transform(self.rows.y)
        seed = trial_seed(self.entropy, 0)
        if means is None:
            template, start = self._templates(
                setups, seed, lambda linear: self._template(linear=linear)
            )
        else:
            # Each template holds its own frozen mean f. They differ in weights only, which are in
            # `start`.
            start = []
            for member in means:
                template = self._template(member)
                start.append(draw_variables(template, trial_seed(self.entropy, _SIDE)))
        return self._train_stacks(
            setups,
            report,
            template,
            self.head,
            [self._recipe(setup) for setup in setups],
            self._data(self.rows, y),
            seed,
            start=start,
        )

    def _templates(self, setups: Sequence[Setup], seed: int, build: Callable) -> tuple:
        """Build a template that holds f, and the first weights of each setup or None.

        They are the same, unless f has a linear part: then each setup has its own, of the rows that
        it trains on, with the penalty that leave-one-out errors of all rows choose.
        """
        return build(None), None

    def _train_side(self, setup: Setup, mean: Member, report: Callable | None) -> Any:
        """Train the uncertainty r on top of one mean f, whose errors and noise weigh the rows."""
        rows = self.rows.take(setup.train)
        loc, noise = predict_mean(mean, self.inputs.transform(rows.X), self.targets.n_outputs)
        weight = None if noise is None else precision(noise)
        # The rows of the setup are all rows of these data.
        return self._train_stacks(
            [setup._replace(train=np.arange(len(rows.X)), valid=None)],
            report,
            self._template(mean),
            self.head,
            [self._recipe(setup)],
            self._data(rows, self.targets.transform(rows.y) - loc, weight),
            trial_seed(self.entropy, 0),
        )[0]

    def _train_stacks(
        self, setups, report, template, head, recipes, data, seed, *, start=None, validates=False
    ):
        """Train a network for each setup; setups of as many rows and epochs share a program."""
        members: list[Any] = [None] * len(setups)
        sizes = [(len(setup.train), recipe.epochs) for setup, recipe in zip(setups, recipes)]
        for size in sorted(set(sizes)):
            positions = [k for k in range(len(setups)) if sizes[k] == size]
            job = training.TrainingJob.of_model(
                template,
                head,
                [recipes[k] for k in positions],
                [seed] * len(positions),
                stacked=True,
                splits=[
                    (setups[k].train, setups[k].valid if validates else None) for k in positions
                ],
                start=None if start is None else [start[k] for k in positions],
                artificial=self.sampler,
            )
            for k, member in zip(positions, training.train(job, data, report=report)):
                members[k] = member
        return members

    def _data(
        self,
        rows: Rows,
        y: np.ndarray,
        weight: np.ndarray | None = None,
        validation: Rows | None = None,
    ) -> TrainingData:
        """Make training data of rows, their standardised targets and weights by their noise.

        Without `weight` the known noise weighs the rows, if there is any.
        """
        if weight is None:
            weight = np.ones(len(rows.X)) if self.noise is None else precision(self.noise(rows.X))
        x, weight = self.inputs.transform(rows.X), rows.weight * weight
        if validation is None:
            return TrainingData.without_validation(x, y, weight)
        held_out = standardise_rows(validation, self.inputs, self.targets)
        return TrainingData(x, y, weight, *held_out)

    @property
    def _common_settings(self) -> dict[str, Any]:
        """Settings that the networks of f alone and of f and r have in common."""
        network = self.network
        return {
            "hidden_units": network.units(_HIDDEN_UNITS[self.interpolates])[0],
            "activation": network.activation,
            "l2": float(self.loss.l2),  # Keras takes no numbers of NumPy
            "initial_range": network.initial_range,
            "mean_network": network.mean,
        }

    def _template(self, mean: Member | None = None, linear: Any = None) -> Any:
        """Build the network of the uncertainty r, which contains the layers of the mean f.

        `linear` is a frozen part of f. The layers of f are frozen if f is trained already: as
        `mean`, or as the parameter `pretrained`.
        """
        # A given f is a triple: its model takes ``x * scale + offset``, where x is standardised.
        given: Any = None
        if mean is not None:
            given = keras_model(mean), 1.0, 0.0
        elif self.given is not None and not (self.given.is_keras and self.network.connect_layers):
            given = "apart"
        elif self.given is not None:  # it takes encoded rows, and the network standardised ones
            scaling = self.inputs.scaling
            given = self.given.model, scaling.scale_.tolist(), scaling.mean_.tolist()
        network, head, common = self.network, self.head, self._common_settings

        def build(input_shape, n_raw):
            return build_nomu(
                input_shape,
                head.n_outputs,
                **common,
                side_hidden_units=network.units(_HIDDEN_UNITS[self.interpolates])[1],
                connect_layers=network.connect_layers,
                n_sides=head.n_sides,
                side_l2=float(self.loss.side_l2),
                side_network=network.side,
                given=given,
                sample=None if self.given is None else self.inputs.transform(self.rows.X),
                linear=linear,
            )

        return build_checked(build, self.rows.X.shape[1:], head.n_raw, "NOMU's network")

    def _mean_template(self, n_raw: int, linear: Any = None) -> Any:
        """Build the network of the mean f alone, with a frozen linear part if there is one."""
        if linear is not None:
            # The noise has no linear part.
            kernel, bias = linear
            linear = (
                np.pad(kernel, [(0, 0), (0, n_raw - len(bias))]),
                np.pad(bias, (0, n_raw - len(bias))),
            )
        build = functools.partial(build_mean, linear=linear, **self._common_settings)
        source = "NOMU's network of the mean"
        return build_checked(build, self.rows.X.shape[1:], n_raw, source)

    def _mean_recipe(self, setup: Setup) -> Any:
        """Make the recipe of f, which stops early or trains for the epochs of the setup."""
        recipe = self._recipe(setup)
        # The loss of f has no term for artificial inputs.
        changes: dict[str, Any] = {"n_artificial": 0, "loss_settings": ()}
        if setup.mean_epochs is not None:
            changes["epochs"] = setup.mean_epochs
        elif self.patience is not None:
            patience = self.patience
            if isinstance(patience, str):
                patience = max(_MIN_PATIENCE, recipe.epochs // 8)
            changes["early_stopping_patience"] = patience
        return replace(recipe, **changes)

    def _recipe(self, setup: Setup) -> Any:
        """Make the recipe of r, or of f and r together."""
        epochs = self.epochs
        if epochs is None:  # few rows get enough steps
            n_batches = -(-len(setup.train) // (self.batch_size or len(setup.train)))
            n_steps = _NOISELESS_STEPS if self.noiseless else _MIN_STEPS[self.interpolates]
            epochs = max(_DEFAULT_EPOCHS, -(-n_steps // n_batches))
        # The learning rate falls if f should interpolate, and does not stop early.
        falls = self.interpolates and self.patience is None
        fields = {
            "schedule": "cosine" if falls else "constant",
            "clip_norm": 1.0,
            "reduce_lr_patience": None,
            "early_stopping_patience": None,
            **self.recipe,
        }
        weights = {name: float(getattr(self.loss, name)) for name in ("pi_sqr", "pi_exp", "c_exp")}
        if self.noiseless:
            weights["pi_sqr"] *= _NOISELESS_FACTOR
        return training.Recipe(
            learning_rate=self.learning_rate,
            batch_size=_FULL_BATCH if self.batch_size is None else self.batch_size,
            epochs=epochs,
            n_artificial=self.sampler.n_each,
            loss_settings=tuple(weights.items()),
            **fields,
        )


def _check_completed(members: Sequence[Any]) -> None:
    """Raise FloatingPointError if a network diverged."""
    wild = [member for member in members if has_diverged(member)]
    if wild:
        reason = f" ({wild[0]})" if isinstance(wild[0], FloatingPointError) else ""
        raise FloatingPointError(
            f"{len(wild)} of {len(members)} networks diverged{reason}. Try a smaller "
            "`learning_rate`, smaller `pi_sqr`, `pi_exp` or `c_exp`, or leave `clip_norm` and "
            "`stable` at their defaults."
        )
