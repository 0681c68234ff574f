"""A search on disk: a folder of its own, with a file for each finished trial."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import math
import os
import secrets
import socket
import warnings
from dataclasses import fields
from pathlib import Path

import numpy as np
from filelock import FileLock, Timeout

from skuq import _archive
from skuq._files import atomic_write
from skuq.catalog._catalog import Catalog, HeldOut
from skuq.catalog._records import FoldedMember, Member, TrialRecord
from skuq.exceptions import (
    CatalogLockedError,
    CatalogMismatchError,
    FileFormatError,
    FileVersionError,
    UnsavableError,
)
from skuq.networks._safe import check_member

__all__ = ["CatalogFolder", "find_search", "front_of", "load_catalog"]

_SEARCH = "search.skuq"  # what the search is; written once all else is there to begin
_FRONT = "estimator.skuq"
_LOCK, _HOLDER = "lock", "lock-holder.json"
_TRIALS = "trial-*.skuq"


class CatalogFolder:
    """The trials of one search, each durable the moment it has ended; a context manager.

    Parameters
    ----------
    catalog_dir : path
        Holds a folder for each search, named after what it is. Or such a folder itself.
    parts : dict of str to str, int, float, bool, None, list or dict
        What the search is: data, settings, by name. Searches of equal parts are the same one.

    Attributes
    ----------
    path : Path
    records : list of TrialRecord
        In the order in which they finished.
    entropy : int or None
        Of the search that is there already; None for a new one.

    Raises
    ------
    CatalogMismatchError
        If `catalog_dir` is the folder of another search; it names the parts that differ.
    CatalogLockedError
        If another process, or thread, is at this search.
    FileFormatError
        If the description of the search is broken, or a trial is none. Trials whose files are
        damaged are put aside with a warning.
    """

    def __init__(self, catalog_dir, parts: dict):
        if not os.fspath(catalog_dir):
            raise ValueError('`catalog_dir` is empty. Give the name of a folder, "." for this one.')
        catalog_dir = Path(catalog_dir).expanduser().resolve()
        is_search = (catalog_dir / _SEARCH).is_file()
        self.path = catalog_dir if is_search else catalog_dir / _fingerprint(parts)
        self._parts = json.loads(json.dumps(parts))  # as it is when it is read again
        self._lock = FileLock(self.path / _LOCK)

    def __enter__(self):
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

    def __exit__(self, *exception):
        with contextlib.suppress(OSError):
            (self.path / _HOLDER).unlink()
        self._lock.release()
        return False

    def _acquire(self):
        holder = self.path / _HOLDER
        try:
            # The system frees the lock of a process that has ended, however it did.
            self._lock.acquire(timeout=0)
        except Timeout:
            raise CatalogLockedError(
                f"Another process or thread is at the search in {self.path} "
                f"({_read_text(holder) or 'it does not say which'}). Wait for it, or give another "
                "`catalog_dir`."
            ) from None

    def _read(self):
        self.records, self.entropy, self._space, self._id = [], None, None, None
        self._n_finished = 0
        for left_over in self.path.glob(".*.tmp"):
            left_over.unlink()  # of a process that was killed while it wrote
        if not (self.path / _SEARCH).is_file():
            return
        search = _read_search(self.path)
        there = search["parts"]
        names = sorted({*there, *self._parts})
        differ = [name for name in names if there.get(name) != self._parts.get(name)]
        if differ:
            raise CatalogMismatchError(
                f"{self.path} holds another search. What differs:\n"
                + "\n".join(f"  {_difference(n, there, self._parts)}" for n in differ)
                + "\nGive the folder above it as `catalog_dir`, and this one gets its own."
            )
        self.entropy, self._space, self._id = (search[n] for n in ("entropy", "space", "id"))
        read = _read_trials(self.path, search, broken="move")
        self.records = [record for _, record in read]
        self._n_finished = 1 + max((finished for finished, _ in read), default=-1)

    def begin(self, entropy: int, space: dict, held_out: HeldOut, front: bytes | None):
        """Say what is searched, before the first trial.

        Parameters
        ----------
        entropy : int
        space : dict
            The decisions, by name; those of an earlier search must be the same.
        held_out : HeldOut
        front : bytes or None
            The estimator without its trials, to load all from the folder alone.

        Raises
        ------
        CatalogMismatchError
            If trials that are there have decided something else.
        """
        if self._space is None:
            for stray in self.path.glob(_TRIALS):  # of a search that has lost its description
                warnings.warn(f"{_put_aside(stray, '.stray')} is of no known search.", stacklevel=2)
            self._space, self._id = space, secrets.token_hex(16)
            tree = {
                "id": self._id,
                "parts": self._parts,
                "entropy": entropy,
                "space": space,
                "held_out": _plain_held_out(held_out),
            }
            self._write_front(front)
            _archive.write(self.path / _SEARCH, tree, kind="search")
        elif self._space != space:
            names = sorted({*self._space, *space})
            differ = [n for n in names if self._space.get(n) != space.get(n)]
            raise CatalogMismatchError(
                f"The trials in {self.path} are of another search space. What differs:\n"
                + "\n".join(f"  {_difference(n, self._space, space)}" for n in differ)
                + "\nGive another `catalog_dir`, or delete this folder."
            )
        else:  # budget and selection may be others by now
            self._write_front(front)

    def _write_front(self, front):
        if front is None:
            (self.path / _FRONT).unlink(missing_ok=True)
        else:
            atomic_write(self.path / _FRONT, front)

    def add(self, record: TrialRecord):
        """Write a trial; when this returns it is safe.

        Raises
        ------
        UnsavableError
            If its network has layers that would not be loaded again.
        """
        tree = {field.name: getattr(record, field.name) for field in fields(TrialRecord)}
        if record.result is not None:
            tree["result"] = _plain_result(record.result)
            try:
                for network in _networks(tree["result"]):
                    check_member(network, f"Trial {record.trial_number}")
            except FileFormatError as error:
                raise UnsavableError(f"{error}. With `catalog_dir=None` it can be used.") from error
        tree |= {"finished": self._n_finished, "search": self._id}
        _archive.write(self.path / _file_name(record.trial_number), tree, kind="trial")
        self._n_finished += 1
        self.records.append(record)


def find_search(path) -> Path:
    """The folder of a search: this one, or the only one in it.

    Raises
    ------
    FileNotFoundError, NotADirectoryError
        If there is none.
    ValueError
        If there are several.
    """
    path = Path(path).expanduser().resolve()
    if path.is_file():
        raise NotADirectoryError(f"{path} is a file. What skuq.save has written, skuq.load reads.")
    is_search = (path / _SEARCH).is_file()
    found = [path] if is_search else sorted(p.parent for p in path.glob(f"*/{_SEARCH}"))
    if not found:
        raise FileNotFoundError(
            f"{path} holds no search: neither it nor a folder in it has a file {_SEARCH!r}."
        )
    if len(found) > 1:
        listed = "\n".join(f"  {p} ({len(list(p.glob(_TRIALS)))} trials)" for p in found)
        raise ValueError(f"{path} holds {len(found)} searches. Give one of them:\n{listed}")
    return found[0]


def load_catalog(path) -> Catalog:
    """The catalog of `find_search`'s folder; it may be written to meanwhile."""
    path = find_search(path)
    search = _read_search(path)
    read = _read_trials(path, search, broken="skip")
    return Catalog([record for _, record in read], search["held_out"])


