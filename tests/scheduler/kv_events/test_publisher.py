"""An index that is rebuilt from snapshot, events and replays over real sockets equals the tree."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import zmq
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import rule

from radix.cache import PrefixCache
from radix.journal import Journal
from scheduler.config import KvEventsConfig
from scheduler.kv_events import publisher as publishers
from scheduler.kv_events.publisher import CannotPublish, Publisher
from tests.deadline import DEADLINE_S
from tests.radix.serving import OTHER, serve, start
from tests.radix.test_cache_model import CacheMachine
from tests.radix.test_journal import hashes_in_tree
from tests.scheduler.kv_events.index import Path as Prefix
from tests.scheduler.kv_events.index import Subscriber


def _config(directory: Path, *, kept: int = 100, form: str = "vllm", topic: str = "") -> KvEventsConfig:
    return KvEventsConfig(
        kv_events=f"ipc://{directory}/events",
        kv_events_replay=f"ipc://{directory}/replay",
        kv_events_kept=kept,
        kv_events_format=form,
        kv_events_topic=topic,
    )


def _subscriber(config: KvEventsConfig, publisher: Publisher, *, is_deaf: bool = False) -> Subscriber:
    """One that is deaf hears of nothing that it does not ask for."""
    topic = "elsewhere" if is_deaf else config.kv_events_topic
    assert config.kv_events is not None
    assert config.kv_events_replay is not None
    return Subscriber(config.kv_events, config.kv_events_replay, topic=topic, serve=publisher.answer)


def _prefixes(cache: PrefixCache) -> set[Prefix]:
    """Every cached prefix in whole pages, by the tree's own picture."""
    found: set[Prefix] = set()
    for namespace, root in cache.core.picture().roots.items():
        stack: list[tuple[object, tuple[int, ...]]] = [(root, ())]
        while stack:
            node, above = stack.pop()
            key = () if node.is_donor else tuple(memoryview(bytes(node.key)).cast("i"))  # type: ignore[attr-defined]
            size = cache.page_tokens
            found |= {(namespace.salt, above + key[:end]) for end in range(size, len(key) + 1, size)}
            stack += [(child, above + key) for child in node.children.values()]  # type: ignore[attr-defined]
    return found


class EventsMachine(CacheMachine):
    """Any history of a cache, and subscribers that come late, lose messages and catch up."""

    kept = 4

    def make_cache(self, num_pages: int, page_tokens: int) -> PrefixCache:
        cache = PrefixCache(num_pages=num_pages, page_tokens=page_tokens)
        self.directory = Path(tempfile.mkdtemp(prefix="axil-events-"))
        self.config = _config(self.directory, kept=self.kept)
        self.publisher = Publisher(self.config, Journal(cache), num_pages=num_pages)
        self.subscribers = [_subscriber(self.config, self.publisher)]
        return cache

    @rule()
    def publish(self) -> None:
        self.publisher.publish()

    @rule(has_snapshot=st.booleans())
    def join(self, has_snapshot: bool) -> None:
        if len(self.subscribers) < 3:
            self.subscribers.append(_subscriber(self.config, self.publisher))
            if has_snapshot:
                self.subscribers[-1].take_snapshot()
                self._compare(self.subscribers[-1])

    @rule(pick=st.integers(0, 100))
    def lose(self, pick: int) -> None:
        self.subscribers[pick % len(self.subscribers)].lose()

    @rule(pick=st.integers(0, 100))
    def catch_up(self, pick: int) -> None:
        subscriber = self.subscribers[pick % len(self.subscribers)]
        subscriber.catch_up()
        self._compare(subscriber)

    def _compare(self, subscriber: Subscriber) -> None:
        assert sorted(subscriber.index.blocks) == hashes_in_tree(self.cache)
        assert subscriber.index.paths() == _prefixes(self.cache)

    def teardown(self) -> None:
        if not hasattr(self, "publisher"):
            return
        try:
            for subscriber in self.subscribers:
                subscriber.catch_up()
                self._compare(subscriber)
        finally:
            for subscriber in self.subscribers:
                subscriber.close()
            self.publisher.close()
            shutil.rmtree(self.directory)


