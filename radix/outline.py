"""A tree's outline for the eye: its largest parts, and below each one entry for all that is too small to be shown.

Nothing is lost: the tokens of all entries sum to those of the tree. Knows no messages and no screen.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from .eviction.queue import EvictionQueue, is_candidate
from .node import TOKEN_BYTES, Namespace, Node
from .pages import PageId

Entries = npt.NDArray[np.int64]
"""One row an entry, one column for each of `Column`; the largest first, so parents before children."""

NO_VICTIM = -1


class Column(IntEnum):
    """What is said of each entry.

    ABOVE is the row of the parent, PAGE the first page of the node, TOKENS are its own and TOTAL those with all below.
    NODES is 1, or how many were folded into this entry, which has no page then. HELD are the own tokens that leases
    hold. HITS, USED_MS (the last use, on the clock of `tell_time`) and VICTIM (0: the leaf that is evicted next) count
    what is below too. NAMESPACE is that of a root. DIGEST tells first pages apart, and nothing of their tokens.
    """

    ABOVE = 0
    PAGE = 1
    NAMESPACE = 2
    START = 3
    TOKENS = 4
    TOTAL = 5
    NODES = 6
    HELD = 7
    HITS = 8
    USED_MS = 9
    VICTIM = 10
    DIGEST = 11


class Limits(NamedTuple):
    """What an outline may hold: nodes, levels, and nothing smaller than one in `share` of its tokens.

    `under` is a page of the node to begin at; None begins at the roots.
    """

    under: PageId | None = None
    max_nodes: int = 1500
    max_depth: int = 96
    share: int = 4000
    max_victims: int = 64


WHOLE = Limits()


class Outline(NamedTuple):
    """The entries, and the namespaces that those of roots name by their index."""

    entries: Entries
    namespaces: list[Namespace]


def nothing_shown() -> Outline:
    """An outline without entries."""
    return Outline(np.empty((0, len(Column)), np.int64), [])


class Run(NamedTuple):
    """The tokens of one node: where they begin, how many there are, the first of them, and the node's digest."""

    start: int
    num_tokens: int
    first: bytes
    digest: int


@dataclass(slots=True)
class _Part:
    """A node with all that is below it; for the fold of several, that of none, there is no node."""

    node: Node | None
    above: int
    depth: int
    num_nodes: int = 0
    tokens: int = 0
    held: int = 0
    hits: int = 0
    used_s: float = 0.0
    victim: int = NO_VICTIM

    def take_in(self, below: _Part) -> None:
        """Add what is below."""
        self.num_nodes += below.num_nodes
        self.tokens += below.tokens
        self.held += below.held
        self.hits += below.hits
        self.used_s = max(self.used_s, below.used_s)
        if below.victim != NO_VICTIM:
            self.victim = below.victim if self.victim == NO_VICTIM else min(self.victim, below.victim)


def outlined(roots: dict[Namespace, Node], queue: EvictionQueue, home: Node | None, limits: Limits, *,
             page_tokens: int) -> Outline:  # fmt: skip
    """Outline a tree of Python objects; `home` is the node that `limits.under` names. O(nodes)."""
    parts: list[_Part] = []
    for root in roots.values():
        _walk(parts, root, page_tokens)
    _mark_victims(parts, queue, limits.max_victims)
    for part in reversed(parts):
        if part.above >= 0:
            parts[part.above].take_in(part)
    selected = _selected(parts, home, limits)
    entry_of = {index: entry for entry, index in enumerate(selected)}
    namespaces = list(roots)
    names = {namespace: i for i, namespace in enumerate(namespaces)}
    rows = [_row(parts[i], entry_of.get(parts[i].above, -1), names, page_tokens) for i in selected]
    for i in selected:
        rest = _Part(None, entry_of[i], 0)
        for below in _below(parts, i):
            if below not in entry_of:
                rest.take_in(parts[below])
        if rest.num_nodes:
            end = _node(parts[i]).end
            rows.append([rest.above, -1, -1, end, rest.tokens, rest.tokens, rest.num_nodes, rest.held, rest.hits,
                         int(rest.used_s * 1000), rest.victim, 0])  # fmt: skip
    return Outline(np.array(rows, np.int64).reshape(-1, len(Column)), namespaces)


