"""The engine over fakes: its calls over a fake scheduler, its start over fake processes."""

import asyncio
import concurrent.futures
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

import axil
import runtime.engine_running
from runtime.config import MODULES
from runtime.engine_calls import EngineCalls
from runtime.engine_loop import EngineLoop, TextParts
from runtime.engine_wishes import Chat, Wish, wishes_of
from runtime.launch import StartFailed
from runtime.room import Room
from tests.deadline import DEADLINE_S
from tests.fakes import FakeScheduler, Script, running_server, submitted_ids, text_ids, write_model_dir
from wire.errors import Broken, Refused, Unavailable
from wire.messages.to_scheduler import Cancel, Submit
from wire.sampling import SamplingParams

ROOT = Path(__file__).parent.parent.parent
GREEDY = SamplingParams(temperature=0.0)
ROOMY = Room(max_requests=100, max_tokens=10_000)


def wish(prompt: str | list[int] | Chat, sampling: SamplingParams = GREEDY, salt: str = "") -> Wish:
    return Wish(prompt=prompt, sampling=sampling, salt=salt)


@asynccontextmanager
async def fake_calls(tmp_path: Path, *, room: Room = ROOMY) -> AsyncIterator[tuple[EngineCalls, FakeScheduler]]:
    async with running_server(tmp_path) as server:
        parts = TextParts(generator=server.front.generator, template=server.front.template)
        yield EngineCalls(parts, room), server.scheduler


async def test_a_batch_is_submitted_sorted_and_answered_in_the_callers_order(tmp_path: Path) -> None:
    async with fake_calls(tmp_path) as (calls, scheduler):
        scheduler.script = lambda submit: Script(output=submitted_ids(submit)[::-1], cached_tokens=3)
        noted: list[str] = []
        texts = ["b two", "a one", "b one", "a two"]
        found = await calls.complete_all([wish(text) for text in texts], lambda each: noted.append(each.text))
        assert [each.text for (each,) in found] == [text[::-1] for text in texts]
        assert sorted(noted) == sorted(text[::-1] for text in texts)
        submitted = [bytes(submitted_ids(each)).decode() for each in scheduler.received if isinstance(each, Submit)]
        assert submitted == ["a one", "a two", "b one", "b two"]
        ((first,), *_) = found
        assert (first.prompt_tokens, first.cached_tokens, first.completion_tokens) == (5, 3, 5)
        assert first.finish_reason == "length"


async def test_no_more_prompts_are_open_than_the_queue_takes(tmp_path: Path) -> None:
    async with running_server(tmp_path) as server, asyncio.TaskGroup() as group:
        server.scheduler.script = lambda submit: Script(is_held=True)
        calls = EngineCalls(
            TextParts(generator=server.front.generator, template=None), Room(max_requests=2, max_tokens=1000)
        )
        batch = group.create_task(calls.complete_all([wish("same") for _ in range(5)], lambda _: None))
        await server.scheduler.received_where(lambda message: isinstance(message, Submit))
        await server.client.control("flush")  # everything that was sent before it has arrived now
        assert sum(isinstance(message, Submit) for message in server.scheduler.received) == 2
        server.scheduler.release()
        assert [len(samples) for samples in await batch] == [1] * 5


async def test_prompts_wait_until_their_tokens_have_room_and_the_longest_may_go_alone(tmp_path: Path) -> None:
    async with fake_calls(tmp_path, room=Room(max_requests=100, max_tokens=5)) as (calls, scheduler):
        scheduler.script = lambda _: Script(text_ids("ab"))
        prompts = ["aaa", "bbb", "c" * 40]
        completions = await asyncio.wait_for(
            calls.complete_all([wish(each) for each in prompts], lambda _: None), DEADLINE_S
        )
        assert [samples[0].text for samples in completions] == ["ab"] * 3
        submitted = [message for message in scheduler.received if isinstance(message, Submit)]
        assert len(submitted) == 3


async def test_an_error_in_a_batch_names_the_prompt_and_cancels_the_others(tmp_path: Path) -> None:
    async with fake_calls(tmp_path) as (calls, scheduler):
        scheduler.script = lambda submit: Script(is_held=True)
        bad = SamplingParams(temperature=-1.0)
        with pytest.raises(Refused, match="temperature") as caught:
            await calls.complete_all([wish("good"), wish("good"), wish("wrong", bad)], lambda _: None)
        assert caught.value.__notes__ == ["in the prompt with index 2"]
        assert await scheduler.received_where(lambda message: isinstance(message, Cancel))


