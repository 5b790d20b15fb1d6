"""What `axil serve` shows on the terminal: the parts' lines, progress while loading, where the server is."""

from __future__ import annotations

import contextlib
import json
import logging
import sys
import time
from typing import Any

from wire.child import Failed, Progress, Started

from .launch import progress_text
from .part import Said

log = logging.getLogger(__name__)

_LOG_EVERY_S = 5.0
_ALL_ADDRESSES = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}


class Display:
    """Progress as a bar on a terminal, else as a log line now and then."""

    def __init__(self) -> None:
        self._has_bars = sys.stderr.isatty()
        self._bar: Any = None  # a tqdm, which has no types
        self._logged_at = time.monotonic()

    def line(self, text: str) -> None:
        """Write one line of a part, above the bar if there is one."""
        bar = self._bar
        with contextlib.suppress(BrokenPipeError):  # nobody reads any more, but the parts must be able to go on writing
            if bar is None:
                sys.stderr.write(text + "\n")
                sys.stderr.flush()
            else:
                bar.write(text, file=sys.stderr)

    def said(self, said: Said) -> None:
        """Show a part's status; a failure is left to the one who reports it."""
        match said.status:
            case Progress() as progress if progress.total and self._has_bars:
                self._move_bar(progress)
            case Progress() as progress:
                self._log_progress(said.part, progress)
            case Started(facts=facts):
                self.close()
                shown = "".join(f" {key}={value}" for key, value in facts.items())
                log.info("%s is ready%s", said.part, shown)
            case Failed():
                self.close()

    def close(self) -> None:
        """Finish the bar."""
        bar, self._bar = self._bar, None
        if bar is not None:
            bar.close()

    def _move_bar(self, progress: Progress) -> None:
        if self._bar is not None and self._bar.desc.removesuffix(": ") != progress.what:
            self.close()
        if self._bar is None:
            from tqdm import tqdm  # only where there is somebody to see it

            self._bar = tqdm(
                desc=progress.what,
                total=progress.total,
                unit=progress.unit or "it",
                unit_scale=progress.unit == "B",
                file=sys.stderr,
            )
        self._bar.n = progress.done
        self._bar.refresh()

    def _log_progress(self, part: str, progress: Progress) -> None:
        now = time.monotonic()
        if not progress.total or now - self._logged_at >= _LOG_EVERY_S:
            self._logged_at = now
            log.info("%s: %s", part, progress_text(progress))


def address(host: str, port: int) -> str:
    """The URL at which a server bound to `host` is reached from this machine."""
    host = _ALL_ADDRESSES.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def curl(url: str, *, model: str, is_chat: bool, has_key: bool) -> str:
    """A command that asks the server something, ready to be pasted into a shell."""
    asked = {"messages": [{"role": "user", "content": "What is gravity?"}]} if is_chat else {"prompt": "Gravity is"}
    body = {"model": model, **asked, "max_tokens": 64}
    quoted = json.dumps(body, ensure_ascii=False).replace("'", "'\\''")
    key = ' -H "Authorization: Bearer $API_KEY"' if has_key else ""
    route = "chat/completions" if is_chat else "completions"
    return f"curl {url}/v1/{route} -H 'Content-Type: application/json'{key} -d '{quoted}'"
