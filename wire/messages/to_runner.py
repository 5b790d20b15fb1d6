"""What the scheduler tells the model runner: plans of steps, as deltas; profiles; the end."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from wire.sampling import SamplingParams

from .to_scheduler import ProfileWish


class PageCopy(Struct, frozen=True, kw_only=True):
    """Copy one whole page, all layers and heads; all sources of a plan are read before any destination is written."""

    source: int
    destination: int


class Admission(Struct, frozen=True, kw_only=True):
    """A row begins: the first `num_cached_tokens` tokens of its pages hold valid KV.

    `sampling.seed` is set. Random numbers are keyed by (seed, position), so a resumed row continues its own stream.
    The row's output begins behind `num_prompt_tokens`. `prompt_ids` and, for a resumed row, `output_ids` so far are
    there when `sampling` needs them. Logprobs of prompt tokens are wanted from `first_logprob` on, if at all.
    """

    row: int
    request_id: str
    sampling: SamplingParams
    num_cached_tokens: int
    page_ids: bytes
    num_prompt_tokens: int = 0
    prompt_ids: bytes = b""
    output_ids: bytes = b""
    first_logprob: int | None = None


class Chunk(Struct, frozen=True, kw_only=True):
    """A row's prefill in a step: the tokens `token_ids` after its present length.

    `page_ids` are appended to the row's page table first. With `is_sampled` the last token's logits give a new token.
    """

    row: int
    token_ids: bytes
    is_sampled: bool
    page_ids: bytes = b""


class StepPlan(Struct, frozen=True, kw_only=True, tag=True):
    """scheduler -> runner: one step, as a delta: release rows, copy pages, admit rows, run, sample.

    Each row of `decodes` (int32) computes its last sampled token and samples another. Some of them get a page first:
    `grown_rows[i]` (int32) appends `grown_page_ids[i]` (int32) to its page table. `chunks` are of other rows.
    Steps are numbered consecutively from 0. A plan with neither `decodes` nor `chunks` only releases.
    """

    step: int
    released: tuple[int, ...] = ()
    copies: tuple[PageCopy, ...] = ()
    admissions: tuple[Admission, ...] = ()
    decodes: bytes = b""
    grown_rows: bytes = b""
    grown_page_ids: bytes = b""
    chunks: tuple[Chunk, ...] = ()


class Profile(Struct, frozen=True, kw_only=True, tag=True):
    """scheduler -> runner: begin a profile as wished, or with None end it; answered by one `Profiled`.

    `client` and `control_id` say who asked, and come back in the answer.
    """

    client: bytes
    control_id: int
    wish: ProfileWish | None


class Stop(Struct, frozen=True, kw_only=True, tag=True):
    """scheduler -> runner: no plan follows; exit."""


ToRunner = StepPlan | Profile | Stop

decode_to_runner = msgspec.msgpack.Decoder(ToRunner).decode
