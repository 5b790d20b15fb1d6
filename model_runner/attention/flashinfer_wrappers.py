"""FlashInfer's wrappers as the backend uses them: how they are made, planned and run, and the memory that they need.

Everything that calls FlashInfer's attention is here.
"""

# B decode rows · T tokens in batch · N query heads · H head dim

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from flashinfer import BatchDecodeWithPagedKVCacheWrapper, BatchPrefillWithPagedKVCacheWrapper
from torch import Tensor

from model_runner.device import make_fence

from .backend import AttentionSpec

MIN_WORKSPACE_BYTES = 128 << 20
"""What FlashInfer's documentation asks for."""

_INT_WORKSPACE_BYTES = 8 << 20
"""Room for a schedule, as FlashInfer itself takes."""

_TILES_PER_MULTIPROCESSOR = 2
_TILE_ROWS = (16, 64, 128)
"""Query rows of a tile, each kv head's group counted; FlashInfer takes the first that holds a row's."""


class Lengths(Tensor):
    """A host tensor of lengths that costs one operation to take the maximum of.

    FlashInfer applies Python's own `max` to it, which makes a tensor of every element: 2 ms for 256 rows.
    """

    # What is made of it is a plain tensor.
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    def __iter__(self) -> Iterator[Tensor]:
        yield self.max()


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """What a wrapper is planned with: int32, all on the host but the page numbers."""

    qo_indptr: Tensor
    kv_indptr: Tensor
    kv_indices: Tensor
    last_page_len: Tensor
    kv_lens: Tensor
    max_new_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphMemory:
    """What the recorded steps of all numbers of rows read: one of them runs at a time, planned just before."""

    indptr: Tensor
    last_page_len: Tensor
    indices: Tensor
    int_workspaces: dict[int | None, Tensor]


class Decode:
    """The wrapper for rows of one token each, in the layers of one window; with `memory`, of a recorded step."""

    def __init__(
        self,
        spec: AttentionSpec,
        window: int | None,
        workspace: Tensor,
        memory: GraphMemory | None = None,
        *,
        num_rows: int = 0,
    ) -> None:
        self._heads, self._options = _heads(spec), _options(spec, window)
        self._planned = make_fence(workspace.device)
        if memory is None:
            self._wrapper = BatchDecodeWithPagedKVCacheWrapper(workspace, "NHD", use_tensor_cores=True, backend="fa2")
            return
        self._wrapper = BatchDecodeWithPagedKVCacheWrapper(
            workspace,
            "NHD",
            use_cuda_graph=True,
            use_tensor_cores=True,
            paged_kv_indptr_buffer=memory.indptr[: num_rows + 1],
            paged_kv_indices_buffer=memory.indices,
            paged_kv_last_page_len_buffer=memory.last_page_len[:num_rows],
            backend="fa2",
        )
        int_workspace = memory.int_workspaces.setdefault(
            window, torch.empty(_INT_WORKSPACE_BYTES, dtype=torch.uint8, device=workspace.device)
        )
        self._wrapper.reset_workspace_buffer(workspace, int_workspace)

    def plan(self, rows: Rows) -> None:
        """Schedule the rows.

        A plan is written into the wrapper's own pinned memory and copied from there when its turn comes: the next one
        waits until it has been.
        """
        self._planned.wait()
        self._wrapper.plan(
            rows.kv_indptr, rows.kv_indices, rows.last_page_len, *self._heads, seq_lens=rows.kv_lens, **self._options
        )
        self._planned.set()

    def run(self, q_BNH: Tensor, cache: tuple[Tensor, Tensor], out_BNH: Tensor) -> None:
        """Attend."""
        self._wrapper.run(q_BNH, cache, out=out_BNH, enable_pdl=False)


class Extend:
    """The wrapper for rows of any number of tokens, each of which sees what is before it, in one window's layers."""

    def __init__(self, spec: AttentionSpec, window: int | None, workspace: Tensor) -> None:
        self._heads, self._options = _heads(spec), _options(spec, window)
        self._planned = make_fence(workspace.device)
        self._wrapper = BatchPrefillWithPagedKVCacheWrapper(workspace, "NHD", backend="fa2")

    def plan(self, rows: Rows) -> None:
        """Schedule the rows, as `Decode.plan` does."""
        self._planned.wait()
        self._wrapper.plan(
            rows.qo_indptr,
            rows.kv_indptr,
            rows.kv_indices,
            rows.last_page_len,
            *self._heads,
            causal=True,
            seq_lens=rows.kv_lens,
            max_token_per_sequence=rows.max_new_tokens,
            **self._options,
        )
        self._planned.set()

    def run(self, q_TNH: Tensor, cache: tuple[Tensor, Tensor], out_TNH: Tensor) -> None:
        """Attend."""
        self._wrapper.run(q_TNH, cache, out=out_TNH, enable_pdl=False)


def _heads(spec: AttentionSpec) -> tuple[int, int, int, int]:
    return spec.num_heads, spec.num_kv_heads, spec.head_dim, spec.page_tokens


def _options(spec: AttentionSpec, window: int | None) -> dict[str, object]:
    return {
        # FlashInfer counts the positions before a query's own.
        "window_left": -1 if window is None else window - 1,
        "logits_soft_cap": spec.softcap,
        "q_data_type": spec.dtype,
        "kv_data_type": spec.dtype,
        "sm_scale": spec.scale,
        "non_blocking": True,
    }


def workspace_bytes(spec: AttentionSpec, *, num_multiprocessors: int, max_graph_rows: int = 0) -> int:
    """Memory for partial results of rows that are split among multiprocessors.

    One float32 vector and its sum for every head and query row of a tile. FlashInfer splits into at most two tiles a
    multiprocessor, shared among the kv heads; a recorded step has room for those that its rows fill, and one begun by
    each row but the first. A sixteenth more, for its alignment.
    """
    num_split = -(-_TILES_PER_MULTIPROCESSOR * num_multiprocessors // spec.num_kv_heads)
    group = spec.num_heads // spec.num_kv_heads
    decode_rows = next((rows for rows in _TILE_ROWS if group <= rows), _TILE_ROWS[-1])
    num_recorded = -(-max_graph_rows * group // decode_rows) + max(max_graph_rows - 1, 0)
    tile_rows = max(num_split * _TILE_ROWS[-1], num_recorded * decode_rows)
    return max(MIN_WORKSPACE_BYTES, spec.num_heads * tile_rows * (spec.head_dim + 1) * 4 * 17 // 16)
