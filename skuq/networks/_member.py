"""Members: trained networks as data, whose configurations name only layers that compute.

Keras has a safe mode of its own. It refuses lambdas, but finds classes by names in the
configuration, and some of its layers read files. Therefore every class that a configuration
names must be on a list here before Keras sees it. The check reads only text and loads no backend.
"""

import json
import re
from dataclasses import replace
from typing import Any, Self

import numpy as np

from skuq import backend
from skuq.exceptions import FileFormatError
from skuq.files._registry import saved_record
from skuq.networks._operations import TABULAR_READERS


def _names(text):
    return frozenset(text.split())


# Modules all of whose classes only compute, as Keras writes them.
_COMPUTING_MODULES = _names(
    "keras.constraints keras.initializers keras.regularizers keras.src.ops.image "
    "keras.src.ops.math keras.src.ops.nn keras.src.ops.numpy"
)
# Allowed class names of other modules. Classes that run functions, wrap other libraries' objects or
# read files (vocabularies) are left out.
_KERAS = {
    "keras": _names("DTypePolicy Functional Model Sequential"),
    "keras.layers": _names(
        "Activation ActivityRegularization AdaptiveAveragePooling1D AdaptiveAveragePooling2D "
        "AdaptiveAveragePooling3D AdaptiveMaxPooling1D AdaptiveMaxPooling2D AdaptiveMaxPooling3D "
        "Add AdditiveAttention AlphaDropout Attention AugMix AutoContrast Average "
        "AveragePooling1D AveragePooling2D AveragePooling3D BatchNormalization Bidirectional "
        "CategoryEncoding CenterCrop Concatenate ContrastLimitedAdaptiveHistogramEqualization "
        "Conv1D Conv1DTranspose Conv2D Conv2DTranspose Conv3D Conv3DTranspose ConvLSTM1D "
        "ConvLSTM2D ConvLSTM3D Cropping1D Cropping2D Cropping3D CutMix Dense DepthwiseConv1D "
        "DepthwiseConv2D Discretization Dot Dropout ELU EinsumDense Embedding Equalization "
        "Flatten GRU GRUCell GaussianDropout GaussianNoise GlobalAveragePooling1D "
        "GlobalAveragePooling2D GlobalAveragePooling3D GlobalMaxPooling1D GlobalMaxPooling2D "
        "GlobalMaxPooling3D GroupNormalization GroupQueryAttention "
        "HashedCrossing Hashing Identity InputLayer LSTM LSTMCell LayerNormalization LeakyReLU "
        "Masking MaxNumBoundingBoxes MaxPooling1D MaxPooling2D MaxPooling3D Maximum "
        "MelSpectrogram Minimum MixUp MultiHeadAttention Multiply Normalization PReLU Permute "
        "RMSNormalization RNN RandAugment RandomBrightness RandomColorDegeneration "
        "RandomColorJitter RandomContrast RandomCrop RandomElasticTransform RandomErasing "
        "RandomFlip RandomGaussianBlur RandomGrayscale RandomHue RandomInvert RandomPerspective "
        "RandomPosterization RandomRotation RandomSaturation RandomSharpness RandomShear "
        "RandomTranslation RandomZoom ReLU RepeatVector Rescaling Reshape Resizing "
        "ReversibleEmbedding STFTSpectrogram SeparableConv1D SeparableConv2D SimpleRNN "
        "SimpleRNNCell Softmax Solarization SpatialDropout1D SpatialDropout2D SpatialDropout3D "
        "SpectralNormalization StackedRNNCells Subtract TimeDistributed UnitNormalization "
        "UpSampling1D UpSampling2D UpSampling3D ZeroPadding1D ZeroPadding2D ZeroPadding3D"
    ),
    "keras.src.models.functional": _names("Functional"),
    "keras.src.models.sequential": _names("Sequential"),
    "keras.src.ops.core": _names(
        "Cast ConvertToTensor SaturateCast Scatter ScatterUpdate Slice SliceUpdate StopGradient "
        "Unstack"
    ),
    "keras.src.ops.einops": _names("Rearrange"),
    "keras.src.ops.linalg": _names(
        "Cholesky CholeskyInverse Det Eig Eigh Inv Lstsq LuFactor MatrixRank Norm Pinv Qr SVD "
        "Solve SolveTriangular"
    ),
}
# Layers and initialisers of this package, as they are registered with Keras.
_OWN = {*TABULAR_READERS, "skuq>FirstRowZero"}
# Functions, which Keras writes by name: activations and initialisers.
_FUNCTIONS = _names(
    "celu elu exponential gelu glorot_normal glorot_uniform glu hard_shrink hard_sigmoid hard_silu "
    "hard_swish hard_tanh he_normal he_uniform leaky_relu lecun_normal lecun_uniform linear "
    "log_sigmoid mish ones orthogonal random_normal random_uniform relu relu6 selu sigmoid silu "
    "soft_shrink softmax softplus softsign sparse_plus sparse_sigmoid sparsemax squareplus swish "
    "tanh tanh_shrink threshold zeros"
)
# Names that Keras writes, without a module, for values that JSON does not have.
_VALUES = _names("__ellipsis__ __keras_tensor__ __numpy__ __slice__ __tensor__ __tuple__")
_DTYPE = re.compile("b?float(16|32|64)|u?int(8|16|32|64)|bool")


