"""Keras layers for tables: embeddings of numbers and categories, and layers of several copies.

Each runs the operation of `_tabular_operations` that a plan runs for it, so that what trains
in a stack, what predicts in NumPy and what Keras itself computes are one piece of code. A
variable's first value comes from the attribute ``<name>_initializer``.
"""

from __future__ import annotations

import math
from numbers import Integral

import numpy as np

from skuq._checks import check_count
from skuq.backend import keras, ops
from skuq.networks import _tabular_operations as operations
from skuq.networks._plan_parts import NoPlan, Run, tensors

_registered = keras.saving.register_keras_serializable(package="skuq")


@_registered
class RandomSigns(keras.initializers.RandomUniform):
    """Minus one or one, equally likely."""

    def __init__(self, seed=None):
        super().__init__(-1.0, 1.0, seed=seed)

    def __call__(self, shape, dtype=None):
        numbers = super().__call__(shape, dtype=dtype)
        return ops.where(numbers < 0, -ops.ones_like(numbers), ops.ones_like(numbers))

    def get_config(self):
        return {"seed": super().get_config()["seed"]}


@_registered
class SameRows(keras.initializers.RandomUniform):
    """Uniform numbers that are the same for each entry of the first axis."""

    def __call__(self, shape, dtype=None):
        return ops.broadcast_to(super().__call__(tuple(shape)[1:], dtype=dtype), shape)


@_registered
class FirstRowZero(keras.initializers.RandomNormal):
    """Normal numbers, and zeros in the first entry of the first axis."""

    def __call__(self, shape, dtype=None):
        numbers = super().__call__(shape, dtype=dtype)
        return ops.concatenate([ops.zeros_like(numbers[:1]), numbers[1:]], axis=0)


class _TabularLayer(keras.layers.Layer):
    """A layer that computes what its operation computes.

    Each kind has `_read(shapes)`, which gives what the operation's own `read` gives.
    """

    _names: tuple[str, ...] = ()  # of the variables that train

    def _operation_of(self, input_shape):
        shape = tuple(input_shape)
        if len(shape) != 2 or shape[1] is None:
            raise ValueError(
                f"{type(self).__name__} takes inputs of shape (n_samples, n_features). Got {shape}."
            )
        try:
            return self._read([shape[1:]])
        except NoPlan:
            raise ValueError(
                f"{type(self).__name__} cannot have inputs of {shape[1]} features with the "
                f"settings {self.get_config()}."
            ) from None

    def build(self, input_shape):
        self._operation, weights, _, _ = self._operation_of(input_shape)
        self._set_initializers(weights)
        for name, weight in zip(self._names, weights, strict=True):
            variable = self.add_weight(
                shape=weight.shape,
                initializer=getattr(self, f"{name}_initializer"),
                regularizer=getattr(self, f"{name}_regularizer", None),
                name=name,
            )
            setattr(self, name, variable)

    def _set_initializers(self, weights):
        """Set initializers that depend on the input's shape."""

    def call(self, x):
        weights = [getattr(self, name) for name in self._names]
        return self._operation(Run(tensors()), weights, self._state(), x)[0]

    def _state(self):
        return []

    def compute_output_shape(self, input_shape):
        return (input_shape[0], *self._operation_of(input_shape)[3])


@_registered
class FeatureScale(_TabularLayer):
    """Every feature times a trained weight of its own, 1 at first.

    With a larger learning rate than the layers behind it a soft selection of features.

    References
    ----------
    D. Holzmueller, L. Grinsztajn and I. Steinwart, "Better by default: strong pre-tuned MLPs
    and boosted trees on tabular data", NeurIPS 2024, section 3.
    """

    _names = ("scale",)
    scale_initializer = keras.initializers.Ones()

    def _read(self, shapes):
        return operations.FeatureScale.read({}, shapes)


