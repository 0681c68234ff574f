"""Define templates: networks without weights, from which training runs start.

Building a Keras model takes longer than many training steps, so that a process caches the
templates it used last, by the network's configuration.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from skuq.backend import BoundedCache
from skuq.networks._epinet import EpistemicNetwork
from skuq.networks._plan import Plan, make_plan, without_names
from skuq.networks._rebuild import own_classes, rebuild
from skuq.training._drawing import DrawingNetwork
from skuq.training._keras_network import MAX_PASS_ROWS
from skuq.training._weights import draw_variables, has_fixed_values

#: Flat trainable weights (n_weights,) and the non-trainable variables.
FirstValues = tuple[np.ndarray, list[np.ndarray]]

# One template for each thread of a search is enough.
_templates = BoundedCache(max_size=8, collects=False)


class Template:
    """A network to train: shapes and names of its weights, and a method that draws them.

    Parameters
    ----------
    network : str
        Configuration as JSON.
    model : keras.Model or EpistemicNetwork
        Model of that configuration. Its own weights are not used, except by `has_fixed_values`.

    Attributes
    ----------
    plan : Plan or None
        None if the network runs through Keras' own layers, or is epistemic.
    shapes : list of tuple of int
        Shapes of the trainable variables, in Keras' order.
    names : list of str
        Paths of these variables; empty for an epistemic network.
    has_fixed_values : bool
        Whether the model has variables that are not drawn from a seed: those of frozen layers, or
        without an initializer.
    """

    def __init__(self, network: str, model: Any):
        self.network, self.model = network, model
        self.plan: Plan | None = None
        self.names: list[str] = []
        self.has_fixed_values = False
        self.is_epistemic = isinstance(model, EpistemicNetwork)
        if self.is_epistemic:
            self._drawing = DrawingNetwork(model)
            self.shapes = self._drawing.shapes
        else:
            self.plan = make_plan(network)
            variables = model.trainable_variables
            self.shapes = [tuple(variable.shape) for variable in variables]
            self.names = [variable.path for variable in variables]
            self.has_fixed_values = has_fixed_values(model)

    @property
    def through_keras(self) -> bool:
        """Whether the network has no plan and runs through Keras' own layers."""
        return self.plan is None and not self.is_epistemic

    @functools.cached_property
    def identity(self) -> Plan | EpistemicNetwork | str:
        """Hashable description of the network, without the names of its layers."""
        if self.is_epistemic:
            network: EpistemicNetwork = self.model.without_names()
            return network
        return self.plan or without_names(self.network)

    def draw(self, seed: int) -> FirstValues:
        """Draw first weights and state from the configuration's initializers.

        Raises
        ------
        ValueError
            If the network has frozen layers, whose values are not in its configuration.
        """
        if self.is_epistemic:
            return self._drawing.draw(seed)
        if not self.has_fixed_values:
            return draw_variables(self.model, seed)
        model = rebuild(self.network)  # the values of `self.model` may have been changed
        if any(layer.weights and not layer.trainable for layer in model._flatten_layers()):
            raise ValueError(
                "The network has frozen layers, whose values its configuration does not hold. "
                "Make the job with `TrainingJob.of_model`, or give `start`."
            )
        return draw_variables(model, seed)

    def prior(self, state: Sequence[Any], x: np.ndarray) -> np.ndarray | None:
        """Compute what a frozen prior network adds for rows x: (n, n_raw), or None without one.

        It does not change in training, so that a run computes it once.
        """
        if not self.is_epistemic or self.model.epinet is not None or not self.model.prior_scale:
            return None
        return np.concatenate(
            [
                np.asarray(self._drawing.prior(state, x[start : start + MAX_PASS_ROWS]))
                for start in range(0, len(x), MAX_PASS_ROWS)
            ]
        )


def template_of(network: str) -> Template:
    """Get the template of a configuration from this process' cache, or make it."""

    def make() -> Template:
        if json.loads(network)["class_name"] == EpistemicNetwork.__name__:
            return Template(network, EpistemicNetwork.from_json(network))
        return Template(network, rebuild(network))

    template: Template = _templates.get((network, own_classes(network)), make)
    return template


def template_of_model(model: Any) -> Template:
    """Get the template of a model, and cache it for jobs with the same configuration."""
    network = model.to_json()
    key = network, own_classes(network)
    template: Template = _templates.get(key, lambda: Template(network, model))
    return template
