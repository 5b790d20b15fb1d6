"""The server under measurement: one that runs already, or `axil serve` started here and stopped again."""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import random
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from bench.client import require_loopback
from bench.command import CannotMeasure

DEFAULT_URL = "http://127.0.0.1:30000"
READY_WITHIN_S = 300.0
STOPPED_WITHIN_S = 10.0
PROBE_TIMEOUT_S = 60.0
POLL_S = 0.02
LAST_LINES = 15
_SELDOM_TAKEN = range(20_000, 32_768)


class NotStarted(CannotMeasure):
    """A server ended, or was not ready in time; `status` is its exit status if it ended."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A server that answers; `ready_s` is how long a started one took from its process's start until it was ready.

    `process_id` is that of the process that was started, with all others as its children.
    """

    url: str
    ready_s: float
    process_id: int


def add_launch_flags(parser: argparse.ArgumentParser) -> None:
    """Add what `axil serve` is started with."""
    parser.add_argument(
        "--serve-flags",
        type=shlex.split,
        default=[],
        metavar="'FLAGS'",
        help="further arguments of axil serve, in one string: a model, or --serve-flags='--dtype float32'",
    )


def add_server_flags(parser: argparse.ArgumentParser) -> None:
    """Add the choice between a server that runs and one that is started."""
    parser.add_argument("--url", help=f"server to ask (default: {DEFAULT_URL})")
    parser.add_argument("--allow-remote", action="store_true", help="let --url name another machine")
    parser.add_argument("--model", help="model to ask for (default: the first in /v1/models)")
    parser.add_argument("--launch", action="store_true", help="start axil serve on a free port, and stop it afterwards")
    add_launch_flags(parser)


@contextmanager
def chosen(args: argparse.Namespace) -> Iterator[str]:
    """The URL of the server that the flags of `add_server_flags` choose.

    Raises:
        CannotMeasure: the flags contradict each other, `--url` names another machine without `--allow-remote`, or the
            started server did not become ready.
    """
    if args.launch:
        if args.url is not None:
            raise CannotMeasure("--launch starts a server of its own; leave out --url")
        with launched(args.serve_flags) as server:
            yield server.url
        return
    if args.serve_flags:
        raise CannotMeasure("--serve-flags are for the server that --launch starts; add --launch")
    url = args.url or DEFAULT_URL
    require_loopback(url, is_remote_allowed=args.allow_remote)
    yield url


@contextmanager
def launched(
    flags: Sequence[str],
    *,
    environment: Mapping[str, str] | None = None,
    command: Sequence[str] | None = None,
    until_answered: bool = False,
) -> Iterator[Server]:
    """Start `axil serve` on a free loopback port, wait until it is ready, and stop it at the end.

    It is ready when it is healthy or, with `until_answered`, when it has completed a prompt. `environment` is added to
    this process's own; `command` replaces the `axil serve` of this environment.

    Raises:
        CannotMeasure: it ended or was not ready within `READY_WITHIN_S`.
    """
    port = free_port()
    words = [*(command or [_axil(), "serve"]), *flags, "--host", "127.0.0.1", "--port", str(port)]
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    with (
        contextlib.closing(connection),
        started(
            "axil serve",
            words,
            port=port,
            is_ready=lambda: answers(port) if until_answered else health(connection) == 200,
            within_s=READY_WITHIN_S,
            environment=environment or {},
        ) as server,
    ):
        yield server


@contextmanager
def started(
    name: str,
    words: Sequence[str],
    *,
    port: int,
    is_ready: Callable[[], bool],
    within_s: float,
    environment: Mapping[str, str],
) -> Iterator[Server]:
    """Start a server that will listen on loopback `port`, wait until it is ready, and stop it at the end.

    It gets a process group of its own, in this session, so that a priority given to the session is its too; whatever is
    left of the group at the end is killed.

    Raises:
        NotStarted: it ended, or was not ready in time.
    """
    with tempfile.TemporaryFile() as log, _sigterm_as_exit():
        started_s = time.monotonic()
        try:
            process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **environment},
                process_group=0,
            )
        except OSError as error:
            raise NotStarted(f"{words[0]} can't be run: {error.strerror}") from error
        try:
            while not is_ready():
                if process.poll() is not None:
                    raise NotStarted(
                        f"{name} ended with status {process.returncode}:\n{_last_words(log)}", process.returncode
                    )
                if time.monotonic() - started_s > within_s:
                    raise NotStarted(f"{name} was not ready within {within_s:.0f} s:\n{_last_words(log)}")
                time.sleep(POLL_S)
            ready_s = time.monotonic() - started_s
            yield Server(url=f"http://127.0.0.1:{port}", ready_s=ready_s, process_id=process.pid)
        finally:
            _stop(process)


def health(connection: http.client.HTTPConnection) -> int | None:
    """The status of one GET /health on a connection that is kept open, or None when nobody answers."""
    try:
        connection.request("GET", "/health")
        response = connection.getresponse()
        response.read()
    except (OSError, http.client.HTTPException):
        connection.close()
        return None
    return response.status


def answers(port: int) -> bool:
    """Whether the server on loopback `port` completes a prompt of token ids."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PROBE_TIMEOUT_S)
    try:
        body = json.dumps({"prompt": [1, 2, 3], "max_tokens": 1, "temperature": 0})
        connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _stop(process: subprocess.Popen[bytes]) -> None:
    try:
        process.terminate()
        process.wait(STOPPED_WITHIN_S)
    except subprocess.TimeoutExpired:
        pass
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        _wait_until_gone(process.pid)


def _wait_until_gone(process_group: int) -> None:
    """Wait for the orphans of a killed group; not for ever, since nobody may collect their exit statuses."""
    deadline_s = time.monotonic() + STOPPED_WITHIN_S
    with contextlib.suppress(ProcessLookupError):
        while time.monotonic() < deadline_s:
            os.killpg(process_group, 0)
            time.sleep(POLL_S)


@contextmanager
def _sigterm_as_exit() -> Iterator[None]:
    """Let SIGTERM unwind this process, so that the server it started is stopped too."""

    def leave(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _last_words(log: IO[bytes]) -> str:
    log.seek(0)
    return "\n".join(log.read().decode(errors="replace").splitlines()[-LAST_LINES:])


def _axil() -> str:
    beside_python = Path(sys.executable).with_name("axil")
    found = str(beside_python) if beside_python.exists() else shutil.which("axil")
    if found is None:
        raise CannotMeasure("there is no axil command beside this Python: run `make setup`, then .venv/bin/python -m …")
    return found


def free_port() -> int:
    """A loopback port that nobody listens on.

    Linux gives higher ones to whoever asks for any, so nobody gets it before a server that starts slowly has it.
    """
    for port in random.SystemRandom().sample(_SELDOM_TAKEN, len(_SELDOM_TAKEN)):
        with socket.socket() as listener, contextlib.suppress(OSError):
            listener.bind(("127.0.0.1", port))
            return port
    raise CannotMeasure("no port from 20000 to 32767 is free")
