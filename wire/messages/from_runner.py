"""What the model runner and its ranks tell the scheduler: what they hold, results of steps, that they live."""

from __future__ import annotations

import msgspec
from msgspec import Struct


class Ready(Struct, frozen=True, kw_only=True, tag=True):
    """runner -> scheduler: weights are loaded, the KV pool stands, plans may come.

    `device` is "cpu" or the name of the GPU.
    """

    num_pages: int
    page_tokens: int
    vocabulary: int
    context_tokens: int
    model_fingerprint: str
    device: str = "cpu"


class BrokenRow(Struct, frozen=True, kw_only=True):
    """A row without usable logits in this step."""

    row: int
    message: str


class PromptLogprobs(Struct, frozen=True, kw_only=True):
    """Entries (see `pack_logprobs`) of `num_tokens` of a row's prompt tokens, from position `first` on.

    They are of one size and stand one after the other.
    """

    row: int
    first: int
    num_tokens: int
    entries: bytes


class ForcedTokens(Struct, frozen=True, kw_only=True):
    """What must stand behind the token that a row got in this step, since its grammar allows nothing else there."""

    row: int
    token_ids: bytes


class StepResult(Struct, frozen=True, kw_only=True, tag=True):
    """runner -> scheduler: one step has retired.

    `token_ids` (int32) has one entry for each row of `decodes`, then for each chunk with `is_sampled`, in plan order;
    the entry of a row in `broken` means nothing. `logprobs` has as many, empty where none was asked, or none at all
    when nobody asked. A row of `forced` gives just these tokens from then on, whether they are planned one by one or as
    a chunk. `elapsed_s` is from taking the plan up to the result; `waited_s` is how long the runner had waited for the
    plan.
    """

    step: int
    token_ids: bytes
    logprobs: tuple[bytes, ...] = ()
    prompt_logprobs: tuple[PromptLogprobs, ...] = ()
    broken: tuple[BrokenRow, ...] = ()
    forced: tuple[ForcedTokens, ...] = ()
    elapsed_s: float = 0.0
    waited_s: float = 0.0


class Profiled(Struct, frozen=True, kw_only=True, tag=True):
    """runner -> scheduler: a profile has begun, or ended and stands at `path`; or `refusal` says why not."""

    client: bytes
    control_id: int
    path: str | None = None
    refusal: str | None = None


class Acknowledged(Struct, frozen=True, kw_only=True, tag=True):
    """runner -> scheduler: a rank behind the first has retired a step; the tokens come from rank 0."""

    rank: int
    step: int


class Heartbeat(Struct, frozen=True, kw_only=True, tag=True):
    """runner -> scheduler: a rank's process lives, sent every second from a thread of its own."""

    step: int
    rank: int = 0


class Fatal(Struct, frozen=True, kw_only=True, tag=True):
    """runner -> scheduler: the runner can't go on, and says why before it exits."""

    message: str


FromRunner = Ready | StepResult | Acknowledged | Profiled | Heartbeat | Fatal

decode_from_runner = msgspec.msgpack.Decoder(FromRunner).decode
