from __future__ import annotations

import pytest

from radix.cache import Namespace
from scheduler import intake
from scheduler.config import SchedulerConfig
from tests.radix.serving import ids
from tests.scheduler.harness import CLIENT, Harness, make_harness
from wire.messages.encoding import ids_to_bytes
from wire.messages.to_scheduler import Submit
from wire.sampling import SamplingParams


def submit(harness: Harness, request_id: str, prompt: list[int], *, priority: int = 0, ttl_s: float = 0.0) -> None:
    message = Submit(
        request_id=request_id,
        token_ids=ids_to_bytes(prompt),
        sampling=SamplingParams(max_new_tokens=1, temperature=0.0, seed=0),
        cache_priority=priority,
        cache_ttl_s=ttl_s,
    )
    assert not intake.submit(harness.state, CLIENT, message, now_s=harness.now_s)
    harness.run()


def cached_after_a_burst(harness: Harness, prompt: list[int]) -> int:
    for token in range(20, 26):
        submit(harness, str(token), [token] * 8)
    namespace = Namespace(harness.state.limits.model_fingerprint, None, "")
    return harness.state.cache.match_pages(namespace, ids(prompt))


@pytest.mark.parametrize(("priority", "ttl_s", "kept"), [(0, 0.0, 0), (2, 0.0, 8), (0, 1e6, 8), (0, 1e-9, 0)])
def test_what_a_request_wishes_for_its_pages_is_weighed_when_others_need_room(
    priority: int, ttl_s: float, kept: int
) -> None:
    harness = make_harness(num_pages=8, page_tokens=4)
    submit(harness, "first", [10] * 8, priority=priority, ttl_s=ttl_s)
    harness.now_s += 1
    assert cached_after_a_burst(harness, [10] * 8) == kept


def test_the_eviction_policy_is_the_one_that_was_asked_for() -> None:
    harness = make_harness(num_pages=8, page_tokens=4, config=SchedulerConfig(eviction="cost"))
    for request_id in ("a", "b", "c", "d", "e", "f"):
        submit(harness, request_id, [10] * 8)
    assert cached_after_a_burst(harness, [10] * 8) == 8
