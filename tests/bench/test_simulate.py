"""The simulator's tables, traces and ideals."""

from __future__ import annotations

import argparse
import gzip
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench import simulate
from bench.command import CannotMeasure
from bench.simulation.against import scheduler_flags
from bench.simulation.ceiling import Ceiling
from bench.simulation.herd import redundant_prefill
from bench.simulation.instant import NAMESPACE, Hits, Prompt, make_cache, replay
from bench.simulation.overhead import Forgetful
from bench.simulation.price import LinearPrice, read_prices
from bench.simulation.traces import agent_sessions, read_sessions
from bench.simulation.workload import Turn
from radix.cache import PrefixCache
from scheduler.config import SchedulerConfig
from wire.flags import add_flags, from_flags

BLOCK_TOKENS = 2
TRACE = [
    {"timestamp": 0, "input_length": 600, "output_length": 3, "hash_ids": [0, 1]},
    {"timestamp": 900_000, "input_length": 1100, "output_length": 2, "hash_ids": [0, 1, 2]},
]
SESSION = {
    "block_size": 4,
    "requests": [
        {"type": "n", "t": 0, "in": 9, "out": 3, "keep": 0, "new": [[0, 2]], "think_time": 0},
        {"type": "n", "t": 9, "in": 14, "out": 2, "keep": 2, "new": [[2, 1]], "think_time": 5000},
        {
            "type": "subagent",
            "t": 9,
            "requests": [{"type": "s", "t": 9, "in": 4, "out": 1, "keep": 0, "new": [[7, 1]]}],
        },
        {"type": "n", "t": 19, "in": 8, "out": 2, "keep": 1, "new": [[5, 1]], "api_time": 2},
    ],
}


def prompts_of(numbers: Sequence[Sequence[int]]) -> list[Prompt]:
    """A prompt of whole blocks for each list of block numbers."""
    ids = [np.repeat(np.array(each, np.int32), BLOCK_TOKENS) for each in numbers]
    return [Prompt(token_ids, len(token_ids)) for token_ids in ids]


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "conversation.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in TRACE))
    return path


@pytest.fixture
def sessions(tmp_path: Path) -> Path:
    path = tmp_path / "sessions.jsonl.gz"
    path.write_bytes(gzip.compress(json.dumps(SESSION).encode()))
    return path


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=4), min_size=1, max_size=20), st.integers(4, 9))
def test_the_ideal_lru_drops_the_end_of_the_branch_used_longest_ago(numbers: list[list[int]], pool_blocks: int) -> None:
    ceiling = Ceiling(lambda: prompts_of(numbers), block_tokens=BLOCK_TOKENS)
    assert ceiling.hits(pool_blocks=pool_blocks, rule="lru").cached_tokens == _lru(numbers, pool_blocks)


@pytest.mark.parametrize("pool_blocks", [100, 300, 1000])
def test_the_cache_reuses_no_less_than_an_ideal_lru_of_blocks(pool_blocks: int) -> None:
    draw = np.random.default_rng(1)
    numbers = [[int(subject), *draw.integers(0, 3, draw.integers(1, 8))] for subject in draw.zipf(1.3, 2000) % 500]
    prompts = prompts_of(numbers)
    ceiling = Ceiling(lambda: prompts, block_tokens=BLOCK_TOKENS)
    lru, farthest = (ceiling.hits(pool_blocks=pool_blocks, rule=rule).percent for rule in ("lru", "farthest"))
    found = replay(prompts, _cache(pool_blocks)).percent
    assert lru - 0.5 <= found <= farthest
    assert 0 < found < 100


def test_a_herd_computes_its_document_once() -> None:
    assert 0 <= redundant_prefill(SchedulerConfig(), LinearPrice(), seed=1, scale=1 / 16) <= 512


def test_a_forgetful_cache_gives_out_pages_and_finds_nothing() -> None:
    cache = Forgetful(_cache(4))
    prompt = np.arange(8, dtype=np.int32)
    for _ in range(3):
        lease = cache.lease(NAMESPACE, prompt, max_reuse_tokens=7)
        assert lease.cached_tokens == 0
        assert len(cache.extend(lease, 8)) == 4
        cache.commit(lease, prompt)
        cache.release(lease, prompt)
    assert (cache.free_pages, cache.cached_pages) == (4, 0)


def test_the_goals_are_written_under_their_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "figures.json"
    assert simulate.main(["--only", "w14", "w9", "--scale", "1/32", "--json", str(path)]) == 0
    figures = json.loads(path.read_text())["figures"]
    assert figures["w14_redundant_prefill_tokens"] <= 512
    assert figures["w9_hit_percent"] > 50
    assert "missed_never_seen_percent" in capsys.readouterr().out


