"""Save estimators and catalogs to files, and load them."""

from __future__ import annotations

from pathlib import Path

from skuq import _archive
from skuq._files import atomic_write
from skuq._registry import find_name
from skuq.exceptions import FileFormatError, UnsavableError
from skuq.persistence._objects import Describer, Restorer

__all__ = ["dumps", "load", "loads", "save"]

_KINDS = ("estimator", "catalog")  # of what is saved by itself


def save(estimator, path) -> None:
    """Write an estimator to a file that is safe to load.

    What is written is what a pickle holds: parameters and all that was learnt, for a search
    without the networks that were not chosen. The file is whole or not there, also if the
    process ends meanwhile; a file of the same name is replaced.

    Parameters
    ----------
    estimator : estimator or Catalog
        One of skuq, fitted or not, or a `sklearn.pipeline.Pipeline` with one in it.
    path : str or path
        By convention the name ends in ``.skuq``.

    Raises
    ------
    UnsavableError
        If it is something else, or holds data that have no safe form; the message names them.
    OSError
        If the file cannot be written.

    See Also
    --------
    load : The way back.

    Notes
    -----
    Functions, search spaces and Keras models that are the user's own are not saved, only
    named: see `load`. Objects of scikit-learn (``preprocess=``, members of a pool) are saved
    with skops, which ``pip install "skuq[skops]"`` brings.
    """
    atomic_write(path, dumps(estimator))


def dumps(estimator) -> bytes:
    """Encode an estimator or catalog as the bytes of the file that `save` writes."""
    kind = _kind_of(estimator)
    if kind is None:
        raise UnsavableError(
            f"Only estimators of skuq, pipelines and catalogs are saved. Got {type(estimator)}. "
            "Of a search save its best_estimator_, of something else the estimator in it."
        )
    return _archive.to_bytes(estimator, kind=kind, describe=Describer(estimator))


def _kind_of(value):
    saved = find_name(type(value))
    return None if saved is None else saved.kind


def load(path, *, parts=None, trusted=None):
    """Read what `save` has written. Nothing in a file is ever run.

    Parameters
    ----------
    path : str or path
    parts : dict, optional
        What the user made and was not saved, by the names of the parameters, for example
        ``{"search_space": build}``; of an estimator in another one with two underscores, as
        `set_params` has it. Without it a `MissingPart` stands there, which raises
        `MissingPartError` once it is used; predictions hardly ever use it.
    trusted : list of str or type, optional
        Types of objects in scikit-learn's estimators that skops does not know to be safe.
        Making them runs their code, so look at each before it is put here.

    Returns
    -------
    estimator or Catalog

    Raises
    ------
    FileFormatError
        If the file is broken, is no such file, or holds what is not safe to load.
    FileVersionError
        If a newer skuq wrote it.
    ValueError
        If `parts` has a name that the file does not know.
    OSError
        If the file cannot be read.

    See Also
    --------
    save : What is saved.

    Notes
    -----
    Objects are made of a list of classes that is part of skuq; the file names them and brings
    plain values and arrays. Sizes are bounded by the length of the file, every part has its
    checksum. A checksum finds damage; it does not tell who wrote the file.
    """
    restorer = Restorer(parts, trusted)
    return _checked(_archive.read(Path(path), kind=_KINDS, restore=restorer), restorer)


def loads(data: bytes, *, parts=None, trusted=None):
    """Decode what `dumps` has written; see `load`."""
    restorer = Restorer(parts, trusted)
    return _checked(_archive.from_bytes(data, kind=_KINDS, restore=restorer), restorer)


def _checked(estimator, restorer):
    """Check that what was read may be saved by itself, and that all given parts were used."""
    if _kind_of(estimator) is None:
        raise FileFormatError(f"The file holds a {type(estimator).__name__}, no estimator.")
    restorer.check_parts()
    return estimator
