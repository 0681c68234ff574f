"""An evaluation on its way to other processes, and what comes back from it."""

from __future__ import annotations

import pickle
import threading

import cloudpickle

from skuq.exceptions import SearchSpaceError

__all__ = ["Parcel", "opened"]


class Parcel:
    """An evaluation as bytes; each process unpickles it once, when it first runs it.

    Parameters
    ----------
    evaluate : callable
        ``evaluate(configuration, seed) -> result``.

    Raises
    ------
    SearchSpaceError
        If it cannot be pickled.
    """

    def __init__(self, evaluate):
        self._needs_backend = getattr(evaluate, "needs_backend", False)
        try:
            self._pickled = cloudpickle.dumps(evaluate)
        except Exception as error:
            raise SearchSpaceError(
                f"The search cannot be sent to worker processes ({type(error).__name__}: {error}). "
                "Most often the search space holds something that cannot be pickled; use "
                'n_jobs=1, or joblib.parallel_config(backend="threading").'
            ) from error
        self._arrive()

    def _arrive(self):
        self._evaluate = None
        self._is_cancelled = False
        self._lock = threading.Lock()

    def __getstate__(self):
        return self._needs_backend, self._pickled

    def __setstate__(self, state):
        self._needs_backend, self._pickled = state
        self._arrive()

    def run(self, configuration, seed) -> tuple[bool, bytes, str]:
        """Evaluate: whether it returned, what it returned or raised, and that error in words.

        Pickled here, where it can still be said what cannot be: it fails its own trial only.
        """
        try:
            evaluate = self._unpacked()
            return True, cloudpickle.dumps(evaluate(configuration, seed)), ""
        except BaseException as error:  # sys.exit() in a trial must not end who asked for it
            words = f"{type(error).__name__}: {error}"
            if not isinstance(error, Exception):
                return False, b"", words
            try:
                return False, cloudpickle.dumps(error), words
            except Exception:
                return False, b"", words

    def cancel(self):
        """Let what runs end at its next opportunity; it may be called from any thread."""
        self._is_cancelled = True
        _cancel(self._evaluate)

    def _unpacked(self):
        with self._lock:  # several threads of one process may come at once
            if self._evaluate is None:
                if self._needs_backend:
                    # Quietly, before unpickling a user's function imports it with its noise.
                    from skuq.backend import keras  # noqa: F401
                self._evaluate = cloudpickle.loads(self._pickled)
                if self._is_cancelled:
                    _cancel(self._evaluate)
            return self._evaluate


def _cancel(evaluate):
    if hasattr(evaluate, "cancel"):
        evaluate.cancel()


def opened(returned: bool, pickled: bytes, words: str):
    """What `Parcel.run` sent, in the process that asked: the result, or its error raised.

    Raises
    ------
    RuntimeError
        Instead of an error that cannot be pickled, and where the result cannot be read.
    """
    try:
        value = pickle.loads(pickled) if pickled else None
    except Exception as error:
        unread = f"What the trial returned cannot be read ({type(error).__name__}: {error})."
        raise RuntimeError(unread if returned else words) from error
    if returned:
        return value
    raise value if isinstance(value, Exception) else RuntimeError(words)
