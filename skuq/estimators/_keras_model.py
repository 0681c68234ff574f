"""A fitted ensemble as one Keras model: from what its networks get to the mixture's moments.

Notation: n rows, K members, m outputs or classes.
"""

from __future__ import annotations

import numpy as np
from sklearn.utils.validation import check_is_fitted

from skuq.networks import CategoricalHead, PackedHead, QuantileHead
from skuq.predictive._mixture import epistemic_factor

__all__ = ["KerasModelMixin"]

_TINY = 1e-300  # below it a probability counts as 0 in entropies


class KerasModelMixin:
    """The method `to_keras` of ensembles of networks."""

    def to_keras(self):
        """The whole ensemble as one Keras model, for example to be served or exported.

        It holds copies of the weights, with scaling before and mixing after the networks.
        ``model.save("model.keras")`` keeps it (with ``network="tabular"`` a process that loads it
        needs ``from skuq.networks import NumericEmbedding`` first, which makes the layers known),
        and ``model.export(folder)`` writes a SavedModel that needs neither Keras nor skuq.

        Returns
        -------
        keras.Model
            Of float64 inputs of shape (n, n_features), or of images; the networks inside compute
            in float32, so that outputs agree with `predict_uncertainty` to about six digits. Call
            it (``model(X)``) or take `predict_on_batch`: Keras' `predict` rounds X to float32
            first, which years survive and seconds since 1970 do not.
            Inputs are what `preprocessor_.transform` makes of X, and X itself where it holds
            finite numbers only. Outputs are a dictionary with the names of `predict_uncertainty`:
            of regressors "mean", "aleatoric", "epistemic" and "total" of shape (n,) or (n, m), in
            units of y; of classifiers "proba" of shape (n, m), in the order of `classes_`, and
            "total", "aleatoric" and "epistemic" of shape (n,), in nats.

        Raises
        ------
        ValueError
            If predictions are not a function of the members' moments that Keras can compute: with
            ``loss="quantiles"``, a `target_transform`, or of MC dropout.
        """
        check_is_fitted(self)
        self._check_keras_can()
        from skuq.backend import keras, ops
        from skuq.training._weights import keras_model

        networks = [keras_model(member) for member in self._members()]
        for k, network in enumerate(networks):
            network.name, network.trainable = f"member{k}", False
        inputs = keras.Input(networks[0].input_shape[1:], dtype="float64", name="X")
        scaled = ops.cast(self.scaling_.on_tensors(inputs, ops), "float32")
        raw = ops.stack([ops.cast(network(scaled), "float64") for network in networks], axis=1)
        head, weights = self._head, self._mixture_weights(len(networks))
        if isinstance(head, PackedHead):
            weights = np.repeat(weights, head.n_copies) / head.n_copies
            head = head.head
            raw = ops.reshape(raw, (-1, len(weights), head.n_raw))
        outputs = _classes if isinstance(head, CategoricalHead) else _numbers
        return keras.Model(inputs, outputs(self, head, raw, weights, ops), name="ensemble")

    def _check_keras_can(self):
        head = self._head.head if isinstance(self._head, PackedHead) else self._head
        why = None
        if self._dropout_mask is not None:
            why = "MC dropout averages passes that drop units, each its own"
        elif isinstance(head, QuantileHead):
            why = 'moments of loss="quantiles" are integrals'
        elif (transform := self.scaling_.target_transform) is not None:
            why = f"moments with target_transform={transform.kind!r} are integrals"
        if why is not None:
            raise ValueError(
                f"`to_keras` gives the mixture's moments, and {why}. `skuq.save` keeps the "
                "estimator as it is."
            )


def _average(values, weights, ops):
    """Over members: (n, K, ..) to (n, ..)."""
    return ops.sum(values * np.expand_dims(weights, tuple(range(1, len(values.shape) - 1))), axis=1)


def _numbers(model, head, raw, weights, ops):
    """Outputs of a regressor, from raw numbers (n, K, n_raw)."""
    means, stds = head.moments(raw, ops)
    offset, unit = model.scaling_.y_.mean_, model.scaling_.y_.scale_
    mean = _average(means, weights, ops)
    aleatoric = _average(ops.square(stds), weights, ops)
    factor = epistemic_factor(weights, getattr(model, "epistemic_ddof", 0))
    epistemic = factor * _average(ops.square(means - ops.expand_dims(mean, 1)), weights, ops)
    outputs = {
        "mean": mean * unit + offset,
        "aleatoric": ops.sqrt(aleatoric) * unit,
        "epistemic": ops.sqrt(epistemic) * unit,
        "total": ops.sqrt(aleatoric + epistemic) * unit,
    }
    return {name: o[:, 0] for name, o in outputs.items()} if model._y_is_1d else outputs


def _classes(model, head, raw, weights, ops):
    """Outputs of a classifier, from logits (n, K, n_classes)."""
    proba = head.probabilities(raw, ops)

    def entropy(p):
        return -ops.sum(p * ops.log(ops.maximum(p, _TINY)), axis=-1)

    mean = _average(proba, weights, ops)
    total = entropy(mean)
    aleatoric = _average(entropy(proba), weights, ops)
    epistemic = ops.maximum(total - aleatoric, 0.0)
    return {
        "proba": mean,
        "total": aleatoric + epistemic,
        "aleatoric": aleatoric,
        "epistemic": epistemic,
    }
