"""Other servers, started from a folder outside the project. Knows no loads.

The folder has an executable `peer.sh`. `PORT=8100 peer.sh NAME` starts the server NAME in the foreground on
127.0.0.1:$PORT, or ends with status 2 when it knows no such name and with another when it can't start it. The server
answers `/v1/completions` with token ids as prompts, streamed, with usage at the end. PEERS in the environment is where
its programs and models lie; it is set to the folder unless it is set already.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.command import CannotMeasure
from bench.server import NotStarted, Server, answers, free_port, started

SCRIPT = "peer.sh"
UNKNOWN_STATUS = 2
NOT_INSTALLED_STATUSES = (126, 127)


def script_of(folder: Path) -> Path:
    """The folder's `peer.sh`.

    Raises:
        CannotMeasure: there is none that can be run.
    """
    script = (folder / SCRIPT).resolve()
    if not os.access(script, os.X_OK) or not script.is_file():
        raise CannotMeasure(f"{folder} has no executable {SCRIPT}; --help says what the folder must hold")
    return script


@contextmanager
def peer(script: Path, name: str, *, within_s: float) -> Iterator[Server]:
    """Start a peer on a free port, wait until it has answered a prompt, and stop it at the end.

    Raises:
        NotStarted: the script does not know it, it is not installed, it ended, or it was not ready in time.
    """
    port = free_port()
    environment = {"PORT": str(port), "PEERS": os.environ.get("PEERS", str(script.parent))}
    try:
        with started(
            name,
            [str(script), name],
            port=port,
            is_ready=lambda: answers(port),
            within_s=within_s,
            environment=environment,
        ) as server:
            yield server
    except NotStarted as error:
        if error.status == UNKNOWN_STATUS:
            raise NotStarted(f"{script} knows no peer {name}", error.status) from error
        if error.status in NOT_INSTALLED_STATUSES:
            raise NotStarted(f"{name} is not installed: {_last_line(str(error))}", error.status) from error
        raise


def _last_line(text: str) -> str:
    return text.strip().splitlines()[-1]
