"""Skips runs of decode steps in which nothing happens, with the same result as planning and settling each of them.

Such a run has the same rows in every step, all decoding. As long as nobody arrives, ends, can be admitted or runs short
of pages, a step does to the scheduler's state only what stands here: rows grow by one token, pages are appended and
committed (by the same calls in the same order, so the pool and the tree end equal to the last page id), the price of
steps is learned. Virtual time is summed step by step, as it would be.

This is the one place of the simulator that knows what plan and settle do inside; a test compares runs with and without
it, outcome by outcome.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import replace

from bench.simulation.pipeline import Pipeline
from bench.simulation.runner import FakeRunner, Row
from scheduler.draft import Draft, extend_each
from scheduler.request import Running
from scheduler.state import State

LEAST_STEPS = 3
"""Shorter runs are not worth the preparation."""


def fast_forward(state: State, runner: FakeRunner, pipeline: Pipeline, *, until_s: float) -> int:
    """Skip as many steps as possible before `until_s`, leaving the last ones in flight; returns how many."""
    most = _most_steps(state, pipeline)
    if most < LEAST_STEPS:
        return 0
    runnings = state.in_flight[0].decodes
    rows = [row for row, _, _ in pipeline.works[0].rows]
    skipped = _skip(state, runner, pipeline, dict(zip(runnings, rows, strict=True)), most=most, until_s=until_s)
    for running, row in zip(runnings, rows, strict=True):
        _sample(running, row, skipped)
        running.computed_tokens += skipped
        running.planned_tokens += skipped
        row.num_tokens += skipped
    for work in pipeline.works:
        work.step += skipped
    state.in_flight = deque(replace(sent, step=sent.step + skipped) for sent in state.in_flight)
    state.next_step += skipped
    state.counters.steps_total += skipped
    state.counters.output_tokens_total += skipped * len(rows)
    return skipped


def _most_steps(state: State, pipeline: Pipeline) -> int:
    """How many steps can pass before a row gets its last one, or 0 when something else is going on."""
    depth = 2 if state.config.overlap else 1
    if len(pipeline.works) < depth or state.released_rows or (state.waiting and state.free_rows):
        return 0
    first = pipeline.works[0]
    if any(not work.is_only_decode or work.rows != first.rows for work in pipeline.works):
        return 0
    if not len(first.rows) == len(state.running) == len(state.decoding):
        return 0
    return min(running.last_tokens - running.planned_tokens for running in state.in_flight[0].decodes) - 1


def _skip(
    state: State,
    runner: FakeRunner,
    pipeline: Pipeline,
    rows: dict[Running, Row],
    *,
    most: int,
    until_s: float,
) -> int:
    """The steps' effects on pages, tree, learned prices and time."""
    cache, counters, cost, seconds = state.cache, state.counters, state.cost, runner.price.seconds
    page_tokens, num_rows, work = cache.page_tokens, len(rows), state.in_flight[0].work
    to_commit: dict[int, list[Running]] = defaultdict(list)
    to_extend: list[list[Running]] = [[] for _ in range(page_tokens)]
    for running in rows:
        to_commit[running.page_end_tokens - running.computed_tokens].append(running)
    for running in state.decoding.values():
        to_extend[(1 - running.planned_tokens) % page_tokens].append(running)
    context_tokens = sum(row.num_tokens + 1 for row in rows.values())
    ends_s, elapsed_s = pipeline.ends_s, pipeline.elapsed_s
    skipped = 0
    while skipped < most and ends_s < until_s:
        step = skipped + 1
        full, wanting = to_commit.get(step, ()), to_extend[step % page_tokens]
        if (full or wanting) and not _has_pages(state, full, wanting):
            break
        counters.runner_busy_s_total += elapsed_s
        cost.observe(work, elapsed_s=elapsed_s)
        for running in full:
            _sample(running, rows[running], step - 1)
            cache.commit(running.lease, running.request.token_ids)
        if wanting:
            for running in wanting:
                _sample(running, rows[running], step)
            cache.tell_time(ends_s)
            extend_each(state, Draft(), wanting)
            cache.evict_ahead()
        context_tokens += num_rows
        elapsed_s = seconds(prefill_tokens=0, context_tokens=context_tokens, decode_rows=num_rows)
        ends_s += elapsed_s
        skipped = step
    pipeline.ends_s, pipeline.elapsed_s = ends_s, elapsed_s
    return skipped


def _has_pages(state: State, full: Sequence[Running], wanting: Sequence[Running]) -> bool:
    """Whether nothing runs short; a commit may pin pages that could be evicted, where the tree has equal ones."""
    needed = len(wanting) + sum(len(running.lease.own_page_ids) for running in full)
    return needed <= state.cache.free_pages + state.cache.evictable_pages


def _sample(running: Running, row: Row, steps: int) -> None:
    """Give the request the tokens of all steps up to `steps` after the last that retired."""
    known = row.num_tokens + 1 - row.prompt_tokens + steps
    output = running.request.output
    output.extend(row.output[len(output) : known])
