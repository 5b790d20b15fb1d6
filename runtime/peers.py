"""The other tokenizers of a server, asked through the scheduler: for their figures, and to drain as this one does.

Knows no HTTP and no sockets.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from wire.errors import Unavailable
from wire.messages.to_scheduler import Answer, Ask, Wish
from wire.messages.to_tokenizer import Answered, Asked

log = logging.getLogger(__name__)

ANSWER_S = 2.0
"""How long the others may take. All of them answer, or nothing is told: half a sum reads well and is wrong."""

WORK_S = 30.0
"""How long they may take where they have to work for it, in a thread."""


@dataclass(slots=True)
class _Asking:
    answers: list[bytes] = field(default_factory=list)
    all_there: asyncio.Event = field(default_factory=asyncio.Event)


class Peers:
    """The other tokenizers, `num_others` of them."""

    def __init__(self, send: Callable[[Ask | Answer], None], *, num_others: int) -> None:
        self._send = send
        self.num_others = num_others
        self._ask_ids = itertools.count(1)
        self._asking: dict[int, _Asking] = {}
        self._answering: set[asyncio.Future[bytes]] = set()
        self.answer: Callable[[Wish, str], bytes | Awaitable[bytes]] | None = None

    async def ask(self, wish: Wish, about: str = "", *, within_s: float = ANSWER_S) -> list[bytes]:
        """Have all others do `wish`; gives their answers.

        Raises:
            Unavailable: one of them did not answer in time.
        """
        if not self.num_others:
            return []
        ask_id = next(self._ask_ids)
        asking = self._asking[ask_id] = _Asking()
        try:
            self._send(Ask(ask_id=ask_id, wish=wish, about=about))
            async with asyncio.timeout(within_s):
                await asking.all_there.wait()
        except TimeoutError:
            num_answers = len(asking.answers)
            raise Unavailable(
                f"{num_answers} of {self.num_others} other tokenizers answered within {within_s:g} s. Try again."
            ) from None
        finally:
            del self._asking[ask_id]
        return asking.answers

    def take_asked(self, message: Asked) -> None:
        """Another tokenizer asks."""
        if self.answer is None:
            log.warning("asked while starting wish=%s", message.wish)
            return
        content = self.answer(message.wish, message.about)
        if isinstance(content, bytes):
            self._send(Answer(asker=message.asker, ask_id=message.ask_id, content=content))
            return
        answering = asyncio.ensure_future(content)
        self._answering.add(answering)  # the loop alone would let it go
        answering.add_done_callback(lambda done: self._answer_late(message, done))

    def _answer_late(self, message: Asked, done: asyncio.Future[bytes]) -> None:
        self._answering.discard(done)
        if done.cancelled():
            return
        error = done.exception()
        if error is not None:
            log.error("could not answer wish=%s", message.wish, exc_info=error)
            return
        self._send(Answer(asker=message.asker, ask_id=message.ask_id, content=done.result()))

    def take_answer(self, message: Answered) -> None:
        """Another tokenizer has answered, maybe too late."""
        asking = self._asking.get(message.ask_id)
        if asking is None:
            return
        asking.answers.append(message.content)
        if len(asking.answers) == self.num_others:
            asking.all_there.set()
