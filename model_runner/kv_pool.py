"""The paged KV pool: where K and V of every layer lie, and how many pages there can be. Knows no owner of a page."""

# K kv heads · H head dim

from __future__ import annotations

import logging
from dataclasses import dataclass

import torch
from torch import Tensor

from .errors import StartError

log = logging.getLogger(__name__)

CPU = torch.device("cpu")
MIN_AUTO_PAGES = 16
_GIB = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class KVPool:
    """Per layer [num_pages + 1, page_tokens, K or V, K, H]; the last page is blank at first, and for padding.

    Pages are not cleared: a slot that nobody has stored to holds anything, NaN included.
    """

    num_pages: int
    page_tokens: int
    layers: tuple[Tensor, ...]

    @property
    def blank_page(self) -> int:
        """The page behind the last usable one: of zeros, unless the backend pads with rows that store there."""
        return self.num_pages

    def store(self, layer: int, slots_T: Tensor, k_TKH: Tensor, v_TKH: Tensor) -> None:
        """Write the tokens' K and V at their slots (page * page_tokens + offset)."""
        slots = self.layers[layer].flatten(0, 1)
        slots.index_copy_(0, slots_T, torch.stack((k_TKH, v_TKH), dim=1).to(slots.dtype))

    def copy_pages(self, sources: Tensor, destinations: Tensor) -> None:
        """Copy whole pages in all layers; every source is read before any destination is written."""
        for pages in self.layers:
            pages.index_copy_(0, destinations, pages.index_select(0, sources))


def make_kv_pool(
    *,
    num_pages: int,
    page_tokens: int,
    num_layers: int,
    num_kv_heads: int,
    head_dim: int,
    dtype: torch.dtype,
    device: torch.device = CPU,
) -> KVPool:
    """Reserve a pool; the CPU's memory is taken from the system as pages are first written.

    Raises:
        StartError: the system refuses to reserve that much.
    """
    shape = (num_pages + 1, page_tokens, 2, num_kv_heads, head_dim)
    try:
        tensors = [torch.empty(shape, dtype=dtype, device=device) for _ in range(num_layers)]
    except RuntimeError as error:
        raise StartError(
            f"the system refused to reserve a KV pool of {num_pages * page_tokens} tokens; "
            "lower --max-total-tokens or --mem-fraction"
        ) from error
    for tensor in tensors:
        tensor[num_pages].zero_()
    return KVPool(num_pages=num_pages, page_tokens=page_tokens, layers=tuple(tensors))


def token_bytes(*, num_layers: int, num_kv_heads: int, head_dim: int, dtype: torch.dtype) -> int:
    """Memory that one token's K and V take."""
    return 2 * num_layers * num_kv_heads * head_dim * dtype.itemsize


def check_context_fits(context_tokens: int, *, num_pages: int, page_tokens: int, is_asked_for: bool) -> None:
    """See whether the longest request can be held; one that was not asked for is only warned about.

    Raises:
        StartError: `--context-length` asks for more than the pool holds; names numbers that work.
    """
    pool_tokens = num_pages * page_tokens
    if context_tokens <= pool_tokens:
        return
    enough = -(-context_tokens // page_tokens) * page_tokens
    if is_asked_for:
        raise StartError(
            f"--context-length {context_tokens} is more than the KV pool's {pool_tokens} tokens; "
            f"set --max-total-tokens to at least {enough}, or --context-length to at most {pool_tokens}"
        )
    log.warning(
        "the KV pool holds %d tokens, the model's context %d: longer requests are refused; for all, set"
        " --max-total-tokens %d",
        pool_tokens,
        context_tokens,
        enough,
    )


def choose_num_pages(
    *,
    page_tokens: int,
    token_bytes: int,
    free_bytes: int,
    max_total_tokens: int | None,
    max_total_bytes: int | None,
    mem_fraction: float,
) -> int:
    """Pages for the pool: what `--max-total-tokens` or `--max-total-bytes` says, else `--mem-fraction` of free memory.

    Raises:
        StartError: that does not fit, or leaves too few pages; names the flag and a number that works.
    """
    page_bytes = page_tokens * token_bytes
    if max_total_tokens is not None:
        return _as_asked("--max-total-tokens", max_total_tokens, page_tokens, page_bytes, free_bytes)
    if max_total_bytes is not None:
        return _as_asked("--max-total-bytes", max_total_bytes, page_bytes, page_bytes, free_bytes)
    num_pages = int(mem_fraction * free_bytes) // page_bytes
    if num_pages >= MIN_AUTO_PAGES:
        return num_pages
    needed = MIN_AUTO_PAGES * page_bytes
    raise StartError(
        f"--mem-fraction {mem_fraction} of {free_bytes / _GIB:.2f} GiB free memory holds {num_pages} pages of "
        f"{page_bytes} bytes, and {MIN_AUTO_PAGES} are needed; "
        + (
            f"raise --mem-fraction to {needed / free_bytes + 0.01:.2f}"
            if needed < 0.9 * free_bytes
            else f"free {needed / _GIB:.2f} GiB of memory or serve a smaller model"
        )
    )


def _as_asked(flag: str, amount: int, page_amount: int, page_bytes: int, free_bytes: int) -> int:
    num_pages = amount // page_amount
    if num_pages < 2:
        raise StartError(f"{flag} must be at least two pages ({2 * page_amount}), got {amount}")
    # The last tenth stays for activations.
    if num_pages <= int(0.9 * free_bytes) // page_bytes:
        return num_pages
    # What is free at the next start is never quite the same.
    largest = int(0.88 * free_bytes) // page_bytes
    raise StartError(
        f"{flag} {amount} needs {num_pages * page_bytes / _GIB:.2f} GiB, and {free_bytes / _GIB:.2f} GiB are free; "
        + (f"set {flag} to at most {largest * page_amount}" if largest >= 2 else "free memory or serve a smaller model")
    )
