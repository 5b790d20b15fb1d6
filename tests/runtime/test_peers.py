from __future__ import annotations

import asyncio

import pytest

from runtime import peers as peers_module
from runtime.peers import Peers
from wire.errors import Unavailable
from wire.messages.to_scheduler import Answer, Ask
from wire.messages.to_tokenizer import Answered, Asked


async def test_alone_nobody_is_asked() -> None:
    sent: list[Ask | Answer] = []
    assert await Peers(sent.append, num_others=0).ask("drain") == []
    assert not sent


async def test_the_answers_of_all_others_come_together() -> None:
    sent: list[Ask | Answer] = []
    peers = Peers(sent.append, num_others=2)
    asking = asyncio.create_task(peers.ask("figures"))
    await asyncio.sleep(0)
    (ask,) = sent
    assert isinstance(ask, Ask)
    peers.take_answer(Answered(ask_id=ask.ask_id, content=b"one"))
    peers.take_answer(Answered(ask_id=ask.ask_id + 1, content=b"of another question"))
    assert not asking.done()
    peers.take_answer(Answered(ask_id=ask.ask_id, content=b"two"))
    assert await asking == [b"one", b"two"]


async def test_without_one_of_the_answers_nothing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers_module, "ANSWER_S", 0.01)
    peers = Peers(lambda message: None, num_others=2)
    with pytest.raises(Unavailable, match="0 of 2 other tokenizers answered"):
        await peers.ask("figures")


def test_who_is_asked_answers_the_one_who_asks() -> None:
    sent: list[Ask | Answer] = []
    peers = Peers(sent.append, num_others=1)
    peers.answer = lambda wish, about: f"{wish}{about}".encode()
    peers.take_asked(Asked(asker=b"them", ask_id=7, wish="reopen"))
    assert sent == [Answer(asker=b"them", ask_id=7, content=b"reopen")]
