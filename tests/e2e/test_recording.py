"""A recorded run, replayed on a server and simulated: as much is found cached each time."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from bench import simulate
from runtime.cli import run
from tests.e2e.conftest import TINY_CONTEXT
from tests.e2e.server import Server
from wire.recording import read_recording

pytestmark = pytest.mark.e2e

PAGE_TOKENS = 16
POOL_TOKENS = 4000


def talk(server: Server, seed: int) -> tuple[int, int]:
    """Several conversations that take turns and go on with what was answered; prompt and cached tokens of all."""
    draw = random.Random(seed)
    system = [draw.randrange(1, 250) for _ in range(70)]
    histories = [[*system, 1 + i] for i in range(8)]
    prompt_tokens = cached_tokens = 0
    for _ in range(60):
        number = draw.randrange(len(histories))
        prompt = histories[number] + [draw.randrange(1, 250) for _ in range(draw.randint(1, 40))]
        if len(prompt) > TINY_CONTEXT - 40:
            histories[number] = [*system, draw.randrange(1, 250)]
            continue
        sampling = {"temperature": 0, "max_new_tokens": draw.randint(1, 30), "ignore_eos": True}
        reply = server.post("/generate", {"input_ids": prompt, "sampling_params": sampling})
        assert reply.status == 200, reply.body
        histories[number] = prompt + reply.json["output_ids"]
        prompt_tokens += reply.json["meta_info"]["prompt_tokens"]
        cached_tokens += reply.json["meta_info"]["cached_tokens"]
    return prompt_tokens, cached_tokens


def test_a_recording_replayed_and_simulated_finds_as_much_cached(
    start: Callable[..., Server], tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "recording.jsonl"
    flags = ("--dtype", "float32", "--max-total-tokens", str(POOL_TOKENS), "--page-tokens", str(PAGE_TOKENS))
    server = start(str(tiny_model), *flags, "--record", str(path)).wait_ready()
    prompt_tokens, cached_tokens = talk(server, seed=1)
    hit_percent = 100 * cached_tokens / prompt_tokens
    assert 30 < hit_percent < 95
    server.post("/flush_cache", {})
    url = f"http://127.0.0.1:{server.port}"
    num_requests = server.figures()["requests_total"]
    assert run(["replay", str(path), "--url", url, "--closed", "1", "--limit", str(num_requests)], version="0") == 0
    (found,) = re.findall(r"found cached +([0-9.]+)% +([0-9.]+)%", capsys.readouterr().out)
    assert float(found[1]) == pytest.approx(hit_percent, abs=0.01)
    assert float(found[0]) == pytest.approx(hit_percent, abs=1)
    assert run(["report", "--url", url], version="0") == 0
    assert "lost to" in capsys.readouterr().out
    assert server.stop() == 0
    rows = read_recording(path)
    assert len(rows) == 2 * num_requests
    recorded = [row.session for row in rows[:num_requests]]
    assert 8 <= len(set(recorded)) < num_requests
    assert [row.session and row.session - num_requests for row in rows[num_requests:]] == recorded
    alone = tmp_path / "alone.jsonl"
    alone.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:num_requests]))
    figures = tmp_path / "figures.json"
    simulated = ["--only", "traces", "--trace", str(alone), "--open-requests", "1", "--json", str(figures)]
    simulate.main([*simulated, "--pool-tokens", str(POOL_TOKENS), "--page-tokens", str(PAGE_TOKENS)])
    told = json.loads(figures.read_text())
    (simulated_percent,) = [value for name, value in _flat(told).items() if name.endswith("alone_hit_percent")]
    assert simulated_percent == pytest.approx(hit_percent, abs=1)


def test_a_recording_that_cannot_be_made_stops_the_start_and_says_why(
    start: Callable[..., Server], tiny_model: Path, tmp_path: Path
) -> None:
    server = start(str(tiny_model), "--record", str(tmp_path / "absent" / "file.jsonl"))
    assert server.process.wait(timeout=60) != 0
    assert "can't be written: No such file or directory" in server.log


def _flat(value: object, name: str = "") -> dict[str, float]:
    if isinstance(value, dict):
        return {key: found for part, each in value.items() for key, found in _flat(each, str(part)).items()}
    return {name: float(value)} if isinstance(value, int | float) else {}
