"""Measures the trees of SGLang and vLLM on the operations that ours is measured on, in an interpreter that has them.

Started as a script by that interpreter, it reads pickled `Inputs` from its standard input and prints each figure as a
line of JSON, [name, value], as soon as it has it; the value is null where the operation took longer than it may.
Knows nothing of ours.
"""

from __future__ import annotations

import json
import pickle
import signal
import sys
import time
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from types import FrameType
from typing import Any, TypedDict

POOL_TOKENS = 65536
VLLM_BLOCK_TOKENS = 16
_REPEATS = 3
_MATCHES = 5
_EVICTIONS = 20

Requests = list[tuple["array[int]", "array[int]"]]
"""Each request's prompt, and prompt and output together."""

Serve = Callable[["array[int]", "array[int]"], None]
"""All the bookkeeping of one request."""


class Inputs(TypedDict):
    """What a peer is measured on; `turns` are token ids, and `siblings` as many others that part from each of them."""

    traces: dict[str, Requests]
    turns: list[array[int]]
    siblings: list[array[int]]
    leaves: list[array[int]]


class _TooLong(BaseException):
    """An operation has taken longer than it may; nothing in between is to take it for an error of its own."""


class _Sglang:
    """One of SGLang's trees over slots of one token, as its scheduler calls it."""

    def __init__(self, tree: str, pool_tokens: int) -> None:
        import torch
        from sglang.srt.mem_cache import base_prefix_cache
        from sglang.srt.mem_cache.allocator import TokenToKVPoolAllocator
        from sglang.srt.mem_cache.cache_init_params import CacheInitParams
        from sglang.srt.mem_cache.radix_cache import RadixCache, RadixKey
        from sglang.srt.mem_cache.unified_cache.component_type import ComponentType
        from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

        torch.set_num_threads(1)
        self._torch, self._base, self._key = torch, base_prefix_cache, RadixKey
        self._is_classic = tree == "classic"
        self.slots = TokenToKVPoolAllocator(pool_tokens, torch.float16, "cpu", None, need_sort=False)
        params = {
            "disable": False, "req_to_token_pool": None, "token_to_kv_pool_allocator": self.slots, "page_size": 1,
        }  # fmt: skip
        if self._is_classic:
            self.tree: Any = RadixCache(CacheInitParams(**params))
        else:
            components = (ComponentType.FULL,)
            self.tree = UnifiedRadixCache(CacheInitParams(**params, tree_components=components, tree_core_backend=tree))
            # It falls back from Rust to Python with a line in its log.
            core = type(self.tree.tree_core).__name__
            if ("Rust" in core) != (tree == "rust"):
                raise RuntimeError(f"the {tree} tree was asked for and {core} was made")

    def request(self, prompt: array[int], tokens: array[int]) -> None:
        """Match, lock, take slots, insert, unlock."""
        match = self.match(prompt[:-1])
        found = match.device_prefix_len
        lock = self.tree.inc_lock_ref(match.last_device_node)
        known, missing = self.tree.path_device_indices(match.last_device_node), len(tokens) - found
        if self.slots.available_size() < missing:
            self.evict(missing - self.slots.available_size())
        self.add(tokens, known)
        if self._is_classic:
            self.tree.dec_lock_ref(match.last_device_node)
        else:
            self.tree.dec_lock_ref(match.last_device_node, lock.to_dec_params())

    def match(self, tokens: array[int]) -> Any:  # noqa: ANN401 - of a type of theirs
        """Find the longest cached prefix."""
        return self.tree.match_prefix(self._base.MatchPrefixParams(key=self._key(tokens, None)))

    def add(self, tokens: array[int], known: Any) -> Any:  # noqa: ANN401 - tensors
        """Enter a sequence whose first slots are `known`, the tree's own; returns all its slots.

        What the tree had beyond them is the request's twice, and is freed: by the unified trees themselves, once they
        are told where to begin. (Not told, they free their own slots, one node after the other.)
        """
        slots = self._torch.cat([known, self.slots.alloc(len(tokens) - len(known))])
        began = {} if self._is_classic else {"prev_prefix_len": len(known)}
        entered = self.tree.insert(self._base.InsertParams(key=self._key(tokens, None), value=slots, **began))
        if self._is_classic:
            self.slots.free(slots[len(known) : entered.prefix_len])
        return slots

    def evict(self, num_tokens: int) -> None:
        """Free slots."""
        self.tree.evict(self._base.EvictParams(num_tokens=num_tokens))

    def no_slots(self) -> Any:  # noqa: ANN401 - a tensor
        """Slots of an empty sequence."""
        return self._torch.empty(0, dtype=self._torch.int64)


