"""Messages to the user: warnings that point at the user's line, and the progress of a run."""

import contextlib
import importlib.metadata
import logging
import math
import multiprocessing
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from types import FrameType
from typing import Any, Self

import joblib
import scipy.linalg  # noqa: F401  (SciPy has a library of its own, which must be loaded)
import sklearn
from tqdm.auto import tqdm

# skuq, and the libraries that stand between it and the user or the start of a process.
_PASSED_OVER = {
    "skuq",
    "sklearn",
    "joblib",
    "concurrent",
    "contextlib",
    "functools",
    "multiprocessing",
    "numpy",
    "runpy",
    "threading",
}


# Frame that waits in another thread for the work of this context.
WAITING: ContextVar[FrameType | None] = ContextVar("waiting", default=None)


def warn_user(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn at the first line up the stack that is neither skuq's nor a library's in between.

    In a thread or a worker process no line is the user's. The warning then points at the function
    that raises it.
    """
    frame: FrameType | None = sys._getframe(1)  # the function that called this one
    raised: Any = frame
    waiting = WAITING.get()
    while frame is not None:
        # A module that is run as a script is called "__main__", but its spec has its name.
        spec = frame.f_globals.get("__spec__")
        name = getattr(spec, "name", None) or frame.f_globals.get("__name__", "")
        if name.partition(".")[0] not in _PASSED_OVER:
            break
        frame = frame.f_back
        if frame is None:
            frame, waiting = waiting, None
    at = raised if frame is None else frame
    name = at.f_globals.get("__name__", "<string>")
    registry = at.f_globals.setdefault("__warningregistry__", {})
    warnings.warn_explicit(message, category, at.f_code.co_filename, at.f_lineno, name, registry)


def short_repr(value: Any, most: int = 200) -> str:
    """Represent a value in at most so many characters; an ellipsis ends what is cut."""
    text = repr(value)
    return text if len(text) <= most else f"{text[: most - 1]}…"


_logger = logging.getLogger("skuq")

_LONG = 20.0  # seconds: by default a shorter computation shows no bar


# Function that is called after steps of a computation: ``listener(unit, n)``.
_LISTENER: ContextVar[Callable[[str, int], None] | None] = ContextVar("listener", default=None)


@contextlib.contextmanager
def listening(listener: Callable[[str, int], None] | None) -> Iterator[None]:
    """Call a listener for all steps that are counted inside the context."""
    token = _LISTENER.set(listener)
    try:
        yield
    finally:
        _LISTENER.reset(token)


class Progress:
    """Progress bar of one computation, which counts its steps. It is a context manager.

    With ``verbose=None`` it shows a bar on a terminal or in a notebook after 20 seconds, and in
    workers nothing. With ``verbose=1`` it shows a bar at once, anywhere. With ``verbose=0`` it
    shows nothing. Messages of steps go to the log "skuq" at level INFO.

    Parameters
    ----------
    name : str
        Name of the computation.
    unit : str
        Name of one step, such as "trial" or "epoch".
    total : int, optional
        Number of steps; None if it is not known yet.
    verbose : int or None, default=None
        Kind of display, as described above.
    initial : int, default=0
        Number of steps that were done before.
    seconds_left : callable, optional
        Function that returns the time that the computation may still take, in seconds.
    """

    def __init__(
        self,
        name: str,
        unit: str,
        total: int | None = None,
        *,
        verbose: int | None = None,
        initial: int = 0,
        seconds_left: Callable[[], float] = lambda: math.inf,
    ) -> None:
        self._bar: Any = None
        if verbose or (verbose is None and _is_watched()):
            delay = 0 if verbose else _LONG
            self._bar = tqdm(total=total, initial=initial, desc=name, unit=unit, delay=delay)
        self._unit, self._seconds_left = unit, seconds_left
        self._n_done, self._shown = initial, dict[str, Any]()
        self._lock = threading.RLock()  # threads that train report at the same time

    def __enter__(self) -> Self:
        self._listener = _LISTENER.get()
        return self

    def __exit__(self, *error: Any) -> None:
        if self._bar is not None:
            self._bar.close()

    def epochs(self, n_epochs: int, n_left: int) -> None:
        """Count epochs of a training that has at most `n_left` more."""
        with self._lock:
            if self._bar is not None:
                self._bar.total = self._n_done + n_epochs + n_left
                if not self._n_done:  # the first slice compiles: estimates begin after it
                    self._bar.initial = self._bar.last_print_n = n_epochs
            self.step(n_epochs)

    def step(self, n: int = 1, message: str = "", **shown: Any) -> None:
        """Count steps, and show values by their names.

        Parameters
        ----------
        n : int, default=1
            Number of steps.
        message : str, default=""
            Description of the step, for the log.
        **shown
            Values to show by their names. They stay until they are replaced.
        """
        with self._lock:
            self._n_done += n
            if self._listener is not None:
                self._listener(self._unit, n)
            if message:
                _logger.info(message)
            if self._bar is not None:
                limit = self._seconds_left()
                if math.isfinite(limit):
                    shown["time limit"] = tqdm.format_interval(max(limit, 0))
                self._shown.update(shown)
                self._bar.set_postfix(self._shown, refresh=False)
                self._bar.update(n)


def _is_watched() -> bool:
    """Tell whether a bar would be seen: on a terminal or in a notebook, and not in a worker."""
    # A task of joblib, or a process of multiprocessing: several would write at the same time.
    backend, _ = joblib.parallel.get_active_backend()
    if (backend.nesting_level or 0) > 0 or multiprocessing.parent_process() is not None:
        return False
    in_notebook = any(base.__module__ == "tqdm.notebook" for base in tqdm.__mro__)
    return in_notebook or (sys.stderr is not None and sys.stderr.isatty())


def show_versions() -> None:
    """Print versions for a report of a fault: what scikit-learn's function prints, and skuq's own.

    TensorFlow is not imported for that.

    Examples
    --------
    >>> import skuq
    >>> skuq.show_versions()  # doctest: +ELLIPSIS
    <BLANKLINE>
    System:
    ...
    """
    sklearn.show_versions()
    print("\nskuq:")
    for name in ("skuq", "tensorflow", "keras", "keras-tuner", "tensorflow-probability", "skops"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            print(f"  {name}: {importlib.metadata.version(name)}")
