"""The tokenizer process: binds the port, serves HTTP, talks to the scheduler, and ends in order.

Start it through the launcher: `python -P -m runtime.process --status-fd N`. Knows no API; those are in `runtime/http`.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import resource
import secrets
import socket
from collections.abc import Coroutine
from pathlib import Path

import uvloop
import zmq
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from wire import log as wire_log
from wire.child import Child, Failed, LauncherGone, Notice, PeerDied, Shutdown, Started, adopt
from wire.errors import AxilError, Broken, Unavailable
from wire.sockets import Endpoints, connected

from .client import SchedulerClient
from .config import TokenizerLaunch
from .doctor.window import PromptWindow
from .generator import Generator
from .http.app import SERVER_OPTIONS, build_app
from .http.front import Front
from .http.gate import Gate
from .http.workers import answer_others
from .link import Link
from .metrics import Metrics
from .port import bound
from .records import Records
from .text.answer_form import find_answer_form
from .text.template import ChatTemplate, load_template
from .text.tokenizer import ModelFiles, Tokenizer

log = logging.getLogger(__name__)

BACKLOG = 4096
IDLE_S = 75.0
"""How long a connection may stay without a whole request head; so silent clients can't use up the descriptors."""

FLUSH_S = 1.0
"""How long answers may take to leave when the process has to go; half of it for those that end by themselves."""


def main() -> int:
    """Run the process; returns its exit status."""
    launch, child = adopt(TokenizerLaunch, is_killed_with_launcher=False)
    wire_log.configure(launch.name.replace(" ", "-"))
    try:
        with bound(launch.config) as listener:
            listener.listen(BACKLOG)
            return uvloop.run(_serve(launch, child, listener))
    except (OSError, ValueError) as error:
        child.tell(Failed(message=str(error)))
        return 1


async def _serve(launch: TokenizerLaunch, child: Child, listener: socket.socket) -> int:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    identity = f"tokenizer-{secrets.token_hex(8)}".encode()
    link = Link(connected(context, zmq.DEALER, Endpoints(launch.run_dir).requests, identity=identity))
    client = SchedulerClient(link, num_others=launch.config.tokenizer_workers - 1)
    front = build_front(launch, client)
    allow_many_connections()
    # What is no HTTP is answered 400; at its own level, the library's logger would write a traceback for each.
    logging.getLogger("aiohttp.server").addFilter(_is_our_concern)
    runner = web.AppRunner(
        build_app(front),
        **SERVER_OPTIONS,
        shutdown_timeout=FLUSH_S / 2,
        keepalive_timeout=IDLE_S,
    )
    await runner.setup()
    await web.SockSite(runner, listener, backlog=BACKLOG).start()
    notices: asyncio.Queue[Notice] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    child.watch(lambda notice: _hand_over(loop, notices, notice), run_dir=launch.run_dir)
    receiving = asyncio.create_task(client.receive())
    announcing = asyncio.create_task(_announce(client, child, listener))
    try:
        return await _until_told(front, notices, receiving)
    finally:
        await runner.cleanup()
        for task in (receiving, announcing):
            task.cancel()
        await asyncio.gather(receiving, announcing, return_exceptions=True)
        link.close()
        context.term()


