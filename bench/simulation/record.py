"""A record of token sequences that forgets nothing: how long a beginning of this one was ever seen?

Written for being right, apart from the product's tree: no pages, no eviction, no pins.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from bench.simulation.workload import TOKEN_BYTES


@dataclass(slots=True, eq=False)
class _Edge:
    key: bytearray
    children: dict[bytes, _Edge] = field(default_factory=dict)


class PrefixRecord:
    """Sequences of int32 tokens in bytes.

    >>> record = PrefixRecord()
    >>> record.add(b"aaaabbbbcccc")
    0
    >>> record.add(b"aaaabbbbdddd"), record.longest(b"bbbb"), record.longest(b"aaaadddd")
    (2, 0, 1)
    """

    def __init__(self) -> None:
        self._root = _Edge(bytearray())

    def add(self, sequence: bytes) -> int:
        """Remember `sequence` and with it all its beginnings; returns what `longest` was before. O(its length)."""
        edge, offset = self._root, 0
        while offset < len(sequence):
            token = sequence[offset : offset + TOKEN_BYTES]
            child = edge.children.get(token)
            if child is None:
                if edge.children or edge is self._root:
                    edge.children[token] = _Edge(bytearray(sequence[offset:]))
                else:
                    edge.key += sequence[offset:]
                return offset // TOKEN_BYTES
            run = common_bytes(child.key, sequence, offset)
            offset += run
            if run < len(child.key) and offset < len(sequence):
                upper = _Edge(child.key[:run])
                child.key = child.key[run:]
                upper.children[bytes(child.key[:TOKEN_BYTES])] = child
                edge.children[token] = child = upper
            edge = child
        return offset // TOKEN_BYTES

    def longest(self, sequence: bytes) -> int:
        """Count the tokens of the longest beginning of `sequence` that begins a remembered one too."""
        edge, offset = self._root, 0
        while offset < len(sequence):
            child = edge.children.get(sequence[offset : offset + TOKEN_BYTES])
            if child is None:
                break
            run = common_bytes(child.key, sequence, offset)
            offset += run
            if run < len(child.key):
                break
            edge = child
        return offset // TOKEN_BYTES

    def drop(self, token: bytes) -> None:
        """Forget all sequences that begin with this token, because nobody will ask for them again."""
        self._root.children.pop(token, None)


def common_bytes(key: bytes | bytearray, sequence: bytes, offset: int) -> int:
    """Count the equal bytes, in whole tokens, of `key` and of `sequence` from `offset`.

    >>> common_bytes(b"aaaabbbb", b"xxxxaaaabbbc", 4)
    4
    """
    if sequence.startswith(key, offset):
        return len(key)
    count = min(len(key), len(sequence) - offset) // TOKEN_BYTES
    differs = np.frombuffer(key, np.int32, count) != np.frombuffer(sequence, np.int32, count, offset)
    first = int(differs.argmax()) if count else 0
    return (first if count and differs[first] else count) * TOKEN_BYTES
