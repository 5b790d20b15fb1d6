"""Measures the trees of SGLang and vLLM on the operations that ours is measured on, in an interpreter that has them.

Started as a script by that interpreter, it reads pickled `Inputs` from its standard input and knows nothing of ours:
the traces' bookkeeping for all, and for SGLang's trees also matches of long chains and evictions.
"""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
import time
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

if TYPE_CHECKING:
    import numpy.typing as npt

POOL_TOKENS = 65536
VLLM_BLOCK_TOKENS = 16
CHAIN_TURNS = 1024
NUM_LEAVES = 100_000
_REPEATS = 3
_EVICTIONS = 20

Requests = list[tuple["array[int]", "array[int]"]]
"""Each request's prompt, and prompt and output together."""


class Inputs(TypedDict):
    """What a peer is measured on; `turns` are token ids, and `siblings` as many others that part from each of them."""

    traces: dict[str, Requests]
    turns: list[array[int]]
    siblings: list[array[int]]
    leaves: list[array[int]]


def print_peers(pythons: Sequence[Path], ours: Mapping[str, float]) -> dict[str, float]:
    """Run each peer in the first of these interpreters that can, beside our figures; returns the ratios to ours."""
    if not pythons:
        print("peers: none were run; --peers-python names interpreters that have SGLang or vLLM")
        return {}
    inputs = pickle.dumps(_inputs())
    ratios: dict[str, float] = {}
    for peer in PEERS:
        for python in pythons:
            command = [str(python), str(Path(__file__).resolve()), peer]
            done = subprocess.run(command, input=inputs, capture_output=True, check=False)
            if not done.returncode:
                break
            reason = done.stderr.decode(errors="replace").strip().splitlines()[-1:] or ["no reason was given"]
            print(f"{peer}: not run by {python}: {reason[0]}", flush=True)
        else:
            continue
        for name, figure in json.loads(done.stdout.splitlines()[-1]).items():
            ratio = figure / ours[name]
            ratios[f"{peer.replace(' ', '_')}_{name}_ratio"] = ratio
            print(f"{peer:<16}{name:<26}{figure:>12.1f}{ratio:>12.1f} times ours", flush=True)
    return ratios


