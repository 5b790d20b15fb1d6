"""The sockets of the KV events: PUB for what happens, ROUTER for what was missed. Knows no cache.

Messages of PUB are `topic, sequence, payload`; the sequence is a big-endian 64-bit number from 0 on. A request to
ROUTER is `"", sequence`, and is answered with every message from that one on, in the same three frames behind an empty
one, and last with the sequence of all ones. Whoever asks for what is no longer kept, or for the sequence of all ones,
gets a snapshot instead, under the sequence of the last message that it includes.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from itertools import islice
from typing import Any, NamedTuple

import zmq

from radix.journal import Journal
from scheduler.config import KvEventsConfig
from wire.sockets import has_frame

from .format import Event, batch
from .held import Held

log = logging.getLogger(__name__)

ALL_ONES = (-1).to_bytes(8, "big", signed=True)

MAX_KEPT_BYTES = 64 * 1024 * 1024
"""What is kept for replay, at most; the snapshot stands for what is older."""

MAX_UNREAD_BYTES = 256 * 1024 * 1024
"""What may lie in answers that nobody has read yet, of all askers together, before more is answered."""

MOST_ANSWERED = 4
"""Requests for a replay that are answered between two steps, at most."""


class _Answer(NamedTuple):
    """An answer on its way: the tracker of its last message, and what its messages hold."""

    last: zmq.MessageTracker
    num_bytes: int


class CannotPublish(Exception):
    """The sockets can't be had as the flags say."""


class Publisher:
    """Publishes what a journal tells, a batch at a time; listens to it from the start."""

    def __init__(self, config: KvEventsConfig, journal: Journal, *, num_pages: int) -> None:
        """Bind the sockets.

        Raises:
            CannotPublish: says which flag to change.
        """
        self._config = config
        self._topic = config.kv_events_topic.encode()
        self._kept: deque[tuple[bytes, bytes]] = deque()
        self._kept_bytes = 0
        self.next_sequence = 0
        self._has_warned = False
        self._unread: deque[_Answer] = deque()
        self._is_holding_back = False
        self._context: zmq.Context[Any] = zmq.Context()
        try:
            self._pub = self._bound(zmq.PUB, "kv_events", config.kv_events)
            self.replay = self._bound(zmq.ROUTER, "kv_events_replay", config.kv_events_replay)
        except CannotPublish:
            self._context.destroy(linger=0)
            raise
        self._held = Held(num_pages=num_pages, page_tokens=journal.page_tokens)
        journal.subscribe(self._held.hear)

    def _bound(self, kind: int, name: str, endpoint: str | None) -> zmq.Socket[Any] | None:
        if endpoint is None:
            return None
        socket: zmq.Socket[Any] = self._context.socket(kind)
        # A whole replay fits, also when half of what was read before has not been acknowledged, as ZMQ counts it. What
        # a reader leaves lying beyond that is dropped, and it will find the gap.
        socket.setsockopt(zmq.SNDHWM, 2 * (self._config.kv_events_kept + 2))
        socket.setsockopt(zmq.LINGER, 0)
        socket.copy_threshold = 0  # so that a tracker tells when the last message of an answer has left
        try:
            socket.bind(endpoint)
        except zmq.ZMQError as error:
            flag = f"--{name.replace('_', '-')}"
            raise CannotPublish(f"{flag} {endpoint} can't be bound: {error}. Choose another, or none.") from error
        return socket

    def publish(self) -> None:
        """Send what has happened since the last call, as one message."""
        events = self._held.take()
        if not events or self._pub is None:
            return
        message = self._encoded(events, self.next_sequence)
        self.next_sequence += 1
        self._pub.send_multipart([self._topic, *message])
        self._keep(message)

    def answer(self) -> None:
        """Answer those who have missed something, a few at a time: however many ask, steps go on in between."""
        if self.replay is None:
            return
        for _ in range(MOST_ANSWERED):
            if not has_frame(self.replay):
                return
            identity, *rest = self.replay.recv_multipart(zmq.NOBLOCK)
            if len(rest) != 2 or len(rest[1]) != 8:
                if not self._has_warned:
                    log.warning("a request for a replay must be an empty frame and 8 bytes, got %d frames", len(rest))
                self._has_warned = True
                continue
            self.publish()
            if self._has_too_much_unread():
                continue
            self._answer(identity, self._missed(rest[1]))

    def close(self) -> None:
        """Free the addresses."""
        self._context.destroy(linger=0)

    def _missed(self, asked: bytes) -> list[tuple[bytes, bytes]]:
        if not self.next_sequence:
            return []
        first_kept = self.next_sequence - len(self._kept)
        first = int.from_bytes(asked, "big")
        if asked == ALL_ONES or first < first_kept:
            return [self._encoded(self._held.snapshot(), self.next_sequence - 1)]
        return list(islice(self._kept, min(first, self.next_sequence) - first_kept, None))

    def _answer(self, identity: bytes, messages: list[tuple[bytes, bytes]]) -> None:
        for message in messages:
            self._reply(identity, self._topic, *message)
        tracker = self._reply(identity, b"", ALL_ONES, b"")
        self._unread.append(_Answer(tracker, sum(len(payload) for _, payload in messages)))

    def _reply(self, identity: bytes, *frames: bytes) -> zmq.MessageTracker:
        assert self.replay is not None
        shown = frames if self._config.kv_events_format == "vllm" else frames[1:]  # older vLLM sends no topic here
        tracker = self.replay.send_multipart([identity, b"", *shown], copy=False, track=True)
        assert tracker is not None
        return tracker

    def _num_unread_bytes(self) -> int:
        self._unread = deque(answer for answer in self._unread if not answer.last.done)
        return sum(answer.num_bytes for answer in self._unread)

    def _has_too_much_unread(self) -> bool:
        """Whether askers must wait until others have read; says so when that begins."""
        num_bytes = self._num_unread_bytes()
        is_too_much = num_bytes > MAX_UNREAD_BYTES
        if is_too_much and not self._is_holding_back:
            log.warning("no replay is sent while others have answers unread unread_bytes=%d", num_bytes)
        self._is_holding_back = is_too_much
        return is_too_much

    def _encoded(self, events: list[Event], sequence: int) -> tuple[bytes, bytes]:
        payload = batch(events, time_s=time.time(), form=self._config.kv_events_format)
        return sequence.to_bytes(8, "big"), payload

    def _keep(self, message: tuple[bytes, bytes]) -> None:
        self._kept.append(message)
        self._kept_bytes += len(message[1])
        while len(self._kept) > self._config.kv_events_kept or self._kept_bytes > MAX_KEPT_BYTES:
            self._kept_bytes -= len(self._kept.popleft()[1])