def _sglang(tree: str) -> Mapping[str, Callable[[Inputs], float]]:
    _Sglang(tree, POOL_TOKENS)
    return {
        **_bookkeeping(lambda: _Sglang(tree, POOL_TOKENS).request),
        "match_64k_chain_ms": lambda inputs: _match_ms(tree, inputs["turns"], ()),
        "match_64k_forked_ms": lambda inputs: _match_ms(tree, inputs["turns"], inputs["siblings"]),
        "evict_one_of_100k_us": lambda inputs: _evict_us(tree, inputs["leaves"]),
    }


def _match_ms(tree: str, turns: Sequence[array[int]], siblings: Sequence[array[int]]) -> float:
    """One match of a conversation that was inserted turn by turn, each with its sibling beside it."""
    cache = _Sglang(tree, 4 * sum(map(len, turns)))
    tokens, known = array("q"), cache.no_slots()
    for i, turn in enumerate(turns):
        if siblings:
            cache.add(tokens + siblings[i], known)
        tokens = tokens + turn
        known = cache.add(tokens, known)
    return 1e3 * _middle(_seconds(lambda: cache.match(tokens)) for _ in range(_MATCHES))


def _evict_us(tree: str, leaves: Sequence[array[int]]) -> float:
    """One leaf's slots freed from a full pool of leaves that share nothing."""
    cache = _Sglang(tree, sum(map(len, leaves)))
    for leaf in leaves:
        cache.add(leaf, cache.no_slots())
    return 1e6 * _middle(_seconds(lambda: cache.evict(len(leaves[0]))) for _ in range(_EVICTIONS))


def _vllm() -> Mapping[str, Callable[[Inputs], float]]:
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
    hasher = get_request_block_hasher(VLLM_BLOCK_TOKENS, sha256)
    sampling = SamplingParams(max_tokens=64)

    def serving() -> Serve:
        manager = KVCacheManager(
            config,
            max_model_len=POOL_TOKENS,
            scheduler_block_size=VLLM_BLOCK_TOKENS,
            hash_block_size=VLLM_BLOCK_TOKENS,
            enable_caching=True,
        )

        def serve(prompt: array[int], tokens: array[int]) -> None:
            request = Request(
                request_id=str(id(tokens)), prompt_token_ids=prompt.tolist(), sampling_params=sampling,
                pooling_params=None, block_hasher=hasher,
            )  # fmt: skip
            blocks, found, *_ = manager.get_computed_blocks(request)
            manager.allocate_slots(request, len(prompt) - found, found, blocks)
            request.num_computed_tokens = len(prompt)
            output = tokens[len(prompt) :].tolist()
            request.append_output_token_ids(output)
            manager.allocate_slots(request, len(output))
            manager.free(request)

        return serve

    return _bookkeeping(serving)


def _bookkeeping(serving: Callable[[], Serve]) -> dict[str, Callable[[Inputs], float]]:
    """Microseconds a request of each trace, each time on an empty cache."""

    def measuring(trace: str) -> Callable[[Inputs], float]:
        return lambda inputs: 1e6 * _middle(_request_s(serving(), inputs["traces"][trace]) for _ in range(_REPEATS))

    return {f"bookkeeping_{trace}_us": measuring(trace) for trace in ("agent", "few_shot", "unique")}


def _request_s(serve: Serve, requests: Requests) -> float:
    started = time.thread_time()
    for prompt, tokens in requests:
        serve(prompt, tokens)
    return (time.thread_time() - started) / len(requests)


def _seconds(act: Callable[[], object]) -> float:
    started = time.thread_time()
    act()
    return time.thread_time() - started


def _middle(values: Iterator[float]) -> float:
    ordered = sorted(values)
    return ordered[len(ordered) // 2]


PEERS: Mapping[str, Callable[[], Mapping[str, Callable[[Inputs], float]]]] = {
    "sglang classic": lambda: _sglang("classic"),
    "sglang python": lambda: _sglang("python"),
    "sglang rust": lambda: _sglang("rust"),
    "vllm": _vllm,
}
"""How each peer is made, which imports it, and what it is measured on. SGLang's unified tree comes in Python and in
Rust; the Rust one is what it uses where it can."""


def within(limit_s: float, measure: Callable[[], float]) -> float | None:
    """A figure, or None where it takes longer than `limit_s` of wall time."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise _TooLong

    signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, limit_s)
    try:
        return measure()
    except _TooLong:
        return None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _main(peer: str, limit_s: float) -> None:
    """Measure one peer."""
    inputs: Inputs = pickle.load(sys.stdin.buffer)
    for name, measure in PEERS[peer]().items():
        figure = within(limit_s, partial(measure, inputs))
        print(json.dumps([name, figure]), flush=True)


if __name__ == "__main__":
    _main(sys.argv[1], float(sys.argv[2]))
