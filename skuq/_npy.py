"""Write plain arrays as npy files, and read npy files that are not trusted."""

from __future__ import annotations

import io
import math
import re
import sys
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from skuq.exceptions import FileFormatError

_DTYPE = re.compile(r"[<>|=]?[biufcUmM][0-9]{1,18}(\[[0-9]{0,9}[a-zA-Z]{1,3}\])?")
# The only form of a header that NumPy writes for plain arrays.
_NPY_HEADER = re.compile(
    rf"{{'descr': '({_DTYPE.pattern})', 'fortran_order': (?:True|False), "
    r"'shape': \((?:[0-9]{1,18}(?:, [0-9]{1,18})*)?,?\), } *\n"
)
_MAX_NPY_HEADER = 4096


def is_plain_dtype(dtype: np.dtype[Any]) -> bool:
    """Whether a dtype is of numbers, truth values, strings or dates, without pointers."""
    return _DTYPE.fullmatch(dtype.str) is not None


def encode_npy(array: np.ndarray) -> bytes:
    """Encode an array of a plain dtype as a npy file."""
    if array.dtype.itemsize == 0:  # with "<U0" a short file could claim any number of rows
        array = array.astype(array.dtype.str.replace("0", "1"))
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, array, allow_pickle=False)
    return buffer.getvalue()


def check_dtype(text: Any, where: Any) -> np.dtype[Any]:
    """Parse the text of a plain dtype."""
    if type(text) is not str or not _DTYPE.fullmatch(text):
        raise FileFormatError(f"{where} has the type {str(text)[:50]!r}, which is not read")
    try:
        dtype = np.dtype(text)
    except (TypeError, ValueError, OverflowError) as error:
        raise FileFormatError(f"{where} has no type known here ({error})") from error
    if not dtype.itemsize or dtype.hasobject:
        raise FileFormatError(f"{where} has the type {text!r}, which is not read")
    return dtype


def decode_npy(data: bytes, where: Any) -> np.ndarray:
    """Decode a npy file, whose length must fit its header."""
    file = io.BytesIO(data)
    try:
        version = np.lib.format.read_magic(file)
    except ValueError as error:
        raise FileFormatError(f"{where} is no npy file ({error})") from error
    if version != (1, 0):  # (2, 0) is for structured types with long headers
        raise FileFormatError(f"{where} has a npy header of version {version}")
    begin = file.tell() + 2
    end = begin + int.from_bytes(data[begin - 2 : begin], "little")
    text = bytes(data[begin : min(end, begin + _MAX_NPY_HEADER)]).decode("latin1")
    found = _NPY_HEADER.fullmatch(text)
    if found is None:
        raise FileFormatError(f"{where} has a npy header that skuq does not write")
    dtype = check_dtype(found[1], where)
    try:
        shape, fortran, _ = np.lib.format.read_array_header_1_0(
            file, max_header_size=_MAX_NPY_HEADER
        )
    except (ValueError, SyntaxError, TypeError) as error:
        raise FileFormatError(f"{where} has a broken npy header ({error})") from error
    if math.prod(shape) * dtype.itemsize != len(data) - end:
        raise FileFormatError(
            f"{where} declares shape {shape} of {dtype.str!r}, but {len(data) - end} bytes follow"
        )
    flat = check_values(np.frombuffer(data, dtype, offset=end), where)
    return reshape_checked(flat.copy(), shape, "F" if fortran else "C", where)


def check_values(flat: np.ndarray, where: Any) -> np.ndarray:
    """Refuse bytes that are no values of their type, which NumPy does not check."""
    if flat.dtype.kind == "b" and flat.size and flat.view(np.uint8).max() > 1:
        raise FileFormatError(f"{where} has truth values other than 0 and 1")
    if flat.dtype.kind == "U" and flat.size:
        order = flat.dtype.byteorder
        points = flat.view(np.dtype(np.uint32).newbyteorder(order))
        if points.max() > sys.maxunicode:
            raise FileFormatError(f"{where} has characters beyond Unicode")
    return flat


def reshape_checked(
    flat: np.ndarray, shape: Sequence[int], order: Literal["C", "F"], where: Any
) -> np.ndarray:
    """Reshape an array to a shape that may be impossible."""
    try:
        return flat.reshape(shape, order=order)
    except (ValueError, OverflowError) as error:
        raise FileFormatError(f"{where} has an impossible shape ({error})") from error
