"""Compiles the attention kernels for sm_90, which needs no GPU, and prints the shared memory of each in bytes."""

from __future__ import annotations

import sys
from typing import Any

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from model_runner.attention import triton_backend, triton_kernels

TARGET = GPUTarget("cuda", 90, 32)
POINTERS = {"qo_indptr": "*i32", "kv_lens": "*i32", "kv_indptr": "*i32", "kv_indices": "*i32"}
POINTERS |= {"q_ptr": "*bf16", "k_cache": "*bf16", "v_cache": "*bf16", "out_ptr": "*bf16"}
POINTERS |= {"partial_ptr": "*fp32", "log_sum_ptr": "*fp32", "scale": "fp32", "softcap": "fp32"}


def main() -> None:
    head_dim, group = map(int, sys.argv[1:])
    constants = {
        "HAS_SOFTCAP": True,
        "WINDOW": 100,
        "GROUP": group,
        "PAGE": 16,
        "HEAD_DIM": head_dim,
        "PADDED_DIM": triton.next_power_of_2(head_dim),
        "PADDED_GROUP": max(16, triton.next_power_of_2(group)),
        "TILE": triton_backend._TILE,
        "BLOCK": triton_backend._BLOCK,
        "NUM_SPLITS": triton_backend._NUM_SPLITS,
        "FACTOR": tl.bfloat16,
    }
    for name in ("decode_split", "decode_merge", "extend"):
        kernel: Any = getattr(triton_kernels, name)
        signature = {
            argument: "constexpr" if argument in constants else POINTERS.get(argument, "i32")
            for argument in kernel.arg_names
        }
        own = {(kernel.arg_names.index(key),): value for key, value in constants.items() if key in kernel.arg_names}
        compiled = triton.compile(ASTSource(kernel, signature, own), target=TARGET)
        assert compiled.asm["cubin"]
        print(name, compiled.metadata.shared)


if __name__ == "__main__":
    main()