def front_of(path) -> bytes:
    """The estimator of `find_search`'s folder, without its trials."""
    file = find_search(path) / _FRONT
    if not file.is_file():
        raise FileNotFoundError(
            f"There is no {file}: the estimator could not be saved, of which `fit` has warned. Fit "
            "again with the same data, or look at `Catalog.load`."
        )
    return file.read_bytes()


def _read_search(path):
    file = path / _SEARCH
    tree = _archive.read(file, kind="search")
    try:
        search = {name: tree[name] for name in ("id", "parts", "entropy", "space")}
        for name, kind in (("id", str), ("parts", dict), ("entropy", int), ("space", dict)):
            _require(type(search[name]) is kind, f"its {name} is no {kind.__name__}")
        return {**search, "held_out": _held_out(tree["held_out"])}
    except _UNUSABLE as error:
        raise FileFormatError(
            f"{file} describes no search ({type(error).__name__}: {error})."
        ) from error


def _read_trials(path, search, broken):
    """Pairs of when a trial has finished and its record, in that order."""
    read = []
    for file in sorted(path.glob(_TRIALS)):
        try:
            tree = _archive.read(file, kind="trial")
        except FileVersionError:
            raise
        except FileFormatError as error:
            what = "It is left out."
            if broken == "move":
                aside = _put_aside(file, ".broken")
                what = f"It is now {aside.name}, and the trial is run again."
            warnings.warn(f"{file} cannot be read: {error} {what}", stacklevel=2)
        else:
            read.append(_trial(tree, file, search))
    return sorted(read, key=lambda pair: pair[0])


