"""Logprobs of prompts: those that the cache knows are told again, those that a step gives are kept beside their pages.

Only a token's own logprob is kept. A request that also wants the most likely tokens, or chosen ones, computes its
prompt from where it wants them.

Requests that come together follow each other up to the first logprob that they want, as any do. Behind that they have
no use for a page without logprobs: they wait for a leader that tells them from no later on, and take both.
"""

from __future__ import annotations

import numpy as np

from wire.messages.from_runner import PromptLogprobs
from wire.messages.to_tokenizer import Tokens

from .request import Request, Running
from .scores import Logprobs
from .state import Reply, State


def look_up(state: State, request: Request) -> Logprobs:
    """The logprobs wanted next that are known of cached tokens, in order; their number is noted in the request.

    With the logprob of a token known, the token before it need not be computed: so it's one token more that may be
    reused. O(the prompt's tokens) once logprobs have ever been kept, else O(1).
    """
    wanted, sampling, scores = request.next_logprob, request.sampling, state.scores
    request.num_known_logprobs = 0
    if wanted is None or sampling.num_top_logprobs or sampling.logprob_ids or not scores.is_used:
        return np.empty(0, np.float32)
    token_ids = request.token_ids
    lease = state.cache.lease(
        request.namespace, token_ids, max_reuse_tokens=request.prompt_tokens, holder=request.request_id
    )
    page_ids = lease.page_ids[:]
    if lease.copy is not None:
        # A copy that is not made: what is known stands beside its source.
        page_ids[-1] = lease.copy[0]
    known = scores.read(page_ids, first=wanted, stop=lease.cached_tokens)
    state.cache.release(lease, token_ids[:0])
    request.num_known_logprobs = len(known)
    return known


def keep(state: State, running: Running, scored: PromptLogprobs) -> None:
    """Keep what a step has given, where this request's pages stand and, if that is elsewhere, in the tree.

    So too what was found: the last token of it is computed again, into a page of the request's own.
    """
    request, lease = running.request, running.lease
    logprobs = np.frombuffer(scored.entries, np.float32)
    first = scored.first
    if scored.num_tokens:
        # An entry begins with the token's own; behind it stand those of others.
        logprobs = logprobs[:: len(logprobs) // scored.num_tokens]
    if running.homeless_logprob is not None:
        # The last token of the step before had no page yet.
        logprobs, first = np.concatenate(([running.homeless_logprob], logprobs), dtype=np.float32), first - 1
        running.homeless_logprob = None
    in_pages = len(lease.page_ids) * state.cache.page_tokens - first
    if in_pages < len(logprobs):
        running.homeless_logprob = float(logprobs[-1])
    state.scores.write(lease.page_ids, logprobs[:in_pages], first=first)
    if lease.duplicates and first + len(logprobs) == request.prompt_tokens:
        _keep_in_tree(state, running)


def told(request: Request, scored: PromptLogprobs) -> Reply:
    """The reply with the next logprobs."""
    told_until = scored.first + scored.num_tokens
    request.next_logprob = told_until if told_until < request.prompt_tokens else None
    request.num_known_logprobs = 0
    tokens = Tokens(
        request_id=request.request_id,
        token_ids=b"",
        prompt_logprobs=scored.entries,
        num_prompt_logprobs=scored.num_tokens,
    )
    return Reply(request.client, tokens)


def found(running_row: int, first: int, logprobs: Logprobs) -> PromptLogprobs:
    """Known logprobs in the form in which a step gives them."""
    return PromptLogprobs(row=running_row, first=first, num_tokens=len(logprobs), entries=logprobs.tobytes())


def _keep_in_tree(state: State, running: Running) -> None:
    """The tree had equal pages without logprobs: know of them what is known of this request's own."""
    request, own = running.request, running.lease
    page_tokens = state.cache.page_tokens
    lease = state.cache.lease(request.namespace, request.token_ids, max_reuse_tokens=request.prompt_tokens)
    # The tree may have the page of the last token, for which this request has none yet.
    num_whole = (lease.cached_tokens - lease.copied_tokens) // page_tokens
    for source, destination in zip(own.page_ids, lease.page_ids[:num_whole], strict=False):
        if source != destination:
            state.scores.add(source, destination)
    state.cache.release(lease, request.token_ids[:0])
