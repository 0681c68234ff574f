"""Messages to the user: warnings that point at the user's line, and the progress of a run."""

from __future__ import annotations

import contextlib
import logging
import math
import multiprocessing
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from numbers import Integral
from types import FrameType
from typing import Any, Self

import joblib
import numpy as np
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
    "runpy",
    "threading",
}


def warn_user(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn at the first line up the stack that is neither skuq's nor a library's in between.

    In a thread or a worker process no line is the user's. The warning then points at the function
    that raises it.
    """
    frame: FrameType | None = sys._getframe(1)  # the function that called this one
    raised: Any = frame
    # The function that waits for this thread, if it is one of skuq's own.
    waiting = getattr(threading.current_thread(), "caller", None)
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


def short_repr(value: Any) -> str:
    """Represent a value in at most 200 characters; an ellipsis ends what is cut."""
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:199]}…"


_logger = logging.getLogger("skuq")

_LONG = 20.0  # seconds: by default a shorter computation shows no bar
_FIRST_ESTIMATE = 2.0  # seconds after which a computation's time is estimated
_N_LINES = 20  # about the number of lines of a computation with many steps
_LINE_EVERY = 60.0  # seconds after which such a computation writes a further line


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
    """Progress of one computation, which counts its steps.

    It is a context manager. With ``verbose=None`` it shows a bar on a terminal or in a notebook, as
    soon as the computation is expected to take more than 20 seconds; elsewhere it writes lines to
    the log "skuq" at level INFO, and in workers nothing. With ``verbose=1`` it shows a bar at once,
    or prints lines to stderr if that is not a terminal. With ``verbose=0`` it shows nothing.

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
    every_step : bool, default=True
        Whether each step writes a line. Otherwise there are about twenty lines.
    """

    def __init__(
        self,
        name: str,
        unit: str,
        total: int | None = None,
        *,
        verbose: int | None = None,
        initial: int = 0,
        seconds_left: Callable[[], float] | None = None,
        every_step: bool = True,
    ) -> None:
        self._name, self._unit, self._total = name, unit, total
        self._verbose, self._initial = verbose, initial
        self._limit, self._every_step = seconds_left, every_step
        self._display = _choose_display(verbose)
        self._bar: Any = None
        self._lock = threading.RLock()  # threads that train report at the same time
        self._n_lines = 0
        self._shown: dict[str, Any] = {}

    def __enter__(self) -> Self:
        self.n_done = self._initial
        self._listener = _LISTENER.get()
        self._started = self._last_line = time.time()
        self._timer: threading.Timer | None = None
        if self._display == "bar":
            if self._verbose:
                self._open_bar()
            else:  # a timer, since the first step may take long
                self._timer = threading.Timer(_LONG, self._open_bar)
                self._timer.daemon = True
                self._timer.start()
        return self

    def __exit__(self, *error: Any) -> None:
        if self._timer is not None:
            self._timer.cancel()
        with self._lock:
            self._display = None  # a timer that fires now opens no bar
            if self._bar is not None:
                self._bar.close()

    def epochs(self, n_epochs: int, n_left: int) -> None:
        """Count epochs of a training that has at most `n_left` more."""
        with self._lock:
            self._total = self.n_done + n_epochs + n_left
            self.step(n_epochs)

    def step(self, n: int = 1, message: str = "", **shown: Any) -> None:
        """Count steps, and show values by their names.

        Parameters
        ----------
        n : int, default=1
            Number of steps.
        message : str, default=""
            Description of the step, for lines.
        **shown
            Values to show by their names. They stay until they are replaced.
        """
        with self._lock:
            self.n_done += n
            if self._listener is not None:
                self._listener(self._unit, n)
            self._shown.update(shown)
            if self._display == "bar":
                self._update_bar()
            elif self._display is not None:
                self._write_line(message)
            if message and self._display != "log":
                _logger.info(message)

    # Bars

    def _update_bar(self) -> None:
        """Show steps and values on the bar; open it once the computation is expected to be long."""
        if self._bar is None:
            elapsed = time.time() - self._started
            # The first steps are slow, and say little of the others.
            if elapsed < _FIRST_ESTIMATE or elapsed + self._seconds_left() <= _LONG:
                return
            self._open_bar()
        self._bar.total = self._total
        limit = math.inf if self._limit is None else self._limit()
        if math.isfinite(limit):
            self._shown["time limit"] = tqdm.format_interval(max(limit, 0))
        self._bar.set_postfix(self._shown, refresh=False)
        self._bar.update(self.n_done - self._bar.n)
        if self.n_done == self._total:
            self._bar.refresh()

    def _open_bar(self) -> None:
        """Open the bar as if it had been there from the start."""
        with self._lock:
            if self._bar is not None or self._display != "bar":
                return
            self._bar = tqdm(
                total=self._total,
                initial=self._initial,
                desc=self._name,
                unit=self._unit,
                delay=1e-9,  # nothing is drawn before the next two lines
            )
            self._bar.start_t, self._bar.n = self._started, self.n_done
            self._bar.set_postfix(self._shown)

    def _seconds_left(self) -> float:
        """Estimate the remaining time in seconds; infinite if nothing is known about it."""
        estimate = math.inf
        n_done = self.n_done - self._initial
        if self._total is not None and n_done > 0:
            estimate = (time.time() - self._started) / n_done * (self._total - self.n_done)
        return estimate if self._limit is None else min(estimate, max(self._limit(), 0.0))

    # Lines

    def _write_line(self, message: str) -> None:
        """Write a line with steps, values, the remaining time and a message, if one is due."""
        is_end = self.n_done == self._total
        if not (self._every_step or is_end):
            # About twenty lines for all steps, and more if steps are slow.
            share = 1.0 if not self._total else self.n_done / self._total
            is_late = time.time() - self._last_line > _LINE_EVERY
            if not is_late and share * _N_LINES < self._n_lines + 1:
                return
        self._last_line = time.time()
        self._n_lines = max(
            self._n_lines + 1, int(_N_LINES * self.n_done / self._total) if self._total else 0
        )
        of = "" if self._total is None else f" of {self._total}"
        parts = [f"{self._name}: {self.n_done}{of} {self._unit}s"]
        parts += [f"{name} {value}" for name, value in self._shown.items()]
        left = self._seconds_left()
        if math.isfinite(left) and not is_end:
            parts.append(f"{tqdm.format_interval(left)} left")
        line = ", ".join(parts)
        if message:
            line += f" ({message})"
        if self._display == "log":
            _logger.info(line)
        else:
            print(line, file=sys.stderr, flush=True)


def _choose_display(verbose: int | None) -> str | None:
    """Choose "bar", "lines" on stderr, "log" or None."""
    if verbose is not None and not isinstance(verbose, Integral | np.bool_):
        raise TypeError(f"`verbose` must be a whole number, True, False or None. Got {verbose!r}.")
    if not verbose and verbose is not None:
        return None
    # A task of joblib, or a process of multiprocessing: several would write at the same time.
    backend, _ = joblib.parallel.get_active_backend()
    in_worker = (backend.nesting_level or 0) > 0 or multiprocessing.parent_process() is not None
    if verbose is None and in_worker:
        return None
    if _is_watched():
        return "bar"
    return "log" if verbose is None else "lines"


def _is_watched() -> bool:
    """Tell whether a bar would be seen: on a terminal or in a notebook."""
    if any(base.__module__ == "tqdm.notebook" for base in tqdm.__mro__):
        return True
    return sys.stderr is not None and sys.stderr.isatty()
