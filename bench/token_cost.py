"""How much CPU time does the tokenizer process spend on each streamed token?

Starts that process alone, between streams of this process and a scheduler played by it, which sends each stream one
token of plain text a step. Nothing is computed, so the figure holds for any model with the same kind of tokenizer:
    python -m bench.token_cost --streams 64
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import tokenizers
import zmq

from bench import results, summary
from bench.client import GENERATE, connected
from bench.command import CannotMeasure, count, exit_status, parser_of, positive
from bench.summary import Failure
from bench.words import WORDS, text_of
from runtime.config import MODULES, HttpConfig, TokenizerLaunch
from runtime.launch import Launch, StopAsked, wait_until_started
from runtime.model_files import resolve_model
from runtime.part import Part
from runtime.run_dir import run_directory
from wire.messages import (
    Control,
    ControlReply,
    Done,
    Reuse,
    Stats,
    StepTokens,
    Submit,
    Tokens,
    decode_to_scheduler,
    encode,
    ids_to_bytes,
)
from wire.sockets import Endpoints, bound

PART = "tokenizer"
VOCABULARY = 49_152
WARM_STEPS = 20
PROMPT_TOKENS = 32
START_S = 60.0
REQUEST_S = 120.0
POLL_MS = 200
ROUTES = {"completions": "", "generate": GENERATE}


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


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print the table."""
    parser = parser_of("bench.token_cost", __doc__)
    parser.add_argument("--streams", type=count, default=64, help="streams at a time (default: 64)")
    parser.add_argument("--steps", type=count, default=200, help="tokens of each stream (default: 200)")
    parser.add_argument("--pace", type=positive, default=25.0, metavar="MS", help="time of a step (default: 25 ms)")
    parser.add_argument("--repeats", type=count, default=5, help="runs of all streams (default: 5)")
    parser.add_argument("--route", choices=sorted(ROUTES), default="completions", help="default: completions")
    results.add_json_flag(parser)
    args = parser.parse_args(argv)
    if args.steps <= WARM_STEPS + 1:
        parser.error(f"--steps must be more than {WARM_STEPS + 1}: the first {WARM_STEPS} are not counted")
    costs = measure(args)
    rows = {f"repeat {number}": _row(cost, args) for number, cost in enumerate(costs, start=1)}
    figures = {name: statistics.median(row[name] for row in rows.values()) for name in next(iter(rows.values()))}
    print(summary.table({**rows, "median": figures}))
    results.write(args.json, figures, results.command_line("bench.token_cost"))
    return 0


def measure(args: argparse.Namespace) -> list[Cost]:
    """The cost of each repeat.

    Raises:
        CannotMeasure: a stream failed.
    """
    costs = []
    with run_directory() as run_dir, _tokenizer(run_dir) as (url, scheduler):
        for repeat in range(args.repeats):
            scheduler.begin(num_streams=args.streams, num_steps=args.steps, pace_s=args.pace / 1e3, seed=repeat)
            try:
                num_pieces = asyncio.run(_streams(url + ROUTES[args.route], args.streams, args.steps))
            except* CannotMeasure as errors:
                raise CannotMeasure(str(errors.exceptions[0])) from errors
            pieces_per_token = num_pieces / (args.streams * args.steps)
            costs.append(replace(scheduler.cost(), pieces_per_token=pieces_per_token))
    return costs


