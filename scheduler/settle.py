"""Applies a retired step: tokens into requests, pages into the tree, ends. Knows no sockets, clocks or logging."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from itertools import chain, repeat

from wire.messages.encoding import TOKEN_BYTES, bytes_to_ids, ids_to_bytes
from wire.messages.from_runner import StepResult
from wire.messages.to_runner import Chunk
from wire.messages.to_tokenizer import Reuse, StepTokens, Tokens

from . import forced, prompt_logprobs
from .leave import end
from .request import ClientId, Request, Running
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
    state.counters.steps_total += 1
    state.counters.runner_busy_s_total += result.elapsed_s
    state.cost.observe(sent.work, elapsed_s=result.elapsed_s)
    broken = {row.row: row.message for row in result.broken}
    token_ids = iter(bytes_to_ids(result.token_ids))
    logprobs = chain(result.logprobs, repeat(b""))
    replies = _decoded(state, zip(sent.decodes, token_ids, logprobs, strict=False), broken)
    scored = {scored.row: scored for scored in result.prompt_logprobs}
    for running, chunk in sent.chunks:
        token = (next(token_ids), next(logprobs)) if chunk.is_sampled else None
        if not running.is_live:
            continue
        if running.row in broken:
            replies.append(end(state, running.request, "broken", message=broken[running.row]))
            continue
        _prefilled(state, running, chunk)
        for known in (running.found_logprobs, scored.get(running.row)):
            if known is not None:
                prompt_logprobs.keep(state, running, known)
                replies.append(prompt_logprobs.told(running.request, known))
        running.found_logprobs = None
        if token is not None:
            replies += _first_token(state, running.request, *token)
        elif running.computed_tokens == running.target_tokens:
            replies.append(end(state, running.request, "length"))
    if result.forced:
        replies += forced.take(state, sent, result.forced)
    return replies


def _decoded(state: State, sampled: Iterable[tuple[Running, int, bytes]], broken: dict[int, str]) -> list[Reply]:
    """One more token for each decoding row: as columns, or by itself with its logprobs; then the ends."""
    columns: dict[ClientId, tuple[list[str], list[int]]] = defaultdict(lambda: ([], []))
    single: list[Reply] = []
    ends: list[Reply] = []
    # The one loop over all rows of every step: what is rare stands behind one comparison each.
    for running, token_id, logprob in sampled:
        if not running.is_live:
            continue
        request = running.request
        if broken and running.row in broken:
            ends.append(end(state, request, "broken", message=broken[running.row]))
            continue
        running.computed_tokens = computed = running.computed_tokens + 1
        if computed == running.page_end_tokens:
            state.cache.commit(running.lease, request.token_ids[:computed])
        if computed < running.target_tokens:
            continue  # forced: it was told before
        request.output.append(token_id)
        if logprob:
            single.append(_token(request, token_id, logprob))
        else:
            request_ids, told_ids = columns[request.client]
            request_ids.append(request.request_id)
            told_ids.append(token_id)
        if computed == running.last_tokens or token_id in request.stop_token_ids:
            ends.append(_end(state, request, token_id))
    together = [
        Reply(client, StepTokens(request_ids=tuple(request_ids), token_ids=ids_to_bytes(told_ids)))
        for client, (request_ids, told_ids) in columns.items()
    ]
    state.counters.output_tokens_total += len(single) + sum(len(told_ids) for _, told_ids in columns.values())
    return together + single + ends


def _prefilled(state: State, running: Running, chunk: Chunk) -> None:
    """Count a chunk as computed; its whole pages enter the tree at once, since others may be waiting for them."""
    num_tokens = len(chunk.token_ids) // TOKEN_BYTES
    running.computed_tokens += num_tokens
    if not running.is_forced:
        state.counters.computed_tokens_total += num_tokens
    state.cache.commit(running.lease, running.request.token_ids[: running.computed_tokens])


def _first_token(state: State, request: Request, token_id: int, logprob: bytes) -> list[Reply]:
    """The replies for the token that a prefill ends with; the very first tells what was reused."""
    reuse = request.reuse if not request.output else None
    request.output.append(token_id)
    state.counters.output_tokens_total += 1
    replies = [_token(request, token_id, logprob, reuse=reuse)]
    if token_id in request.stop_token_ids or request.output_tokens == request.max_new_tokens:
        replies.append(_end(state, request, token_id))
    return replies


def _token(request: Request, token_id: int, logprob: bytes, *, reuse: Reuse | None = None) -> Reply:
    logprobs = (logprob,) if logprob else ()
    tokens = Tokens(request_id=request.request_id, token_ids=ids_to_bytes([token_id]), logprobs=logprobs, reuse=reuse)
    return Reply(request.client, tokens)


def _end(state: State, request: Request, token_id: int) -> Reply:
    if token_id in request.stop_token_ids:
        return end(state, request, "stop", matched_token_id=token_id)
    return end(state, request, "length")
