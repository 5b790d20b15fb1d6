"""What the scheduler may do, and what its process is told at start."""

from __future__ import annotations

import re
from dataclasses import dataclass

from wire.flags import flag

_ENDPOINT = re.compile(r"tcp://[^\s/]+:\d{1,5}|ipc://\S+")


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """Limits of one step and of the queue."""

    max_running: int = flag(64, "Requests computed together, at most.")
    max_queued_requests: int = flag(4096, "Requests that may wait; one more is answered 429.")
    max_queued_tokens: int = flag(
        8 * 1024 * 1024, "Prompt tokens of all requests that wait, about 50 bytes each; more are answered 429."
    )
    prefill_tokens: int = flag(8192, "Prompt tokens computed in one step, at most.")
    decode_step_ms: int = flag(100, "Time a step may take while rows decode; prefill gets what is left of it.")
    prefill_step_ms: int = flag(500, "Time a step may take while nothing decodes.")
    policy: str = flag(
        "longest-prefix", "Queue order; depth-first suits batches.", choices=("longest-prefix", "fcfs", "depth-first")
    )
    eviction: str = flag("lru", "Which cached pages go first.", choices=("lru", "scan-resistant", "cost"))
    overtake_tokens: int = flag(
        65536, "Prompt tokens of later requests that may be computed before a waiting one, at most."
    )
    overtake_share: float = flag(
        0.5, "Part of the waiting requests, and of their work, that may go before one, at most."
    )
    overtake_seconds: float = flag(10.0, "Time for which later requests may go before a waiting one, at most.")
    explain_misses: bool = flag(True, "Say of each request why the part of its prompt that was not reused was not.")
    gap_report: bool = flag(True, "Estimate what a cache could have found at best, for GET /report and axil report.")
    record: str | None = flag(
        None,
        "File for lengths, times and shared prefixes of all requests, for axil replay; auto records nothing.",
        metavar="FILE",
    )
    record_text: bool = flag(False, "With --record, also write the token ids of prompts, from which text can be read.")
    overlap: bool = flag(True, "Plan step N+1 while step N runs.")

    def __post_init__(self) -> None:
        """Check the ranges.

        Raises:
            ValueError: names the flag, its limit and the given value.
        """
        for name in (
            "max_running",
            "max_queued_requests",
            "max_queued_tokens",
            "prefill_tokens",
            "decode_step_ms",
            "prefill_step_ms",
        ):
            if getattr(self, name) < 1:
                raise ValueError(f"--{name.replace('_', '-')} must be at least 1, got {getattr(self, name)}")
        if self.record_text and self.record is None:
            raise ValueError("--record-text is for a recording; name its file with --record FILE")
        for name in ("overtake_tokens", "overtake_share", "overtake_seconds"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"--{name.replace('_', '-')} must be at least 0, got {getattr(self, name)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class KvEventsConfig:
    """Whether and where other processes can follow which pages are cached."""

    kv_events: str | None = flag(
        None,
        "ZMQ address to publish at which pages are cached, as vLLM does (tcp://*:5557, ipc://…); auto: nowhere. "
        "Whoever can connect reads the prompts' tokens.",
    )
    kv_events_replay: str | None = flag(
        None, "ZMQ address where subscribers ask for messages that they have missed, and for a snapshot; auto: none."
    )
    kv_events_topic: str = flag("", "Topic of the messages; vLLM's routers expect kv@ADDRESS@MODEL.")
    kv_events_kept: int = flag(
        10_000, "Messages kept for a replay, 64 MiB at most; who asks for older ones gets a snapshot."
    )
    kv_events_format: str = flag(
        "vllm",
        "vllm-array is for readers of vLLM before 0.24, which wrote events as arrays.",
        choices=("vllm", "vllm-array"),
    )

    def __post_init__(self) -> None:
        """Check the addresses.

        Raises:
            ValueError: names the flag, what it takes and the given value.
        """
        for name in ("kv_events", "kv_events_replay"):
            endpoint = getattr(self, name)
            if endpoint is not None and not _ENDPOINT.fullmatch(endpoint):
                raise ValueError(
                    f"--{name.replace('_', '-')} must be an address to bind, such as tcp://*:5557 or "
                    f"ipc:///run/axil/events; got {endpoint!r}"
                )
        if self.kv_events_replay is not None and self.kv_events is None:
            raise ValueError("--kv-events-replay needs --kv-events: there is nothing to replay without")
        if self.kv_events is not None and self.kv_events == self.kv_events_replay:
            raise ValueError(f"--kv-events and --kv-events-replay must differ, got {self.kv_events} for both")
        if self.kv_events_kept < 1:
            raise ValueError(f"--kv-events-kept must be at least 1, got {self.kv_events_kept}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerLaunch:
    """What the launcher tells the scheduler process."""

    run_dir: str
    config: SchedulerConfig
    kv_events: KvEventsConfig = KvEventsConfig()
    num_ranks: int = 1