def check_network(network: str) -> None:
    """Raise FileFormatError unless a network's JSON names only classes known to compute."""
    try:
        # json calls the hook for every object of the text, innermost first.
        json.loads(network, object_hook=_check_item)
    # A hostile configuration can cause any error.
    except Exception as error:
        reason = str(error) if isinstance(error, FileFormatError) else f"{error!r:.200}"
        raise FileFormatError(f"its network is not loaded: {reason}") from error


def _check_item(item):
    """Return an object of a network's JSON if the class that it names is allowed."""
    if "class_name" not in item or _is_allowed(
        item["class_name"], item.get("module"), item.get("registered_name"), item.get("config")
    ):
        return item
    # Explain what is refused, and what helps.
    name, module = (str(item.get(key))[:60] for key in ("class_name", "module"))
    if name == "__lambda__":
        raise FileFormatError(
            "a Lambda layer ('__lambda__') holds code. Use keras.ops, or a layer of your own"
        )
    if name == "function":  # Keras writes the module "builtins" for every function
        name = f"function {str(item.get('config'))[:60]}"
    advice = ""
    if module.partition(".")[0] != "keras" and not name.startswith("__"):
        advice = (
            ". A class or function of your own has to be registered with "
            "keras.saving.register_keras_serializable before"
        )
    raise FileFormatError(f"{name!r} of {module!r} is not among what is loaded{advice}")


def _is_allowed(name, module, registered, config):
    """Tell whether a class or function is on the lists, or registered by the user."""
    if any(type(text) is not str and text is not None for text in (name, module, registered)):
        return False
    if name == "EpistemicNetwork" and module is None:  # read by skuq, not by Keras
        return True
    if name in _VALUES:
        # The dtype of a constant is the only name in it that Keras looks up.
        is_constant = name in ("__numpy__", "__tensor__")
        return not is_constant or _DTYPE.fullmatch(str(config.get("dtype"))) is not None
    if name == "function":
        is_known = type(config) is str and config in _FUNCTIONS
        return (
            is_known and module in ("builtins", None) and registered in ("function", None, config)
        )
    if registered in _OWN:
        return name == registered.partition(">")[2]
    if module in _COMPUTING_MODULES and registered in (None, name):
        return name[:1].isupper()  # a class, not a function
    if module in _KERAS and registered in (None, name):
        return name in _KERAS[module]
    # Without Keras loaded, the user cannot have registered the class with it in this process.
    if backend.loaded("keras") is None or registered is None or ">" not in registered:
        return False
    return backend.keras.saving.get_registered_object(registered) is not None


