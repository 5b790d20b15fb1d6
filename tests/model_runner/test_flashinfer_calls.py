from __future__ import annotations

import pytest

from .flashinfer_calls import FUNCTIONS, Shape, make_calls, undeclared


@pytest.fixture(scope="module")
def calls() -> set[Shape]:
    return make_calls()


def test_every_function_that_is_used_is_called_as_it_is_declared(calls: set[Shape]) -> None:
    called = {name for name, _, _ in calls}
    expected = {f"{module}:{function}" for module, functions in FUNCTIONS.items() for function in functions}
    for wrapper in ("BatchPrefillWithPagedKVCacheWrapper", "BatchDecodeWithPagedKVCacheWrapper"):
        expected |= {f"flashinfer:{wrapper}.{method}" for method in ("__init__", "plan", "run")}
    assert called == expected
    assert undeclared(calls) == []


def test_a_call_that_is_not_declared_is_told() -> None:
    wrong: set[Shape] = {
        ("flashinfer.norm:rmsnorm", 2, ("epsilon",)),
        ("flashinfer.sampling:top_k_of_all", 1, ()),
        ("flashinfer:BatchDecodeWithPagedKVCacheWrapper.plan", 8, ("seqlens",)),
    }
    assert [problem.partition(": ")[0] for problem in undeclared(wrong)] == sorted(name for name, _, _ in wrong)
