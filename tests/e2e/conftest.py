from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e.server import Server
from tests.e2e.tiny_model import write_tiny_model

pytestmark = pytest.mark.e2e

TINY_CONTEXT = 512


@pytest.fixture(scope="session")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One float32 server for all tests that leave it as it was."""
    server = Server(tmp_path_factory.mktemp("shared"), "--dtype", "float32", "--max-total-tokens", "20000")
    try:
        yield server.wait_ready()
    finally:
        server.stop()


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model over bytes that computes a token in microseconds."""
    return write_tiny_model(tmp_path_factory.mktemp("tiny") / "model", context_tokens=TINY_CONTEXT)


@pytest.fixture(scope="session")
def tiny_server(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of the tiny model for tests that leave it idle; its pool is smaller than what they put into it."""
    directory = tmp_path_factory.mktemp("tiny_server")
    server = Server(directory, str(tiny_model), "--dtype", "float32", "--max-total-tokens", "8000")
    try:
        yield server.wait_ready()
    finally:
        server.stop()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """Starts servers of this test's own and kills what it leaves."""
    servers: list[Server] = []

    def start_one(*flags: str) -> Server:
        servers.append(Server(tmp_path, *flags))
        return servers[-1]

    yield start_one
    for server in servers:
        if server.process.poll() is None:
            server.process.kill()
            server.process.wait()