def allow_many_connections() -> None:
    """Let this process open as many descriptors as the system lets it; the usual 1,024 are a small crowd."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _is_our_concern(record: logging.LogRecord) -> bool:
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, HttpProcessingError | web.RequestPayloadError)


def build_front(launch: TokenizerLaunch, client: SchedulerClient) -> Front:
    """Load the model's text files and put the parts of the HTTP front together.

    Raises:
        OSError, ValueError: a file is missing or not what its name says.
    """
    directory = Path(launch.tokenizer_dir)
    files = ModelFiles.read(directory)
    tokenizer = Tokenizer.load(directory)
    source = load_template(directory, files.tokenizer_config, launch.config.chat_template)
    gate = Gate()
    metrics = Metrics(
        {
            "http_open_requests": lambda: gate.num_inside,
            "draining": gate.is_closed,
            "unhealthy": lambda: client.why_unhealthy() is not None,
            "stats_age_s": lambda: client.stats_age_s,
            "output_tokens_per_s": lambda: client.output_tokens_per_s,
        }
    )
    records = Records(
        functools.partial(tokenizer.decode, skip_special_tokens=False),
        metrics.missed,
        log_share=launch.config.log_misses,
    )
    generator = Generator(client, tokenizer, metrics, request_s=launch.config.request_timeout, records=records)
    generator.grammars.prepare()  # now, while nobody can be served yet
    answer_form = find_answer_form(
        source, tokenizer, calls=launch.config.tool_call_parser, thoughts=launch.config.reasoning_parser
    )
    log.info(
        "answers tool_call_parser=%s reasoning_parser=%s", answer_form.call_form_name, answer_form.thought_tags_name
    )
    front = Front(
        launch=launch,
        files=files,
        generator=generator,
        metrics=metrics,
        template=None if source is None else ChatTemplate(source, tokenizer.special_tokens),
        answer_form=answer_form,
        gate=gate,
        window=PromptWindow(launch.config.doctor_prompts),
        records=records,
    )
    answer_others(front)
    return front


def _hand_over(loop: asyncio.AbstractEventLoop, notices: asyncio.Queue[Notice], notice: Notice) -> None:
    """Runs in the thread that watches the launcher; the loop may have ended already."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(notices.put_nowait, notice)


async def _announce(client: SchedulerClient, child: Child, listener: socket.socket) -> None:
    await client.wait_until_ready()
    host, port = listener.getsockname()[:2]
    shown_host = f"[{host}]" if ":" in host else host
    child.tell(Started(facts={"address": f"http://{shown_host}:{port}"}))


async def _until_told(front: Front, notices: asyncio.Queue[Notice], receiving: asyncio.Task[None]) -> int:
    """Serve until a notice or a broken link ends it; every open request has its end when this returns."""
    end: Shutdown | str | None = await _next_end(notices, receiving)
    if isinstance(end, Shutdown):
        end = await _wind_down(front, end, _next_end(notices, receiving))
    if isinstance(end, str):
        break_all(front.generator.client, end)
        return 1
    return 0


async def _next_end(notices: asyncio.Queue[Notice], receiving: asyncio.Task[None]) -> Shutdown | str:
    """The wish to stop, or the sentence that says what broke."""
    told = asyncio.create_task(notices.get())
    try:
        await asyncio.wait({told, receiving}, return_when=asyncio.FIRST_COMPLETED)
        if not told.done():
            log.error("the link to the scheduler broke", exc_info=receiving.exception())
            return "the link to the scheduler broke. Start the server again."
        notice = told.result()
        return notice if isinstance(notice, Shutdown) else _cause(notice)
    finally:
        told.cancel()


async def _wind_down(front: Front, notice: Shutdown, next_end: Coroutine[None, None, Shutdown | str]) -> str | None:
    """Let open requests finish in the time of grace and end what is left; returns what broke meanwhile."""
    log.info("stopping open_requests=%d grace_s=%g", front.gate.num_inside, notice.grace_s)
    front.gate.close()
    ending = asyncio.create_task(next_end)
    empty = asyncio.create_task(front.gate.wait_until_empty())
    try:
        await asyncio.wait({ending, empty}, timeout=notice.grace_s, return_when=asyncio.FIRST_COMPLETED)
        if ending.done() and isinstance(broke := ending.result(), str):
            return broke
        if front.gate.num_inside:
            log.warning("ending open_requests=%d after grace_s=%g", front.gate.num_inside, notice.grace_s)
        front.generator.client.refuse_new(_stopping)
        front.generator.client.fail_open(_stopping)
        return None
    finally:
        ending.cancel()
        empty.cancel()


def break_all(client: SchedulerClient, sentence: str) -> None:
    """End what is open as broken, and refuse everything that still comes."""
    log.error("ending: %s", sentence)
    client.refuse_new(functools.partial(Unavailable, sentence))
    client.fail_open(functools.partial(Broken, sentence))


def _cause(notice: PeerDied | LauncherGone) -> str:
    if isinstance(notice, LauncherGone):
        return "the launcher process died. Start the server again."
    words = f" Its last words: {notice.last_words}" if notice.last_words else ""
    return f"the {notice.process} process died ({notice.exit_status}). Start the server again.{words}"


def _stopping() -> AxilError:
    return Unavailable("the server is stopping. Start it again, or ask another.")


if __name__ == "__main__":
    raise SystemExit(main())
