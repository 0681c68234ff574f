"""A fitted operator: it pairs inputs with query points, runs networks and restores units.

A given trained model may be its base; its predictions are kept exactly. Draws of networks can be
conditioned on data in closed form.

Notation: n inputs, q query points, m components, S draws; values are (S, n, q, m) inside, and in
the shape of the user's Y outside. In the closed form: K networks of P weights each; N rows, each
a pair of an input and a query point; every draw has an index z of n_index numbers.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.preprocessing import StandardScaler

from skuq import backend
from skuq._random import quasi_random_normals
from skuq.files._registry import saved_as, saved_record
from skuq.fitted._ensemble import Fitted, check_pretrained, predict_pretrained
from skuq.networks import Member
from skuq.networks._nomu_network import last_features
from skuq.networks._operations import ARRAYS, Namespace, Run, tensors
from skuq.networks._operator_network import EpistemicNetwork, OperatorHead
from skuq.predictive import EpistemicNormal, GaussianMixture, Posterior
from skuq.tables._functions import FunctionInputs, FunctionTargets, pair_rows
from skuq.tables._scaling import hard_clip
from skuq.training._network_checks import DrawingNetwork
from skuq.training._predict import parts_of, predict_draws, read_network


@saved_as("fitted.FittedOperator.GivenBase")
class GivenBase:
    """Predictions of a given model, and the features that it gives to an EpiNet.

    Parameters
    ----------
    model : keras.Model or fitted regressor
    inputs : FunctionInputs
        Fitted.
    n_components : int
    names : sequence of str, optional

    Attributes
    ----------
    is_operator : bool
        Whether the model has inputs u and y, so that it predicts at any query points.
    mean_, scale_ :
        Mean and scale of the model's last hidden layer, fitted by `fit`.
    """

    mean_: Any
    scale_: float

    def __init__(
        self, model: Any, inputs: FunctionInputs, n_components: int, names: Any = None
    ) -> None:
        self.model, self.inputs, self.n_components = model, inputs, n_components
        shapes = [tuple(tensor.shape) for tensor in getattr(model, "inputs", None) or ()]
        self.is_operator = len(shapes) == 2
        wanted = [(None, len(s.scale_)) for s in (inputs.scaling, inputs.query_scaling)]
        if shapes and shapes not in (wanted, wanted[:1]):
            raise ValueError(
                "A Keras model as `pretrained` must have inputs u and y of shapes "
                f"{wanted}, or u alone. Got {shapes}."
            )
        if not hasattr(model, "predict_on_batch"):
            check_pretrained(model, len(inputs.scaling.scale_), names)

    def fit(self, X: np.ndarray) -> Self:
        """Learn the scale of the last hidden layer, at the query points of the inputs."""
        self.mean_, self.scale_ = 0.0, 1.0
        hidden = self._last_hidden(X, self.inputs.points())
        if hidden is not None:
            # Each column has a mean, but all share one scale: a single feature may hardly vary.
            self.mean_ = StandardScaler(with_std=False).fit(hidden).mean_
            self.scale_ = np.sqrt(np.var(hidden, axis=0).mean()) or 1.0
        return self

    def features(self, X: np.ndarray, query_points: Any = None) -> np.ndarray:
        """Compute features (n * q, n_features) of all pairs: last hidden layer, u and y."""
        points = self.inputs.points(query_points)
        rows, hidden = self.inputs.transform(X, query_points), self._last_hidden(X, points)
        if hidden is None:
            return rows
        return np.concatenate([(hidden - self.mean_) / self.scale_, rows], axis=1)

    def mean(self, X: np.ndarray, query_points: Any = None) -> np.ndarray:
        """Compute the model's predictions (n, q, m) in units of Y."""
        points = self.inputs.points(query_points)
        # Only models with an input for query points predict at others than those of Y.
        if not (self.is_operator or np.array_equal(points, self.inputs.query_points)):
            raise ValueError(
                "`pretrained` predicts at the query points of Y only: it is no Keras model "
                "with inputs u and y. Leave `query_points` out."
            )
        rows = _pairs(X, points) if self.is_operator else X
        return predict_pretrained(self.model, rows, (len(X), len(points), self.n_components))

    def _last_hidden(self, X: np.ndarray, points: np.ndarray) -> np.ndarray | None:
        """Compute the inputs (n * q, n_hidden) of the last layer of weights, or None.

        None means that the model does not show them.
        """
        if not self.is_operator or self._hidden_model is None:
            return None
        parts = self._hidden_model.predict(_pairs(X, points), verbose=0)
        return np.concatenate(parts if isinstance(parts, list) else [parts], axis=1)

    @functools.cached_property
    def _hidden_model(self) -> Any:
        """The model up to the inputs of its last layer of weights; None if it has none."""
        seen = last_features(self.model)
        return backend.keras.Model(self.model.inputs, seen) if seen else None

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_hidden_model"}


