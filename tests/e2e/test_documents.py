"""The documents' code blocks, run as they stand against a real server; only the port is another."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.code_blocks import ROOT, Block, all_blocks, looks_like
from tests.e2e.server import Server

pytestmark = pytest.mark.e2e

PORT = "30000"
DEADLINE_S = 200


def of_language(language: str) -> list[Block]:
    return [block for block in all_blocks() if block.language == language and block.why_not_run is None]


def run(command: list[str], directory: Path) -> str:
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "TMPDIR": str(directory),
    }
    done = subprocess.run(
        command, cwd=directory, env=environment, capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("block", of_language("python"), ids=lambda block: block.place)
def test_a_python_block_runs(shared_server: Server, tmp_path: Path, block: Block) -> None:
    printed = run([sys.executable, "-c", block.code.replace(PORT, str(shared_server.port))], tmp_path)
    if "print(" in block.code:
        assert printed.strip()


@pytest.mark.parametrize("block", of_language("console"), ids=lambda block: block.place)
def test_a_console_block_prints_what_it_shows(shared_server: Server, tmp_path: Path, block: Block) -> None:
    shared_server.post("/flush_cache", {})
    for command, shown in block.commands:
        quiet = command.replace("curl ", "curl --silent --show-error ")
        printed = run(["bash", "-ec", quiet.replace(PORT, str(shared_server.port))], tmp_path)
        if shown:
            assert looks_like(shown, printed), f"{command} printed {printed}"
