"""Time and sockets of the scheduler: takes messages, plans, sends, settles, replies. Knows no policy."""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, assert_never

import msgspec
import zmq

from wire.messages.encoding import encode
from wire.messages.from_runner import (
    Acknowledged,
    Fatal,
    FromRunner,
    Heartbeat,
    Profiled,
    Ready,
    StepResult,
    decode_from_runner,
)
from wire.messages.to_runner import Profile, ToRunner
from wire.messages.to_scheduler import Answer, Ask, Cancel, Control, Finish, Submit, ToScheduler, decode_to_scheduler
from wire.messages.to_tokenizer import Answered, Asked, ControlReply, Stats
from wire.sockets import has_frame

from . import intake
from .kv_events.publisher import Publisher
from .leave import fail_stalled
from .outlines import Asker, Outlines, run_at
from .plan import plan
from .recorder import Recorder
from .request import ClientId
from .settle import settle
from .state import Reply, State, expected_left_s
from .stats import make_stats
from .watchdog import Watchdog

log = logging.getLogger(__name__)

STATS_EVERY_S = 1.0
SUMMARY_EVERY_S = 10.0


class RunnerFailed(Exception):
    """The runner has said that it can't go on."""


class ToldToStop(Exception):
    """The stop came while a rank of the runner took nothing: it has gone."""


@dataclass(slots=True)
class Sockets:
    """The scheduler's ends: ROUTER to the tokenizers, PUSH plans for each of the runner's ranks, PULL results, and a
    descriptor that asks to stop.
    """

    requests: zmq.Socket[Any]
    plans: Sequence[zmq.Socket[Any]]
    results: zmq.Socket[Any]
    stop_fd: int

    def send_all(self, message: ToRunner) -> None:
        """Send a message to every rank; waits for one that has not connected yet.

        Raises:
            ToldToStop: instead of waiting.
        """
        frame = encode(message)
        for plans in self.plans:
            self._send(plans, frame)

    def send_first(self, message: ToRunner) -> None:
        """Send a message to rank 0, as `send_all` does to all."""
        self._send(self.plans[0], encode(message))

    def _send(self, plans: zmq.Socket[Any], frame: bytes) -> None:
        while True:
            try:
                plans.send(frame, zmq.NOBLOCK)
            except zmq.Again:
                poller = zmq.Poller()
                poller.register(plans, zmq.POLLOUT)
                poller.register(self.stop_fd, zmq.POLLIN)
                if self.stop_fd in dict(poller.poll()):
                    raise ToldToStop from None
            else:
                return


