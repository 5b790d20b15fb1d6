"""The process that removes an engine's run directory when the program that held the engine is killed.

The scheduler and the model runner are ended by the kernel at that moment, and there is no tokenizer process to do it.
Knows nothing of requests. Start it through the launcher: `python -P -m runtime.keeper --status-fd N`.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

from wire.child import Notice, Shutdown, Started, adopt


@dataclass(frozen=True, slots=True, kw_only=True)
class KeeperLaunch:
    """What the launcher tells the keeper."""

    run_dir: str


def main() -> int:
    """Run the process until it is told to stop or its launcher has gone."""
    launch, child = adopt(KeeperLaunch, is_killed_with_launcher=False)
    is_over = threading.Event()
    exit_status = 1

    def take(notice: Notice) -> None:
        nonlocal exit_status
        exit_status = 0 if isinstance(notice, Shutdown) else 1
        is_over.set()

    child.watch(take, run_dir=launch.run_dir)
    child.tell(Started())
    is_over.wait()
    return exit_status


if __name__ == "__main__":
    raise SystemExit(main())
