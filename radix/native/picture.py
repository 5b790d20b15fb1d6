"""A compiled tree shown as nodes, for checks."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence

from radix.node import TOKEN_BYTES, Namespace, Node
from radix.pages import PageId


class NativePicture:
    """The nodes of a compiled tree as they were when it was asked; changing them changes nothing."""

    def __init__(
        self, values: Sequence[int], namespaces: dict[int, Namespace], *, page_tokens: int, evictable_pages: int
    ) -> None:
        self.page_tokens = page_tokens
        self.page_bytes = page_tokens * TOKEN_BYTES
        self.evictable_pages = evictable_pages
        self.roots: dict[Namespace, Node] = {}
        self._queued: list[Node] = []
        self._home: dict[PageId, Node] = {}
        nodes: dict[int, Node] = {}
        parents: list[tuple[Node, int]] = []
        children: list[tuple[Node, Sequence[int]]] = []
        at = 0
        while at < len(values):
            name, parent, root_id, start, is_donor, is_detached, used_at, keep_until_s = values[at : at + 8]
            hits, priority, queued_as, times, pinned_children, pinned_pages = values[at + 8 : at + 14]
            key, at = _counted(values, at + 14)
            pages, at = _counted(values, at)
            ends, at = _counted(values, at, width=2)
            names, at = _counted(values, at)
            node = nodes[name] = Node(
                None, start, bytearray(array("i", key).tobytes()), array("i", pages), _double(used_at),
                is_donor=bool(is_donor), namespace=namespaces.get(root_id),
            )  # fmt: skip
            node.is_detached, node.keep_until_s = bool(is_detached), _double(keep_until_s)
            node.hits, node.priority, node.queued_as = hits, priority, queued_as
            node.pinned_children, node.pinned_pages = pinned_children, pinned_pages
            node.ends = dict(zip(ends[::2], ends[1::2], strict=True))
            self._queued += [node] * times
            self._home.update(dict.fromkeys(pages, node))
            if node.namespace is not None:
                self.roots[node.namespace] = node
            parents.append((node, parent))
            children.append((node, names))
        for node, parent in parents:
            node.parent = nodes.get(parent)
        for node, names in children:
            for child in map(nodes.__getitem__, names):
                child.first_page = bytes(child.key[: self.page_bytes])
                node.children[child.first_page] = child
                node.forks.setdefault(child.first_page[:TOKEN_BYTES], {})[child] = None

    def home_of(self, page: PageId) -> Node | None:
        """Find the node that holds a page, also one that is forgotten but leased."""
        return self._home.get(page)

    def queued(self) -> list[Node]:
        """List the nodes that stand in the queue of eviction."""
        return self._queued


def _counted(values: Sequence[int], at: int, *, width: int = 1) -> tuple[Sequence[int], int]:
    """Read a count and as many values (times `width`); returns them, and where they end."""
    stop = at + 1 + values[at] * width
    return values[at + 1 : stop], stop


def _double(bits: int) -> float:
    (value,) = struct.unpack("=d", struct.pack("=q", bits))
    return float(value)
