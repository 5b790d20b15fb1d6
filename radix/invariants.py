"""What must hold between the ledger, the tree and the leases: stated for tests, mended in production.

Walks everything, so it is for tests and for a rare audit only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

import numpy as np

from .eviction.queue import is_candidate
from .lease import Lease
from .node import TOKEN_BYTES, Node
from .pages import Owner, PageId, PagePool, Pages, pages_of
from .tree import RadixTree


def check(pool: PagePool, tree: RadixTree, leases: Iterable[Lease]) -> None:
    """Raise AssertionError with detail when an invariant doesn't hold."""
    leases = list(leases)
    _check_ledger(pool, tree, leases)
    nodes = [node for root in tree.roots.values() for node in root.walk()]
    _check_shape(tree, nodes)
    _check_pins(tree, nodes, leases)
    queued = Counter(map(id, tree.queue.nodes()))
    for node in nodes:
        assert queued[id(node)] == bool(node.queued_as), f"node at {node.start}: {queued[id(node)]} times in the queue"
        assert node.queued_as or not is_candidate(node), f"leaf at {node.start} can't be found by eviction"


def quarantine_mismatches(pool: PagePool, tree: RadixTree, leases: Iterable[Lease]) -> int:
    """Set aside each page that is not held by exactly the owner that the ledger names; returns how many."""
    if _is_ledger_right(pool, tree, leases):
        return 0
    claims: list[list[Owner]] = [[] for _ in range(pool.num_pages)]
    places: dict[PageId, Node] = {}
    for owner, page, node in _claims(pool, tree, leases):
        claims[page].append(owner)
        if node is not None and not node.is_detached:
            places[page] = node
    wrong = [
        page
        for page, owners in enumerate(claims)
        if pool.owner_of(page) != Owner.QUARANTINED and owners != [pool.owner_of(page)]
    ]
    for page in wrong:
        pool.quarantine(page, f"held by {[owner.name.lower() for owner in claims[page]]}")
    aside = set(wrong)
    pool.free_ids = pages_of(page for page in pool.free_ids if page not in aside)
    pool.recount()
    for page in wrong:
        if page in places:
            _forget(tree, places[page], page)
    return len(wrong)


def _is_ledger_right(pool: PagePool, tree: RadixTree, leases: Iterable[Lease]) -> bool:
    """Compare all claims with the ledger in bulk: 400,000 pages in 10,000 nodes take some milliseconds."""
    ledger = pool.owners()
    is_usable = ledger != Owner.QUARANTINED
    leases = list(leases)
    claims: dict[Owner, Iterable[Pages]] = {
        Owner.FREE: [pool.free_ids],
        Owner.TREE: (node.pages for node in [*_attached(tree), *_detached(leases)]),
        Owner.REQUEST: (lease.own_page_ids for lease in leases),
    }
    for owner, runs in claims.items():
        pages = pages_of()
        for run in runs:
            pages += run
        if not pages:
            times = np.zeros(pool.num_pages, np.int64)
        else:
            times = np.bincount(np.frombuffer(pages, np.int32), minlength=pool.num_pages)
        if (times != (ledger == owner))[is_usable].any():
            return False
    return True


def _forget(tree: RadixTree, node: Node, page: PageId) -> None:
    # An earlier page's removal may have split the node or taken it along.
    current: Node | None = node
    while current is not None and page not in current.pages:
        current = current.parent
    if current is not None and not current.is_detached:
        tree.detach_page(current, page)


def _claims(pool: PagePool, tree: RadixTree, leases: Iterable[Lease]) -> Iterator[tuple[Owner, PageId, Node | None]]:
    """Say for each page who acts as its owner, whatever the ledger says."""
    for page in pool.free_ids:
        yield Owner.FREE, page, None
    for node in [*_attached(tree), *_detached(leases)]:
        for page in node.pages:
            yield Owner.TREE, page, node
    for lease in leases:
        for page in lease.own_page_ids:
            yield Owner.REQUEST, page, None


