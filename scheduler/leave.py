"""The one way out: how a request leaves its row, and how it ends. Pages, row and terminal reply go together."""

from __future__ import annotations

from typing import Literal

from wire.messages.to_tokenizer import Done

from .fit import can_begin
from .request import Request, Running
from .state import Reply, State


def leave_row(state: State, running: Running, *, is_kept: bool) -> None:
    """Give up the row and the lease; with `is_kept` the computed pages stay cached.

    Results of steps in flight for this row are dropped when they arrive. Tokens whose step has not retired never enter
    the tree, so their pages may be given out at once: the runner executes plans in order.
    """
    running.is_live = False
    computed = running.computed_tokens if is_kept else 0
    state.cache.release(running.lease, running.request.token_ids[:computed])
    del state.running[running.request.request_id]
    state.prefilling.pop(running.row, None)
    state.decoding.pop(running.row, None)
    state.promised_pages -= running.promised_pages
    state.released_rows.append(running.row)
    state.free_rows.append(running.row)


def retract(state: State, running: Running) -> None:
    """Send a running request back to the queue; its computed pages stay cached as long as nobody needs them."""
    request = running.request
    leave_row(state, running, is_kept=True)
    request.num_retractions += 1
    request.num_skips = 0
    state.waiting.add(request)
    state.counters.retractions_total += 1


def end(
    state: State,
    request: Request,
    reason: Literal["stop", "length", "cancelled", "broken"],
    *,
    matched_token_id: int | None = None,
    message: str | None = None,
) -> Reply:
    """Take a request out of wherever it is and return its terminal reply.

    The pages of a broken request are not kept: what made its logits useless may stand in them.
    """
    running = state.running.get(request.request_id)
    if state.gap is not None and request.reuse is not None:
        computed = running.computed_tokens if running is not None else request.num_tokens - 1
        state.gap.ended(request, computed_tokens=computed)
    if running is not None:
        leave_row(state, running, is_kept=reason != "broken")
    else:
        state.waiting.remove(request)
    if state.sessions is not None:
        state.sessions.ended(request.request_id)
    if reason in ("stop", "length"):
        state.output_length.observe(request.namespace, request.output_tokens, is_cut=reason == "length")
    elif reason == "cancelled":
        state.output_length.observe(request.namespace, request.output_tokens, is_cut=True)
        state.counters.cancelled_total += 1
    else:
        state.counters.broken_total += 1
    done = Done(
        request_id=request.request_id,
        reason=reason,
        matched_token_id=matched_token_id,
        message=message,
        num_retractions=request.num_retractions,
        reuse=request.reuse,
    )
    return Reply(request.client, done)


def fail_stalled(state: State) -> list[Reply]:
    """End the oldest request that no longer fits, when nothing runs and yet, without a pause, none could be admitted.

    That happens only when quarantined pages have left less of the pool than the request needs: `intake` has refused
    what does not fit the whole pool. O(waiting).
    """
    if state.is_paused or state.running or state.in_flight or not state.waiting:
        return []
    too_large = [request for request in state.waiting if not can_begin(state, request)]
    if not too_large:
        return []
    oldest, cache = min(too_large, key=lambda request: request.arrival), state.cache
    message = (
        f"{oldest.num_tokens} tokens don't fit into the {cache.free_pages + cache.evictable_pages} usable pages of"
        f" {cache.page_tokens} tokens; {cache.quarantined_pages} pages are quarantined. Restart the server."
    )
    return [end(state, oldest, "broken", message=message)]