def _inputs() -> Inputs:
    import numpy as np

    from .tree_shapes import PAGE_TOKENS, TURN_TOKENS, agent, few_shot, unique

    def ids(tokens: npt.NDArray[Any]) -> array[int]:
        return array("q", tokens.tolist())

    draw = np.random.default_rng(7)

    traces = {
        name: [(ids(tokens[: len(prompt) // 4]), ids(tokens)) for prompt, tokens in requests]
        for name, requests in (("agent", agent()), ("few_shot", few_shot()), ("unique", unique()))
    }
    return Inputs(
        traces=traces,
        turns=[ids(turn) for turn in draw.integers(0, 1 << 17, (CHAIN_TURNS, TURN_TOKENS))],
        siblings=[ids(turn) for turn in draw.integers(0, 1 << 17, (CHAIN_TURNS, TURN_TOKENS))],
        leaves=[ids(leaf) for leaf in draw.integers(0, 1 << 30, (NUM_LEAVES, PAGE_TOKENS))],
    )


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

        self._torch, self._base, self._key = torch, base_prefix_cache, RadixKey
        self.slots = TokenToKVPoolAllocator(pool_tokens, torch.float16, "cpu", None, need_sort=False)
        params = {
            "disable": False, "req_to_token_pool": None, "token_to_kv_pool_allocator": self.slots, "page_size": 1,
        }  # fmt: skip
        if tree == "classic":
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
        self.insert(tokens, self._torch.cat([known, self.slots.alloc(missing)]))
        if hasattr(lock, "to_dec_params"):
            self.tree.dec_lock_ref(match.last_device_node, lock.to_dec_params())
        else:
            self.tree.dec_lock_ref(match.last_device_node)

    def match(self, tokens: array[int]) -> Any:  # noqa: ANN401 - of a type of theirs
        """Find the longest cached prefix."""
        return self.tree.match_prefix(self._base.MatchPrefixParams(key=self._key(tokens, None)))

    def insert(self, tokens: array[int], slots: Any) -> None:  # noqa: ANN401 - a tensor
        """Enter a sequence."""
        self.tree.insert(self._base.InsertParams(key=self._key(tokens, None), value=slots))

    def add(self, tokens: array[int], known: Any) -> Any:  # noqa: ANN401 - tensors
        """Enter a sequence whose first slots are `known`; returns all its slots."""
        slots = self._torch.cat([known, self.slots.alloc(len(tokens) - len(known))])
        self.insert(tokens, slots)
        return slots

    def evict(self, num_tokens: int) -> None:
        """Free slots."""
        self.tree.evict(self._base.EvictParams(num_tokens=num_tokens))

    def no_slots(self) -> Any:  # noqa: ANN401 - a tensor
        """Slots of an empty sequence."""
        return self._torch.empty(0, dtype=self._torch.int64)


def _sglang(tree: str) -> Callable[[Inputs], dict[str, float]]:
    def measure(inputs: Inputs) -> dict[str, float]:
        figures = _bookkeeping(inputs["traces"], lambda: _Sglang(tree, POOL_TOKENS).request)
        figures["match_64k_chain_ms"] = _match_ms(tree, inputs["turns"], ())
        figures["match_64k_forked_ms"] = _match_ms(tree, inputs["turns"], inputs["siblings"])
        figures["evict_one_of_100k_us"] = _evict_us(tree, inputs["leaves"])
        return figures

    return measure


def _match_ms(tree: str, turns: Sequence[array[int]], siblings: Sequence[array[int]]) -> float:
    """One match of a conversation that was inserted turn by turn, each with its sibling beside it."""
    cache = _Sglang(tree, 4 * sum(map(len, turns)))
    tokens, known = array("q"), cache.no_slots()
    for i, turn in enumerate(turns):
        if siblings:
            cache.add(tokens + siblings[i], known)
        tokens = tokens + turn
        known = cache.add(tokens, known)
    return 1e3 * _middle(_seconds(lambda: cache.match(tokens)) for _ in range(5))


def _evict_us(tree: str, leaves: Sequence[array[int]]) -> float:
    """One leaf's slots freed from a full pool of leaves that share nothing."""
    cache = _Sglang(tree, sum(map(len, leaves)))
    for leaf in leaves:
        cache.add(leaf, cache.no_slots())
    return 1e6 * _middle(_seconds(lambda: cache.evict(len(leaves[0]))) for _ in range(_EVICTIONS))


def _vllm(inputs: Inputs) -> dict[str, float]:
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

    def serving() -> Callable[[array[int], array[int]], None]:
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

    return _bookkeeping(inputs["traces"], serving)


def _bookkeeping(
    traces: Mapping[str, Requests], serving: Callable[[], Callable[[array[int], array[int]], None]]
) -> dict[str, float]:
    """Microseconds a request of each trace, each time on an empty cache."""
    figures = {}
    for name, requests in traces.items():
        repeats = []
        for _ in range(_REPEATS):
            serve = serving()
            started = time.thread_time()
            for prompt, tokens in requests:
                serve(prompt, tokens)
            repeats.append((time.thread_time() - started) / len(requests))
        figures[f"bookkeeping_{name}_us"] = 1e6 * _middle(iter(repeats))
    return figures


def _seconds(act: Callable[[], object]) -> float:
    started = time.thread_time()
    act()
    return time.thread_time() - started


def _middle(values: Iterator[float]) -> float:
    ordered = sorted(values)
    return ordered[len(ordered) // 2]


PEERS: Mapping[str, Callable[[Inputs], dict[str, float]]] = {
    "sglang classic": _sglang("classic"),
    "sglang python": _sglang("python"),
    "sglang rust": _sglang("rust"),
    "vllm": _vllm,
}
"""SGLang's unified tree comes in Python and in Rust; the Rust one is what it uses where it can."""


def _main(peer: str) -> None:
    """Measure one peer; prints its figures as JSON."""
    inputs: Inputs = pickle.load(sys.stdin.buffer)
    print(json.dumps(PEERS[peer](inputs)))


if __name__ == "__main__":
    _main(sys.argv[1])
