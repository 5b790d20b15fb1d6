"""What stands on the wire, byte by byte. The decoder of vLLM 0.32 has read the frames of its format."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from scheduler.kv_events.format import AllBlocksCleared, BlockRemoved, batch, packed, stored

TIME = b"\xcb" + np.array([1796000000.5], ">f8").tobytes()
TOKENS = b"\xdd\x00\x00\x00\x02" + b"\xce\x00\x00\x00\x07" + b"\xce\x00\x01\x00\x00"
HASH = b"\xcf\xff\xff\xff\xff\xff\xff\xff\xfe"


def _text(text: str) -> bytes:
    return bytes([0xA0 + len(text)]) + text.encode()


def _stored(*, salt: str = "") -> object:
    return stored(
        hashes=[2**64 - 2],
        parent_hash=None,
        token_ids=np.array([7, 65536], np.int32),
        page_tokens=2,
        salt=salt,
        adapter=None,
    )


def _events() -> list:
    return [_stored(salt="s"), BlockRemoved(block_hashes=[5], medium="GPU"), AllBlocksCleared()]


def test_a_batch_is_an_array_of_time_events_and_rank_and_each_event_a_map() -> None:
    expected = b"\x93" + TIME + b"\x93"
    expected += b"\x89" + _text("type") + _text("BlockStored")
    expected += _text("block_hashes") + b"\x91" + HASH
    expected += _text("parent_block_hash") + b"\xc0"
    expected += _text("token_ids") + TOKENS
    expected += _text("block_size") + b"\x02"
    expected += _text("lora_id") + b"\xc0" + _text("medium") + _text("GPU") + _text("lora_name") + b"\xc0"
    expected += _text("extra_keys") + b"\x91\x91" + _text("s")
    expected += b"\x83" + _text("type") + _text("BlockRemoved")
    expected += _text("block_hashes") + b"\x91\x05" + _text("medium") + _text("GPU")
    expected += b"\x81" + _text("type") + _text("AllBlocksCleared")
    assert batch(_events(), time_s=1796000000.5, form="vllm") == expected + b"\x00"


def test_for_older_readers_each_event_is_an_array_that_begins_with_its_name() -> None:
    expected = b"\x93" + TIME + b"\x93"
    expected += b"\x99" + _text("BlockStored") + b"\x91" + HASH + b"\xc0" + TOKENS + b"\x02"
    expected += b"\xc0" + _text("GPU") + b"\xc0" + b"\x91\x91" + _text("s")
    expected += b"\x93" + _text("BlockRemoved") + b"\x91\x05" + _text("GPU")
    expected += b"\x91" + _text("AllBlocksCleared")
    assert batch(_events(), time_s=1796000000.5, form="vllm-array") == expected + b"\x00"


@pytest.mark.parametrize("form", ["vllm", "vllm-array"])
def test_without_a_salt_nothing_is_said_of_one(form: str) -> None:
    (event,) = msgspec.msgpack.decode(batch([_stored()], time_s=0.0, form=form))[1]
    assert len(event) == 8
    assert "extra_keys" not in event


def test_token_ids_are_read_as_they_were() -> None:
    token_ids = np.array([0, 1, 127, 128, 65535, 65536, 2**31 - 1], np.int32)
    assert msgspec.msgpack.decode(packed(token_ids)) == token_ids.tolist()


def test_the_salt_stands_with_the_first_block_of_a_prompt_only() -> None:
    tokens = np.arange(6, dtype=np.int32)
    first = stored(hashes=[1, 2, 3], parent_hash=None, token_ids=tokens, page_tokens=2, salt="s", adapter=None)
    later = stored(hashes=[4, 5, 6], parent_hash=3, token_ids=tokens, page_tokens=2, salt="s", adapter=None)
    assert first.extra_keys == [("s",), None, None]
    assert later.extra_keys is None
