from __future__ import annotations

import asyncio

from bench.client import connected
from bench.summary import Answer, Failure
from tests.deadline import DEADLINE_S

EVENTS = (
    b'data: {"choices": [{"index": 0, "text": "yes"}]}\n\n'
    b'data: {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 1}}\n\n'
    b"data: [DONE]\n\n"
)
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: %d\r\n\r\n%s" % (len(EVENTS), EVENTS)


class Closing:
    """A server that answers so many requests on each connection and closes it unanswered at the next."""

    def __init__(self, *, num_answers: int) -> None:
        self._num_answers = num_answers
        self.num_requests = 0

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(self._num_answers):
            await self._read(reader)
            writer.write(ANSWER)
        await self._read(reader)
        writer.close()

    async def _read(self, reader: asyncio.StreamReader) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError:
            return
        length = next(line for line in head.lower().splitlines() if line.startswith(b"content-length:"))
        await reader.readexactly(int(length.partition(b":")[2]))
        self.num_requests += 1


async def _asked(server: Closing, *, num_together: int = 1) -> list[Answer | Failure]:
    async with await asyncio.start_server(server.talk, "127.0.0.1", 0) as listening:
        port = listening.sockets[0].getsockname()[1]
        async with connected(f"http://127.0.0.1:{port}", "any") as client:

            async def asked() -> Answer | Failure:
                return await client.complete("Is it?", max_tokens=1, timeout_s=DEADLINE_S)

            together = await asyncio.gather(*(asked() for _ in range(num_together)))
            return [*together, await asked()]


def test_a_request_on_a_connection_that_the_server_closes_is_sent_again_on_a_new_one() -> None:
    server = Closing(num_answers=1)
    answers = asyncio.run(_asked(server, num_together=3))
    assert all(isinstance(each, Answer) for each in answers)
    assert server.num_requests == 5


def test_a_server_that_closes_every_connection_unanswered_is_asked_twice_and_no_more() -> None:
    server = Closing(num_answers=0)
    first, second = asyncio.run(_asked(server))
    assert isinstance(first, Failure)
    assert isinstance(second, Failure)
    assert server.num_requests == 4
