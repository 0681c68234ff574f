"""Trained networks predict, and can be refined, in float64 from their float32 weights.

In float64 the prediction of a row does not depend on the other rows (to 1e-12). scikit-learn's
contract requires this, and float32 kernels do not give it. A planned network predicts in NumPy,
with no backend loaded and nothing to compile; any other network predicts through Keras. Networks
that give several draws a row predict in NumPy, too, except for a base that is a Keras model.

Refinement is for data without noise, such as those of NEON. First-order training leaves errors of
about a thousandth of the targets' scale, and searches for an optimum need less. Second-order
methods get there in a few steps, from weights that are nearly right. Its notation: N rows,
n = N n_raw values, P weights.
"""

import functools
import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

import numpy as np
from scipy import linalg, optimize

from skuq import backend
from skuq.backend import BoundedCache
from skuq.backend._scopes import one_thread_if_small
from skuq.networks._dense import Dense, Derivatives, chain_derivatives
from skuq.networks._keras_models import own_classes, rebuild
from skuq.networks._member import Member, checked_network
from skuq.networks._operations import ARRAYS, Run
from skuq.networks._operator_network import EpistemicNetwork
from skuq.networks._plan import make_plan, without_names
from skuq.training._network_checks import DrawingNetwork, numbers_per_row


class _Chunks:
    """How many rows are predicted at a time."""

    # Numbers of one layer that are held: 256 kB, which fit into the cache of a core. Draws of
    # epistemic networks may take 4 MB, and all layers of a Keras model 256 MB in float32.
    entries: int = 2**15
    drawn_entries: int = 2**19
    keras_entries: int = 2**26
    least_rows: int = 16
    least_width: int = 64  # that a layer of an epistemic network counts as
    few_rows: int = 128  # whose products take less time than it takes to limit the threads


# For each member its variables and state in float64.
_parts: WeakKeyDictionary[Member, tuple[list[Any], list[Any]]] = WeakKeyDictionary()
_forwards = BoundedCache(max_size=64)


def largest_power_of_two(limit: float) -> int:
    """Return the largest power of two up to `limit`, at least 1."""
    return 2 ** max(0, int(limit).bit_length() - 1)


def predict_members(
    members: Sequence[Member],
    x: np.ndarray,
    *,
    dropout_mask: Callable[..., Any] | None = None,
    n_draws: int = 1,
    cache: bool = True,
) -> np.ndarray:
    """Predict raw outputs of shape (n_members, n_samples, n_raw).

    Parameters
    ----------
    members : sequence of Member
    x : ndarray of shape (n_samples, ...)
        Standardised inputs.
    dropout_mask : callable, optional
        Masks of dropout layers, as in `skuq.networks._plan.Run`. If they have a leading axis of
        `n_draws`, a member's predictions have it, too.
    n_draws : int, default=1
        Number of draws that `dropout_mask` returns at once; it only sets the size of chunks.
    cache : bool, default=True
        False keeps and compiles nothing for later predictions; networks without a plan then
        compute in float32.

    Examples
    --------
    >>> import numpy as np
    >>> from skuq.backend import keras
    >>> from skuq.networks import GaussianHead
    >>> from skuq.tables import TrainingData
    >>> from skuq.training import Recipe, TrainingJob, predict_members, train
    >>> x = np.linspace(-1, 1, 20)[:, None]
    >>> data = TrainingData.without_validation(x, x**2, np.ones(20))
    >>> dense = keras.layers.Dense
    >>> model = keras.Sequential([keras.Input((1,)), dense(8, "relu"), dense(2)])
    >>> job = TrainingJob.of_model(model, GaussianHead(), Recipe(epochs=4), seeds=[0])
    >>> predict_members(train(job, data), x[:3]).shape
    (1, 3, 2)
    """
    x, run = np.asarray(x, dtype="float64"), Run(dropout_mask=dropout_mask)
    return np.stack([_predict(member, x, run, n_draws, cache) for member in members])


