"""Keras layers for tables: embeddings of numbers and categories, dense layers, activations.

Each layer runs the operation of `_operations.py` that a plan runs for it, so that training
in a stack, prediction in NumPy and Keras itself share one implementation. A variable is
initialised by the layer's attribute ``<name>_initializer``.
"""

import functools
import math
from numbers import Integral

import numpy as np

from skuq._params import check_count
from skuq.backend import keras, ops
from skuq.networks._operations import TABULAR_READERS, NoPlan, Run, tensors

_registered = keras.saving.register_keras_serializable(package="skuq")


_standard_normal = functools.partial(keras.initializers.RandomNormal, stddev=1.0)


@_registered
class FirstRowZero(keras.initializers.RandomNormal):
    """Initializer of normal numbers, with zeros in the first entry of the first axis."""

    def __call__(self, shape, dtype=None):
        numbers = super().__call__(shape, dtype=dtype)
        return ops.concatenate([ops.zeros_like(numbers[:1]), numbers[1:]], axis=0)


class _TabularLayer(keras.layers.Layer):
    """Base class of layers that run an operation of `_operations.py`, by the name they register."""

    _names: tuple[str, ...] = ()  # names of the trainable variables
    _state_names: tuple[str, ...] = ()  # names of the other variables
    _settings: tuple[str, ...] = ()  # names of attributes that the configuration holds

    def get_config(self):
        settings = {name: getattr(self, name) for name in self._settings}
        return {**super().get_config(), **settings}

    def _spec(self, input_shape):
        """Make the layer's specification for inputs of this shape, or raise ValueError."""
        shape = tuple(input_shape)
        if len(shape) != 2 or shape[1] is None:
            raise ValueError(
                f"{type(self).__name__} takes inputs of shape (n_samples, n_features). Got {shape}."
            )
        try:
            read = TABULAR_READERS[keras.saving.get_registered_name(type(self))]
            return read(self.get_config(), [shape[1:]])
        except NoPlan:
            raise ValueError(
                f"{type(self).__name__} cannot take inputs of {shape[1]} features with the "
                f"settings {self.get_config()}."
            ) from None

    def build(self, input_shape):
        spec = self._spec(input_shape)
        self._operation = spec.operation
        for name, weight in zip(self._names, spec.weights, strict=True):
            variable = self.add_weight(
                shape=weight.shape,
                initializer=getattr(self, f"{name}_initializer"),
                regularizer=getattr(self, f"{name}_regularizer", None),
                name=name,
            )
            setattr(self, name, variable)

    def call(self, x):
        weights, state = (
            [getattr(self, name) for name in names] for names in (self._names, self._state_names)
        )
        return self._operation(Run(tensors()), weights, state, x)[0]

    def compute_output_shape(self, input_shape):
        return (input_shape[0], *self._spec(input_shape).shape)


@_registered
class FeatureScale(_TabularLayer):
    """Multiply every feature by a trained weight, which starts at 1.

    With a larger learning rate than later layers, it acts as a soft selection of features.

    References
    ----------
    D. Holzmueller, L. Grinsztajn and I. Steinwart, "Better by default: strong pre-tuned MLPs
    and boosted trees on tabular data", NeurIPS 2024, section 3.

    Examples
    --------
    >>> import numpy as np
    >>> from skuq.networks._tabular_layers import FeatureScale
    >>> np.asarray(FeatureScale()(np.array([[0.5, 2.0]])))
    array([[0.5, 2. ]], dtype=float32)
    """

    _names = ("scale",)
    scale_initializer = keras.initializers.Ones()


@_registered
class Unclip(_TabularLayer):
    """Undo the smooth clip of inputs, for a part of a network that is linear in X."""


