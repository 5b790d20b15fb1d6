"""Stand-ins with which the HTTP side runs in one process: a scheduler and a byte-level tokenizer."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path

import tokenizers
import zmq
import zmq.asyncio
from aiohttp import web
from tokenizers import decoders, models, pre_tokenizers, processors

from radix.cache import PrefixCache
from runtime.client import SchedulerClient
from runtime.config import HttpConfig, TokenizerLaunch
from runtime.http.app import SERVER_OPTIONS, build_app
from runtime.http.front import Front
from runtime.link import Link
from runtime.process import build_front
from scheduler.outlines import outline_of, run_at
from tests.deadline import DEADLINE_S
from wire.gap import GapReport, Lost
from wire.messages.encoding import bytes_to_ids, encode, ids_to_bytes, pack_logprobs
from wire.messages.to_scheduler import Cancel, Control, Finish, Submit, ToScheduler, decode_to_scheduler
from wire.messages.to_tokenizer import ControlReply, Done, Refused, Reuse, Stats, StepTokens, Tokens, ToTokenizer
from wire.sessions import SessionState
from wire.sockets import connected

VOCABULARY = 259
BOS, EOS, END_OF_TURN = 256, 257, 258
CONTEXT_TOKENS = 4096
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}<{{ message['role'] }}>{{ message['content'] }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def byte_tokenizer(*, adds_bos: bool = False) -> tokenizers.Tokenizer:
    """A tokenizer whose token ids are the bytes, and three special tokens."""
    alphabet = _byte_characters()
    backend = tokenizers.Tokenizer(models.BPE(vocab={alphabet[byte]: byte for byte in range(256)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<s>", "</s>", "<|end|>"])
    if adds_bos:
        backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", BOS)])
    return backend


def write_model_dir(directory: Path, *, chat_template: str | None = CHAT_TEMPLATE, adds_bos: bool = False) -> Path:
    """What the tokenizer process reads of a model."""
    directory.mkdir(parents=True, exist_ok=True)
    byte_tokenizer(adds_bos=adds_bos).save(str(directory / "tokenizer.json"))
    config = {"bos_token": "<s>", "eos_token": {"content": "</s>"}, "tokenizer_class": "PreTrainedTokenizerFast"}
    if chat_template is not None:
        config["chat_template"] = chat_template
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    model_config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "eos_token_id": EOS}
    (directory / "config.json").write_text(json.dumps(model_config))
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": [EOS, END_OF_TURN]}))
    return directory


def text_ids(text: str) -> list[int]:
    """What the byte tokenizer makes of a text without special tokens."""
    return list(text.encode())


@dataclass(slots=True)
class Script:
    """What the fake scheduler answers: `output` as tokens, `per_frame` in one message, then `reason`.

    With `is_held` each frame but the first waits until `FakeScheduler.release` is called.
    """

    output: list[int] = field(default_factory=lambda: text_ids("hello world"))
    per_frame: int = 1
    cached_tokens: int = 0
    refusal: Refused | None = None
    reason: str | None = None
    is_held: bool = False


class FakeScheduler:
    """Speaks the scheduler's side of the socket, in this event loop, and notes every message it gets.

    `script` is a function of the submitted request. With `holds_ends` a request that is left gets no `Done`.
    """

    def __init__(self, address: str) -> None:
        self._context = zmq.asyncio.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.bind(address)
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._gate = asyncio.Event()
        self._arrived = asyncio.Condition()
        self._peer = b""
        self.received: list[ToScheduler] = []
        self.script: Callable[[Submit], Script] = lambda _: Script()
        self.gap: GapReport | None = None
        self.stats = Stats(
            lost=Lost(workload=0.3, capacity=0.2, policy=0.1, restart=0.0),
            context_tokens=CONTEXT_TOKENS,
            vocabulary=VOCABULARY,
            num_pages=256,
            page_tokens=16,
            prompt_tokens_total=100,
            cached_tokens_total=40,
        )
        self.cache: PrefixCache | None = None
        self.num_outlines = 0
        self.sessions: tuple[SessionState, ...] = ()
        self.is_ready = True
        self.holds_ends = False
        self.profile_refusal: str | None = None

    async def run(self) -> None:
        """Answer until cancelled."""
        while True:
            self._peer, frame = await self._socket.recv_multipart()
            message = decode_to_scheduler(frame)
            await self._take(message)
            async with self._arrived:
                self.received.append(message)
                self._arrived.notify_all()

    def close(self) -> None:
        """Free the address."""
        for task in self._tasks.values():
            task.cancel()
        self._socket.close()
        self._context.term()

    def release(self) -> None:
        """Let held answers go on."""
        self._gate.set()

    async def received_where(self, test: Callable[[ToScheduler], bool]) -> ToScheduler:
        """The first message that passes `test`, now or in time."""
        async with asyncio.timeout(DEADLINE_S), self._arrived:
            while True:
                for message in self.received:
                    if test(message):
                        return message
                await self._arrived.wait()

    async def answered(self, request_id: str) -> None:
        """Return when everything of this request's script has been sent."""
        await self.received_where(lambda message: isinstance(message, Submit) and message.request_id == request_id)
        await asyncio.wait_for(asyncio.shield(self._tasks[request_id]), DEADLINE_S)

    async def send(self, *messages: ToTokenizer) -> None:
        """One frame to the tokenizer."""
        await self.send_raw(encode(messages))

    async def send_raw(self, frame: bytes) -> None:
        """One frame that may be anything."""
        await self._socket.send_multipart([self._peer, frame])

    async def _take(self, message: ToScheduler) -> None:
        match message:
            case Submit():
                self._tasks[message.request_id] = asyncio.create_task(self._answer(message))
            case Cancel() | Finish():
                task = self._tasks.pop(message.request_id, None)
                if task is not None and not task.done():
                    task.cancel()
                    if not self.holds_ends:
                        await self.send(Done(request_id=message.request_id, reason="cancelled"))
            case Control(action="abort"):
                wanted = [message.request_id] if message.request_id is not None else [*self._tasks]
                going = [name for name in wanted if name in self._tasks and not self._tasks[name].done()]
                for name in going:
                    self._tasks.pop(name).cancel()
                    await self.send(Done(request_id=name, reason="cancelled", message="aborted by an operator"))
                await self.send(ControlReply(control_id=message.control_id, count=len(going)))
            case Control(action="start_profile" | "stop_profile"):
                path = "/profiles/a.json" if message.action == "stop_profile" else None
                await self.send(ControlReply(control_id=message.control_id, path=path, refusal=self.profile_refusal))
            case Control(action="outline"):
                self.num_outlines += 1
                outline = None if self.cache is None else outline_of(self.cache, message.page, now_s=0.0)
                await self.send(ControlReply(control_id=message.control_id, outline=outline))
            case Control(action="run"):
                run = None if self.cache is None or message.page is None else run_at(self.cache, message.page, None)
                await self.send(ControlReply(control_id=message.control_id, run=run))
            case Control(action="sessions"):
                told = self.sessions if message.page is None else self.sessions[:1]
                await self.send(ControlReply(control_id=message.control_id, sessions=told))
            case Control(action="flush"):
                await self.send(ControlReply(control_id=message.control_id, count=7))
            case Control():
                if self.is_ready:
                    gap = self.gap if message.action == "gap" else None
                    await self.send(ControlReply(control_id=message.control_id, stats=self.stats, gap=gap))

    async def _answer(self, submit: Submit) -> None:
        script = self.script(submit)
        if script.refusal is not None:
            await self.send(script.refusal)
            return
        num_prompt = len(submit.token_ids) // 4
        reuse = Reuse(prompt_tokens=num_prompt, cached_tokens=script.cached_tokens, copied_tokens=0, queue_s=0.001)
        limit = len(script.output) if submit.sampling.max_new_tokens is None else submit.sampling.max_new_tokens
        if submit.sampling.prompt_logprobs_from is not None:
            first = max(1, submit.sampling.prompt_logprobs_from)
            entries = [self._entry(submit, token_id) for token_id in submitted_ids(submit)[first:]]
            told = Tokens(
                request_id=submit.request_id,
                token_ids=b"",
                prompt_logprobs=b"".join(entries),
                num_prompt_logprobs=len(entries),
            )
            await self.send(told)
        output, reason, matched = script.output[:limit], script.reason or "length", None
        for i, token_id in enumerate(output):
            if token_id in submit.sampling.stop_token_ids:
                output, reason, matched = output[: i + 1], "stop", token_id
                break
        for start in range(0, len(output), script.per_frame):
            part = output[start : start + script.per_frame]
            await self.send(self._tokens(submit, part, reuse if start == 0 else None))
            if script.is_held:
                await self._gate.wait()
            await asyncio.sleep(0)
        done = Done(request_id=submit.request_id, reason=reason, matched_token_id=matched, reuse=reuse)
        await self.send(done)

    def _tokens(self, submit: Submit, token_ids: list[int], reuse: Reuse | None) -> Tokens | StepTokens:
        has_logprobs = submit.sampling.num_top_logprobs is not None
        logprobs = tuple(self._entry(submit, token_id) for token_id in token_ids) if has_logprobs else ()
        packed = ids_to_bytes(token_ids)
        if reuse is None and not has_logprobs and len(token_ids) == 1:
            return StepTokens(request_ids=(submit.request_id,), token_ids=packed)
        return Tokens(request_id=submit.request_id, token_ids=packed, logprobs=logprobs, reuse=reuse)

    def _entry(self, submit: Submit, token_id: int) -> bytes:
        top = [(token_id, -0.5), (65, -2.0)][: submit.sampling.num_top_logprobs]
        return pack_logprobs(-0.5, [*top, *((chosen, -float(chosen)) for chosen in submit.sampling.logprob_ids)])


