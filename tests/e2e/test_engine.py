"""The engine with its real processes and the embedded model."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import aclosing
from pathlib import Path

import pytest

import axil
from tests.deadline import DEADLINE_S
from tests.e2e.server import wait_until
from tests.processes import children_of, is_alive, parts_of
from wire.errors import Broken, Unavailable

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).parent.parent.parent
GREEDY = axil.SamplingParams(temperature=0.0, max_new_tokens=4)
LONG = axil.SamplingParams(temperature=0.0, max_new_tokens=3000, ignore_eos=True)
FRANCE = "The capital of France is"


def small_engine() -> axil.Engine:
    return axil.Engine(max_total_tokens=4000, dtype="float32", threads=1)


@pytest.fixture(scope="module", autouse=True)
def same_packages() -> Iterator[None]:
    """The processes import what the tests import."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))
        yield


@pytest.fixture(scope="module")
def engine() -> Iterator[axil.Engine]:
    with small_engine() as engine:
        yield engine


def test_a_prompt_and_a_batch_have_the_same_answers_and_the_batch_is_in_order(
    engine: axil.Engine, capsys: pytest.CaptureFixture[str]
) -> None:
    one = engine.generate(FRANCE, GREEDY)
    assert one.text.startswith(" Paris")
    assert (one.completion_tokens, one.finish_reason) == (4, "length")
    prompts = ["Gravity is", FRANCE, "Gravity pulls"]
    many = engine.generate(prompts, GREEDY)
    assert many[1].text == one.text
    assert many[1].cached_tokens == one.prompt_tokens - 1
    assert many[0].text != many[2].text
    assert capsys.readouterr().err == "", "a bar is for terminals"


async def test_it_works_where_an_event_loop_runs_already(engine: axil.Engine) -> None:
    expected = engine.generate(FRANCE, GREEDY)
    assert (await engine.agenerate(FRANCE, GREEDY)).text == expected.text
    chunks = [chunk async for chunk in engine.stream(FRANCE, GREEDY)]
    assert "".join(chunk.text for chunk in chunks) == expected.text
    assert len(chunks) > 1
    assert chunks[-1].completion is not None
    assert chunks[-1].completion.token_ids == expected.token_ids


async def test_a_chat_is_answered_and_its_growth_is_cached(engine: axil.Engine) -> None:
    messages: list[dict[str, object]] = [{"role": "user", "content": "What is gravity?"}]
    first = engine.chat(messages, GREEDY)
    messages += [{"role": "assistant", "content": first.text}, {"role": "user", "content": "And light?"}]
    second = await engine.achat(messages, GREEDY)
    assert second.cached_tokens >= first.prompt_tokens
    assert [each.text for each in engine.chat([messages], GREEDY, progress=False)] == [second.text]


async def test_a_stream_that_is_left_and_a_call_that_is_cancelled_free_their_place(engine: axil.Engine) -> None:
    async with aclosing(engine.stream(FRANCE, LONG)) as chunks:
        await anext(chunks)
    task = asyncio.create_task(engine.agenerate([FRANCE, "Gravity is"], LONG))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    client = engine._running.loop.parts.result().generator.client
    async with asyncio.timeout(DEADLINE_S):  # they would have run for minutes
        while True:
            reply = await asyncio.wrap_future(engine._running.loop.call(lambda: client.control("stats")))
            if reply.stats is not None and reply.stats.num_running + reply.stats.num_waiting == 0:
                break


def test_a_prompt_that_is_too_long_is_refused_and_named(engine: axil.Engine) -> None:
    with pytest.raises(axil.AxilError, match="tokens") as caught:
        engine.generate([FRANCE, [5] * 5000], GREEDY, progress=False)
    assert caught.value.__notes__ == ["in the prompt with index 1"]


def test_a_forked_child_harms_nothing_and_is_told_to_make_its_own(engine: axil.Engine) -> None:
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            engine.generate(FRANCE, GREEDY)
        except Unavailable as error:
            os.write(write, error.message.encode())
        engine.close()
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as told:
        assert "belongs to the process that made it" in told.read()
    assert os.waitpid(pid, 0)[1] == 0
    assert engine.generate(FRANCE, GREEDY).text.startswith(" Paris")


