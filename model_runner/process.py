"""The model runner's process: starts, announces itself, executes plans in order, ends.

Knows sockets and the launcher; everything about models is in `load` and `runner`.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NoReturn, assert_never

import zmq

from wire import log as process_log
from wire.child import Failed, LauncherGone, Notice, PeerDied, Progress, Shutdown, Started, adopt
from wire.messages.encoding import encode
from wire.messages.from_runner import Acknowledged, Fatal, Heartbeat, StepResult
from wire.sockets import Endpoints, connected

from .config import RunnerLaunch
from .errors import StartError
from .load import load
from .profiling import Profiling, profile_dir
from .ranks import RankLost
from .runner import Runner
from .serve import serve

log = logging.getLogger(__name__)

HEARTBEAT_S = 1.0
LOST_S = 10.0
"""How long a process waits for its end when another rank has gone."""

LAST_WORDS_MS = 1000
"""How long the last message may take to leave."""


def main() -> None:
    """Run until told to stop."""
    launch, child = adopt(RunnerLaunch, is_killed_with_launcher=True)
    rank = launch.rank
    process_log.configure("runner" if launch.config.tensor_parallel == 1 else f"runner {rank}")
    child.watch(_end_at_once, run_dir=launch.run_dir)
    try:
        with _first_rank_speaks(rank):
            loaded = load(
                launch, lambda done, total: child.tell(Progress(what="weights", done=done, total=total, unit="B"))
            )
    except RankLost as error:
        _wait_for_the_end(error)
        child.tell(Failed(message=str(error)))
        _exit(1)
    except Exception as error:
        child.tell(Failed(message=_why_it_failed(error)))
        _exit(1)
    context = zmq.Context[Any]()
    endpoints = Endpoints(launch.run_dir)
    plans = connected(context, zmq.PULL, endpoints.plans(rank))
    results = connected(context, zmq.PUSH, endpoints.results)
    threading.Thread(target=_beat, args=(endpoints, loaded.runner, rank), name="heartbeat", daemon=True).start()
    try:
        loaded.ranks.least(0)  # all listen
        if rank == 0:
            results.send(encode(loaded.ready))
        child.tell(Started(facts=loaded.facts))
        profiling = Profiling(profile_dir(launch.config))
        if rank == 0:
            serve(loaded.runner, plans, results, profiling=profiling)
        else:
            serve(loaded.runner, plans, results, profiling=profiling, report=partial(_acknowledged, rank))
    except Exception as error:
        log.exception("fatal step=%d", loaded.runner.num_steps)
        if isinstance(error, RankLost):
            _wait_for_the_end(error)
        results.send(encode(Fatal(message=f"the model runner failed: {error or type(error).__name__}")))
        plans.close()
        results.close(linger=LAST_WORDS_MS)
        context.term()
        _exit(1)
    log.info("stop steps=%d", loaded.runner.num_steps)
    _exit(os.EX_OK)


@contextmanager
def _first_rank_speaks(rank: int) -> Iterator[None]:
    """While they load all ranks have the same to say, so only the first one says it; errors are each one's own."""
    if rank:
        logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


def _why_it_failed(error: Exception) -> str:
    """The sentence for the operator, who gets it from the launcher; a traceback is logged where nothing is known."""
    if isinstance(error, MemoryError) or "can't allocate memory" in str(error):
        return "out of memory while loading the model; use --dtype bfloat16, a lower --mem-fraction or a smaller model"
    if isinstance(error, StartError | ValueError | OSError):
        return str(error)
    log.exception("failed to start")
    return f"the model runner failed to start: {type(error).__name__}: {error}"


def _acknowledged(rank: int, result: StepResult) -> Acknowledged:
    return Acknowledged(rank=rank, step=result.step)


def _wait_for_the_end(error: RankLost) -> None:
    """Leave it to the launcher, which knows who died and how, to say so and to end this process: for a while."""
    log.error("%s", error)
    time.sleep(LOST_S)


def _beat(endpoints: Endpoints, runner: Runner[Any], rank: int) -> None:
    """Say every second that the process lives, over a context of its own so that the other one can be ended."""
    results = connected(zmq.Context[Any](), zmq.PUSH, endpoints.results)
    while True:
        results.send(encode(Heartbeat(step=runner.num_steps, rank=rank)))
        time.sleep(HEARTBEAT_S)


def _exit(status: int) -> NoReturn:
    """End without the interpreter's shutdown, which aborts while the lifeline's thread reads standard input."""
    logging.shutdown()
    os._exit(status)


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
    _exit(status)


if __name__ == "__main__":
    main()
