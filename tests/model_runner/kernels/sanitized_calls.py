"""Calls the kernels on arrays of exactly the sizes that they need: run under a sanitizer, which sees any step beyond.

The arguments are the library and whether it multiplies bfloat16. Imports no torch, which takes long under a sanitizer.
"""

from __future__ import annotations

import ctypes
import sys
from ctypes import c_float, c_int32, c_int64, c_void_p

import numpy as np

MULTIPLIES_BF16 = sys.argv[2] == "1"
library = ctypes.CDLL(sys.argv[1])
assert library.axil_prepare() == 0
for name in ("axil_weight_bytes", "axil_page_elements", "axil_partial_floats"):
    getattr(library, name).restype = c_int64
random = np.random.default_rng(0)


class Step(ctypes.Structure):
    _fields_ = (("pages", c_void_p), ("slots", c_void_p), *((f"size{i}", c_int64) for i in range(5)))
    _fields_ = (*_fields_, ("scale", c_float), ("softcap", c_float))


class Weight(ctypes.Structure):
    _fields_ = tuple((name, c_int32) for name in ("format", "group", "gate", "activations", "has_bias"))
    _fields_ = (*_fields_, ("num_outputs", c_int64), ("num_columns", c_int64), ("data", c_void_p))


def at(array: np.ndarray | None) -> c_void_p:
    pointer = c_void_p(None if array is None else array.ctypes.data)
    pointer.array = array  # lives as long as the pointer does
    return pointer


def normal(*shape: int) -> np.ndarray:
    return random.standard_normal(shape, np.float32)


