"""Store a search on disk: a folder with its description and a file for each finished trial."""

import contextlib
import hashlib
import itertools
import json
import logging
import os
import secrets
import socket
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self, overload

import numpy as np
import numpy.typing as npt
import pandas as pd
from filelock import FileLock, Timeout

from skuq import exceptions
from skuq._messages import warn_user
from skuq.files import _archive
from skuq.files._archive import DamagedFileError, atomic_write
from skuq.files._registry import saved_as
from skuq.networks._member import FoldedMember, Member
from skuq.search._records import HeldOut, TrialRecord

_SEARCH = "search.skuq"  # written last: if it exists, the other files exist, too
_REFITS = "refits"  # subfolder of networks that are refitted
_ESTIMATOR = "estimator.skuq"  # parameters and scales of the estimator, for `from_catalog`


class SearchDescription(NamedTuple):
    """Description of a search, as stored in its folder.

    Attributes
    ----------
    id : str
        Random name of the search, which is repeated in each trial's file.
    parts : dict
        Data and settings that identify the search, by name.
    entropy : int
        Origin of all random numbers of the search.
    space : dict
        Decisions by name.
    held_out : HeldOut
        Rows that every trial predicts.
    """

    id: str
    parts: dict[str, Any]
    entropy: int
    space: dict[str, str]
    held_out: HeldOut


def find_search(path: str | PathLike[str]) -> Path:
    """Find the folder of a search: the given one, or the only one in it.

    Raises
    ------
    FileNotFoundError, NotADirectoryError
        If there is no search.
    ValueError
        If there are several searches.
    """
    path = Path(path).expanduser().resolve()
    if path.is_file():
        raise NotADirectoryError(
            f"{path} is a file, not the folder of a search. Use skuq.load for files of skuq.save."
        )
    found = [path] if has_search(path) else sorted(p.parent for p in path.glob(f"*/{_SEARCH}"))
    if not found:
        raise FileNotFoundError(
            f"{path} holds no search: neither the folder nor one inside it has a file {_SEARCH!r}."
        )
    if len(found) > 1:
        listed = "\n".join(f"  {p} ({len(trial_files(p))} trials)" for p in found)
        raise ValueError(f"{path} holds {len(found)} searches. Use one of these folders:\n{listed}")
    return found[0]


def has_search(folder: Path) -> bool:
    """Tell whether a folder is the folder of a search."""
    return (folder / _SEARCH).is_file()


def trial_files(folder: Path) -> list[Path]:
    """List the files of trials, by trial number."""
    return sorted(folder.glob("trial-*.skuq"))


def move_aside(file: Path) -> Path:
    """Rename a broken file to an unused name, and return the new path."""
    names = (file.with_suffix(f".broken{k or ''}") for k in itertools.count())
    return file.rename(next(name for name in names if not name.exists()))


def _trial_name(trial_number: int) -> str:
    return f"trial-{trial_number:06d}.skuq"


# ------------------------------------------------------------------------------------- reading


def read_estimator(folder: Path) -> bytes:
    """Read the file of the estimator's parameters and scales."""
    file = folder / _ESTIMATOR
    if not has_estimator(folder):
        raise FileNotFoundError(
            f"There is no file {file}, because the estimator could not be saved; `fit` has warned "
            "about it. Fit again with the same data, or read the trials by `Catalog.load`."
        )
    return file.read_bytes()


def has_estimator(folder: Path) -> bool:
    """Tell whether the parameters of a search's estimator could be saved."""
    return (folder / _ESTIMATOR).is_file()


def write_estimator(folder: Path, estimator: bytes) -> None:
    """Write the file of the estimator's parameters and scales."""
    atomic_write(folder / _ESTIMATOR, estimator)


def read_search(folder: Path) -> SearchDescription:
    """Read the description of a search."""
    file = folder / _SEARCH
    try:
        tree = _archive.read(file, kind="search")
        with _archive.refuse_broken(file):
            return SearchDescription(**tree)
    except exceptions.FileFormatError as error:
        raise exceptions.FileFormatError(
            f"{error} It describes the search, and without it the trials in {folder} cannot be "
            "used. Restore it from a copy, or delete this folder to start a new search."
        ) from error


def read_refits(folder: Path, *, move_broken: bool = False) -> list[TrialRecord]:
    """Read the networks that were refitted after the search, stored as trials in a subfolder."""
    if not (folder / _REFITS).is_dir():
        return []
    search = read_search(folder)
    return [record for _, record in read_trials(folder / _REFITS, search, move_broken=move_broken)]