@_registered
class ParametricActivation(_TabularLayer):
    """Apply ``x + alpha * (f(x) - x)``, with a trained alpha for each feature that starts at 1.

    Parameters
    ----------
    activation : str
        Keras' name of f.

    References
    ----------
    Holzmueller et al., 2024, as in `FeatureScale`.

    Examples
    --------
    >>> import numpy as np
    >>> from skuq.networks._tabular_layers import ParametricActivation
    >>> np.asarray(ParametricActivation("relu")(np.array([[-1.0, 2.0]])))
    array([[0., 2.]], dtype=float32)
    """

    _names, _settings = ("alpha",), ("activation",)
    alpha_initializer = keras.initializers.Ones()

    def __init__(self, activation, **kwargs):
        super().__init__(**kwargs)
        self.activation = keras.activations.serialize(keras.activations.get(activation))


@_registered
class NTKDense(_TabularLayer):
    """Dense layer in the neural tangent parametrisation: ``x @ kernel / sqrt(d) + bias``.

    Kernel and bias are initialised as standard normal numbers. A learning rate then has the same
    effect in layers of any width, and good rates are larger than for `keras.layers.Dense`.

    Parameters
    ----------
    units : int
        Number of outputs.
    zero : bool, default=False
        Initialise kernel and bias to 0.

    References
    ----------
    A. Jacot, F. Gabriel and C. Hongler, "Neural tangent kernel", NeurIPS 2018; Holzmueller et
    al., 2024, as in `FeatureScale`.

    Examples
    --------
    >>> import numpy as np
    >>> from skuq.networks._tabular_layers import NTKDense
    >>> tuple(NTKDense(4)(np.ones((5, 3))).shape)
    (5, 4)
    """

    _names, _settings = ("kernel", "bias"), ("units", "zero")

    def __init__(self, units, zero=False, **kwargs):
        super().__init__(**kwargs)
        self.units, self.zero = check_count("units", units), zero
        # Standard normal at any width: the operation divides by sqrt(d) in each call.
        for name in self._names:
            initializer = keras.initializers.Zeros if zero else _standard_normal
            setattr(self, f"{name}_initializer", initializer())