async def test_stop_strings_and_logprobs_are_worked_out_in_the_engine(tmp_path: Path) -> None:
    async with fake_calls(tmp_path) as (calls, _):
        sampling = SamplingParams(stop=("wor",), num_top_logprobs=1)
        ((found,),) = await calls.complete_all([wish(text_ids("x"), sampling)], lambda _: None)
        assert (found.text, found.finish_reason, found.matched) == ("hello ", "stop", "wor")
        assert found.logprobs is not None
        assert [token.token_id for token in found.logprobs] == list(found.token_ids)


async def test_wishes_for_priority_reach_the_scheduler(tmp_path: Path) -> None:
    async with fake_calls(tmp_path) as (calls, scheduler):
        (asked,) = wishes_of("x", None, n=None, options={"priority": 3, "cache_priority": 2, "cache_ttl_s": 1.5})
        await calls.complete_all([asked], lambda _: None)
        (submit,) = [message for message in scheduler.received if isinstance(message, Submit)]
        assert (submit.priority, submit.cache_priority, submit.cache_ttl_s) == (3, 2, 1.5)


async def test_a_chat_goes_through_the_models_template(tmp_path: Path) -> None:
    async with fake_calls(tmp_path) as (calls, scheduler):
        await calls.complete_all([wish(Chat(messages=[{"role": "user", "content": "hi"}]))], lambda _: None)
        (submit,) = [message for message in scheduler.received if isinstance(message, Submit)]
        assert bytes(submitted_ids(submit)[1:6]).decode() == "<user"


async def test_a_chat_without_messages_is_refused(tmp_path: Path) -> None:
    async with fake_calls(tmp_path) as (calls, _):
        with pytest.raises(Refused, match="messages"):
            await calls.complete_all([wish(Chat(messages=[]))], lambda _: None)


async def test_a_role_that_the_template_does_not_know_is_refused_by_its_place(tmp_path: Path) -> None:
    chat = Chat(messages=[{"role": "user", "content": "x"}, {"role": "wizard", "content": "y"}])
    async with fake_calls(tmp_path) as (calls, _):
        with pytest.raises(Refused, match=r'messages\[1\]\.role must be one of assistant, .*, got "wizard"'):
            await calls.complete_all([wish(chat)], lambda _: None)


async def test_pieces_of_several_answers_say_whose_they_are_and_each_answer_has_its_end(tmp_path: Path) -> None:
    async with fake_calls(tmp_path) as (calls, scheduler):
        scheduler.script = lambda submit: Script(text_ids("ab" if submit.request_id.endswith("_0") else "wxyz"))
        chunks = [chunk async for chunk in calls.chunks(replace(wish("x"), num_samples=2))]
        for i, text in enumerate(("ab", "wxyz")):
            own = [chunk for chunk in chunks if chunk.index == i]
            assert "".join(chunk.text for chunk in own) == text
            assert [chunk.completion is not None for chunk in own].count(True) == 1
            assert own[-1].completion is not None
            assert own[-1].completion.text == text


async def test_leaving_a_stream_of_several_answers_cancels_all_of_them(tmp_path: Path) -> None:
    async with fake_calls(tmp_path) as (calls, scheduler):
        scheduler.script = lambda _: Script(is_held=True)
        async with aclosing(calls.chunks(replace(wish("x"), num_samples=3))) as chunks:
            await anext(chunks)
        for i in range(3):
            await scheduler.received_where(
                lambda message, i=i: isinstance(message, Cancel) and message.request_id.endswith(f"_{i}")
            )


async def test_pieces_come_as_they_are_made_and_the_last_has_the_whole(tmp_path: Path) -> None:
    async with fake_calls(tmp_path) as (calls, _):
        chunks = [chunk async for chunk in calls.chunks(wish("x"))]
        assert "".join(chunk.text for chunk in chunks) == "hello world"
        assert chunks[-1].completion is not None
        assert chunks[-1].completion.text == "hello world"
        assert all(chunk.completion is None for chunk in chunks[:-1])


@asynccontextmanager
async def fake_loop(tmp_path: Path) -> AsyncIterator[tuple[EngineLoop, EngineCalls, FakeScheduler]]:
    write_model_dir(tmp_path / "model")
    scheduler = FakeScheduler(f"ipc://{tmp_path}/requests")
    scheduler.script = lambda submit: Script(is_held=True)
    answering = asyncio.create_task(scheduler.run())
    loop = EngineLoop(tmp_path, tmp_path / "model", None)
    try:
        parts = await asyncio.wrap_future(loop.parts)
        yield loop, EngineCalls(parts, Room(max_requests=10, max_tokens=1000)), scheduler
    finally:
        await asyncio.to_thread(loop.close)
        answering.cancel()
        await asyncio.gather(answering, return_exceptions=True)
        scheduler.close()


