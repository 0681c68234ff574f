"""A fitted NOMU model: trained networks, and how their raw uncertainty is read.

Notation: n rows, m outputs, n_sides raw uncertainties of each output (one, or one upwards and one
downwards). Encoded rows (n, d) are numbers that are not yet standardised.
"""

from typing import Any, ClassVar, NamedTuple

import numpy as np

from skuq.files._registry import saved_as, saved_record
from skuq.fitted import _ensemble
from skuq.fitted._draws import SMALLEST_STD, nomu_posterior
from skuq.networks import GaussianHead, Member
from skuq.networks._heads import NomuHead
from skuq.networks._keras_models import rebuild
from skuq.networks._nomu_network import READOUTS
from skuq.predictive import EpistemicNormal, Posterior, TwoPieceNormal
from skuq.tables._inputs import TableInputs
from skuq.tables._targets import NumberTargets
from skuq.training import predict_members


class RawPrediction(NamedTuple):
    """Prediction of networks before calibration.

    Attributes
    ----------
    mean : ndarray of shape (n, m)
        In units of y.
    raw : ndarray of shape (n, n_sides * m)
        Raw uncertainty of the standardised y.
    noise : ndarray of shape (n, m) or None
        Standard deviation in units of y.
    """

    mean: np.ndarray
    raw: np.ndarray
    noise: np.ndarray | None


_ENCODED = "categories and missing values count as encoded (`preprocess=None` encodes nothing)"


@saved_as("fitted.FittedNomu.GivenMean")
class GivenMean:
    """A trained model whose predictions are used as the mean, unchanged.

    Parameters
    ----------
    model : keras.Model or fitted estimator
    """

    def __init__(self, model: Any) -> None:
        self.model = model

    @property
    def is_keras(self) -> bool:
        """Whether the model is a Keras model."""
        return hasattr(self.model, "predict_on_batch")

    def check(self, n_features: int, names: Any = None, *, shows_layers: bool = False) -> None:
        """Raise ValueError if the model is not fitted, or not for such encoded features.

        `shows_layers` is whether r sees the last hidden layer of a Keras model.
        """
        # Keras tells shapes and layers; other models tell what scikit-learn asks of them.
        if self.is_keras:
            if not self.model.built:
                raise ValueError("`pretrained` is a Keras model without weights: train it first.")
            shape = getattr(self.model, "input_shape", None)
            if shape not in (None, (None, n_features)):  # unknown of subclassed models
                raise ValueError(
                    f"`pretrained` must take inputs of shape (None, {n_features}), as X has "
                    f"{n_features} features, of which {_ENCODED}. It takes {shape}."
                )
            if shows_layers:
                self._check_layers()
            return
        _ensemble.check_pretrained(self.model, n_features, names, f", of which {_ENCODED}")

    def _check_layers(self) -> None:
        """Raise ValueError if the hidden layers of the Keras model cannot be copied."""
        reason = ""
        # Copies are made from the configuration, and compute in float32.
        if getattr(self.model, "inputs", None) is None:
            reason = "a subclassed model without symbolic inputs"
        elif {layer.compute_dtype for layer in self.model.layers} != {"float32"}:
            reason = "layers of another type"
        else:
            try:
                rebuild(self.model.to_json())
            except Exception as error:  # of layers that Keras cannot make again, such as Lambda
                reason = f"{type(error).__name__}: {error}"
        if reason:
            raise ValueError(
                "`pretrained` must be a Sequential or functional Keras model in float32 that Keras "
                "can make again from its configuration, so that r sees its last hidden layer. Got "
                f"{reason}. Set `network=NOMUNetwork(connect_layers=0)`: r then sees X alone."
            )

    def __call__(self, encoded: np.ndarray, n_outputs: int) -> np.ndarray:
        """Predict (n, n_outputs), bit by bit as the model does."""
        return _ensemble.predict_pretrained(self.model, encoded, (len(encoded), n_outputs))