def read_trials(
    folder: Path, search: SearchDescription, *, move_broken: bool = False
) -> list[tuple[int, TrialRecord]]:
    """Read all trials in the order in which they finished, each with its place in this order.

    Damaged files are skipped with a warning. With `move_broken` they are also renamed, so that
    their trials are run again. Whole files of something else raise FileFormatError: they may have
    been put there by mistake, or a layer's class may have to be registered first.
    """
    read = []
    for file in trial_files(folder):
        try:
            tree = _archive.read(file, kind="trial")
            with _archive.refuse_broken(file):
                if tree["search"] != search.id:
                    raise exceptions.FileFormatError("it is of another search")
                if file.name != _trial_name(tree["record"].trial_number):
                    raise exceptions.FileFormatError("it has the number of another trial")
                read.append((tree["finished"], tree["record"]))
        except DamagedFileError as error:
            what = "It is left out."
            if move_broken:
                what = f"It is now {move_aside(file).name}, and the trial is run again."
            warn_user(f"{error} {what}")
        except exceptions.FileFormatError as error:
            raise exceptions.FileFormatError(
                f"{error} To have the trial run again, delete its file."
            ) from error
    return sorted(read, key=lambda pair: pair[0])


_logger = logging.getLogger("skuq")

_LOCK, _HOLDER = "lock", "lock-holder.json"
_N_COMPARED = 20  # latest searches of a `catalog_dir` that a new one is compared with
_FEW_DIFFERENCES = 2  # with more, a search was hardly meant to go on with another's trials


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
    max_wait : float, default=0
        Maximum seconds to wait for another process or thread that is running this search. By
        default an error is raised at once.

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
        If another process or thread is running this search and does not end within `max_wait`,
        or this thread is running it.
    FileFormatError
        If the description of the search is broken, or the file of a trial does not hold a trial.
        Damaged files of trials are renamed, with a warning.

    Examples
    --------
    >>> import tempfile
    >>> from skuq.search import CatalogFolder
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with CatalogFolder(folder, {"data": "f00d", "n_members": 5}) as store:
    ...         store.records, store.entropy  # a new search
    ([], None)
    """

    def __init__(
        self, catalog_dir: str | os.PathLike[str], parts: dict[str, Any], max_wait: float = 0.0
    ):
        if not os.fspath(catalog_dir):
            raise ValueError(
                '`catalog_dir` must be the name of a folder. Got "". Use "." for the current one.'
            )
        folder = Path(catalog_dir).expanduser().resolve()
        self.path = folder if has_search(folder) else folder / _fingerprint(parts)
        self._parts = json.loads(json.dumps(parts))  # the form in which parts are read from disk
        self._max_wait, self._lock = max_wait, FileLock(self.path / _LOCK)

    @property
    def entropy(self) -> int | None:
        return None if self._search is None else self._search.entropy

    def __enter__(self) -> Self:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise type(error)(
                f"`catalog_dir` must be a folder, or a name that a folder can be made with: {error}"
            ) from error
        # The operating system frees the locks of a process that has ended in any way.
        try:
            self._lock.acquire(timeout=0)
        except Timeout:
            self._wait()
        try:
            atomic_write(self.path / _HOLDER, json.dumps(_who()).encode())
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

    def _wait(self) -> None:
        """Wait for the process or thread that runs this search; raise CatalogLockedError if vain.

        A thread that runs the search itself would wait forever.
        """
        holder = ""
        with contextlib.suppress(OSError):
            holder = (self.path / _HOLDER).read_text()
        running = (
            f"Another process or thread is running the search in {self.path} "
            f"({holder or 'unknown process'})."
        )
        if self._max_wait > 0 and holder != json.dumps(_who()):
            warn_user(f"{running} This fit waits for it, and then goes on with its trials.")
            with contextlib.suppress(Timeout):
                self._lock.acquire(timeout=self._max_wait)
                return
        raise exceptions.CatalogLockedError(f"{running} Wait for it, or use another `catalog_dir`.")

    def _read(self) -> None:
        """Read the description and the trials of a search that is already in the folder."""
        self.records: list[TrialRecord] = []
        self._search: SearchDescription | None = None
        self._n_finished = 0
        for left_over in self.path.rglob(".*.tmp"):
            left_over.unlink()  # left by a process that was killed while it wrote
        if not has_search(self.path):
            if any(self.path.rglob("trial-*.skuq")):
                raise exceptions.FileFormatError(
                    f"{self.path} has trials, and no {_SEARCH}, without which they cannot be used. "
                    "Restore it from a copy, or delete this folder to start a new search."
                )
            return
        search = read_search(self.path)
        if differences := _differences(search.parts, self._parts):
            raise exceptions.CatalogMismatchError(
                f"{self.path} holds another search. Differences:\n"
                + "\n".join(differences)
                + "\nUse the parent folder as `catalog_dir`: this search then gets its own folder."
            )
        read = read_trials(self.path, search, move_broken=True)
        _logger.info("the search in %s goes on; it has %d trials", self.path, len(read))
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
            Parameters and scales of the estimator, so that it can be loaded from the folder.

        Raises
        ------
        CatalogMismatchError
            If existing trials have other decisions.
        """
        is_new = self._search is None
        if self._search is None:
            self._search = SearchDescription(
                secrets.token_hex(16), self._parts, entropy, space, held_out
            )
            # Say how the search differs from one of the same data and seed.
            found, searches = [], self.path.parent.glob(f"*/{_SEARCH}")
            with contextlib.suppress(OSError):  # another process may delete one
                latest = sorted(searches, key=lambda file: -file.stat().st_mtime)
                for file in latest[:_N_COMPARED]:
                    with contextlib.suppress(exceptions.FileFormatError):
                        there = read_search(file.parent).parts
                        found.append((_differences(there, self._parts), file.parent))
            differences, other = min(found, key=lambda pair: len(pair[0]), default=([], None))
            _logger.info("a new search starts in %s", self.path)
            text = "\n".join(differences)
            is_near = len(differences) <= _FEW_DIFFERENCES and _OTHER_VALUES not in text
            if other is not None and is_near and "random_state:" not in text:
                warn_user(
                    f"A new search starts in {self.path}: that in {other} has other settings, and "
                    f"its trials are not used. Differences:\n{text}"
                )
        elif differences := _differences(self._search.space, space):
            raise exceptions.CatalogMismatchError(
                f"The trials in {self.path} are from another search space. Differences:\n"
                + "\n".join(differences)
                + "\nUse another `catalog_dir`, or delete this folder."
            )
        # Also of a known search: its budget and selection may have changed.
        if estimator is None:  # it could not be saved
            (self.path / _ESTIMATOR).unlink(missing_ok=True)
        else:
            write_estimator(self.path, estimator)
        if is_new:
            _archive.write(self.path / _SEARCH, self._search._asdict(), kind="search")

    def add(self, record: TrialRecord) -> None:
        """Write a trial; when this returns, it is safe on disk.

        Raises
        ------
        UnsavableError
            If the trial's network has layers that could not be loaded again.
        """
        self._write_trial(self.path, record, self._n_finished)
        self._n_finished += 1
        self.records.append(record)

    def refits(self) -> list[TrialRecord]:
        """Read the records of refitted networks."""
        return read_refits(self.path, move_broken=True)

    def add_refit(self, record: TrialRecord) -> None:
        """Write a refitted network, with number and configuration of its trial."""
        subfolder = self.path / _REFITS
        subfolder.mkdir(exist_ok=True)
        self._write_trial(subfolder, record, len(trial_files(subfolder)))

    def _write_trial(self, folder: Path, record: TrialRecord, n_finished: int) -> None:
        if self._search is None:
            raise RuntimeError("`begin` must be called before the first trial is added.")
        tree = {"search": self._search.id, "finished": n_finished, "record": record}
        try:
            _archive.write(folder / _trial_name(record.trial_number), tree, kind="trial")
        except exceptions.UnsavableError as error:
            raise exceptions.UnsavableError(
                f"Trial {record.trial_number}: {error} Set `catalog_dir=None` and "
                "`warm_start=False` to store none."
            ) from error