@dataclass(slots=True)
class Loop:
    """Runs until the stop descriptor becomes readable."""

    state: State
    sockets: Sockets
    watchdog: Watchdog
    kv_events: Publisher | None = None
    outlines: Outlines = field(default_factory=Outlines)
    recorder: Recorder | None = None
    clients: set[ClientId] = field(default_factory=set)
    busy_s: float = 0.0
    next_stats_s: float = 0.0
    next_summary_s: float = 0.0
    summarised_steps: int = 0

    def run(self) -> None:
        """Serve until told to stop.

        Raises:
            RunnerFailed: the runner sent `Fatal`.
            OutOfStep: a step retired out of its turn.
        """
        poller = zmq.Poller()
        for end in (self.sockets.requests, self.sockets.results, self.sockets.stop_fd):
            poller.register(end, zmq.POLLIN)
        if self.kv_events is not None and self.kv_events.replay is not None:
            poller.register(self.kv_events.replay, zmq.POLLIN)
        while True:
            wait_s = max(0.0, min(self.next_stats_s, self.outlines.due_s()) - time.monotonic())
            ready = dict(poller.poll(round(wait_s * 1000)))
            if self.sockets.stop_fd in ready:
                return
            self.turn(time.monotonic())

    def turn(self, began_s: float) -> None:
        """Take what has arrived, fill the pipeline, answer."""
        replies = self._take_results(began_s)
        replies += self._take_requests(began_s)
        self._fill_pipeline()
        replies += fail_stalled(self.state)
        self._send(replies)
        self.state.cache.evict_ahead()
        self._tell_others()
        self._send(self._outlines())
        self.busy_s += time.monotonic() - began_s
        if began_s >= self.next_stats_s:
            self._report(began_s)

    def _take_results(self, now_s: float) -> list[Reply]:
        replies: list[Reply] = []
        for frames in _received(self.sockets.results):
            message: FromRunner = decode_from_runner(frames[-1])
            match message:
                case StepResult():
                    self.watchdog.heard(0, now_s=now_s)
                    # The runner's wait counts only while rows were there to work on.
                    if self.state.running:
                        self.state.counters.runner_idle_s_total += message.waited_s
                    replies += settle(self.state, message)
                case Profiled():
                    answer = ControlReply(control_id=message.control_id, path=message.path, refusal=message.refusal)
                    replies.append(Reply(ClientId(message.client), answer))
                case Acknowledged():
                    self.watchdog.acknowledged(message.rank, message.step)
                case Heartbeat():
                    self.watchdog.heard(message.rank, now_s=now_s)
                case Fatal():
                    raise RunnerFailed(message.message)
                case Ready():
                    raise RunnerFailed("the runner announced itself twice")
                case _:
                    assert_never(message)
        return replies

    def _take_requests(self, now_s: float) -> list[Reply]:
        replies: list[Reply] = []
        for client, frame in _received(self.sockets.requests):
            try:
                message = decode_to_scheduler(frame)
            except msgspec.ValidationError:
                log.exception("dropped a malformed frame client=%s", client.hex())
                continue
            replies += self._handle(ClientId(client), message, now_s)
        return replies

    def _handle(self, client: ClientId, message: ToScheduler, now_s: float) -> list[Reply]:
        self.clients.add(client)
        match message:
            case Submit():
                replies = intake.submit(self.state, client, message, now_s=now_s)
                if self.recorder is not None and (request := self.state.waiting.get(message.request_id)) is not None:
                    self.recorder.accepted(request)
                return replies
            case Cancel():
                return intake.cancel(self.state, client, message.request_id)
            case Finish():
                return intake.finish(self.state, client, message.request_id)
            case Control():
                return self._control(client, message, now_s)
            case Ask():
                asked = Asked(asker=client, ask_id=message.ask_id, wish=message.wish, about=message.about)
                return [Reply(other, asked) for other in self.clients if other != client]
            case Answer():
                return [Reply(ClientId(message.asker), Answered(ask_id=message.ask_id, content=message.content))]
            case _:
                assert_never(message)

    def _control(self, client: ClientId, message: Control, now_s: float) -> list[Reply]:
        count, replies = 0, []
        match message.action:
            case "flush":
                count = self.state.cache.flush()
                if self.state.gap is not None:
                    self.state.gap.flushed()
                log.info("flush pages=%d", count)
            case "abort":
                replies = intake.abort(self.state, message.request_id)
                count = len(replies)
            case "pause" | "continue":
                self.state.is_paused = message.action == "pause"
                log.info("%s running=%d waiting=%d", message.action, len(self.state.running), len(self.state.waiting))
            case "stats" | "gap":
                pass
            case "outline":
                self.outlines.ask(Asker(client, message.control_id), message.page)
                return []
            case "run":
                run = None if message.page is None else run_at(self.state.cache, message.page, self.state.explainer)
                return [Reply(client, ControlReply(control_id=message.control_id, run=run))]
            case "sessions":
                told = () if self.state.sessions is None else self.state.sessions.states(message.page)
                return [Reply(client, ControlReply(control_id=message.control_id, sessions=told))]
            case "start_profile" | "stop_profile":
                wish = message.profile if message.action == "start_profile" else None
                profile = Profile(client=client, control_id=message.control_id, wish=wish)
                self.sockets.send_first(profile)
                return []
            case _:
                assert_never(message.action)
        gap = self.state.gap.report(now_s=now_s) if message.action == "gap" and self.state.gap is not None else None
        answer = ControlReply(control_id=message.control_id, count=count, stats=self._stats(now_s), gap=gap)
        return [*replies, Reply(client, answer)]

    def _fill_pipeline(self) -> None:
        depth = 2 if self.state.config.overlap else 1
        while len(self.state.in_flight) < depth:
            step = plan(self.state, now_s=time.monotonic())
            if step is None:
                return
            self.sockets.send_all(step)

    def _send(self, replies: list[Reply]) -> None:
        if self.recorder is not None:
            self.recorder.told(replies, now_s=time.monotonic())
        by_client: dict[ClientId, list[object]] = defaultdict(list)
        for reply in replies:
            by_client[reply.client].append(reply.message)
        for client, batch in by_client.items():
            self.sockets.requests.send_multipart([client, encode(batch)])

    def _tell_others(self) -> None:
        """Publish what has entered and left the cache, to those who have asked for it."""
        if self.kv_events is not None:
            self.kv_events.publish()
            self.kv_events.answer()
            self.state.counters.kv_event_messages_total = self.kv_events.next_sequence

    def _outlines(self) -> list[Reply]:
        """Show the tree to those who have asked, while the runner has enough to do."""
        if not self.outlines.asked:
            return []
        now_s = time.monotonic()
        return self.outlines.answers(self.state.cache, now_s, spare_s=expected_left_s(self.state, now_s=now_s))

    def _stats(self, now_s: float) -> Stats:
        stuck = self.watchdog.stuck(self.state, now_s=now_s)
        return make_stats(self.state, now_s=now_s, scheduler_busy_s=self.busy_s, stuck=stuck)

    def _report(self, now_s: float) -> None:
        self.next_stats_s = now_s + STATS_EVERY_S
        stats = self._stats(now_s)
        self._send([Reply(client, stats) for client in self.clients])
        self.state.cache.audit()
        if now_s < self.next_summary_s:
            return
        self.next_summary_s = now_s + SUMMARY_EVERY_S
        if stats.stuck:
            log.error("stuck: %s", stats.stuck)
        if stats.steps_total > self.summarised_steps:
            self.summarised_steps = stats.steps_total
            log.info(
                "running=%d waiting=%d free_pages=%d cached_pages=%d"
                " prompt_tokens=%d cached_tokens=%d output_tokens=%d",
                stats.num_running,
                stats.num_waiting,
                stats.free_pages,
                stats.cached_pages,
                stats.prompt_tokens_total,
                stats.cached_tokens_total,
                stats.output_tokens_total,
            )


def _received(socket: zmq.Socket[Any]) -> list[list[bytes]]:
    """Every message that waits on `socket`."""
    received = []
    while has_frame(socket):
        received.append(socket.recv_multipart(zmq.NOBLOCK))
    return received
