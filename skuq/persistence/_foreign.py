"""Objects of scikit-learn as bytes of skops, which has a list of types that are safe to load."""

from __future__ import annotations

import importlib.util
import io
import pickle
import zipfile
from collections.abc import Sequence
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils.metadata_routing import MetadataRequest

from skuq.exceptions import FileFormatError, UnsavableError
from skuq.persistence._codecs import decode_requests, encode_requests

# Not on skops' list, although they are harmless: the dtype of an array that skops has read, which
# encoders hold; a list of column names, which a ColumnTransformer of scikit-learn 1.6 holds; and
# the names of the metadata that an estimator requests.
_SAFE = (
    "numpy.dtype",
    "sklearn.compose._column_transformer._RemainderColsList",
    "sklearn.utils._metadata_requests.MetadataRequest",
    "sklearn.utils._metadata_requests.MethodMetadataRequest",
)


def is_foreign(value: Any) -> bool:
    """Whether an object is scikit-learn's, or an estimator in its style."""
    if isinstance(value, type) or type(value).__module__.startswith("skuq."):
        return False
    return isinstance(value, BaseEstimator) or type(value).__module__.startswith("sklearn.")


def dump_foreign(value: Any, where: Any) -> np.ndarray | None:
    """Encode an object as bytes; None if skops cannot, or could not read them again.

    Raise UnsavableError if skops is not installed, or the object holds one of skuq.
    """
    name = f"{type(value).__module__}.{type(value).__qualname__}"
    if importlib.util.find_spec("skops") is None:
        raise UnsavableError(
            f'{where} is a {name}, which is saved with skops: pip install "skuq[skops]".'
        )
    import skops.io

    try:
        try:
            data = skops.io.dumps(value)
        except RecursionError:
            data = skops.io.dumps(_without_owners(value))
        untrusted = skops.io.get_untrusted_types(data=data)
        skuq_types = [kind for kind in untrusted if kind.startswith("skuq.")]
        if not skuq_types:
            skops.io.loads(data, trusted=untrusted)  # of a lambda there is only a useless name
    except Exception:  # parts of the object may raise anything
        return None
    if skuq_types:
        raise UnsavableError(
            f"{where} is a {name} that holds {', '.join(skuq_types)}. Save that by itself (of a "
            "search its best_estimator_), or put it in a sklearn.pipeline.Pipeline."
        )
    return np.frombuffer(data, np.uint8)


class _RequestsByName(pickle.Pickler):
    """Pickle requests of metadata with the name of their owner instead of the owner."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, MetadataRequest):
            return decode_requests, (encode_requests(value, None),)
        return NotImplemented


def _without_owners(value: Any) -> Any:
    """Copy an object whose requests of metadata only name the estimator that they belong to.

    From scikit-learn 1.9 on they hold it, and skops cannot write this circle.
    """
    data = io.BytesIO()
    _RequestsByName(data).dump(value)
    return pickle.loads(data.getvalue())


def load_foreign(data: Any, trusted: Sequence[str | type], name: str) -> Any:
    """Make the object that `dump_foreign` has encoded.

    Raise FileFormatError if it is broken, or holds a type that is neither on skops' list nor in
    `trusted`.
    """
    if importlib.util.find_spec("skops") is None:
        raise FileFormatError(f'`{name}` was saved with skops: pip install "skuq[skops]"')
    import skops.io

    if type(data) is not np.ndarray or data.dtype != np.uint8:
        raise FileFormatError(f"`{name}` is not what skops writes")
    data = data.tobytes()
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            infos = archive.infolist()
        # skops does not compress by default, so nothing can grow beyond the file's size.
        if any(i.compress_type or i.file_size != i.compress_size for i in infos):
            raise FileFormatError(f"`{name}` is compressed")
        if sum(info.file_size for info in infos) > len(data):
            raise FileFormatError(f"`{name}` overlaps itself")
        untrusted = set(skops.io.get_untrusted_types(data=data))
    except FileFormatError:
        raise
    except Exception as error:  # skops checks little before it reads
        raise FileFormatError(f"`{name}` is broken ({type(error).__name__}: {error})") from error
    names = [k if isinstance(k, str) else f"{k.__module__}.{k.__qualname__}" for k in trusted]
    allowed = {*names, *_SAFE}
    if unknown := sorted(untrusted - allowed):
        raise FileFormatError(
            f"`{name}` holds objects of types that are not known to be safe: {unknown}. If you "
            f"trust them, load(path, trusted={unknown}) makes them; or give the part itself, "
            f"load(path, parts={{{name!r}: ...}})"
        )
    try:
        return skops.io.loads(data, trusted=[*trusted, *_SAFE])
    except Exception as error:
        raise FileFormatError(f"`{name}` is broken ({type(error).__name__}: {error})") from error