@pytest.mark.parametrize("victim", ["scheduler", "model_runner"])
async def test_a_process_that_dies_ends_every_open_call_at_once_as_broken(victim: str) -> None:
    others = set(children_of(os.getpid()))
    with small_engine() as engine:
        parts = parts_of(os.getpid()).items()
        (mine,) = [pid for name, pid in parts if name.startswith(victim) and pid not in others]
        streams = [engine.stream(text, LONG) for text in (FRANCE, "Gravity is")]
        for stream in streams:
            await anext(stream)
        os.kill(mine, signal.SIGKILL)
        async with asyncio.timeout(DEADLINE_S):
            for stream in streams:
                with pytest.raises(Broken, match=r"process died \(killed by SIGKILL\)"):
                    async for _ in stream:
                        pass
            with pytest.raises(Broken):
                await engine.agenerate(FRANCE)
    with pytest.raises(Unavailable, match="closed"):
        engine.generate(FRANCE)


PROGRAM = """
import asyncio, os, sys
import axil
engine = axil.Engine(max_total_tokens=4000, dtype="float32", threads=1)
print("ready", flush=True)
sys.stdin.readline()
long = axil.SamplingParams(max_new_tokens=3000, ignore_eos=True)
{then}
"""


class Program:
    """A Python program that holds an engine; its standard error is kept in a file."""

    def __init__(self, tmp_path: Path, then: str) -> None:
        self.temporary = tmp_path / "tmp"
        self.temporary.mkdir()
        self._errors = tmp_path / "errors"
        with self._errors.open("w") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-c", PROGRAM.format(then=then)],
                cwd=tmp_path,
                env={**os.environ, "TMPDIR": str(self.temporary), "PYTHONWARNINGS": "error"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        self.expect("ready")  # and then it waits for a line, with no children of the test's making yet
        self.children = children_of(self.process.pid)
        assert len(self.children) == 3
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    @property
    def errors(self) -> str:
        return self._errors.read_text()

    def expect(self, line: str) -> None:
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == f"{line}\n", self.errors

    def assert_nothing_left(self, status: int) -> None:
        assert self.process.wait(DEADLINE_S) == status, self.errors
        wait_until(lambda: not any(map(is_alive, self.children)), "the processes are gone")
        wait_until(lambda: list(self.temporary.iterdir()) == [], "the run directory is gone")

    def close(self) -> None:
        self.process.kill()
        with self.process:
            pass


StartProgram = Callable[[str], Program]


@pytest.fixture
def start_program(tmp_path: Path) -> Iterator[StartProgram]:
    programs: list[Program] = []

    def start(then: str) -> Program:
        programs.append(Program(tmp_path, then))
        return programs[-1]

    yield start
    for program in programs:
        program.close()


@pytest.mark.parametrize(("then", "status", "last_words"), [("pass", 0, ""), ("raise KeyError(7)", 1, "KeyError: 7\n")])
def test_a_program_that_ends_without_closing_leaves_nothing(
    start_program: StartProgram, then: str, status: int, last_words: str
) -> None:
    program = start_program(then)
    program.assert_nothing_left(status)
    assert program.errors.endswith(last_words)
    assert "Warning" not in program.errors


def test_a_program_that_is_killed_leaves_nothing_even_while_its_fork_lives_on(start_program: StartProgram) -> None:
    program = start_program(
        "if os.fork() == 0:\n"
        "    sys.stdin.read()\n"
        "    os._exit(0)\n"
        "print('go', flush=True); engine.generate('Gravity is', long)"
    )
    program.expect("go")
    program.process.kill()
    program.assert_nothing_left(-signal.SIGKILL)


def test_ctrl_c_ends_the_call_and_the_engine_serves_on(start_program: StartProgram) -> None:
    program = start_program(
        "async def main():\n"
        "    async for chunk in engine.stream('Gravity is', long):\n"
        "        print('go', flush=True)\n"
        "        break\n"
        "try:\n"
        "    asyncio.run(main())\n"
        "    engine.generate('Gravity is', long)\n"
        "except KeyboardInterrupt:\n"
        "    few = axil.SamplingParams(max_new_tokens=3, ignore_eos=True)\n"
        "    print(engine.generate('Gravity is', few).completion_tokens, flush=True)\n"
    )
    program.expect("go")
    program.process.send_signal(signal.SIGINT)
    program.expect("3")
    program.assert_nothing_left(0)
