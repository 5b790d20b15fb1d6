"""One edge of the radix tree with its pages, and how token ids are compared.

Keys are little-endian int32 in bytes, so that one C-level compare does a whole segment. Knows no pool and no policy.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from .pages import Pages

TOKEN_BYTES = 4

NO_ENDS: dict[int, int] = {}
"""Of a node in which no lease ends: one for all, so never to be written to."""

_INT32 = np.dtype(np.int32)


class Namespace(NamedTuple):
    """What must be equal before KV may be shared, besides the tokens.

    >>> Namespace("m", None, "a") == Namespace("m", "a", "")
    False
    """

    model: str
    adapter: str | None
    salt: str


class Node:
    """A run of pages below `parent`: `key` holds the tokens [start, end) of the path, `pages` their KV.

    A *donor* is a leaf whose one page is only partly filled: its key is shorter than a page, so it is never matched
    as a whole page and never extended, only copied from.

    Pins: a lease pins the path up to a token, which may lie inside an edge. `ends` counts the leases that end in this
    node by that token, `pinned_children` the children with pins in or under them; `pinned_pages` is the run of pages
    at the start of this node that these two hold.

    `first_page` is the key under which the parent has it.

    Worth: `used_at` is the policy's clock when the node was last used and `used_s` the time, `hits` how often it was
    found again, `priority` and `keep_until_s` what its requests have asked for.
    """

    __slots__ = (
        "children", "ends", "first_page", "forks", "hits", "is_detached", "is_donor", "keep_until_s", "key",
        "namespace", "pages", "parent", "pinned_children", "pinned_pages", "priority", "queued_as", "start", "used_at",
        "used_s",
    )  # fmt: skip

    def __init__(
        self,
        parent: Node | None,
        start: int,
        key: bytearray,
        pages: Pages,
        used_at: float = 0.0,
        *,
        used_s: float = 0.0,
        is_donor: bool = False,
        namespace: Namespace | None = None,
    ) -> None:
        self.parent = parent
        self.first_page = b""
        self.start = start
        self.key = key
        self.pages = pages
        self.used_at = used_at
        self.used_s = used_s
        self.is_donor = is_donor
        self.namespace = namespace
        self.children: dict[bytes, Node] = {}
        self.forks: dict[bytes, dict[Node, None]] = {}
        self.ends = NO_ENDS
        self.pinned_children = 0
        self.pinned_pages = 0
        self.queued_as = 0
        self.is_detached = False
        self.hits = 0
        self.priority = 0
        self.keep_until_s = 0.0

    @property
    def end(self) -> int:
        """The number of tokens from the root to the end of this node."""
        return self.start + len(self.key) // TOKEN_BYTES

    @property
    def is_pinned(self) -> bool:
        """Whether a lease ends in or under this node."""
        return bool(self.ends) or self.pinned_children > 0

    def inherit(self, other: Node) -> None:
        """Be worth at least as much as `other`, whose every use was a use of this node too."""
        if other.used_at > self.used_at:
            self.used_at = other.used_at
        if other.used_s > self.used_s:
            self.used_s = other.used_s
        if other.hits > self.hits:
            self.hits = other.hits
        if other.priority > self.priority:
            self.priority = other.priority
        if other.keep_until_s > self.keep_until_s:
            self.keep_until_s = other.keep_until_s

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
    if token_ids.dtype != _INT32:
        raise TypeError(f"token_ids must be int32, got {token_ids.dtype}")
    return token_ids.tobytes()


def common_run(key: bytes | bytearray, key_offset: int, query: bytes, offset: int) -> int:
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