def _trial(tree, file, search):
    """When it finished, and the record.

    A whole file with something else in it is not put aside: it may be there on purpose, or the
    class of a layer may only have to be registered.
    """
    try:
        _require(tree.pop("search") == search["id"], "it is of another search")
        finished, result = tree.pop("finished"), tree.pop("result")
        _require(type(finished) is int, "when it finished is no number")
        if result is not None:
            for network in _networks(result):
                check_member(network, file)
            result = _result(result, sum(len(y) for _, y, _ in search["held_out"].sets))
        record = TrialRecord(**tree, result=result)
        _check_record(record, file)
        return finished, record
    except FileFormatError as error:
        raise FileFormatError(f"{error}. To have the trial run again, delete its file.") from error
    except _UNUSABLE as error:
        raise FileFormatError(
            f"{file} is no record of a trial of this search ({type(error).__name__}: {error}). "
            "Delete it."
        ) from error


_UNUSABLE = AttributeError, IndexError, KeyError, TypeError, ValueError


def _require(condition, otherwise):
    if not condition:
        raise ValueError(otherwise)


def _check_record(record, file):
    number = record.trial_number
    _require(type(number) is int and file.name == _file_name(number), "its number is another")
    _require(type(record.configuration) is dict, "its configuration is no dict")
    _require(type(record.seed) is int and type(record.message) is str, "it has no seed")
    _require(record.status in ("completed", "failed"), f"its status is {record.status!r}")
    _require(record.completed == (record.result is not None), "status and result differ")
    _require(record.completed == math.isfinite(record.score), f"its score is {record.score!r}")
    _require(math.isfinite(record.seconds), f"its time is {record.seconds!r}")


def _result(tree, n_held_out):
    """The member of a trial, or those of its folds."""
    if "networks" not in tree:
        member = _member(tree)
    else:
        networks = tuple(_member(network) for network in tree["networks"])
        _require(len(networks) > 0, "it has no networks")
        _require(type(tree["score"]) is float, "its score is no number")
        member = FoldedMember(**{**tree, "networks": networks})
    _require(
        member.held_out.ndim == 2 and len(member.held_out) == n_held_out,
        f"it has held-out predictions of shape {member.held_out.shape} for {n_held_out} rows",
    )
    return member


def _member(tree):
    member = Member(**tree)
    losses = [member.history[name] for name in ("loss", "val_loss")]
    _require(losses[0].shape == losses[1].shape == (losses[0].size,), "its history has no epochs")
    best = member.best_epoch
    _require(type(best) is int and 0 <= best < losses[0].size, f"its best epoch is {best!r}")
    _require(np.isfinite(member.weights).all(), "its weights are not all finite")
    return member


def _file_name(trial_number):
    return f"trial-{trial_number:06d}.skuq"


def _put_aside(file, suffix):
    """Rename, over nothing that is there already."""
    names = (file.with_suffix(f"{suffix}{k or ''}") for k in itertools.count())
    aside = next(name for name in names if not name.exists())
    return file.rename(aside)


def _plain_result(member):
    """Its fields; of folds each network's own."""
    tree = {field.name: getattr(member, field.name) for field in fields(member)}
    if isinstance(member, FoldedMember):
        tree["networks"] = [_plain_result(network) for network in member.networks]
    return tree


def _networks(result):
    """The networks in what `_plain_result` gives."""
    return result.get("networks", [result])


def _plain_held_out(held_out):
    return {
        "rows": held_out.rows,
        "y": held_out.y,
        "weight": held_out.weight,
        "shifted": [_plain_held_out(part) for part in held_out.shifted],
    }


def _held_out(tree):
    shifted = tuple(_held_out(part) for part in tree["shifted"])
    return HeldOut(tree["rows"], tree["y"], tree["weight"], shifted)


def _fingerprint(parts):
    text = json.dumps(parts, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _difference(name, there, here):
    """One line; of data, which are there as digests, only that they differ."""
    values = [parts.get(name) for parts in (there, here)]
    if "sha256:" in json.dumps(values):
        return f"{name}: other values"
    return f"{name}: {values[0]!r} there, {values[1]!r} here"


def _read_text(path):
    try:
        return path.read_text()
    except OSError:
        return ""
