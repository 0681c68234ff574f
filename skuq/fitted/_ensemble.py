"""Fitted ensembles and teams, their common interface, and their conversion to one Keras model.

Notation: n rows, K members, m outputs or classes.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar, NoReturn, cast

import numpy as np
import pandas as pd
from sklearn.exceptions import NotFittedError
from sklearn.utils.validation import check_is_fitted

from skuq import backend
from skuq._params import class_codes, class_probabilities, classifies, safe_indexing
from skuq._random import generator
from skuq.files._registry import saved_record
from skuq.fitted._draws import member_posterior
from skuq.networks import Member
from skuq.predictive import CategoricalMixture, Posterior
from skuq.predictive._calibration import UNCALIBRATED, Calibration, calibrated_moments
from skuq.predictive._distributions import epistemic_factor
from skuq.tables._inputs import ForeignInputs, ImageInputs, TableInputs
from skuq.tables._targets import Targets
from skuq.training import predict_members
from skuq.training._network_checks import keras_model
from skuq.training._predict import largest_power_of_two

#: Numbers of raw predictions held at a time: 32 MB. Their moments take about five times as much.
BLOCK_NUMBERS = 2**22


class Fitted:
    """A fitted model, which predicts, and is pickled and saved: the base of frozen records.

    A subclass has `inputs`, an object that validates X and encodes it as numbers, and predicts the
    distribution of each row of validated X: by a method ``distribution(X)``, or from numbers by
    ``encode(X)`` and ``distribution_of_encoded(encoded)``. It also has `targets`, or an
    `output_shape` of its own. Where functions can be drawn there is ``posterior(n_draws, rng)``,
    which returns a `Posterior`. Methods may take keywords, the `query` of the estimators' methods.
    """

    targets: Any
    #: Why there is no Keras model, unless there is one.
    no_keras: ClassVar[str] = ""

    def distribution(self, X: Any, *args: Any, **query: Any) -> Any:
        """Predict the distribution of each row of validated X."""
        return self.distribution_of_encoded(self.encode(X), *args, **query)

    def encode(self, X: Any) -> Any:
        """Encode validated X as `distribution_of_encoded` takes it: here X itself."""
        return X

    def distribution_of_encoded(self, encoded: Any, *args: Any, **query: Any) -> Any:
        """Predict the distribution of each row of encoded X."""
        return self.distribution(encoded, *args, **query)

    @np.errstate(under="ignore")
    def summarise(
        self, X: Any, summary: Callable[[Any], Any], n_levels: int = 1, **query: Any
    ) -> Any:
        """Compute ``summary(distribution)`` of validated X, in blocks of rows.

        A distribution holds all members' predictions of all its rows, and is only needed here
        until it is summarised. `summary` returns an array with an entry for each row, or a tuple
        of such. `n_levels` is the number of quantiles that it computes of each row.
        """
        rows = self.encode(X)  # warns of unseen categories of all rows at once
        # A power of two, which chunks inside of predictions divide: results are equal to the bit.
        size = largest_power_of_two(BLOCK_NUMBERS // (self.n_numbers(**query) * max(1, n_levels)))
        n_rows = rows.shape[0] if hasattr(rows, "shape") else len(np.asarray(rows))
        if n_rows <= size:
            return summary(self.distribution_of_encoded(rows, **query))
        blocks = (safe_indexing(rows, slice(k, k + size)) for k in range(0, n_rows, size))
        parts = [summary(self.distribution_of_encoded(block, **query)) for block in blocks]
        if isinstance(parts[0], np.ndarray):
            return np.concatenate(parts)
        joined = [np.concatenate(part) for part in zip(*parts)]
        return type(parts[0])(*joined) if hasattr(parts[0], "_fields") else tuple(joined)

    def quantile(self, distribution: Any, probability: Any) -> np.ndarray:
        """Compute quantiles of a distribution that is predicted, by the model's own rule if any."""
        return distribution.quantile(probability)

    def predict_mean(self, X: Any, **query: Any) -> np.ndarray:
        """Predict the mean of each row of validated X, as the distributions have it."""
        return self.summarise(X, lambda distribution: distribution.mean, **query)

    def n_numbers(self, *args: Any, **query: Any) -> int:
        """Count the numbers of one row's raw prediction; by default a mean and three widths."""
        return 4 * math.prod(self.output_shape(**query))

    def sample(self, X: Any, n_samples: int, rng: np.random.Generator, **query: Any) -> np.ndarray:
        """Draw (n[, m], n_samples): one function for all rows of a draw, and noise of each row."""
        seed = int(rng.integers(2**63))  # all blocks of rows share the function
        return self.summarise(
            X, lambda distribution: distribution.sample(n_samples, rng, seed), n_samples, **query
        )

    def output_shape(self, *args: Any, **query: Any) -> tuple[int, ...]:
        """Return the shape of one row's prediction: () or (m,), as y had it."""
        return self.targets.output_shape

    def to_keras(self, ddof: int = 0) -> Any:
        """Convert to one Keras model, or raise ValueError with the reason."""
        refuse_keras(self.no_keras)


