"""The radix tree of cached prefixes: matching, inserting, evicting.

Edges are runs of whole pages and children are keyed by the bytes of their first page, so a walk is one dict look-up and
one compare per edge, by offset. Positions are (node, depth): `depth` tokens from the root, in or at the end of `node`;
they hold until the tree changes. What outlives that is a place: its page, whose node is `home`. Knows no requests.
"""

from __future__ import annotations

from collections.abc import Collection
from itertools import islice
from typing import NamedTuple

from .eviction.policy import Policy
from .eviction.queue import EvictionQueue
from .lease import ROOT, Place
from .node import NO_ENDS, TOKEN_BYTES, Namespace, Node, common_run, common_tokens
from .pages import TREE, PageId, PagePool, Pages, pages_of
from .pins import Pins
from .waiters import Waiters

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


class RadixTree:
    """Pages by the tokens before and in them, one root per namespace. `home` names the node of each page in the tree.

    >>> from .eviction.lru import Lru
    >>> pool = PagePool(8)
    >>> tree = RadixTree(page_tokens=1, pool=pool, policy=Lru(8))
    >>> namespace = Namespace("m", None, "")
    >>> position, duplicates = tree.insert(Position(tree.root(namespace), 0), b"aaaabbbb", pool.allocate(2))
    >>> tree.match(namespace, b"aaaabbbbcccc").depth, tree.match(namespace, b"bbbb").depth
    (2, 0)
    >>> tree.evict(1), tree.match(namespace, b"aaaabbbb").depth
    (1, 1)
    """

    def __init__(self, *, page_tokens: int, pool: PagePool, policy: Policy) -> None:
        self.page_tokens = page_tokens
        self.page_bytes = page_tokens * TOKEN_BYTES
        self.pool = pool
        self.roots: dict[Namespace, Node] = {}
        self.home: list[Node | None] = [None] * pool.num_pages
        self.version = 0
        self.generation = 0
        self.queue = EvictionQueue(policy)
        self.pins = Pins(page_tokens=page_tokens, pool=pool, queue=self.queue, home=self.home)
        self.waiters = Waiters(self, page_tokens=page_tokens)

    @property
    def evictable_pages(self) -> int:
        """Pages that nobody pins."""
        return self.pins.evictable_pages

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
            offset += self._whole_pages(common_run(key, 0, query, offset))
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

    def position_at(self, namespace: Namespace, place: Place) -> Position:
        """Find a place again; makes the root of a new namespace."""
        node = self.root(namespace) if place.page is None else self.node_of(place.page)
        return Position(node, place.depth)

    def place_of(self, position: Position) -> Place:
        """Name a position by its page."""
        node, depth = position
        return Place(node.pages[(depth - node.start) // self.page_tokens - 1], depth) if depth else ROOT

    def follow(self, namespace: Namespace, place: Place, rest: bytes) -> Place:
        """Go on from a cached place along the whole pages of `rest`; returns where the run of equal pages ends."""
        page, depth = place
        node = self.roots.get(namespace) if page is None else self.home[page]
        if node is None:
            return place
        offset = 0
        while offset < len(rest):
            if depth == node.end:
                child = node.children.get(rest[offset : offset + self.page_bytes])
                if child is None:
                    break
                node = child
            run = self._whole_pages(common_run(node.key, (depth - node.start) * TOKEN_BYTES, rest, offset))
            offset += run
            depth += run // TOKEN_BYTES
            if depth < node.end:
                break
        return self.place_of(Position(node, depth)) if offset else place

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

    def queued(self) -> list[Node]:
        """List the nodes that stand in the queue of eviction."""
        return self.queue.nodes()

    # --- growing

    def root(self, namespace: Namespace) -> Node:
        """Get or make the root of a namespace."""
        root = self.roots.get(namespace)
        if root is None:
            root = self.roots[namespace] = Node(None, 0, bytearray(), pages_of(), namespace=namespace)
        return root

    def insert(self, position: Position, query: bytes, pages: Pages) -> tuple[Position, Pages]:
        """Enter the whole pages of `query` below `position`; returns where they end and the pages that were not taken.

        Pages that the tree already holds are not taken, nor is anything from the first page on that the ledger says is
        not the request's. The caller pins the new position.
        """
        node, depth = position
        duplicates = pages_of()
        offset, stop = 0, len(query)
        while offset < stop:
            if depth == node.start + len(node.key) // TOKEN_BYTES:
                child = node.children.get(query[offset : offset + self.page_bytes])
                if child is None:
                    break
                node = child
            run = self._whole_pages(common_run(node.key, (depth - node.start) * TOKEN_BYTES, query, offset))
            first = offset // self.page_bytes
            duplicates += pages[first : first + run // self.page_bytes]
            offset += run
            depth += run // TOKEN_BYTES
            if offset < stop and depth < node.end:
                node = self._split(node, depth)
        if offset < stop:
            node = self._append(node, query[offset:], pages[offset // self.page_bytes :])
            depth = node.end
            self._drop_root_if_empty(node)
        return Position(node, depth), duplicates

    def insert_donor(self, position: Position, tail: bytes, page: PageId) -> bool:
        """Keep a partly filled page with its tokens `tail` below `position`, unless what is there begins with them."""
        node, depth = position
        fork = self.look_for_fork(position, tail)
        is_there = fork is not None and fork.num_tokens * TOKEN_BYTES == len(tail)
        # The look is at a few children only; the very same tail must not take an older one's place.
        if is_there or (depth == node.end and tail in node.children):
            return False
        pages = self.pool.adopt(pages_of((page,)))
        if not pages:
            self._drop_root_if_empty(node)
            return False
        if depth < node.end:
            node = self._split(node, depth)
        self._drop_superseded(node, tail)
        moment = self.queue.policy.moment(1)
        self._add_child(Node(node, depth, bytearray(tail), pages, used_at=moment, is_donor=True))
        return True

    def touch(self, node: Node) -> None:
        """Make `node` the most recently used. Its ancestors need no touch, since they can't go before it."""
        node.used_at = self.queue.policy.moment(0)

    def _append(self, node: Node, key: bytes, pages: Pages) -> Node:
        adopted = self.pool.adopt(pages)
        if len(adopted) < len(pages):
            key = key[: len(adopted) * self.page_bytes]
        if not adopted:
            return node
        end = self.place_of(Position(node, node.end))
        grown = self._grow(node, key, adopted)
        self.waiters.grown(node.namespace, end.page, key[: self.page_bytes])
        return grown

    def _grow(self, node: Node, key: bytes, pages: Pages) -> Node:
        if node.forks:
            self._drop_superseded(node, key[: self.page_bytes])
        moment = self.queue.policy.moment(len(pages))
        if node.parent is None or node.children or node.pinned_children:
            child = Node(node, node.end, bytearray(key), pages, used_at=moment)
            self._add_child(child)
            return child
        node.key += key
        node.pages += pages
        self._settle(node, pages)
        node.used_at = moment
        self.version += 1
        self.pins.evictable_pages += len(pages)
        self.queue.add(node)
        return node

    def _add_child(self, child: Node) -> None:
        assert child.parent is not None
        self._link(child)
        self._settle(child, child.pages)
        self.version += 1
        self.pins.evictable_pages += len(child.pages)
        self.queue.add(child)

    def _drop_superseded(self, node: Node, page_key: bytes) -> None:
        """Free the unpinned donors below `node` whose tokens are the start of a page that is about to enter."""
        siblings = node.forks.get(page_key[:TOKEN_BYTES])
        if siblings is None:
            return
        for child in list(islice(reversed(siblings), FORK_LOOK)):
            if child.is_donor and not child.is_pinned and page_key.startswith(child.key):
                self._free(child.pages)
                self.pins.evictable_pages -= 1
                self._remove(child)

    def _settle(self, node: Node | None, pages: Pages) -> None:
        home = self.home
        for page in pages:
            home[page] = node

    def _free(self, pages: Pages) -> None:
        self._settle(None, pages)
        self.pool.free(pages, TREE)

    def _split(self, node: Node, depth: int) -> Node:
        """Cut `node` at `depth`: a new node takes what is above, `node` keeps what is below; returns the new one."""
        num_pages = (depth - node.start) // self.page_tokens
        num_bytes = num_pages * self.page_bytes
        upper = Node(node.parent, node.start, node.key[:num_bytes], node.pages[:num_pages])
        upper.inherit(node)
        self._unlink(node)
        self._link(upper)
        node.parent, node.start = upper, depth
        node.key, node.pages = node.key[num_bytes:], node.pages[num_pages:]
        self._link(node)
        upper.ends = {end: count for end, count in node.ends.items() if end <= depth} or NO_ENDS
        node.ends = {end: count for end, count in node.ends.items() if end > depth} or NO_ENDS
        upper.pinned_pages = min(node.pinned_pages, num_pages)
        node.pinned_pages -= upper.pinned_pages
        upper.pinned_children = int(node.is_pinned)
        self._settle(upper, upper.pages)
        return upper

    # --- pinning

    def pin(self, place: Place) -> None:
        """Keep the path to `place` from eviction. O(nodes on the path that nobody had pinned yet)."""
        if place.page is not None:
            self.pins.pin(self.node_of(place.page), place.depth)

    def unpin(self, place: Place) -> None:
        """Undo one `pin`. A detached page that nobody pins any more is freed."""
        if place.page is not None:
            root = self.pins.unpin(self.node_of(place.page), place.depth)
            if root is not None:
                self._drop_root_if_empty(root)

    def pages_held_by_one(self, place: Place) -> int:
        """Count the pages on the path to `place` that only one pin, the one at `place`, keeps from eviction."""
        return 0 if place.page is None else self.pins.pages_held_by_one(self.node_of(place.page), place.depth)

    # --- shrinking

    def evict(self, num_pages: int) -> int:
        """Free up to `num_pages` unpinned pages, each from the end of the branch that goes first; returns how many."""
        queue, policy, pins = self.queue, self.queue.policy, self.pins
        freed = pages_of()
        missing = num_pages
        while missing and (node := queue.head()) is not None:
            count = min(missing, len(node.pages) - node.pinned_pages)
            taken = node.pages[: -count - 1 : -1]
            freed += taken
            missing -= count
            pins.evictable_pages -= count
            if not node.is_donor:
                policy.evicted(queue.head_rank)
            if count == len(node.pages):
                parent = node.parent
                self._remove(node)
                assert parent is not None
                if len(parent.children) == 1:
                    self._join_only_child(parent)
                self._drop_root_if_empty(parent)
            else:
                del node.pages[-count:], node.key[-count * self.page_bytes :]
                self._tell_lost(taken, node)
        if freed:
            self._free(freed)
            self.version += 1
        return len(freed)

    def detach_all(self) -> int:
        """Forget every root; returns how many pages came free. Pinned ones are freed with their last pin."""
        roots = list(self.roots.values())
        self.roots.clear()
        self.version += 1
        self.generation += 1
        self.waiters.lost_all()
        freed = sum(self._detach(root) for root in roots)
        self.queue.clear()
        return freed

    def detach_page(self, page: PageId) -> None:
        """Forget one page of the tree and everything below it."""
        node = self.node_of(page)
        index = node.pages.index(page)
        if index:
            self._split(node, node.start + index * self.page_tokens)
        self._unlink(node)
        parent = node.parent
        assert parent is not None
        for each in node.walk():
            self._tell_lost(each.pages, parent)
        self._detach(node)
        self.version += 1
        self.queue.add(parent)
        self._drop_root_if_empty(parent)
        self.waiters.dismiss_leaders()

    def _tell_lost(self, pages: Pages, above: Node) -> None:
        if self.waiters.halts:
            self.waiters.lost(pages, self.place_of(Position(above, above.end)))

    def _detach(self, top: Node) -> int:
        freed = 0
        for node in list(top.walk()):
            node.is_detached = True
            unpinned = node.pages[node.pinned_pages :]
            self.pins.evictable_pages -= len(unpinned)
            freed += len(unpinned)
            self._free(unpinned)
            del node.pages[node.pinned_pages :], node.key[node.pinned_pages * self.page_bytes :]
            node.children.clear()
            node.forks.clear()
        return freed

    def _remove(self, node: Node) -> None:
        """Take a leaf without pins out of the tree."""
        parent = node.parent
        assert parent is not None
        self._unlink(node)
        self._tell_lost(node.pages, parent)
        node.pages = pages_of()
        if not node.is_donor:
            parent.inherit(node)
        self.queue.add(parent)

    def _join_only_child(self, upper: Node) -> None:
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
        self._unlink(upper)
        child.inherit(upper)
        child.parent, child.start = upper.parent, upper.start
        child.key, child.pages = upper.key + child.key, upper.pages + child.pages
        self._settle(child, upper.pages)
        child.pinned_pages += upper.pinned_pages
        upper.pages = pages_of()
        upper.children.clear()
        upper.forks.clear()
        self._link(child)

    def _drop_root_if_empty(self, node: Node) -> None:
        if node.namespace is not None and not (node.children or node.is_pinned or node.is_detached):
            del self.roots[node.namespace]

    def _link(self, child: Node) -> None:
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

    def _unlink(self, child: Node) -> None:
        parent, first_page = child.parent, child.first_page
        assert parent is not None
        del parent.children[first_page]
        token = first_page[:TOKEN_BYTES]
        siblings = parent.forks[token]
        del siblings[child]
        if not siblings:
            del parent.forks[token]

    def _whole_pages(self, num_bytes: int) -> int:
        return num_bytes - num_bytes % self.page_bytes
