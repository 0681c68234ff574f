"""What a search has been told: points, outputs, values, and failures.

Notation: points (n, d) of the domain; outputs are what the function returns for a point, of
one shape; values are the objective's of these, in the user's sign.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from skuq.bayesopt._domain import Domain

__all__ = ["ResultLog", "Results"]


@dataclass(frozen=True, eq=False)
class Results:
    """What a step knows.

    Attributes
    ----------
    X : ndarray of shape (n, d)
        Points with usable outputs.
    outputs : ndarray of shape (n, *output_shape)
    values : ndarray of shape (n,)
        Of the objective, signed so that more is better.
    failed : ndarray of shape (m, d)
        Points without.
    """

    X: np.ndarray
    outputs: np.ndarray
    values: np.ndarray
    failed: np.ndarray

    def with_result(self, x, output, value) -> Results:
        return replace(
            self,
            X=np.vstack([self.X, x]),
            outputs=np.concatenate([self.outputs, [output]]),
            values=np.append(self.values, value),
        )


class _WrongShapeError(ValueError):
    """An objective that is not one."""


class ResultLog:
    """Results in the order in which they were told.

    Parameters
    ----------
    domain : Domain
    objective : callable or None
        From outputs (k, ..) to values (k,).

    Attributes
    ----------
    x : ndarray of shape (n, d)
    outputs : list of ndarray or None
        None where the evaluation failed.
    values : ndarray of shape (n,)
        NaN where it failed.
    messages : list of str
        Why it failed; empty where it did not.
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
        return np.array([output is not None for output in self.outputs], dtype=bool)

    @property
    def output_shape(self):
        """Of the first usable output; None before."""
        return next((y.shape for y in self.outputs if y is not None), None)

    @property
    def y(self) -> np.ndarray:
        """Outputs (n, *output_shape), NaN where the evaluation failed."""
        shape = self.output_shape or ()
        missing = np.full(shape, np.nan)
        rows = [missing if output is None else output for output in self.outputs]
        return np.stack(rows) if rows else np.empty(0)

    @property
    def n_left(self) -> float:
        """Points of the domain that are not known."""
        return self.domain.n_points - len({tuple(x) for x in self.x.tolist()})

    def best(self, sign: int) -> int | None:
        """Position of the best value; None where no evaluation was usable."""
        if np.isnan(self.values).all():
            return None
        return int(np.nanargmax(sign * self.values))

    def results(self, sign: int) -> Results:
        usable = self.usable
        outputs = np.stack([y for y in self.outputs if y is not None])
        return Results(self.x[usable], outputs, sign * self.values[usable], self.x[~usable])

    def add(self, x, y) -> None:
        """Points (d,) or (k, d) and what came of them, as `BayesianOptimizer.tell` has it."""
        points = self.domain.check(x)
        outputs = self._check_outputs(y, len(points), single=np.ndim(x) == 1)
        usable = np.isfinite(outputs).reshape(len(outputs), -1).all(axis=1)
        values, messages = np.full(len(points), np.nan), ["NaN or inf"] * len(points)
        for k in np.flatnonzero(usable):
            values[k], messages[k] = self._judged(outputs[k])
        self._append(points, list(outputs), values, messages)

    def add_failures(self, x, message: str) -> None:
        """Points (d,) or (k, d) whose evaluation gave nothing."""
        points = self.domain.check(x)
        nothing = [None] * len(points)
        self._append(points, nothing, np.full(len(points), np.nan), [message] * len(points))

    def to_arrays(self) -> dict:
        """All but the messages."""
        known = [y for y in self.outputs if y is not None]
        outputs = np.stack(known) if known else np.empty(0)
        return {"x": self.x, "outputs": outputs, "usable": self.usable, "values": self.values}

    def restore(self, arrays, messages) -> None:
        """Take the place of an empty log."""
        known = iter(np.asarray(arrays["outputs"], dtype="float64"))
        outputs = [next(known) if usable else None for usable in arrays["usable"]]
        self._append(np.asarray(arrays["x"]), outputs, np.asarray(arrays["values"]), messages)

    def _append(self, points, outputs, values, messages):
        failed = ~np.isfinite(values)
        self.x = np.vstack([self.x, points])
        self.outputs += [None if lost else output for output, lost in zip(outputs, failed)]
        self.values = np.append(self.values, np.where(failed, np.nan, values))
        self.messages += messages

    def _judged(self, output):
        """The objective of one output, and why it has none if so."""
        try:
            value = self._evaluated(output[None])[0]
        except _WrongShapeError:
            raise
        except Exception as error:  # nothing that was paid for is lost
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
