"""What the tokenizers of one server do together: sum their figures, and drain or reopen as one."""

from __future__ import annotations

import logging
from collections.abc import Awaitable

import msgspec
from msgspec import Struct

from runtime.judging import judged_for_another
from runtime.metrics import Figures
from wire.messages.to_scheduler import Wish

from .doctor import encoded_diagnosis
from .front import Front
from .requests import rows_of, views_of

log = logging.getLogger(__name__)


class Worker(Struct, frozen=True, kw_only=True):
    """One tokenizer's state, as it tells another."""

    status: str
    open_requests: int
    figures: Figures


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Worker).decode


def answer_others(front: Front) -> None:
    """Let this tokenizer answer the others."""

    def answer(wish: Wish, about: str) -> bytes | Awaitable[bytes]:
        if wish == "diagnose":
            return encoded_diagnosis(front)
        if wish == "judge":
            return judged_for_another(front.records, about)
        if wish == "requests":
            return _encoded_views(front, about) if about else _encode(rows_of(front))
        return _encode(_obey(front, wish))

    front.generator.client.peers.answer = answer


async def _encoded_views(front: Front, request_id: str) -> bytes:
    return _encode(await views_of(front, request_id))


async def ask_all(front: Front, wish: Wish) -> list[Worker]:
    """Have every tokenizer, this one first, do `wish`; gives the state of each afterwards.

    Raises:
        Unavailable: one of them did not answer in time, or the server is stopping.
    """
    own = _obey(front, wish)
    return [own, *map(_decode, await front.generator.client.peers.ask(wish))]


def drain_state(workers: list[Worker]) -> dict[str, object]:
    """What `/drain` says: of all of them together."""
    return {"status": workers[0].status, "open_requests": sum(worker.open_requests for worker in workers)}


def _obey(front: Front, wish: Wish) -> Worker:
    gate = front.gate
    if wish == "drain":
        if gate.state == "serving":
            log.info("draining open_requests=%d", gate.num_inside)
        gate.drain()
    elif wish == "reopen":
        if gate.state == "draining":
            log.info("serving again open_requests=%d", gate.num_inside)
        gate.reopen()
    return Worker(status=gate.state, open_requests=gate.num_inside, figures=front.metrics.figures())
