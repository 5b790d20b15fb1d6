"""`axil chat` in a terminal and with a pipe, over the HTTP front of a fake scheduler."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from runtime.config import HttpConfig
from tests.deadline import DEADLINE_S
from tests.fakes import Script, Server, running_server, submitted_ids, text_ids
from wire.messages.to_scheduler import Cancel, Submit

ROOT = Path(__file__).parent.parent.parent
COMMAND = (sys.executable, "-c", "import sys; from runtime.cli import run; sys.exit(run(version='0'))", "chat")


class TerminalChat:
    """`axil chat` on a pseudo-terminal; `output` is all that it has shown so far, without styles."""

    def __init__(self, directory: Path, *arguments: str) -> None:
        self.master, slave = os.openpty()
        self.process = subprocess.Popen(
            [*COMMAND, *arguments],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            cwd=directory,
            env={**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm"},
        )
        os.close(slave)
        os.set_blocking(self.master, False)
        self.raw = ""
        self._has_more = asyncio.Event()
        self._is_at_end = False
        asyncio.get_running_loop().add_reader(self.master, self._read)

    @property
    def output(self) -> str:
        return re.sub(r"\x1b\[[?\d;]*\w", "", self.raw)

    async def expect(self, pattern: str) -> re.Match[str]:
        async with asyncio.timeout(DEADLINE_S):
            while True:
                match = re.search(pattern, self.output)
                if match is not None:
                    return match
                assert not self._is_at_end, self.output
                self._has_more.clear()
                await self._has_more.wait()

    def type(self, line: str) -> None:
        os.write(self.master, line.encode() + b"\n")

    def press_ctrl_c(self) -> None:
        self.process.send_signal(signal.SIGINT)

    async def end_by_ctrl_c(self) -> int:
        """Press Ctrl-C at the prompt: again where nothing came of it, since readline doesn't see a signal that comes
        between its prompt and its waiting for keys."""
        for _ in range(3):
            self.press_ctrl_c()
            with suppress(subprocess.TimeoutExpired):
                return await asyncio.to_thread(self.process.wait, DEADLINE_S / 3)
        raise AssertionError(self.output)

    async def end(self) -> int:
        return await asyncio.to_thread(self.process.wait, DEADLINE_S)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        asyncio.get_running_loop().remove_reader(self.master)
        os.close(self.master)

    def _read(self) -> None:
        try:
            data = os.read(self.master, 65536)
        except OSError:
            data = b""
        if not data:
            self._is_at_end = True
            asyncio.get_running_loop().remove_reader(self.master)
        self.raw += data.decode(errors="replace").replace("\r\n", "\n")
        self._has_more.set()


@asynccontextmanager
async def terminal_chat(tmp_path: Path, *arguments: str) -> AsyncIterator[tuple[TerminalChat, Server]]:
    async with running_server(tmp_path) as server:
        chat = TerminalChat(tmp_path, "--url", server.url, *arguments)
        try:
            yield chat, server
        finally:
            chat.close()


def prompts(server: Server) -> list[str]:
    """The prompts that the scheduler was given, without special tokens."""
    submits = [message for message in server.scheduler.received if isinstance(message, Submit)]
    return [bytes(i for i in submitted_ids(submit) if i < 256).decode() for submit in submits]


async def piped_chat(url: str, text: str, *arguments: str) -> tuple[int, str, str]:
    """Status, stdout and stderr of a chat whose lines come from a pipe."""
    process = await asyncio.create_subprocess_exec(
        *COMMAND,
        "--url",
        url,
        *arguments,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    async with asyncio.timeout(DEADLINE_S):
        out, errors = await process.communicate(text.encode())
    assert process.returncode is not None
    return process.returncode, out.decode(), errors.decode()


async def test_an_answer_streams_and_is_followed_by_one_dim_line_of_figures(tmp_path: Path) -> None:
    async with terminal_chat(tmp_path) as (chat, server):
        # An answer that would turn the terminal's colours round is shown, not obeyed.
        server.scheduler.script = lambda submit: Script(text_ids("hello \x1b[7mworld"), is_held=True, cached_tokens=12)
        await chat.expect(r"/help")
        chat.type("hello there")
        await chat.expect(r"there\nh")  # the first token is shown while the others are held
        server.scheduler.release()
        figures = r"hello \\x1b\[7mworld\n12 of (\d+) prompt tokens cached · TTFT \d+\.\d\d s · [\d.]+ tokens/s\n"
        match = await chat.expect(figures)
        assert int(match[1]) > 12
        assert "\x1b[2m12 of" in chat.raw
        chat.type("/quit")
        assert await chat.end() == 0


async def test_a_chat_grows_and_the_commands_do_what_they_say(tmp_path: Path) -> None:
    async with terminal_chat(tmp_path, "--system", "be brief", "--temperature", "0", "--max-tokens", "5") as (
        chat,
        server,
    ):
        await chat.expect(r"> ")
        chat.type("one")
        await chat.expect(r"hello\n0 of")
        chat.type("two")
        await chat.expect(r"(?s)hello\n0 of.*hello\n0 of")
        chat.type("/save saved.json")
        await chat.expect(r"5 messages are in saved\.json")
        chat.type("/reset")
        chat.type("//three")
        await chat.expect(r"(?s)a new chat.*hello\n0 of")
        chat.type("/system speak French")
        chat.type("/sistem x")
        await chat.expect(r"did you mean /system\?")
        chat.type("four")
        await chat.expect(r"(?s)four.*hello\n0 of")
        chat.type("/help")
        await chat.expect(r"/save FILE")
        chat.type("/save /no/such/directory/x")
        await chat.expect(r"(?s)can't write /no/such/directory/x.*\n> $")
        os.write(chat.master, b"\x04")
        assert await chat.end() == 0
        assert prompts(server) == [
            "<system>be brief\n<user>one\n<assistant>",
            "<system>be brief\n<user>one\n<assistant>hello\n<user>two\n<assistant>",
            "<system>be brief\n<user>/three\n<assistant>",
            "<system>speak French\n<user>four\n<assistant>",
        ]
        saved = json.loads((tmp_path / "saved.json").read_text())
        assert [message["role"] for message in saved] == ["system", "user", "assistant", "user", "assistant"]
        (first, *_) = [message for message in server.scheduler.received if isinstance(message, Submit)]
        assert (first.sampling.temperature, first.sampling.max_new_tokens) == (0.0, 5)


async def test_ctrl_c_stops_the_answer_and_what_was_said_stays(tmp_path: Path) -> None:
    async with terminal_chat(tmp_path) as (chat, server):
        server.scheduler.script = lambda submit: Script(is_held=True)
        await chat.expect(r"> ")
        chat.type("one")
        await chat.expect(r"one\nh")
        chat.press_ctrl_c()
        await chat.expect(r"stopped")
        await server.scheduler.received_where(lambda message: isinstance(message, Cancel))
        server.scheduler.release()
        chat.type("two")
        await chat.expect(r"hello world\n0 of")
        assert prompts(server)[1] == "<user>one\n<assistant>h\n<user>two\n<assistant>"


async def test_ctrl_c_twice_leaves(tmp_path: Path) -> None:
    async with terminal_chat(tmp_path) as (chat, server):
        server.scheduler.script = lambda submit: Script(is_held=True)
        await chat.expect(r"> ")
        chat.type("one")
        await chat.expect(r"one\nh")
        chat.press_ctrl_c()
        await chat.expect(r"(?s)stopped.*> ")
        assert await chat.end_by_ctrl_c() == 130
        assert "Traceback" not in chat.output


async def test_with_a_pipe_the_answers_alone_are_on_stdout(tmp_path: Path) -> None:
    async with running_server(tmp_path) as server:
        status, out, errors = await piped_chat(server.url, "one\n\n/reset\ntwo")
        assert (status, out) == (0, "hello world\nhello world\n")
        assert len(re.findall(r"prompt tokens cached", errors)) == 2
        assert "\x1b" not in out + errors
        assert prompts(server) == ["<user>one\n<assistant>", "<user>two\n<assistant>"]


async def test_an_answer_that_is_refused_is_told_and_the_chat_goes_on(tmp_path: Path) -> None:
    async with running_server(tmp_path) as server:
        status, out, errors = await piped_chat(server.url, "x" * 5000 + "\n/quit\n", "--top-k", "0")
        assert (status, out) == (2, "")
        assert "top_k" in errors
        status, out, errors = await piped_chat(server.url, "one\ntwo\n", "--stop", "x" * 2000)
        assert (status, out) == (1, "")
        assert errors.count("error: the server answered 400: a stop string has 2,000 characters") == 2


@pytest.mark.parametrize("suffix", ["", "/", "/v1"])
async def test_the_address_may_be_written_in_several_ways(tmp_path: Path, suffix: str) -> None:
    async with running_server(tmp_path) as server:
        assert (await piped_chat(server.url + suffix, "one"))[1] == "hello world\n"


async def test_a_key_is_sent_and_a_wrong_one_is_told(tmp_path: Path) -> None:
    async with running_server(tmp_path, config=HttpConfig(port=0, api_key="sesame")) as server:
        assert (await piped_chat(server.url, "one", "--api-key", "sesame"))[1] == "hello world\n"
        status, _, errors = await piped_chat(server.url, "one")
        assert status == 2
        assert "axil: error: the server answered 401" in errors
        assert errors.rstrip().endswith("Here: --api-key KEY.")


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (("--url", "http://127.0.0.1:1"), 2, "can't reach http://127.0.0.1:1: connection refused. Is it running?"),
        (("--url", "127.0.0.1:1"), 2, "--url must begin with http"),
        (("--url", "http://127.0.0.1:1", "model.gguf"), 2, "leave model.gguf out"),
        (("--url", "http://127.0.0.1:1", "--threads", "3"), 2, "--threads"),
        (("--api-key", "x"), 2, "--url"),
        (("/no/such/model.gguf",), 2, "/no/such/model.gguf"),
    ],
)
def test_what_cannot_begin_is_one_line(arguments: tuple[str, ...], status: int, words: str) -> None:
    result = subprocess.run(
        [*COMMAND, *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert result.returncode == status, result.stderr
    (line,) = result.stderr.splitlines()
    assert line.startswith("axil: error: ")
    assert words in line
