"""The port that a server's tokenizers listen on: one for them all, and for nobody else."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from .config import HttpConfig


@contextmanager
def reserved(config: HttpConfig) -> Iterator[HttpConfig]:
    """The configuration with the port that several tokenizers shall share; it is this launch's until the end.

    A single tokenizer takes its port itself, and nobody can share it.

    Raises:
        OSError: names --host and --port, and says what is wrong with them.
    """
    if config.tokenizer_workers == 1:
        yield config
        return
    # Whoever may share a port may share it with any process of this user: first see that nobody is there.
    with bound(dataclasses.replace(config, tokenizer_workers=1)) as alone:
        port = alone.getsockname()[1]
    # Bound and not listening, it gets no connections, and keeps the port from being given away as a free one.
    with bound(dataclasses.replace(config, port=port)):
        yield dataclasses.replace(config, port=port)


def bound(config: HttpConfig) -> socket.socket:
    """A socket on the port, which other processes can share only where there are several tokenizers.

    Raises:
        OSError: names --host and --port, and says what is wrong with them.
    """
    try:
        found = socket.getaddrinfo(config.host, config.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except socket.gaierror as error:
        raise OSError(f"--host {config.host} is no address of this machine: {error.strerror}") from error
    family, kind, protocol, _, address = found[0]
    with contextlib.ExitStack() as stack:
        taken = stack.enter_context(socket.socket(family, kind, protocol))
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # The kernel resets a connection whose other end takes nothing for so long, in the middle of an answer or behind
        # it; the application sees its client leave. Accepted connections inherit it.
        taken.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(1000 * config.stalled_reader_timeout))
        if config.tokenizer_workers > 1:
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        try:
            taken.bind(address)
            if config.tokenizer_workers == 1:
                taken.listen()  # the kernel looks for others that listen only now
        except OSError as error:
            raise OSError(_why_not_bound(config, error)) from error
        stack.pop_all()
        return taken


def _why_not_bound(config: HttpConfig, error: OSError) -> str:
    match error.errno:
        case errno.EADDRINUSE:
            return (
                f"port {config.port} on {config.host} is taken by another process; choose another with --port "
                "(0 takes a free one)"
            )
        case errno.EADDRNOTAVAIL:
            return f"--host {config.host} is no address of this machine"
        case errno.EACCES:
            return f"port {config.port} may not be opened by this user; choose one above 1023 with --port"
        case _:
            return f"can't listen on {config.host} port {config.port} (--host, --port): {error}"
