"""The tokenizer process itself, over a fake scheduler and with the test as its launcher."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO
from urllib.parse import urlsplit

import aiohttp
import pytest

from runtime.config import HttpConfig, TokenizerLaunch
from runtime.port import bound
from tests.deadline import DEADLINE_S
from tests.fakes import FakeScheduler, Script, write_model_dir
from wire.child import Failed, PeerDied, Shutdown, Started, Status, decode_status, to_line
from wire.messages.to_scheduler import Cancel, Submit

ROOT = Path(__file__).parents[2]


@dataclass(slots=True)
class Child:
    """The process, as its launcher holds it."""

    process: subprocess.Popen[bytes]
    status_fd: int
    scheduler: FakeScheduler
    run_dir: Path

    async def status(self) -> Status:
        line = b""
        while not line.endswith(b"\n"):
            byte = await asyncio.wait_for(asyncio.to_thread(os.read, self.status_fd, 1), DEADLINE_S)
            assert byte, "the process closed its status without a word"
            line += byte
        return decode_status(line)

    async def address(self) -> str:
        status = await self.status()
        assert isinstance(status, Started), status
        return str(status.facts["address"])

    def tell(self, notice: PeerDied | Shutdown) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(to_line(notice))
        self.process.stdin.flush()

    async def exit_status(self) -> int:
        return await asyncio.to_thread(self.process.wait, DEADLINE_S)


@contextlib.asynccontextmanager
async def started(
    directory: Path, *, port: int = 0, chat_template: str | None = None, stderr: IO[bytes] | None = None
) -> AsyncIterator[Child]:
    run_dir = directory / "run"
    run_dir.mkdir()
    scheduler = FakeScheduler(f"ipc://{run_dir}/requests")
    answering = asyncio.create_task(scheduler.run())
    launch = TokenizerLaunch(
        run_dir=str(run_dir),
        tokenizer_dir=str(write_model_dir(directory / "model")),
        model_path="/models/fake",
        model_name="fake",
        config=HttpConfig(port=port, chat_template=chat_template),
        server_info={},
    )
    read_fd, write_fd = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "runtime.process", "--status-fd", str(write_fd)],
        stdin=subprocess.PIPE,
        stderr=stderr,
        pass_fds=(write_fd,),
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    os.close(write_fd)
    assert process.stdin is not None
    process.stdin.write(to_line(launch))
    process.stdin.flush()
    try:
        yield Child(process, read_fd, scheduler, run_dir)
    finally:
        process.stdin.close()
        process.kill()
        process.wait()
        os.close(read_fd)
        answering.cancel()
        await asyncio.gather(answering, return_exceptions=True)
        scheduler.close()


async def _begun(child: Child, http: aiohttp.ClientSession, *, rid: str = "r") -> aiohttp.ClientResponse:
    """A stream whose first token has come."""
    response = await http.post("/generate", json={"text": "x", "rid": rid, "stream": True})
    assert response.status == 200
    await response.content.readuntil(b"\n\n")
    return response


async def test_it_serves_once_the_scheduler_has_sent_figures_and_has_no_torch(tmp_path: Path) -> None:
    async with started(tmp_path) as child:
        async with aiohttp.ClientSession(await child.address()) as http:
            async with http.get("/health") as response:
                assert response.status == 200
            async with http.post("/generate", json={"text": "x"}) as response:
                assert (await response.json())["text"] == "hello world"
        assert "torch" not in Path(f"/proc/{child.process.pid}/maps").read_text()


async def test_a_client_that_leaves_cancels_its_request(tmp_path: Path) -> None:
    async with started(tmp_path) as child:
        child.scheduler.script = lambda _: Script(is_held=True)
        async with aiohttp.ClientSession(await child.address()) as http:
            stream = await _begun(child, http, rid="left")
            stream.close()
            assert await child.scheduler.received_where(lambda message: message == Cancel(request_id="left"))


async def test_a_taken_port_is_named_with_its_flag(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        async with started(tmp_path, port=port) as child:
            status = await child.status()
            assert isinstance(status, Failed)
            assert "--port" in status.message
            assert "127.0.0.1 is taken" in status.message
            assert str(port) in status.message
            assert await child.exit_status() == 1


async def test_a_chat_template_that_cannot_be_read_is_named_with_its_flag(tmp_path: Path) -> None:
    async with started(tmp_path, chat_template="/no/such/file") as child:
        status = await child.status()
        assert isinstance(status, Failed)
        assert "--chat-template /no/such/file" in status.message
        assert await child.exit_status() == 1


async def test_when_a_peer_dies_open_requests_get_an_error_at_once_and_it_exits_with_1(tmp_path: Path) -> None:
    async with started(tmp_path) as child:
        child.scheduler.script = lambda _: Script(is_held=True)
        async with aiohttp.ClientSession(await child.address()) as http:
            stream = await _begun(child, http)
            child.tell(PeerDied(process="model runner", exit_status="killed by SIGKILL", last_words="out of memory"))
            rest = await asyncio.wait_for(stream.read(), DEADLINE_S)
            assert b'"error"' in rest
            assert b"model runner process died (killed by SIGKILL)" in rest
            assert b"out of memory" in rest
            assert rest.endswith(b"data: [DONE]\n\n")
            assert await child.exit_status() == 1


async def test_a_shutdown_lets_open_requests_end_and_refuses_new_ones(tmp_path: Path) -> None:
    async with started(tmp_path) as child:
        child.scheduler.script = lambda _: Script(is_held=True)
        async with aiohttp.ClientSession(await child.address()) as http:
            stream = await _begun(child, http)
            child.tell(Shutdown(grace_s=DEADLINE_S))
            async with asyncio.timeout(DEADLINE_S):
                while True:
                    async with http.get("/health") as response:
                        if response.status == 503:
                            break
            async with http.post("/generate", json={"text": "x"}) as response:
                assert response.status == 503
                assert "stopping" in (await response.json())["error"]["message"]
            child.scheduler.release()
            rest = await stream.read()
            assert b'"error"' not in rest
            assert b"hello world" in rest
            assert await child.exit_status() == 0


async def test_an_answer_that_is_not_streamed_arrives_whole_before_the_process_ends(tmp_path: Path) -> None:
    async with started(tmp_path) as child:
        child.scheduler.script = lambda _: Script(output=[65] * 100_000, per_frame=50_000, is_held=True)
        async with aiohttp.ClientSession(await child.address()) as http:
            body = {"text": "x", "sampling_params": {"max_new_tokens": 100_000}}
            asked = asyncio.create_task(http.post("/generate", json=body))
            await child.scheduler.received_where(lambda message: isinstance(message, Submit))
            child.tell(Shutdown(grace_s=DEADLINE_S))
            child.scheduler.release()
            response = await asyncio.wait_for(asked, DEADLINE_S)
            assert response.status == 200
            assert (await response.json())["text"] == "A" * 100_000
            assert await child.exit_status() == 0


async def test_a_peer_s_death_ends_the_time_of_grace(tmp_path: Path) -> None:
    async with started(tmp_path) as child:
        child.scheduler.script = lambda _: Script(is_held=True)
        async with aiohttp.ClientSession(await child.address()) as http:
            stream = await _begun(child, http)
            child.tell(Shutdown(grace_s=60))
            child.tell(PeerDied(process="scheduler", exit_status="killed by SIGKILL", last_words=""))
            rest = await asyncio.wait_for(stream.read(), DEADLINE_S)
            assert b"scheduler process died" in rest
            assert await child.exit_status() == 1


async def test_a_shutdown_ends_what_is_still_open_after_its_grace(tmp_path: Path) -> None:
    async with started(tmp_path) as child:
        child.scheduler.script = lambda _: Script(is_held=True)
        async with aiohttp.ClientSession(await child.address()) as http:
            stream = await _begun(child, http, rid="long")
            child.tell(Shutdown(grace_s=0.1))
            rest = await asyncio.wait_for(stream.read(), DEADLINE_S)
            assert b"the server is stopping" in rest
            assert await child.exit_status() == 0
        assert await child.scheduler.received_where(lambda message: message == Cancel(request_id="long"))


async def test_when_the_launcher_goes_open_requests_get_an_error_and_it_exits(tmp_path: Path) -> None:
    async with started(tmp_path) as child:
        child.scheduler.script = lambda _: Script(is_held=True)
        async with aiohttp.ClientSession(await child.address()) as http:
            stream = await _begun(child, http)
            assert child.process.stdin is not None
            child.process.stdin.close()
            rest = await asyncio.wait_for(stream.read(), DEADLINE_S)
            assert b"launcher process died" in rest
            assert await child.exit_status() == 1


async def test_a_frame_that_is_no_message_ends_open_requests_and_the_process(tmp_path: Path) -> None:
    async with started(tmp_path) as child:
        child.scheduler.script = lambda _: Script(is_held=True)
        async with aiohttp.ClientSession(await child.address()) as http:
            stream = await _begun(child, http)
            await child.scheduler.received_where(lambda message: isinstance(message, Submit))
            await child.scheduler.send_raw(b"\xc1")
            rest = await asyncio.wait_for(stream.read(), DEADLINE_S)
            assert b"the link to the scheduler broke" in rest
            assert await child.exit_status() == 1


@pytest.mark.parametrize("host", ["203.0.113.1", "no.such.host.invalid"])
async def test_a_host_that_is_not_this_machine_is_named_with_its_flag(host: str) -> None:
    with pytest.raises(OSError, match=f"--host {host}"):
        bound(HttpConfig(host=host, port=0))


async def test_garbage_on_the_port_is_answered_400_and_leaves_no_traceback_in_the_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with log.open("wb") as stderr:
        async with started(tmp_path, stderr=stderr) as child:
            address = urlsplit(await child.address())
            for garbage in (
                b"\x16\x03\x01 TLS\r\n\r\n",
                b"GET / HTTP/9.x\r\n\r\n",
                b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: nine\r\n\r\n",
                b"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Encoding: gzip\r\nContent-Length: 9\r\n\r\nnot gzip!",
                b"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Encoding: br\r\nContent-Length: 2\r\n\r\n{}",
            ):
                reader, writer = await asyncio.open_connection(address.hostname, address.port)
                writer.write(garbage)
                assert b" 400 " in await asyncio.wait_for(reader.readline(), DEADLINE_S)
                writer.close()
    assert "Traceback" not in log.read_text()


async def test_it_opens_as_many_descriptors_as_it_may(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[1]))
    try:
        async with started(tmp_path) as child:
            await child.address()
            limits = Path(f"/proc/{child.process.pid}/limits").read_text()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    (line,) = [line for line in limits.splitlines() if line.startswith("Max open files")]
    assert line.split()[3] == line.split()[4]