EventsMachine.TestCase.settings = settings(CacheMachine.TestCase.settings, max_examples=40)
TestIndex = EventsMachine.TestCase


class Bed:
    """A cache whose events are published."""

    def __init__(self, config: KvEventsConfig, *, num_pages: int, is_deaf: bool) -> None:
        self.config = config
        self.cache = PrefixCache(num_pages=num_pages, page_tokens=2)
        self.publisher = Publisher(config, Journal(self.cache), num_pages=num_pages)
        self.subscriber = _subscriber(config, self.publisher, is_deaf=is_deaf)
        self.served = 0

    def serve(self) -> None:
        """A new prompt of two pages."""
        self.served += 1
        serve(self.cache, [self.served, 1, 2, 3])
        self.publisher.publish()

    def until_heard(self) -> None:
        """Publish until the subscription has arrived, which PUB does not tell of."""
        deadline = time.monotonic() + DEADLINE_S
        while (message := self.subscriber.received(within_s=0.01)) is None:
            assert time.monotonic() < deadline
            self.serve()
        self.subscriber.hear(*message)

    def is_equal(self) -> bool:
        return self.subscriber.index.paths() == _prefixes(self.cache)


@contextmanager
def _bed(config: KvEventsConfig, *, num_pages: int = 32, is_deaf: bool = False) -> Iterator[Bed]:
    bed = Bed(config, num_pages=num_pages, is_deaf=is_deaf)
    try:
        yield bed
    finally:
        bed.subscriber.close()
        bed.publisher.close()


@pytest.mark.parametrize("form", ["vllm", "vllm-array"])
def test_what_is_published_comes_in_order_and_without_asking(tmp_path: Path, form: str) -> None:
    with _bed(_config(tmp_path, form=form, topic="kv@here@model")) as bed:
        bed.until_heard()
        bed.subscriber.lose()
        bed.subscriber.take_snapshot()
        first = bed.publisher.next_sequence
        for _ in range(3):
            bed.serve()
        serve(bed.cache, [1, 2, 3, 4, 5], OTHER)
        bed.publisher.publish()
        for sequence in range(first, first + 4):
            message = bed.subscriber.received()
            assert message is not None
            assert message[0] == sequence
            bed.subscriber.index.apply(*message)
        assert bed.is_equal()
        assert ("other", (1, 2, 3, 4)) in bed.subscriber.index.paths()


@pytest.mark.parametrize("form", ["vllm", "vllm-array"])
def test_a_gap_is_filled_by_the_very_messages_that_were_lost(tmp_path: Path, form: str) -> None:
    with _bed(_config(tmp_path, form=form)) as bed:
        bed.until_heard()
        bed.subscriber.catch_up()
        before = bed.subscriber.index.expected
        bed.serve()
        bed.serve()
        assert bed.subscriber.received() is not None  # and thrown away
        assert bed.subscriber.received() is not None
        bed.serve()
        message = bed.subscriber.received()
        assert message is not None
        assert message[0] == before + 2
        bed.subscriber.hear(*message)
        assert bed.subscriber.index.expected == before + 3
        assert bed.is_equal()


def test_who_asks_for_what_is_no_longer_kept_gets_all_of_it_anew(tmp_path: Path) -> None:
    with _bed(_config(tmp_path, kept=2), num_pages=8, is_deaf=True) as bed:
        for _ in range(10):  # more than the pool holds: the first prompts are evicted
            bed.serve()
        assert bed.subscriber.index.expected == 0
        bed.subscriber.catch_up()
        assert bed.subscriber.index.expected == 10
        assert bed.is_equal()


