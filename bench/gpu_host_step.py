"""How long the host takes to prepare a decode step for a GPU: python -m bench.gpu_host_step

Runs everything that stands between a plan and the launch of its first kernel, FlashInfer's wrappers included, with
nothing where their compiled planning and kernels would be; needs no GPU. What is missing is the planning of the work
by the compiled module and the copies themselves.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest import mock

import flashinfer
import numpy as np
import torch

from model_runner.attention.backend import AttentionSpec
from model_runner.attention.flashinfer_backend import FlashInferAttention
from model_runner.batch import BatchPlan, build_batch
from model_runner.graphs import padded
from model_runner.rows import RowTable
from model_runner.staging import Staging
from wire.messages.encoding import ids_to_bytes
from wire.messages.to_runner import Admission, StepPlan
from wire.sampling import SamplingParams

CPU = torch.device("cpu")


class Nothing:
    """Takes the place of a compiled module."""

    def plan(self, *_: object) -> list[int]:
        """Give an empty schedule."""
        return []


@contextmanager
def without_kernels() -> Iterator[None]:
    """FlashInfer's wrappers without a device."""
    empty = torch.empty

    def unpinned(*args: object, pin_memory: bool = False, **kwargs: object) -> torch.Tensor:
        return empty(*args, **kwargs)  # type: ignore[call-overload, no-any-return]

    with (
        mock.patch.object(torch, "empty", unpinned),
        mock.patch.object(flashinfer.decode, "get_batch_prefill_module", lambda *_: Nothing()),
    ):
        yield


def main() -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=1000, help="length of a row")
    parser.add_argument("--page-tokens", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=300)
    args = parser.parse_args()
    torch.set_num_threads(1)
    spec = AttentionSpec(
        num_layers=1,
        num_heads=32,
        num_kv_heads=8,
        head_dim=128,
        scale=128**-0.5,
        dtype=torch.bfloat16,
        page_tokens=args.page_tokens,
    )
    table, plan = _rows(args.rows, args.tokens, args.page_tokens)
    with without_kernels(), torch.inference_mode():
        backend = FlashInferAttention(spec, CPU)
        pool = backend.make_kv_pool(16)
        batch = build_batch(table, plan, vocabulary=1000)
        recorded = padded(batch, args.rows, pool)
        handle = backend.begin_capture(recorded, max_pages=len(batch.kv_indices))
        staging = Staging(CPU)
        parts: dict[str, Callable[[], object]] = {
            "batch of the plan": lambda: build_batch(table, plan, vocabulary=1000),
            "inputs to the device": lambda: _stage(staging, batch),
            "wrapper planned, eager": lambda: backend.begin_step(batch),
            "wrapper planned, recorded step": lambda: backend.begin_replay(handle, batch),
        }
        medians = {name: _median_ms(work, args.repeats) for name, work in parts.items()}
    print(f"{args.rows} decode rows of {args.tokens} tokens, pages of {args.page_tokens}; medians of {args.repeats}")
    for name, value in medians.items():
        print(f"  {name:32}{value:8.3f} ms")
    shared = medians["batch of the plan"] + medians["inputs to the device"]
    print(f"  {'a step, eager':32}{shared + medians['wrapper planned, eager']:8.3f} ms")
    print(f"  {'a step, recorded':32}{shared + medians['wrapper planned, recorded step']:8.3f} ms")


def _rows(num_rows: int, num_tokens: int, page_tokens: int) -> tuple[RowTable, StepPlan]:
    num_pages = -(-(num_tokens + 1) // page_tokens)
    order = np.random.default_rng(0).permutation(num_rows * num_pages)
    table = RowTable(num_pages=len(order), page_tokens=page_tokens)
    for row in range(num_rows):
        table.admit(
            Admission(
                row=row,
                request_id=str(row),
                sampling=SamplingParams(),
                num_cached_tokens=num_tokens,
                page_ids=ids_to_bytes(order[row * num_pages : (row + 1) * num_pages].tolist()),
            )
        )
    return table, StepPlan(step=0, decodes=ids_to_bytes(range(num_rows)))


def _stage(staging: Staging, batch: BatchPlan) -> None:
    with staging.step():
        staging.device(batch.token_ids_T.numpy())
        staging.device(batch.rows)
        staging.device(batch.positions_T.numpy())


def _median_ms(work: Callable[[], object], repeats: int) -> float:
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return 1000 * statistics.median(times)


if __name__ == "__main__":
    main()
