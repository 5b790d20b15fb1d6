"""What the scheduler tells tokenizers: tokens, ends, reuse and why it was no more, its figures and its tree.

A frame holds a list of them: what a step has to say to one tokenizer.
"""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import Struct

from wire.gap import GapReport, Lost
from wire.sessions import Chance, SessionState, SurvivalCounts

from .to_scheduler import Wish


class Evicted(Struct, frozen=True, kw_only=True):
    """When a page went that would have been reused, how long it had been unused by then, and for which request.

    `made_room_for` is None when everything was flushed.
    """

    ago_s: float
    idle_s: float
    made_room_for: str | None


MissCause = Literal["never_seen", "forked", "evicted", "namespace", "too_short", "in_flight", "bypassed"]
"""`forked`: what is cached goes on in another way. What these mean is in docs/explain.md."""


class Miss(Struct, frozen=True, kw_only=True):
    """Why a prompt's token at `position`, the first that was computed, was not found.

    `given_ids` (int32) are the prompt's next tokens, `expected_ids` those that the cache holds in their place, 16 at
    most. `relative` is the request that computed what is cached there, or that was computing it. `namespace` is what
    differs when another namespace has the prefix.
    """

    cause: MissCause
    position: int
    given_ids: bytes
    expected_ids: bytes
    relative: str | None
    evicted: Evicted | None = None
    namespace: Literal["salt", "adapter", "weights"] | None = None


class Reuse(Struct, frozen=True, kw_only=True):
    """What a request's first scheduling found in the cache, in prompt tokens.

    `copied_tokens` is the part of `cached_tokens` that came by copying a forked page. The last of the cached pages had
    not been used for `idle_s`. `miss` says why no more was found, `session` whether this will be found again; all three
    are None without `--explain-misses`.
    """

    prompt_tokens: int
    cached_tokens: int
    copied_tokens: int
    queue_s: float
    idle_s: float | None = None
    miss: Miss | None = None
    session: Chance | None = None


class Tokens(Struct, frozen=True, kw_only=True, tag=True):
    """scheduler -> tokenizer: new output tokens of one request; `reuse` comes with the first.

    `logprobs` has one entry per token when the request asked for them, else none. An entry is float32 `logprob`,
    then n int32 ids, then n float32 logprobs: those of the most likely tokens, then those of `logprob_ids` (see
    `pack_logprobs`). `prompt_logprobs` has entries of `num_prompt_logprobs` of the prompt's tokens, in order, as they
    become known, one after the other and all of one size; the first is that of `prompt_logprobs_from`, or of position
    1, since nothing comes before position 0.
    """

    request_id: str
    token_ids: bytes
    logprobs: tuple[bytes, ...] = ()
    prompt_logprobs: bytes = b""
    num_prompt_logprobs: int = 0
    reuse: Reuse | None = None


class StepTokens(Struct, frozen=True, kw_only=True, tag=True):
    """scheduler -> tokenizer: one more output token for each of several requests, as columns: `token_ids` is int32.

    What a decode step says of the requests that asked for nothing else; all others get `Tokens`.
    """

    request_ids: tuple[str, ...]
    token_ids: bytes


class Done(Struct, frozen=True, kw_only=True, tag=True):
    """scheduler -> tokenizer: the terminal reply of an accepted request.

    `matched_token_id` is the token that stopped it (it is the last one that was sent). `reuse` is as in `Tokens`,
    repeated here because a request may end before its first token; None when it was never scheduled.
    """

    request_id: str
    reason: Literal["stop", "length", "cancelled", "broken"]
    matched_token_id: int | None = None
    message: str | None = None
    num_retractions: int = 0
    reuse: Reuse | None = None


class Refused(Struct, frozen=True, kw_only=True, tag=True):
    """scheduler -> tokenizer: the terminal reply of a request that was not accepted.

    `code` is a key of `errors.BY_CODE`.
    """

    request_id: str
    code: str
    message: str
    field: str | None = None


