from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from bench import scheduler_steps, tree, tree_shapes
from bench.command import CannotMeasure
from bench.trace_replay import hit_percent, read_mooncake, read_sessions, unlimited_blocks
from radix.eviction import POLICIES
from radix.eviction.lru import Lru


def write_mooncake(path: Path, prompts: list[list[int]]) -> Path:
    rows = [
        {"timestamp": i, "input_length": 512 * len(ids) - 12, "output_length": 1, "hash_ids": ids}
        for i, ids in enumerate(prompts)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_a_trace_in_its_own_order_finds_what_came_before(tmp_path: Path) -> None:
    trace = read_mooncake(write_mooncake(tmp_path / "t.jsonl", [[1, 2], [1, 2, 3], [4], [1, 2]]))
    total = (1024 + 1536 + 512 + 1024) - 4 * 12
    found = 1024 + 1012
    assert hit_percent(trace, Lru, pool_blocks=unlimited_blocks(trace)) == pytest.approx(100 * found / total)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_prompt_as_large_as_the_pool_leaves_nothing_of_what_came_before(tmp_path: Path, policy: str) -> None:
    trace = read_mooncake(write_mooncake(tmp_path / "t.jsonl", [[1, 2], [3, 4], [1, 2]]))
    assert hit_percent(trace, POLICIES[policy], pool_blocks=2) == 0


def test_sessions_are_restored_from_what_each_turn_keeps_and_share_nothing_with_each_other(tmp_path: Path) -> None:
    requests = [
        {"t": 0, "type": "n", "in": 130, "keep": 0, "new": [[1, 3]]},
        {"t": 1, "type": "subagent", "requests": []},
        {"t": 2, "type": "s", "in": 200, "keep": 2, "new": [[7, 2]]},
    ]
    path = tmp_path / "sessions.jsonl.gz"
    with gzip.open(path, "wt") as file:
        for name in ("a", "b"):
            file.write(json.dumps({"id": name, "block_size": 64, "requests": requests}) + "\n")
    trace = read_sessions(path, num_sessions=2, seed=1)
    assert [prompt.blocks.tolist() for prompt in trace.prompts] == [[1, 2, 3], [1, 2, 3], [1, 2, 7, 8], [1, 2, 7, 8]]
    assert hit_percent(trace, Lru, pool_blocks=100) == pytest.approx(100 * 2 * 128 / (2 * 330))
    with pytest.raises(CannotMeasure, match="2 sessions"):
        read_sessions(path, num_sessions=3, seed=1)


@pytest.mark.parametrize("is_forked", [False, True])
def test_chains_are_found_whole_and_forks_are_edges_of_their_own(is_forked: bool) -> None:
    cache, tokens = tree_shapes.chain(5, is_forked=is_forked)
    cache.check()
    assert cache.match(tree_shapes.NAMESPACE, tokens) == 5 * tree_shapes.TURN_TOKENS
    num_nodes = sum(1 for root in cache.core.picture().roots.values() for _ in root.walk()) - 1
    assert num_nodes == (10 if is_forked else 1)


def test_each_eviction_that_is_timed_takes_one_page_from_a_full_pool() -> None:
    cache = tree_shapes.full_of_leaves(20)
    assert cache.free_pages == 0
    assert len(list(tree_shapes.evictions_us(cache, count=5))) == 5
    assert cache.evicted_pages_total == 5


def test_the_traces_of_whole_requests_have_the_stated_shapes() -> None:
    for requests, count, shared in (
        (tree_shapes.agent(), 384, 720),
        (tree_shapes.few_shot(), 2000, 1024),
        (tree_shapes.unique(), 2000, 0),
    ):
        assert len(requests) == count
        first, second = (np.frombuffer(requests[i][0], np.int32) for i in (0, 1))
        assert (first[:shared] == second[:shared]).all()
        assert first[shared] != second[shared]


def test_requests_of_a_crowded_queue_wait_though_a_row_is_free() -> None:
    bench = scheduler_steps.crowded(num_waiting=5, prompt_tokens=2048, cached_tokens=1024)
    assert all(each > 0 for each in scheduler_steps.plans_after_commit_ms(bench, count=2))
    assert len(list(scheduler_steps.idle_plans_ms(bench, count=20))) > 10
    assert len(bench.state.waiting) == 5
    assert bench.state.free_rows


def test_a_decode_step_that_is_timed_computes_a_token_for_every_row() -> None:
    assert len(list(scheduler_steps.decode_steps_ms(num_running=3, count=4))) == 4


def test_the_goals_are_written_under_their_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("chain", "full_of_leaves", "agent", "few_shot", "unique"):
        monkeypatch.setattr(tree_shapes, name, lambda *_args, **_sizes: (None, None))
    for name in ("match_ms", "bytes_per_cached_token", "bookkeeping_us"):
        monkeypatch.setattr(tree_shapes, name, lambda *_args, **_sizes: 1.0)
    monkeypatch.setattr(tree_shapes, "evictions_us", lambda *_args, **_sizes: [1.0])
    monkeypatch.setattr(scheduler_steps, "crowded", lambda **_sizes: None)
    for name in ("idle_plans_ms", "plans_after_commit_ms", "decode_steps_ms"):
        monkeypatch.setattr(scheduler_steps, name, lambda *_args, **_sizes: [1.0])
    monkeypatch.setattr("gc.disable", lambda: None)
    path = tmp_path / "tree.json"
    monkeypatch.setattr("sys.argv", ["bench.tree", "--json", str(path)])
    assert tree.main() == 0
    assert json.loads(path.read_text())["figures"].keys() >= {
        "match_64k_chain_ms",
        "match_64k_forked_ms",
        "match_262k_chain_ms",
        "match_262k_forked_ms",
        "evict_one_of_100k_us",
        "evict_one_of_1m_us",
        "plan_128x32k_idle_ms",
        "plan_10k_idle_ms",
        "plan_10k_after_commit_ms",
        "decode_step_256_ms",
        "bytes_per_cached_token",
        "bookkeeping_agent_us",
        "bookkeeping_few_shot_us",
        "bookkeeping_unique_us",
    }