async def test_when_a_process_dies_every_open_call_and_every_later_one_is_broken(tmp_path: Path) -> None:
    async with fake_loop(tmp_path) as (loop, calls, scheduler):
        opened = [loop.call(lambda: calls.complete_all([wish("x")], lambda _: None)) for _ in range(3)]
        for future in opened:
            assert not future.done()
        await scheduler.received_where(lambda message: isinstance(message, Submit))
        loop.end_calls("the model runner process died")
        for future in opened:
            with pytest.raises(Broken, match="model runner process died"):
                await asyncio.wrap_future(future)
        with pytest.raises(Broken, match="model runner process died"):
            await asyncio.wrap_future(loop.call(lambda: calls.complete_all([wish("x")], lambda _: None)))


async def test_closing_ends_open_calls_and_refuses_later_ones(tmp_path: Path) -> None:
    async with fake_loop(tmp_path) as (loop, calls, scheduler):
        opened = loop.call(lambda: calls.complete_all([wish("x")], lambda _: None))
        await scheduler.received_where(lambda message: isinstance(message, Submit))
        await asyncio.to_thread(loop.close)
        with pytest.raises(Unavailable, match="closed"):
            await asyncio.wrap_future(opened)
        with pytest.raises(Unavailable, match="closed"):
            loop.call(lambda: calls.complete_all([wish("x")], lambda _: None))


async def test_a_call_that_is_cancelled_cancels_its_request(tmp_path: Path) -> None:
    async with fake_loop(tmp_path) as (loop, calls, scheduler):
        opened = loop.call(lambda: calls.complete_all([wish("x")], lambda _: None))
        await scheduler.received_where(lambda message: isinstance(message, Submit))
        opened.cancel()
        assert await scheduler.received_where(lambda message: isinstance(message, Cancel))


async def test_closing_before_the_scheduler_has_answered_ends_the_wait(tmp_path: Path) -> None:
    write_model_dir(tmp_path / "model")
    loop = EngineLoop(tmp_path, tmp_path / "model", None)
    await asyncio.to_thread(loop.close)
    assert isinstance(loop.parts.exception(), Unavailable)


def test_a_tokenizer_that_is_missing_is_an_error_of_the_start(tmp_path: Path) -> None:
    loop = EngineLoop(tmp_path, tmp_path, None)
    with pytest.raises(FileNotFoundError, match=r"tokenizer\.json"):
        loop.parts.result(DEADLINE_S)
    loop.close()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"max_runing": 3}, ("max_runing", "did you mean max_running")),
        ({"port": 3}, ("'port'",)),
        ({"max_running": "3"}, ("--max-running", "whole number", "'3'")),
        ({"dtype": "int4"}, ("--dtype", "bfloat16", "int4")),
        ({"overlap": 1}, ("--overlap", "true or false")),
        ({"mem_fraction": 7.0}, ("--mem-fraction", "7.0")),
    ],
)
def test_a_wrong_setting_is_named_before_anything_starts(
    settings: dict[str, str | int], words: tuple[str, ...]
) -> None:
    with pytest.raises(ValueError) as caught:
        axil.Engine(**settings)
    for word in words:
        assert word in str(caught.value)


@pytest.fixture
def fake_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model directory, with processes that are fakes and temporary files of this test's own."""
    monkeypatch.setattr(runtime.engine_running, "MODULES", dict.fromkeys(MODULES, "tests.runtime.fake_child"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("FAKE_RECORD", str(tmp_path / "record"))
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    write_model_dir(tmp_path / "model")
    (tmp_path / "model" / "model.safetensors").write_text("")
    return tmp_path / "model"


def test_a_process_that_fails_ends_the_start_with_its_message_and_nothing_is_left(
    fake_model: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("FAKE_PARTS", "scheduler=hang model_runner=fail")
    with pytest.raises(StartFailed, match="the model runner could not start"):
        axil.Engine(fake_model)
    assert list((tmp_path / "tmp").iterdir()) == []


def test_a_start_that_takes_too_long_names_the_process(
    fake_model: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("FAKE_PARTS", "model_runner=hang")
    with pytest.raises(StartFailed, match="the model runner"):
        axil.Engine(fake_model, start_timeout=1.0)
    assert list((tmp_path / "tmp").iterdir()) == []


def test_ctrl_c_while_starting_leaves_nothing(
    fake_model: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("FAKE_PARTS", "model_runner=hang")

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(concurrent.futures, "wait", interrupted_once(interrupted))
    with pytest.raises(KeyboardInterrupt):
        axil.Engine(fake_model)
    assert list((tmp_path / "tmp").iterdir()) == []


def interrupted_once(interrupt: object) -> object:
    real, calls = concurrent.futures.wait, iter([interrupt])

    def wait(*arguments: object, **keywords: object) -> object:
        return next(calls, real)(*arguments, **keywords)

    return wait
