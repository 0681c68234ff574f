"""Send an evaluation to worker processes, and its outcomes back."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable
from typing import Any

import cloudpickle

from skuq.exceptions import SearchSpaceError

#: Whether the evaluation returned, its pickled result or error, and the error's message.
Outcome = tuple[bool, bytes, str]


class EvaluationPayload:
    """A pickled evaluation; each process unpickles it once, when it first runs it.

    Raises SearchSpaceError if the evaluation cannot be pickled.
    """

    def __init__(self, evaluate: Callable[..., Any]) -> None:
        self._needs_backend = getattr(evaluate, "needs_backend", False)
        try:
            self._pickled = cloudpickle.dumps(evaluate)
        except Exception as error:
            raise SearchSpaceError(
                f"The search cannot be sent to worker processes ({type(error).__name__}: {error}). "
                "Most often the search space has a part that cannot be pickled. Use n_jobs=1, or "
                'joblib.parallel_config(backend="threading").'
            ) from error
        self._reset()

    def _reset(self) -> None:
        self._evaluate: Callable[..., Any] | None = None
        self._is_cancelled = False
        self._lock = threading.Lock()

    def __getstate__(self) -> tuple[bool, bytes]:
        return self._needs_backend, self._pickled

    def __setstate__(self, state: tuple[bool, bytes]) -> None:
        self._needs_backend, self._pickled = state
        self._reset()

    def run(self, *arguments: Any) -> Outcome:
        """Run one evaluation; never raises.

        The result is pickled here, so that a result that cannot be pickled only fails its own
        trial, with a message that names the reason.
        """
        try:
            evaluate = self._unpickle()
            return True, cloudpickle.dumps(evaluate(*arguments)), ""
        except BaseException as error:  # sys.exit() in a trial must not end the caller
            message = f"{type(error).__name__}: {error}"
            if not isinstance(error, Exception):
                return False, b"", message
            try:
                return False, cloudpickle.dumps(error), message
            except Exception:
                return False, b"", message

    def cancel(self) -> None:
        """Ask running evaluations to end soon; can be called from any thread."""
        self._is_cancelled = True
        _cancel(self._evaluate)

    def _unpickle(self) -> Callable[..., Any]:
        """Unpickle the evaluation at the first call, and return it."""
        with self._lock:  # several threads of one process may call at the same time
            if self._evaluate is None:
                if self._needs_backend:
                    # Import the backend quietly, before a user's function imports it.
                    from skuq.backend import keras  # noqa: F401
                evaluate = self._evaluate = cloudpickle.loads(self._pickled)
                if self._is_cancelled:
                    _cancel(evaluate)
            return self._evaluate


def _cancel(evaluate: Any) -> None:
    if hasattr(evaluate, "cancel"):
        evaluate.cancel()


def unpack_outcome(returned: bool, pickled: bytes, message: str) -> Any:
    """Return the result that `EvaluationPayload.run` sent, or raise its error.

    Raises
    ------
    RuntimeError
        Instead of an error that could not be pickled, and if the result cannot be unpickled.
    """
    try:
        value = pickle.loads(pickled) if pickled else None
    except Exception as error:
        unreadable = f"What the trial returned cannot be read ({type(error).__name__}: {error})."
        raise RuntimeError(unreadable if returned else message) from error
    if returned:
        return value
    raise value if isinstance(value, Exception) else RuntimeError(message)
