"""Every message between the processes, one union per direction. Knows no sockets.

Codec: msgpack with the union as its type, so a malformed frame is a typed error (`msgspec.ValidationError`).
Long integer lists are `bytes` of little-endian int32 (`ids_to_bytes`, `bytes_to_ids`).
`docs/messages.md` is generated from the first lines of the docstrings.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import Literal

import msgspec
from msgspec import Struct

from wire.gap import GapReport, Lost
from wire.sampling import SamplingParams

TOKEN_BYTES = 4
"""Bytes of one integer in a long list."""


def ids_to_bytes(ids: Iterable[int]) -> bytes:
    """Pack integers as little-endian int32; an array of them is copied as it is."""
    if isinstance(ids, array) and ids.typecode == "i":
        return ids.tobytes()
    return array("i", ids).tobytes()


def bytes_to_ids(data: bytes) -> list[int]:
    """Unpack little-endian int32 integers."""
    ids = array("i")
    ids.frombytes(data)
    return ids.tolist()


# --- tokenizer -> scheduler


class Submit(Struct, frozen=True, kw_only=True, tag=True):
    """tokenizer -> scheduler: start generating for one request.

    `sampling` is checked and its `seed` is set; `stop_token_ids` holds the end-of-sequence ids unless they are ignored.
    A `max_new_tokens` of None becomes what still fits; one that can't fit is refused by the scheduler, which knows the
    limits. `salt` separates caches: KV of one salt is never served to another. The higher `priority` goes first.
    `cache_priority` and `cache_ttl_s` (seconds after the end) weigh when pages are evicted.
    """

    request_id: str
    token_ids: bytes
    sampling: SamplingParams
    salt: str = ""
    priority: int = 0
    cache_priority: int = 0
    cache_ttl_s: float = 0.0


class Cancel(Struct, frozen=True, kw_only=True, tag=True):
    """tokenizer -> scheduler: the client went away."""

    request_id: str


class Finish(Struct, frozen=True, kw_only=True, tag=True):
    """tokenizer -> scheduler: a stop string was found; the client has its answer of `kept_tokens` output tokens."""

    request_id: str
    kept_tokens: int


class ProfileWish(Struct, frozen=True, kw_only=True):
    """How a profile is to be made: of so many steps at most, with Python's call stacks, with the tensors' shapes."""

    num_steps: int = 100
    with_stack: bool = False
    record_shapes: bool = False


Action = Literal["flush", "stats", "abort", "gap", "start_profile", "stop_profile", "outline", "run"]
"""What an operator can wish of the scheduler."""


class Control(Struct, frozen=True, kw_only=True, tag=True):
    """tokenizer -> scheduler: an operator's wish; answered by one `ControlReply` of the same `control_id`.

    `abort` cancels the request named by `request_id` (exact match), or all when it is None. `start_profile` is told how
    by `profile`. `outline` shows the tree, or what is under a page; `run` the first tokens of the node with that page.
    """

    control_id: int
    action: Action
    request_id: str | None = None
    profile: ProfileWish | None = None
    page: int | None = None


Wish = Literal["figures", "drain", "reopen", "diagnose", "requests"]
"""What one tokenizer can have the others do; each answers with its figures afterwards, or with its diagnosis.

To `requests` each answers with its last ones, or with the one of the id `about`.
"""


class Ask(Struct, frozen=True, kw_only=True, tag=True):
    """tokenizer -> scheduler: pass `wish` on to all other tokenizers as `Asked`."""

    ask_id: int
    wish: Wish
    about: str = ""


class Answer(Struct, frozen=True, kw_only=True, tag=True):
    """tokenizer -> scheduler: the answer to an `Asked`, passed back as `Answered`; the scheduler can't read it."""

    asker: bytes
    ask_id: int
    content: bytes


ToScheduler = Submit | Cancel | Finish | Control | Ask | Answer


