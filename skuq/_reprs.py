"""Short representations of records that hold arrays and long texts."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

_MOST_CHARACTERS = 60  # length of one value's text


def record_repr(record: Any) -> str:
    """Represent a dataclass by its fields, each in a few words: ``__repr__ = record_repr``."""
    fields = [
        f"{field.name}={_brief(getattr(record, field.name))}"
        for field in dataclasses.fields(record)
    ]
    return f"{type(record).__name__}({', '.join(fields)})"


def _brief(value: Any) -> str:
    """Describe one value: small values in full, others by their type and size."""
    if isinstance(value, np.ndarray):
        if value.size <= 5:
            return np.array2string(value, precision=4, separator=", ")
        return f"<{value.dtype} array {value.shape}>"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list | tuple) and len(value):
        kinds = {type(item).__name__ for item in value}
        if len(kinds) == 1 and (len(value) > 3 or not isinstance(value[0], str | int | float)):
            return f"<{type(value).__name__} of {len(value)} {kinds.pop()}>"
    if type(value).__repr__ is object.__repr__:
        return f"<{type(value).__name__}>"
    text = repr(value)
    return text if len(text) <= _MOST_CHARACTERS else f"<{type(value).__name__}>"
