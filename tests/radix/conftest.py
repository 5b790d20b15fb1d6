from __future__ import annotations

import pytest

from radix import cache


@pytest.fixture(params=["compiled", "python"])
def each_core(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Runs a test with the compiled tree and with the one in Python."""
    if request.param == "python":
        monkeypatch.setattr(cache, "load_library", lambda: None)
    return str(request.param)
