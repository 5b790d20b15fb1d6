"""Sessions: who goes on with which, and whether it will find its pages again."""

from __future__ import annotations

import pytest

from radix.outline import Column
from scheduler.config import SchedulerConfig
from scheduler.leave import end
from scheduler.sessions import MAX_SESSIONS, Sessions
from tests.scheduler.harness import Harness, make_harness
from wire.sessions import Chance, SessionState

LONG = [*range(3, 43)]
OTHER = [46, 47, 48, 49, 46, 47]
NEXT = 44


class Served:
    """A scheduler whose requests end at once, on a clock that is set by hand."""

    def __init__(self, *, num_pages: int = 64) -> None:
        self.harness: Harness = make_harness(num_pages=num_pages, page_tokens=4)
        journal = self.harness.state.journal
        self.now_s = journal.clock()
        journal.clock = lambda: self.now_s
        assert self.harness.state.sessions is not None
        self.sessions: Sessions = self.harness.state.sessions

    def ask(self, request_id: str, prompt: list[int], *, num_output: int = 2) -> list[int]:
        """Serve a request; returns its prompt and answer."""
        self.harness.submit(request_id, prompt, max_new_tokens=num_output)
        self.harness.run()
        self.harness.check()
        return [*prompt, *self.harness.outputs[request_id]]

    def chance(self, request_id: str) -> Chance:
        chance = self.harness.reuses[request_id].session
        assert chance is not None
        return chance

    def states(self) -> dict[str, SessionState]:
        return {state.request_id: state for state in self.sessions.states(None)}

    def fill(self, num_pages: int) -> None:
        self.ask(f"filler {self.now_s}", [1 + int(self.now_s) % 2] * (4 * num_pages), num_output=1)


def test_a_request_that_goes_on_with_an_answer_is_the_sessions_next_and_takes_its_place() -> None:
    served = Served()
    first = served.ask("a", LONG)
    second = served.ask("b", [*first, NEXT, NEXT])
    served.ask("c", [*second, NEXT])
    assert [served.chance(name).num_requests for name in "abc"] == [1, 2, 3]
    (state,) = served.sessions.states(None)
    assert (state.request_id, state.num_requests, state.prompt_tokens) == ("c", 3, len(second) + 1)
    assert state.tokens_in_cache == (len(second) + 2) // 4 * 4


def test_an_answer_that_the_template_writes_differently_still_goes_on_with_its_session() -> None:
    served = Served()
    served.ask("a", LONG, num_output=8)
    served.ask("b", [*LONG, *OTHER])
    assert served.chance("b").num_requests == 2


def test_chats_that_share_their_beginning_are_sessions_of_their_own() -> None:
    served = Served()
    served.ask("a", [*LONG, *reversed(OTHER)])
    served.ask("b", [*LONG, *OTHER])
    assert set(served.states()) == {"a", "b"}, "six tokens apart"
    assert served.chance("b").num_requests == 1


def test_what_was_evicted_comes_back_as_the_same_session() -> None:
    served = Served(num_pages=16)
    first = served.ask("a", LONG)
    served.now_s += 5
    served.fill(15)
    assert served.states()["a"].survival == 0
    assert served.states()["a"].tokens_in_cache < len(LONG)
    served.now_s += 5
    served.ask("b", [*first, NEXT])
    assert served.chance("b").num_requests == 2
    assert served.states()["b"].expected_return_s is not None


def test_the_chance_is_the_share_of_pauses_that_end_before_the_belt_carries_the_pages_off() -> None:
    served = Served(num_pages=64)
    chat = served.ask("0", LONG)
    for i in range(1, 9):
        served.now_s += 1.0
        chat = served.ask(str(i), [*chat, NEXT])
    quick = served.chance("8")
    assert quick.survival is not None
    assert quick.survival > 0.9, "it came back within a second each time, and pages stay for longer"
    assert quick.expected_return_s == pytest.approx(1.0, rel=0.5)
    # A new session is thought to pause as all do.
    served.ask("new", [2] * 12)
    assert served.chance("new").survival == pytest.approx(quick.survival, abs=0.2)


def test_a_session_that_pauses_long_has_less_of_a_chance_than_one_that_does_not() -> None:
    served = Served(num_pages=64)
    slow, quick = served.ask("slow 0", LONG), served.ask("quick 0", [*reversed(LONG)])
    for i in range(1, 7):
        served.now_s += 1
        quick = served.ask(f"quick {i}", [*quick, NEXT])
        served.now_s += 100
        slow = served.ask(f"slow {i}", [*slow, NEXT])
        quick = served.ask(f"quick {i}+", [*quick, NEXT])
    slow_chance, quick_chance = served.chance("slow 6"), served.chance("quick 6+")
    assert slow_chance.expected_return_s is not None is not quick_chance.expected_return_s
    assert slow_chance.expected_return_s > quick_chance.expected_return_s


def test_as_a_session_stays_away_its_chance_falls_to_nothing_at_the_end_of_the_belt() -> None:
    served = Served(num_pages=64)
    chat = served.ask("a", LONG)
    for i, pause_s in enumerate((1, 30, 2, 25, 3, 300)):
        served.now_s += pause_s
        chat = served.ask(f"a{i}", [*chat, NEXT])
    chances = []
    for i in range(40):
        chances.append(served.states()["a5"].survival)
        served.now_s += 10
        served.ask(f"other {i}", [43, 3 + i, 5, 6, 7, 8, 9, 10], num_output=1)
    assert chances[0] is not None
    assert chances[0] > 0.5
    assert chances[-1] == 0
    assert served.states()["a5"].tokens_in_cache < len(chat)


def test_the_sessions_through_a_node_are_those_whose_path_has_its_first_page() -> None:
    served = Served()
    served.ask("a", [*LONG, *reversed(OTHER)])
    served.ask("b", [*LONG, *OTHER])
    served.ask("other", [2] * 20)
    cache = served.harness.state.cache
    outline = cache.outline().entries.tolist()
    shared = next(
        entry for entry in outline if entry[Column.PAGE] >= 0 and entry[Column.TOTAL] > 2 * len(LONG[:36]) / 2
    )
    assert {each.request_id for each in served.sessions.states(shared[Column.PAGE])} == {"a", "b"}
    assert served.sessions.states(9_999) == ()


def test_a_request_that_left_nothing_is_no_session_and_only_the_last_ones_are_kept() -> None:
    served = Served()
    served.harness.submit("gone", LONG, max_new_tokens=2)
    served.harness.send_plan()
    assert set(served.states()) == {"gone"}
    served.harness.take([end(served.harness.state, served.harness.state.running["gone"].request, "broken")])
    assert not served.states()
    for i in range(MAX_SESSIONS + 5):
        served.harness.submit(str(i), [3 + i % 40, 3 + i // 40, 5, 6, 7], max_new_tokens=1)
        served.harness.run()
    assert len(served.sessions) <= MAX_SESSIONS


def test_figures_count_the_sessions_that_are_not_running() -> None:
    served = Served(num_pages=16)
    first = served.ask("a", LONG)
    counts = served.sessions.counts()
    assert sum((counts.gone, counts.unlikely, counts.likely, counts.safe, counts.unknown)) == 1
    served.now_s += 5
    served.fill(15)
    assert served.sessions.counts().gone >= 1
    served.ask("b", first)


def test_nobody_is_remembered_unless_it_is_wished_for() -> None:
    assert make_harness(config=SchedulerConfig(explain_misses=False)).state.sessions is None
