"""Skips runs of decode steps in which nothing happens, with the same result as planning and settling each of them.

Such a run has the same rows in every step, all decoding. As long as nobody arrives, ends, can be admitted or runs short
of pages, a step does to the scheduler's state only what stands here: rows grow by one token, pages are appended, the
page in which a prompt ends is committed, the price of steps is learned. All of a run's steps are taken together, cut
only where a page is committed, so that evictions and commits come in their order; pages may get other ids. Times are
summed step by step, as they would be, and so is what is learned of prices: to the last bit.

This is the one place of the simulator that knows what plan and settle do inside; a test compares runs with and without
it, outcome by outcome.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from bench.simulation.pipeline import Pipeline
from bench.simulation.price import Seconds
from bench.simulation.runner import FakeRunner, Row
from scheduler.fit import promise
from scheduler.request import Running
from scheduler.state import State

LEAST_STEPS = 2
"""A shorter run is not worth the preparation."""


def fast_forward(state: State, runner: FakeRunner, pipeline: Pipeline, *, until_s: float) -> int:
    """Skip as many steps as possible before `until_s`, leaving the last ones in flight; returns how many."""
    most = _most_steps(state, pipeline)
    if most < LEAST_STEPS or pipeline.ends_s >= until_s:
        return 0
    elapsed_s, ends_s = _times(runner, pipeline, most)
    most = int(np.searchsorted(ends_s[:most], until_s))
    decoding = [
        _Decoding(running, row)
        for running, (row, _, _) in zip(state.in_flight[0].decodes, pipeline.works[0].rows, strict=True)
    ]
    skipped = _skip_pages(state, decoding, ends_s, most=most)
    if not skipped:
        return 0
    for each in decoding:
        each.advance(skipped)
    state.cost.observe_decodes(len(decoding), elapsed_s=elapsed_s[:skipped])
    _count(state, elapsed_s[:skipped], num_rows=len(decoding))
    pipeline.elapsed_s, pipeline.ends_s = float(elapsed_s[skipped]), float(ends_s[skipped])
    for work in pipeline.works:
        work.step += skipped
    return skipped


@dataclass(frozen=True, slots=True)
class _Decoding:
    """A row of the run, as the scheduler has it and as the runner does; steps count from the first that is skipped."""

    running: Running
    row: Row

    @property
    def commits_at(self) -> int:
        """The step that fills the page in which its prompt ends; below 1 when that was before."""
        return self.running.page_end_tokens - self.running.computed_tokens

    def last_page_at(self, step: int, page_tokens: int) -> int:
        """The last step up to `step` before which it gets a page; below 1 when there is none."""
        planned_tokens = self.running.planned_tokens
        return (planned_tokens + step - 1) // page_tokens * page_tokens - planned_tokens + 1

    def pages_for(self, step: int, page_tokens: int) -> int:
        """How many pages it gets in the steps up to `step`."""
        planned_tokens = self.running.planned_tokens
        return (planned_tokens + step - 1) // page_tokens - (planned_tokens - 1) // page_tokens

    def sample(self, steps: int) -> None:
        """Give the request the tokens of all steps up to `steps`."""
        output = self.running.request.output
        known = self.row.num_tokens + 1 - self.row.prompt_tokens + steps
        output.extend(self.row.output[len(output) : known])

    def advance(self, steps: int) -> None:
        """Let so many steps have retired."""
        self.sample(steps)
        self.running.computed_tokens += steps
        self.running.planned_tokens += steps
        self.row.num_tokens += steps


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


def _times(runner: FakeRunner, pipeline: Pipeline, most: int) -> tuple[Seconds, Seconds]:
    """What the step under way and each of the `most` after it take, and when they end."""
    rows = pipeline.works[0].rows
    context_tokens = sum(row.num_tokens + 1 for row, _, _ in rows)
    elapsed_s = np.empty(most + 1)
    elapsed_s[0] = pipeline.elapsed_s
    elapsed_s[1:] = runner.price.decode_seconds(
        context_tokens=context_tokens + len(rows) * np.arange(1, most + 1), decode_rows=len(rows)
    )
    ends_s = elapsed_s.copy()
    ends_s[0] = pipeline.ends_s
    return elapsed_s, np.add.accumulate(ends_s)


def _skip_pages(state: State, decoding: Sequence[_Decoding], ends_s: Seconds, *, most: int) -> int:
    """Append and commit the pages of up to `most` steps; returns for how many there were enough."""
    cache, page_tokens = state.cache, state.cache.page_tokens
    done = 0
    while done < most:
        full = [each for each in decoding if each.commits_at == done + 1]
        stop = min((each.commits_at - 1 for each in decoding if each.commits_at > done + 1), default=most)
        stop = _with_pages(state, decoding, full, done=done, stop=min(stop, most))
        if stop == done:
            break
        for each in full:
            each.sample(done)
            cache.commit(each.running.lease, each.running.request.token_ids)
        cache.tell_time(float(ends_s[stop - 1]))
        for each in decoding:
            step = each.last_page_at(stop, page_tokens)
            if step > done:
                each.sample(step)
                cache.extend(each.running.lease, each.running.planned_tokens + step)
                promise(state, each.running)
        cache.evict_ahead()
        done = stop
    return done


def _with_pages(state: State, decoding: Sequence[_Decoding], full: Sequence[_Decoding], *, done: int, stop: int) -> int:
    """The last step up to `stop` for which pages suffice; a commit may pin pages that could else be evicted."""
    page_tokens = state.cache.page_tokens
    available = state.cache.free_pages + state.cache.evictable_pages
    available -= sum(len(each.running.lease.own_page_ids) for each in full)
    given = sum(each.pages_for(done, page_tokens) for each in decoding)
    while stop > done and sum(each.pages_for(stop, page_tokens) for each in decoding) - given > available:
        stop = done + (stop - done) // 2
    return stop


def _count(state: State, elapsed_s: Seconds, *, num_rows: int) -> None:
    """The counters and numbers of so many steps."""
    skipped, counters = len(elapsed_s), state.counters
    state.in_flight = deque(replace(sent, step=sent.step + skipped) for sent in state.in_flight)
    state.next_step += skipped
    counters.steps_total += skipped
    counters.output_tokens_total += skipped * num_rows
    counters.runner_busy_s_total = float(
        np.add.accumulate(np.concatenate(([counters.runner_busy_s_total], elapsed_s)))[-1]
    )
