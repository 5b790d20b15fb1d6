"""The tokenizer process alone, with a scheduler that is played: nothing is computed, so what is measured is its own.

The figures hold for any model with the same kind of tokenizer. Knows no question that is asked of it.
"""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import tokenizers
import zmq

from bench.command import CannotMeasure
from bench.processes import child_running
from bench.words import WORDS
from runtime.config import MODULES, HttpConfig, TokenizerLaunch
from runtime.launch import Launch, StopAsked, wait_until_started
from runtime.model_files import resolve_model
from runtime.part import Part
from runtime.run_dir import run_directory
from wire.messages.encoding import encode, ids_to_bytes
from wire.messages.to_scheduler import Control, Submit, decode_to_scheduler
from wire.messages.to_tokenizer import ControlReply, Done, Reuse, Stats, StepTokens, Tokens
from wire.sockets import Endpoints, bound

PART = "tokenizer"
VOCABULARY = 49_152
TOKEN_BYTES = 4
START_S = 60.0
POLL_MS = 200
_SCHEDULER_CLOCK = 2
"""The last bits of the number of a whole process's CPU clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """CPU time over a number of tokens, and the pieces of text in which a token came, on average."""

    cpu_s: float
    num_tokens: int
    pieces_per_token: float = 1.0

    @property
    def microseconds(self) -> float:
        """CPU time of one token."""
        return 1e6 * self.cpu_s / self.num_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """What the next requests get, once `num_streams` of them are there."""

    num_streams: int
    num_steps: int
    pace_s: float
    seed: int
    warm_steps: int


class PlayedScheduler:
    """The scheduler's side of the socket, in a thread: once all streams are there, each gets one token a step."""

    def __init__(self, run_dir: Path, token_ids: Sequence[int]) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = bound(self._context, zmq.ROUTER, Endpoints(str(run_dir)).requests)
        self._thread = threading.Thread(target=self._run, name="scheduler", daemon=True)
        self._is_over = threading.Event()
        self._token_ids = token_ids
        self._plan = _Plan(num_streams=0, num_steps=0, pace_s=0.0, seed=0, warm_steps=0)
        self._costs: list[Cost] = []
        self.process_id = 0
        self.held_s = 0.0
        self._thread.start()

    def begin(
        self, *, num_streams: int, num_steps: int, pace_s: float = 0.0, seed: int = 0, warm_steps: int = 0
    ) -> None:
        """Say what the next requests are to get, and how many of the steps are not counted; no stream may be open."""
        self._plan = _Plan(
            num_streams=num_streams, num_steps=num_steps, pace_s=pace_s, seed=seed, warm_steps=warm_steps
        )

    def cost(self) -> Cost:
        """That of the streams that have ended last."""
        return self._costs[-1]

    def close(self) -> None:
        """End the thread and free the address."""
        self._is_over.set()
        self._thread.join()
        self._socket.close()
        self._context.term()

    def _run(self) -> None:
        waiting: list[Submit] = []
        while not self._is_over.is_set():
            if not self._socket.poll(POLL_MS):
                continue
            peer, frame = self._socket.recv_multipart()
            message = decode_to_scheduler(frame)
            if isinstance(message, Control):
                stats = Stats(context_tokens=1 << 17, vocabulary=VOCABULARY, num_pages=1 << 13, page_tokens=16)
                self._send(peer, [ControlReply(control_id=message.control_id, stats=stats)])
            elif isinstance(message, Submit):
                waiting.append(message)
                if len(waiting) == self._plan.num_streams:
                    self._answer(peer, waiting, came_s=time.perf_counter())
                    waiting.clear()

    def _answer(self, peer: bytes, submits: Sequence[Submit], *, came_s: float) -> None:
        plan = self._plan
        draw = random.Random(plan.seed)
        request_ids = [submit.request_id for submit in submits]
        due_s = time.monotonic()
        cpu_s = 0.0
        for step in range(plan.num_steps):
            if step == plan.warm_steps:
                cpu_s = cpu_time_s(self.process_id)
            if step == plan.num_steps - 1:
                num_tokens = (step - plan.warm_steps) * len(request_ids)
                self._costs.append(Cost(cpu_s=cpu_time_s(self.process_id) - cpu_s, num_tokens=num_tokens))
            token_ids = draw.choices(self._token_ids, k=len(request_ids))
            messages = _step(request_ids, token_ids) if step else _first_step(submits, token_ids)
            if not step:
                self.held_s = time.perf_counter() - came_s
            self._send(peer, messages)
            due_s += plan.pace_s
            time.sleep(max(0.0, due_s - time.monotonic()))
        self._send(peer, [Done(request_id=each.request_id, reason="length", reuse=_reuse(each)) for each in submits])

    def _send(self, peer: bytes, messages: Sequence[Tokens | StepTokens | Done | ControlReply]) -> None:
        self._socket.send_multipart([peer, encode(messages)])


def _reuse(submit: Submit) -> Reuse:
    """That of a prompt all of which but its last token was cached."""
    num_tokens = len(submit.token_ids) // TOKEN_BYTES
    return Reuse(prompt_tokens=num_tokens, cached_tokens=num_tokens - 1, copied_tokens=0, queue_s=0.0)


def _first_step(submits: Sequence[Submit], token_ids: Sequence[int]) -> list[Tokens | StepTokens]:
    """What a prefill's end says: each request's first token by itself, with what was reused."""
    return [
        Tokens(request_id=submit.request_id, token_ids=ids_to_bytes([token_id]), reuse=_reuse(submit))
        for submit, token_id in zip(submits, token_ids, strict=True)
    ]


def _step(request_ids: Sequence[str], token_ids: Sequence[int]) -> list[Tokens | StepTokens]:
    """What a decode step says: one more token of each request, as columns."""
    return [StepTokens(request_ids=tuple(request_ids), token_ids=ids_to_bytes(token_ids))]


def cpu_time_s(process_id: int) -> float:
    """What all threads of a process, ended ones too, have spent on a CPU so far, to the nanosecond.

    Linux keeps a clock for each process; its number is made as `clock_getcpuclockid(3)` makes it.
    """
    return time.clock_gettime((~process_id << 3) | _SCHEDULER_CLOCK)


@contextmanager
def lone_tokenizer() -> Iterator[tuple[str, PlayedScheduler]]:
    """The address of a tokenizer process of the embedded model, and the scheduler that it talks to."""
    with run_directory() as run_dir:
        yield from _started(run_dir)


def _started(run_dir: Path) -> Iterator[tuple[str, PlayedScheduler]]:
    files = resolve_model(None)
    config = TokenizerLaunch(
        run_dir=str(run_dir),
        tokenizer_dir=str(files.tokenizer_dir),
        model_path=str(files.weights),
        model_name=files.name,
        config=HttpConfig(port=0),
        server_info={},
    )
    tokenizer = tokenizers.Tokenizer.from_file(str(files.tokenizer_dir / "tokenizer.json"))
    scheduler = PlayedScheduler(run_dir, tokenizer.encode(" ".join(WORDS)).ids)
    launch = Launch(
        [Part(name=PART, module=MODULES[PART], config=config)], forward=lambda line: print(line, file=sys.stderr)
    )
    try:
        launch.start()
        started = wait_until_started(launch, within_s=START_S, on_said=lambda _: None)
        if isinstance(started, StopAsked):
            raise CannotMeasure("a stop was asked for")
        scheduler.process_id = child_running(MODULES[PART])
        yield str(started[PART]["address"]), scheduler
    finally:
        launch.kill()
        scheduler.close()
