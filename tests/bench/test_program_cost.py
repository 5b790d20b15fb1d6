from __future__ import annotations

import json
from pathlib import Path

from bench.program_cost import main
from tests.axil.lang.fake_server import FakeServer, Prepared, running

ANSWER = {"text": "a", "meta_info": {"finish_reason": {"type": "length"}, "prompt_tokens": 9, "cached_tokens": 0}}


def test_every_call_of_every_batch_reaches_the_server_and_all_states_wait_at_once(tmp_path: Path) -> None:
    server = FakeServer({"/generate": [Prepared(ANSWER) for _ in range(3 * 10)]})
    written = tmp_path / "figures.json"
    with running(server):
        arguments = ["--url", server.url, "--calls", "10", "--repeats", "2", "--states", "300", "--json", str(written)]
        assert main(arguments) == 0
    assert not server.answers["/generate"]
    figures = json.loads(written.read_text())["figures"]
    assert 0 < figures["client_cpu_per_call_ms"] < 1000
    assert 0 < figures["memory_of_a_thousand_states_mb"] < 1000
