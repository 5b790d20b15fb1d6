"""A chat with a server: what is asked of it, and answers of other servers that are unusual or broken."""

from __future__ import annotations

import argparse
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from runtime.chat_model import EngineModel, ServerModel, Usage
from runtime.completion import Chunk, Completion
from runtime.remote import ServerFailed
from runtime.sampling_flags import SamplingFlags
from tests.fakes import running_server
from wire.errors import Refused
from wire.flags import add_flags, from_flags
from wire.messages.to_scheduler import Submit
from wire.sampling import SamplingParams

HI: list[dict[str, object]] = [{"role": "user", "content": "hi"}]
FLAGS = (
    "--max-tokens=7 --temperature=0.5 --top-k=9 --top-p=0.9 --min-p=0.1 --seed=3 --stop=zz --stop-regex=z{3} "
    "--repetition-penalty=1.2 --frequency-penalty=0.3 --presence-penalty=0.4 --logit-bias=65:2.5,66:-100 "
    "--min-tokens=2 --ignore-eos"
)


def sampling_of(flags: str) -> SamplingParams:
    parser = argparse.ArgumentParser()
    add_flags(parser, SamplingFlags, title="sampling")
    parsed: SamplingFlags = from_flags(SamplingFlags, parser.parse_args(flags.split()))
    return parsed.sampling()


async def test_every_sampling_flag_reaches_the_server(tmp_path: Path) -> None:
    sampling = sampling_of(FLAGS)
    async with running_server(tmp_path) as server:
        model = await ServerModel.connect(server.url, api_key=None, sampling=sampling)
        assert [item async for item in model.reply(HI)]
        await model.close()
        (submit,) = [message for message in server.scheduler.received if isinstance(message, Submit)]
        assert submit.sampling == sampling
    assert sampling == SamplingParams(
        max_new_tokens=7,
        temperature=0.5,
        top_k=9,
        top_p=0.9,
        min_p=0.1,
        seed=3,
        stop=("zz",),
        stop_regex=("z{3}",),
        repetition_penalty=1.2,
        frequency_penalty=0.3,
        presence_penalty=0.4,
        logit_bias=((65, 2.5), (66, -100.0)),
        min_new_tokens=2,
        ignore_eos=True,
    )
    assert sampling_of("") == SamplingParams()


async def test_a_server_continues_a_prompt(tmp_path: Path) -> None:
    sampling = SamplingParams(max_new_tokens=70)
    async with running_server(tmp_path) as server:
        model = await ServerModel.connect(server.url, api_key=None, sampling=sampling)
        assert "".join([text async for text in model.continuation("Gravity is")]) == "hello world"
        (submit,) = [message for message in server.scheduler.received if isinstance(message, Submit)]
        assert submit.sampling.max_new_tokens == 70
        with pytest.raises(ServerFailed, match="prompt"):
            assert [text async for text in model.continuation("x" * 5000)]
        await model.close()


@pytest.mark.parametrize("text", ["65", "65:x", "x:1", "65:1:2", "65;1"])
def test_a_bias_that_is_none_is_named(text: str) -> None:
    with pytest.raises(ValueError, match="--logit-bias must be token ids"):
        sampling_of(f"--logit-bias={text}")


def test_a_flag_out_of_its_range_is_named() -> None:
    with pytest.raises(Refused, match="presence_penalty"):
        sampling_of("--presence-penalty=3")


def event(**fields: object) -> str:
    return f"data: {json.dumps(fields)}\n\n"


def said(text: str) -> dict[str, object]:
    return {"index": 0, "delta": {"content": text}}


@asynccontextmanager
async def answering(*events: str) -> AsyncIterator[ServerModel]:
    """A model on a server that answers every chat with these events."""

    async def models(_: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "other"}]})

    async def chat(_: web.Request) -> web.Response:
        return web.Response(text="".join(events), content_type="text/event-stream")

    app = web.Application()
    app.add_routes([web.get("/v1/models", models), web.post("/v1/chat/completions", chat)])
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        address = f"http://127.0.0.1:{runner.addresses[0][1]}"
        model = await ServerModel.connect(address, api_key=None, sampling=SamplingParams())
        try:
            yield model
        finally:
            await model.close()
    finally:
        await runner.cleanup()


async def test_empty_choices_and_deltas_are_no_text(tmp_path: Path) -> None:
    usage = {"prompt_tokens": 3, "completion_tokens": 2, "prompt_tokens_details": None}
    async with answering(
        event(choices=[], prompt_filter_results=[]),
        event(choices=[{"index": 0, "delta": {"role": "assistant"}}]),
        event(choices=[{"index": 0, "delta": {"content": None}}], usage=None),
        event(choices=[said("漢")]),
        ": a comment\n\n",
        event(choices=[said("🦔")], usage=None),
        event(choices=[{"index": 0, "delta": {}, "finish_reason": "stop"}]),
        event(choices=[], usage=usage),
        "data: [DONE]\n\n",
    ) as model:
        items = [item async for item in model.reply(HI)]
    assert items == ["漢", "🦔", Usage(prompt_tokens=3, cached_tokens=0, completion_tokens=2)]


@pytest.mark.parametrize(
    ("events", "words"),
    [
        ([event(choices=[said("a")])], "ended the answer in the middle"),
        ([event(choices=[said("a")]), event(error={"message": "it broke"}), "data: [DONE]\n\n"], "it broke"),
        (["data: {no json\n\n", "data: [DONE]\n\n"], "sent an event that is no JSON"),
        (["data: []\n\n", "data: 5\n\n", "data: [DONE]\n\n"], None),
    ],
)
async def test_an_answer_that_is_broken_says_how(events: list[str], words: str | None) -> None:
    async with answering(*events) as model:
        if words is None:
            assert [item async for item in model.reply(HI)] == []
            return
        with pytest.raises(ServerFailed, match=words):
            async for _ in model.reply(HI):
                pass


class FakeEngine:
    """Answers every chat with the same text, and notes what it was asked."""

    def __init__(self) -> None:
        self.asked: list[list[dict[str, object]]] = []

    async def stream_chat(self, messages: list[dict[str, object]], _: SamplingParams) -> AsyncIterator[Chunk]:
        self.asked.append(messages)
        whole = Completion(
            text="so",
            token_ids=(7, 8, 2),
            finish_reason="stop",
            prompt_tokens=5,
            cached_tokens=4,
            completion_tokens=3,
        )
        yield Chunk(text="so", token_ids=(7, 8, 2), completion=whole)


async def test_what_the_engine_said_goes_back_to_it_with_its_ids() -> None:
    engine = FakeEngine()
    model = EngineModel(engine, SamplingParams())  # type: ignore[arg-type]
    answer = {"role": "assistant", "content": "so"}
    for messages in (HI, [*HI, answer, *HI], [*HI, {"role": "assistant", "content": "what was stopped"}, *HI]):
        items = [item async for item in model.reply(messages)]
        assert items[0] == "so"
    assert engine.asked[0] == HI
    assert engine.asked[1] == [*HI, {**answer, "token_ids": (7, 8, 2)}, *HI]
    assert "token_ids" not in engine.asked[2][1]
