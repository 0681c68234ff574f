"""Save estimators and catalogs to files, and load them."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from skuq import _archive
from skuq._files import atomic_write
from skuq._registry import find_by_class
from skuq.exceptions import FileFormatError, UnsavableError
from skuq.persistence._objects import Describer, Restorer

_KINDS = ("estimator", "catalog")  # kinds of files


def save(estimator: Any, path: str | PathLike[str]) -> None:
    """Save an estimator or a catalog to a file that is safe to load.

    The file holds what a pickle would: parameters and fitted attributes, for a search without the
    networks that were not selected. It is written atomically: an existing file is replaced as a
    whole, even if the process is killed meanwhile.

    Parameters
    ----------
    estimator : estimator or Catalog
        Estimator of skuq, fitted or not, or a `sklearn.pipeline.Pipeline` that holds one.
    path : str or path
        File to write; by convention its name ends in ``.skuq``.

    Raises
    ------
    UnsavableError
        If it is anything else, or holds data without a safe form; the message names them.
    OSError
        If the file cannot be written.

    See Also
    --------
    load : Load what was saved.

    Notes
    -----
    Functions, search spaces and Keras models of your own are not saved, only named: see `load`.
    Objects of scikit-learn (``preprocess=``, members of a pool) are saved with skops, which
    ``pip install "skuq[skops]"`` installs.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> import skuq
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "model.skuq"
    ...     skuq.save(skuq.NOMURegressor(c=2.0), path)
    ...     skuq.load(path).c
    2.0
    """
    atomic_write(path, dumps(estimator))


def dumps(estimator: Any) -> bytes:
    """Encode an estimator or catalog as the bytes of the file that `save` writes.

    Examples
    --------
    >>> from skuq import DeepEnsembleRegressor
    >>> from skuq.persistence import dumps, loads
    >>> loads(dumps(DeepEnsembleRegressor(n_members=3)))
    DeepEnsembleRegressor(n_members=3)
    """
    kind = _kind_of(estimator)
    if kind is None:
        raise UnsavableError(
            f"Only estimators of skuq, pipelines and catalogs are saved. Got {type(estimator)}. "
            "For a scikit-learn search save its best_estimator_; for another object save the "
            "estimator that it holds."
        )
    return _archive.to_bytes(estimator, kind=kind, describe=Describer(estimator))


def _kind_of(value: Any) -> str | None:
    saved = find_by_class(type(value))
    return None if saved is None else saved.kind


def load(
    path: str | PathLike[str],
    *,
    parts: dict[str, Any] | None = None,
    trusted: Sequence[str | type] | None = None,
) -> Any:
    """Load an estimator or a catalog that `save` has written. No code in a file is ever run.

    Parameters
    ----------
    path : str or path
        File to read.
    parts : dict, optional
        Your own functions and objects, which were not saved, by the names of the parameters, for
        example ``{"space": build}``. For an estimator inside another one use two
        underscores, as in `set_params`. A part that is not given becomes a `MissingPart`, which
        raises `MissingPartError` when it is used; predictions rarely need it.
    trusted : list of str or type, optional
        Types of objects in scikit-learn's estimators that skops does not know to be safe. Loading
        them runs their code, so check each of them.

    Returns
    -------
    estimator or Catalog

    Raises
    ------
    FileFormatError
        If the file is broken, was not written by `save`, or holds what is not safe to load.
    FileVersionError
        If a newer skuq wrote it.
    ValueError
        If `parts` has a name that the file does not know.
    OSError
        If the file cannot be read.

    See Also
    --------
    save : Save an estimator; says what is saved.

    Notes
    -----
    A file holds names of classes, plain values and arrays. Only classes that skuq has registered
    for this are ever instantiated. Sizes are bounded by the length of the file, and every part has
    a checksum. A checksum detects damage; it does not tell who wrote the file.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> import skuq
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "model.skuq"
    ...     skuq.save(skuq.DeepEnsembleRegressor(n_members=3), path)
    ...     skuq.load(path)
    DeepEnsembleRegressor(n_members=3)
    """
    restorer = Restorer(parts, trusted)
    return _check_loaded(_archive.read(Path(path), kind=_KINDS, restore=restorer), restorer)


def loads(
    data: bytes,
    *,
    parts: dict[str, Any] | None = None,
    trusted: Sequence[str | type] | None = None,
) -> Any:
    """Decode what `dumps` has written; see `load`.

    Examples
    --------
    >>> from skuq import MCDropoutClassifier
    >>> from skuq.persistence import dumps, loads
    >>> loads(dumps(MCDropoutClassifier(dropout=0.2)))
    MCDropoutClassifier(dropout=0.2)
    """
    restorer = Restorer(parts, trusted)
    return _check_loaded(_archive.from_bytes(data, kind=_KINDS, restore=restorer), restorer)


def _check_loaded(estimator: Any, restorer: Restorer) -> Any:
    """Check that what was read may be saved by itself, and that all given parts were used."""
    if _kind_of(estimator) is None:
        raise FileFormatError(f"The file holds a {type(estimator).__name__}, no estimator.")
    restorer.check_parts()
    return estimator
