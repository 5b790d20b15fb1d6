"""The edges of the radix tree: where a run of tokens leads, and how edges are cut and joined.

Edges are runs of whole pages and children are keyed by the bytes of their first page, so a walk is one dict look-up and
one compare per edge, by offset. Positions are (node, depth): `depth` tokens from the root, in or at the end of `node`;
they hold until the tree changes. What outlives that is a place: its page, whose node is `home`. Knows no pool, no
leases and no eviction.
"""

from __future__ import annotations

from collections.abc import Collection
from itertools import islice
from typing import NamedTuple

from .lease import ROOT, Place
from .node import NO_ENDS, TOKEN_BYTES, Namespace, Node, common_run, common_tokens
from .pages import PageId, Pages, pages_of

FORK_LOOK = 8

JOINED_BYTES = 1 << 18
"""An edge and its only child become one edge up to this length: copying it costs some microseconds."""


class Position(NamedTuple):
    """A place in the tree: `depth` tokens from the root, inside `node` or at its end."""

    node: Node
    depth: int


class Fork(NamedTuple):
    """A cached page that shares its first `num_tokens` tokens with what was looked for, and ends at `depth`."""

    page: PageId
    depth: int
    num_tokens: int


class Edges:
    """Nodes by the tokens before and in them, one root per namespace; `home` names the node of each page in the tree.

    >>> edges = Edges(page_tokens=1, num_pages=4)
    >>> namespace = Namespace("m", None, "")
    >>> edges.link(Node(edges.root(namespace), 0, bytearray(b"aaaabbbb"), pages_of([2, 3])))
    >>> end = edges.match(namespace, b"aaaabbbbcccc")
    >>> edges.place_of(end), edges.pages_to(end).tolist(), edges.match(namespace, b"bbbb").depth
    (Place(page=3, depth=2), [2, 3], 0)
    """

    def __init__(self, *, page_tokens: int, num_pages: int) -> None:
        self.page_tokens = page_tokens
        self.page_bytes = page_tokens * TOKEN_BYTES
        self.roots: dict[Namespace, Node] = {}
        self.home: list[Node | None] = [None] * num_pages

    # --- looking

    def match(self, namespace: Namespace, query: bytes) -> Position | None:
        """Find where the longest cached run of whole pages of `query` ends; None in an unknown namespace. Read-only."""
        node = self.roots.get(namespace)
        if node is None:
            return None
        page_bytes = self.page_bytes
        offset, last = 0, len(query) - page_bytes
        while offset <= last:
            child = node.children.get(query[offset : offset + page_bytes])
            if child is None:
                break
            node = child
            key = node.key
            if query.startswith(key, offset):
                offset += len(key)
                continue
            offset += self.whole_pages(common_run(key, 0, query, offset))
            break
        return Position(node, offset // TOKEN_BYTES)

    def look_for_fork(self, position: Position, rest: bytes) -> Fork | None:
        """Find the page after `position` that shares most first tokens with `rest`, among at most eight."""
        if not rest:
            return None
        node, depth = position
        rest = rest[: self.page_bytes]
        if depth < node.end:
            index = (depth - node.start) // self.page_tokens
            key = node.key[index * self.page_bytes : (index + 1) * self.page_bytes]
            num_tokens = common_tokens(key, rest)
            return Fork(node.pages[index], depth + self.page_tokens, num_tokens) if num_tokens else None
        siblings = node.forks.get(rest[:TOKEN_BYTES])
        if siblings is None:
            return None
        best: Fork | None = None
        for child in islice(reversed(siblings), FORK_LOOK):
            num_tokens = common_tokens(child.key[: self.page_bytes], rest)
            if best is None or num_tokens > best.num_tokens:
                best = Fork(child.pages[0], min(depth + self.page_tokens, child.end), num_tokens)
        return best

    def follow(self, namespace: Namespace, place: Place, key: bytes, start: int) -> Place:
        """Go on from a cached place along the whole pages of `key` behind its first `start` tokens.

        Returns where the run of equal pages ends.
        """
        page, depth = place
        node = self.roots.get(namespace) if page is None else self.home[page]
        if node is None:
            return place
        begin = offset = start * TOKEN_BYTES
        while offset < len(key):
            if depth == node.end:
                child = node.children.get(key[offset : offset + self.page_bytes])
                if child is None:
                    break
                node = child
            run = self.whole_pages(common_run(node.key, (depth - node.start) * TOKEN_BYTES, key, offset))
            offset += run
            depth += run // TOKEN_BYTES
            if depth < node.end:
                break
        return self.place_of(Position(node, depth)) if offset > begin else place

    def continued(self, namespace: Namespace, place: Place, first_pages: Collection[bytes]) -> list[bytes]:
        """Pick those of `first_pages` that go on from a cached place. O(the fewer of these and the node's children)."""
        page, depth = place
        node = self.roots.get(namespace) if page is None else self.home[page]
        if node is None:
            return []
        if depth == node.end:
            if len(first_pages) > len(node.children):
                return [key for key in node.children if key in first_pages]
            return [key for key in first_pages if key in node.children]
        first = (depth - node.start) * TOKEN_BYTES
        key = bytes(node.key[first : first + self.page_bytes])
        return [key] if key in first_pages else []

    def pages_to(self, position: Position) -> Pages:
        """List the pages from the root to `position`."""
        node, depth = position
        if not depth:
            return pages_of()
        runs = [node.pages[: (depth - node.start) // self.page_tokens]]
        while node.parent is not None:
            node = node.parent
            runs.append(node.pages)
        pages = pages_of()
        for run in reversed(runs):
            pages += run
        return pages

    def node_of(self, page: PageId) -> Node:
        """Find the node that holds a page of the tree."""
        node = self.home[page]
        assert node is not None
        return node

    def home_of(self, page: PageId) -> Node | None:
        """Find the node that holds a page, also one that is forgotten but leased."""
        return self.home[page]

    def place_of(self, position: Position) -> Place:
        """Name a position by its page."""
        node, depth = position
        return Place(node.pages[(depth - node.start) // self.page_tokens - 1], depth) if depth else ROOT

    def position_at(self, namespace: Namespace, place: Place) -> Position:
        """Find a place again; makes the root of a new namespace."""
        node = self.root(namespace) if place.page is None else self.node_of(place.page)
        return Position(node, place.depth)

    # --- cutting and joining

    def root(self, namespace: Namespace) -> Node:
        """Get or make the root of a namespace."""
        root = self.roots.get(namespace)
        if root is None:
            root = self.roots[namespace] = Node(None, 0, bytearray(), pages_of(), namespace=namespace)
        return root

    def drop_root_if_empty(self, node: Node) -> None:
        """Forget the root of a namespace that has nothing any more; does nothing to other nodes."""
        if node.namespace is not None and not (node.children or node.is_pinned or node.is_detached):
            del self.roots[node.namespace]

    def settle(self, node: Node | None, pages: Pages) -> None:
        """Note which node holds `pages`; None: none does."""
        home = self.home
        for page in pages:
            home[page] = node

    def link(self, child: Node) -> None:
        """Hang `child` under its parent."""
        parent, key = child.parent, child.key
        assert parent is not None
        child.first_page = first_page = bytes(key[: self.page_bytes])
        parent.children[first_page] = child
        token = first_page[:TOKEN_BYTES]
        siblings = parent.forks.get(token)
        if siblings is None:
            parent.forks[token] = {child: None}
        else:
            siblings[child] = None

    def unlink(self, child: Node) -> None:
        """Take `child` off its parent, which it goes on to name."""
        parent, first_page = child.parent, child.first_page
        assert parent is not None
        del parent.children[first_page]
        token = first_page[:TOKEN_BYTES]
        siblings = parent.forks[token]
        del siblings[child]
        if not siblings:
            del parent.forks[token]

    def split(self, node: Node, depth: int) -> Node:
        """Cut `node` at `depth`: a new node takes what is above, `node` keeps what is below; returns the new one."""
        num_pages = (depth - node.start) // self.page_tokens
        num_bytes = num_pages * self.page_bytes
        upper = Node(node.parent, node.start, node.key[:num_bytes], node.pages[:num_pages])
        upper.inherit(node)
        self.unlink(node)
        self.link(upper)
        node.parent, node.start = upper, depth
        node.key, node.pages = node.key[num_bytes:], node.pages[num_pages:]
        self.link(node)
        upper.ends = {end: count for end, count in node.ends.items() if end <= depth} or NO_ENDS
        node.ends = {end: count for end, count in node.ends.items() if end > depth} or NO_ENDS
        upper.pinned_pages = min(node.pinned_pages, num_pages)
        node.pinned_pages -= upper.pinned_pages
        upper.pinned_children = int(node.is_pinned)
        self.settle(upper, upper.pages)
        return upper

    def join_only_child(self, upper: Node) -> None:
        """Make one edge of `upper` and its only child, unless something is known of `upper` alone.

        The child stays and grows upwards, as a split grows a node above it.
        """
        (child,) = upper.children.values()
        if upper.parent is None or upper.ends or child.is_donor or upper.used_at > child.used_at:
            return
        if upper.pinned_children != int(child.is_pinned):  # a part that was forgotten is still leased
            return
        if len(upper.key) + len(child.key) > JOINED_BYTES:
            return
        self.unlink(upper)
        child.inherit(upper)
        child.parent, child.start = upper.parent, upper.start
        child.key, child.pages = upper.key + child.key, upper.pages + child.pages
        self.settle(child, upper.pages)
        child.pinned_pages += upper.pinned_pages
        upper.pages = pages_of()
        upper.children.clear()
        upper.forks.clear()
        self.link(child)

    def whole_pages(self, num_bytes: int) -> int:
        """Round bytes down to whole pages."""
        return num_bytes - num_bytes % self.page_bytes
