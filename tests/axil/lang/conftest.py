from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.axil.lang.scripted import Scripted


@pytest.fixture
def backend() -> Iterator[Scripted]:
    scripted = Scripted()
    yield scripted
    scripted.home.close()