def refuse_keras(reason: str) -> NoReturn:
    """Raise ValueError for models that cannot become one Keras model."""
    raise ValueError(
        f"`to_keras` computes the mixture's moments, and {reason}. Use `skuq.save` to store the "
        "estimator."
    )


def check_pretrained(model: Any, n_features: int, names: Any = None, note: str = "") -> None:
    """Raise an error if a given model is not fitted, is a classifier, or knows other columns."""
    if classifies(model):
        raise ValueError(f"`pretrained` must be a regressor. Got {type(model).__name__}.")
    try:
        if hasattr(model, "fit"):  # objects that only predict need no fit
            check_is_fitted(model)
    except NotFittedError as error:
        raise NotFittedError(
            "`pretrained` is not fitted. Cloning, as in cross-validation and searches, discards "
            "what it has learnt: wrap it in sklearn.frozen.FrozenEstimator."
        ) from error
    own_names = getattr(model, "feature_names_in_", None)
    if names is not None and own_names is not None and list(names) != list(own_names):
        raise ValueError(
            "X must have the columns that `pretrained` was fitted with, in their order: "
            f"{list(own_names)}. Got {list(names)}."
        )
    if (wanted := getattr(model, "n_features_in_", n_features)) != n_features:
        raise ValueError(f"`pretrained` takes {wanted} features. X has {n_features}{note}.")


def predict_pretrained(model: Any, X: Any, shape: tuple[int, ...]) -> np.ndarray:
    """Predict finite numbers of this shape with a given model; Keras' show no bar."""
    options = {"verbose": 0} if hasattr(model, "predict_on_batch") else {}
    if (names := getattr(model, "feature_names_in_", None)) is not None:
        X = pd.DataFrame(X, columns=names)
    mean = np.asarray(model.predict(X, **options), dtype="float64")
    if mean.size != math.prod(shape) or not np.isfinite(mean).all():
        raise ValueError(
            f"`pretrained` must predict finite numbers of shape {shape}. Got shape {mean.shape}"
            f"{'' if np.isfinite(mean).all() else ' with NaN or inf'}."
        )
    return mean.reshape(shape)


_NO_PROBABILITY = 1e-300  # smaller ones count as 0 in entropies


def _average(values: Any, weights: np.ndarray, ops: Any) -> Any:
    """Average values (n, K, ..) over members, to (n, ..)."""
    return ops.sum(values * np.expand_dims(weights, tuple(range(1, len(values.shape) - 1))), axis=1)


MOST_FILLS = 8  # known categories that stand for an unseen one


def unseen_rows(inputs: Any, numbers: np.ndarray) -> np.ndarray:
    """Return the positions of encoded rows in which a category is marked as unseen."""
    if not len(getattr(inputs.preprocessor, "categorical_columns_", ())):
        return np.array([], dtype=int)
    return np.flatnonzero(np.isnan(numbers).any(axis=1))


@saved_record("fitted.DropoutPasses", eq=True)
class DropoutPasses:
    """Dropout masks of MC dropout, in which a pass drops the same units for all rows.

    A pass is therefore one function, and its prediction of a row does not depend on other rows.

    Attributes
    ----------
    n_passes : int
        Number of passes.
    entropy : int
        Origin of the random numbers of the fit, which determines the masks.
    """

    n_passes: int
    entropy: int

    def __call__(self, number: int, rate: float, shape: tuple[int, ...]) -> np.ndarray:
        """Draw the mask of one dropout layer for all passes (n_passes, 1, units), with mean 1."""
        rng = generator(self.entropy, "passes", number)
        # One mask for all rows of a pass; kept units are scaled as in training.
        kept = rng.random((self.n_passes, 1, shape[-1])) >= rate
        return kept / (1 - rate)


