"""The results of a search: points, outputs, values and failures.

Notation: points (n, d) lie in the domain. Outputs are what the function returns for a point, all
of one shape. Values are those of the objective of the outputs, with the user's sign.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from skuq.bayesopt._domain import Domain


@dataclass(frozen=True, eq=False)
class Results:
    """Results that a step fits its surrogate to.

    Points with usable outputs `X` (n, d), their outputs (n, *output_shape) and values (n,) of the
    objective, with the sign that makes more better; `failed` (m, d) are points without outputs.
    """

    X: np.ndarray
    outputs: np.ndarray
    values: np.ndarray
    failed: np.ndarray

    def with_result(self, x, output, value) -> Results:
        """Copy the results, with one more."""
        return replace(
            self,
            X=np.vstack([self.X, x]),
            outputs=np.concatenate([self.outputs, [output]]),
            values=np.append(self.values, value),
        )


class _WrongShapeError(ValueError):
    """The objective does not give one number for each output."""


class ResultLog:
    """All results in the order of their evaluation: points `x` (n, d), outputs, values (n,).

    A failed evaluation has None as output, NaN as value and its reason in `messages`, which are
    empty for the others. The objective, if any, maps outputs (k, ..) to values (k,).
    """

    def __init__(self, domain: Domain, objective: Callable | None):
        self.domain, self.objective = domain, objective
        self.x, self.values = np.empty((0, domain.n_columns)), np.empty(0)
        self.outputs: list[np.ndarray | None] = []
        self.messages: list[str] = []

    def __len__(self):
        return len(self.x)

    @property
    def usable(self) -> np.ndarray:
        """Which evaluations succeeded: (n,)."""
        return np.array([output is not None for output in self.outputs], dtype=bool)

    @property
    def has_value(self) -> bool:
        """Whether any evaluation succeeded."""
        return not np.isnan(self.values).all()

    @property
    def output_shape(self):
        """Shape of one output; None before the first usable one."""
        return next((y.shape for y in self.outputs if y is not None), None)

    @property
    def y(self) -> np.ndarray:
        """All outputs (n, *output_shape), NaN where the evaluation failed."""
        shape = self.output_shape or ()
        missing = np.full(shape, np.nan)
        rows = [missing if output is None else output for output in self.outputs]
        return np.stack(rows) if rows else np.empty(0)

    @property
    def n_left(self) -> float:
        """Number of points of the domain that are not known."""
        return self.domain.n_points - len({tuple(x) for x in self.x.tolist()})

    def best(self, sign: int) -> int | None:
        """Position of the best value; None if no evaluation succeeded."""
        if not self.has_value:
            return None
        return int(np.nanargmax(sign * self.values))

    def results(self, sign: int) -> Results:
        """Get the results as a step needs them, with values times `sign`."""
        usable = self.usable
        outputs = np.stack([y for y in self.outputs if y is not None])
        return Results(self.x[usable], outputs, sign * self.values[usable], self.x[~usable])

    def add(self, x, y) -> None:
        """Add points (d,) or (k, d) and their outputs; see `BayesianOptimizer.tell`."""
        points = self.domain.check(x)
        outputs = self._check_outputs(y, len(points), single=np.ndim(x) == 1)
        usable = np.isfinite(outputs).reshape(len(outputs), -1).all(axis=1)
        values, messages = np.full(len(points), np.nan), ["NaN or inf"] * len(points)
        for k in np.flatnonzero(usable):
            values[k], messages[k] = self._value_of(outputs[k])
        self._append(points, list(outputs), values, messages)

    def add_failures(self, x, message: str) -> None:
        """Add points (d,) or (k, d) whose evaluation failed."""
        points = self.domain.check(x)
        nothing = [None] * len(points)
        self._append(points, nothing, np.full(len(points), np.nan), [message] * len(points))

    def to_arrays(self) -> dict:
        """Get all but the messages as arrays."""
        known = [y for y in self.outputs if y is not None]
        outputs = np.stack(known) if known else np.empty(0)
        return {"x": self.x, "outputs": outputs, "usable": self.usable, "values": self.values}

    def restore(self, arrays, messages) -> None:
        """Fill an empty log with what `to_arrays` gave."""
        known = iter(np.asarray(arrays["outputs"], dtype="float64"))
        outputs = [next(known) if usable else None for usable in arrays["usable"]]
        self._append(np.asarray(arrays["x"]), outputs, np.asarray(arrays["values"]), messages)

    def _append(self, points, outputs, values, messages):
        failed = ~np.isfinite(values)
        self.x = np.vstack([self.x, points])
        self.outputs += [None if lost else output for output, lost in zip(outputs, failed)]
        self.values = np.append(self.values, np.where(failed, np.nan, values))
        self.messages += messages

    def _value_of(self, output):
        """Evaluate the objective of one output; the message says why it fails."""
        try:
            value = self._evaluated(output[None])[0]
        except _WrongShapeError:
            raise
        except Exception as error:  # the evaluation was expensive: keep it
            return np.nan, f"the objective raised {type(error).__name__}: {error}"
        return value, "" if np.isfinite(value) else "the objective is NaN or inf"

    def _evaluated(self, outputs):
        if self.objective is None:
            return outputs
        values = np.asarray(self.objective(outputs), dtype="float64")
        if values.shape != (len(outputs),):
            raise _WrongShapeError(
                "`objective` must make one number of each output, along the last axes of its "
                f"argument: of shape {outputs.shape}, {(len(outputs),)}. Got {values.shape}."
            )
        return values

    def _check_outputs(self, y, n, single):
        try:
            y = np.asarray(y, dtype="float64")
        except (TypeError, ValueError) as error:
            raise ValueError(f"`y` must be numbers. Got {y!r}.") from error
        if single:
            y = y.reshape(1) if self.objective is None and y.size == 1 else y[None]
        if self.objective is None:
            expected = (n,)
            hint = "" if y.ndim < 2 else " With several numbers for each x give an `objective`."
        else:
            known, hint = self.output_shape, ""
            expected = (n, *(y.shape[1:] if known is None else known))
        if y.shape != expected:
            raise ValueError(
                f"`y` must have shape {expected}, a value for each of {n} x. Got {y.shape}.{hint}"
            )
        return y
