"""The compiled tree in this process, loaded once: the C functions of `csrc`, with their types. Knows no leases."""

from __future__ import annotations

import ctypes
import functools
import logging
from array import array
from ctypes import POINTER, c_bool, c_char_p, c_double, c_int32, c_int64, c_uint64, c_void_p
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from wire.native import CannotBuild

from .build import built

log = logging.getLogger(__name__)

Library: TypeAlias = ctypes.CDLL

_Type: TypeAlias = "type[c_bool | c_double | c_int32 | c_int64 | c_void_p] | None"
_Argument: TypeAlias = "type[c_char_p | c_double | c_int32 | c_int64 | c_uint64 | c_void_p | ctypes._Pointer[c_int64]]"

_TREE = c_void_p
_TOKENS = (c_char_p, c_int64)
_PLACE = (c_int32, c_int32)
_SIGNATURES: dict[str, tuple[_Type, tuple[_Argument, ...]]] = {
    "new": (
        c_void_p,
        (c_int32, c_int32, c_int32, c_uint64, c_int32, c_double, c_double, c_double, *[c_void_p] * 4),
    ),
    "delete": (None, (_TREE,)),
    "num_bytes": (c_int64, (_TREE,)),
    "observe": (None, (_TREE,)),
    "tell_time": (None, (_TREE, c_double)),
    "find": (None, (_TREE, c_int32, *_TOKENS)),
    "lease": (None, (_TREE, c_int32, *_TOKENS)),
    "beyond": (c_int64, (_TREE, c_int32, *_PLACE, c_void_p, c_int64)),
    "next_victim": (c_int32, (_TREE,)),
    "unpin": (None, (_TREE, *_PLACE)),
    "allocate": (c_bool, (_TREE, c_int64)),
    "commit": (None, (_TREE, c_void_p, *_TOKENS)),
    "release": (None, (_TREE, c_void_p, *_TOKENS)),
    "held_by_one": (c_int64, (_TREE, *_PLACE)),
    "unpinned": (c_int64, (_TREE, *_PLACE)),
    "evict": (c_int64, (_TREE, c_int64)),
    "flush": (c_int64, (_TREE,)),
    "forget": (c_bool, (_TREE, c_int32)),
    "quarantine": (None, (_TREE, c_int32)),
    "follow": (None, (_TREE, c_int32, *_PLACE, c_char_p, c_int64, c_int64)),
    "continued": (None, (_TREE, c_int32, *_PLACE, *_TOKENS, c_void_p)),
    "count_held": (None, (_TREE, c_int64, c_int64, c_void_p)),
    "told": (c_void_p, (_TREE, POINTER(c_int64))),
    "events_of": (c_void_p, (_TREE, c_int32, POINTER(c_int64))),
    "outline": (c_void_p, (_TREE, *[c_int64] * 5, POINTER(c_int64))),
    "run_of": (c_void_p, (_TREE, c_int32, c_int64, POINTER(c_int64))),
    "picture": (c_void_p, (_TREE, POINTER(c_int64))),
}


@functools.cache
def load_library() -> Library | None:
    """The tree's library, built if need be; None, with one line that says what is lost, where it can't be."""
    try:
        return opened(built())
    except (CannotBuild, OSError) as error:
        log.warning("no compiled tree, so the scheduler's bookkeeping takes several times as long: %s", error)
        return None


def opened(path: Path) -> Library:
    """Load the library that was built of `csrc`.

    Raises:
        OSError: the file can't be loaded.
    """
    library = ctypes.CDLL(str(path))
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(library, f"radix_{name}")
        function.restype, function.argtypes = result, arguments
    return library


def values_at(address: int, count: int) -> array[int]:
    """Copy `count` 64-bit integers."""
    values = array("q")
    if count:
        values.frombytes(ctypes.string_at(address, count * values.itemsize))
    return values


def array_at(address: int, count: int) -> npt.NDArray[np.int64]:
    """Copy `count` 64-bit integers, when they are many."""
    return np.array((c_int64 * count).from_address(address), np.int64) if count else np.empty(0, np.int64)
