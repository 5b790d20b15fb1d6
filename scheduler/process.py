"""The scheduler process: waits for the runner, then runs the loop until told to stop."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import sys
import time
from pathlib import Path
from typing import Any

import zmq

from radix.native.library import load_library
from wire import child as children
from wire import log as logs
from wire.messages.from_runner import Fatal, Ready, decode_from_runner
from wire.messages.to_runner import Stop
from wire.sockets import Endpoints, bound

from .config import KvEventsConfig, SchedulerConfig, SchedulerLaunch
from .kv_events.publisher import CannotPublish, Publisher
from .loop import Loop, RunnerFailed, Sockets, ToldToStop
from .recorder import Recorder
from .settle import OutOfStep
from .state import Limits, State, make_state
from .watchdog import Watchdog

log = logging.getLogger(__name__)


def main() -> int:
    """Run the process; the exit status is 0 after an ordered stop."""
    # Requests and the tree leave no cycles behind, and a collection would stop a step for as long as the tree is large.
    gc.disable()
    launch, child = children.adopt(SchedulerLaunch, is_killed_with_launcher=True)
    logs.configure("scheduler")
    stop_fd, ask_to_stop = os.pipe()

    def take_notice(notice: children.Notice) -> None:
        log.debug("notice %s", notice)
        os.write(ask_to_stop, b"x")

    child.watch(take_notice, run_dir=launch.run_dir)
    endpoints = Endpoints(launch.run_dir)
    with (
        zmq.Context() as context,
        bound(context, zmq.ROUTER, endpoints.requests) as requests,
        bound(context, zmq.PULL, endpoints.results) as results,
        contextlib.ExitStack() as stack,
    ):
        plans = [
            stack.enter_context(bound(context, zmq.PUSH, endpoints.plans(rank))) for rank in range(launch.num_ranks)
        ]
        load_library()  # which compiles it at the first start, while the runner loads its model
        ready = _wait_for_ready(results, stop_fd)
        if ready is None:
            return 0
        limits = Limits(
            model_fingerprint=ready.model_fingerprint,
            context_tokens=ready.context_tokens,
            vocabulary=ready.vocabulary,
            pool_tokens=ready.num_pages * ready.page_tokens,
            device=ready.device,
        )
        state = make_state(launch.config, limits, page_tokens=ready.page_tokens)
        try:
            kv_events = _publisher(launch.kv_events, state)
            recorder = _recorder(launch.config, limits)
        except CannotPublish as error:
            child.tell(children.Failed(message=str(error)))
            return 1
        except OSError as error:
            child.tell(children.Failed(message=f"--record {launch.config.record} can't be written: {error.strerror}"))
            return 1
        child.tell(children.Started(facts={"max_running": launch.config.max_running}))
        sockets = Sockets(requests=requests, plans=plans, results=results, stop_fd=stop_fd)
        watchdog = Watchdog(launch.num_ranks * [time.monotonic()])
        loop = Loop(state=state, sockets=sockets, watchdog=watchdog, recorder=recorder, kv_events=kv_events)
        try:
            with contextlib.suppress(ToldToStop):
                loop.run()
        except (RunnerFailed, OutOfStep) as error:
            log.error("the model runner can't go on: %s", error)
            return 1
        finally:
            if kv_events is not None:
                kv_events.close()
            if recorder is not None:
                recorder.close()
        with contextlib.suppress(ToldToStop):
            sockets.send_all(Stop())
    return 0


def _publisher(config: KvEventsConfig, state: State) -> Publisher | None:
    if config.kv_events is None:
        return None
    return Publisher(config, state.journal, num_pages=state.cache.num_pages)


def _recorder(config: SchedulerConfig, limits: Limits) -> Recorder | None:
    """Raises OSError when the file can't be made."""
    if config.record is None:
        return None
    return Recorder(
        Path(config.record), pool_tokens=limits.pool_tokens, with_ids=config.record_text, now_s=time.monotonic()
    )


def _wait_for_ready(results: zmq.Socket[Any], stop_fd: int) -> Ready | None:
    """The runner's announcement; None when told to stop first."""
    poller = zmq.Poller()
    poller.register(results, zmq.POLLIN)
    poller.register(stop_fd, zmq.POLLIN)
    while True:
        events = dict(poller.poll())
        if stop_fd in events:
            return None
        message = decode_from_runner(results.recv())
        if isinstance(message, Ready):
            return message
        if isinstance(message, Fatal):
            log.error("the model runner can't start: %s", message.message)
            return None


if __name__ == "__main__":
    sys.exit(main())
