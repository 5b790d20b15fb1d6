import math
import typing
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wire.messages.encoding import bytes_to_ids, encode, ids_to_bytes, pack_logprobs, unpack_logprobs
from wire.messages.from_runner import FromRunner, decode_from_runner
from wire.messages.to_runner import ToRunner, decode_to_runner
from wire.messages.to_scheduler import Submit, ToScheduler, decode_to_scheduler
from wire.messages.to_tokenizer import ToTokenizer, decode_to_tokenizer
from wire.sampling import SamplingParams

INT32 = st.integers(-(2**31), 2**31 - 1)
FLOAT32 = st.floats(width=32)

DECODERS = {
    "to_scheduler": (ToScheduler, decode_to_scheduler),
    "to_runner": (ToRunner, decode_to_runner),
    "from_runner": (FromRunner, decode_from_runner),
}


def strategy(cls: type[Any]) -> st.SearchStrategy[Any]:
    """Any value of a message class, built from the types of its fields."""
    hints = typing.get_type_hints(cls)
    return st.builds(cls, **{name: values(hints[name]) for name in cls.__struct_fields__})


def values(hint: Any) -> st.SearchStrategy[Any]:  # noqa: ANN401 - a type of any kind
    if typing.get_origin(hint) is tuple:
        parts = typing.get_args(hint)
        if parts[-1] is not Ellipsis:
            return st.tuples(*(values(part) for part in parts))
        return st.lists(values(parts[0]), max_size=3).map(tuple)
    if typing.get_origin(hint) is dict:
        return st.dictionaries(*(values(part) for part in typing.get_args(hint)), max_size=3)
    if typing.get_origin(hint) is typing.Literal:
        return st.sampled_from(typing.get_args(hint))
    if type(None) in typing.get_args(hint):
        return st.none() | st.one_of(*(values(part) for part in typing.get_args(hint) if part is not type(None)))
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return strategy(hint)
    plain = {
        int: st.integers(-(2**63), 2**63 - 1),
        float: st.floats(allow_nan=False),
        str: st.text(max_size=8),
        bytes: st.binary(max_size=8),
        bool: st.booleans(),
    }
    return plain[hint]


@pytest.mark.parametrize("direction", DECODERS)
@given(data=st.data())
def test_every_message_arrives_as_it_was_sent(direction: str, data: st.DataObject) -> None:
    union, decode = DECODERS[direction]
    message = data.draw(st.one_of(*(strategy(cls) for cls in typing.get_args(union))))
    assert decode(encode(message)) == message


@given(batch=st.lists(st.one_of(*(strategy(cls) for cls in typing.get_args(ToTokenizer))), max_size=4))
def test_tokenizers_get_many_messages_in_one_frame(batch: list[Any]) -> None:
    assert decode_to_tokenizer(encode(batch)) == batch


SUBMIT = Submit(request_id="a", token_ids=b"", sampling=SamplingParams())


@pytest.mark.parametrize("decode", [decode for _, decode in DECODERS.values()])
@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\xc1",
        encode(SUBMIT)[:-1],
        encode({"type": "Nonsense"}),
        encode({"type": "Cancel", "request_id": 3}),
        encode({"type": "Cancel"}),
        encode([1, 2]),
    ],
)
def test_a_malformed_frame_is_a_typed_error(decode: Any, frame: bytes) -> None:  # noqa: ANN401 - a decoder
    with pytest.raises(msgspec.DecodeError):
        decode(frame)


def test_a_frame_of_another_direction_is_a_validation_error() -> None:
    with pytest.raises(msgspec.ValidationError):
        decode_to_runner(encode(SUBMIT))
    with pytest.raises(msgspec.ValidationError):
        decode_to_tokenizer(encode([SUBMIT]))


def test_messages_can_not_be_changed() -> None:
    with pytest.raises(AttributeError):
        SUBMIT.request_id = "b"  # type: ignore[misc]  # what is tested


@given(ids=st.lists(INT32))
def test_ids_survive_packing_as_int32(ids: list[int]) -> None:
    assert bytes_to_ids(ids_to_bytes(ids)) == ids
    assert len(ids_to_bytes(ids)) == 4 * len(ids)


def test_ids_are_little_endian() -> None:
    assert ids_to_bytes([1, -2]) == b"\x01\0\0\0\xfe\xff\xff\xff"


@given(logprob=FLOAT32, top=st.lists(st.tuples(INT32, FLOAT32), max_size=20))
def test_logprobs_survive_packing(logprob: float, top: list[tuple[int, float]]) -> None:
    unpacked, unpacked_top = unpack_logprobs(pack_logprobs(logprob, top))
    assert same(unpacked, logprob)
    assert [token_id for token_id, _ in unpacked_top] == [token_id for token_id, _ in top]
    assert all(same(a, b) for (_, a), (_, b) in zip(unpacked_top, top, strict=True))


def same(a: float, b: float) -> bool:
    return a == b or (math.isnan(a) and math.isnan(b))