def _pairs(X: np.ndarray, points: np.ndarray) -> list[np.ndarray]:
    """Pair every input with every query point, as the two inputs u and y of a Keras model."""
    return [np.repeat(X, len(points), axis=0), np.tile(points, (len(X), 1))]


_ZERO = 1e-12  # mean of indices that are spread evenly around 0
_CHUNK_ENTRIES = 2**20  # numbers held at a time: 8 MB


class Draws:
    """Base of the draws of fitted networks, each of which has an index: here of normal numbers."""

    #: Indices of the draws of predictions.
    index: Any
    #: Whether draws are linear in their indices.
    is_linear: ClassVar[bool] = False

    def basis(self) -> np.ndarray | None:
        """Find orthonormal columns that span the draws' differences from their mean.

        None if they would be as many as the draws.
        """
        return None

    def of_mean(self) -> Self:
        """Return draws with the same mean that take the least to compute."""
        return self

    def quasi_random(self, n: int, rng: np.random.Generator) -> np.ndarray:
        """Draw indices (n, n_index) that are spread more evenly than chance does it."""
        return quasi_random_normals(n, self.index.shape[1], rng)

    def independent(self, n: int, rng: np.random.Generator) -> np.ndarray:
        """Draw independent indices (n, n_index)."""
        return rng.standard_normal((n, self.index.shape[1]))


