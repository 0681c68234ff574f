"""Configurations of networks: only of layers that compute, and nothing else.

Keras has a safe mode of its own. It refuses lambdas, but finds classes by names in the
configuration, and some of its own layers read files. So every class that a configuration names
must be on a list here before Keras sees it. Text is all that is looked at: no backend is loaded.
"""

from __future__ import annotations

import json
import math
import re
import sys

import numpy as np

from skuq.exceptions import FileFormatError
from skuq.networks._epinet import EpistemicNetwork
from skuq.networks._plan import make_plan

__all__ = ["check_member", "check_network", "sizes"]


def _names(text):
    return frozenset(text.split())


# Class names by the module that Keras writes with them.
_KERAS = {
    "keras": _names("DTypePolicy Functional Sequential Model"),
    "keras.layers": _names(
        "Activation ActivityRegularization Add AdditiveAttention AlphaDropout Attention Average "
        "AveragePooling1D AveragePooling2D AveragePooling3D BatchNormalization Bidirectional "
        "CategoryEncoding CenterCrop Concatenate Conv1D Conv1DTranspose Conv2D Conv2DTranspose "
        "Conv3D Conv3DTranspose Cropping1D Cropping2D Cropping3D Dense DepthwiseConv1D "
        "DepthwiseConv2D Dot Dropout ELU EinsumDense Embedding Flatten GRU GRUCell "
        "GaussianDropout GaussianNoise GlobalAveragePooling1D GlobalAveragePooling2D "
        "GlobalAveragePooling3D GlobalMaxPooling1D GlobalMaxPooling2D GlobalMaxPooling3D "
        "GroupNormalization GroupQueryAttention Identity InputLayer LSTM LSTMCell "
        "LayerNormalization LeakyReLU Masking MaxPooling1D MaxPooling2D MaxPooling3D Maximum "
        "Minimum MultiHeadAttention Multiply Normalization PReLU Permute RMSNormalization ReLU "
        "RepeatVector Rescaling Reshape Resizing SeparableConv1D SeparableConv2D SimpleRNN "
        "SimpleRNNCell Softmax SpatialDropout1D SpatialDropout2D SpatialDropout3D "
        "SpectralNormalization Subtract TimeDistributed UnitNormalization UpSampling1D "
        "UpSampling2D UpSampling3D ZeroPadding1D ZeroPadding2D ZeroPadding3D"
    ),
    "keras.initializers": _names(
        "Constant GlorotNormal GlorotUniform HeNormal HeUniform Identity LecunNormal "
        "LecunUniform Ones Orthogonal RandomNormal RandomUniform TruncatedNormal "
        "VarianceScaling Zeros"
    ),
    "keras.regularizers": _names("L1 L2 L1L2 OrthogonalRegularizer"),
    "keras.constraints": _names("MaxNorm MinMaxNorm NonNeg UnitNorm"),
    "keras.optimizers": _names(
        "Adadelta Adafactor Adagrad Adam AdamW Adamax Ftrl Lion Nadam RMSprop SGD"
    ),
    "keras.losses": _names("Huber LogCosh MeanAbsoluteError MeanSquaredError"),
    "keras.src.models.functional": _names("Functional"),
    "keras.src.models.sequential": _names("Sequential"),
    "keras.src.ops.numpy": _names(
        "Absolute Add Arctan Average BroadcastTo Clip Concatenate Cos Divide Einsum Exp "
        "ExpandDims Expm1 Flip GetItem Log Log1p LogicalAnd LogicalNot LogicalOr Matmul Max "
        "Maximum Mean Min Minimum Moveaxis Multiply Negative OnesLike Power Prod Ravel Repeat "
        "Reshape Sign Sin Sqrt Square Squeeze Stack Std Subtract Sum Swapaxes Tan Tanh Tile "
        "Transpose TrueDivide Var Where ZerosLike"
    ),
    "keras.src.ops.nn": _names(
        "Elu Gelu HardSigmoid LeakyRelu LogSigmoid LogSoftmax Relu Relu6 Selu Sigmoid Silu Softmax "
        "Softplus Softsign"
    ),
    "keras.src.ops.core": _names("Cast StopGradient"),
}
# Layers and initialisers of this package, as they are registered with Keras.
_OWN = frozenset(
    f"skuq>{name}"
    for name in _names(
        "CategoryEmbedding EnsembleDense FeatureScale FirstRowZero NTKDense NumericEmbedding "
        "ParametricActivation RandomSigns Repeat SameRows"
    )
)
# Functions, which Keras writes by name: activations, initialisers and losses.
_FUNCTIONS = _names(
    "celu elu exponential gelu glu hard_shrink hard_sigmoid hard_silu hard_tanh leaky_relu linear "
    "log_sigmoid log_softmax mish relu relu6 selu sigmoid silu soft_shrink softmax softplus "
    "softsign sparse_plus sparse_sigmoid sparsemax squareplus swish tanh tanh_shrink threshold "
    "glorot_normal glorot_uniform he_normal he_uniform lecun_normal lecun_uniform ones "
    "orthogonal random_normal random_uniform zeros mean_absolute_error mean_squared_error"
)
# What Keras writes for values that JSON has no word for, without a module.
_VALUES = _names("__ellipsis__ __keras_tensor__ __numpy__ __slice__ __tensor__ __tuple__")
_DTYPE = re.compile("b?float(16|32|64)|u?int(8|16|32|64)|bool")