def _predict(member: Member, x: np.ndarray, run: Run, n_draws: int, cache: bool) -> Any:
    """Predict with one member, in chunks of rows whose widest layer fits into the cache."""
    plan = make_plan(member.network)
    if plan is None:
        return _predict_keras(member, x, cache)
    # Variables in float64 are kept for as long as the member lives.
    parts = _parts.get(member)
    if parts is None:
        weights = plan.split(np.asarray(member.weights, dtype="float64"))
        parts = weights, [_cast(value, "float64") for value in member.state]
        if cache:
            _parts[member] = parts
    rows = max(_Chunks.least_rows, largest_power_of_two(_Chunks.entries // n_draws // plan.width))
    if len(x) <= min(rows, _Chunks.few_rows):
        return plan(*parts, x, run)[0]
    # Products of a chunk are so small that threads would mainly wait for each other.
    with one_thread_if_small(min(rows, plan.width)):
        chunks = [plan(*parts, x[i : i + rows], run)[0] for i in range(0, len(x), rows)]
    return np.concatenate(chunks, axis=-2)


@backend.in_thread
def _predict_keras(member: Member, x: np.ndarray, cache: bool) -> np.ndarray:
    """Predict through a compiled float64 copy of the Keras model.

    Without `cache`, the float32 model predicts without compilation, in a third of the time. Its
    last digits then depend on the other rows of a pass.
    """
    backend.check_fork()  # a program of the parent may be kept
    dtype = "float64" if cache else "float32"
    weights = np.asarray(member.weights, dtype=dtype)
    state = tuple(_cast(value, dtype) for value in member.state)
    network = checked_network(member)
    key = without_names(network), own_classes(network)
    model, forward = _forwards.get((*key, dtype), functools.partial(_keras_forward, network, dtype))
    if cache:
        forward = _forwards.get(
            (*key, "compiled"),
            lambda: backend.compile_forward(forward, weights.size, state, model.input_shape[1:]),
        )
    # Keras keeps the outputs of all layers until the last one is computed.
    rows = largest_power_of_two(_Chunks.keras_entries // sum(numbers_per_row(model)))
    parts = [
        np.asarray(forward(weights, state, x[start : start + rows].astype(dtype)))
        for start in range(0, max(1, len(x)), rows)
    ]
    return np.concatenate(parts).astype("float64")


def _keras_forward(network: str, dtype: str) -> tuple[Any, Callable[..., Any]]:
    """Rebuild a Keras model with this floating type, as a function of its flat weights."""
    ops = backend.ops

    def with_dtype(item: dict[str, Any]) -> dict[str, Any]:
        """Replace the floating type that one object of the configuration names."""
        if item.get("class_name") == "DTypePolicy" and item["config"].get("name") == "float32":
            item["config"]["name"] = dtype
        return {**item, "dtype": dtype} if item.get("dtype") == "float32" else item

    model = rebuild(json.dumps(json.loads(network, object_hook=with_dtype)))
    shapes = [tuple(variable.shape) for variable in model.trainable_variables]
    ends = np.cumsum([math.prod(shape) for shape in shapes])[:-1].tolist()

    def forward(weights: Any, state: Any, x: Any) -> Any:
        parts = ops.split(ops.convert_to_tensor(weights), ends)
        parts = [ops.reshape(part, shape) for part, shape in zip(parts, shapes)]
        x = ops.convert_to_tensor(x)
        return model.stateless_call(parts, list(state), x, training=False)[0]

    return model, forward


def _cast(value: Any, dtype: str) -> np.ndarray:
    """Convert floating arrays to a dtype, and leave integers (seeds, counters) unchanged."""
    array = np.asarray(value)
    return array.astype(dtype) if array.dtype.kind == "f" else array


# For each member its network, and its variables and state in float64.
_drawing_parts: WeakKeyDictionary[Member, tuple[DrawingNetwork, list[Any], list[Any]]] = (
    WeakKeyDictionary()
)


#: Parses the network in a member's configuration.
read_network = functools.lru_cache(maxsize=64)(EpistemicNetwork.from_json)


def predict_draws(member: Member, x: np.ndarray, index: np.ndarray | None = None) -> np.ndarray:
    """Predict raw draws of shape (n_draws, n_samples, n_raw).

    Parameters
    ----------
    member : Member
        Trained `EpistemicNetwork`.
    x : ndarray of shape (n_samples, n)
        Standardised rows.
    index : ndarray of shape (n_draws, n_index), optional
        Epistemic indices of the draws. Only networks with an EpiNet need them; others give one
        draw.
    """
    network, variables, state = parts_of(member)
    x, run = np.asarray(x, dtype="float64"), Run(ARRAYS, index=index)
    epinet = network.network.epinet
    # Chunks of rows bound the memory of the widest layer, (n_draws, rows, widest).
    n_draws, widest = 1, _Chunks.least_width
    if epinet is not None:
        n_draws, widest = len(run.index), max(widest, *epinet.units)
    rows = largest_power_of_two(_Chunks.drawn_entries // (n_draws * widest))
    rows = max(_Chunks.least_rows, rows)
    draws = np.empty((n_draws, len(x), network.network.n_raw))
    for start in range(0, len(x), rows):
        part = slice(start, start + rows)
        draws[:, part] = network.forward(variables, state, x[part], run)[0]
    return draws


def parts_of(member: Member) -> tuple[DrawingNetwork, list[Any], list[Any]]:
    """Look up a member's network, its variables and its state in float64."""
    if member not in _drawing_parts:
        predicting = _Predicting(member)
        variables = predicting.split(np.asarray(member.weights, dtype="float64"))
        state = [v.astype("float64") if v.dtype.kind == "f" else v for v in member.state]
        _drawing_parts[member] = predicting, variables, state
    return _drawing_parts[member]


class _Predicting(DrawingNetwork):
    """A `DrawingNetwork` whose base runs in float64 also where it is a Keras model."""

    def __init__(self, member: Member):
        super().__init__(read_network(checked_network(member)))
        # A copy without arrays, so that the weak table above does not keep the member alive.
        self._record = member.without_arrays()

    def base(self, variables: Any, state: Any, x: Any, run: Run) -> tuple[Any, Any, Any, Any]:
        """Predict with the base; a Keras model runs in float64, through `predict_members`."""
        if self.keras_base is None:
            return super().base(variables, state, x, run)
        flat = np.concatenate([np.ravel(part) for part in variables])
        base: Any = self.network.base
        record = replace(self._record, network=base, weights=flat, state=tuple(state))
        raw = predict_members([record], x)[0]
        n_raw = self.network.n_raw
        return raw[:, :n_raw], raw[:, n_raw:], state, 0.0


MAX_DUAL_VALUES = 1500  # with more, systems of n equations take longer than first-order steps

_MOST_STEPS, _TOLERANCE, _LEAST_GAIN = 50, 1e-6, 0.02  # of systems of n equations
# Damping at first, least and largest, in units of the tangent kernel's mean diagonal. With less
# than the least, rounding makes the kernel of nearly equal rows indefinite.
_DAMPING, _LEAST_DAMPING, _LARGEST_DAMPING = 1e-3, 1e-10, 1e8
# Computes raw outputs and derivatives from weights (P,) at some of the rows.
_DerivativesOfRows: TypeAlias = Callable[[np.ndarray, slice], Derivatives]


def refine(member: Member, x: np.ndarray, y: np.ndarray, weight: np.ndarray) -> Member:
    """Minimise a trained network's weighted squared error from its present weights.

    Up to `MAX_DUAL_VALUES` values, the Levenberg-Marquardt method in its dual form solves for the
    smallest change of the weights that meets all values. With more values it is L-BFGS.

    Parameters
    ----------
    member : Member
        A chain of dense Keras layers, or a network whose base is an `EncoderDecoder`, without
        EpiNet. A frozen prior network stays as it is.
    x : ndarray of shape (N, n_features)
    y : ndarray of shape (N, n_raw)
    weight : ndarray of shape (N,)
        Rows of weight 0 are left out.

    Returns
    -------
    Member
        A copy with other weights, in single precision, and a longer time of training.
    """
    started, used = time.perf_counter(), weight > 0
    x, y = x[used].astype("float64"), y[used].astype("float64")
    plan = make_plan(member.network)
    if plan is not None:
        shapes = [plan.weights[node.weights[0]].shape for node in plan.nodes]
        layers = [
            Dense(n, m, node.operation.activation) for (n, m), node in zip(shapes, plan.nodes)
        ]

        def derivatives(flat: np.ndarray, rows: slice) -> Derivatives:
            return chain_derivatives(layers, plan.split(flat), x[rows])

    else:
        network, variables, _ = parts_of(member)
        base: Any = network.network.base
        # What the frozen prior network adds to the base is a constant of every row.
        y = y - predict_draws(member, x)[0] + base(ARRAYS, variables, x)[0]

        def derivatives(flat: np.ndarray, rows: slice) -> Derivatives:
            return base.derivatives(network.split(flat), x[rows])

    start = np.asarray(member.weights, dtype="float64")
    # Roots of the rows' relative weights, (n,): residuals are multiplied by them.
    root = np.repeat(np.sqrt(weight[used] / weight[used].mean()), y.shape[1])
    if y.size <= MAX_DUAL_VALUES:
        every = slice(None)
        found = levenberg_marquardt(lambda flat: derivatives(flat, every), start, y.ravel(), root)
    else:
        found = _lbfgs(derivatives, start, y.ravel(), root, y.shape[1])
    seconds = member.seconds + time.perf_counter() - started
    return replace(member, weights=found.astype("float32"), seconds=seconds)


def levenberg_marquardt(
    derivatives: Callable[[np.ndarray], Derivatives],
    flat: np.ndarray,
    targets: np.ndarray,
    root: np.ndarray,
) -> np.ndarray:
    """Minimise ``|root * (targets - raw(flat))|^2`` over weights (P,), where n < P.

    A step is J^T (J J^T + damping I)^-1 residual, with J the derivatives of the weighted values:
    the change of the weights that Levenberg and Marquardt's normal equations give, from a system
    of n equations. Damping follows Nielsen's rule (1999).

    The search ends at a root mean square of the residuals of `_TOLERANCE`, in units of the
    standardised targets, or after a step that removes less than the share `_LEAST_GAIN` of the
    squared error.
    """
    current = derivatives(flat)
    residual = root * (targets - current.raw.ravel())
    loss, damping, growth = residual @ residual, None, 2.0
    for _ in range(_MOST_STEPS):
        if loss <= len(targets) * _TOLERANCE**2:
            break
        # Kernel of the weighted values, diag(root) J J^T diag(root).
        gram = current.gram() * np.multiply.outer(root, root)
        unit = np.trace(gram) / len(gram)
        damping = _DAMPING * unit if damping is None else max(damping, _LEAST_DAMPING * unit)
        while damping <= _LARGEST_DAMPING * unit:
            damped = gram + damping * np.eye(len(gram))
            # The step is J^T diag(root) dual.
            dual = linalg.cho_solve(linalg.cho_factor(damped, lower=True), residual)
            tried = flat + current.back((root * dual)[None])[0]
            tried_derivatives = derivatives(tried)
            after = root * (targets - tried_derivatives.raw.ravel())
            gain = loss - after @ after
            # The linear model predicts the residual damping * dual.
            predicted_gain = loss - damping**2 * (dual @ dual)
            if gain > 0:
                break
            damping, growth = damping * growth, 2 * growth
        else:
            return flat  # no step gains any more
        flat, current, residual, loss = tried, tried_derivatives, after, after @ after
        if gain < _LEAST_GAIN * (loss + gain):
            break
        # Nielsen's rule: more trust in the linear model, the better it predicted the gain.
        damping *= max(1 / 3, 1 - (2 * gain / predicted_gain - 1) ** 3)
        growth = 2.0
    return flat


def _lbfgs(
    derivatives: _DerivativesOfRows,
    flat: np.ndarray,
    targets: np.ndarray,
    root: np.ndarray,
    n_raw: int,
    *,
    max_steps: int = 300,
    rows_at_once: int = 4096,
    n_pairs: int = 20,
) -> np.ndarray:
    """Minimise the same by L-BFGS, with derivatives of some rows at a time."""
    n_rows = len(targets) // n_raw

    def loss(flat: np.ndarray) -> tuple[float, np.ndarray]:
        total, gradient = 0.0, np.zeros_like(flat)
        for start in range(0, n_rows, rows_at_once):
            part = derivatives(flat, slice(start, start + rows_at_once))
            # A row has `n_raw` neighbouring values.
            values = slice(start * n_raw, (start + rows_at_once) * n_raw)
            residual = root[values] * (targets[values] - part.raw.ravel())
            total += residual @ residual
            # The gradient is -2 J^T diag(root) residual.
            gradient -= 2 * part.back((root[values] * residual)[None])[0]
        return total / len(targets), gradient / len(targets)

    # With tolerances of 0 the search ends after its last step, or when no step gains.
    found = optimize.minimize(
        loss,
        flat,
        jac=True,
        method="L-BFGS-B",
        options={
            "maxiter": max_steps,
            "maxfun": 2 * max_steps,
            "maxcor": n_pairs,
            "ftol": 0.0,
            "gtol": 0.0,
        },
    )
    return found.x
