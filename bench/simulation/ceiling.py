"""What a pool could hold at best: block by block, every prompt in its order, evicted from the ends of branches.

Written to be right and apart from the product's tree. `lru` drops what was used longest ago; `farthest` knows the
future and drops what is used last again, which no real policy can do better than by little.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Literal

from bench.simulation.instant import Hits, Prompt
from bench.simulation.record import common_bytes
from bench.simulation.workload import TOKEN_BYTES

Rule = Literal["lru", "farthest"]


@dataclass(slots=True, eq=False)
class _Run:
    """Tokens that all prompts pass through together; the first `held` blocks of it are in the pool."""

    parent: _Run | None
    key: bytes
    children: dict[bytes, _Run] = field(default_factory=dict)
    uses: list[int] = field(default_factory=list)
    num_blocks: int = 0
    held: int = 0
    held_children: int = 0
    position: int = 0
    stamp: int = -1


class Ceiling:
    """The tree of all prompts of a trace, made once, for any pool size and rule.

    >>> import numpy as np
    >>> a, b = (Prompt(np.arange(start, start + 4, dtype=np.int32), 4) for start in (0, 10))
    >>> ceiling = Ceiling(lambda: [a, b, b, a], block_tokens=2)
    >>> [ceiling.hits(pool_blocks=3, rule=rule).cached_tokens for rule in ("lru", "farthest")]
    [6, 6]
    >>> cyclic = Ceiling(lambda: [a, b, a, b], block_tokens=2)
    >>> [cyclic.hits(pool_blocks=3, rule=rule).cached_tokens for rule in ("lru", "farthest")]
    [4, 4]
    """

    def __init__(self, prompts: Callable[[], Iterable[Prompt]], *, block_tokens: int) -> None:
        self._root = _Run(None, b"")
        self._block_tokens = block_tokens
        self._block_bytes = block_tokens * TOKEN_BYTES
        for prompt in prompts():
            self._enter(self._key(prompt))
        self._paths: list[tuple[int, list[_Run]]] = []
        for number, prompt in enumerate(prompts()):
            path = self._path(self._key(prompt))
            self._paths.append((prompt.num_tokens, path))
            for run in path:
                run.uses.append(number)

    def hits(self, *, pool_blocks: int, rule: Rule) -> Hits:
        """Replay all prompts through an empty pool; of one that is longer than it, the beginning that fits."""
        for _, path in self._paths:
            for run in path:
                run.held = run.held_children = run.position = 0
                run.stamp = -1
        hits = Hits()
        heap: list[tuple[float, int, int, _Run]] = []
        free = pool_blocks
        for number, (num_tokens, path) in enumerate(self._paths):
            hits.add(num_tokens, self._held_blocks(path) * self._block_tokens)
            for run in path:
                run.stamp = number
                run.position += 1
            free = self._hold(path, free, pool_blocks, heap, rule, number)
        return hits

    def _hold(
        self,
        path: list[_Run],
        free: int,
        pool_blocks: int,
        heap: list[tuple[float, int, int, _Run]],
        rule: Rule,
        number: int,
    ) -> int:
        """Bring the path into the pool, first to last, and push its end as the next candidate; returns what is free."""
        room = pool_blocks
        last = None
        for run in path:
            wanted = min(run.num_blocks, room)
            if wanted <= 0:
                break
            room -= wanted
            missing = wanted - run.held
            if missing > 0:
                while free < missing:
                    free += self._evict(heap, missing - free, rule, number)
                free -= missing
                if not run.held and run.parent is not None:
                    run.parent.held_children += 1
                run.held = wanted
            last = run
        if last is not None and not last.held_children:
            heappush(heap, self._entry(last, rule))
        return free

    def _evict(self, heap: list[tuple[float, int, int, _Run]], most: int, rule: Rule, number: int) -> int:
        """Take up to `most` blocks from the end of the run that goes first."""
        while True:
            _, _, stamp, run = heap[0]
            if stamp != run.stamp or run.held_children or not run.held or run.stamp == number:
                heappop(heap)
                continue
            count = min(most, run.held)
            run.held -= count
            if not run.held:
                heappop(heap)
                assert run.parent is not None
                run.parent.held_children -= 1
                if run.parent.held and not run.parent.held_children and run.parent.stamp != number:
                    heappush(heap, self._entry(run.parent, rule))
            return count

    def _entry(self, run: _Run, rule: Rule) -> tuple[float, int, int, _Run]:
        """Rank of a run: its last use, or with foresight its next one, the farthest first; `id` breaks ties."""
        if rule == "lru":
            return run.stamp, id(run), run.stamp, run
        next_use = run.uses[run.position] if run.position < len(run.uses) else math.inf
        return -next_use, id(run), run.stamp, run

    def _held_blocks(self, path: list[_Run]) -> int:
        held = 0
        for run in path:
            held += run.held
            if run.held < run.num_blocks:
                break
        return held

    def _key(self, prompt: Prompt) -> bytes:
        whole = len(prompt.token_ids) // self._block_tokens * self._block_tokens
        return prompt.token_ids[:whole].tobytes()

    def _enter(self, key: bytes) -> None:
        run, offset = self._root, 0
        while offset < len(key):
            head = key[offset : offset + self._block_bytes]
            child = run.children.get(head)
            if child is None:
                run.children[head] = _Run(run, key[offset:])
                self._measure(run.children[head])
                return
            common = common_bytes(child.key, key, offset) // self._block_bytes * self._block_bytes
            if common < len(child.key):
                upper = _Run(run, child.key[:common])
                child.key, child.parent = child.key[common:], upper
                upper.children[child.key[: self._block_bytes]] = child
                run.children[head] = upper
                self._measure(child)
                self._measure(upper)
                child = upper
            run, offset = child, offset + common

    def _measure(self, run: _Run) -> None:
        run.num_blocks = len(run.key) // self._block_bytes

    def _path(self, key: bytes) -> list[_Run]:
        path, run, offset = [], self._root, 0
        while offset < len(key):
            run = run.children[key[offset : offset + self._block_bytes]]
            path.append(run)
            offset += len(run.key)
        return path
