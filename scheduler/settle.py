"""Applies a retired step: tokens into requests, pages into the tree, ends. Knows no sockets, clocks or logging."""

from __future__ import annotations

from wire.messages import PromptLogprobs, StepResult, Tokens, bytes_to_ids, ids_to_bytes

from .leave import end
from .request import Request, Running
from .state import Reply, State


class OutOfStep(Exception):
    """A result that is not of the oldest plan in flight."""


def settle(state: State, result: StepResult) -> list[Reply]:
    """Write a step's results into their requests; return the tokens and the ends to tell.

    Raises:
        OutOfStep: steps retire in the order of their plans; this one did not. Nothing was changed.
    """
    if not state.in_flight or state.in_flight[0].step != result.step:
        expected = state.in_flight[0].step if state.in_flight else None
        raise OutOfStep(f"result of step {result.step} came where step {expected} was awaited")
    sent = state.in_flight.popleft()
    counters = state.counters
    counters.steps_total += 1
    counters.runner_busy_s_total += result.elapsed_s
    state.cost.observe(prefill_tokens=sent.prefill_tokens, elapsed_s=result.elapsed_s)
    broken = {row.row: row.message for row in result.broken}
    token_ids = iter(bytes_to_ids(result.token_ids))
    logprobs = iter(result.logprobs)
    prompt_logprobs = {scored.row: scored for scored in result.prompt_logprobs}
    replies: list[Reply] = []
    for running, num_new_tokens, is_sampled in sent.rows:
        token_id = next(token_ids) if is_sampled else None
        logprob = next(logprobs, b"") if is_sampled else b""
        if not running.is_live:
            continue
        if running.row in broken:
            replies.append(end(state, running.request, "broken", message=broken[running.row]))
            continue
        _advance(state, running, num_new_tokens)
        if running.row in prompt_logprobs:
            replies.append(_scored(running.request, prompt_logprobs[running.row]))
        replies += _taken(state, running, token_id, logprob)
    return replies


def _scored(request: Request, scored: PromptLogprobs) -> Reply:
    told_until = scored.first + len(scored.entries)
    request.next_logprob = told_until if told_until < request.prompt_tokens else None
    tokens = Tokens(request_id=request.request_id, token_ids=b"", prompt_logprobs=scored.entries)
    return Reply(request.client, tokens)


def _advance(state: State, running: Running, num_new_tokens: int) -> None:
    page_tokens = state.cache.page_tokens
    before = running.computed_tokens
    running.computed_tokens += num_new_tokens
    if before < running.target_tokens:
        state.counters.computed_tokens_total += num_new_tokens
    if running.computed_tokens // page_tokens > before // page_tokens:
        state.cache.commit(running.lease, running.request.token_ids[: running.computed_tokens])


def _taken(state: State, running: Running, token_id: int | None, logprob: bytes) -> list[Reply]:
    """The replies for one row's new token, if it has one."""
    request = running.request
    if token_id is None:
        is_whole = running.computed_tokens >= running.target_tokens
        return [end(state, request, "length")] if is_whole and request.max_new_tokens == 0 else []
    is_first = request.output_tokens == 0
    request.append(token_id)
    state.counters.output_tokens_total += 1
    tokens = Tokens(
        request_id=request.request_id,
        token_ids=ids_to_bytes([token_id]),
        logprobs=(logprob,) if request.sampling.num_top_logprobs is not None else (),
        reuse=request.reuse if is_first else None,
    )
    replies = [Reply(request.client, tokens)]
    if token_id in request.stop_token_ids:
        replies.append(end(state, request, "stop", matched_token_id=token_id))
    elif request.output_tokens >= request.max_new_tokens:
        replies.append(end(state, request, "length"))
    return replies
