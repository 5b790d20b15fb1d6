"""What tokenizers tell the scheduler: requests, how they end early, wishes of operators and of other tokenizers."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import Struct

from wire.sampling import SamplingParams


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


Action = Literal[
    "flush", "stats", "abort", "pause", "continue", "gap", "start_profile", "stop_profile", "outline", "run", "sessions"
]
"""What an operator can wish of the scheduler."""


class Control(Struct, frozen=True, kw_only=True, tag=True):
    """tokenizer -> scheduler: an operator's wish; answered by one `ControlReply` of the same `control_id`.

    `abort` cancels the request named by `request_id` (exact match), or all when it is None. From `pause` to `continue`
    no step is begun, and requests wait where they are. `start_profile` is told how by `profile`. `outline` shows the
    tree, or what is under a page; `run` the first tokens of the node with that page; `sessions` all sessions, or those
    that go through the node that begins with it.
    """

    control_id: int
    action: Action
    request_id: str | None = None
    profile: ProfileWish | None = None
    page: int | None = None


Wish = Literal["figures", "drain", "reopen", "diagnose", "requests", "judge"]
"""What one tokenizer can have the others do; each answers with its figures afterwards, or with its diagnosis.

To `requests` each answers with its last ones, or with the one of the id `about`; to `judge` with what its records say
to the miss that `about` tells of (`runtime.judging`).
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

decode_to_scheduler = msgspec.msgpack.Decoder(ToScheduler).decode
