"""How a batch of events is written: in msgpack, as vLLM writes it. Knows no sockets and no cache.

A batch is the array `[time, events, 0]`; the 0 is the rank among data-parallel replicas, of which there is one. Each
event is a map with its name under `type`; for readers of vLLM before 0.24 ("vllm-array") an array that begins with it.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from msgspec import Raw, Struct

MEDIUM = "GPU"
"""vLLM's word for the memory that attention reads, wherever that is."""

_ARRAY_32, _UINT_32 = b"\xdd", 0xCE
_TOKEN = np.dtype([("mark", "u1"), ("id", ">u4")])


class BlockStored(Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True):
    """Blocks are cached, one behind the other, the first behind the one with the hash `parent_block_hash`."""

    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: Raw
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[tuple[str, ...] | None] | None = None


class BlockRemoved(Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True):
    """Blocks are no longer cached."""

    block_hashes: list[int]
    medium: str | None


class AllBlocksCleared(Struct, frozen=True, tag=True):
    """Nothing is cached any more."""


Event = BlockStored | BlockRemoved | AllBlocksCleared

_encode = msgspec.msgpack.Encoder().encode


def stored(
    *,
    hashes: list[int],
    parent_hash: int | None,
    token_ids: np.ndarray,
    page_tokens: int,
    salt: str,
    adapter: str | None,
) -> BlockStored:
    """The event for new pages; as in vLLM the salt stands with the first block of a prompt only."""
    has_salt = bool(salt) and parent_hash is None
    return BlockStored(
        block_hashes=hashes,
        parent_block_hash=parent_hash,
        token_ids=packed(token_ids),
        block_size=page_tokens,
        lora_id=None,
        medium=MEDIUM,
        lora_name=adapter,
        extra_keys=[(salt,), *[None] * (len(hashes) - 1)] if has_salt else None,
    )


def packed(token_ids: np.ndarray) -> Raw:
    """Token ids as a msgpack array, each in the same five bytes: no Python object is made for any of them."""
    tokens = np.empty(len(token_ids), _TOKEN)
    tokens["mark"] = _UINT_32
    tokens["id"] = token_ids
    return Raw(_ARRAY_32 + len(token_ids).to_bytes(4, "big") + tokens.tobytes())


def batch(events: Sequence[Event], *, time_s: float, form: str) -> bytes:
    """The payload of one message."""
    told = events if form == "vllm" else [_array(event) for event in events]
    return _encode((time_s, told, 0))


def _array(event: Event) -> list[object]:
    values = [type(event).__name__, *msgspec.structs.astuple(event)]
    return values[:-1] if isinstance(event, BlockStored) and event.extra_keys is None else values
