"""sglang's own clients on a server of axil. They run where AXIL_CLIENTS names an environment that has sglang."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.server import Server

FRONTEND = Path(__file__).with_name("sglang_frontend.py")
PYTHON = Path(os.environ.get("AXIL_CLIENTS", "/nowhere")) / "bin" / "python"

pytestmark = pytest.mark.skipif(
    not PYTHON.exists(), reason="AXIL_CLIENTS names no environment with sglang; `make clients` makes one"
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    running = Server(tmp_path_factory.mktemp("clients"), "--max-total-tokens", "20000")
    try:
        yield running.wait_ready()
    finally:
        running.stop()


def run(*words: str) -> str:
    """The output of a client, whose packages are its environment's own."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [str(PYTHON), *words], env=environment, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


def test_programs_of_sglangs_frontend_run_as_they_are(server: Server) -> None:
    run(str(FRONTEND), f"http://127.0.0.1:{server.port}")
    server.assert_idle_and_whole()
