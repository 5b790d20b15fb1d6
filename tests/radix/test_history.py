from __future__ import annotations

from array import array

from radix.history import Eviction, History
from radix.journal import Removed, Stored, TailRemoved
from tests.radix.serving import CHAT


def removed(*hashes: int, holder: str = "", time_s: float = 0.0) -> Removed:
    return Removed(hashes=[*hashes], page_ids=array("i"), used_s=[0.0] * len(hashes), holder=holder, time_s=time_s)


def stored(*hashes: int) -> Stored:
    return Stored(
        namespace=CHAT, parent_hash=None, hashes=[*hashes], page_ids=array("i"), token_ids=b"", holder="", time_s=0.0
    )


def test_the_last_eviction_of_a_page_is_the_one_that_is_told() -> None:
    history = History(capacity=4)
    history.hear(removed(1, holder="a", time_s=1.0))
    history.hear(stored(1))
    assert history.find(1) is None
    history.hear(removed(1, holder="b", time_s=2.0))
    assert history.find(1) == Eviction(2.0, 0.0, "b")


def test_a_page_that_came_back_and_went_again_is_among_the_last_that_went() -> None:
    history = History(capacity=2)
    history.hear(removed(1))
    history.hear(removed(2))
    history.hear(stored(1))
    history.hear(removed(1))
    history.hear(removed(3))
    assert (history.find(2), len(history)) == (None, 2)
    assert history.find(1) is not None


def test_of_partly_filled_pages_that_went_the_last_with_the_same_first_token_is_found_as_far_as_it_is_equal() -> None:
    def tail(*tokens: int) -> bytes:
        return array("i", tokens).tobytes()

    history = History(capacity=16)
    for i, tokens in enumerate(((5, 6, 7), (5, 8), (9, 9), (4, 4))):
        history.hear(TailRemoved(before=1, tail=tail(*tokens), used_s=0.0, holder="a", time_s=float(i)))
    assert history.find_tail(1, tail(9, 9, 3)) == (2, Eviction(2.0, 0.0, "a"))
    assert history.find_tail(1, tail(5, 8)) is None, "only the last two are kept"
    assert history.find_tail(2, tail(9, 9)) is None
