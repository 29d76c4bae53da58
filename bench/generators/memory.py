"""The memory of this process as arrays: what librdkafka points at is read without a call for each record.

An address is an index. Only addresses that the library has just returned, and that it still owns, may be read.
"""

import ctypes
from typing import Final

import numpy as np
import numpy.typing as npt

#: The array starts here, because an array at the null pointer is no array. The first page is never mapped anyway.
BASE: Final = 8
#: The end of the user space of 64-bit Linux and macOS.
_END: Final = 1 << 47
_all = (ctypes.c_uint8 * (_END - BASE)).from_address(BASE)
#: The memory as bytes; a slice of it copies nothing: `VIEW[address - BASE : end - BASE]`.
VIEW: Final = memoryview(_all).cast("B").toreadonly()
#: The eight bytes from each address on, aligned or not.
_words: Final[npt.NDArray[np.uint64]] = np.ndarray(
    shape=(_END - BASE - 8,), dtype=np.dtype("<u8"), buffer=VIEW, strides=(1,)
)


def words_at(addresses: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
    """Return the little-endian word at each address."""
    found: npt.NDArray[np.uint64] = _words[addresses - BASE]
    return found