class Stats(Struct, frozen=True, kw_only=True, tag=True):
    """scheduler -> tokenizer: its state and counters, sent every second and after `stats`; counters end in `_total`.

    `prompt_tokens_total` counts all prompt tokens at first scheduling, `cached_tokens_total` those of them that
    were found cached then. `pending_tokens` are still to be computed of prompts, those that run included, in whole
    pages; what several share counts once. `device` is "cpu" or the name of the GPU. `oldest_wait_s` is how long the
    request that came first of those in the queue has been there. An unused page stays for `belt_s`; the next to go
    was used `next_victim_s` ago; half of the sessions that return do so within `expected_return_s`, and the share
    `survival` of them within `belt_s`; `sessions` counts them by their own. These are None without
    `--explain-misses`, and until enough has happened. `lost` are shares of the prompt tokens of the last ten
    minutes, None without `--gap-report`. `is_paused` from `pause` to `continue`. `stuck` is None while all is well,
    else the sentence that says what hangs. Nothing is sent before the runner is ready, so a tokenizer that has
    `Stats` may serve.
    """

    model_fingerprint: str = ""
    device: str = ""
    context_tokens: int = 0
    vocabulary: int = 0
    max_running: int = 0
    num_waiting: int = 0
    num_running: int = 0
    pending_tokens: int = 0
    num_pages: int = 0
    page_tokens: int = 0
    free_pages: int = 0
    cached_pages: int = 0
    evictable_pages: int = 0
    quarantined_pages: int = 0
    requests_total: int = 0
    prompt_tokens_total: int = 0
    cached_tokens_total: int = 0
    copied_tokens_total: int = 0
    bypassed_tokens_total: int = 0
    computed_tokens_total: int = 0
    output_tokens_total: int = 0
    evicted_pages_total: int = 0
    retractions_total: int = 0
    cancelled_total: int = 0
    broken_total: int = 0
    refused_total: int = 0
    ledger_mismatches_total: int = 0
    steps_total: int = 0
    kv_event_messages_total: int = 0
    runner_busy_s_total: float = 0.0
    scheduler_busy_s_total: float = 0.0
    runner_idle_s_total: float = 0.0
    worst_displacement_tokens: int = 0
    worst_wait_s: float = 0.0
    oldest_wait_s: float = 0.0
    belt_s: float | None = None
    next_victim_s: float | None = None
    expected_return_s: float | None = None
    survival: float | None = None
    sessions: SurvivalCounts | None = None
    lost: Lost | None = None
    is_paused: bool = False
    stuck: str | None = None


class RootName(Struct, frozen=True, kw_only=True):
    """The namespace of a root of the tree; its salt only as a digest, None where there is none."""

    model: str
    adapter: str | None
    salt_digest: str | None


class Outline(Struct, frozen=True, kw_only=True):
    """The tree's largest parts, as `radix.outline` has them.

    `entries` are int64, one row an entry with the columns `columns`; times of use are changed to ages in ms.
    """

    columns: tuple[str, ...]
    entries: bytes
    roots: tuple[RootName, ...]
    num_nodes: int
    took_s: float


class Run(Struct, frozen=True, kw_only=True):
    """The first of the `num_tokens` tokens of one node of the tree, which begin at `start`.

    `digest` is the one that an outline gives. The request `request_id` computed the page that was asked for; None where
    that is not known.
    """

    start: int
    num_tokens: int
    token_ids: bytes
    digest: int
    request_id: str | None = None


class ControlReply(Struct, frozen=True, kw_only=True, tag=True):
    """scheduler -> tokenizer: the answer to one `Control`; `count` is the pages flushed or the requests aborted.

    A profile that has ended stands at `path`; `refusal` says why a profile could not be begun or ended. `gap` answers
    a wish of that name, unless the server was told not to know.
    `run` is None when no node has the page that was asked for.
    """

    control_id: int
    count: int = 0
    stats: Stats | None = None
    path: str | None = None
    refusal: str | None = None
    gap: GapReport | None = None
    outline: Outline | None = None
    run: Run | None = None
    sessions: tuple[SessionState, ...] | None = None


class Asked(Struct, frozen=True, kw_only=True, tag=True):
    """scheduler -> tokenizer: another tokenizer, known to the scheduler as `asker`, wants something."""

    asker: bytes
    ask_id: int
    wish: Wish
    about: str = ""


class Answered(Struct, frozen=True, kw_only=True, tag=True):
    """scheduler -> tokenizer: one of the others has answered an `Ask`."""

    ask_id: int
    content: bytes


ToTokenizer = Tokens | StepTokens | Done | Refused | Stats | ControlReply | Asked | Answered

decode_to_tokenizer = msgspec.msgpack.Decoder(list[ToTokenizer]).decode