def test_who_has_fallen_behind_forgets_what_went_meanwhile(tmp_path: Path) -> None:
    with _bed(_config(tmp_path, kept=2), num_pages=8, is_deaf=True) as bed:
        bed.serve()
        bed.subscriber.catch_up()
        known = bed.subscriber.index.paths()
        for _ in range(10):
            bed.serve()
        assert not known & _prefixes(bed.cache)
        bed.subscriber.catch_up()
        assert bed.is_equal()


def test_a_snapshot_is_without_pages_that_were_given_to_a_running_request(tmp_path: Path) -> None:
    with _bed(_config(tmp_path), num_pages=8) as bed:
        for _ in range(4):
            bed.serve()
        start(bed.cache, range(100, 110))  # takes five pages, and has computed none of them yet
        bed.publisher.publish()
        bed.subscriber.take_snapshot()
        assert len(bed.subscriber.index.blocks) == 3
        assert bed.is_equal()


def test_what_is_kept_is_bounded_in_bytes_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publishers, "MAX_KEPT_BYTES", 500)
    with _bed(_config(tmp_path), is_deaf=True) as bed:
        for _ in range(10):
            bed.serve()
        assert 0 < len(bed.publisher._kept) < 5
        bed.subscriber.catch_up()
        assert bed.is_equal()


def test_replays_one_after_the_other_are_whole_however_few_messages_are_kept(tmp_path: Path) -> None:
    with _bed(_config(tmp_path, kept=4), is_deaf=True) as bed:
        for _ in range(4):
            bed.serve()
        for _ in range(50):
            bed.subscriber.index.expected = 0
            bed.subscriber.index.blocks.clear()
            bed.subscriber.catch_up()
            assert bed.is_equal()


def test_a_flush_empties_every_index(tmp_path: Path) -> None:
    with _bed(_config(tmp_path)) as bed:
        bed.serve()
        bed.subscriber.catch_up()
        assert bed.subscriber.index.blocks
        bed.cache.flush()
        bed.subscriber.catch_up()
        assert not bed.subscriber.index.blocks


def test_before_anything_was_published_there_is_nothing_to_replay(tmp_path: Path) -> None:
    with _bed(_config(tmp_path)) as bed:
        bed.subscriber.take_snapshot()
        bed.subscriber.catch_up()
        assert (bed.subscriber.index.expected, bed.subscriber.index.blocks) == (0, {})


def test_requests_that_make_no_sense_are_not_answered_and_do_no_harm(tmp_path: Path) -> None:
    with _bed(_config(tmp_path)) as bed, zmq.Context() as context, context.socket(zmq.DEALER) as asker:
        asker.setsockopt(zmq.LINGER, 0)
        assert bed.config.kv_events_replay is not None
        asker.connect(bed.config.kv_events_replay)
        for frames in ([b""], [b"", b"short"], [b"", b"0" * 8, b"more"], [b"", b"9" * 100_000]):
            asker.send_multipart(frames)
        bed.serve()
        bed.subscriber.catch_up()
        assert bed.is_equal()
        assert not asker.poll(50)


