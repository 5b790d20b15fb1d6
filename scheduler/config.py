"""What the scheduler may do, and what its process is told at start."""

from __future__ import annotations

from dataclasses import dataclass

from wire.flags import flag


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """Limits of one step and of the queue."""

    max_running: int = flag(64, "Requests computed together, at most.")
    max_queued: int = flag(4096, "Requests that may wait; one more is answered 429.")
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
    overlap: bool = flag(True, "Plan step N+1 while step N runs.")

    def __post_init__(self) -> None:
        """Check the ranges.

        Raises:
            ValueError: names the flag, its limit and the given value.
        """
        for name in (
            "max_running",
            "max_queued",
            "max_queued_tokens",
            "prefill_tokens",
            "decode_step_ms",
            "prefill_step_ms",
        ):
            if getattr(self, name) < 1:
                raise ValueError(f"--{name.replace('_', '-')} must be at least 1, got {getattr(self, name)}")
        for name in ("overtake_tokens", "overtake_share", "overtake_seconds"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"--{name.replace('_', '-')} must be at least 0, got {getattr(self, name)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerLaunch:
    """What the launcher tells the scheduler process."""

    run_dir: str
    config: SchedulerConfig
    num_ranks: int = 1