@saved_record("fitted.FittedEnsemble", brief=True)
class FittedEnsemble(Fitted):
    """Trained networks, and everything needed to predict with them.

    Attributes
    ----------
    inputs : Inputs
        Fitted encoder and scaler of X.
    targets : Targets
        Fitted scaler of y, with the head of the networks.
    members : tuple of Member
        The networks.
    weights : ndarray of shape (n_members,)
        Weights of the mixture, summing to 1.
    passes : DropoutPasses or None
        Masks of MC dropout, with which a single member predicts once for each pass.
    far : FarUncertainty or None
        Uncertainty that the recommended estimators add away from the training rows, and that the
        members share. None predicts by the members alone.
    calibration : Calibration
        Calibration of the mixture; by default none.
    """

    inputs: TableInputs | ImageInputs
    targets: Targets
    members: tuple[Member, ...]
    weights: np.ndarray
    passes: DropoutPasses | None = None
    far: Any = None
    calibration: Calibration = UNCALIBRATED

    def raw(self, x: np.ndarray) -> np.ndarray:
        """Predict raw outputs (K, n, n_raw) for standardised inputs."""
        if self.passes is None:
            return predict_members(self.members, x)
        # The passes of the only member take the place of members.
        n_draws = self.passes.n_passes
        return predict_members(self.members, x, dropout_mask=self.passes, n_draws=n_draws)[0]

    @property
    def raw_weights(self) -> np.ndarray:
        """Weights (K,) of the raw outputs in the mixture."""
        if self.passes is None:
            return self.weights
        return np.full(self.passes.n_passes, 1 / self.passes.n_passes)

    def encode(self, X: Any) -> np.ndarray:
        """Encode validated X as numbers (n, d), with unseen categories marked."""
        return self.inputs.encode(X, mark_unseen=True)

    def distribution_of_encoded(self, encoded: np.ndarray) -> Any:
        """Predict the distribution of each encoded row (n, d), with unseen categories marked."""
        raw, head = self.raw_of_encoded(encoded), self.targets.head
        mixture = head.mixture(raw, self.raw_weights, self.targets, self.calibration)
        return mixture if self.far is None else self.far.widen(mixture, encoded, self.targets)

    def predict_mean(self, X: Any, **query: Any) -> np.ndarray:
        """Predict the mean of each row; what is added away from the rows is not computed."""
        # It does not move the mean of numbers, unless y is transformed.
        moves = self.targets.is_transformed or self.targets.head.classifies
        return Fitted.predict_mean(self if moves else replace(self, far=None), X, **query)

    def n_numbers(self) -> int:
        """Count the numbers of the raw prediction of one row."""
        return len(self.raw_weights) * int(self.targets.head.n_raw)

    def raw_of_encoded(self, numbers: np.ndarray) -> np.ndarray:
        """Predict raw outputs (K, n, n_raw) for encoded rows, with unseen categories marked.

        Each member replaces an unseen category by a known one, and members use different ones. So
        they disagree by as much as the known categories differ.
        """
        rows = unseen_rows(self.inputs, numbers)
        if not len(rows):
            return self.raw(self.inputs.transform(numbers))
        n_members = len(self.raw_weights)
        n_fills = min(n_members, MOST_FILLS)
        raw = self.raw(self.inputs.transform(self.inputs.fill_unseen(numbers, 0, n_fills)))
        for k in range(1, n_fills):
            x = self.inputs.transform(self.inputs.fill_unseen(numbers[rows], k, n_fills))
            own = np.arange(k, n_members, n_fills)
            raw[own[:, None], rows] = self.raw(x)[own]
        return raw

    def posterior(self, n_draws: int, rng: np.random.Generator) -> Posterior:
        """Return the members' means as draws of the function; see `member_posterior`."""
        return member_posterior(self, n_draws, rng)

    def to_keras(self, ddof: int = 0) -> Any:
        """Build one Keras model with copies of the members' weights.

        Raises ValueError if the mixture's moments cannot be computed in Keras.
        """
        targets: Any = self.targets
        weights = self.raw_weights
        if self.passes is not None:
            refuse_keras("MC dropout averages passes with different dropped units")
        if targets.is_transformed:
            refuse_keras(
                f"those with target_transform={targets.scaling.kind!r} are integrals, where "
                'target_transform="standard" has none'
            )
        keras, ops = backend.keras, backend.ops
        networks = [keras_model(member) for member in self.members]
        # Layers of several members may have equal names: a model needs different ones.
        for k, network in enumerate(networks):
            network.name, network.trainable = f"member{k}", False
        inputs = keras.Input(networks[0].input_shape[1:], dtype="float64", name="X")
        # Scale in double precision; the networks compute in the single precision of their weights.
        scaled = ops.cast(self.inputs.transform(inputs, ops), "float32")
        # Raw outputs (n, K, n_raw).
        raws = [keras.tree.flatten(network(scaled))[0] for network in networks]  # may be in a list
        raw = ops.stack([ops.cast(of_member, "float64") for of_member in raws], axis=1)
        if targets.head.classifies:
            outputs = self._class_outputs(raw, weights, inputs)
        else:
            outputs = self._number_outputs(raw, weights, ddof, inputs)
        return keras.Model(inputs, outputs, name="ensemble")

    def _number_outputs(
        self, raw: Any, weights: np.ndarray, ddof: int, inputs: Any
    ) -> dict[str, Any]:
        """Compute a regressor's outputs from raw numbers (n, K, n_raw) and encoded `inputs`."""
        ops, targets = backend.ops, cast(Any, self.targets)
        # Members come first where moments are computed, and rows everywhere else.
        normals = targets.head.normals(ops.transpose(raw, (1, 0, 2)), ops)
        means, noise = calibrated_moments(normals, weights, self.calibration.arrays, ops)
        means, noise = (ops.transpose(part, (1, 0, 2)) for part in (means, noise))
        # Law of total variance, as in `Mixture`, in standardised units.
        mean = _average(means, weights, ops)
        aleatoric = _average(noise, weights, ops)
        factor = epistemic_factor(weights, ddof)
        epistemic = _average(ops.square(means - ops.expand_dims(mean, 1)), weights, ops) * factor
        if self.far is not None:
            epistemic = epistemic + self.far.look(ops, inputs)[1]
        stds = {
            "aleatoric": ops.sqrt(aleatoric),
            "epistemic": ops.sqrt(epistemic),
            "total": ops.sqrt(aleatoric + epistemic),
        }
        # Means are shifted and scaled back, standard deviations scaled only.
        outputs = {"mean": targets.restore(mean, 1.0)[0]}
        outputs |= {name: targets.restore(0.0, std)[1] for name, std in stds.items()}
        return {name: o[:, 0] for name, o in outputs.items()} if targets.is_1d else outputs

    def _class_outputs(self, raw: Any, weights: np.ndarray, inputs: Any) -> dict[str, Any]:
        """Compute a classifier's outputs from logits (n, K, n_classes) and encoded `inputs`."""
        ops, targets = backend.ops, cast(Any, self.targets)
        proba = targets.head.probabilities(raw, ops, self.calibration)
        if self.far is not None:
            proba = self.far.classes(ops, inputs, proba, weights)

        def entropy(p: Any) -> Any:
            return -ops.sum(p * ops.log(ops.maximum(p, _NO_PROBABILITY)), axis=-1)

        mean = _average(proba, weights, ops)
        # Total entropy is the members' mean entropy plus mutual information (`CategoricalMixture`).
        total, aleatoric = entropy(mean), _average(entropy(proba), weights, ops)
        epistemic = ops.maximum(total - aleatoric, 0.0)
        return {
            "proba": mean,
            "total": aleatoric + epistemic,
            "aleatoric": aleatoric,
            "epistemic": epistemic,
        }