def _attached(tree: RadixTree) -> list[Node]:
    return [node for root in tree.roots.values() for node in root.walk()]


def _detached(leases: Iterable[Lease]) -> list[Node]:
    """Find the nodes that only leases still reach."""
    found: dict[Node, None] = {}
    for lease in leases:
        for position in (lease.position, lease.copy_source):
            node: Node | None = position.node if position else None
            while node is not None:
                if node.is_detached:
                    found[node] = None
                node = node.parent
    return list(found)


def _check_ledger(pool: PagePool, tree: RadixTree, leases: list[Lease]) -> None:
    holders: dict[PageId, Owner] = {}
    for owner, page, _ in _claims(pool, tree, leases):
        if pool.owner_of(page) == Owner.QUARANTINED and owner != Owner.FREE:
            continue
        assert page not in holders, f"page {page}: held by {holders[page].name} and {owner.name}"
        assert pool.owner_of(page) == owner, (
            f"page {page}: {owner.name} has it, the ledger says {pool.owner_of(page).name}"
        )
        holders[page] = owner
    for page in range(pool.num_pages):
        assert page in holders or pool.owner_of(page) == Owner.QUARANTINED, (
            f"page {page}: leaked; {pool.events_of(page)}"
        )
    counts = Counter(pool.owner_of(page) for page in range(pool.num_pages))
    for owner in Owner:
        assert pool.num_owned(owner) == counts[owner], (
            f"{owner.name}: counted {pool.num_owned(owner)}, is {counts[owner]}"
        )
    assert sum(pool.num_owned(owner) for owner in Owner) == pool.num_pages


def _check_shape(tree: RadixTree, nodes: list[Node]) -> None:
    for namespace, root in tree.roots.items():
        assert root.namespace == namespace
        assert root.parent is None and not root.pages and not root.key
        assert root.children or root.is_pinned, f"{namespace}: an empty root was kept"
    for node in nodes:
        assert not node.is_detached, f"node at {node.start}: detached, but in the tree"
        forks = {child for siblings in node.forks.values() for child in siblings}
        assert forks == set(node.children.values()), f"node at {node.start}: the fork index is not the children"
        for first_page, child in node.children.items():
            assert child.parent is node and child.start == node.end, f"node at {child.start}: not where it hangs"
            assert bytes(child.key[: tree.page_bytes]) == first_page, f"node at {child.start}: keyed wrongly"
            assert child in node.forks[bytes(child.key[:TOKEN_BYTES])], f"node at {child.start}: indexed wrongly"
            if child.is_donor:
                assert not child.children and len(child.pages) == 1 and 0 < len(child.key) < tree.page_bytes
            else:
                assert len(child.key) == len(child.pages) * tree.page_bytes > 0, f"node at {child.start}: key and pages"


def _check_pins(tree: RadixTree, nodes: list[Node], leases: list[Lease]) -> None:
    ends: dict[Node, Counter[int]] = {}
    pinned: dict[Node, set[Node]] = {}
    for lease in leases:
        for position in (lease.position, lease.copy_source):
            if position is None:
                continue
            node, depth = tree.settle(position)
            ends.setdefault(node, Counter())[depth] += 1
            while node.parent is not None:
                pinned.setdefault(node.parent, set()).add(node)
                node = node.parent
    for node in {*nodes, *ends, *pinned}:
        assert node.ends == ends.get(node, {}), f"node at {node.start}: ends {node.ends}, leases say {ends.get(node)}"
        assert node.pinned_children == len(pinned.get(node, ())), f"node at {node.start}: pinned children"
        held = node.end if node.pinned_children else max(node.ends, default=node.start)
        assert node.pinned_pages == -(-(held - node.start) // tree.page_tokens), f"node at {node.start}: pinned pages"
        assert node.pinned_pages <= len(node.pages)
    evictable = sum(len(node.pages) - node.pinned_pages for node in nodes)
    assert tree.evictable_pages == evictable, f"evictable: counted {tree.evictable_pages}, is {evictable}"
