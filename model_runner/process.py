"""The model runner's process: starts, announces itself, executes plans in order, ends.

Knows sockets and the launcher; everything about models is in `load` and `runner`.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from typing import Any, assert_never

import msgspec
import zmq

from wire import log as process_log
from wire.child import Child, Failed, LauncherGone, Notice, PeerDied, Progress, Shutdown, Started, adopt
from wire.messages import Fatal, Heartbeat, StepPlan, Stop, decode_to_runner, encode
from wire.sockets import Endpoints, connected

from .attention.torch_backend import TorchStep
from .config import RunnerLaunch
from .errors import StartError
from .load import Loaded, load
from .runner import Runner

log = logging.getLogger(__name__)

HEARTBEAT_S = 1.0


def main() -> None:
    """Run until told to stop."""
    launch, child = adopt(RunnerLaunch, is_killed_with_launcher=True)
    process_log.configure("runner")
    child.watch(_end_at_once, run_dir=launch.run_dir)
    loaded = _load_or_exit(launch, child)
    context = zmq.Context[Any]()
    endpoints = Endpoints(launch.run_dir)
    plans = connected(context, zmq.PULL, endpoints.plans)
    results = connected(context, zmq.PUSH, endpoints.results)
    results.send(encode(loaded.ready))
    threading.Thread(
        target=_beat, args=(connected(context, zmq.PUSH, endpoints.results), loaded.runner), daemon=True
    ).start()
    child.tell(Started(facts=loaded.facts))
    log.info("ready %s", " ".join(f"{key}={value}" for key, value in loaded.facts.items()))
    try:
        _serve(loaded.runner, plans, results)
    except Exception as error:
        log.exception("fatal step=%d", loaded.runner.num_steps)
        results.setsockopt(zmq.LINGER, 1000)
        results.send(encode(Fatal(message=f"the model runner failed: {error or type(error).__name__}")))
        results.close()
        context.term()
        sys.exit(1)
    log.info("stop steps=%d", loaded.runner.num_steps)


def _load_or_exit(launch: RunnerLaunch, child: Child) -> Loaded:
    def tell_progress(done: int, total: int) -> None:
        child.tell(Progress(what="weights", done=done, total=total, unit="B"))

    try:
        return load(launch, tell_progress)
    except (StartError, ValueError, OSError) as error:
        message = str(error)
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "can't allocate memory" not in str(error):
            raise
        message = (
            "out of memory while loading the model; use --dtype bfloat16, a lower --mem-fraction or a smaller model"
        )
    log.error("failed to start: %s", message)
    child.tell(Failed(message=message))
    sys.exit(1)


def _serve(runner: Runner[TorchStep], plans: zmq.Socket[Any], results: zmq.Socket[Any]) -> None:
    """Execute plans until `Stop`."""
    while True:
        waiting_since = time.monotonic()
        frame = plans.recv()
        taken_at = time.monotonic()
        message = decode_to_runner(frame)
        match message:
            case StepPlan():
                result = runner.execute(message)
            case Stop():
                return
            case _:
                assert_never(message)
        elapsed_s, waited_s = time.monotonic() - taken_at, taken_at - waiting_since
        results.send(encode(msgspec.structs.replace(result, elapsed_s=elapsed_s, waited_s=waited_s)))


def _beat(results: zmq.Socket[Any], runner: Runner[TorchStep]) -> None:
    while True:
        results.send(encode(Heartbeat(step=runner.num_steps)))
        threading.Event().wait(HEARTBEAT_S)


def _end_at_once(notice: Notice) -> None:
    """End from the lifeline's thread: the main one may be in the middle of a long step, with nobody to answer."""
    match notice:
        case Shutdown():
            status = os.EX_OK
        case PeerDied() | LauncherGone():
            status = os.EX_UNAVAILABLE
        case _:
            assert_never(notice)
    log.info("ending because of %s", type(notice).__name__)
    os._exit(status)


if __name__ == "__main__":
    main()
