from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from radix.cache import PrefixCache
from radix.eviction.lru import Lru
from radix.native import library
from radix.native.core import NativeCore
from radix.pure import PureCore
from tests.radix.serving import CHAT, ids, serve
from wire.native import CannotBuild


@pytest.fixture
def not_yet_loaded() -> Iterator[None]:
    library.load_library.cache_clear()
    yield
    library.load_library.cache_clear()


def test_a_machine_without_a_compiler_serves_with_the_tree_in_python_and_says_what_is_lost(
    not_yet_loaded: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def none_there() -> None:
        raise CannotBuild("no C++ compiler was found")

    monkeypatch.setattr(library, "built", none_there)
    caches = [PrefixCache(num_pages=16, page_tokens=4) for _ in range(2)]
    assert all(isinstance(cache.core, PureCore) for cache in caches)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "no C++ compiler was found" in record.getMessage()
    serve(caches[0], range(9))
    assert caches[0].match(CHAT, ids(range(9))) == 9


def test_a_policy_that_the_compiled_tree_does_not_know_gets_the_tree_in_python() -> None:
    class NewestFirst(Lru):
        def rank(self, node: object, weight: float) -> float:
            return 0.0

    assert isinstance(PrefixCache(num_pages=16, page_tokens=4).core, NativeCore)
    assert isinstance(PrefixCache(num_pages=16, page_tokens=4, policy=NewestFirst(16)).core, PureCore)
