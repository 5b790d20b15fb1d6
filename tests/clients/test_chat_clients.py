"""LangChain, `llm` and Ollama's client on a server of axil, where AXIL_CLIENTS names an environment with them."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.server import Server
from tests.runtime.template_lint.templates import HERMES

SCRIPT = Path(__file__).with_name("chat_clients.py")
PYTHON = Path(os.environ.get("AXIL_CLIENTS", "/nowhere")) / "bin" / "python"

pytestmark = pytest.mark.skipif(
    not PYTHON.exists(),
    reason="AXIL_CLIENTS names no environment with LangChain, llm and ollama; `make clients` makes one",
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    directory = tmp_path_factory.mktemp("chat")
    template = directory / "hermes.jinja"
    template.write_text(HERMES)
    running = Server(directory, "--max-total-tokens", "20000", "--chat-template", str(template))
    try:
        yield running.wait_ready()
    finally:
        running.stop()


@pytest.mark.parametrize("client", ["langchain", "langchain-responses", "llm", "ollama"])
def test_a_client_asks_streams_and_calls_as_it_does_elsewhere(server: Server, client: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [str(PYTHON), str(SCRIPT), f"http://127.0.0.1:{server.port}", client]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    server.assert_idle_and_whole()