@saved_record("networks.Member", check=lambda state: check_network(state["network"]))
class Member:
    """A trained network as data: configuration, weights and history of the training.

    Attributes
    ----------
    network : str
        Configuration of the Keras model, as JSON.
    weights : ndarray of shape (n_weights,), float32, or None
        Trainable weights of the kept epoch, flattened and concatenated in Keras' order. None if
        they were dropped to keep a file small.
    state : tuple of ndarray
        Non-trainable variables of the kept epoch, in Keras' order.
    history : dict of str to ndarray of shape (n_epochs,)
        `loss`, `val_loss` (in units of the standardised y; NaN without validation rows) and
        `learning_rate` of each epoch, after reductions on plateaus and without the factors of
        schedules and `epoch_rates`.
    best_epoch : int
        Number of the epoch whose weights were kept, from 0.
    held_out : ndarray of shape (n_held_out, n_raw), float32, or None
        Raw outputs on the validation rows, followed by those on shifted rows, if there are any.
    seed : int
        Seed of initial weights and batch order.
    seconds : float
        Duration of training, without the compilation of its program.
    tier : str
        Compilation of the training program, "xla" or "graph".

    Examples
    --------
    >>> import numpy as np
    >>> from skuq.networks import Member
    >>> history = {
    ...     "loss": np.array([3.0, 2.0]), "val_loss": np.array([1.5, 0.5]),
    ...     "learning_rate": np.array([0.1, 0.1]),
    ... }
    >>> member = Member(
    ...     "{}", np.ones(4, "float32"), (), history, best_epoch=1, held_out=None, seed=1,
    ...     seconds=0.1, tier="graph",
    ... )
    >>> member.n_epochs, member.n_weights, member.score
    (2, 4, 0.5)
    """

    network: str
    weights: np.ndarray | None
    state: tuple[np.ndarray, ...]
    history: dict[str, np.ndarray]
    best_epoch: int
    held_out: np.ndarray | None
    seed: int
    seconds: float
    tier: str

    def __repr__(self) -> str:
        epochs = f"best epoch {self.best_epoch + 1} of {self.n_epochs}"
        score = f"score {self.score:.4g}, {self.seconds:.1f} s"
        return f"Member({self.n_weights} weights, {epochs}, {score})"

    @property
    def networks(self) -> tuple[Self, ...]:
        """This network as a tuple, as `FoldedMember` has several."""
        return (self,)

    @property
    def n_epochs(self) -> int:
        """Number of epochs trained."""
        return len(self.history["loss"])

    @property
    def n_weights(self) -> int:
        """Number of trained weights."""
        return 0 if self.weights is None else self.weights.size

    @property
    def score(self) -> float:
        """Loss of the best epoch, on validation rows if there are any. Smaller is better."""
        watched = self.history["val_loss"]
        watched = self.history["loss"] if np.isnan(watched).all() else watched
        return float(watched[self.best_epoch])

    def with_held_out(self, raw: np.ndarray | None) -> Self:
        """Copy the record with other raw outputs on the validation rows."""
        return replace(self, held_out=raw)

    def without_arrays(self) -> Self:
        """Copy the record without weights and held-out predictions."""
        return replace(self, weights=None, state=(), held_out=None)


def checked_network(member: Any) -> str:
    """Return the network of a `Member`, which was checked if it comes from a file.

    In the place of members a file can hold other objects, whose networks were not.
    """
    if type(member) is not Member:
        raise TypeError(f"A {type(member).__name__} is no member of an ensemble.")
    return member.network


@saved_record("networks.FoldedMember")
class FoldedMember:
    """The networks of one trial with cross-validation, one for each fold.

    Together they are one candidate of the search, which predicts their mixture.

    Attributes
    ----------
    networks : tuple of Member
        One for each fold. Their `held_out` is None, since predictions are in `held_out` below.
    held_out : ndarray of shape (n_held_out, n_raw), float32, or None
        Raw outputs on all rows, each of the network that was not trained on the row. The variance
        of numbers' predictions includes that of the means of all networks. Raw outputs of the
        networks' mixture on shifted rows follow.
    score : float
        Weighted mean over rows of the head's `scores` of `held_out`, or of several trainings the
        mean of their scores. Smaller is better.
    center : ndarray of shape (n_rows, n_outputs), float32, or None
        For numbers: mean of the mixture of all networks, on all rows.
    """

    networks: tuple[Member, ...]
    held_out: np.ndarray | None
    score: float
    center: np.ndarray | None = None

    def __repr__(self) -> str:
        return (
            f"FoldedMember({len(self.networks)} networks, {self.n_weights} weights, "
            f"score {self.score:.4g})"
        )

    @property
    def n_weights(self) -> int:
        """Number of trained weights of all networks."""
        return sum(network.n_weights for network in self.networks)

    @property
    def seconds(self) -> float:
        """Seconds of training of all networks, without compilation."""
        return sum(network.seconds for network in self.networks)

    @property
    def n_epochs(self) -> int:
        """Number of epochs trained, averaged over networks."""
        return round(float(np.mean([network.n_epochs for network in self.networks])))

    @property
    def best_epoch(self) -> int:
        """Number of the kept epoch, averaged over networks."""
        return round(float(np.mean([network.best_epoch for network in self.networks])))

    def without_arrays(self) -> Self:
        """Copy the record without weights and held-out predictions."""
        networks = tuple(network.without_arrays() for network in self.networks)
        return replace(self, networks=networks, held_out=None, center=None)
