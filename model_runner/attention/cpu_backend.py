"""Attention in the C++ kernels over a pool of blocked pages. Every bit of a token's result depends on its own row only.

Knows no plans: which pages a row has stands in the batch.
"""

# T tokens in batch · N query heads · K kv heads · H head dim

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from model_runner.batch import BatchPlan
from model_runner.errors import StartError
from model_runner.kernels.library import Int, Library, Pointer, huge_tensor
from model_runner.kernels.stack import Work
from model_runner.kv_pool import KVPool

from .backend import AttentionSpec, Capabilities

BLOCK_TOKENS = 16
"""Pages are whole blocks of so many tokens."""

_ITEM_INTS, _TILE_INTS = 8, 4


class _Step(ctypes.Structure):
    """`Step` of the kernels."""

    _fields_ = (
        ("pages", Pointer),
        ("slots", Pointer),
        ("num_tokens", Int),
        ("num_heads", Int),
        ("num_kv_heads", Int),
        ("head_dim", Int),
        ("page_tokens", Int),
        ("scale", ctypes.c_float),
        ("softcap", ctypes.c_float),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Work:
    """What the layers of one window do: items, the tiles to merge, and room for the tiles' partials."""

    items: NDArray[np.int32]
    tiles: NDArray[np.int32]
    partials: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuStep:
    """What all layers of a step share; the work is by window, None being none. `batch` keeps the memory alive."""

    batch: BatchPlan
    step: _Step
    work: dict[int | None, _Work]

    def whole_work(self) -> tuple[Work, ...]:
        """The work of the windows, in the order of `CpuAttention.windows`, for all layers in one call."""
        return tuple(
            Work(
                work.items.ctypes.data,
                len(work.items),
                work.tiles.ctypes.data,
                len(work.tiles),
                work.partials.data_ptr(),
            )
            for work in self.work.values()
        )


class CpuAttention:
    """Blocked pages, float32 and bfloat16 storage, float32 arithmetic."""

    CAPABILITIES: ClassVar = Capabilities(
        dtypes=(torch.float32, torch.bfloat16),
        page_tokens=tuple(BLOCK_TOKENS * count for count in (1, 2, 3, 4, 8, 16)),
        head_dims=None,
        is_order_fixed=True,
        head_dim_multiple=16,
    )

    def __init__(self, spec: AttentionSpec, library: Library) -> None:
        self._spec = spec
        self.windows = tuple(dict.fromkeys(spec.window(layer) for layer in range(spec.num_layers)))
        """The distinct ones of all layers."""
        self.layers: tuple[Tensor, ...] = ()
        """The pool, by layer."""
        self._last_sizes = {window: [0, 0, 0] for window in self.windows}
        function = library.function
        self._plan = function("axil_attention_plan", Int, *4 * [Pointer], Int, Int, Int, *3 * [Pointer])
        self._forward = function(
            "axil_attention_forward",
            *(Pointer, Pointer, ctypes.c_int32, Int, Pointer, Int, Pointer, Int),
            *(Pointer, Int, Pointer, Int, Pointer, Int, Pointer, Pointer),
        )
        page_elements = function("axil_page_elements", Int, Int, Int, result=Int)
        self._page_elements: int = page_elements(spec.num_kv_heads, spec.head_dim, spec.page_tokens)
        self._partial_floats: int = function("axil_partial_floats", Int, result=Int)(spec.head_dim)

    def capabilities(self) -> Capabilities:
        """Any heads, any window; pages of whole blocks."""
        return self.CAPABILITIES

    def make_kv_pool(self, num_pages: int) -> KVPool:
        """Reserve the pool in huge pages.

        Raises:
            StartError: the system refuses to reserve that much.
        """
        spec = self._spec
        try:
            self.layers = tuple(
                huge_tensor((num_pages, self._page_elements), spec.dtype) for _ in range(spec.num_layers)
            )
        except OSError as error:
            raise StartError(
                f"the system refused to reserve a KV pool of {num_pages * spec.page_tokens} tokens ({error.strerror}); "
                "lower --max-total-tokens or --mem-fraction"
            ) from error
        return KVPool(num_pages=num_pages, page_tokens=spec.page_tokens, layers=self.layers)

    def begin_step(self, batch: BatchPlan) -> CpuStep:
        """Cut the rows into work items."""
        spec = self._spec
        step = _Step(
            batch.kv_indices.ctypes.data,
            batch.out_loc_T.data_ptr(),
            batch.num_tokens,
            spec.num_heads,
            spec.num_kv_heads,
            spec.head_dim,
            spec.page_tokens,
            spec.scale,
            spec.softcap or 0.0,
        )
        return CpuStep(batch=batch, step=step, work={window: self._work(batch, window) for window in self.windows})

    def forward(
        self, layer: int, q_TNH: Tensor, k_TKH: Tensor, v_TKH: Tensor, handle: CpuStep, out_TNH: Tensor
    ) -> Tensor:
        """Store, then attend."""
        q, k, v = (_rows(x) for x in (q_TNH, k_TKH, v_TKH))
        is_direct = out_TNH.dtype == torch.float32 and out_TNH.is_contiguous()
        out = out_TNH if is_direct else torch.empty(out_TNH.shape)
        window = self._spec.window(layer)
        work, pool = handle.work[window], self.layers[layer]
        self._forward(
            ctypes.byref(handle.step),
            pool.data_ptr(),
            pool.dtype == torch.bfloat16,
            window or 0,
            work.items.ctypes.data,
            len(work.items),
            work.tiles.ctypes.data,
            len(work.tiles),
            *(q.data_ptr(), q.stride(0), k.data_ptr(), k.stride(0), v.data_ptr(), v.stride(0)),
            work.partials.data_ptr(),
            out.data_ptr(),
        )
        return out if is_direct else out_TNH.copy_(out)

    def _work(self, batch: BatchPlan, window: int | None) -> _Work:
        rows = (batch.extend_lens, batch.prefix_lens, batch.qo_indptr, batch.kv_indptr)
        spec = self._spec
        arguments: tuple[Any, ...] = (
            batch.num_rows,
            *(array.ctypes.data for array in rows),
            spec.num_heads,
            spec.num_kv_heads,
            window or 0,
        )
        # Room for as many as the last step had: most have no more.
        sizes = np.array(self._last_sizes[window], np.int64)
        while True:
            room = sizes.tolist()
            items, tiles = np.empty((room[0], _ITEM_INTS), np.int32), np.empty((room[1], _TILE_INTS), np.int32)
            self._plan(*arguments, items.ctypes.data, tiles.ctypes.data, sizes.ctypes.data)
            num_items, num_tiles, num_partials = self._last_sizes[window] = sizes.tolist()
            if num_items <= room[0] and num_tiles <= room[1]:
                break
        partials = torch.empty(num_partials * spec.num_heads * self._partial_floats)
        return _Work(items=items[:num_items], tiles=tiles[:num_tiles], partials=partials)


def _rows(x_TNH: Tensor) -> Tensor:
    """In float32, with each token's heads side by side."""
    x_TNH = x_TNH.float()
    is_side_by_side = x_TNH.stride(2) == 1 and x_TNH.stride(1) == x_TNH.shape[2]
    return x_TNH if is_side_by_side else x_TNH.contiguous()