@_registered
class ParametricActivation(_TabularLayer):
    """``x + alpha * (f(x) - x)``, with a trained alpha for each feature that is 1 at first.

    Parameters
    ----------
    activation : str
        Keras' name of f.

    References
    ----------
    Holzmueller et al., 2024, as in `FeatureScale`.
    """

    _names = ("alpha",)
    alpha_initializer = keras.initializers.Ones()

    def __init__(self, activation, **kwargs):
        super().__init__(**kwargs)
        self.activation = keras.activations.serialize(keras.activations.get(activation))

    def _read(self, shapes):
        return operations.ParametricActivation.read(self.get_config(), shapes)

    def get_config(self):
        return {**super().get_config(), "activation": self.activation}


@_registered
class NTKDense(_TabularLayer):
    """A dense layer in the neural tangent parametrisation: ``f(x @ kernel / sqrt(d) + bias)``.

    Kernel and bias are standard normal at first. A learning rate then means the same for
    layers of any width, and larger ones pay than for `keras.layers.Dense`.

    Parameters
    ----------
    units : int
    activation : str, default=None
        Keras' name; None is linear.
    use_bias : bool, default=True
    kernel_initializer, bias_initializer, kernel_regularizer, bias_regularizer :
        As in `keras.layers.Dense`.

    References
    ----------
    A. Jacot, F. Gabriel and C. Hongler, "Neural tangent kernel", NeurIPS 2018; Holzmueller et
    al., 2024, as in `FeatureScale`.
    """

    def __init__(
        self,
        units,
        activation=None,
        use_bias=True,
        kernel_initializer=None,
        bias_initializer=None,
        kernel_regularizer=None,
        bias_regularizer=None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.units = check_count("units", units)
        self.activation = keras.activations.serialize(keras.activations.get(activation))
        self.use_bias = use_bias
        normal = keras.initializers.RandomNormal(stddev=1.0)
        self.kernel_initializer = keras.initializers.get(kernel_initializer or normal)
        self.bias_initializer = keras.initializers.get(bias_initializer or normal.clone())
        self.kernel_regularizer = keras.regularizers.get(kernel_regularizer)
        self.bias_regularizer = keras.regularizers.get(bias_regularizer)
        self._names = ("kernel", "bias") if use_bias else ("kernel",)

    def _read(self, shapes):
        return operations.NTKDense.read(self.get_config(), shapes)

    def get_config(self):
        return {
            **super().get_config(),
            "units": self.units,
            "activation": self.activation,
            "use_bias": self.use_bias,
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
            "bias_initializer": keras.initializers.serialize(self.bias_initializer),
            "kernel_regularizer": keras.regularizers.serialize(self.kernel_regularizer),
            "bias_regularizer": keras.regularizers.serialize(self.bias_regularizer),
        }


@_registered
class NumericEmbedding(_TabularLayer):
    """Several numbers in the place of one, by functions that each column learns for itself.

    What it gives: the embeddings, column after column, then what passes through.

    Parameters
    ----------
    kind : {"periodic", "plr", "piecewise-linear"}, default="periodic"
        "periodic" (PBLD): a linear map of ``cos(2 pi w x + b)`` with trained frequencies w and
        phases b. `dim` counts the column itself, which stands (with all other columns) at the
        end. "plr": ReLUs of a linear map of cosines and sines. "piecewise-linear": a linear map
        of how far x is through each of its bins.
    columns : sequence of int, optional
        Embedded columns, all by default. Others pass through.
    dim : int, default=4
        Numbers a column.
    n_frequencies : int, default=16
        Number of frequencies of the periodic kinds.
    scale : float, default=0.1
        Standard deviation of the frequencies at first, for columns of scale 1: how quickly
        the network's function may change.
    edges : array-like of shape (n_columns, n_bins + 1), optional
        Increasing edges of the bins. A column with fewer bins repeats its last one. They are
        state, not part of what is compiled.

    References
    ----------
    Y. Gorishniy, I. Rubachev and A. Babenko, "On embeddings for numerical features in tabular
    deep learning", NeurIPS 2022 (PLR, piecewise linear); Holzmueller et al., 2024, as in
    `FeatureScale` (PBLD).
    """

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
        if kind not in ("periodic", "plr", "piecewise-linear"):
            raise ValueError(
                f'`kind` must be "periodic", "plr" or "piecewise-linear". Got {kind!r}.'
            )
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
            raise ValueError(f"`edges` are what kind={kind!r} {_needs(edges)}.")
        self._edges = None if edges is None else _checked_edges(edges)
        self._names = ("frequencies", "phases", "kernel", "bias")
        if kind == "plr":
            self._names = ("frequencies", "kernel", "bias")
        if kind == "piecewise-linear":
            self._names = ("kernel", "bias")

    def _read(self, shapes):
        return operations.read_numeric_embedding(self.get_config(), shapes)

    def _set_initializers(self, weights):
        if self.kind == "plr":
            # As its authors do: nothing far out.
            self.frequencies_initializer = keras.initializers.TruncatedNormal(stddev=self.scale)
        else:
            self.frequencies_initializer = keras.initializers.RandomNormal(stddev=self.scale)
        self.phases_initializer = keras.initializers.RandomUniform(-math.pi, math.pi)
        limit = weights[-2].shape[1] ** -0.5
        self.kernel_initializer = keras.initializers.RandomUniform(-limit, limit)
        self.bias_initializer = keras.initializers.RandomUniform(-limit, limit)

    def build(self, input_shape):
        super().build(input_shape)
        if self._edges is not None:
            # No attribute names its initialiser: it keeps its value where weights are drawn.
            self.edges = self.add_weight(
                shape=self._edges.shape,
                initializer=lambda shape, dtype=None: ops.convert_to_tensor(self._edges, dtype),
                trainable=False,
                name="edges",
            )

    def _state(self):
        return [] if self._edges is None else [self.edges]

    def get_config(self):
        return {
            **super().get_config(),
            "kind": self.kind,
            "columns": self.columns,
            "dim": self.dim,
            "n_frequencies": self.n_frequencies,
            "scale": self.scale,
            "edges": None if self._edges is None else self._edges.tolist(),
        }


@_registered
class CategoryEmbedding(_TabularLayer):
    """Trained vectors in the place of columns that hold the codes of categories.

    What it gives: the other columns, then the vectors, column after column.

    Parameters
    ----------
    columns : sequence of int
        Where the codes are.
    n_codes : sequence of int
        For each column: codes are 0 .. n_codes - 1. Code 0 is that of categories not seen in
        training; others than these count as it. Its vector is 0 at first, the mean of the
        others' distribution, since training may never move it.
    dims : sequence of int or int, default=8
        Length of the vectors, for each column.
    """

    def __init__(self, columns, n_codes, dims=8, **kwargs):
        super().__init__(**kwargs)
        self.columns = [int(column) for column in columns]
        self.n_codes = [check_count("n_codes", n) for n in n_codes]
        dims = [dims] * len(self.columns) if isinstance(dims, Integral) else dims
        self.dims = [check_count("dims", dim) for dim in dims]
        if not len(self.columns) == len(self.n_codes) == len(self.dims):
            raise ValueError(
                "`n_codes` and `dims` must have an entry for each of `columns`. Got "
                f"{self.columns}, {self.n_codes} and {self.dims}."
            )
        self._names = tuple(f"vectors_{k}" for k in range(len(self.columns)))
        for name in self._names:
            setattr(self, f"{name}_initializer", FirstRowZero(stddev=1.0))

    def _read(self, shapes):
        return operations.CategoryEmbedding.read(self.get_config(), shapes)

    def get_config(self):
        own = {"columns": self.columns, "n_codes": self.n_codes, "dims": self.dims}
        return {**super().get_config(), **own}


@_registered
class Repeat(_TabularLayer):
    """All features `n_copies` times: what the copies of an `EnsembleDense` start from."""

    def __init__(self, n_copies, **kwargs):
        super().__init__(**kwargs)
        self.n_copies = check_count("n_copies", n_copies)

    def _read(self, shapes):
        return operations.Repeat.read(self.get_config(), shapes)

    def get_config(self):
        return {**super().get_config(), "n_copies": self.n_copies}


@_registered
class EnsembleDense(_TabularLayer):
    """The dense layers of several copies of a network, whose features stand side by side.

    Inputs are (n_samples, n_copies * d), outputs (n_samples, n_copies * units), copy after copy.

    Parameters
    ----------
    units : int
        Number of outputs of one copy.
    n_copies : int
    activation : str, default=None
        Keras' name; None is linear.
    shared : bool, default=True
        One kernel for all copies (BatchEnsemble), or a kernel for each.
    adapters : bool, default=True
        Whether a shared kernel stands between trained factors of each copy's own, of its inputs
        and of its outputs.
    input_initializer : {"ones", "random-signs", "normal"}, default="ones"
        First factors of the inputs. Copies start equal unless one layer, the first, has others
        than ones (TabM): signs for features as they are, normal ones behind embeddings.
    use_bias : bool, default=True
        Whether each copy has a bias.
    ntk : bool, default=False
        The parametrisation of `NTKDense`.
    zero : bool, default=False
        Kernel and biases of 0 at first.

    References
    ----------
    Y. Wen, D. Tran and J. Ba, "BatchEnsemble", ICLR 2020; Y. Gorishniy, A. Kotelnikov and A.
    Babenko, "TabM: advancing tabular deep learning with parameter-efficient ensembling", ICLR
    2025.
    """

    def __init__(
        self,
        units,
        n_copies,
        activation=None,
        shared=True,
        adapters=True,
        input_initializer="ones",
        use_bias=True,
        ntk=False,
        zero=False,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.units, self.n_copies = check_count("units", units), check_count("n_copies", n_copies)
        self.activation = keras.activations.serialize(keras.activations.get(activation))
        self.shared, self.adapters, self.use_bias = shared, adapters, use_bias
        self.ntk, self.zero = ntk, zero
        self.input_initializer = input_initializer
        first = {
            "ones": keras.initializers.Ones,
            "random-signs": RandomSigns,
            "normal": lambda: keras.initializers.RandomNormal(stddev=1.0),
        }
        if input_initializer not in first:
            raise ValueError(
                f"`input_initializer` must be one of {tuple(first)}. Got {input_initializer!r}."
            )
        self.inputs_initializer = first[input_initializer]()
        self.outputs_initializer = keras.initializers.Ones()
        between = ("inputs", "outputs") if shared and adapters else ()
        self._names = ("kernel", *between, *["bias"] * use_bias)

    def _read(self, shapes):
        return operations.EnsembleDense.read(self.get_config(), shapes)

    def _set_initializers(self, weights):
        limit = weights[0].shape[-2] ** -0.5  # as TabM
        # One bias for all copies at first where they share the kernel: copies then differ by
        # the first factors only.
        bias = SameRows if self.shared else keras.initializers.RandomUniform
        self.kernel_initializer = keras.initializers.RandomUniform(-limit, limit)
        self.bias_initializer = bias(-limit, limit)
        if self.ntk:
            self.kernel_initializer = keras.initializers.RandomNormal(stddev=1.0)
            self.bias_initializer = bias(-math.sqrt(3), math.sqrt(3))
        if self.zero:
            self.kernel_initializer, self.bias_initializer = (
                keras.initializers.Zeros() for _ in "kb"
            )

    def get_config(self):
        names = ("units", "n_copies", "activation", "shared", "adapters", "input_initializer")
        own = {name: getattr(self, name) for name in (*names, "use_bias", "ntk", "zero")}
        return {**super().get_config(), **own}


def _needs(edges):
    return "needs. Got none" if edges is None else "has no use for"


def _checked_edges(edges):
    edges = np.asarray(edges, dtype="float32")
    if edges.ndim != 2 or edges.shape[1] < 2 or not np.isfinite(edges).all():
        raise ValueError(
            "`edges` must be finite numbers of shape (n_columns, n_bins + 1). Got shape "
            f"{edges.shape}."
        )
    width = np.diff(edges, axis=1)
    if (width < 0).any() or ((width[:, 1:] > 0) & (width[:, :-1] == 0)).any():
        raise ValueError(
            "`edges` must increase within each row; only the last one may repeat. Got "
            f"{edges.tolist()}."
        )
    return edges