def test_however_many_ask_only_a_few_are_answered_between_two_steps(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    num_asked = 3 * publishers.MOST_ANSWERED
    with _bed(_config(tmp_path)) as bed, zmq.Context() as context, context.socket(zmq.DEALER) as asker:
        asker.setsockopt(zmq.LINGER, 0)
        assert bed.config.kv_events_replay is not None
        assert bed.publisher.replay is not None
        asker.connect(bed.config.kv_events_replay)
        for _ in range(num_asked):
            asker.send_multipart([b"", bytes(8)])
            asker.send_multipart([b"junk"])
        num_turns = num_answered = 0
        while num_answered < num_asked:
            assert bed.publisher.replay.poll(1000 * DEADLINE_S), "what was left is not heard of again"
            bed.publisher.answer()
            num_turns += 1
            while asker.poll(20):
                asker.recv_multipart()
                num_answered += 1
        assert num_turns >= 2 * num_asked // publishers.MOST_ANSWERED
        assert len(caplog.records) == 1, "each junk has a line"


@pytest.mark.parametrize("sequence", [1_000, 2**63, 2**64 - 2])
def test_who_asks_for_what_is_yet_to_come_is_answered_with_nothing(tmp_path: Path, sequence: int) -> None:
    with _bed(_config(tmp_path)) as bed:
        bed.serve()
        bed.publisher.publish()
        before = bed.subscriber.index.expected
        bed.subscriber.ask(sequence.to_bytes(8, "big"))
        assert bed.subscriber.index.expected == before
        bed.subscriber.catch_up()
        assert bed.is_equal()


def test_an_address_in_use_is_told_with_the_flag_that_named_it(tmp_path: Path) -> None:
    with _bed(KvEventsConfig(kv_events="tcp://127.0.0.1:0", kv_events_replay=f"ipc://{tmp_path}/r")) as bed:
        assert bed.publisher._pub is not None
        taken = bed.publisher._pub.getsockopt_string(zmq.LAST_ENDPOINT)
        with pytest.raises(CannotPublish, match=rf"--kv-events {taken} can't be bound: Address already in use"):
            Publisher(KvEventsConfig(kv_events=taken), Journal(PrefixCache(num_pages=4, page_tokens=2)), num_pages=4)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"kv_events": "5557"}, "--kv-events must be an address to bind, such as tcp"),
        ({"kv_events": "tcp://*:5557", "kv_events_replay": "udp://x"}, "--kv-events-replay must be an address"),
        ({"kv_events_replay": "tcp://*:5558"}, "--kv-events-replay needs --kv-events"),
        ({"kv_events": "tcp://*:1", "kv_events_replay": "tcp://*:1"}, "must differ"),
        ({"kv_events_kept": 0}, "--kv-events-kept must be at least 1"),
    ],
)
def test_wrong_flags_are_refused_at_start(flags: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        KvEventsConfig(**flags)  # type: ignore[arg-type]


def test_who_asks_and_never_reads_fills_no_memory_and_others_are_answered_once_it_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publishers, "MAX_UNREAD_BYTES", 1_000_000)
    made: list[int] = []
    whole = publishers.batch

    def batch(*arguments: object, **named: object) -> bytes:
        made.append(len(encoded := whole(*arguments, **named)))  # type: ignore[arg-type]
        return encoded

    monkeypatch.setattr(publishers, "batch", batch)
    config = _config(tmp_path)
    cache = PrefixCache(num_pages=4096, page_tokens=4)
    publisher = Publisher(config, Journal(cache), num_pages=4096)
    serve(cache, list(range(16_000)))
    publisher.publish()
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    try:
        greedy = context.socket(zmq.DEALER)
        greedy.setsockopt(zmq.RCVHWM, 1)
        greedy.connect(str(config.kv_events_replay))
        for _ in range(500):
            greedy.send_multipart([b"", publishers.ALL_ONES])
        deadline = time.monotonic() + DEADLINE_S
        while publisher._num_unread_bytes() <= publishers.MAX_UNREAD_BYTES:
            assert time.monotonic() < deadline, f"{len(made)} snapshots were made and read"
            publisher.answer()
        num_made = len(made)
        for _ in range(200):
            publisher.answer()
        assert len(made) <= num_made + 5 < 200
        greedy.close(linger=0)
        other = context.socket(zmq.DEALER)
        other.setsockopt(zmq.RCVTIMEO, 20)
        other.connect(str(config.kv_events_replay))
        answered = False
        while not answered:
            assert time.monotonic() < deadline, "who reads gets nothing"
            other.send_multipart([b"", publishers.ALL_ONES])
            publisher.answer()
            with suppress(zmq.Again):
                answered = bool(other.recv_multipart())
        other.close(linger=0)
    finally:
        context.destroy(linger=0)
        publisher.close()
