"""The ZMQ sockets between the processes of one launch. Knows addresses and options, no messages.

tokenizer DEALER <-> ROUTER scheduler PUSH -> PULL runner, a pair for each of its ranks, and runner PUSH -> PULL
scheduler. All are `ipc://` files in the launch's own directory (mode 0700), bound by the scheduler, without high-water
mark.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import zmq

IPC_PATH_LIMIT_BYTES = 107
"""The kernel's limit on the path of a Unix socket (108 with the final zero)."""

_EVENTS, _HAS_FRAME = int(zmq.EVENTS), int(zmq.POLLIN)  # the enumerations' own operators take longer than the question


@dataclass(frozen=True, slots=True)
class Endpoints:
    """The addresses of one launch."""

    run_dir: str

    @property
    def requests(self) -> str:
        """Where tokenizers reach the scheduler."""
        return f"ipc://{self.run_dir}/requests"

    def plans(self, rank: int) -> str:
        """Where a rank of the runner takes its plans."""
        return f"ipc://{self.run_dir}/plans{rank}"

    @property
    def results(self) -> str:
        """Where the runner's ranks leave their results."""
        return f"ipc://{self.run_dir}/results"


def make_run_dir() -> Path:
    """Create the private directory of a launch, in /tmp where the usual place makes too long a socket path."""
    run_dir = Path(tempfile.mkdtemp(prefix="axil-"))
    if len(f"{run_dir}/requests".encode()) <= IPC_PATH_LIMIT_BYTES:
        return run_dir
    run_dir.rmdir()
    return Path(tempfile.mkdtemp(prefix="axil-", dir="/tmp"))


def has_frame(socket: zmq.Socket[Any]) -> bool:
    """Whether something can be received: asked in a third of the time of an exception that says no."""
    events = socket.get(_EVENTS)
    assert isinstance(events, int), "a number, as ZMQ documents it"
    return events & _HAS_FRAME != 0


def bound(context: zmq.Context[Any], kind: int, address: str) -> zmq.Socket[Any]:
    """A bound socket without high-water mark that drops its queue when closed."""
    socket = _socket(context, kind)
    socket.bind(address)
    return socket


def connected(context: zmq.Context[Any], kind: int, address: str, *, identity: bytes | None = None) -> zmq.Socket[Any]:
    """A connected socket without high-water mark that drops its queue when closed."""
    socket = _socket(context, kind)
    if identity is not None:
        socket.setsockopt(zmq.IDENTITY, identity)
    socket.connect(address)
    return socket


def _socket(context: zmq.Context[Any], kind: int) -> zmq.Socket[Any]:
    socket: zmq.Socket[Any] = context.socket(kind)
    socket.setsockopt(zmq.SNDHWM, 0)
    socket.setsockopt(zmq.RCVHWM, 0)
    socket.setsockopt(zmq.LINGER, 0)
    return socket
