"""Convert a fitted ensemble to one Keras model, from encoded inputs to the mixture's moments.

Notation: n rows, K members, m outputs or classes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from skuq import backend, training
from skuq.fitted._protocol import refuse_keras
from skuq.networks import CategoricalHead, PackedHead, QuantileHead
from skuq.predictive._mixture import epistemic_factor
from skuq.tables import NumberTargets

_TINY = 1e-300  # smaller probabilities count as 0 in entropies


def ensemble_to_keras(ensemble: Any, ddof: int = 0) -> Any:
    """Build one Keras model with copies of the members' weights; see `to_keras` of the estimators.

    Raises ValueError if the mixture's moments cannot be computed in Keras.
    """
    _check(ensemble)
    keras, ops = backend.keras, backend.ops
    networks = [training.keras_model(member) for member in ensemble.members]
    for k, network in enumerate(networks):
        network.name, network.trainable = f"member{k}", False
    inputs = keras.Input(networks[0].input_shape[1:], dtype="float64", name="X")
    # Scale in double precision; the networks compute in the single precision of their weights.
    scaled = ops.cast(ensemble.inputs.transform(inputs, ops), "float32")
    # Raw outputs (n, K, n_raw); with packed heads the copies become members, too.
    raws = [keras.tree.flatten(network(scaled))[0] for network in networks]  # may be in a list
    raw = ops.stack([ops.cast(of_member, "float64") for of_member in raws], axis=1)
    head, weights = ensemble.targets.head, ensemble.raw_weights
    if isinstance(head, PackedHead):
        weights = np.repeat(weights, head.n_copies) / head.n_copies
        head = head.head
        raw = ops.reshape(raw, (-1, len(weights), head.n_raw))
    if isinstance(head, CategoricalHead):
        outputs = _class_outputs(head, raw, weights, ops)
    else:
        outputs = _number_outputs(ensemble.targets, head, raw, weights, ddof, ops)
    return keras.Model(inputs, outputs, name="ensemble")


def _check(ensemble: Any) -> None:
    """Raise ValueError if the ensemble cannot become one Keras model."""
    head, targets = ensemble.targets.head, ensemble.targets
    head = head.head if isinstance(head, PackedHead) else head
    if ensemble.passes is not None:
        refuse_keras("MC dropout averages passes with different dropped units")
    if isinstance(head, QuantileHead):
        refuse_keras('those of loss="quantiles" are integrals')
    if targets.is_transformed:
        refuse_keras(f"those with target_transform={targets.scaling.kind!r} are integrals")


def _average(values: Any, weights: np.ndarray, ops: Any) -> Any:
    """Average values (n, K, ..) over members, to (n, ..)."""
    return ops.sum(values * np.expand_dims(weights, tuple(range(1, len(values.shape) - 1))), axis=1)


def _number_outputs(
    targets: NumberTargets,
    head: Any,
    raw: Any,
    weights: np.ndarray,
    ddof: int,
    ops: Any,
) -> dict[str, Any]:
    """Compute the outputs of a regressor from raw numbers (n, K, n_raw)."""
    means, stds = head.moments(raw, ops)
    means, stds = targets.calibrate(means, stds, weights, ops, axis=1)
    # Law of total variance, as in `Mixture`, in standardised units.
    mean = _average(means, weights, ops)
    aleatoric = _average(ops.square(stds), weights, ops)
    factor = epistemic_factor(weights, ddof)
    epistemic = factor * _average(ops.square(means - ops.expand_dims(mean, 1)), weights, ops)
    stds = {
        "aleatoric": ops.sqrt(aleatoric),
        "epistemic": ops.sqrt(epistemic),
        "total": ops.sqrt(aleatoric + epistemic),
    }
    # Means are shifted and scaled back, standard deviations scaled only.
    outputs = {"mean": targets.restore(mean, 1.0)[0]}
    outputs |= {name: targets.restore(0.0, std)[1] for name, std in stds.items()}
    return {name: o[:, 0] for name, o in outputs.items()} if targets.is_1d else outputs


def _class_outputs(
    head: CategoricalHead, raw: Any, weights: np.ndarray, ops: Any
) -> dict[str, Any]:
    """Compute the outputs of a classifier from logits (n, K, n_classes)."""
    proba = head.probabilities(raw, ops)

    def entropy(p: Any) -> Any:
        return -ops.sum(p * ops.log(ops.maximum(p, _TINY)), axis=-1)

    mean = _average(proba, weights, ops)
    # Total entropy is the members' mean entropy plus mutual information (`CategoricalMixture`).
    total = entropy(mean)
    aleatoric = _average(entropy(proba), weights, ops)
    epistemic = ops.maximum(total - aleatoric, 0.0)
    return {
        "proba": mean,
        "total": aleatoric + epistemic,
        "aleatoric": aleatoric,
        "epistemic": epistemic,
    }
