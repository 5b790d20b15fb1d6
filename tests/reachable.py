"""How much an object keeps alive: what is left behind by requests that have ended must not grow without end."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from types import BuiltinFunctionType, CodeType, FrameType, FunctionType, ModuleType

_SHARED = (ModuleType, type, FunctionType, BuiltinFunctionType, CodeType, FrameType)
"""What the program holds anyway, and through which everything can be reached."""


def num_reachable(*roots: object) -> int:
    """Count the objects that can be reached; characters and bytes count by the thousand, items of arrays too."""
    seen: dict[int, object] = {id(root): root for root in roots}
    left: list[object] = [*roots]
    count = 0
    while left:
        each = left.pop()
        count += 1 + _length(each) // 1000
        for referent in gc.get_referents(each):
            if id(referent) not in seen and not isinstance(referent, _SHARED):
                seen[id(referent)] = referent  # kept: an object made meanwhile must not get its number
                left.append(referent)
    return count


def _length(each: object) -> int:
    if isinstance(each, str | bytes | bytearray):
        return len(each)
    return len(each) if isinstance(each, Sequence) and hasattr(each, "itemsize") else 0
