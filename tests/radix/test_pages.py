from __future__ import annotations

import logging

import pytest

from radix.pages import OutOfPages, Owner, PageId, PagePool


def test_allocating_more_than_is_free_says_how_many_there_are_and_changes_nothing() -> None:
    pool = PagePool(4)
    pool.allocate(1)
    with pytest.raises(OutOfPages, match="4 pages needed, 3 free") as raised:
        pool.allocate(4)
    assert (raised.value.needed, raised.value.available) == (4, 3)
    assert sorted(pool.allocate(3)) == [1, 2, 3]


def test_a_page_freed_twice_is_set_aside_and_never_given_out_again(caplog: pytest.LogCaptureFixture) -> None:
    pool = PagePool(3)
    pages = pool.allocate(2)
    pool.free(pages[:1], Owner.REQUEST)
    with caplog.at_level(logging.ERROR):
        pool.free(pages[:1], Owner.REQUEST)
    assert pool.owner_of(pages[0]) == Owner.QUARANTINED
    assert pool.mismatches_total == 1
    assert f"page={pages[0]}" in caplog.text
    assert "free by request" in caplog.text
    assert pool.allocate(1).tolist() == [2]
    assert [pool.num_owned(owner) for owner in Owner] == [0, 2, 0, 1]
    with pytest.raises(OutOfPages):
        pool.allocate(1)


def test_a_quarantined_page_stays_aside_when_its_holder_gives_it_back() -> None:
    pool = PagePool(2)
    pages = pool.allocate(2)
    pool.quarantine(pages[0], "test")
    pool.free(pages, Owner.REQUEST)
    assert not pool.adopt(pages[:1])
    assert pool.free_ids.tolist() == [pages[1]]
    assert pool.mismatches_total == 1


def test_events_of_a_page_are_told_in_order_and_only_its_own() -> None:
    pool = PagePool(2)
    pages = pool.allocate(2)
    pool.adopt(pages[:1])
    pool.free(pages[:1], Owner.TREE)
    assert pool.events_of(PageId(0)) == ["0:allocate", "1:adopt", "2:free by tree"]
    assert pool.events_of(PageId(1)) == ["0:allocate"]
