"""An index that follows a real server by its sockets equals the server's tree."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from xxhash import xxh3_64_intdigest

from tests.deadline import DEADLINE_S
from tests.e2e.server import Server, wait_until
from tests.scheduler.kv_events.index import Subscriber

pytestmark = pytest.mark.e2e

PAGE_TOKENS = 16
POOL_TOKENS = 2000
Start = Callable[..., Server]


@pytest.fixture
def addresses(tmp_path: Path) -> tuple[str, str]:
    return f"ipc://{tmp_path}/events", f"ipc://{tmp_path}/replay"


@pytest.fixture
def server(start: Start, tiny_model: Path, addresses: tuple[str, str]) -> Server:
    flags = ("--max-total-tokens", str(POOL_TOKENS), "--page-tokens", str(PAGE_TOKENS), "--kv-events-kept", "50")
    events = ("--kv-events", addresses[0], "--kv-events-replay", addresses[1])
    return start(str(tiny_model), "--dtype", "float32", *flags, *events).wait_ready()


@pytest.fixture
def subscriber(server: Server, addresses: tuple[str, str]) -> Iterator[Subscriber]:
    subscriber = Subscriber(*addresses)
    yield subscriber
    subscriber.close()


def _prompt(i: int) -> list[int]:
    shared = [(7 * j) % 90 for j in range(100)]
    return shared + [(i * 31 + j * j) % 90 for j in range(60 + 5 * (i % 7))]


def _serve(server: Server, i: int, **fields: object) -> tuple[int, ...]:
    """One request; gives prompt and answer, of which all but the last token is cached afterwards."""
    body = {"input_ids": _prompt(i), "sampling_params": {"temperature": 0, "max_new_tokens": 8, "ignore_eos": True}}
    answer = server.post("/generate", body | fields)
    assert answer.status == 200, answer.body
    return tuple(_prompt(i) + answer.json["output_ids"][:-1])


def _assert_equal(server: Server, subscriber: Subscriber) -> None:
    """The index holds as many blocks as the tree has whole pages, and a prompt's are found by the server."""
    subscriber.catch_up()
    paths = subscriber.index.paths()
    for path in sorted(paths, key=lambda each: len(each[1]))[-3:]:
        salt, token_ids = path
        body = {"input_ids": [*token_ids, 1], "sampling_params": {"max_new_tokens": 0}, "cache_salt": salt or None}
        found = server.post("/generate", body).json["meta_info"]["cached_tokens"]
        assert found >= len(token_ids), "the index says that a prefix is cached which is not"


def test_an_index_of_a_real_server_is_right_after_evictions_losses_and_a_flush(
    server: Server, subscriber: Subscriber, addresses: tuple[str, str]
) -> None:
    first = _serve(server, 0)
    subscriber.catch_up()
    whole = len(first) // PAGE_TOKENS * PAGE_TOKENS
    assert ("", first[:whole]) in subscriber.index.paths()
    _serve(server, 0, cache_salt="tenant")
    for i in range(1, 30):  # more than the pool holds
        served = _serve(server, i)
        if i % 5 == 0:
            subscriber.lose()
    assert server.figures()["evicted_pages_total"] > 0
    _assert_equal(server, subscriber)
    whole = len(served) // PAGE_TOKENS * PAGE_TOKENS
    assert ("", served[:whole]) in subscriber.index.paths()

    late = Subscriber(*addresses)
    try:
        late.take_snapshot()
        subscriber.catch_up()
        assert late.index.blocks == subscriber.index.blocks
        assert late.index.expected == subscriber.index.expected
    finally:
        late.close()

    assert server.post("/flush_cache", {}).status == 200
    subscriber.catch_up()
    assert not subscriber.index.blocks
    wait_until(
        lambda: server.metric("axil_kv_event_messages_total") == subscriber.index.expected, "the metric tells how many"
    )


def test_hashes_can_be_computed_again_from_what_the_documentation_says(server: Server, subscriber: Subscriber) -> None:
    fingerprint = server.get("/server_info").json["internal_states"][0]["model_fingerprint"]
    for fields, salt in (({}, ""), ({"cache_salt": "a tenant"}, "a tenant")):
        served = _serve(server, 1, **fields)
        subscriber.catch_up()
        before = xxh3_64_intdigest(json.dumps([fingerprint, None, salt], separators=(",", ":")).encode())
        for start in range(0, len(served) - PAGE_TOKENS + 1, PAGE_TOKENS):
            token_ids = served[start : start + PAGE_TOKENS]
            parent = before if start else None
            before = xxh3_64_intdigest(struct.pack(f"<{PAGE_TOKENS}i", *token_ids), before)
            assert subscriber.index.blocks[before] == (parent, token_ids, "" if start else salt)


def test_messages_come_by_themselves(server: Server, subscriber: Subscriber) -> None:
    message = None
    for i in range(50):
        _serve(server, i)
        if (message := subscriber.received(within_s=0.1)) is not None:
            break
    assert message is not None
    time_s, events, rank = msgspec.msgpack.decode(message[1])
    assert (rank, events[0]["block_size"], events[0]["medium"]) == (0, PAGE_TOKENS, "GPU")
    assert time_s > 1.7e9


def test_an_address_that_is_taken_ends_the_start_with_the_flag_that_named_it(
    start: Start, tiny_model: Path, server: Server
) -> None:
    other = start(str(tiny_model), "--kv-events", f"tcp://127.0.0.1:{server.port}")
    assert other.process.wait(DEADLINE_S) != 0
    assert f"--kv-events tcp://127.0.0.1:{server.port} can't be bound: Address already in use" in other.log
