"""Runs the bookkeeping traces on the trees of SGLang and vLLM, in an interpreter that has them.

Started as a script by that interpreter, it reads pickled traces from its standard input and knows nothing of ours.
"""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

Traces = dict[str, list[tuple[list[int], list[int]]]]
PEERS = ("sglang classic", "vllm")
POOL_TOKENS = 65536
VLLM_BLOCK_TOKENS = 16
_REPEATS = 3


def print_peers(python: Path | None, ours: Mapping[str, float]) -> None:
    """Run what `python` can import, and print it beside our figures."""
    if python is None:
        print("peers: none were run; --peers-python names an interpreter that has SGLang or vLLM")
        return
    from .tree_shapes import agent, few_shot, unique

    traces: Traces = {}
    for name, requests in (("agent", agent()), ("few_shot", few_shot()), ("unique", unique())):
        traces[name] = [(tokens[: len(prompt) // 4].tolist(), tokens.tolist()) for prompt, tokens in requests]
    for peer in PEERS:
        command = [str(python), str(Path(__file__).resolve()), peer]
        done = subprocess.run(command, input=pickle.dumps(traces), capture_output=True, check=False)
        if done.returncode:
            reason = done.stderr.decode(errors="replace").strip().splitlines()[-1:] or ["no reason was given"]
            print(f"{peer}: not run: {reason[0]}")
            continue
        for name, micros in json.loads(done.stdout.splitlines()[-1]).items():
            own = ours[f"bookkeeping_{name}_us"]
            print(f"{peer}: bookkeeping_{name}_us {micros:.1f}, {micros / own:.1f} times ours")


def _vllm(requests: list[tuple[list[int], list[int]]]) -> float:
    import torch
    from vllm.sampling_params import SamplingParams
    from vllm.utils.hashing import sha256
    from vllm.v1.core.kv_cache_manager import KVCacheManager
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
    from vllm.v1.request import Request

    init_none_hash(sha256)
    spec = FullAttentionSpec(block_size=VLLM_BLOCK_TOKENS, num_kv_heads=1, head_size=16, dtype=torch.float16)
    config = KVCacheConfig(
        num_blocks=POOL_TOKENS // VLLM_BLOCK_TOKENS + 1,
        kv_cache_tensors=[],
        kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)],
    )
    manager = KVCacheManager(
        config,
        max_model_len=POOL_TOKENS,
        scheduler_block_size=VLLM_BLOCK_TOKENS,
        hash_block_size=VLLM_BLOCK_TOKENS,
        enable_caching=True,
    )
    hasher = get_request_block_hasher(VLLM_BLOCK_TOKENS, sha256)
    sampling = SamplingParams(max_tokens=64)
    started = time.thread_time()
    for number, (prompt, tokens) in enumerate(requests):
        request = Request(
            request_id=str(number), prompt_token_ids=prompt, sampling_params=sampling, pooling_params=None,
            block_hasher=hasher,
        )  # fmt: skip
        blocks, found, *_ = manager.get_computed_blocks(request)
        manager.allocate_slots(request, len(prompt) - found, found, blocks)
        request.num_computed_tokens = len(prompt)
        output = tokens[len(prompt) :]
        request.append_output_token_ids(output)
        manager.allocate_slots(request, len(output))
        manager.free(request)
    return (time.thread_time() - started) / len(requests) * 1e6


def _sglang_classic(requests: list[tuple[list[int], list[int]]]) -> float:
    import torch
    from sglang.srt.mem_cache.allocator import TokenToKVPoolAllocator
    from sglang.srt.mem_cache.base_prefix_cache import EvictParams, InsertParams, MatchPrefixParams
    from sglang.srt.mem_cache.cache_init_params import CacheInitParams
    from sglang.srt.mem_cache.radix_cache import RadixCache, RadixKey

    allocator = TokenToKVPoolAllocator(POOL_TOKENS, torch.float16, "cpu", None, need_sort=False)
    cache = RadixCache(
        CacheInitParams(disable=False, req_to_token_pool=None, token_to_kv_pool_allocator=allocator, page_size=1)
    )
    started = time.thread_time()
    for prompt, tokens in requests:
        match = cache.match_prefix(MatchPrefixParams(key=RadixKey(prompt[:-1], None)))
        found = len(match.device_indices)
        cache.inc_lock_ref(match.last_device_node)
        missing = len(tokens) - found
        if allocator.available_size() < missing:
            cache.evict(EvictParams(num_tokens=missing - allocator.available_size()))
        slots = torch.cat([match.device_indices, allocator.alloc(missing)])
        cache.insert(InsertParams(key=RadixKey(tokens, None), value=slots))
        cache.dec_lock_ref(match.last_device_node)
    return (time.thread_time() - started) / len(requests) * 1e6


def _main(peer: str) -> None:
    """Measure one peer on the traces; prints microseconds a request as JSON."""
    run: Callable[[Any], float] = {"vllm": _vllm, "sglang classic": _sglang_classic}[peer]
    traces: Traces = pickle.load(sys.stdin.buffer)
    print(
        json.dumps({name: sorted(run(each) for _ in range(_REPEATS))[_REPEATS // 2] for name, each in traces.items()})
    )


if __name__ == "__main__":
    _main(sys.argv[1])
