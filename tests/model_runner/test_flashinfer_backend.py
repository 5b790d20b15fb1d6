"""The backend on FlashInfer's real wrappers, over reference kernels: see `reference_kernels` for what that proves."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import flashinfer
import pytest
import torch

from model_runner.attention.flashinfer_backend import FlashInferAttention
from model_runner.attention.flashinfer_wrappers import MIN_WORKSPACE_BYTES, workspace_bytes

from .devices import CPU, type_on
from .paged_cases import MIXED, Row, assert_attends, make_case, make_spec
from .reference_kernels import Call, reference_kernels

BORDERS = [Row(0, 1), Row(0, 16), Row(0, 17), Row(15, 1), Row(16, 1), Row(15, 2), Row(16, 16), Row(31, 2), Row(1, 47)]
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 2e-3}


@pytest.fixture
def calls() -> Iterator[list[Call]]:
    with reference_kernels() as recorded:
        yield recorded


@pytest.mark.parametrize("page_tokens", [1, 16])
@pytest.mark.parametrize("rows", [BORDERS, MIXED], ids=["borders", "mixed"])
def test_it_attends_over_permuted_and_shared_pages_and_reads_nothing_that_was_not_stored(
    rows: list[Row], page_tokens: int, device: torch.device
) -> None:
    spec = make_spec(page_tokens=page_tokens, dtype=type_on(device))
    backend = FlashInferAttention(spec, device)
    assert_attends(backend, make_case(spec, backend, rows), tolerance=TOLERANCE[spec.dtype])


@pytest.mark.parametrize("num_decodes", [0, 1, 2, 4])
def test_decode_rows_and_chunks_share_a_step(num_decodes: int, device: torch.device) -> None:
    spec = make_spec(dtype=type_on(device))
    backend = FlashInferAttention(spec, device)
    rows = [*(Row(14 + i, 1) for i in range(num_decodes)), Row(17, 30), Row(0, 5)]
    case = make_case(spec, backend, rows, num_decodes=num_decodes)
    assert_attends(backend, case, tolerance=TOLERANCE[spec.dtype])


@pytest.mark.parametrize(
    ("head_dim", "group", "dtype"),
    [
        (64, 1, torch.bfloat16),
        (64, 7, torch.bfloat16),
        (128, 5, torch.float16),
        (128, 4, torch.bfloat16),
        (256, 2, torch.float16),
    ],
)
def test_every_head_dim_any_group_and_both_types(
    head_dim: int, group: int, dtype: torch.dtype, device: torch.device
) -> None:
    spec = make_spec(head_dim=head_dim, group=group, dtype=dtype)
    backend = FlashInferAttention(spec, device)
    assert {head_dim} <= set(backend.capabilities().head_dims or ())
    assert dtype in backend.capabilities().dtypes
    assert_attends(backend, make_case(spec, backend, MIXED, num_decodes=2), tolerance=TOLERANCE[dtype])


@pytest.mark.parametrize("softcap", [None, 0.7])
@pytest.mark.parametrize("window", [1, 5, 16, 17, 100])
def test_layers_with_a_window_and_without_one_see_what_they_should(
    window: int, softcap: float | None, device: torch.device
) -> None:
    spec = make_spec(windows=(window, None, window), softcap=softcap, dtype=type_on(device))
    backend = FlashInferAttention(spec, device)
    assert_attends(backend, make_case(spec, backend, MIXED, num_decodes=2), tolerance=TOLERANCE[spec.dtype])


def test_a_step_after_another_reads_its_own_plan(device: torch.device) -> None:
    spec = make_spec(dtype=type_on(device))
    backend = FlashInferAttention(spec, device)
    for seed in range(6):
        rows = [Row(7 * seed, 1), Row(3, 1 + 11 * seed), Row(16, 20 - seed)]
        assert_attends(backend, make_case(spec, backend, rows, seed=seed), tolerance=TOLERANCE[spec.dtype])


def test_a_step_of_decode_rows_alone_plans_no_prefill(calls: list[Call]) -> None:
    spec = make_spec()
    backend = FlashInferAttention(spec, CPU)
    rows = [Row(14 + i, 1) for i in range(5)]
    assert_attends(backend, make_case(spec, backend, rows, num_decodes=5), tolerance=TOLERANCE[torch.float32])
    assert [call.name for call in calls if call.name.endswith("plan")] == ["BatchDecodeWithPagedKVCacheWrapper.plan"]


def test_every_call_that_is_made_is_one_that_flashinfer_declares(calls: list[Call]) -> None:
    spec = make_spec(windows=(None, 9), dtype=torch.bfloat16)
    backend = FlashInferAttention(spec, CPU)
    assert_attends(backend, make_case(spec, backend, MIXED, num_decodes=2), tolerance=TOLERANCE[torch.bfloat16])
    assert {call.name.partition(".")[2] for call in calls} == {"__init__", "plan", "run"}
    for call in calls:
        bound = call.bound()
        assert "kwargs" not in bound, call.name
        assert "deprecated_positional_args" not in bound, call.name
        match call.name.split("."):
            case [name, "__init__"]:
                assert bound["backend"] == "fa2", name
                assert bound["kv_layout"] == "NHD", name
            case [name, "plan"]:
                assert bound["q_data_type"] == bound["kv_data_type"] == torch.bfloat16, name
                assert bound["seq_lens"] is not None, name
                assert "max_sequence_kv" not in bound, "0.6.18's plan fails with it"
                if name == "BatchPrefillWithPagedKVCacheWrapper":
                    assert bound["causal"] is True
            case [name, "run"]:
                assert bound["out"] is not None, "prefill clears a new output in every layer without one"


def test_the_defaults_that_the_calls_override_are_still_what_they_were() -> None:
    plan = inspect.signature(flashinfer.BatchPrefillWithPagedKVCacheWrapper.plan).parameters
    assert (plan["causal"].default, plan["q_data_type"].default, plan["window_left"].default) == (False, "float16", -1)
    decode_plan = inspect.signature(flashinfer.BatchDecodeWithPagedKVCacheWrapper._plan_impl).parameters
    assert (decode_plan["q_data_type"].default, decode_plan["window_left"].default) == ("float16", -1)
    for wrapper in (flashinfer.BatchPrefillWithPagedKVCacheWrapper, flashinfer.BatchDecodeWithPagedKVCacheWrapper):
        assert inspect.signature(wrapper).parameters["kv_layout"].default == "NHD"


def test_the_version_is_one_that_was_checked() -> None:
    assert flashinfer.__version__ == "0.6.18.post1"


def test_the_workspace_grows_with_what_a_split_of_the_work_needs() -> None:
    small = make_spec(head_dim=64, num_kv_heads=8, group=1, dtype=torch.bfloat16)
    assert workspace_bytes(small, num_multiprocessors=132) == MIN_WORKSPACE_BYTES
    wide = make_spec(head_dim=128, num_kv_heads=1, group=32, dtype=torch.bfloat16)
    assert workspace_bytes(wide, num_multiprocessors=132) > 32 * 264 * 128 * 129 * 4
    recorded = workspace_bytes(wide, num_multiprocessors=4, max_graph_rows=512)
    assert recorded > 32 * 512 * 64 * 129 * 4


@pytest.mark.parametrize(("num_kv_heads", "group"), [(8, 4), (8, 5), (8, 8), (4, 16), (4, 17), (1, 40)])
def test_the_workspace_holds_what_a_recorded_step_is_planned_with(num_kv_heads: int, group: int) -> None:
    spec = make_spec(head_dim=128, num_kv_heads=num_kv_heads, group=group, dtype=torch.bfloat16)
    tile = 16 if group <= 16 else 64
    # As `PrefillSplitQOKVIndptr` counts a recorded step's tiles, in `scheduler.cuh`.
    num_tiles = -(-256 * group // tile) + 256 - 1
    num_bytes = spec.num_heads * num_tiles * tile * (128 + 1) * 4
    assert workspace_bytes(spec, num_multiprocessors=132, max_graph_rows=256) >= num_bytes
