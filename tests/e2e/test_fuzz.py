"""Requests made up from the server's own OpenAPI document, always the same; `make soak` sends others for minutes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.server import Server
from tests.fuzz.api import fuzz_api

pytestmark = pytest.mark.e2e


def test_no_request_of_the_document_s_making_is_a_server_s_error(tiny_server: Server, tmp_path: Path) -> None:
    said = fuzz_api(f"http://127.0.0.1:{tiny_server.port}", tmp_path, seed=1, num_examples=5, within_s=15)
    assert "generated" in said
    tiny_server.assert_idle_and_whole()
    assert "Traceback" not in tiny_server.log