# --- scheduler -> tokenizer


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
    not been used for `idle_s`. `miss` says why no more was found; both are None without `--explain-misses`.
    """

    prompt_tokens: int
    cached_tokens: int
    copied_tokens: int
    queue_s: float
    idle_s: float | None = None
    miss: Miss | None = None


class Tokens(Struct, frozen=True, kw_only=True, tag=True):
    """scheduler -> tokenizer: new output tokens of one request; `reuse` comes with the first.

    `logprobs` has one entry per token when the request asked for them, else none. An entry is float32 `logprob`,
    then n int32 ids, then n float32 logprobs: those of the most likely tokens, then those of `logprob_ids` (see
    `pack_logprobs`). `prompt_logprobs` has entries of the prompt's tokens, in order, as they become known; the first
    is that of `prompt_logprobs_from`, or of position 1, since nothing comes before position 0.
    """

    request_id: str
    token_ids: bytes
    logprobs: tuple[bytes, ...] = ()
    prompt_logprobs: tuple[bytes, ...] = ()
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

    `prompt_tokens_total` counts all prompt tokens at first scheduling, `cached_tokens_total` those of them that were
    found cached then. `device` is "cpu" or the name of the GPU. `oldest_wait_s` is how long the request that came first
    of those in the queue has been there. An unused page stays for `belt_s`; the next to go was used `next_victim_s`
    ago; half of the sessions that return do so within `expected_return_s`, and the share `survival` of them within
    `belt_s`. These are None without `--explain-misses`, and until enough has happened. `lost` are shares of the prompt
    tokens of the last ten minutes, None without `--gap-report`. `stuck` is None while all is well, else the sentence
    that says what hangs. Nothing is sent before the runner is ready, so a tokenizer that has `Stats` may serve.
    """

    model_fingerprint: str = ""
    device: str = ""
    context_tokens: int = 0
    vocabulary: int = 0
    max_running: int = 0
    num_waiting: int = 0
    num_running: int = 0
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
    lost: Lost | None = None
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


# --- scheduler -> runner


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


# --- runner -> scheduler


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
    """Entries (see `pack_logprobs`) of a row's prompt tokens from position `first` on."""

    row: int
    first: int
    entries: tuple[bytes, ...]


class StepResult(Struct, frozen=True, kw_only=True, tag=True):
    """runner -> scheduler: one step has retired.

    `token_ids` (int32) has one entry for each row of `decodes`, then for each chunk with `is_sampled`, in plan order;
    the entry of a row in `broken` means nothing. `logprobs` has as many, empty where none was asked, or none at all
    when nobody asked. `elapsed_s` is from taking the plan up to the result; `waited_s` is how long the runner had
    waited for the plan.
    """

    step: int
    token_ids: bytes
    logprobs: tuple[bytes, ...] = ()
    prompt_logprobs: tuple[PromptLogprobs, ...] = ()
    broken: tuple[BrokenRow, ...] = ()
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


# --- codecs; tokenizers get one frame of many messages per step

_encoder = msgspec.msgpack.Encoder()
encode = _encoder.encode
decode_to_scheduler = msgspec.msgpack.Decoder(ToScheduler).decode
decode_to_tokenizer = msgspec.msgpack.Decoder(list[ToTokenizer]).decode
decode_to_runner = msgspec.msgpack.Decoder(ToRunner).decode
decode_from_runner = msgspec.msgpack.Decoder(FromRunner).decode


def pack_logprobs(logprob: float, top: Iterable[tuple[int, float]] = ()) -> bytes:
    """Pack a token's logprob and (token id, logprob) pairs: the most likely first, then chosen ids."""
    pairs = list(top)
    ids = array("i", [token_id for token_id, _ in pairs])
    logprobs = array("f", [value for _, value in pairs])
    return array("f", [logprob]).tobytes() + ids.tobytes() + logprobs.tobytes()


def unpack_logprobs(data: bytes) -> tuple[float, list[tuple[int, float]]]:
    """Undo `pack_logprobs`."""
    head = array("f")
    head.frombytes(data[:4])
    num_top = (len(data) - 4) // 8
    ids = bytes_to_ids(data[4 : 4 + 4 * num_top])
    logprobs = array("f")
    logprobs.frombytes(data[4 + 4 * num_top :])
    return head[0], list(zip(ids, logprobs.tolist(), strict=True))