class PlayedScheduler:
    """The scheduler's side of the socket, in a thread: once all streams are there, each gets one token a step."""

    def __init__(self, run_dir: Path, token_ids: Sequence[int]) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = bound(self._context, zmq.ROUTER, Endpoints(str(run_dir)).requests)
        self._thread = threading.Thread(target=self._run, name="scheduler", daemon=True)
        self._is_over = threading.Event()
        self._token_ids = token_ids
        self._plan = (0, 0, 0.0, 0)
        self._costs: list[Cost] = []
        self.process_id = 0
        self._thread.start()

    def begin(self, *, num_streams: int, num_steps: int, pace_s: float, seed: int) -> None:
        """Say what the next requests are to get; no stream may be open."""
        self._plan = (num_streams, num_steps, pace_s, seed)

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
                stats = Stats(context_tokens=1 << 17, vocabulary=VOCABULARY, num_pages=1 << 12, page_tokens=16)
                self._send(peer, [ControlReply(control_id=message.control_id, stats=stats)])
            elif isinstance(message, Submit):
                waiting.append(message)
                if len(waiting) == self._plan[0]:
                    self._answer(peer, [submit.request_id for submit in waiting])
                    waiting.clear()

    def _answer(self, peer: bytes, request_ids: Sequence[str]) -> None:
        _, num_steps, pace_s, seed = self._plan
        draw = random.Random(seed)
        reuse = Reuse(prompt_tokens=PROMPT_TOKENS, cached_tokens=0, copied_tokens=0, queue_s=0.0)
        due_s = time.monotonic()
        cpu_s = 0.0
        for step in range(num_steps):
            if step == WARM_STEPS:
                cpu_s = cpu_time_s(self.process_id)
            if step == num_steps - 1:
                num_tokens = (step - WARM_STEPS) * len(request_ids)
                self._costs.append(Cost(cpu_s=cpu_time_s(self.process_id) - cpu_s, num_tokens=num_tokens))
            token_ids = draw.choices(self._token_ids, k=len(request_ids))
            self._send(peer, _step(request_ids, token_ids) if step else _first_step(request_ids, token_ids, reuse))
            due_s += pace_s
            time.sleep(max(0.0, due_s - time.monotonic()))
        self._send(peer, [Done(request_id=request_id, reason="length", reuse=reuse) for request_id in request_ids])

    def _send(self, peer: bytes, messages: Sequence[Tokens | StepTokens | Done | ControlReply]) -> None:
        self._socket.send_multipart([peer, encode(messages)])


def _first_step(request_ids: Sequence[str], token_ids: Sequence[int], reuse: Reuse) -> list[Tokens | StepTokens]:
    """What a prefill's end says: each request's first token by itself, with what was reused."""
    pairs = zip(request_ids, token_ids, strict=True)
    return [Tokens(request_id=name, token_ids=ids_to_bytes([token_id]), reuse=reuse) for name, token_id in pairs]


def _step(request_ids: Sequence[str], token_ids: Sequence[int]) -> list[Tokens | StepTokens]:
    """What a decode step says: one more token of each request, as columns."""
    return [StepTokens(request_ids=tuple(request_ids), token_ids=ids_to_bytes(token_ids))]


def cpu_time_s(process_id: int) -> float:
    """What all threads of a process have spent on a CPU so far, to the nanosecond."""
    threads = Path(f"/proc/{process_id}/task").iterdir()
    return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) / 1e9


def child_running(module: str) -> int:
    """The process id of this process's child that runs a module.

    Raises:
        CannotMeasure: there is none.
    """
    for thread in Path("/proc/self/task").iterdir():
        for process_id in map(int, (thread / "children").read_text().split()):
            if module.encode() in Path(f"/proc/{process_id}/cmdline").read_bytes().split(b"\0"):
                return process_id
    raise CannotMeasure(f"no child of this process runs {module}")


@contextmanager
def _tokenizer(run_dir: Path) -> Iterator[tuple[str, PlayedScheduler]]:
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


async def _streams(url: str, num_streams: int, num_tokens: int) -> int:
    """Read all streams to their ends; gives the number of pieces of text that came."""
    num_pieces = 0
    async with connected(url, None) as client, asyncio.TaskGroup() as tasks:

        async def stream(prompt: str) -> None:
            nonlocal num_pieces
            answer = await client.complete(prompt, max_tokens=num_tokens, timeout_s=REQUEST_S)
            if isinstance(answer, Failure):
                raise CannotMeasure(f"a stream failed: {answer.kind}: {answer.detail}")
            num_pieces += len(answer.pieces)

        for seed in range(num_streams):
            tasks.create_task(stream(text_of(PROMPT_TOKENS, seed=seed)))
    return num_pieces


def _row(cost: Cost, args: argparse.Namespace) -> dict[str, float]:
    counted_s = args.pace / 1e3 * (args.steps - WARM_STEPS - 1)
    return {
        "cpu_per_token_us": cost.microseconds,
        "cpu_busy_percent": 100 * cost.cpu_s / counted_s,
        "pieces_per_token_ratio": cost.pieces_per_token,
    }


if __name__ == "__main__":
    raise SystemExit(exit_status(main))
