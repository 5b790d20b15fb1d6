"""What a run or a batch of programs has cost, and what the tree of cached prefixes has saved. Only numbers."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from .backend import Usage


@dataclass(slots=True)
class Report:
    """Sums over all calls of a run or a batch; `str` gives them as a few readable lines."""

    calls: int = 0
    failed_calls: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    untold_tokens: int = 0
    generated_tokens: int = 0
    began_s: float = field(default_factory=time.monotonic, repr=False)
    ended_s: float | None = field(default=None, repr=False)

    @property
    def computed_tokens(self) -> int:
        """Prompt tokens that had to be computed, those of which the backend doesn't tell included."""
        return self.prompt_tokens - self.cached_tokens

    @property
    def saved_share(self) -> float:
        """The share of all prompt tokens that came from the tree, in [0, 1]."""
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else 0.0

    @property
    def seconds(self) -> float:
        """From the start to the end, or until now."""
        return (time.monotonic() if self.ended_s is None else self.ended_s) - self.began_s

    @classmethod
    def of(cls, reports: Iterable[Report], clock: Report) -> Report:
        """The sums of several, with the times of `clock`."""
        whole = cls(began_s=clock.began_s, ended_s=clock.ended_s)
        for each in reports:
            whole.calls += each.calls
            whole.failed_calls += each.failed_calls
            whole.prompt_tokens += each.prompt_tokens
            whole.cached_tokens += each.cached_tokens
            whole.untold_tokens += each.untold_tokens
            whole.generated_tokens += each.generated_tokens
        return whole

    def add(self, usage: Usage) -> None:
        """Take one call."""
        self.calls += 1
        self.prompt_tokens += usage.prompt_tokens
        self.generated_tokens += usage.completion_tokens
        if usage.cached_tokens is None:
            self.untold_tokens += usage.prompt_tokens
        else:
            self.cached_tokens += usage.cached_tokens

    def add_failure(self) -> None:
        """Take one call that gave no answer."""
        self.calls += 1
        self.failed_calls += 1

    def end(self) -> None:
        """Stop the clock; a second time does nothing."""
        if self.ended_s is None:
            self.ended_s = time.monotonic()

    def __str__(self) -> str:
        failed = f" ({self.failed_calls} failed)" if self.failed_calls else ""
        untold = f", of {self.untold_tokens:,} the backend doesn't tell" if self.untold_tokens else ""
        return (
            f"{self.calls:,} call{'s' * (self.calls != 1)}{failed} in {self.seconds:.1f} s\n"
            f"prompt tokens: {self.prompt_tokens:,}, from the cache {self.cached_tokens:,}"
            f" ({self.saved_share:.1%}){untold}, computed {self.computed_tokens:,}\n"
            f"generated tokens: {self.generated_tokens:,}"
        )