@_registered
class NumericEmbedding(_TabularLayer):
    """Replace each number by a vector, a function that is trained for each column.

    The output has the embeddings, column after column, and then the columns that are not embedded.

    Parameters
    ----------
    kind : {"periodic", "piecewise-linear"}, default="periodic"
        "periodic" (PBLD): a linear map of ``cos(2 pi w x + b)`` with trained frequencies w and
        phases b, and the column itself, which counts in `dim`; all columns then follow after the
        embeddings. "piecewise-linear": a linear map of the share of each bin that lies below x.
    columns : sequence of int, optional
        Columns to embed, by default all. Other columns are passed through.
    dim : int, default=4
        Length of the vector of each column.
    n_frequencies : int, default=16
        Number of frequencies of periodic embeddings.
    scale : float, default=0.1
        Standard deviation of the initial frequencies, for columns of scale 1. Larger values let
        the network's function change more quickly.
    edges : array-like of shape (n_columns, n_bins + 1), optional
        Increasing edges of the bins, needed by "piecewise-linear". A column with fewer bins
        repeats its last edge. They are state, so that other edges need no new compilation.

    References
    ----------
    Y. Gorishniy, I. Rubachev and A. Babenko, "On embeddings for numerical features in tabular
    deep learning", NeurIPS 2022 (piecewise linear); Holzmueller et al., 2024, as in
    `FeatureScale` (PBLD).

    Examples
    --------
    >>> import numpy as np
    >>> from skuq.networks import NumericEmbedding
    >>> tuple(NumericEmbedding(columns=[0], dim=4)(np.ones((5, 3))).shape)  # 4 and 2 columns
    (5, 6)
    """

    _settings = ("kind", "columns", "dim", "n_frequencies", "scale")

    def __init__(
        self,
        kind="periodic",
        columns=None,
        dim=4,
        n_frequencies=16,
        scale=0.1,
        edges=None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        if kind not in ("periodic", "piecewise-linear"):
            raise ValueError(f'`kind` must be "periodic" or "piecewise-linear". Got {kind!r}.')
        self.kind = kind
        self.columns = None if columns is None else [int(column) for column in columns]
        self.dim = check_count("dim", dim)
        if kind == "periodic" and dim < 2:
            raise ValueError(f"`dim` counts the column itself: it must be at least 2. Got {dim}.")
        self.n_frequencies = check_count("n_frequencies", n_frequencies)
        self.scale = float(scale)
        if not 0 < self.scale < math.inf:
            raise ValueError(f"`scale` must be a positive number. Got {scale!r}.")
        if (edges is None) == (kind == "piecewise-linear"):
            needs = "needs `edges`. Got None" if edges is None else "does not use `edges`"
            raise ValueError(f"kind={kind!r} {needs}.")
        self._edges = None
        if edges is not None:
            self._edges = np.asarray(edges, dtype="float32")
            is_table = self._edges.ndim == 2 and self._edges.shape[1] > 1
            if not is_table or not np.isfinite(self._edges).all():
                raise ValueError(
                    "`edges` must be finite numbers of shape (n_columns, n_bins + 1). Got shape "
                    f"{self._edges.shape}."
                )
            # Only the last edge may repeat, so that no bin of width 0 lies before another bin.
            width = np.diff(self._edges, axis=1)
            empty_before = (width[:, 1:] > 0) & (width[:, :-1] == 0)
            if (width < 0).any() or empty_before.any():
                raise ValueError(
                    "`edges` must increase within each row; only the last one may "
                    f"repeat. Got {self._edges.tolist()}."
                )
        # Trained variables, in the order in which the operation takes them.
        periodic = ("frequencies", "phases") if kind == "periodic" else ()
        self._names = (*periodic, "kernel", "bias")
        self.frequencies_initializer = keras.initializers.RandomNormal(stddev=self.scale)
        self.phases_initializer = keras.initializers.RandomUniform(-math.pi, math.pi)
        # 1 / sqrt(number of inputs) of the linear map: of frequencies, or of bins.
        limit = (n_frequencies if edges is None else self._edges.shape[1] - 1) ** -0.5
        self.kernel_initializer = keras.initializers.RandomUniform(-limit, limit)
        self.bias_initializer = keras.initializers.RandomUniform(-limit, limit)

    def build(self, input_shape):
        super().build(input_shape)
        if self._edges is not None:
            self._state_names = ("edges",)
            # There is no attribute `edges_initializer`, so that drawing weights keeps the value.
            self.edges = self.add_weight(
                shape=self._edges.shape,
                initializer=lambda shape, dtype=None: ops.convert_to_tensor(self._edges, dtype),
                trainable=False,
                name="edges",
            )

    def get_config(self):
        edges = None if self._edges is None else self._edges.tolist()
        return {**super().get_config(), "edges": edges}


@_registered
class CategoryEmbedding(_TabularLayer):
    """Replace codes of categories by trained vectors.

    The output has the other columns, and then the vectors, column after column.

    Parameters
    ----------
    columns : sequence of int
        Columns that hold codes.
    n_codes : sequence of int
        Number of codes of each column: codes are 0 .. n_codes - 1. Code 0 stands for categories
        not seen in training, and so does any other number. Its vector starts at 0, the mean of
        the other vectors' distribution, since training may never change it.
    dims : sequence of int or int, default=8
        Length of the vectors, for each column or for all.

    Examples
    --------
    >>> import numpy as np
    >>> from skuq.networks._tabular_layers import CategoryEmbedding
    >>> embed = CategoryEmbedding(columns=[1], n_codes=[3], dims=4)
    >>> tuple(embed(np.array([[0.5, 2.0], [0.1, 1.0]])).shape)
    (2, 5)
    """

    _settings = ("columns", "n_codes", "dims")

    def __init__(self, columns, n_codes, dims=8, **kwargs):
        super().__init__(**kwargs)
        self.columns = [int(column) for column in columns]
        self.n_codes = [check_count("n_codes", n) for n in n_codes]
        # One length for all columns, or one for each.
        dims = [dims] * len(self.columns) if isinstance(dims, Integral) else dims
        self.dims = [check_count("dims", dim) for dim in dims]
        self._names = tuple(f"vectors_{k}" for k in range(len(self.columns)))
        for name in self._names:
            setattr(self, f"{name}_initializer", FirstRowZero(stddev=1.0))
