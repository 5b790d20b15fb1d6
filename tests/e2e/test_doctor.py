"""`axil doctor` on a real server: what changes in each prompt is found, by one tokenizer or by several."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.server import Server, wait_until
from tests.runtime.doctor.chats import SYSTEM

pytestmark = pytest.mark.e2e

COMMAND = (sys.executable, "-c", "import sys; from runtime.cli import run; sys.exit(run(version='0'))", "doctor")
ASKED = 12
"""So often that each of two tokenizers sees several of a client's prompts."""


def _ask(server: Server, line: str) -> None:
    messages = [{"role": "system", "content": f"{line}\n{SYSTEM}"}, {"role": "user", "content": "Mend it."}]
    assert server.post("/v1/chat/completions", {"messages": messages, "max_tokens": 1}).status == 200


def _doctor(server: Server, *flags: str) -> tuple[int, str]:
    url = f"http://127.0.0.1:{server.port}"
    done = subprocess.run([*COMMAND, url, *flags], capture_output=True, text=True, timeout=60, check=False)
    assert not done.stderr
    return done.returncode, done.stdout


def _cached(server: Server, nonce: str) -> int:
    """Cached tokens of a prompt behind a billing header with `nonce`."""
    header = f"x-anthropic-billing-header: cc_version=2.1.100.7b4; cc_entrypoint=cli; cch={nonce};"
    messages = [{"role": "user", "content": "Mend it."}]
    body = {"system": f"{header}\n{SYSTEM}", "messages": messages, "max_tokens": 1}
    usage = server.post("/v1/messages", body).json["usage"]
    return int(usage["cache_read_input_tokens"])


def test_a_billing_header_that_is_dropped_no_longer_spoils_the_cache(
    start: Callable[..., Server], tiny_model: Path
) -> None:
    spoiled = start(str(tiny_model), "--dtype", "float32").wait_ready()
    _cached(spoiled, "eb6c6")
    few = _cached(spoiled, "0aaa9")
    mended = start(str(tiny_model), "--dtype", "float32", "--drop-billing-headers").wait_ready()
    _cached(mended, "eb6c6")
    many = _cached(mended, "0aaa9")
    assert many > len(SYSTEM)  # a token is a byte
    assert few < 100
    assert mended.metric("axil_normalized_prompts_total") == 2
    for nonce in ("1c8b4", "defa0", "36ee5"):
        _cached(spoiled, nonce)
        _cached(mended, nonce)
    assert "serve with --drop-billing-headers" in _doctor(spoiled)[1]
    assert _doctor(mended)[0] == 0


def test_a_time_at_the_front_is_found_and_its_cost_told(start: Callable[..., Server], tiny_model: Path) -> None:
    server = start(str(tiny_model), "--dtype", "float32", "--tokenizer-workers", "2").wait_ready()
    assert _doctor(server)[0] == 0
    for i in range(ASKED):
        _ask(server, f"It is 18:{i:02}:31 now")
    # What a token costs is known once the scheduler has told its figures, which it does every second.
    wait_until(lambda: "s of computing" in _doctor(server)[1], "the cost is known")
    status, shown = _doctor(server)
    assert status == 1
    assert "a time, new in" in shown
    assert 'behind  "It is ":' in shown
    status, shown = _doctor(server, "--json")
    body = json.loads(shown)
    assert body["requests"] == ASKED
    assert body["seconds_per_token"] > 0
    (finding,) = [finding for group in body["groups"] for finding in group["findings"]]
    assert (finding["place"], finding["kind"]) == ("system", "timestamp")
    assert finding["changed"] >= ASKED // 2  # one tokenizer may have had too few to tell