def run_of(node: Node, max_tokens: int, page_tokens: int) -> Run:
    """Read the first tokens of a node."""
    num_tokens = len(node.key) // TOKEN_BYTES
    return Run(node.start, num_tokens, bytes(node.key[: max_tokens * TOKEN_BYTES]), _digest(node, page_tokens))


def _walk(parts: list[_Part], root: Node, page_tokens: int) -> None:
    stack = [(root, -1, 0)]
    while stack:
        node, above, depth = stack.pop()
        index = len(parts)
        num_tokens = len(node.key) // TOKEN_BYTES
        held = _held_tokens(node, page_tokens)
        parts.append(_Part(node, above, depth, 1, num_tokens, held, node.hits, node.used_s))
        stack.extend((child, index, depth + 1) for child in reversed(node.children.values()))


def _mark_victims(parts: list[_Part], queue: EvictionQueue, max_victims: int) -> None:
    leaves = [part for part in parts if _node(part).queued_as and is_candidate(_node(part))]
    first = heapq.nsmallest(max_victims, leaves, key=lambda part: (queue.rank(_node(part)), _node(part).queued_as))
    for i, part in enumerate(first):
        part.victim = i


def _selected(parts: list[_Part], home: Node | None, limits: Limits) -> list[int]:
    """Pick the largest parts, the largest first."""
    if limits.under is None:
        tops = [i for i, part in enumerate(parts) if part.above < 0]
    else:
        tops = [i for i, part in enumerate(parts) if part.node is home]
    num_tokens = sum(parts[i].tokens for i in tops)
    deepest = limits.max_depth + (parts[tops[0]].depth if tops else 0)
    inside = [i for top in tops for i in range(top, top + parts[top].num_nodes)]
    large = [i for i in inside if parts[i].above < 0 or parts[i].tokens * limits.share >= num_tokens]
    largest = heapq.nsmallest(limits.max_nodes, large, key=lambda i: _place_in_order(parts[i]))
    return [i for i in largest if parts[i].depth <= deepest]


def _place_in_order(part: _Part) -> tuple[int, int, int, float]:
    """The largest first; of roots alike, those used last. What is above is larger, so nothing is picked without it."""
    node = _node(part)
    return -part.tokens, node.start, _first_page(node), -part.used_s


def _below(parts: list[_Part], index: int) -> Iterator[int]:
    below, stop = index + 1, index + parts[index].num_nodes
    while below < stop:
        yield below
        below += parts[below].num_nodes


def _row(part: _Part, above: int, names: dict[Namespace, int], page_tokens: int) -> list[int]:
    node = _node(part)
    return [
        above, _first_page(node), -1 if node.namespace is None else names[node.namespace], node.start,
        len(node.key) // TOKEN_BYTES, part.tokens, 1, _held_tokens(node, page_tokens), part.hits,
        int(part.used_s * 1000), part.victim, _digest(node, page_tokens),
    ]  # fmt: skip


def _first_page(node: Node) -> PageId:
    return node.pages[0] if node.pages else -1


def _held_tokens(node: Node, page_tokens: int) -> int:
    return min(node.pinned_pages * page_tokens, len(node.key) // TOKEN_BYTES)


def _digest(node: Node, page_tokens: int) -> int:
    """Hash the first page with Python's hash of bytes, whose key is drawn anew for each process."""
    return hash(bytes(node.key[: page_tokens * TOKEN_BYTES])) if node.key else 0


def _node(part: _Part) -> Node:
    assert part.node is not None
    return part.node


def namespaces_by_root(entries: Iterable[int], names: dict[int, Namespace]) -> tuple[list[int], list[Namespace]]:
    """Give each root's number as an index into the namespaces that occur."""
    found: dict[int, int] = {}
    namespaces: list[Namespace] = []
    indices = []
    for root in entries:
        if root >= 0 and root not in found:
            found[root] = len(namespaces)
            namespaces.append(names[root])
        indices.append(found.get(root, -1))
    return indices, namespaces
