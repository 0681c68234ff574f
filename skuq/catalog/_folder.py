"""Store a search on disk: a folder with a file for each finished trial."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import socket
from pathlib import Path
from typing import Any, Literal

from filelock import FileLock, Timeout

from skuq._files import atomic_write
from skuq._warnings import warn_user
from skuq.catalog._records import HeldOut, TrialRecord
from skuq.catalog._search_files import (
    SearchDescription,
    has_search,
    move_aside,
    read_retrained,
    read_search,
    read_trials,
    trial_files,
    write_estimator,
    write_retrained,
    write_search,
    write_trial,
)
from skuq.exceptions import CatalogLockedError, CatalogMismatchError

_LOCK, _HOLDER = "lock", "lock-holder.json"


class CatalogFolder:
    """Store of one search's trials, which are on disk as soon as they have finished.

    It is a context manager, which locks the folder.

    Parameters
    ----------
    catalog_dir : str or path
        Folder that gets one folder for each search, named after the search's fingerprint, or the
        folder of one search.
    parts : dict of str to str, int, float, bool, None, list or dict
        Data and settings that identify the search, by name. Searches with equal parts share a
        folder.

    Attributes
    ----------
    path : Path
        Folder of the search.
    records : list of TrialRecord
        Trials, in the order in which they finished.
    entropy : int or None
        Origin of the random numbers of the search in the folder; None for a new search.

    Raises
    ------
    CatalogMismatchError
        If `catalog_dir` is the folder of another search; the message names the parts that differ.
    CatalogLockedError
        If another process or thread is running this search.
    FileFormatError
        If the description of the search is broken, or the file of a trial does not hold a trial.
        Damaged files of trials are renamed, with a warning.

    Examples
    --------
    >>> import tempfile
    >>> from skuq.catalog import CatalogFolder
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with CatalogFolder(folder, {"data": "f00d", "n_members": 5}) as store:
    ...         store.records, store.entropy  # a new search
    ([], None)
    """

    def __init__(self, catalog_dir: str | os.PathLike[str], parts: dict[str, Any]):
        if not os.fspath(catalog_dir):
            raise ValueError(
                '`catalog_dir` must be the name of a folder. Got "". Use "." for the current one.'
            )
        folder = Path(catalog_dir).expanduser().resolve()
        self.path = folder if has_search(folder) else folder / _fingerprint(parts)
        self._parts = json.loads(json.dumps(parts))  # the form in which parts are read from disk
        self._lock = FileLock(self.path / _LOCK)

    @property
    def entropy(self) -> int | None:
        return None if self._search is None else self._search.entropy

    def __enter__(self) -> CatalogFolder:
        self.path.mkdir(parents=True, exist_ok=True)
        self._acquire()
        try:
            who = {"pid": os.getpid(), "host": socket.gethostname()}
            atomic_write(self.path / _HOLDER, json.dumps(who).encode())
            self._read()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exception: object) -> Literal[False]:
        with contextlib.suppress(OSError):
            (self.path / _HOLDER).unlink()
        self._lock.release()
        return False

    def _acquire(self) -> None:
        """Lock the folder, or raise CatalogLockedError."""
        holder = self.path / _HOLDER
        try:
            # The operating system frees the lock of a process that has ended in any way.
            self._lock.acquire(timeout=0)
        except Timeout:
            raise CatalogLockedError(
                f"Another process or thread is running the search in {self.path} "
                f"({_read_text(holder) or 'unknown process'}). Wait for it, or use another "
                "`catalog_dir`."
            ) from None

    def _read(self) -> None:
        """Read the description and the trials of a search that is already in the folder."""
        self.records: list[TrialRecord] = []
        self._search: SearchDescription | None = None
        self._n_finished = 0
        for left_over in self.path.rglob(".*.tmp"):
            left_over.unlink()  # left by a process that was killed while it wrote
        if not has_search(self.path):
            return
        search = read_search(self.path)
        if differences := _differences(search.parts, self._parts):
            raise CatalogMismatchError(
                f"{self.path} holds another search. Differences:\n"
                + "\n".join(differences)
                + "\nUse the parent folder as `catalog_dir`: this search then gets its own folder."
            )
        read = read_trials(self.path, search, move_broken=True)
        self._search = search
        self.records = [record for _, record in read]
        self._n_finished = 1 + max((finished for finished, _ in read), default=-1)

    def begin(
        self, entropy: int, space: dict[str, str], held_out: HeldOut, estimator: bytes | None
    ) -> None:
        """Write the description of the search, before its first trial.

        Parameters
        ----------
        entropy : int
            Origin of all random numbers of the search.
        space : dict
            Decisions by name, which must be those of existing trials.
        held_out : HeldOut
            Rows that every trial predicts.
        estimator : bytes or None
            The saved estimator without its trials, so that it can be loaded from the folder.

        Raises
        ------
        CatalogMismatchError
            If existing trials have other decisions.
        """
        if self._search is None:
            for stray in trial_files(self.path):  # trials of a search without a description
                warn_user(
                    f"{move_aside(stray, '.stray')} belongs to no known search and was renamed."
                )
            self._search = SearchDescription(
                secrets.token_hex(16), self._parts, entropy, space, held_out
            )
            write_estimator(self.path, estimator)
            write_search(self.path, self._search)
        elif differences := _differences(self._search.space, space):
            raise CatalogMismatchError(
                f"The trials in {self.path} are from another search space. Differences:\n"
                + "\n".join(differences)
                + "\nUse another `catalog_dir`, or delete this folder."
            )
        else:  # budget and selection may have changed
            write_estimator(self.path, estimator)

    def add(self, record: TrialRecord) -> None:
        """Write a trial; when this returns, it is safe on disk.

        Raises
        ------
        UnsavableError
            If the trial's network has layers that could not be loaded again.
        """
        if self._search is None:
            raise RuntimeError("`begin` must be called before the first trial is added.")
        write_trial(self.path, record, self._search.id, self._n_finished)
        self._n_finished += 1
        self.records.append(record)

    def retrained(self, name: str) -> list[TrialRecord]:
        """Read the records of one round of retraining, such as "repeat-000"."""
        return read_retrained(self.path, name, move_broken=True)

    def add_retrained(self, name: str, record: TrialRecord) -> None:
        """Write a network of this round, with number and configuration of its trial."""
        assert self._search is not None
        write_retrained(self.path, name, record, self._search.id)


def catalog_dir_of(path: Path) -> Path:
    """Find the `catalog_dir` of a search from its folder: the folder itself, if it was renamed."""
    return path.parent if path.name == _fingerprint(read_search(path).parts) else path


def _fingerprint(parts: dict[str, Any]) -> str:
    """Compute the name of a search's folder from its parts."""
    text = json.dumps(parts, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _differences(there: dict[str, Any], here: dict[str, Any]) -> list[str]:
    """Describe each difference between two searches in one line."""
    names = sorted({*there, *here})
    return [f"  {_difference(n, there, here)}" for n in names if there.get(n) != here.get(n)]


def _difference(name: str, there: dict[str, Any], here: dict[str, Any]) -> str:
    """Describe the difference in one part."""
    values = [parts.get(name) for parts in (there, here)]
    if "sha256:" in json.dumps(values):  # digests of data would not help a reader
        return f"{name}: other values"
    return f"{name}: {values[0]!r} there, {values[1]!r} here"


def _read_text(path: Path) -> str:
    """Read a file, or return an empty string if that is impossible."""
    try:
        return path.read_text()
    except OSError:
        return ""
