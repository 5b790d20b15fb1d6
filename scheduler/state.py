"""Everything the scheduler remembers between two steps. Data only."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from radix.cache import PrefixCache
from radix.eviction import POLICIES
from radix.journal import Journal
from wire.messages.to_runner import Chunk

from .belt import Belt
from .config import SchedulerConfig
from .cost import StepCost, Work
from .explain import Explainer
from .gap import GapMeter
from .output_length import OutputLength
from .queue import Queue
from .request import ClientId, Running
from .scores import Scores
from .sessions import Sessions


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What the model and the pool allow, in tokens."""

    model_fingerprint: str
    context_tokens: int
    vocabulary: int
    pool_tokens: int
    device: str = "cpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """A plan in flight: what it computes and for whom, in plan order."""

    step: int
    sent_s: float
    work: Work
    decodes: tuple[Running, ...]
    chunks: tuple[tuple[Running, Chunk], ...]


@dataclass(slots=True)
class Counters:
    """What has happened since the start; the names are those of `wire.messages.to_tokenizer.Stats`."""

    requests_total: int = 0
    prompt_tokens_total: int = 0
    cached_tokens_total: int = 0
    copied_tokens_total: int = 0
    bypassed_tokens_total: int = 0
    computed_tokens_total: int = 0
    output_tokens_total: int = 0
    retractions_total: int = 0
    cancelled_total: int = 0
    broken_total: int = 0
    refused_total: int = 0
    steps_total: int = 0
    kv_event_messages_total: int = 0
    runner_busy_s_total: float = 0.0
    runner_idle_s_total: float = 0.0
    worst_displacement_tokens: int = 0
    worst_wait_s: float = 0.0


@dataclass(slots=True)
class State:
    """Queue, rows, pages and what is in flight.

    `running` holds all that have a row; by row, `prefilling` those of them with prompt left to plan, `decoding` those
    that get a token in every step. `promised_pages` sums what running requests are expected to need beyond their pages.
    While it `is_paused` no step is begun. `explainer`, `belt`, `sessions` and `gap` are None when nobody wants to know;
    `journal` keeps nothing while nobody listens.
    """

    config: SchedulerConfig
    limits: Limits
    cache: PrefixCache
    scores: Scores
    waiting: Queue
    journal: Journal
    explainer: Explainer | None
    belt: Belt | None
    sessions: Sessions | None
    gap: GapMeter | None = None
    running: dict[str, Running] = field(default_factory=dict)
    prefilling: dict[int, Running] = field(default_factory=dict)
    decoding: dict[int, Running] = field(default_factory=dict)
    promised_pages: int = 0
    free_rows: list[int] = field(default_factory=list)
    released_rows: list[int] = field(default_factory=list)
    in_flight: deque[Sent] = field(default_factory=deque)
    next_step: int = 0
    cost: StepCost = field(default_factory=StepCost)
    output_length: OutputLength = field(default_factory=OutputLength)
    counters: Counters = field(default_factory=Counters)
    is_paused: bool = False


@dataclass(frozen=True, slots=True)
class Reply:
    """A message to one tokenizer."""

    client: ClientId
    message: object


def expected_left_s(state: State, *, now_s: float) -> float:
    """How long the runner is expected to be busy with what it has been sent; for ever, where nobody waits for it."""
    if not state.in_flight:
        return float("inf")
    first, *later = state.in_flight
    left_s = max(0.0, first.sent_s + state.cost.predict_s(first.work) - now_s)
    return left_s + sum(state.cost.predict_s(sent.work) for sent in later)


def make_state(config: SchedulerConfig, limits: Limits, *, page_tokens: int) -> State:
    """An empty scheduler over a pool of `limits.pool_tokens`."""
    num_pages = limits.pool_tokens // page_tokens
    cache = PrefixCache(num_pages=num_pages, page_tokens=page_tokens, policy=POLICIES[config.eviction](num_pages))
    journal = Journal(cache)
    explainer = Explainer(cache, journal) if config.explain_misses else None
    belt = Belt(cache, journal) if config.explain_misses else None
    return State(
        config=config,
        limits=limits,
        cache=cache,
        scores=Scores(num_pages=num_pages, page_tokens=page_tokens),
        waiting=Queue(cache, policy=config.policy),
        journal=journal,
        explainer=explainer,
        belt=belt,
        sessions=Sessions(cache, journal, explainer, belt) if explainer is not None and belt is not None else None,
        gap=GapMeter(num_pages=num_pages, page_tokens=page_tokens, began_s=journal.clock())
        if config.gap_report
        else None,
        free_rows=list(range(config.max_running - 1, -1, -1)),
    )