@dataclass(frozen=True, slots=True)
class Server:
    """A running HTTP front over a fake scheduler."""

    url: str
    port: int
    scheduler: FakeScheduler
    client: SchedulerClient
    front: Front


@contextlib.asynccontextmanager
async def running_server(
    directory: Path,
    *,
    config: HttpConfig | None = None,
    chat_template: str | None = CHAT_TEMPLATE,
    is_ready: bool = True,
    adds_bos: bool = False,
) -> AsyncIterator[Server]:
    """The HTTP front as the tokenizer process builds it, on a free port."""
    write_model_dir(directory / "model", chat_template=chat_template, adds_bos=adds_bos)
    address = f"ipc://{directory}/requests"
    scheduler = FakeScheduler(address)
    scheduler.is_ready = is_ready
    answering = asyncio.create_task(scheduler.run())
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    link = Link(connected(context, zmq.DEALER, address))
    client = SchedulerClient(link)
    receiving = asyncio.create_task(client.receive())
    launch = TokenizerLaunch(
        run_dir=str(directory),
        tokenizer_dir=str(directory / "model"),
        model_path="/models/fake",
        model_name="fake",
        config=config or HttpConfig(port=0),
        server_info={"page_tokens": 16, "api_key": "secret"},
    )
    front = build_front(launch, client)
    runner = web.AppRunner(build_app(front), **SERVER_OPTIONS, shutdown_timeout=0.5)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    if is_ready:
        await asyncio.wait_for(client.wait_until_ready(), DEADLINE_S)
    try:
        yield Server(f"http://127.0.0.1:{port}", port, scheduler, client, front)
    finally:
        await runner.cleanup()
        for task in (answering, receiving):
            task.cancel()
        await asyncio.gather(answering, receiving, return_exceptions=True)
        scheduler.close()
        link.close()
        context.term()


def submitted_ids(submit: Submit) -> list[int]:
    """The prompt of a submitted request."""
    return bytes_to_ids(submit.token_ids)


def _byte_characters() -> list[str]:
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]