@saved_as("fitted.FittedNomu.KnownNoise")
class KnownNoise:
    """Known standard deviation of the data's noise; ``noise(encoded) -> (n, n_outputs)``.

    Parameters
    ----------
    noise : float or callable
        ``noise(X) -> (n,)`` or (n, n_outputs), in units of y.
    n_outputs : int
    """

    def __init__(self, noise: Any, n_outputs: int) -> None:
        self.noise, self.n_outputs = noise, n_outputs

    def __call__(self, encoded: np.ndarray) -> np.ndarray:
        n = len(encoded)
        # One number holds for all rows and outputs.
        if not callable(self.noise):
            return np.full((n, self.n_outputs), float(self.noise))
        noise = np.asarray(self.noise(encoded), dtype="float64")
        usable = (noise >= 0) & np.isfinite(noise)
        if noise.shape not in ((n,), (n, self.n_outputs)) or not usable.all():
            raise ValueError(
                f"`noise_std` must be a function that gives finite numbers >= 0 of shape ({n},). "
                f"Got shape {noise.shape}{'' if usable.all() else ', some not such numbers'}."
            )
        return np.broadcast_to(noise.reshape(n, -1), (n, self.n_outputs))


@saved_record("fitted.FittedNomu.TrainedNomu", brief=True)
class TrainedNomu:
    """Trained networks, and what was given in place of one.

    Attributes
    ----------
    head : NomuHead
    member : Member
        Network of the raw uncertainty, and of the mean too where `head.with_mean`.
    mean_member : Member or None
        Network of the mean, and of learnt noise, where it was trained first.
    given : GivenMean or None
    noise : KnownNoise or None
    """

    head: NomuHead
    member: Member
    mean_member: Member | None = None
    given: GivenMean | None = None
    noise: KnownNoise | None = None

    def predict(
        self, encoded: np.ndarray, inputs: TableInputs, targets: NumberTargets
    ) -> RawPrediction:
        """Predict encoded rows, with fitted inputs and targets."""
        x, noise = inputs.transform(encoded), None
        mean, raw = self.head.split(predict_members([self.member], x)[0])
        if self.given is not None:
            # A given model takes X as it is, and predicts in units of y.
            mean = self.given(encoded, self.head.n_outputs)
        else:
            # Otherwise the mean is standardised, like the noise that a network has learnt.
            if self.mean_member is not None:
                mean, noise = predict_mean(self.mean_member, x, self.head.n_outputs)
            mean, restored = targets.restore(mean, 0.0 if noise is None else noise)
            noise = None if noise is None else restored
        noise = self.noise(encoded) if self.noise is not None else noise
        return RawPrediction(mean, raw, noise)


def predict_mean(
    member: Member, x: np.ndarray, n_outputs: int
) -> tuple[np.ndarray, np.ndarray | None]:
    """Predict the standardised mean (n, m), and the noise (n, m) or None if none was learnt."""
    raw = predict_members([member], x)[0]
    if raw.shape[1] == n_outputs:
        return raw, None
    return GaussianHead(n_outputs).distribution(raw)


def split_sides(raw: np.ndarray, band: str) -> tuple[np.ndarray, np.ndarray]:
    """Split raw uncertainty (n, n_sides * m) into that upwards and that downwards, (n, m) each."""
    if band == "symmetric":
        return raw, raw
    up, down = np.split(raw, 2, axis=1)
    return up, down


@saved_record("fitted.FittedNomu.Readout", eq=True)
class Readout:
    """How raw uncertainty becomes standard deviations of the standardised y.

    Attributes
    ----------
    kind : {"exponential", "linear"}
        As in `NOMUReadout`.
    band : {"symmetric", "asymmetric"}
    l_min, l_max : float
        Smallest and largest standard deviation before the factor `c`.
    c : float
        Factor of the model's standard deviation.
    noise_factor : float, default=1.0
        Factor of the noise's standard deviation.
    level : float, default=0.0
        Raw uncertainty that counts as none: what the network has at its own rows.
    growth : float, default=0.0
        Standard deviation that a unit of distance from the box adds, in squares. Distances are
        those of standardised inputs.
    correlation : tuple of tuple of float
        Correlation matrix of the outputs, as in `Calibration`.
    """

    kind: str
    band: str
    l_min: float
    l_max: float
    c: float = 1.0
    noise_factor: float = 1.0
    level: float = 0.0
    growth: float = 0.0
    correlation: tuple[tuple[float, ...], ...] = ()

    def std(self, raw: np.ndarray) -> np.ndarray:
        """Read standard deviations (n, m) of one side, before the factor `c`."""
        # Bands have a density only if their width is above 0.
        read = READOUTS[self.kind](raw - self.level, self.l_min, self.l_max)
        return np.maximum(read, SMALLEST_STD)

    def widths(
        self, raw: np.ndarray, distance: np.ndarray | float = 0.0
    ) -> tuple[np.ndarray, np.ndarray]:
        """Read standard deviations (n, m) upwards and downwards, at `distance` from the box."""
        up, down = (self.c * self.std(side) for side in split_sides(raw, self.band))
        # What is far from the box adds a variance, which grows with the squared distance.
        reach = np.reshape(self.growth * distance, (-1, 1))
        return tuple(np.maximum(np.hypot(side, reach), SMALLEST_STD) for side in (up, down))


