"""Paged attention in Triton: what one query group or one tile of new tokens sees, with a softmax that runs along.

Positions are read in blocks that begin at multiples of their size, so a token's sums do not depend on who shares the
batch or where a chunk began. Nothing is planned: programs find their rows from lengths and offsets. Pages of any size;
heads of any size, padded to a power of two while they are computed. Slots behind a row's length are never read.

Types are Triton's own, which no checker follows.
"""

# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, ANN202

# G query heads of a kv head · M pairs of new token and query head · S positions in a block · H head dim, padded

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _scores(q, keys, scale, softcap, HAS_SOFTCAP: tl.constexpr):
    """Scores in base 2."""
    scores = tl.dot(q, keys, input_precision="ieee") * scale
    if HAS_SOFTCAP:
        # tanh(x) = 2 sigmoid(2 x) - 1
        scores = softcap * (2 * tl.sigmoid(2 * scores / softcap) - 1)
    return scores * 1.4426950408889634


@triton.jit
def _block(
    q,
    largest,
    total,
    weighted,
    k_cache,
    v_cache,
    pages,
    positions_S,
    num_positions,
    sees_MS,
    kv_head,
    slot_stride,
    head_stride,
    scale,
    softcap,
    HAS_SOFTCAP: tl.constexpr,
    PAGE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    FACTOR: tl.constexpr,
):
    """One block of positions more. A block of which a row sees nothing leaves the row's bits as they were."""
    dims = tl.arange(0, PADDED_DIM)
    is_there_S = positions_S < num_positions
    page_S = tl.load(pages + positions_S // PAGE, mask=is_there_S, other=0).to(tl.int64)
    start_S = (page_S * PAGE + positions_S % PAGE) * slot_stride + kv_head * head_stride
    is_dim = dims < HEAD_DIM
    keys = tl.load(k_cache + start_S[None, :] + dims[:, None], mask=is_there_S[None, :] & is_dim[:, None], other=0.0)
    scores = _scores(q, keys.to(FACTOR), scale, softcap, HAS_SOFTCAP)
    scores = tl.where(sees_MS & is_there_S[None, :], scores, float("-inf"))
    new_largest = tl.maximum(largest, tl.max(scores, 1))
    base = tl.where(new_largest == float("-inf"), 0.0, new_largest)
    weights = tl.exp2(scores - base[:, None])
    shrink = tl.exp2(largest - base)
    values = tl.load(v_cache + start_S[:, None] + dims[None, :], mask=is_there_S[:, None] & is_dim[None, :], other=0.0)
    total = total * shrink + tl.sum(weights, 1)
    # Rounded as the values are: the tensor cores multiply equal types.
    product = tl.dot(weights.to(values.dtype).to(FACTOR), values.to(FACTOR), input_precision="ieee")
    return new_largest, total, weighted * shrink[:, None] + product


@triton.jit
def decode_split(
    q_ptr,
    k_cache,
    v_cache,
    partial_ptr,
    log_sum_ptr,
    kv_lens,
    kv_indptr,
    kv_indices,
    scale,
    softcap,
    q_token_stride,
    q_head_stride,
    slot_stride,
    head_stride,
    HAS_SOFTCAP: tl.constexpr,
    WINDOW: tl.constexpr,
    GROUP: tl.constexpr,
    PAGE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    PADDED_GROUP: tl.constexpr,
    BLOCK: tl.constexpr,
    NUM_SPLITS: tl.constexpr,
    FACTOR: tl.constexpr,
):
    """One split of one decode row's positions, for one kv head: partials [B, N, splits, H] and their sums' logs."""
    row, kv_head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    num_heads = tl.num_programs(1) * GROUP
    length = tl.load(kv_lens + row)
    pages = kv_indices + tl.load(kv_indptr + row)
    seen_from = length * 0
    if WINDOW > 0:
        seen_from = tl.maximum(length - WINDOW, 0)
    start = seen_from // BLOCK * BLOCK
    split_tokens = tl.cdiv(tl.cdiv(length - start, NUM_SPLITS), BLOCK) * BLOCK
    first = start + split * split_tokens
    last = tl.minimum(first + split_tokens, length)
    in_group, dims = tl.arange(0, PADDED_GROUP), tl.arange(0, PADDED_DIM)
    heads_G = kv_head * GROUP + in_group
    is_head = in_group < GROUP
    is_number = is_head[:, None] & (dims < HEAD_DIM)[None, :]
    q = tl.load(
        q_ptr + row * q_token_stride + heads_G[:, None] * q_head_stride + dims[None, :], mask=is_number, other=0.0
    ).to(FACTOR)
    largest = tl.full([PADDED_GROUP], float("-inf"), tl.float32)
    total = tl.zeros([PADDED_GROUP], tl.float32)
    weighted = tl.zeros([PADDED_GROUP, PADDED_DIM], tl.float32)
    for block_start in range(first, last, BLOCK):
        positions_S = block_start + tl.arange(0, BLOCK)
        sees_MS = is_head[:, None] & (positions_S >= seen_from)[None, :]
        largest, total, weighted = _block(
            q,
            largest,
            total,
            weighted,
            k_cache,
            v_cache,
            pages,
            positions_S,
            last,
            sees_MS,
            kv_head,
            slot_stride,
            head_stride,
            scale,
            softcap,
            HAS_SOFTCAP,
            PAGE,
            HEAD_DIM,
            PADDED_DIM,
            FACTOR,
        )
    if first < last:
        place_G = (row * num_heads + heads_G) * NUM_SPLITS + split
        seen = tl.where(is_head, total, 1.0)
        tl.store(partial_ptr + place_G[:, None] * HEAD_DIM + dims[None, :], weighted / seen[:, None], mask=is_number)
        tl.store(log_sum_ptr + place_G, largest + tl.log2(seen), mask=is_head)


@triton.jit
def decode_merge(
    partial_ptr,
    log_sum_ptr,
    kv_lens,
    out_ptr,
    out_token_stride,
    out_head_stride,
    WINDOW: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    BLOCK: tl.constexpr,
    NUM_SPLITS: tl.constexpr,
):
    """A query head's partials, merged in the order of their positions."""
    row, head = tl.program_id(0), tl.program_id(1)
    length = tl.load(kv_lens + row)
    start = length * 0
    if WINDOW > 0:
        start = tl.maximum(length - WINDOW, 0) // BLOCK * BLOCK
    split_tokens = tl.cdiv(tl.cdiv(length - start, NUM_SPLITS), BLOCK) * BLOCK
    dims = tl.arange(0, PADDED_DIM)
    is_dim = dims < HEAD_DIM
    first_place = (row * tl.num_programs(1) + head) * NUM_SPLITS
    largest = tl.load(log_sum_ptr + first_place)
    total = largest * 0 + 1.0
    merged = tl.load(partial_ptr + first_place * HEAD_DIM + dims, mask=is_dim, other=0.0)
    for split in range(1, tl.cdiv(length - start, split_tokens)):
        place = first_place + split
        log_sum = tl.load(log_sum_ptr + place)
        new_largest = tl.maximum(largest, log_sum)
        shrink, weight = tl.exp2(largest - new_largest), tl.exp2(log_sum - new_largest)
        partial = tl.load(partial_ptr + place * HEAD_DIM + dims, mask=is_dim, other=0.0)
        merged = merged * shrink + partial * weight
        total = total * shrink + weight
        largest = new_largest
    out = out_ptr + row * out_token_stride + head * out_head_stride + dims
    tl.store(out, (merged / total).to(out_ptr.dtype.element_ty), mask=is_dim)


@triton.jit
def extend(
    q_ptr,
    k_cache,
    v_cache,
    out_ptr,
    qo_indptr,
    kv_lens,
    kv_indptr,
    kv_indices,
    scale,
    softcap,
    q_token_stride,
    q_head_stride,
    out_token_stride,
    out_head_stride,
    slot_stride,
    head_stride,
    HAS_SOFTCAP: tl.constexpr,
    WINDOW: tl.constexpr,
    GROUP: tl.constexpr,
    PAGE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    TILE: tl.constexpr,
    BLOCK: tl.constexpr,
    FACTOR: tl.constexpr,
):
    """One tile of (new token, query head) pairs of one row and kv head, whose K and V stand in the pool already."""
    tile, kv_head, row = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    token_start = tl.load(qo_indptr + row)
    num_new = tl.load(qo_indptr + row + 1) - token_start
    length = tl.load(kv_lens + row)
    pages = kv_indices + tl.load(kv_indptr + row)
    pairs_M = tile * TILE + tl.arange(0, TILE)
    is_pair = pairs_M < num_new * GROUP
    token_M = pairs_M // GROUP
    head_M = kv_head * GROUP + pairs_M % GROUP
    dims = tl.arange(0, PADDED_DIM)
    is_number = is_pair[:, None] & (dims < HEAD_DIM)[None, :]
    place_M = (token_start + token_M).to(tl.int64)
    q = tl.load(
        q_ptr + place_M[:, None] * q_token_stride + head_M[:, None] * q_head_stride + dims[None, :],
        mask=is_number,
        other=0.0,
    ).to(FACTOR)
    position_M = length - num_new + token_M
    first_token = tile * TILE // GROUP
    last_token = tl.minimum((tile * TILE + TILE - 1) // GROUP, num_new - 1)
    stop = length - num_new + last_token + 1
    start = length * 0
    if WINDOW > 0:
        start = tl.maximum(length - num_new + first_token + 1 - WINDOW, 0) // BLOCK * BLOCK
    if first_token >= num_new:
        stop = start
    largest = tl.full([TILE], float("-inf"), tl.float32)
    total = tl.zeros([TILE], tl.float32)
    weighted = tl.zeros([TILE, PADDED_DIM], tl.float32)
    for block_start in range(start, stop, BLOCK):
        positions_S = block_start + tl.arange(0, BLOCK)
        sees_MS = is_pair[:, None] & (positions_S[None, :] <= position_M[:, None])
        if WINDOW > 0:
            sees_MS = sees_MS & (positions_S[None, :] > position_M[:, None] - WINDOW)
        largest, total, weighted = _block(
            q,
            largest,
            total,
            weighted,
            k_cache,
            v_cache,
            pages,
            positions_S,
            stop,
            sees_MS,
            kv_head,
            slot_stride,
            head_stride,
            scale,
            softcap,
            HAS_SOFTCAP,
            PAGE,
            HEAD_DIM,
            PADDED_DIM,
            FACTOR,
        )
    out = out_ptr + place_M[:, None] * out_token_stride + head_M[:, None] * out_head_stride + dims[None, :]
    seen = tl.where(is_pair, total, 1.0)
    tl.store(out, (weighted / seen[:, None]).to(out_ptr.dtype.element_ty), mask=is_number)
