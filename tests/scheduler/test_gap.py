"""The gap report of a scheduler: shares by owner, windows, namespaces."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radix.journal import hash_of_namespace
from scheduler.config import SchedulerConfig
from scheduler.gap import MOST_NAMESPACES, OTHERS, GapMeter
from tests.scheduler.harness import Harness, make_harness
from wire.gap import Gap


def meter_of(harness: Harness) -> GapMeter:
    assert harness.state.gap is not None
    return harness.state.gap


def since_start(harness: Harness) -> Gap:
    return meter_of(harness).report(now_s=harness.now_s).windows[-1].all


def ask(harness: Harness, prompt: list[int], *, salt: str = "", max_new_tokens: int = 1) -> list[int]:
    """Have a prompt answered; returns what was sampled."""
    request_id = f"r{harness.state.counters.requests_total}"
    harness.submit(request_id, prompt, salt=salt, max_new_tokens=max_new_tokens)
    harness.run()
    return harness.outputs[request_id]


def lost_by(gap: Gap) -> dict[str, float]:
    assert gap.lost is not None
    lost = {name: getattr(gap.lost, name) for name in ("workload", "capacity", "policy", "restart")}
    assert sum(lost.values()) == pytest.approx(1 - gap.hit)
    return {name: share for name, share in lost.items() if share > 1e-9}


def test_what_nobody_has_asked_before_is_the_workloads_loss() -> None:
    harness = make_harness(num_pages=5, page_tokens=4)
    one, other = list(range(10, 23)), list(range(30, 43))
    for prompt in (one, other, one, other):
        ask(harness, prompt)
    gap = since_start(harness)
    # Three whole pages each: beside one of the prompts two pages of the other have room.
    assert (gap.ceiling, gap.oracle, gap.lru_double) == pytest.approx((24 / 52, 16 / 52, 24 / 52))
    assert gap.hit < 16 / 52
    assert lost_by(gap) == pytest.approx({"workload": 28 / 52, "capacity": 8 / 52, "policy": 16 / 52 - gap.hit})


def test_what_a_flush_has_taken_is_lost_to_the_restart() -> None:
    harness = make_harness(num_pages=64, page_tokens=4)
    prompt = list(range(10, 23))
    ask(harness, prompt)
    harness.state.cache.flush()
    meter_of(harness).flushed()
    ask(harness, prompt)
    assert lost_by(since_start(harness)) == pytest.approx({"workload": 14 / 26, "restart": 12 / 26})
    ask(harness, prompt)
    assert lost_by(since_start(harness))["restart"] == pytest.approx(12 / 39)


def test_a_window_forgets_what_came_before_it() -> None:
    harness = make_harness(num_pages=64, page_tokens=4)
    ask(harness, list(range(10, 23)))
    harness.now_s += 1200
    minutes, hour, always = meter_of(harness).report(now_s=harness.now_s).windows
    assert (minutes.seconds, hour.seconds, always.seconds) == (600, 3600, None)
    assert (minutes.all.requests, hour.all.requests, always.all.requests) == (0, 1, 1)
    harness.now_s += 7200
    ask(harness, list(range(10, 23)))
    minutes, hour, always = meter_of(harness).report(now_s=harness.now_s).windows
    assert (minutes.all.requests, hour.all.requests, always.all.requests) == (1, 1, 2)
    assert minutes.all.hit == pytest.approx(12 / 13)


def test_namespaces_are_told_apart_without_their_salts_and_there_are_never_too_many() -> None:
    harness = make_harness(num_pages=64, page_tokens=4)
    prompt = list(range(10, 23))
    for salt in ["", "", *(f"tenant {i}" for i in range(MOST_NAMESPACES + 5))]:
        ask(harness, prompt, salt=salt)
    namespaces = meter_of(harness).report(now_s=harness.now_s).windows[-1].namespaces
    assert len(namespaces) == MOST_NAMESPACES + 1
    assert not any("tenant" in name for name in namespaces)
    (space, *_) = (space for space in harness.state.cache.core.picture().roots if space.salt)
    guessed = {f"{hash_of_namespace(space._replace(salt=f'tenant {i}')):016x}" for i in range(9)}
    assert guessed.isdisjoint(namespaces), "whoever guesses a salt must not be able to check it"
    assert (namespaces["default"].requests, namespaces[OTHERS].requests) == (2, 6)
    assert namespaces["default"].hit == pytest.approx(12 / 26)


def test_it_can_be_switched_off() -> None:
    harness = make_harness(config=SchedulerConfig(gap_report=False))
    assert harness.state.gap is None
    assert ask(harness, [1, 2, 3])


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from([0, 1, 2]), st.integers(1, 30), st.integers(1, 12), st.sampled_from(["", "a"])),
        min_size=1,
        max_size=25,
    )
)
def test_whatever_comes_each_lost_token_has_one_owner(requests: list[tuple[int, int, int, str]]) -> None:
    harness = make_harness(num_pages=16, page_tokens=4)
    for number, (subject, length, output, salt) in enumerate(requests):
        prompt = [subject, *range(10, 10 + length)]
        harness.submit(f"r{number}", prompt, salt=salt, max_new_tokens=output)
        if number % 3 == 0:
            harness.run()
    harness.run()
    report = meter_of(harness).report(now_s=harness.now_s)
    counters = harness.state.counters
    whole = report.windows[-1].all
    assert (whole.requests, whole.prompt_tokens) == (len(requests), counters.prompt_tokens_total)
    assert whole.hit == pytest.approx(counters.cached_tokens_total / counters.prompt_tokens_total)
    for window in report.windows:
        for gap in (window.all, *window.namespaces.values()):
            if gap.lost is not None:
                assert all(share > 0 for share in lost_by(gap).values())
                assert gap.lru_half is not None
                assert gap.ceiling is not None
                assert gap.lru is not None
                assert gap.lru_half <= gap.lru + 1e-9
                assert gap.lru <= gap.ceiling + 1e-9
