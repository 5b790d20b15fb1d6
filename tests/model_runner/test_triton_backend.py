"""The Triton kernels: in its interpreter on the CPU, which proves arithmetic and indexing, and compiled on CUDA."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from model_runner.attention.backend import AttentionSpec
from model_runner.attention.triton_backend import TritonAttention
from model_runner.batch import BatchPlan, build_batch
from model_runner.graphs import padded
from model_runner.rows import RowTable
from wire.messages.encoding import ids_to_bytes
from wire.messages.to_runner import Admission, Chunk, StepPlan
from wire.sampling import SamplingParams

from .bed import Bed, assert_same, greedy
from .conftest import load_directory, save_tiny
from .devices import CPU, DEVICES
from .paged_cases import MIXED, Row, assert_attends, assert_layer, make_case, make_spec

ROOT = Path(__file__).parents[2]
H100_SHARED_BYTES = 227 << 10
BORDERS = [Row(length - 1, 1) for length in (1, 2, 15, 16, 17, 31, 32, 33)] + [Row(0, 16), Row(16, 16), Row(31, 1)]
TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 1e-2, torch.float16: 2e-3}


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> torch.device:
    return torch.device(request.param)


@pytest.mark.parametrize("page_tokens", [1, 16])
@pytest.mark.parametrize("rows", [BORDERS, MIXED], ids=["borders", "mixed"])
@pytest.mark.parametrize("is_deterministic", [False, True])
def test_it_attends_over_permuted_and_shared_pages_and_reads_nothing_that_was_not_stored(
    is_deterministic: bool, rows: list[Row], page_tokens: int, device: torch.device
) -> None:
    spec = make_spec(page_tokens=page_tokens, num_kv_heads=2, group=2, head_dim=16)
    backend = TritonAttention(spec, device, is_deterministic=is_deterministic)
    assert_attends(backend, make_case(spec, backend, rows), tolerance=TOLERANCE[spec.dtype])


@pytest.mark.parametrize("num_decodes", [0, 1, 3])
def test_decode_rows_and_chunks_share_a_step(num_decodes: int, device: torch.device) -> None:
    spec = make_spec(num_kv_heads=1, head_dim=16)
    backend = TritonAttention(spec, device)
    rows = [*(Row(14 + i, 1) for i in range(num_decodes)), Row(17, 30), Row(0, 5)]
    case = make_case(spec, backend, rows, num_decodes=num_decodes)
    assert_attends(backend, case, tolerance=TOLERANCE[spec.dtype])


@pytest.mark.parametrize(
    ("head_dim", "group", "dtype"),
    [
        (64, 1, torch.bfloat16),
        (64, 7, torch.float32),
        (80, 3, torch.float32),
        (96, 4, torch.float16),
        (128, 5, torch.float32),
        (256, 2, torch.bfloat16),
        (64, 17, torch.float32),
    ],
)
def test_every_head_dim_any_group_and_all_types(
    head_dim: int, group: int, dtype: torch.dtype, device: torch.device
) -> None:
    spec = make_spec(head_dim=head_dim, group=group, dtype=dtype, num_kv_heads=2)
    backend = TritonAttention(spec, device)
    assert_attends(backend, make_case(spec, backend, MIXED, num_decodes=2), tolerance=TOLERANCE[dtype])


@pytest.mark.parametrize("softcap", [None, 0.7])
@pytest.mark.parametrize("window", [1, 16, 17, 40])
@pytest.mark.parametrize("is_deterministic", [False, True])
def test_layers_with_a_window_and_without_one_see_what_they_should(
    is_deterministic: bool, window: int, softcap: float | None, device: torch.device
) -> None:
    spec = make_spec(windows=(window, None), softcap=softcap, head_dim=16, num_kv_heads=1)
    backend = TritonAttention(spec, device, is_deterministic=is_deterministic)
    assert_attends(backend, make_case(spec, backend, MIXED, num_decodes=2), tolerance=TOLERANCE[spec.dtype])


def test_a_long_row_is_split_and_merged(device: torch.device) -> None:
    spec = make_spec(head_dim=16, num_kv_heads=1, group=2, windows=(None, 700))
    backend = TritonAttention(spec, device)
    rows = [Row(1100, 1), Row(5, 1), Row(544, 1)]
    assert_attends(backend, make_case(spec, backend, rows, num_decodes=3), tolerance=TOLERANCE[spec.dtype])


def test_a_row_without_new_tokens_is_passed_over(device: torch.device) -> None:
    spec = make_spec(head_dim=16, num_kv_heads=1)
    backend = TritonAttention(spec, device)
    case = make_case(spec, backend, [Row(3, 7), Row(20, 40)])
    batch = case.batch
    first_pages = batch.kv_indices[: batch.kv_indptr[1]]
    with_empty = replace(
        batch,
        rows=np.arange(3),
        extend_lens=np.insert(batch.extend_lens, 1, 0),
        kv_lens=np.insert(batch.kv_lens, 1, batch.kv_lens[0]),
        qo_indptr=np.insert(batch.qo_indptr, 1, batch.qo_indptr[1]),
        kv_indptr=np.insert(batch.kv_indptr, 1, batch.kv_indptr[1])
        + np.array([0, 0, 1, 1], np.int32) * len(first_pages),
        kv_indices=np.insert(batch.kv_indices, len(first_pages), first_pages),
    )
    assert_attends(backend, replace(case, batch=with_empty), tolerance=TOLERANCE[spec.dtype])


def test_a_recorded_step_reads_the_lengths_and_pages_of_each_replay(device: torch.device) -> None:
    spec = make_spec(head_dim=16, num_kv_heads=1)
    backend = TritonAttention(spec, device)
    handle = None
    # Graphs of fewer rows lie in the memory of the first.
    backend.begin_capture(make_case(spec, backend, 6 * [Row(1, 1)], num_decodes=6).batch, max_pages=60)
    for seed, lengths in enumerate(([30, 2, 17, 64], [90, 1, 33], [5, 150, 16, 15])):
        case = make_case(spec, backend, [Row(n, 1) for n in lengths], seed=seed, num_decodes=len(lengths))
        pool = backend._pool
        assert pool is not None
        for tensor in pool.layers:
            tensor[pool.blank_page].zero_()
        batch = padded(case.batch, 4, pool)
        if handle is None:
            handle = backend.begin_capture(batch, max_pages=40)
        else:
            backend.begin_replay(handle, batch)
        q, k, v, _ = (torch.cat((x, x[:1].expand(4 - len(x), *x.shape[1:]))) for x in case.layers[0])
        out = backend.forward(0, q, k, v, handle, torch.empty_like(q))[: len(lengths)]
        assert_layer(lambda *_, out=out: out, 0, case, tolerance=TOLERANCE[spec.dtype])


@pytest.mark.parametrize("name", ["llama", "gemma3-linear-rope"])
def test_greedy_tokens_are_those_of_plain_torch(name: str, tmp_path: Path) -> None:
    save_tiny(name, tmp_path)
    model = load_directory(tmp_path)
    prompts = [greedy(range(3, 40)), greedy([5])]
    expected = Bed(model).generate(prompts, 3)
    outputs = Bed(model, new_backend=partial(TritonAttention, device=CPU)).generate(prompts, 3, chunk_tokens=30)
    for one, other in zip(outputs, expected, strict=True):
        assert_same(one, other)


@pytest.mark.parametrize(("head_dim", "group"), [(64, 7), (80, 1), (128, 8), (256, 2)])
def test_the_kernels_compile_for_an_h100_on_a_machine_without_one(head_dim: int, group: int, tmp_path: Path) -> None:
    """In a process of its own: here Triton interprets."""
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    environment |= {"TRITON_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(ROOT), "TRITON_DEFAULT_FP_FUSION": "1"}
    command = [sys.executable, "-m", "tests.model_runner.compile_triton", str(head_dim), str(group)]
    made = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    shared_bytes = dict(line.split() for line in made.stdout.splitlines())
    assert shared_bytes.keys() == {"decode_split", "decode_merge", "extend"}
    assert max(map(int, shared_bytes.values())) <= H100_SHARED_BYTES


def _one_row(spec: AttentionSpec, start: int, end: int) -> BatchPlan:
    """A chunk of one row, on scattered pages."""
    table = RowTable(num_pages=16, page_tokens=spec.page_tokens)
    pages = ids_to_bytes([9, 3, 14, 0, 7, 12, 1, 5, 2, 11])
    sampling = SamplingParams()
    table.admit(Admission(row=0, request_id="", sampling=sampling, num_cached_tokens=start, page_ids=pages))
    chunk = Chunk(row=0, token_ids=ids_to_bytes([1] * (end - start)), is_sampled=True)
    return build_batch(table, StepPlan(step=0, chunks=(chunk,)), vocabulary=2)


@pytest.mark.parametrize("window", [None, 40])
def test_in_deterministic_mode_a_token_gets_the_same_bits_wherever_its_chunk_began(
    window: int | None, device: torch.device
) -> None:
    spec = make_spec(head_dim=64, num_kv_heads=1, windows=(window,), dtype=torch.bfloat16)
    backend = TritonAttention(spec, device, is_deterministic=True)
    total = 150
    k, v = torch.randn(2, total, 1, 64, generator=torch.Generator().manual_seed(0)).to(spec.dtype).to(device)
    q = torch.randn(total, 3, 64, generator=torch.Generator().manual_seed(1)).to(spec.dtype).to(device)
    results = []
    for cuts in ([0, 150], [0, 1, 150], [0, 64, 100, 149, 150], [*range(0, 150, 7), 150]):
        out = torch.empty_like(q)
        backend.make_kv_pool(16)
        for start, end in pairwise(cuts):
            case_batch = _one_row(spec, start, end)
            handle = backend.begin_step(case_batch)
            own = slice(start, end)
            out[own] = backend.forward(0, q[own], k[own], v[own], handle, torch.empty_like(q[own]))
        results.append(out)
    for other in results[1:]:
        assert torch.equal(results[0], other)
