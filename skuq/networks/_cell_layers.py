"""Build image networks from stacked cells: their layers, and the network of a genotype."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from numbers import Integral

from skuq.networks._genotypes import Cell, Genotype


class CellLayers:
    """Functions that apply Keras layers to a value, with given names and in float32.

    A model's JSON then depends only on its architecture, and names no class outside Keras.
    """

    def __init__(self):
        from skuq.backend import keras

        self._layers = keras.layers
        self._rectified = {}  # id of a value -> the value, and its ReLU

    def __call__(self, layer: str, x, name: str, **arguments):
        """Apply the Keras layer of class `layer` to a value."""
        return getattr(self._layers, layer)(name=name, dtype="float32", **arguments)(x)

    def conv(self, x, channels, size, name, strides=1):
        arguments = {"kernel_size": size, "strides": strides, "padding": "same"}
        return self("Conv2D", x, name, filters=channels, use_bias=False, **arguments)

    def separable(self, x, size, name, strides=1, dilation=1):
        arguments = {"kernel_size": size, "strides": strides, "dilation_rate": dilation}
        arguments |= {"filters": x.shape[-1], "padding": "same", "use_bias": False}
        return self("SeparableConv2D", x, name, **arguments)

    def norm(self, x, name):
        # Defaults of PyTorch, which both papers use. Its momentum of 0.1 is 0.9 in Keras.
        return self("BatchNormalization", x, name, momentum=0.9, epsilon=1e-5)

    def relu(self, x, name):
        """Apply a ReLU, computed once for all operations that begin with the same value."""
        if id(x) not in self._rectified:
            # Keep x itself, too, so that its id is not given to another value.
            self._rectified[id(x)] = x, self("ReLU", x, f"{name}_relu")
        return self._rectified[id(x)][1]

    def conv_norm(self, x, channels, size, name, strides=1):
        """Apply ReLU, convolution and batch normalisation, the order in all cells."""
        x = self.conv(self.relu(x, name), channels, size, f"{name}_conv", strides)
        return self.norm(x, f"{name}_norm")

    def pool(self, kind, x, size, strides, name):
        # With "same" padding, Keras averages over real pixels only.
        return self(kind, x, name, pool_size=size, strides=strides, padding="same")

    def add(self, values, name):
        return values[0] if len(values) == 1 else self("Add", values, name)

    def concatenate(self, values, name):
        return values[0] if len(values) == 1 else self("Concatenate", values, name)

    def factorized_reduction(self, x, channels, name):
        """Halve the resolution: even pixels give half of the channels, odd pixels the rest."""
        x = self.relu(x, name)
        even = self.conv(x, channels // 2, 1, f"{name}_even_conv", 2)
        odd_height, odd_width = x.shape[1] % 2, x.shape[2] % 2
        if odd_height or odd_width:  # add a pixel, so that both halves have the same size
            padding = ((0, odd_height), (0, odd_width))
            x = self("ZeroPadding2D", x, f"{name}_pad", padding=padding)
        # Without the first row and column, strides of 2 meet the odd pixels.
        x = self("Cropping2D", x, f"{name}_shift", cropping=((1, 0), (1, 0)))
        odd = self.conv(x, channels - channels // 2, 1, f"{name}_odd_conv", 2)
        return self.norm(self.concatenate([even, odd], f"{name}_concat"), f"{name}_norm")


def _pool(kind, layers, x, strides, name):
    return layers.pool(kind, x, 3, strides, name)


def _skip(layers, x, strides, name):
    return x if strides == 1 else layers.factorized_reduction(x, x.shape[-1], name)


def _separable(size, layers, x, strides, name):
    for part, step in (("first", strides), ("second", 1)):
        part_name = f"{name}_{part}"
        x = layers.separable(layers.relu(x, part_name), size, f"{part_name}_conv", step)
        x = layers.norm(x, f"{part_name}_norm")
    return x


def _dilated_convolution(size, layers, x, strides, name):
    x = layers.separable(layers.relu(x, name), size, f"{name}_conv", dilation=2)
    if strides > 1:  # Keras allows no strides with a dilation: drop pixels after it instead
        x = layers.pool("MaxPooling2D", x, 1, strides, f"{name}_strides")
    return layers.norm(x, f"{name}_norm")


def _row_column(layers, x, strides, name):
    channels = x.shape[-1]
    x = layers.conv(layers.relu(x, name), channels, (1, 7), f"{name}_row", (1, strides))
    x = layers.conv(x, channels, (7, 1), f"{name}_column", (strides, 1))
    return layers.norm(x, f"{name}_norm")


_APPLY: dict[str, Callable] = {
    "max_pool_3x3": partial(_pool, "MaxPooling2D"),
    "avg_pool_3x3": partial(_pool, "AveragePooling2D"),
    "skip_connect": _skip,
    "sep_conv_3x3": partial(_separable, 3),
    "sep_conv_5x5": partial(_separable, 5),
    "sep_conv_7x7": partial(_separable, 7),
    "dil_conv_3x3": partial(_dilated_convolution, 3),
    "dil_conv_5x5": partial(_dilated_convolution, 5),
    "conv_7x1_1x7": _row_column,
}


def build_cell_network(
    genotype: Genotype,
    input_shape: tuple,
    n_outputs: int,
    *,
    channels: int,
    n_cells: int,
    stem_multiplier: int = 3,
):
    """Build the network that stacks a genotype's cells, as DARTS does for small images.

    The layers are a 3x3 convolution with batch normalisation (the stem), `n_cells` cells, the
    mean over all pixels, and a dense layer. Cells ``n_cells // 3`` and ``2 * n_cells // 3`` are
    reduction cells, with half the resolution and twice the channels. The first cell is always a
    normal one, so that a network of one cell has no reduction, and one of two cells has one.

    Parameters
    ----------
    genotype : Genotype
        The normal and the reduction cell.
    input_shape : tuple of (height, width, channels)
        Shape of an image, of any size from one pixel on.
    n_outputs : int
        Number of linear outputs.
    channels : int
        Number of channels of the operations in the first cells.
    n_cells : int
        Number of cells.
    stem_multiplier : int, default=3
        Channels of the stem, in units of `channels`.

    Returns
    -------
    keras.Model
        A float32 model that has only Keras' own layers. Equal arguments give equal JSON.

    Raises
    ------
    ValueError
        If `input_shape` is not the shape of an image.

    References
    ----------
    Liu, Simonyan and Yang, "DARTS: Differentiable Architecture Search", ICLR 2019.

    Examples
    --------
    >>> from skuq.networks import Cell, Genotype, build_cell_network
    >>> cell = Cell(nodes=((("max_pool_3x3", 0), ("skip_connect", 1)),), concat=(2,))
    >>> model = build_cell_network(Genotype(cell, cell), (8, 8, 1), 10, channels=4, n_cells=1)
    >>> model.output_shape
    (None, 10)
    """
    check_image(input_shape)
    layers = CellLayers()
    inputs, stem = image_stem(layers, input_shape, stem_multiplier * channels)
    before, last = stem, stem  # outputs of the two previous cells, which a cell reads
    halved = False  # whether `last` has half the resolution of `before`
    reductions = {n_cells // 3, 2 * n_cells // 3} - {0}
    for i in range(n_cells):
        name, reduces = f"cell_{i}", i in reductions
        cell = genotype.reduction if reduces else genotype.normal
        channels = channels * 2 if reduces else channels
        # Both inputs of a cell get its number of channels and the resolution of `last`.
        if halved:
            first = layers.factorized_reduction(before, channels, f"{name}_0")
        else:
            first = layers.conv_norm(before, channels, 1, f"{name}_0")
        second = layers.conv_norm(last, channels, 1, f"{name}_1")
        output = _cell(layers, cell, first, second, 2 if reduces else 1, name)
        before, last, halved = last, output, reduces
    return image_outputs(layers, inputs, last, n_outputs, "cells")


def _cell(layers, cell: Cell, before, last, strides, name):
    """Apply one cell; in a reduction cell the operations on its inputs have strides of 2."""
    values = [before, last]
    for k, edges in enumerate(cell.nodes, start=2):
        ends = [
            _APPLY[operation](
                layers, values[source], strides if source < 2 else 1, f"{name}_{k}{edge}"
            )
            for edge, (operation, source) in zip("ab", edges)
        ]
        values.append(layers.add(ends, f"{name}_{k}"))
    return layers.concatenate([values[k] for k in cell.concat], f"{name}_concat")


def check_image(input_shape):
    """Raise ValueError unless a shape is (height, width, channels)."""
    if len(input_shape) != 3 or not all(isinstance(n, Integral) and n > 0 for n in input_shape):
        raise ValueError(
            "Networks of cells need images: `input_shape` must be (height, width, channels). "
            f"Got {tuple(input_shape)}."
        )


def image_stem(layers, input_shape, channels):
    """Make the input of an image network, and its stem: convolution and normalisation."""
    from skuq.backend import keras

    inputs = keras.Input(shape=input_shape, name="input", dtype="float32")
    return inputs, layers.norm(layers.conv(inputs, channels, 3, "stem_conv"), "stem_norm")


def image_outputs(layers, inputs, x, n_outputs, name):
    """Add the mean over pixels and the dense output layer, and make the model."""
    from skuq.backend import keras

    x = layers("GlobalAveragePooling2D", x, "mean")
    outputs = layers("Dense", x, "output", units=n_outputs)
    return keras.Model(inputs, outputs, name=name, dtype="float32")