def attend(rows: list[tuple[int, int]], heads: int, kv_heads: int, dim: int, window: int, is_bf16: bool) -> None:
    """Rows of (stored, new) tokens, the stored ones being whatever the pool holds, NaN included."""
    prefix, extend = np.array(rows, np.int32).T.copy()
    lengths = prefix + extend
    pages_each = -(-lengths // 16)
    starts, page_starts = (np.concatenate(([0], np.cumsum(x))).astype(np.int32) for x in (extend, pages_each))
    pages = random.permutation(int(page_starts[-1])).astype(np.int32)
    pool = np.full(
        len(pages) * library.axil_page_elements(c_int64(kv_heads), c_int64(dim), c_int64(16)),
        0x7FC0 if is_bf16 else np.nan,
        np.uint16 if is_bf16 else np.float32,
    )
    slots = np.concatenate(
        [
            pages[first + np.arange(p, n) // 16].astype(np.int64) * 16 + np.arange(p, n) % 16
            for p, n, first in zip(prefix, lengths, page_starts[:-1], strict=True)
        ]
    )
    tokens = len(slots)
    step = Step(pages.ctypes.data, slots.ctypes.data, tokens, heads, kv_heads, dim, 16, 0.1, 0.0)
    sizes = np.zeros(3, np.int64)
    plan = (
        c_int64(len(rows)),
        *map(at, (extend, prefix, starts, page_starts)),
        *map(c_int64, (heads, kv_heads, window)),
    )
    library.axil_attention_plan(*plan, None, None, at(sizes))
    items, tiles = np.empty((sizes[0], 8), np.int32), np.empty((sizes[1], 4), np.int32)
    library.axil_attention_plan(*plan, at(items), at(tiles), at(sizes))
    partials = np.empty(int(sizes[2]) * heads * library.axil_partial_floats(c_int64(dim)), np.float32)
    q, k, v = normal(tokens, heads * dim), normal(tokens, kv_heads * dim), normal(tokens, kv_heads * dim)
    out = np.empty_like(q)
    library.axil_attention_forward(
        ctypes.byref(step),
        at(pool),
        c_int32(is_bf16),
        c_int64(window),
        *(at(items), c_int64(len(items)), at(tiles), c_int64(len(tiles))),
        *(at(q), c_int64(heads * dim), at(k), c_int64(kv_heads * dim), at(v), c_int64(kv_heads * dim)),
        *(at(partials), at(out)),
    )
    fresh = np.concatenate([np.full(n, p == 0) for p, n in rows])
    assert np.isfinite(out[fresh]).all(), "what nobody stored was read"


def between(tokens: int, size: int) -> None:
    """Norm, rotary embedding and softcap over rows of any size."""
    hidden, weight, out = normal(tokens, size), normal(size), np.empty((tokens, size), np.float32)
    shape = (c_int64(tokens), c_int64(size))
    library.axil_add_norm(at(hidden), at(hidden.copy()), at(weight), c_int32(0), c_float(1e-5), at(out), *shape)
    library.axil_softcap(at(out), c_float(30.0), *shape)
    positions, frequencies, divisors = np.arange(tokens), normal(size), np.ones(size, np.float32)
    cosines, sines = np.empty((tokens, size), np.float32), np.empty((tokens, size), np.float32)
    library.axil_angles(at(positions), at(frequencies), at(divisors), c_float(1.0), at(cosines), at(sines), *shape)
    heads = (c_int64(tokens), c_int64(3), c_int64(1), c_int64(2 * size))
    qkv, norm = normal(tokens, 5 * 2 * size), normal(2 * size)
    library.axil_rotate_heads(at(qkv), at(cosines), at(sines), at(norm), at(norm), c_int32(0), c_float(1e-5), *heads)


def multiply(tokens: int, outputs: int, columns: int, format_number: int, activations: int) -> None:
    """A linear layer in one of the formats of linear.h."""
    is_small = format_number >= 2
    is_grouped = is_small and (format_number, activations) != (2, 1)
    weight = Weight(format_number, 32 if is_grouped else columns, 0, activations, 0, outputs, columns, None)
    data = np.zeros(library.axil_weight_bytes(ctypes.byref(weight)) + 64, np.uint8)
    data = data[-data.ctypes.data % 64 :][: library.axil_weight_bytes(ctypes.byref(weight))]
    weight.data = data.ctypes.data
    rows, x, out = normal(outputs, columns), normal(tokens, columns), np.empty((tokens, outputs), np.float32)
    library.axil_write_rows(ctypes.byref(weight), c_int64(0), c_int32(-1), c_int64(outputs), at(rows))
    library.axil_linear(ctypes.byref(weight), at(x), c_int32(0), c_int64(tokens), at(out))
    error = np.abs(out - x @ rows.T).max() / np.sqrt(columns)
    assert error < (1.0 if is_small else 0.05), (format_number, activations, error)


def gate(tokens: int, outputs: int, gguf: int) -> None:
    """A gated layer with a bias from a GGUF file's blocks, and the rows of one that isn't gated."""
    columns, block_bytes = 64, {2: 18, 3: 20, 8: 34}[gguf]
    blocks = random.integers(0, 60, (outputs, columns // 32 * block_bytes), np.uint8)
    for kind in (1, 2, 0):
        weight = Weight(2 if gguf == 8 else 3, 32, kind, 0, 1, outputs, columns, None)
        size = library.axil_weight_bytes(ctypes.byref(weight))
        data = np.zeros(size + 64, np.uint8)
        data = data[-data.ctypes.data % 64 :][:size]
        weight.data = data.ctypes.data
        for half in (0, 1) if kind else (-1,):
            rows = (c_int64(0), c_int32(half), c_int64(outputs))
            library.axil_write_gguf(ctypes.byref(weight), *rows, at(blocks), c_int32(gguf))
            library.axil_write_bias(ctypes.byref(weight), *rows, at(normal(outputs)))
        out = np.empty((tokens, outputs), np.float32)
        library.axil_linear(ctypes.byref(weight), at(normal(tokens, columns)), c_int32(0), c_int64(tokens), at(out))
    ids, looked_up = np.array([outputs - 1, 0]), np.empty((2, columns), np.float32)
    library.axil_read_rows(ctypes.byref(weight), at(ids), c_int64(2), at(looked_up), c_int32(0))


class Changes(ctypes.Structure):
    _fields_ = (
        *(("seen", c_void_p), ("counts", c_void_p), ("num_seen", c_int64)),
        *(("biased", c_void_p), ("biases", c_void_p), ("num_biased", c_int64)),
        *(("forbidden", c_void_p), ("num_forbidden", c_int64)),
        *((name, c_float) for name in ("repetition", "frequency", "presence")),
    )


def change(size: int) -> None:
    """Penalties, biases and ids made impossible, at both ends of the second of two rows."""
    logits, out = normal(2, size), np.empty((2, size), np.float32)
    ids, values = np.unique(np.array([0, size - 1])), np.ones(2, np.float32)
    lists = (ids.ctypes.data, values.ctypes.data, len(ids))
    rows = (Changes * 2)(Changes(), Changes(*lists, *lists, ids.ctypes.data, len(ids), 1.5, 0.5, 0.5))
    library.axil_change_logits(at(logits), c_int64(2), c_int64(size), rows, at(out))
    assert (out[0] == logits[0]).all() and (out[1, ids] == -np.inf).all()


def choose(size: int, top_k: int, top_p: float, min_p: float) -> None:
    """Tokens of rows that are spread, all equal, forbidden but for one, and no numbers."""
    logits = 3 * normal(4, size)
    logits[1] = 0
    logits[2, 1:] = -np.inf
    logits[3, size // 2] = np.nan
    names = ("seed", "position", "top_k", "is_greedy", "temperature", "top_p", "min_p")
    kinds = ("<i8", "<i8", "<i4", "<i4", "<f4", "<f8", "<f8")
    layout = np.dtype({"names": names, "formats": kinds, "offsets": (0, 8, 16, 20, 24, 32, 40), "itemsize": 48})
    rows, tokens = np.array([(1, 2, top_k, 0, 0.8, top_p, min_p)] * 4, layout), np.empty(4, np.int64)
    library.axil_sample(at(logits), c_int64(4), c_int64(size), at(rows), at(tokens))
    assert tokens[2] == 0 and tokens[3] == -1 and 0 <= tokens[:2].min() <= tokens.max() < size
    masses, top = np.empty(4, np.float32), min(5, size)
    values, ids = np.empty((4, top), np.float32), np.empty((4, top), np.int64)
    shape = (c_int64(3), c_int64(size), c_int64(top))
    library.axil_top_logits(at(logits), *shape, at(masses), at(values), at(ids))
    assert ids[0, 0] == logits[0].argmax()


for num_threads in (1, 3):
    library.axil_set_threads(num_threads)
    for is_bf16 in (False, True):
        attend([(0, 1), (0, 17), (0, 300)], 3, 1, 64, 0, is_bf16)
        attend([(0, 5), (31, 1), (250, 20), (600, 1)], 8, 2, 10, 37, is_bf16)
        attend([(520, 1)], 4, 4, 80, 0, is_bf16)
    for size in (1, 7, 16, 33):
        between(3, size)
    for tokens in (1, 3, 5, 13):
        for outputs, columns in ((1, 32), (49, 64), (130, 96)):
            for format_number in range(4):
                for activations in range(1) if format_number < 2 else range(3 if MULTIPLIES_BF16 else 2):
                    multiply(tokens, outputs, columns, format_number, activations)
        for gguf in (2, 3, 8):
            gate(tokens, 37, gguf)
    for size in (1, 7, 40, 1003):
        change(size)
        for filters in ((0, 1.0, 0.0), (3, 1.0, 0.0), (0, 0.7, 0.0), (0, 1.0, 0.1), (900, 0.9, 0.01)):
            choose(size, *filters)
print("clean")