def check_member(state: dict, where) -> None:
    """Refuse the fields of a `Member` whose network is not safe, or not that of its weights."""
    network, weights, held = (state[name] for name in ("network", "weights", "state"))
    if type(network) is not str:
        raise FileFormatError(f"{where} has no network")
    check_network(network, where)
    if not (type(held) is tuple and all(type(part) is np.ndarray for part in held)):
        raise FileFormatError(f"{where} has a state that is no tuple of arrays")
    if weights is None:
        return
    if type(weights) is not np.ndarray or weights.ndim != 1 or weights.dtype != np.float32:
        raise FileFormatError(f"{where} has weights that are no vector of float32")
    n_weights, n_state = sizes(network, where)
    if n_weights not in (None, len(weights)):
        raise FileFormatError(f"{where} has {len(weights)} weights, its network {n_weights}")
    if n_state not in (None, len(held)):
        raise FileFormatError(f"{where} has {len(held)} arrays of state, its network {n_state}")


def check_network(network: str, where) -> None:
    """Refuse a network's JSON unless all that it names is known to compute and no more.

    Raises
    ------
    FileFormatError
    """
    try:
        # The hook sees every object of the text, innermost first.
        config = json.loads(network, object_hook=_checked)
        if config["class_name"] in ("Functional", "Sequential"):
            if type(config["config"]["layers"]) is not list:
                raise FileFormatError("it has no layers")
        elif config["class_name"] == EpistemicNetwork.__name__:
            EpistemicNetwork.from_json(network)
    # A configuration may be wrong in any way, and so may what reads it.
    except Exception as error:
        reason = str(error) if isinstance(error, FileFormatError) else f"{error!r:.200}"
        raise FileFormatError(f"{where} has a network that is not loaded: {reason}") from error


def sizes(network: str, where) -> tuple[int | None, int | None]:
    """Numbers of weights and of state arrays of a checked network; None where not known.

    They are read off the configuration: nothing of the sizes that it declares is made.
    """
    try:
        if json.loads(network)["class_name"] == EpistemicNetwork.__name__:
            read = EpistemicNetwork.from_json(network)
            if isinstance(read.base, str):  # a Keras model
                return None, None
            parts = [part for part in (read.base, read.epinet) if part is not None]
            return sum(math.prod(shape) for part in parts for shape in part.shapes), None
        plan = make_plan(network)
        if plan is None:
            return None, None
        return sum(math.prod(weight.shape) for weight in plan.weights), plan.n_state
    except Exception as error:
        raise FileFormatError(f"{where} has a network that is not read: {error!r:.200}") from error


def _checked(item):
    """An object of a network's JSON, if what it names is on the list."""
    if "class_name" in item and not _is_allowed(
        item["class_name"], item.get("module"), item.get("registered_name"), item.get("config")
    ):
        name, module = (str(item.get(key))[:60] for key in ("class_name", "module"))
        raise FileFormatError(
            f"{name!r} of {module!r} is not among the layers that are loaded. A class of your own "
            "has to be registered with keras.saving.register_keras_serializable before"
        )
    return item


def _is_allowed(name, module, registered, config):
    if any(type(text) is not str and text is not None for text in (name, module, registered)):
        return False
    if name == EpistemicNetwork.__name__ and module is None:  # no business of Keras
        return True
    if name in _VALUES:
        # A constant's type is the only word in it that Keras looks up.
        is_constant = name in ("__numpy__", "__tensor__")
        return not is_constant or _DTYPE.fullmatch(str(config.get("dtype"))) is not None
    if name == "function":
        is_known = type(config) is str and config in _FUNCTIONS
        return (
            is_known and module in ("builtins", None) and registered in ("function", None, config)
        )
    if registered in _OWN:
        return name == registered.partition(">")[2]
    if module in _KERAS and registered in (None, name):
        return name in _KERAS[module]
    return _is_registered(registered)


def _is_registered(name):
    """Whether the user has told Keras of this class, in this process."""
    # Asked only where Keras is loaded: nothing can have been registered otherwise.
    keras = sys.modules.get("keras")
    if keras is None or name is None or ">" not in name:
        return False
    return keras.saving.get_registered_object(name) is not None
