"""What must hold between the ledger, the tree and the leases: stated for tests, mended in production."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

import numpy as np

from .core import Core, Times
from .eviction.queue import is_candidate
from .lease import Lease, Place
from .node import TOKEN_BYTES, Node
from .pages import Owner, PageId, Pages, pages_of
from .picture import Picture


def check(core: Core, leases: Iterable[Lease]) -> None:
    """Raise AssertionError with detail when an invariant doesn't hold. O(everything)."""
    leases = list(leases)
    tree = core.picture()
    nodes = [node for root in tree.roots.values() for node in root.walk()]
    _check_ledger(core, tree, nodes, leases)
    _check_shape(tree, nodes)
    _check_pins(tree, nodes, leases)
    queued = Counter(map(id, tree.queued))
    for node in nodes:
        assert queued[id(node)] == bool(node.queued_as), f"node at {node.start}: {queued[id(node)]} times in the queue"
        assert node.queued_as or not is_candidate(node), f"leaf at {node.start} can't be found by eviction"


def quarantine_mismatches(core: Core, leases: Iterable[Lease], first: int, stop: int) -> int:
    """Set aside each page of [first, stop) that isn't held by exactly the owner in the ledger; returns how many.

    O(stop - first) beside one pass in bulk over the free pages and those of requests.
    """
    leases = list(leases)
    ledger = core.ledger
    held: dict[Owner, Times] = {
        Owner.FREE: _times([ledger.free_ids], first, stop),
        Owner.REQUEST: _times((lease.own_page_ids for lease in leases), first, stop),
        Owner.TREE: core.held(first, stop),
    }
    owners = ledger.owners()[first:stop]
    is_wrong = np.zeros(stop - first, np.bool_)
    for owner, times in held.items():
        is_wrong |= times != (owners == owner)
    is_wrong &= owners != Owner.QUARANTINED
    if not is_wrong.any():
        return 0
    reasons: dict[PageId, str] = {}
    for index in np.flatnonzero(is_wrong).tolist():
        holders = [owner.name.lower() for owner, times in held.items() for _ in range(times[index])]
        reasons[first + index] = f"held by {holders}"
    ledger.set_aside(reasons)
    for page in reasons:
        core.forget(page)
    return len(reasons)


def _times(runs: Iterable[Pages], first: int, stop: int) -> Times:
    """Count how often each page of [first, stop) occurs."""
    held = pages_of()
    for run in runs:
        held += run
    pages = np.frombuffer(held or pages_of([stop]), np.int32)
    within = pages[(pages >= first) & (pages < stop)]
    return np.bincount(within - first, minlength=stop - first)


def _detached(tree: Picture, leases: Iterable[Lease]) -> list[Node]:
    """Find the nodes that only leases still reach."""
    found: dict[Node, None] = {}
    for place in _pinned(leases):
        node = None if place.page is None else tree.home_of(place.page)
        while node is not None:
            if node.is_detached:
                found[node] = None
            node = node.parent
    return list(found)


def _pinned(leases: Iterable[Lease]) -> Iterator[Place]:
    """Give the places that leases pin: where each ends, and what it copies from."""
    for lease in leases:
        yield lease.place
        if lease.copy_source is not None:
            yield lease.copy_source


def _check_ledger(core: Core, tree: Picture, nodes: list[Node], leases: list[Lease]) -> None:
    ledger = core.ledger
    owners = ledger.owners()
    claims: dict[Owner, Iterable[Pages]] = {
        Owner.FREE: [ledger.free_ids],
        Owner.REQUEST: (lease.own_page_ids for lease in leases),
        Owner.TREE: (node.pages for node in [*nodes, *_detached(tree, leases)]),
    }
    for owner, runs in claims.items():
        times = _times(runs, 0, ledger.num_pages)
        is_wrong = times != (owners == owner)
        if owner != Owner.FREE:  # what was set aside may still be in somebody's hands
            is_wrong &= owners != Owner.QUARANTINED
        for page in np.flatnonzero(is_wrong).tolist():
            raise AssertionError(
                f"page {page}: {owner.name} has it {times[page]} times, the ledger says {ledger.owner_of(page).name};"
                f" {ledger.events_of(page)}"
            )
        if owner == Owner.TREE:
            assert np.array_equal(core.held(0, ledger.num_pages), times), "pages whose home is another node"
    counts = np.bincount(owners, minlength=len(Owner)).tolist()
    assert [ledger.num_owned(owner) for owner in Owner] == counts, f"owners are miscounted: there are {counts}"


def _check_shape(tree: Picture, nodes: list[Node]) -> None:
    page_bytes = tree.page_tokens * TOKEN_BYTES
    for namespace, root in tree.roots.items():
        assert root.namespace == namespace
        assert root.parent is None and not root.pages and not root.key
        assert root.children or root.is_pinned, f"{namespace}: an empty root was kept"
    for node in nodes:
        assert all(tree.home_of(page) is node for page in node.pages), f"node at {node.start}: not its pages' home"
        assert not node.is_detached, f"node at {node.start}: detached, but in the tree"
        forks = {child for siblings in node.forks.values() for child in siblings}
        assert forks == set(node.children.values()), f"node at {node.start}: the fork index is not the children"
        for first_page, child in node.children.items():
            assert child.parent is node and child.start == node.end, f"node at {child.start}: not where it hangs"
            assert bytes(child.key[:page_bytes]) == first_page, f"node at {child.start}: keyed wrongly"
            assert child in node.forks[bytes(child.key[:TOKEN_BYTES])], f"node at {child.start}: indexed wrongly"
            if child.is_donor:
                assert not child.children and len(child.pages) == 1 and 0 < len(child.key) < page_bytes
            else:
                assert len(child.key) == len(child.pages) * page_bytes > 0, f"node at {child.start}: key and pages"


def _check_pins(tree: Picture, nodes: list[Node], leases: list[Lease]) -> None:
    ends: dict[Node, Counter[int]] = {}
    pinned: dict[Node, set[Node]] = {}
    for place in _pinned(leases):
        node = None if place.page is None else tree.home_of(place.page)
        if node is None:
            continue
        ends.setdefault(node, Counter())[place.depth] += 1
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