@saved_record("fitted.FittedNomu", brief=True)
class FittedNomu(_ensemble.Fitted):
    """Trained networks of NOMU, and everything needed to predict with them.

    Attributes
    ----------
    inputs : TableInputs
        Fitted.
    targets : NumberTargets
        Fitted.
    network : TrainedNomu
    readout : Readout
    box : ndarray of shape (d, 2) or None
        Box of encoded inputs in which r was trained. Outside it is that of the nearest point of
        the box, and the distance from it widens the band. None trusts r everywhere.
    """

    inputs: TableInputs
    targets: NumberTargets
    network: TrainedNomu
    readout: Readout
    box: np.ndarray | None = None

    no_keras: ClassVar[str] = "NOMU predicts no mixture"

    def encode(self, X: Any) -> np.ndarray:
        """Encode validated X as numbers (n, d), with unseen categories marked."""
        return self.inputs.encode(X, mark_unseen=True)

    def distribution_of_encoded(self, encoded: np.ndarray) -> EpistemicNormal | TwoPieceNormal:
        """Predict the distribution of each encoded row (n, d), with unseen categories marked."""
        rows = _ensemble.unseen_rows(self.inputs, encoded)
        if not len(rows):
            mean, *stds = self._moments(encoded)
        else:
            mean, *stds = self._moments(self.inputs.fill_unseen(encoded, 0, 1))
            # An unseen category may be any known one: average over some, by the law of total
            # variance. What the means differ by is uncertainty of the model.
            fills = [
                self.inputs.fill_unseen(encoded[rows], k, _ensemble.MOST_FILLS)
                for k in range(_ensemble.MOST_FILLS)
            ]
            means, *parts = (np.stack(part) for part in zip(*map(self._moments, fills)))
            mean[rows] = means.mean(axis=0)
            for std, part, spread in zip(stds, parts, (means.var(axis=0), means.var(axis=0), 0.0)):
                std[rows] = np.sqrt((part**2).mean(axis=0) + spread)
        up, down, noise = stds
        if self.targets.is_1d:
            mean, up, down, noise = (part[:, 0] for part in (mean, up, down, noise))
        correlation: Any = self.readout.correlation or None
        if self.readout.band == "symmetric":
            return EpistemicNormal(mean, noise, up, correlation=correlation)
        return TwoPieceNormal(mean, down, up, noise, correlation)

    def _moments(self, encoded: np.ndarray) -> list[np.ndarray]:
        """Predict mean, widths upwards and downwards and noise (n, m), in units of y."""
        mean, raw, noise = self.network.predict(encoded, self.inputs, self.targets)
        y_scale, readout, distance = self.targets.scaling.scale_, self.readout, 0.0
        # r is trained in the box only: outside it is taken at the nearest point of the box.
        if self.box is not None:
            nearest = np.clip(encoded, *self.box.T)
            near = self.inputs.transform(nearest)
            step = self.inputs.transform(encoded) - near
            distance = np.sqrt((step.astype("float64") ** 2).sum(axis=1))
            if (outside := distance > 0).any():
                _, inner = self.network.head.split(predict_members([self.network.member], near)[0])
                raw = np.where(outside[:, None], inner, raw)
        # Widths are those of the standardised y; mean and noise already are in units of y.
        widths = [y_scale * width for width in readout.widths(raw, distance)]
        noise = np.zeros_like(mean) if noise is None else readout.noise_factor * noise
        return [mean, *widths, noise]

    def posterior(self, n_draws: int, rng: np.random.Generator) -> Posterior:
        """Return draws of the function; see `nomu_posterior`."""
        return nomu_posterior(self, n_draws, rng)
