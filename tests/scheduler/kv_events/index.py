"""An index of another process' cache, kept as docs/kv-events.md says; nothing of axil's own code is in it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import msgspec
import zmq

from tests.deadline import DEADLINE_S

SNAPSHOT = b"\xff" * 8
END = b"\xff" * 8

Path = tuple[str, tuple[int, ...]]
"""A salt, and the tokens from the start of a prompt up to the end of a block."""


class Index:
    """Blocks by their hash: that of the block before, the tokens, and the salt if it is a first one with a salt."""

    def __init__(self) -> None:
        self.blocks: dict[int, tuple[int | None, tuple[int, ...], str]] = {}
        self.expected = 0

    def apply(self, sequence: int, payload: bytes) -> None:
        for event in msgspec.msgpack.decode(payload)[1]:
            match event if isinstance(event, dict) else _named(event):
                case {
                    "type": "BlockStored",
                    "block_hashes": hashes,
                    "token_ids": token_ids,
                    "block_size": size,
                } as fields:
                    assert len(token_ids) == len(hashes) * size
                    keys = fields.get("extra_keys") or [None] * len(hashes)
                    before = fields["parent_block_hash"]
                    assert before is None or before in self.blocks, "a block came before the one that it follows"
                    for i, (block, key) in enumerate(zip(hashes, keys, strict=True)):
                        self.blocks[block] = before, tuple(token_ids[i * size : (i + 1) * size]), key[0] if key else ""
                        before = block
                case {"type": "BlockRemoved", "block_hashes": hashes}:
                    for block in hashes:
                        del self.blocks[block]
                case {"type": "AllBlocksCleared"}:
                    self.blocks.clear()
                case other:
                    raise AssertionError(f"an unknown event: {other}")
        self.expected = sequence + 1

    def paths(self) -> set[Path]:
        """Every cached prefix in whole blocks, written out."""
        return {self._path(block) for block in self.blocks}

    def _path(self, block: int) -> Path:
        before, token_ids, salt = self.blocks[block]
        if before is None:
            return salt, token_ids
        salt, above = self._path(before)
        return salt, above + token_ids


_FIELDS = {
    "BlockStored": (
        *("block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name"),
        "extra_keys",
    ),
    "BlockRemoved": ("block_hashes", "medium"),
    "AllBlocksCleared": (),
}


def _named(event: list[Any]) -> dict[str, Any]:
    kind, *values = event
    return {"type": kind, **dict(zip(_FIELDS[kind], values, strict=False))}


class Subscriber:
    """Follows a publisher by its sockets, and asks for what it has missed; `serve` lets the publisher answer."""

    def __init__(self, events: str, replay: str, *, topic: str = "", serve: Callable[[], None] = lambda: None) -> None:
        self.index = Index()
        self._serve = serve
        self._context: zmq.Context[Any] = zmq.Context()
        self._sub = self._context.socket(zmq.SUB)
        self._sub.setsockopt(zmq.SUBSCRIBE, topic.encode())
        self._sub.connect(events)
        self._asker = self._context.socket(zmq.DEALER)
        self._asker.connect(replay)

    def close(self) -> None:
        self._context.destroy(linger=0)

    def take_snapshot(self) -> None:
        self.ask(SNAPSHOT)

    def catch_up(self) -> None:
        """Apply what has come, then ask for everything behind it."""
        while (message := self.received(within_s=0)) is not None:
            self.hear(*message)
        self.ask(self.index.expected.to_bytes(8, "big"))

    def hear(self, sequence: int, payload: bytes) -> None:
        """Apply a message that is the next one; ask for those before it that are missing."""
        if sequence > self.index.expected:
            self.ask(self.index.expected.to_bytes(8, "big"))
        if sequence == self.index.expected:
            self.index.apply(sequence, payload)

    def received(self, *, within_s: float = DEADLINE_S) -> tuple[int, bytes] | None:
        """The next message that was published and has come."""
        if not self._sub.poll(round(1000 * within_s)):
            return None
        _, sequence, payload = self._sub.recv_multipart()
        return int.from_bytes(sequence, "big"), payload

    def lose(self) -> int:
        """Throw away what has come."""
        lost = 0
        while self.received(within_s=0) is not None:
            lost += 1
        return lost

    def ask(self, sequence: bytes) -> None:
        self._asker.send_multipart([b"", sequence])
        deadline = time.monotonic() + DEADLINE_S
        while True:
            self._serve()
            if not self._asker.poll(5):
                assert time.monotonic() < deadline, "no answer to a request for a replay"
                continue
            _, *_topic, number, payload = self._asker.recv_multipart()
            if number == END:
                return
            self.index.apply(int.from_bytes(number, "big"), payload)
