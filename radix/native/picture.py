"""A compiled tree shown as nodes, for checks."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Mapping, Sequence

from radix.node import TOKEN_BYTES, Namespace, Node
from radix.pages import PageId
from radix.picture import Picture


def pictured(
    values: Sequence[int], namespaces: Mapping[int, Namespace], *, page_tokens: int, evictable_pages: int
) -> Picture:
    """Read what `radix_picture` gives; changing these nodes changes nothing."""
    roots: dict[Namespace, Node] = {}
    queued: list[Node] = []
    home: dict[PageId, Node] = {}
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
        queued += [node] * times
        home.update(dict.fromkeys(pages, node))
        if node.namespace is not None:
            roots[node.namespace] = node
        parents.append((node, parent))
        children.append((node, names))
    for node, parent in parents:
        node.parent = nodes.get(parent)
    for node, names in children:
        for child in map(nodes.__getitem__, names):
            child.first_page = bytes(child.key[: page_tokens * TOKEN_BYTES])
            node.children[child.first_page] = child
            node.forks.setdefault(child.first_page[:TOKEN_BYTES], {})[child] = None
    return Picture(page_tokens, roots, home.get, queued, evictable_pages)


def _counted(values: Sequence[int], at: int, *, width: int = 1) -> tuple[Sequence[int], int]:
    """Read a count and as many values (times `width`); returns them, and where they end."""
    stop = at + 1 + values[at] * width
    return values[at + 1 : stop], stop


def _double(bits: int) -> float:
    (value,) = struct.unpack("=d", struct.pack("=q", bits))
    return float(value)
