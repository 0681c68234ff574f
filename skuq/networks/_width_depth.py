"""Search space of plain networks that differ only in width and depth, NES' baseline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Integral
from typing import Any

from skuq._params import Interval, Settings
from skuq._registry import saved_as
from skuq._space import Categorical, Integer, Space
from skuq.networks._mlp import build_mlp
from skuq.networks._search_space import Decisions, training_hyperparameters


@saved_as("networks.WidthDepthSpace")
class WidthDepthSpace(Settings):
    """Search space of fully connected ReLU networks with equally wide layers: two decisions.

    Parameters
    ----------
    widths : tuple of int, default=(16, 32, 64, 128, 256)
        Choices of the width of the hidden layers.
    max_depth : int, default=5
        Largest number of hidden layers; the smallest is one.
    max_batch_size : int, default=256
        Largest batch size, if training is searched, too.

    References
    ----------
    Zaidi et al., "Neural Ensemble Search", appendix C.4, where width and depth of a fixed
    cell are varied; `CellSpace.width_depth` is the same for images.

    Examples
    --------
    >>> from skuq.networks import WidthDepthSpace
    >>> WidthDepthSpace(widths=(16, 64), max_depth=3).decisions().architecture.size
    6
    """

    takes_images = False

    _parameter_constraints: dict[str, Any] = {
        "widths": [tuple, list],
        "max_depth": [Interval(Integral, 1, None, closed="left")],
        "max_batch_size": [Interval(Integral, 1, None, closed="left")],
    }

    def __init__(
        self,
        widths: Sequence[int] = (16, 32, 64, 128, 256),
        max_depth: int = 5,
        max_batch_size: int = 256,
    ) -> None:
        self.widths = widths
        self.max_depth = max_depth
        self.max_batch_size = max_batch_size

    def decisions(self, input_shape=None, n_outputs=None) -> Decisions:
        """List width and depth, and the training hyperparameters of AutoDEUQ."""
        middle = self.widths[len(self.widths) // 2]
        architecture = (
            Categorical("width", tuple(self.widths), default=middle),
            Integer("depth", 1, self.max_depth, default=min(2, self.max_depth)),
        )
        return Decisions(Space(architecture), training_hyperparameters(self.max_batch_size))

    def build(self, configuration: Mapping, input_shape: tuple, n_outputs: int):
        """Build the Keras model of a configuration, with `n_outputs` linear outputs."""
        units = [int(configuration["width"])] * int(configuration["depth"])
        return build_mlp(input_shape, n_outputs, units)

    def recipe(self, configuration: Mapping) -> dict:
        """Select the configuration's training hyperparameters, by the recipe's names."""
        return self.decisions().hyperparameters.restrict(configuration)
