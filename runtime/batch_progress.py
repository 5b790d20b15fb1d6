"""The progress bar of an offline batch."""

from __future__ import annotations

import sys
import threading
from typing import Any

from .completion import Completion


class BatchProgress:
    """A bar of finished prompts with the share of cached prompt tokens; shows nothing unless `is_shown`.

    Nor where nobody would see it: where stderr is no terminal, or there is nothing to do.
    """

    def __init__(self, num_prompts: int, *, is_shown: bool) -> None:
        self._num_prompts = num_prompts
        self._is_shown = is_shown
        self._lock = threading.Lock()
        self._bar: Any = None  # a tqdm, which has no types
        self._prompt_tokens = 0
        self._cached_tokens = 0
        self._completion_tokens = 0

    def __enter__(self) -> BatchProgress:
        if self._is_shown and self._num_prompts and sys.stderr is not None and sys.stderr.isatty():
            from tqdm import tqdm  # only where there is somebody to see it

            self._bar = tqdm(total=self._num_prompts, desc="generate", unit="prompt")
        return self

    def __exit__(self, *exc_info: object) -> None:
        with self._lock:
            bar, self._bar = self._bar, None
        if bar is not None:
            bar.close()

    def note(self, completion: Completion) -> None:
        """Count one finished prompt; may be called from another thread."""
        self._prompt_tokens += completion.prompt_tokens
        self._cached_tokens += completion.cached_tokens
        self._completion_tokens += completion.completion_tokens
        with self._lock:
            if self._bar is None:
                return
            cached_percent = 100 * self._cached_tokens // self._prompt_tokens
            self._bar.set_postfix_str(f"cached {cached_percent}%, {self._completion_tokens} tokens", refresh=False)
            self._bar.update()
