"""The kernels, built once for all tests."""

from __future__ import annotations

import pytest

from model_runner.kernels.library import Library, load_library


@pytest.fixture(scope="session")
def library() -> Library:
    """The kernels of this machine; it has a compiler, or the tests of kernels say so."""
    loaded = load_library()
    if loaded is None:
        pytest.skip("no compiler, or a CPU that the kernels aren't written for")
    return loaded
