"""Logging of one process: one line an event, to stderr, with the process's name. Level from AXIL_LOG."""

from __future__ import annotations

import logging
import os
import sys


def level_of(line: str) -> int | None:
    """The level of a line that `configure` has formatted; None of any other."""
    words = line.split(maxsplit=3)
    return logging.getLevelNamesMapping().get(words[2]) if len(words) > 2 else None


def configure(process_name: str) -> None:
    """Send this process's log lines to stderr at the level that AXIL_LOG names (default INFO)."""
    level = os.environ.get("AXIL_LOG", "INFO").upper()
    if level not in logging.getLevelNamesMapping():
        raise ValueError(f"AXIL_LOG={level} is no log level; use DEBUG, INFO, WARNING or ERROR")
    logging.basicConfig(
        level=level,
        stream=sys.stderr,
        format=f"%(asctime)s {process_name:9s} %(levelname)-7s %(message)s",
        datefmt="%H:%M:%S",
        force=True,
    )
    for chatty in ("aiohttp.access", "asyncio"):
        logging.getLogger(chatty).setLevel(max(logging.WARNING, logging.getLogger().level))
