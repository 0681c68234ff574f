"""Train NOMU's networks on one table: the trainer, and the artificial inputs of r's loss.

The mean f is trained together with the raw uncertainty r, or before it (as when noise is learnt
too), or it is given. Notation: n rows, m outputs, n_sides raw uncertainties of each output.

Defaults that depend on the rows were chosen on toy functions of eight rows and on UCI tables; see
"Few rows" in docs/methods/nomu.md.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from scipy import spatial
from sklearn.utils.validation import check_array

from skuq import training
from skuq._random import generator, trial_seed
from skuq.estimators._task import Task
from skuq.fitted._fitted_nomu import GivenMean, KnownNoise, TrainedNomu, predict_mean
from skuq.networks import ArtificialInputs, GaussianHead, Member, NOMULoss, NOMUNetwork
from skuq.networks._heads import NomuHead
from skuq.networks._nomu_network import build_mean, build_nomu
from skuq.tables import TrainingData
from skuq.tables._columns import is_frame
from skuq.tables._inputs import Rows, TableInputs
from skuq.tables._scaling import Scaling, Weights
from skuq.tables._splits import standardise_rows
from skuq.training._network_checks import build_checked, draw_variables, keras_model
from skuq.training._predict import refine
from skuq.training._train import has_diverged

#: Rows that train a network, and those that are held out from it or None, as positions.
Part = tuple[np.ndarray, np.ndarray | None]

FEW_ROWS = 100  # with fewer rows, or rows without noise, the mean f should interpolate its rows
_FULL_BATCH = 2**30  # rows of a batch that takes all rows, in their order
_HIDDEN_UNITS = {True: (64, 64), False: (50,)}  # whether f should interpolate: units; 50 as on UCI
_UCI_EPOCHS = 400  # appendix B.2.7
_FEWEST_STEPS = {True: 1000, False: 2000}  # whether f should interpolate: steps at least
_NOISELESS_STEPS = 4000  # after 1000 r at the rows is 0.4 times its median elsewhere, not 0.14
_NOISELESS_FACTOR = 10  # of pi_sqr without noise, where Eq. 57 would make it infinite
_LEAST_NOISE = 1e-2  # share of the median noise: rows of less would outweigh all others
_MIN_PATIENCE = 10  # epochs, where an eighth of all would be fewer
_N_BAND = 256  # artificial inputs over which a band's width is averaged
# Smallest and largest default of `box_margin`, as a share of each range. Between them it is three
# mean distances of uniform rows: in 95 % of samples the gap beyond the outermost row is smaller.
_MIN_MARGIN, _MAX_MARGIN, _MARGIN_SPACINGS = 0.05, 1.0, 3
_ROUNDING = 1e-9  # of a root that is a whole number
_MEAN, _SIDE = 1, 2  # purposes of seeds; 0 is for networks that are trained in one step


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
    weights = 1 / np.maximum(noise / typical, _LEAST_NOISE) ** 2
    return (weights / weights.mean(axis=0)).mean(axis=1)


@dataclass(frozen=True, eq=False)
class NomuTrainer:
    """Trains NOMU's networks on one table.

    Attributes
    ----------
    task : Task
        Rows that may train, the user's held-out rows, on which f may stop early, and their scales.
    report : callable or None
        Gets the number of epochs that were trained, and of those left.
    network : NOMUNetwork
        Networks of f and r.
    loss : NOMULoss
        Loss of r.
    sampler : ArtificialSampler
        Artificial inputs of r's loss.
    recipe : dict
        Fields of the recipes that are given: learning_rate, batch_size (None takes all rows), and
        perhaps optimizer, schedule and clip_norm.
    epochs : int or None
        Number of epochs; None makes enough steps.
    noiseless : bool
        Whether the data have no noise.
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

    task: Task
    report: Callable | None
    network: NOMUNetwork
    loss: NOMULoss
    sampler: "ArtificialSampler"
    recipe: Mapping[str, Any]
    epochs: int | None
    noiseless: bool
    patience: Any = None
    n_sides: int = 1
    learns_noise: bool = False
    refines: bool = False
    given: GivenMean | None = None
    noise: KnownNoise | None = None

    @property
    def rows(self) -> Rows:
        """All rows that train."""
        return self.task.splits.train

    @property
    def interpolates(self) -> bool:
        """Whether f should interpolate its rows; some defaults depend on it."""
        return len(self.rows.X) < FEW_ROWS or self.noiseless

    @property
    def head(self) -> NomuHead:
        """Loss of the network of r, which holds f too if they train together."""
        mean_first = self.learns_noise or self.patience is not None or self.refines
        return NomuHead(
            self.task.targets.n_outputs,
            with_mean=self.given is None and not mean_first,
            n_sides=self.n_sides,
            stable=self.loss.stable,
            detached=None if self.network.connect_gradient else NomuHead.detached,
        )

    def train(self, parts: Sequence[Part], mean_epochs: int | None = None) -> list[TrainedNomu]:
        """Train a network for each part of the rows, side by side where possible.

        `mean_epochs` is the number of epochs of f if that is trained first; by default it stops
        early, or trains as long as r.
        """
        means: list[Any] = [None] * len(parts)
        # One step: f and r train together, or f is given and r trains alone.
        if self.head.with_mean or self.given is not None:
            members = self._train_together(parts)
        else:
            means = self._train_means(parts, mean_epochs)
            # The loss of r may depend on errors and noise of its mean f. Then each network trains
            # by itself.
            if self.learns_noise or self.n_sides == 2:
                members = [self._train_side(train, mean) for (train, _), mean in zip(parts, means)]
            else:
                members = self._train_together(parts, means)
        _check_completed(members)
        return [
            TrainedNomu(self.head, member, mean, self.given, self.noise)
            for member, mean in zip(members, means)
        ]

    def refit(self, networks: Sequence[TrainedNomu]) -> TrainedNomu:
        """Train a network on all rows; f trains for the mean of the folds' best epochs."""
        epochs = None
        # Without held-out rows f cannot stop by itself.
        if self.patience is not None:
            best = [network.mean_member.best_epoch + 1 for network in networks]  # type: ignore[union-attr]
            epochs = round(float(np.mean(best)))
        return self.train([(np.arange(len(self.rows.X)), None)], epochs)[0]

    def draw_between_rows(self, network: TrainedNomu) -> tuple[np.ndarray, ...]:
        """Predict the raw uncertainty (256, n_sides * m) of a network at artificial inputs.

        Also returns the distances (256,) of these inputs to the nearest row, standardised.
        """
        x = self.sampler(_N_BAND, generator(self.task.entropy, "band"))
        distance = spatial.cKDTree(self.task.inputs.transform(self.rows.X)).query(x)[0]
        return network.head.split(training.predict_members([network.member], x)[0])[1], distance

    def _train_means(self, parts: Sequence[Part], epochs: int | None) -> list[Member]:
        """Train the mean f, and the noise if that is learnt, as the first of two steps."""
        n_outputs, stops_early = self.task.targets.n_outputs, self.patience is not None
        # A head without sides has term (a) of the loss only.
        head = GaussianHead(n_outputs) if self.learns_noise else NomuHead(n_outputs, n_sides=0)
        units = _HIDDEN_UNITS[self.interpolates]
        build = functools.partial(
            build_mean, network=self.network, loss=self.loss, auto_units=units
        )
        template = build_checked(
            build, self.rows.X.shape[1:], head.n_raw, "NOMU's network of the mean"
        )
        held_out = self.task.validation if stops_early else None
        data = self._data(self.rows, self.task.targets.transform(self.rows.y), validation=held_out)
        parts = parts if stops_early else [(train, None) for train, _ in parts]
        recipe = functools.partial(self._mean_recipe, epochs=epochs)
        seed = trial_seed(self.task.entropy, _MEAN)
        members = self._train_stacks(parts, template, data, head, recipe, seed)
        _check_completed(members)
        if not self.refines:
            return members
        # Refinement goes on with the rows in float32 that the training has seen.
        return [
            refine(member, data.x[train], data.y[train], data.weight[train])
            for member, (train, _) in zip(members, parts)
        ]

    def _train_together(
        self, parts: Sequence[Part], means: Sequence[Member] | None = None
    ) -> list[Any]:
        """Train the uncertainty r on top of the mean f, or both at once, on common targets."""
        if self.given is not None:
            # The loss of r takes the errors of f where f is not part of the network.
            mean = self.given(self.rows.X, self.task.targets.n_outputs)
            y = (self.rows.y - mean) / self.task.targets.scaling.scale_
        else:
            y = self.task.targets.transform(self.rows.y)
        start: list | None = None
        if means is None:
            template = self._template()
        else:
            # Each template holds its own frozen mean f. They differ in weights only, which are in
            # `start`.
            start = []
            for member in means:
                template = self._template(member)
                start.append(draw_variables(template, trial_seed(self.task.entropy, _SIDE)))
        parts = [(train, None) for train, _ in parts]
        return self._train_sides(parts, template, self._data(self.rows, y), start)

    def _train_side(self, train: np.ndarray, mean: Member) -> Any:
        """Train the uncertainty r on top of one mean f, whose errors and noise weigh the rows."""
        rows = self.rows.take(train)
        x, targets = self.task.inputs.transform(rows.X), self.task.targets
        loc, noise = predict_mean(mean, x, targets.n_outputs)
        weight = None if noise is None else precision(noise)
        data = self._data(rows, targets.transform(rows.y) - loc, weight)
        every: Part = np.arange(len(rows.X)), None
        return self._train_sides([every], self._template(mean), data)[0]

    def _train_sides(self, parts, template, data, start=None):
        seed = trial_seed(self.task.entropy, 0)
        return self._train_stacks(parts, template, data, self.head, self._recipe, seed, start)

    def _train_stacks(self, parts, template, data, head, make_recipe, seed, start=None):
        """Train a network for each part; parts of equally many training rows share a program."""
        members: list[Any] = [None] * len(parts)
        sizes = [len(train) for train, _ in parts]
        for size in sorted(set(sizes)):
            positions = [k for k in range(len(parts)) if sizes[k] == size]
            job = training.TrainingJob.of_model(
                template,
                head,
                [make_recipe(size)] * len(positions),
                [seed] * len(positions),
                stacked=True,
                splits=[parts[k] for k in positions],
                start=None if start is None else [start[k] for k in positions],
                artificial=self.sampler,
            )
            for k, member in zip(positions, training.train(job, data, report=self.report)):
                members[k] = member
        return members

    def _data(
        self, rows: Rows, y: np.ndarray, weight: Weights = None, validation: Rows | None = None
    ) -> TrainingData:
        """Make training data of rows, their standardised targets and weights by their noise.

        Without `weight` the known noise weighs the rows, if there is any.
        """
        if weight is None:
            weight = np.ones(len(rows.X)) if self.noise is None else precision(self.noise(rows.X))
        x, weight = self.task.inputs.transform(rows.X), rows.weight * weight
        if validation is None:
            return TrainingData.without_validation(x, y, weight)
        held_out = standardise_rows(validation, self.task.inputs, self.task.targets)
        return TrainingData(x, y, weight, *held_out)

    def _template(self, mean: Member | None = None) -> Any:
        """Build the network of the uncertainty r, which contains the layers of the mean f.

        The layers of f are frozen if f is trained already: as `mean`, or as the parameter
        `pretrained`.
        """
        # A given f is a triple: its model takes ``x * scale + offset``, where x is standardised.
        given: Any = None
        if mean is not None:
            given = keras_model(mean), 1.0, 0.0
        elif self.given is not None and not (self.given.is_keras and self.network.connect_layers):
            given = "apart"
        elif self.given is not None:  # it takes encoded rows, and the network standardised ones
            scaling = self.task.inputs.scaling
            given = self.given.model, scaling.scale_.tolist(), scaling.mean_.tolist()
        settings = self.head, self.network, self.loss, _HIDDEN_UNITS[self.interpolates]
        sample = None if self.given is None else self.task.inputs.transform(self.rows.X)

        def build(input_shape, n_raw):
            return build_nomu(input_shape, *settings, given=given, sample=sample)

        return build_checked(build, self.rows.X.shape[1:], self.head.n_raw, "NOMU's network")

    def _mean_recipe(self, n_train: int, epochs: int | None) -> Any:
        """Make the recipe of f, which trains for given epochs, stops early, or trains as r does."""
        recipe = self._recipe(n_train)
        # The loss of f has no term for artificial inputs.
        changes: dict[str, Any] = {"n_artificial": 0, "loss_settings": ()}
        if epochs is not None:
            changes["epochs"] = epochs
        elif self.patience == "auto":
            changes["early_stopping_patience"] = max(_MIN_PATIENCE, recipe.epochs // 8)
        elif self.patience is not None:
            changes["early_stopping_patience"] = self.patience
        return replace(recipe, **changes)

    def _recipe(self, n_train: int) -> Any:
        batch, epochs = self.recipe["batch_size"] or _FULL_BATCH, self.epochs
        if epochs is None:  # few rows get enough steps
            n_steps = _NOISELESS_STEPS if self.noiseless else _FEWEST_STEPS[self.interpolates]
            epochs = max(_UCI_EPOCHS, -(-n_steps // -(-n_train // batch)))
        # The learning rate falls if f should interpolate, and does not stop early.
        falls = self.interpolates and self.patience is None
        fields = {
            "schedule": "cosine" if falls else "constant",
            "clip_norm": 1.0,
            "reduce_lr_patience": None,
            "early_stopping_patience": None,
            **self.recipe,
            "batch_size": batch,
        }
        weights = {name: float(getattr(self.loss, name)) for name in ("pi_sqr", "pi_exp", "c_exp")}
        if self.noiseless:
            weights["pi_sqr"] *= _NOISELESS_FACTOR
        return training.Recipe(
            epochs=epochs,
            n_artificial=self.sampler.n_each,
            loss_settings=tuple(weights.items()),
            **fields,
        )


def _check_completed(members: Sequence[Any]) -> None:
    wild = [member for member in members if has_diverged(member)]
    if wild:
        reason = f" ({wild[0]})" if isinstance(wild[0], FloatingPointError) else ""
        raise FloatingPointError(
            f"{len(wild)} of {len(members)} networks diverged{reason}. Try a smaller "
            "`learning_rate`, smaller `pi_sqr`, `pi_exp` or `c_exp`, or leave `clip_norm` and "
            "`stable` at their defaults."
        )


class ArtificialSampler:
    """Sampler of artificial inputs in standardised units: ``sampler(n, rng) -> (n, n_features)``.

    Parameters
    ----------
    settings : ArtificialInputs
        Validated settings; a table among them is encoded.
    X : ndarray of shape (n, n_features)
        Encoded rows to train on.
    scaling : Scaling
        Fitted standardisation of X.

    Attributes
    ----------
    box : ndarray of shape (n_features, 2) or None
        Box in units of X; None if the inputs are the user's own.
    n_each : int
        Number of inputs of one step; for a grid at most the given number.

    Raises
    ------
    ValueError
        If the box holds no row or has no volume, or the inputs are not like X.
    """

    def __init__(self, settings: ArtificialInputs, X: np.ndarray, scaling: Scaling) -> None:
        self.n_each, self.box = settings.n, None
        self._scaling, self._n_features = scaling, X.shape[1]
        kind = settings.kind
        if callable(kind):
            self._draw = self._make_checked_sampler(kind)
        elif isinstance(kind, str):
            self.box = _read_box(settings, X)
            ends = scaling.transform(self.box.T.copy())
            low, width = ends[0], ends[1] - ends[0]
            if kind == "grid":  # every training step gets all points of an equidistant grid
                # A constant column has one value; the others share the number of points equally.
                varied = np.ptp(ends, axis=0) > 0
                n_axis = int(np.floor(self.n_each ** (1 / max(varied.sum(), 1)) + _ROUNDING))
                if n_axis < 2:
                    raise ValueError(
                        f"A grid of at most `n`={self.n_each} artificial inputs in {varied.sum()} "
                        'dimensions has one point an axis. Use kind="uniform", or more inputs.'
                    )
                sizes = np.where(varied, n_axis, 1).tolist()
                axes = [np.linspace(low, high, size) for (low, high), size in zip(ends.T, sizes)]
                points = np.stack([axis.ravel() for axis in np.meshgrid(*axes)], axis=1)
                self.n_each = len(points)
                self._draw = lambda n, rng: np.resize(points, (n, points.shape[1]))
            else:
                self._draw = lambda n, rng: low + width * rng.random((n, len(low)))
        else:
            rows = check_array(kind, dtype="float64", input_name="artificial")
            if rows.shape[1] != self._n_features:
                raise ValueError(
                    f"`artificial` must have {self._n_features} columns, like X. "
                    f"Got {rows.shape[1]}."
                )
            rows = scaling.transform(rows)
            self._draw = lambda n, rng: rows[rng.integers(len(rows), size=n)]

    def __call__(self, n: int, rng: np.random.Generator) -> np.ndarray:
        return self._draw(n, rng)

    def _make_checked_sampler(self, function: Callable) -> Callable:
        """Make a sampler of the user's function that checks its results, one step at a time."""

        def draw_step(n, rng):
            drawn = np.asarray(function(n, rng), dtype="float64")
            if drawn.shape != (n, self._n_features) or not np.isfinite(drawn).all():
                finite = "" if np.isfinite(drawn).all() else ", not all finite"
                raise ValueError(
                    "`artificial` must be a function (n, rng) that gives finite inputs of shape "
                    f"(n, n_features), here {(n, self._n_features)}. "
                    f"Got shape {drawn.shape}{finite}."
                )
            return self._scaling.transform(drawn)

        def draw(n, rng):
            # Each step by itself: a function may return ordered or evenly spread inputs.
            n_steps = -(-n // self.n_each)
            return np.concatenate([draw_step(self.n_each, rng) for _ in range(n_steps)])

        return draw


def encode_artificial(kind: Any, inputs: TableInputs, estimator: Any) -> Any:
    """Encode a table of artificial inputs as the rows of X; return other values as they are."""
    has_names, is_table = is_frame(kind), np.ndim(kind) == 2
    if not has_names and not (is_table and inputs.encodes):
        return kind
    if not has_names and inputs.feature_names is not None:
        kind = pd.DataFrame(kind, columns=inputs.feature_names)
    return inputs.encode(inputs.validate(kind, estimator))


def _read_box(settings: ArtificialInputs, X: np.ndarray) -> np.ndarray:
    """Return the bounds (n_features, 2) of artificial inputs: the user's, or those of the rows."""
    if settings.box is not None:
        box = settings.box
        try:
            box = np.asarray(box, dtype="float64")
        except (TypeError, ValueError):
            box = np.empty(0)
        if box.shape != (X.shape[1], 2) or not np.isfinite(box).all():
            raise ValueError(
                f"`box` must be {X.shape[1]} finite pairs (low, high), one per feature. Got {box}."
            )
        empty = np.flatnonzero(box[:, 0] >= box[:, 1])
        if len(empty):
            raise ValueError(
                f"`box` must have low < high for every feature. Got {box[empty[0]]} for feature "
                f"{empty[0]}: a box without volume."
            )
        # A box in other units than X, such as standardised ones, usually holds no row.
        within = np.clip(X, *box.T) == X
        if within.all(axis=1).any():
            return box
        missed = np.flatnonzero(~within.any(axis=0))
        if len(missed):
            k = missed[0]
            reason = f"feature {k} has values from {X[:, k].min():.4g} to {X[:, k].max():.4g}, and "
            reason += f"the box has {box[k]}"
        else:
            reason = "each row is outside of it in some feature"
        raise ValueError(
            f"`box` must hold training rows, and holds none: {reason}. `box` is in units of X."
        )
    low, high = X.min(axis=0), X.max(axis=0)
    if (low == high).all():
        raise ValueError(
            f"The rows of X (n_samples={len(X)}) are all alike, so that they have no range to draw "
            "artificial inputs from. Give `box` to ArtificialInputs: the lowest and highest value "
            "of each feature."
        )
    margin = settings.box_margin
    if isinstance(margin, str):
        # Of n uniform rows the outermost are about 1 / (n - 1) of the range away from its ends.
        margin = min(_MARGIN_SPACINGS / max(len(X) - 1, 1), _MAX_MARGIN)
        margin = max(_MIN_MARGIN, margin)
    reach = margin * (high - low)
    return np.stack([low - reach, high + reach], axis=1)
