"""The tree's outline: nothing is lost in it, the largest parts are in it, and both trees draw the same."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radix.cache import Lease, PrefixCache
from radix.node import Namespace
from radix.outline import WHOLE, Column, Limits, Outline
from tests.radix.serving import CHAT, OTHER, ids, serve, start
from tests.radix.twins import twin

PAGE_TOKENS = 4

LIMITS = st.builds(
    Limits,
    under=st.none() | st.integers(0, 47),
    max_nodes=st.integers(1, 30),
    max_depth=st.integers(0, 6),
    share=st.sampled_from([3, 20, 4000]),
    max_victims=st.integers(1, 9),
)
REQUESTS = st.lists(
    st.tuples(st.integers(0, 30), st.integers(0, 24), st.lists(st.integers(0, 2), max_size=14), st.booleans()),
    max_size=24,
)


def column(outline: Outline, name: Column) -> list[int]:
    values: list[int] = outline.entries[:, name].tolist()
    return values


def cached_tokens(cache: PrefixCache) -> int:
    roots = cache.core.picture().roots.values()
    return sum(len(node.key) // 4 for root in roots for node in root.walk())


def num_nodes(cache: PrefixCache) -> int:
    return sum(1 for root in cache.core.picture().roots.values() for _ in root.walk())


@settings(max_examples=80)
@given(REQUESTS, LIMITS)
def test_both_trees_draw_the_same_and_nothing_is_lost(
    requests: list[tuple[int, int, list[int], bool]], limits: Limits
) -> None:
    cache = twin(PrefixCache(num_pages=48, page_tokens=PAGE_TOKENS))
    prompts: list[tuple[int, ...]] = [(0,)]
    held: list[tuple[Lease, tuple[int, ...]]] = []
    for i, (base, kept, tail, is_held) in enumerate(requests):
        cache.tell_time(float(i))
        prompt = (*prompts[base % len(prompts)][:kept], *tail) or (0,)
        prompts.append(prompt)
        if len(held) == 2:
            cache.release(held[0][0], ids(held.pop(0)[1]))
        lease = start(cache, prompt, OTHER if base % 5 == 0 else CHAT)
        if is_held:
            cache.commit(lease, ids(prompt[: len(prompt) // PAGE_TOKENS * PAGE_TOKENS]))
            held.append((lease, prompt))
        else:
            cache.release(lease, ids(prompt))
        cache.outline(limits)  # where both are compared
        whole = cache.outline(limits._replace(under=None, max_nodes=30))
        assert sum(column(whole, Column.TOKENS)) == cached_tokens(cache)
        assert sum(column(whole, Column.NODES)) == num_nodes(cache)
        assert all(above < row for row, above in enumerate(column(whole, Column.ABOVE)))
    for lease, prompt in held:
        cache.release(lease, ids(prompt))
    assert not any(column(cache.outline(), Column.HELD))


@pytest.mark.usefixtures("each_core")
def test_the_largest_are_shown_and_the_rest_is_one_entry_below_its_parent() -> None:
    cache = PrefixCache(num_pages=64, page_tokens=PAGE_TOKENS)
    for first in range(1, 6):
        serve(cache, [first] * (PAGE_TOKENS * first))
    outline = cache.outline(WHOLE._replace(max_nodes=3))
    assert column(outline, Column.TOKENS) == [0, 20, 16, 4 + 8 + 12]
    assert column(outline, Column.NODES) == [1, 1, 1, 3]
    assert column(outline, Column.ABOVE) == [-1, 0, 0, 0]
    assert outline.namespaces == [CHAT]


@pytest.mark.usefixtures("each_core")
@pytest.mark.parametrize("order", [(CHAT, OTHER), (OTHER, CHAT)])
def test_of_namespaces_of_one_size_the_one_used_last_comes_first(order: tuple[Namespace, Namespace]) -> None:
    cache = PrefixCache(num_pages=64, page_tokens=PAGE_TOKENS)
    for i, namespace in enumerate((CHAT, OTHER, *order)):
        cache.tell_time(float(i))
        serve(cache, range(8), namespace)
    outline = cache.outline(WHOLE._replace(max_nodes=1))
    assert [outline.namespaces[i] for i in column(outline, Column.NAMESPACE) if i >= 0] == [order[1]]


@pytest.mark.usefixtures("each_core")
def test_it_tells_what_is_in_use_found_again_used_last_and_evicted_next() -> None:
    cache = PrefixCache(num_pages=64, page_tokens=PAGE_TOKENS)
    cache.tell_time(10.0)
    serve(cache, range(8))
    cache.tell_time(20.0)
    serve(cache, range(100, 108))
    cache.tell_time(30.0)
    lease = start(cache, range(9))
    root, *others = cache.outline().entries.tolist()
    old, new = sorted(others, key=lambda entry: entry[Column.USED_MS])
    assert (root[Column.USED_MS], old[Column.USED_MS], new[Column.USED_MS]) == (20_000, 10_000, 20_000)
    assert (old[Column.HELD], new[Column.HELD]) == (8, 0)
    assert (old[Column.VICTIM], new[Column.VICTIM]) == (-1, 0)
    cache.release(lease, ids(range(9)))
    root, *others = cache.outline().entries.tolist()
    assert root[Column.HITS] == 1
    assert root[Column.USED_MS] == 30_000


@pytest.mark.usefixtures("each_core")
def test_an_outline_begins_where_it_is_asked_to_and_is_empty_where_nothing_is_cached() -> None:
    cache = PrefixCache(num_pages=64, page_tokens=PAGE_TOKENS)
    serve(cache, [*range(8), *range(20, 28)])
    serve(cache, [*range(8), *range(30, 38)])
    shared = next(
        entry for entry in cache.outline().entries.tolist() if entry[Column.TOTAL] == 24 and entry[Column.TOKENS]
    )
    below = cache.outline(WHOLE._replace(under=shared[Column.PAGE]))
    assert column(below, Column.ABOVE) == [-1, 0, 0]
    assert column(below, Column.TOKENS) == [8, 8, 8]
    for nowhere in (60, 64, 999_999, 2**31 - 1, -1):
        assert not len(cache.outline(WHOLE._replace(under=nowhere)).entries)


@pytest.mark.usefixtures("each_core")
def test_the_first_tokens_of_a_node_are_read_by_its_page_and_its_digest_tells_whether_it_is_still_the_same() -> None:
    cache = PrefixCache(num_pages=64, page_tokens=PAGE_TOKENS)
    serve(cache, range(8))
    entry = cache.outline().entries.tolist()[1]
    run = cache.run_of(entry[Column.PAGE], 6)
    assert run is not None
    assert (run.start, run.num_tokens, run.digest) == (0, 8, entry[Column.DIGEST])
    assert run.first == ids(range(6)).tobytes()
    cache.flush()
    assert cache.run_of(entry[Column.PAGE], 6) is None
    for page in (-1, 64, 1 << 40):
        assert cache.run_of(page, 6) is None
    serve(cache, range(50, 58))
    again = cache.run_of(entry[Column.PAGE], 6)
    assert again is None or again.digest != entry[Column.DIGEST]
