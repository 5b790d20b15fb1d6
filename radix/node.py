"""One edge of the radix tree with its pages, and how token ids are compared.

Keys are little-endian int32 in bytes, so that one C-level compare does a whole segment. Knows no pool and no policy.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from .pages import PageId

TOKEN_BYTES = 4


@dataclass(frozen=True, slots=True)
class Namespace:
    """What must be equal before KV may be shared, besides the tokens.

    >>> Namespace("m", None, "a") == Namespace("m", "a", "")
    False
    """

    model: str
    adapter: str | None
    salt: str


@dataclass(slots=True, eq=False)
class Node:
    """A run of pages below `parent`: `key` holds the tokens [start, end) of the path, `pages` their KV.

    A *donor* is a leaf whose one page is only partly filled: its key is shorter than a page, so it is never matched
    as a whole page and never extended, only copied from.

    Pins: a lease pins the path up to a token, which may lie inside an edge. `ends` counts the leases that end in this
    node by that token, `pinned_children` the children with pins in or under them; `pinned_pages` is the run of pages
    at the start of this node that these two hold.
    """

    parent: Node | None
    start: int
    key: bytearray
    pages: list[PageId]
    last_used: int
    is_donor: bool = False
    namespace: Namespace | None = None
    children: dict[bytes, Node] = field(default_factory=dict)
    forks: dict[bytes, dict[Node, None]] = field(default_factory=dict)
    ends: dict[int, int] = field(default_factory=dict)
    pinned_children: int = 0
    pinned_pages: int = 0
    is_queued: bool = False
    is_detached: bool = False

    @property
    def end(self) -> int:
        """The number of tokens from the root to the end of this node."""
        return self.start + len(self.key) // TOKEN_BYTES

    @property
    def is_pinned(self) -> bool:
        """Whether a lease ends in or under this node."""
        return bool(self.ends) or self.pinned_children > 0

    def walk(self) -> Iterator[Node]:
        """Visit this node and all below it, parents first."""
        stack = [self]
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.children.values())


def token_bytes(token_ids: np.ndarray) -> bytes:
    """Give token ids as the bytes that keys are made of; they must be int32, since a narrowing cast could collide.

    >>> token_bytes(np.array([1, 2], np.int32)).hex()
    '0100000002000000'
    """
    if token_ids.dtype != np.int32:
        raise TypeError(f"token_ids must be int32, got {token_ids.dtype}")
    return token_ids.tobytes()


def common_run(key: bytearray, key_offset: int, query: bytes, offset: int) -> int:
    """Count the equal bytes, in whole tokens, of `key` from `key_offset` and `query` from `offset`.

    >>> common_run(bytearray(b"aaaabbbbcccc"), 4, b"xxxxbbbbccdd", 4)
    4
    """
    num_bytes = min(len(key) - key_offset, len(query) - offset)
    if num_bytes == len(key):
        if query.startswith(key, offset):
            return num_bytes
    elif key[key_offset : key_offset + num_bytes] == query[offset : offset + num_bytes]:
        return num_bytes
    count = num_bytes // TOKEN_BYTES
    ours = np.frombuffer(key, np.int32, count, key_offset)
    theirs = np.frombuffer(query, np.int32, count, offset)
    return int((ours != theirs).argmax()) * TOKEN_BYTES


def common_tokens(first: bytes | bytearray, second: bytes | bytearray) -> int:
    """Count the equal tokens at the start of two short keys (a page, say).

    >>> common_tokens(b"aaaabbbbcccc", b"aaaabbbb"), common_tokens(b"aaaab", b"aaba")
    (2, 0)
    """
    num_bytes = min(len(first), len(second))
    difference = int.from_bytes(first[:num_bytes], "little") ^ int.from_bytes(second[:num_bytes], "little")
    if not difference:
        return num_bytes // TOKEN_BYTES
    lowest_bit = (difference & -difference).bit_length() - 1
    return lowest_bit // (8 * TOKEN_BYTES)