@saved_record("fitted.FittedOperator.ConditionedDraws")
class ConditionedDraws(Draws):
    """Draws of linearised networks, each along random directions in weight space.

    The mean is the average of the networks, each corrected along its first direction. A draw adds
    ``sum_i z_i f_i(x)``, where f_i is the derivative of a network along one of its other
    directions.

    Attributes
    ----------
    members : tuple of Member
        Networks without EpiNet and prior.
    index : ndarray of shape (n_draws, n_index)
        The indices that predictions average over: numbers for the directions of the first network,
        then of the second, and so on.
    directions : ndarray of shape (K, 1 + n_index / K, P)
    prior : ndarray of shape (4, n_groups), optional
        Scale and noises of each noise group, if they were learnt without noise.
    n_functions : int, default=0
        Number of functions that they were learnt from.
    """

    members: tuple[Member, ...]
    index: np.ndarray
    directions: np.ndarray
    prior: np.ndarray | None = None
    n_functions: int = 0

    is_linear: ClassVar[bool] = True

    def basis(self) -> np.ndarray:
        """Find an orthonormal basis (n_draws, n_index) of the centred indices."""
        return np.linalg.qr(self.index - self.index.mean(axis=0))[0]

    def of_mean(self) -> Self:
        """Return the networks without random directions, if indices have a mean of 0."""
        if abs(self.index.mean(axis=0)).max() >= _ZERO:
            return self
        return replace(self, index=np.zeros((1, 0)), directions=self.directions[:, :1])

    def raw(self, rows: np.ndarray, index: np.ndarray) -> np.ndarray:
        """Predict raw outputs (S, n * q, m) of standardised rows."""
        networks, parts = [], []
        for member, directions in zip(self.members, self.directions):
            network, variables, _ = parts_of(member)
            split = network.split(directions.astype("float64"))
            networks.append((network.network.base, variables, split))
        step = max(16, _CHUNK_ENTRIES // (64 * self.directions.shape[1] + len(index)))
        for start in range(0, len(rows), step):
            parts.append(draw_linearised(ARRAYS, networks, rows[start : start + step], index))
        return np.concatenate(parts, axis=1)


def draw_linearised(
    space: Namespace, networks: Sequence[Any], rows: Any, index: Any, n_queries: int = 1
) -> Any:
    """Compute draws (S, N, m) of networks, each (base, variables, directions), at rows (N, d).

    Every `n_queries` rows that follow each other are pairs of one input and the query points.
    """
    xp, mean, functions = space.xp, 0.0, []
    for base, variables, directions in networks:
        raw, tangents = base.tangents(space, variables, directions, rows, n_queries)
        mean = mean + (raw + tangents[0]) / len(networks)
        functions.append(tangents[1:])
    joined = xp.concatenate(functions, axis=0)  # (n_index, N, m)
    size = joined.shape[1] * joined.shape[2]
    draws = xp.matmul(index, xp.reshape(joined, (joined.shape[0], size)))
    return mean + xp.reshape(draws, (-1, *joined.shape[1:]))


#: Makes a network of so many members before a program is traced: there no variables can be made.
_runnable = functools.lru_cache(maxsize=32)(DrawingNetwork)


@dataclass(frozen=True)
class OperatorDraws:
    """The function of a `Posterior`; equal for fits of equal networks.

    Parameters
    ----------
    network : EpistemicNetwork
    head : OperatorHead
    output_shape : tuple of int
        Shape of one function's values as the user has them.
    n_members : int
        Members of an ensemble, which are its draws, or networks of conditioned draws; 0 for one
        network with indices.
    is_linear : bool
        Whether draws are those of linearised networks.
    """

    network: EpistemicNetwork
    head: OperatorHead
    output_shape: tuple[int, ...]
    n_members: int = 0
    is_linear: bool = False

    def __call__(self, xp: Any, arguments: Any, X: Any) -> Any:
        """Compute draws (S, n, *output_shape) in units of Y, from X (n, d_u)."""
        x_mean, x_scale, queries, mean, scale, factor, index, *variables = arguments
        space = ARRAYS if xp is np else tensors()
        network = _runnable(self.network, self.n_members)
        n, q = X.shape[0], queries.shape[0]
        # (n * q, d_u + d_y): every input with every query point, both standardised.
        rows = pair_rows(xp, hard_clip(xp, (X - x_mean) / x_scale), queries)
        k = len(network.shapes)
        weights, rest = variables[:k], variables[k:]  # the rest are directions, or the state
        if self.is_linear:
            # Variables of all networks have a leading axis; take those of one after the other.
            networks = [
                (self.network.base, [w[i] for w in weights], [d[i] for d in rest])
                for i in range(self.n_members)
            ]
            raw = draw_linearised(space, networks, rows, index, q)
        else:
            raw, _, _ = network.forward(weights, rest, rows, Run(space, index=index))
        values, _ = self.head.values(space, raw)
        # From (S, n * q, m) of one network, or (K, 1, n * q, m) of members, which are the draws.
        values = xp.reshape(values, (-1, n, q, self.head.n_outputs))
        # Stretch the draws about their mean, and return to units of Y.
        centre = xp.mean(values, axis=0)
        values = (centre + factor * (values - centre)) * scale + mean
        return xp.reshape(values, (-1, n, *self.output_shape))


@saved_record("fitted.FittedOperator.Widths")
class Widths:
    """Widths of the two parts of a fitted operator's uncertainty: epistemic part and noise.

    Attributes
    ----------
    factor : ndarray of shape (1, m), or (q, m) where columns have scales of their own
        Factor of the distance of draws from their mean.
    noise : ndarray of the same shape
        Standard deviation of the noise, in units of Y.
    """

    factor: np.ndarray
    noise: np.ndarray


@saved_record("fitted.FittedOperator.IndexDraws", brief=True)
class IndexDraws(Draws):
    """Draws of one network with an EpiNet: each has an index z of random numbers.

    Attributes
    ----------
    member : Member
    index : ndarray of shape (n_draws, n_index)
        The indices that predictions average over.
    """

    member: Member
    index: np.ndarray

    members = property(lambda self: (self.member,), doc="The one network.")

    def raw(self, rows: np.ndarray, index: np.ndarray) -> np.ndarray:
        """Predict raw outputs (S, n * q, n_raw) of standardised rows."""
        return predict_draws(self.member, rows, index)


@saved_record("fitted.FittedOperator.MemberDraws", brief=True)
class MemberDraws(Draws):
    """Draws of an ensemble: each is a member, and its index the member's position.

    Attributes
    ----------
    members : tuple of Member
    """

    members: tuple[Member, ...]

    index = property(lambda self: np.arange(len(self.members)), doc="Positions of all members.")

    def quasi_random(self, n: int, rng: np.random.Generator) -> np.ndarray:
        """Return the positions of all members, once each, whatever `n`."""
        return self.index

    def independent(self, n: int, rng: np.random.Generator) -> np.ndarray:
        """Draw positions (n,) with replacement."""
        return rng.integers(len(self.members), size=n)

    def raw(self, rows: np.ndarray, index: np.ndarray) -> np.ndarray:
        """Predict raw outputs (S, n * q, n_raw) of standardised rows."""
        # Each member predicts once, however often it was drawn.
        drawn = {k: predict_draws(self.members[k], rows)[0] for k in np.unique(index)}
        return np.stack([drawn[k] for k in index])


@saved_record("fitted.FittedOperator", brief=True)
class FittedOperator(Fitted):
    """Trained networks of functions, and everything needed to predict with them.

    Methods take `query_points`, an array-like of shape (q, d_y) or (q,); by default those of
    the fit.

    Attributes
    ----------
    inputs : FunctionInputs
        Fitted.
    targets : FunctionTargets
        Fitted; holds the head of the networks.
    draws : IndexDraws, ConditionedDraws or MemberDraws
        The networks, and the indices of their draws.
    given : GivenBase or None
        A model whose predictions are the mean; the networks then only give their uncertainty.
    widths : Widths or None
        Factor of the epistemic part, and the noise. None means a factor of 1 and no noise.
    """

    inputs: FunctionInputs
    targets: FunctionTargets
    draws: IndexDraws | ConditionedDraws | MemberDraws
    given: GivenBase | None = None
    widths: Widths | None = None

    no_keras: ClassVar[str] = "operators predict functions at query points"

    def values(
        self,
        X: np.ndarray,
        index: np.ndarray,
        query_points: Any = None,
        mean: np.ndarray | None = None,
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """Predict draws of given indices, in units of Y.

        With a given model they are around its predictions, `mean` (n, q, m) if these are known.

        Returns
        -------
        loc : ndarray of shape (S, n, q, m)
        scale : ndarray of shape (S, n, q, m) or None
            Standard deviations of a likelihood.
        """
        encode = self.inputs.transform if self.given is None else self.given.features
        if self.given is not None and mean is None:
            mean = self.given.mean(X, query_points)
        rows = encode(X, query_points)
        # Means and standard deviations (S, n * q, m) of standardised values.
        predicted, values_of = self.draws.raw, self.targets.head.values
        loc, scale = values_of(ARRAYS, predicted(rows, index))
        if self.given is not None or self.widths is not None:
            # The centre is the mean over the fit's own indices, also for draws of other indices.
            fitted_index, fitted_loc = self.draws.index, loc
            if not np.array_equal(index, fitted_index):
                fitted_loc, _ = values_of(ARRAYS, predicted(rows, fitted_index))
            centre = fitted_loc.mean(axis=0)
            loc = loc - centre
            if self.widths is not None:
                # Factors of the query points repeat, since rows list all of them for each input.
                factor = self.widths.factor
                loc = loc * np.tile(factor, (len(rows) // len(factor), 1))
            # The mean of the draws is the given model's prediction exactly.
            loc = loc if self.given is not None else loc + centre
        n_queries = len(self.inputs.points(query_points))
        shape = (len(loc), len(X), n_queries, self.targets.head.n_outputs)
        scale = None if scale is None else scale.reshape(shape)
        return self.targets.restore(loc.reshape(shape), scale, mean)

    def distribution(
        self, X: np.ndarray, query_points: Any = None
    ) -> EpistemicNormal | GaussianMixture:
        """Predict the distribution of each function's values, for validated X."""
        mean = None if self.given is None else self.given.mean(X, query_points)
        loc, scale = self.values(X, self.draws.index, query_points, mean)
        noise = None if self.widths is None else self.widths.noise
        basis = self.draws.basis()
        return self.targets.distribution(loc, scale, centre=mean, noise=noise, basis=basis)

    def predict_mean(self, X: Any, **query: Any) -> np.ndarray:
        """Predict means (n, q * m); draws around the networks' own mean are not computed."""
        draws: Any = self.draws.of_mean()
        fitted = self
        if draws is not self.draws:  # widths do not change the mean
            fitted = replace(self, draws=draws, widths=None)
        return Fitted.predict_mean(fitted, X, **query)

    @np.errstate(under="ignore")
    def sample(  # type: ignore[override]  # has the one query that operators take
        self, X: np.ndarray, n_samples: int, rng: np.random.Generator, query_points: Any = None
    ) -> np.ndarray:
        """Draw (n[, q[, m]], n_samples): each draw is one function of inputs and query points.

        Noise is independent from value to value.
        """
        loc, scale = self.values(X, self.draws.independent(n_samples, rng), query_points)
        if scale is None and self.widths is not None:
            scale = self.widths.noise
        loc = loc + scale * rng.standard_normal(loc.shape) if scale is not None else loc
        loc = loc.reshape(n_samples, len(X), *self.output_shape(query_points))
        return np.moveaxis(loc, 0, -1)

    def n_numbers(self, query_points: Any = None) -> int:
        """Count the numbers of the raw prediction of one function."""
        n_queries = len(self.inputs.points(query_points))
        return len(self.draws.index) * n_queries * int(self.targets.head.n_raw)

    def output_shape(self, query_points: Any = None) -> tuple[int, ...]:
        """Return the shape of one function's values, as Y had it."""
        return self.targets.output_shape_at(len(self.inputs.points(query_points)))

    def posterior(
        self, n_draws: int, rng: np.random.Generator, query_points: Any = None
    ) -> Posterior:
        """Return draws of the function; an ensemble's are its members."""
        return self.posterior_of(self.draws.quasi_random(n_draws, rng), query_points)

    def posterior_of(self, index: np.ndarray, query_points: Any = None) -> Posterior:
        """Return the draws of given indices, which stay the same for all inputs.

        With a given model they run in NumPy only, as such a model can be of any kind.
        """
        draws: Any = self.draws
        n_draws, shape = len(index), self.output_shape(query_points)
        if self.given is not None:
            predicted = functools.partial(_predicted_draws, self, query_points)
            return Posterior(predicted, (index,), None, n_draws, shape)
        # Divide the fit into what stays the same from fit to fit, and arguments.
        members, inputs, targets = draws.members, self.inputs, self.targets
        network = read_network(members[0].network)
        n_members = 0 if network.n_index else len(members)
        function = OperatorDraws(network, targets.head, shape, n_members, draws.is_linear)
        weights = np.stack([member.weights for member in members]).astype("float64")
        states = [np.stack(values) for values in zip(*(member.state for member in members))]
        states = [v.astype("float64") if v.dtype.kind == "f" else v for v in states]
        if n_members and not draws.is_linear:
            index = np.zeros((1, 1))  # not used
        elif not n_members:  # without a member axis
            weights, states = weights[0], [v[0] for v in states]
        x, queries = inputs.scaling, inputs.query_scaling.transform(inputs.points(query_points))
        factor = np.ones((1, 1)) if self.widths is None else self.widths.factor
        fixed = (x.mean_, x.scale_, queries, targets.mean_, targets.scale_, factor, index)
        arguments = *fixed, *_runnable(network, n_members).split(weights), *states
        if draws.is_linear:
            directions = draws.directions.astype("float64")
            arguments = *arguments, *_runnable(network, n_members).split(directions)
        # Equal where the same program computes the draws.
        nameless = replace(function, network=network.without_names())
        key = nameless, tuple(part.shape for part in arguments)
        return Posterior(function, arguments, key, n_draws, shape)


def _predicted_draws(
    fitted: FittedOperator, query_points: Any, xp: Any, arguments: Any, X: np.ndarray
) -> np.ndarray:
    """Predict the draws of the indices in `arguments`, in units of Y, (S, n[, q[, m]])."""
    loc, _ = fitted.values(X, arguments[0], query_points)
    return loc.reshape(*loc.shape[:2], *fitted.output_shape(query_points))
