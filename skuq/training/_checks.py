"""Check that a network can be trained and stored, and afterwards that it did not diverge."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from skuq import backend
from skuq._utils._messages import warn_user
from skuq.catalog._records import Member
from skuq.exceptions import SearchSpaceError
from skuq.networks._keras_models import (
    build_of_shape,
    check_rebuild,
    forget_compilation,
    freeze_inner_layers,
    frozen_variables,
    wrong_sum,
)
from skuq.networks._plan import make_plan

# Layers and operations that only apply an activation.
_ACTIVATIONS = (
    *("celu", "elu", "gelu", "hardsigmoid", "hardtanh", "leakyrelu", "logsigmoid", "logsoftmax"),
    *("prelu", "relu", "relu6", "selu", "sigmoid", "silu", "softmax", "softplus", "softsign"),
    *("exp", "hardshrink", "softshrink", "sparsemax", "squareplus", "tanh", "threshold"),
)


@backend.in_thread
def build_checked(
    build: Callable[..., Any], input_shape: tuple[int, ...], n_raw: int, source: str
) -> Any:
    """Build the Keras model of a user's function, and check it.

    Parameters
    ----------
    build : callable
        ``build(input_shape, n_outputs) -> keras.Model``.
    source : str
        Name of the function's origin, with which error messages begin ("The search space").
    """
    model = build_of_shape(build, input_shape, n_raw, source)
    freeze_inner_layers(model)
    forget_compilation(model)
    _check_last_activation(model, source)
    if not model.trainable_variables:
        raise SearchSpaceError(f"{source} returned a model without trainable weights.")
    _check_layers(model, source)
    if fault := wrong_sum(model):
        raise SearchSpaceError(f"{source} returned a model in which {fault}")
    # A member is stored as its configuration, from which its model is rebuilt to predict. A plan
    # is made of the configuration alone, so that such a model needs no check.
    if make_plan(model.to_json()) is None:
        try:
            check_rebuild(model)
        except Exception as error:
            raise SearchSpaceError(
                f"{source} returned a model that cannot be rebuilt from its configuration: {error}."
            ) from error
    return model


def _check_last_activation(model: Any, source: str) -> None:
    """Raise SearchSpaceError if the outputs of a model come from one of Keras' activations."""
    tensor = model.outputs[0]
    while True:  # go into models, and back over changes of the shape
        last, index, _ = tensor._keras_history
        name = type(last).__name__
        if isinstance(last, backend.keras.Model) and hasattr(last, "outputs"):
            tensor = last.outputs[0]
        elif name in ("Dropout", "Flatten", "Identity", "Reshape"):
            tensor = last._inbound_nodes[index].input_tensors[0]
        else:
            break
    if name.lower() not in _ACTIVATIONS:
        name = "linear"
        # A layer of the user's may apply its activation anywhere.
        if type(last).__module__.startswith("keras."):
            activation = getattr(last, "activation", None)
            known = vars(backend.keras.activations)
            name = next((one for one, f in known.items() if f is activation), name)
    if name != "linear":
        raise SearchSpaceError(
            f"{source} returned a model that ends with the activation {name!r}. Its outputs are "
            "parameters of a distribution, such as logits of classes, or a mean and a raw standard "
            "deviation. End with a layer without activation, such as Dense(n_outputs)."
        )


def _check_layers(model: Any, source: str) -> None:
    """Raise SearchSpaceError if layers do not compute float32, or hold what is not supported."""
    layers = list(model._flatten_layers())
    types = {str(v.dtype) for v in model.trainable_variables}
    types |= {layer.compute_dtype for layer in layers}
    types |= {str(x.dtype) for x in model.inputs} & {"float16", "bfloat16"}  # these round X
    if types != {"float32"}:
        raise SearchSpaceError(
            f"{source} must return a model that takes, holds and computes float32. Got "
            f"{sorted(types)}. Give its inputs and layers dtype='float32', or unset a global "
            "dtype policy and float type."
        )
    for layer in layers:
        for name in vars(layer):
            if name.endswith("_constraint") and getattr(layer, name) is not None:
                raise SearchSpaceError(
                    f"Layer {layer.name!r} has a {name}, and training programs apply no "
                    "constraints. Remove it, or use a regularizer."
                )
        if frozen := frozen_variables(layer):
            raise SearchSpaceError(
                f"{source} returned a model with the frozen variable {frozen[0]!r} in layer "
                f"{layer.name!r}. Its configuration does not hold this. Freeze the whole layer."
            )


def find_completed(members: Sequence[Member | FloatingPointError]) -> list[int]:
    """Find the positions of members that did not diverge, and warn if some did.

    A member whose training loss stopped being finite is left out even if an earlier epoch was
    finite, because a single bad member ruins a mixture. Raises FloatingPointError if all members
    diverged.
    """
    kept = [k for k, member in enumerate(members) if not has_diverged(member)]
    if not kept:
        what = "The network" if len(members) == 1 else f"All {len(members)} networks"
        first = "."
        if isinstance(members[0], Exception):
            first = f", the first with: {str(members[0]).rstrip('.')}."
        raise FloatingPointError(
            f"{what} diverged{first} Try a smaller `learning_rate`, weaker penalties, or "
            "`training=Training(clip_norm=1.0)`."
        )
    if len(kept) < len(members):
        warn_user(
            f"{len(members) - len(kept)} of {len(members)} networks diverged and were left out."
        )
    return kept


def has_diverged(member: Member | FloatingPointError) -> bool:
    """Tell whether training failed, or the loss was not finite in every epoch."""
    if isinstance(member, FloatingPointError):
        return True
    return not bool(np.isfinite(member.history["loss"]).all())
