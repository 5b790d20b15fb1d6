"""How far two sequences are the same: texts in characters, prompts in token ids."""

from __future__ import annotations

from collections.abc import Sequence


def num_shared(one: Sequence[object], other: Sequence[object]) -> int:
    """How many items both begin with; the work is done by comparing slices, so it is quick for long texts.

    >>> num_shared("axil serve", "axil chat"), num_shared([1, 2], [1, 2, 3]), num_shared("", "a")
    (5, 2, 0)
    """
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
