"""What comes from the tokenizers: new requests, cancels, ends by stop string, aborts. Refuses what can never fit."""

from __future__ import annotations

from functools import partial

import numpy as np

from radix.cache import Hints, Namespace
from wire.errors import DuplicateId, Overloaded, PromptTooLong, counted
from wire.errors import Refused as RefusedError
from wire.messages.to_scheduler import Submit
from wire.messages.to_tokenizer import Refused
from wire.sampling import SamplingParams

from . import prompt_logprobs
from .leave import end
from .request import ClientId, Request
from .state import Reply, State


def submit(state: State, client: ClientId, message: Submit, *, now_s: float) -> list[Reply]:
    """Queue a request, or refuse it with the reason; either way it is answered exactly once in the end."""
    token_ids = np.frombuffer(message.token_ids, dtype="<i4")
    try:
        if message.request_id in state.waiting or message.request_id in state.running:
            raise DuplicateId(
                f"rid {message.request_id!r} belongs to a request that is still open. Choose another.", field="rid"
            )
        _check_room(state, len(token_ids))
        max_new_tokens = _checked_lengths(state, token_ids, message.sampling.max_new_tokens)
        _check_sampling_ids(state, message.sampling)
    except (RefusedError, Overloaded) as error:
        state.counters.refused_total += 1
        refused = Refused(
            request_id=message.request_id,
            code=error.code,
            message=error.message,
            field=error.field,
        )
        return [Reply(client, refused)]
    state.counters.requests_total += 1
    request = Request(
        request_id=message.request_id,
        client=client,
        namespace=Namespace(model=state.limits.model_fingerprint, adapter=None, salt=message.salt),
        sampling=message.sampling,
        prompt_ids=token_ids,
        prompt_tokens=len(token_ids),
        max_new_tokens=max_new_tokens,
        stop_token_ids=frozenset(message.sampling.stop_token_ids),
        arrival=state.counters.requests_total,
        arrived_s=now_s,
        priority=message.priority,
        hints=Hints(priority=message.cache_priority, keep_s=message.cache_ttl_s),
        prompt_bytes=message.token_ids,
        next_logprob=_first_logprob(message.sampling, len(token_ids)),
    )
    prompt_logprobs.look_up(state, request)
    state.waiting.add(request)
    return []


def cancel(state: State, client: ClientId, request_id: str) -> list[Reply]:
    """End a request of this tokenizer because its client went away; unknown ids have ended already.

    The id may be another tokenizer's, when this one's request was refused as a duplicate at the same moment.
    """
    request = find(state, request_id)
    return [_cancelled(state, request)] if request and request.client == client else []


def finish(state: State, client: ClientId, request_id: str) -> list[Reply]:
    """End a request whose tokenizer, this one, found a stop string; its computed pages stay cached."""
    request = find(state, request_id)
    return [end(state, request, "stop")] if request and request.client == client else []


def abort(state: State, request_id: str | None) -> list[Reply]:
    """Cancel the request of exactly this id, or all of them, whichever tokenizer has them."""
    open_ids = [*state.running, *(request.request_id for request in state.waiting)]
    wanted = map(partial(find, state), open_ids if request_id is None else [request_id])
    return [_cancelled(state, request) for request in wanted if request]


def find(state: State, request_id: str) -> Request | None:
    """The open request of this id."""
    running = state.running.get(request_id)
    return running.request if running is not None else state.waiting.get(request_id)


def _cancelled(state: State, request: Request) -> Reply:
    return end(state, request, "cancelled", message="the request was cancelled")


def _first_logprob(sampling: SamplingParams, prompt_tokens: int) -> int | None:
    """The first prompt token to tell a logprob of: the very first has none, since nothing comes before it."""
    if sampling.prompt_logprobs_from is None:
        return None
    first = max(sampling.prompt_logprobs_from, 1)
    return first if first < prompt_tokens else None


def _check_sampling_ids(state: State, sampling: SamplingParams) -> None:
    """Token ids that the runner will look up in its logits; others (stop ids) merely never match."""
    vocabulary = state.limits.vocabulary
    biased_ids = [token_id for token_id, _ in sampling.logit_bias]
    for field, token_ids in (("logit_bias", biased_ids), ("token_ids_logprob", sampling.logprob_ids)):
        highest = max(token_ids, default=0)
        if highest >= vocabulary:
            raise RefusedError(
                f"{field} holds {highest}; this model's token ids are in [0, {vocabulary})."
                " Tokenise with this model's tokenizer.",
                field=field,
            )


def _check_room(state: State, prompt_tokens: int) -> None:
    waiting, config = state.waiting, state.config
    if len(waiting) >= config.max_queued_requests:
        raise Overloaded(
            f"{len(waiting)} requests are waiting, and --max-queued-requests is {config.max_queued_requests}."
            " Try again later."
        )
    # Where nobody waits even the longest prompt is taken.
    if waiting and waiting.prompt_tokens + prompt_tokens > config.max_queued_tokens:
        raise Overloaded(
            f"{counted(len(waiting), 'request')} with {counted(waiting.prompt_tokens, 'prompt token')} wait, this one"
            f" has {prompt_tokens} more, and --max-queued-tokens is {config.max_queued_tokens}. Try again later."
        )


def _checked_lengths(state: State, token_ids: np.ndarray, max_new_tokens: int | None) -> int:
    limits = state.limits
    prompt_tokens = len(token_ids)
    if prompt_tokens == 0:
        raise RefusedError("the prompt is empty; at least 1 token is needed. Send a prompt.", field="prompt")
    # As unsigned numbers negative ids are the highest: one pass over a long prompt instead of two.
    if int(token_ids.view("<u4").max()) >= limits.vocabulary:
        low, high = int(token_ids.min()), int(token_ids.max())
        raise RefusedError(
            f"input_ids holds {low if low < 0 else high}; this model's token ids are in [0, {limits.vocabulary})."
            " Tokenise with this model's tokenizer.",
            field="input_ids",
        )
    room_tokens = min(limits.context_tokens, limits.pool_tokens) - prompt_tokens
    for limit, name, remedy in (
        (limits.context_tokens, "this model's context is", ""),
        (limits.pool_tokens, "the KV pool holds", ", or have the pool made larger (max_total_tokens)"),
    ):
        if prompt_tokens >= limit:
            raise PromptTooLong(
                f"the prompt has {counted(prompt_tokens, 'token')}; {name} {limit}, output included."
                f" Shorten the prompt{remedy}.",
                field="prompt",
            )
        if max_new_tokens is not None and prompt_tokens + max_new_tokens > limit:
            raise PromptTooLong(
                f"the prompt has {counted(prompt_tokens, 'token')} and max_new_tokens is {max_new_tokens};"
                f" {name} {limit}. Lower max_new_tokens to {room_tokens}{remedy}.",
                field="max_new_tokens",
            )
    return room_tokens if max_new_tokens is None else max_new_tokens