@saved_record("fitted.FittedTeam", brief=True)
class FittedTeam(Fitted):
    """Fitted classifiers whose votes are averaged.

    Attributes
    ----------
    estimators : tuple of classifier
        The members.
    classes : ndarray of shape (n_classes,)
        Labels of the classes.
    voting : {"soft", "hard"}
        Average the members' probabilities ("soft") or count their labels ("hard").
    weights : ndarray of shape (n_estimators,) or None
        Positive weights of the votes, summing to 1. None means equal weights.
    """

    estimators: tuple[Any, ...]
    classes: np.ndarray
    voting: str
    weights: Any = None

    inputs: ClassVar[ForeignInputs] = ForeignInputs()
    no_keras: ClassVar[str] = "the classifiers of a team need not be networks"

    def votes(self, X: Any) -> np.ndarray:
        """Predict with each classifier: codes (S, n), or probabilities (S, n, C) if soft."""
        return np.stack([predict_votes(m, X, self.voting, self.classes) for m in self.estimators])

    def n_numbers(self) -> int:
        """Count the numbers of the votes for one row."""
        return len(self.estimators) * len(self.classes)

    def distribution(self, X: Any) -> CategoricalMixture:
        """Predict the distribution of each row's class."""
        votes = self.votes(X)
        # A hard vote is a probability of 1.
        proba = votes if self.voting == "soft" else np.eye(len(self.classes))[votes]
        return CategoricalMixture(proba, self.weights)


def predict_votes(model: Any, X: Any, voting: str, classes: np.ndarray) -> np.ndarray:
    """Predict with one classifier: codes (n,), or probabilities (n, C) if voting is soft."""
    if voting == "hard":
        return class_codes(model.predict(X), classes)
    return class_probabilities(model, X, classes)
