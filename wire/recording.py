"""Rows of recorded traffic: Mooncake's four fields, and ours behind them; one JSON object a line. Knows no text.

A reader of Mooncake's traces reads `timestamp`, `input_length`, `output_length` and `hash_ids` (blocks of 512 tokens;
equal numbers are equal beginnings). Ours say to the token what prompts share: the first `shared_tokens` of this prompt
are those of row `follows`, of its prompt and, beyond that, of its answer.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

BLOCK_TOKENS = 512
"""Tokens in a block of `hash_ids`."""


_Count = Annotated[int, Meta(ge=0)]
_TokenId = Annotated[int, Meta(ge=0, le=2**31 - 1)]


class RecordedRequest(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One request. `timestamp` is its arrival, in ms since the recording began; rows stand in the order of their ends.

    `row` counts the rows of a file from 0; without it the row is not ours. `salt` is a digest of the cache salt, empty
    without one. `ttft_ms` is None when it ended before its first token. `cause` is why the first token that was not
    found cached was not (`wire.messages.to_tokenizer.MissCause`). `session` is the first row of the conversation: rows
    that go on one from the other have the same. `prompt_ids` is there only with `--record-text`.
    """

    timestamp: float
    input_length: _Count
    output_length: _Count
    hash_ids: tuple[int, ...]
    row: int | None = None
    follows: int | None = None
    shared_tokens: _Count = 0
    session: int | None = None
    salt: str = ""
    cached_tokens: int | None = None
    ttft_ms: float | None = None
    latency_ms: float | None = None
    end: str = ""
    cause: str | None = None
    prompt_ids: tuple[_TokenId, ...] | None = None

    def __post_init__(self) -> None:
        """Raises ValueError when it follows what comes later, or shares more than it has."""
        if self.follows is not None and (self.row is None or self.follows >= self.row):
            raise ValueError(f"follows must name an earlier row than {self.row}, got {self.follows}")
        if self.shared_tokens > self.input_length:
            raise ValueError(f"shared_tokens ({self.shared_tokens}) must not exceed input_length ({self.input_length})")


encode_row = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(RecordedRequest).decode


def read_recording(path: Path, num_requests: int | None = None) -> list[RecordedRequest]:
    """The requests in a file, or its first `num_requests`, in the file's order.

    Raises:
        ValueError: it can't be read, or a line has another form.
    """
    rows: list[RecordedRequest] = []
    try:
        with path.open("rb") as lines:
            for line in itertools.islice(lines, num_requests):
                rows.append(_decode(line))
    except OSError as error:
        raise ValueError(f"{path} can't be read: {error.strerror}") from error
    except (msgspec.ValidationError, msgspec.DecodeError) as error:
        raise ValueError(
            f"{path}, line {len(rows) + 1}: {error}."
            " Each line must have timestamp, input_length, output_length and hash_ids"
        ) from error
    return rows
