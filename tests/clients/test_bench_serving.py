"""sglang's own load client on a server of axil. It runs where AXIL_CLIENTS names an environment that has sglang."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.server import Server
from tests.e2e.tiny_model import write_tiny_model

PYTHON = Path(os.environ.get("AXIL_CLIENTS", "/nowhere")) / "bin" / "python"
NUM_PROMPTS, OUTPUT_TOKENS = 6, 12
RANDOM = (
    *("--dataset-name", "random-ids", "--random-input-len", "40", "--random-output-len", str(OUTPUT_TOKENS)),
    *("--random-range-ratio", "1", "--num-prompts", str(NUM_PROMPTS)),
)
SHARED = (
    *("--dataset-name", "generated-shared-prefix", "--gsp-num-groups", "2", "--gsp-prompts-per-group", "3"),
    *("--gsp-system-prompt-len", "100", "--gsp-question-len", "20", "--gsp-output-len", str(OUTPUT_TOKENS)),
)

pytestmark = pytest.mark.skipif(
    not PYTHON.exists(), reason="AXIL_CLIENTS names no environment with sglang; `make clients` makes one"
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = write_tiny_model(tmp_path_factory.mktemp("tiny") / "model", context_tokens=2048)
    config = directory / "tokenizer_config.json"
    # transformers reads the client's tokenizer, and takes no object of this form for a token.
    config.write_text(json.dumps(json.loads(config.read_text()) | {"eos_token": "</s>"}))
    return directory


@pytest.fixture(scope="module")
def server(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    directory = tmp_path_factory.mktemp("bench")
    running = Server(directory, str(model), "--dtype", "float32", "--max-total-tokens", "20000")
    try:
        yield running.wait_ready()
    finally:
        running.stop()


@pytest.mark.parametrize("load", [RANDOM, SHARED], ids=["random", "shared-prefix"])
@pytest.mark.parametrize("backend", ["sglang", "sglang-oai", "sglang-oai-chat"])
def test_every_request_of_the_load_client_is_answered_in_full(
    server: Server, model: Path, tmp_path: Path, backend: str, load: tuple[str, ...]
) -> None:
    before = server.figures()["prompt_tokens_total"]
    figures = tmp_path / "figures.jsonl"
    command = [str(PYTHON), "-m", "sglang.bench_serving", "--backend", backend, "--disable-tqdm", "--flush-cache"]
    command += [
        "--base-url",
        f"http://127.0.0.1:{server.port}",
        "--model",
        server.get("/v1/models").json["data"][0]["id"],
    ]
    command += ["--tokenizer", str(model), "--output-file", str(figures), "--max-concurrency", "3", *load]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    told = json.loads(figures.read_text())
    assert told["completed"] == NUM_PROMPTS, done.stdout[-3000:]
    assert told["total_output_tokens"] == NUM_PROMPTS * OUTPUT_TOKENS
    assert told["mean_ttft_ms"] > 0
    assert server.figures()["prompt_tokens_total"] > before
    server.assert_idle_and_whole()