def test_policies_stand_side_by_side(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--scale", "1/32", "--policy", "longest-prefix", "fcfs", "--pool-tokens", "2000", "8000"]
    assert simulate.main(["--only", "w9", *flags]) == 0
    out = capsys.readouterr().out
    assert all(f"{policy}" in out and f"{pool}k" in out for policy in ("longest-prefix", "fcfs") for pool in (2, 8))


def test_a_trace_is_replayed_through_the_tree_alone(trace: Path, tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    flags = ["--instant", "--trace", str(trace), "--pool-tokens", "5120", "--json", str(path)]
    assert simulate.main(flags) == 0
    figures = json.loads(path.read_text())["figures"]
    assert figures["conversation_instant_10_pages_hit_percent"] == pytest.approx(100 * 1024 / 1700)


def test_a_trace_is_served_at_its_own_times(trace: Path, tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    flags = ["--only", "traces", "--trace", str(trace), "--trace-speed", "10", "--pool-tokens", "4000"]
    assert simulate.main([*flags, "--json", str(path)]) == 0
    figures = json.loads(path.read_text())["figures"]
    assert figures["conversation_simulated_s"] == pytest.approx(90, abs=1)
    assert figures["conversation_missed_evicted_percent"] == 0


def test_a_server_that_is_started_schedules_as_it_is_simulated() -> None:
    config = SchedulerConfig(max_running=3, policy="fcfs", overlap=False, overtake_share=0.25)
    pool, *flags = scheduler_flags(config, pool_tokens=4000)
    assert pool == "--max-total-tokens=4000"
    parser = argparse.ArgumentParser()
    add_flags(parser, SchedulerConfig, title="scheduler")
    assert from_flags(SchedulerConfig, parser.parse_args(flags)) == config


@pytest.mark.parametrize(
    "flags", [["--launch"], ["--launch", "--against", "http://127.0.0.1:1", "--only", "w9"], ["--serve-flags=x"]]
)
def test_flags_of_a_server_that_contradict_each_other_are_a_usage_error(flags: list[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        simulate.parse(flags)
    assert stopped.value.code == 2


def test_an_absent_trace_is_said(tmp_path: Path) -> None:
    with pytest.raises(CannotMeasure, match=r"none\.jsonl can't be read"):
        simulate.main(["--instant", "--trace", str(tmp_path / "none.jsonl")])
    with pytest.raises(CannotMeasure, match=r"none\.gz can't be read"):
        simulate.main(["--only", "traces", "--sessions", str(tmp_path / "none.gz")])


def test_a_session_goes_on_with_its_own_answers(sessions: Path) -> None:
    (drawn,) = read_sessions(sessions, num_sessions=5, seed=1)
    (session,) = agent_sessions([drawn], most_think_s=600)
    turns: list[Turn] = list(session.turns)
    while following := turns[-1].follow():
        turns += following
    prompts = [np.frombuffer(turn.prompt, np.int32).tolist() for turn in turns]
    assert [len(prompt) for prompt in prompts] == [9, 14, 4, 8]
    answered = prompts[0] + turns[0].output.tolist()
    assert answered == prompts[1][:12]
    assert prompts[3][:4] == prompts[1][:4] and prompts[3][4] != prompts[1][4]
    assert not set(prompts[2]) & set(prompts[1])
    assert [turn.think_s for turn in turns] == [0, 600, 9, 10]
    assert session.is_private


def test_measured_tables_are_read_between_their_points(tmp_path: Path) -> None:
    path = tmp_path / "steps.json"
    points = [[0, 0], [100, 1.0]]
    path.write_text(
        json.dumps({"base_s": 0.5, "prefill_tokens": points, "context_tokens": points, "decode_rows": points})
    )
    assert read_prices(path).seconds(prefill_tokens=50, context_tokens=200, decode_rows=0) == pytest.approx(3.0)
    path.write_text("{}")
    with pytest.raises(CannotMeasure, match="holds no step table"):
        read_prices(path)


def _lru(numbers: Sequence[Sequence[int]], pool_blocks: int) -> int:
    """Every block by itself, the end of the branch used longest ago first."""
    used: dict[tuple[int, ...], int] = {}
    hits = Hits()
    for time, path in enumerate(numbers):
        beginnings = [tuple(path[: length + 1]) for length in range(len(path))]
        found = next((i for i, each in enumerate(beginnings) if each not in used), len(path))
        hits.add(len(path) * BLOCK_TOKENS, found * BLOCK_TOKENS)
        used |= dict.fromkeys(beginnings, time)
        while len(used) > pool_blocks:
            ends = [each for each in used if not any(other[:-1] == each for other in used)]
            del used[min((each for each in ends if used[each] < time), key=lambda each: used[each])]
    return hits.cached_tokens


def _cache(num_pages: int) -> PrefixCache:
    return make_cache(SchedulerConfig(), num_pages=num_pages, page_tokens=BLOCK_TOKENS)
