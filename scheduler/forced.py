"""Tokens that a grammar leaves no choice about: told as soon as they are known, computed together in one chunk.

They come with the result of the step behind whose token they must stand. By then the next step has been planned, in
which their row decodes; so it computes the token before them, and the chunk stands in the plan after it. Knows no
grammar, no sockets and no clocks.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

from wire.messages.encoding import bytes_to_ids, ids_to_bytes
from wire.messages.from_runner import ForcedTokens
from wire.messages.to_tokenizer import Tokens

from .leave import end
from .request import Running
from .state import Reply, Sent, State


def take(state: State, sent: Sent, forced: Iterable[ForcedTokens]) -> list[Reply]:
    """Write what is forced behind a retired step into its requests; end those that are complete with it.

    A row that does not go on to decode is left alone: it gives the same tokens one by one.
    """
    running_of = {running.row: running for running in chain(sent.decodes, (each for each, _ in sent.chunks))}
    replies: list[Reply] = []
    for each in forced:
        running = running_of[each.row]
        if state.decoding.get(each.row) is running:
            replies += _taken(state, running, bytes_to_ids(each.token_ids))
    return replies


def _taken(state: State, running: Running, token_ids: list[int]) -> list[Reply]:
    """As if the tokens had come one by one: those behind the request's end are not part of it."""
    request = running.request
    token_ids = token_ids[: request.max_new_tokens - request.output_tokens]
    stop = next((i for i, token_id in enumerate(token_ids) if token_id in request.stop_token_ids), None)
    if stop is not None:
        del token_ids[stop + 1 :]
    request.output.extend(token_ids)
    state.counters.output_tokens_total += len(token_ids)
    told = Reply(request.client, Tokens(request_id=request.request_id, token_ids=ids_to_bytes(token_ids)))
    if stop is not None:
        return [told, end(state, request, "stop", matched_token_id=token_ids[-1])]
    if request.output_tokens == request.max_new_tokens:
        return [told, end(state, request, "length")]
    running.is_forced = True
    running.target_tokens = request.num_tokens
    state.prefilling[running.row] = state.decoding.pop(running.row)
    return [told]