def _who() -> dict[str, Any]:
    """Describe the present thread, for others that want the same folder."""
    return {"pid": os.getpid(), "host": socket.gethostname(), "thread": threading.get_ident()}


def catalog_dir_of(path: Path) -> Path:
    """Find the `catalog_dir` of a search from its folder: the folder itself, if it was renamed."""
    return path.parent if path.name == _fingerprint(read_search(path).parts) else path


def _fingerprint(parts: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


_OTHER_VALUES = "other values"


def _differences(there: dict[str, Any], here: dict[str, Any]) -> list[str]:
    lines = []
    for name in sorted({*there, *here}):
        values = there.get(name), here.get(name)
        if values[0] != values[1]:
            # Digests of data would not help a reader.
            is_data = "digest:" in json.dumps(values)
            what = _OTHER_VALUES if is_data else f"{values[0]!r} there, {values[1]!r} here"
            lines.append(f"  {name}: {what}")
    return lines


@saved_as("search.Catalog", kind="catalog")
class Catalog(Sequence[TrialRecord]):
    """A sequence of the trials of a search, sorted by trial number.

    Parameters
    ----------
    records : iterable of TrialRecord
        The trials, in any order.
    held_out : HeldOut, optional
        Validation rows that every member has predicted.

    Examples
    --------
    >>> from skuq.search import Catalog, TrialRecord
    >>> catalog = Catalog(
    ...     [
    ...         TrialRecord(1, {"units": 16}, score=0.4),
    ...         TrialRecord(0, {"units": 8}, status="failed", message="no network"),
    ...     ]
    ... )
    >>> catalog
    <Catalog of 2 trials, 1 completed>
    >>> catalog.to_frame()[["trial_number", "status", "score", "units"]]
       trial_number     status  score  units
    0             0     failed    NaN      8
    1             1  completed    0.4     16
    """

    def __init__(self, records: Iterable[TrialRecord], held_out: HeldOut | None = None):
        self.records = tuple(sorted(records, key=lambda record: record.trial_number))
        self.held_out = held_out

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Self:
        """Read the catalog of a search that was run with `catalog_dir`.

        Parameters
        ----------
        path : str or path
            The `catalog_dir`, or the folder of one search in it if it holds several. The search
            may still be running.

        Raises
        ------
        FileNotFoundError
            If the folder holds no search.
        ValueError
            If the folder holds several searches.
        FileFormatError
            If the description of the search is broken, or the file of a trial does not hold a
            trial. Damaged files of trials are skipped with a warning.
        """
        folder = find_search(path)
        search = read_search(folder)
        return cls((record for _, record in read_trials(folder, search)), search.held_out)

    def __len__(self) -> int:
        return len(self.records)

    @overload
    def __getitem__(self, index: int) -> TrialRecord: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[TrialRecord, ...]: ...

    def __getitem__(self, index: int | slice) -> TrialRecord | tuple[TrialRecord, ...]:
        return self.records[index]

    def __repr__(self) -> str:
        n_completed = sum(record.completed for record in self.records)
        return f"<Catalog of {len(self)} trials, {n_completed} completed>"

    @property
    def completed(self) -> np.ndarray:
        """Positions of the completed trials."""
        return np.flatnonzero([record.completed for record in self.records])

    def member(self, index: int) -> Member | FoldedMember:
        """Return the member of one trial; with cross-validation it has several `networks`.

        Raises
        ------
        LookupError
            If the trial failed.
        """
        record = self.records[index]
        if not record.completed:
            raise LookupError(f"Trial {record.trial_number} has no member: {record.message}")
        result: Member | FoldedMember = record.result
        return result

    def to_frame(self) -> pd.DataFrame:
        """Tabulate the trials: status, score, time, share of training, configuration, message.

        A decision with the name of another column has ``decision_`` before it.
        """
        rows = []
        for record in self.records:
            member = record.result if record.completed else None
            row = {
                "trial_number": record.trial_number,
                "status": record.status,
                "score": record.score,
                "seconds": record.seconds,
                "share": record.share,
                "n_epochs": member.n_epochs if member else 0,
                "best_epoch": member.best_epoch if member else -1,
                "message": record.message,
            }
            rows.append(with_decisions(row, record.configuration))
        frame = pd.DataFrame(rows)
        if rows:
            frame["message"] = frame.pop("message")  # the last column
        return frame

    def keep_arrays_of(self, indices: npt.ArrayLike) -> Self:
        """Copy the catalog, with weights and held-out predictions of these trials only."""
        records, kept = list(self.records), np.asarray(indices, dtype=int)
        for k in np.setdiff1d(self.completed, kept):
            records[k] = replace(records[k], result=records[k].result.without_arrays())
        return type(self)(records, self.held_out)


def with_decisions(row: dict[str, Any], configuration: Mapping[str, Any]) -> dict[str, Any]:
    """Add the decisions of a trial to its row of a table, under names that are not taken."""
    return {**row, **{f"decision_{k}" if k in row else k: v for k, v in configuration.items()}}
