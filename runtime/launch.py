"""Starts the processes of a server, watches over them and stops them; `wire/child.py` has the protocol.

Everything that happens arrives in one queue as an event: what a part says, that it died, that somebody wants to stop.
Knows no HTTP and no terminal, and nothing of what the processes do.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from wire.child import GRACE_S, Failed, Notice, PeerDied, Progress, Shutdown, Started

from .part import Died, Part, RunningPart, Said

Facts = dict[str, str | int | float]

_EXIT_S = 0.5
"""How long a process may take to exit when its time of grace is over."""

_LEAVE_S = 1.9
"""How long one that clients talk to may take then: its last answers have to leave, which slow readers hold up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StopAsked:
    """Somebody wants the server to stop; `why` is for the log."""

    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Overdue:
    """Parts that did not end in time when they were told to, and were killed."""

    parts: tuple[str, ...]


Event = Said | Died | StopAsked


class StartFailed(Exception):
    """The server could not start; the message names the part, the reason and what to change."""


class Hurried(Exception):
    """A stop was asked for again while stopping."""


class Launch:
    """The processes of one server.

    The first parts, `num_fronts` of them, are those that clients talk to: they stop first, and the others when they
    have.
    """

    def __init__(self, parts: Sequence[Part], *, forward: Callable[[str], None], num_fronts: int = 1) -> None:
        """`forward` is given every line that a part writes, from several threads."""
        self._parts = tuple(parts)
        self._num_fronts = num_fronts
        self._forward = forward
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._living: dict[str, RunningPart] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all parts."""
        return tuple(part.name for part in self._parts)

    @property
    def fronts(self) -> tuple[str, ...]:
        """The names of the parts that clients talk to."""
        return self.names[: self._num_fronts]

    @property
    def living(self) -> frozenset[str]:
        """The names of the parts that were started and whose end has not been seen by `next_event`."""
        return frozenset(self._living)

    def start(self) -> None:
        """Start all parts at once, from a thread that lives as long as they shall: they may die with it."""
        for part in self._parts:
            self._living[part.name] = RunningPart(part, self._events.put, self._forward)

    def next_event(self, deadline: float | None = None) -> Event | None:
        """The next event, or None when the monotonic clock passes `deadline` first."""
        timeout = None if deadline is None else max(0.0, deadline - time.monotonic())
        try:
            event = self._events.get(timeout=timeout)
        except queue.Empty:
            return None
        if isinstance(event, Died):
            self._living.pop(event.part).close()
        return event

    def ask_to_stop(self, why: str) -> None:
        """Put a `StopAsked` into the queue; may be called from a signal handler and from any thread."""
        self._events.put(StopAsked(why=why))

    def tell(self, names: Iterable[str], notice: Notice) -> None:
        """Send a notice to those of the named parts that live."""
        for name in self.living.intersection(names):
            self._living[name].tell(notice)

    def wait_gone(self, names: Iterable[str], *, within_s: float, in_order: bool = True) -> Died | None:
        """Wait until the named parts have ended, at most `within_s` seconds, or until another part dies.

        Returns that death; with `in_order` also that of a named part which did not end by itself and well.

        Raises:
            Hurried: a stop was asked for meanwhile.
        """
        wanted = frozenset(names)
        deadline = time.monotonic() + within_s
        while wanted & self.living:
            match self.next_event(deadline):
                case None:
                    return None
                case StopAsked():
                    raise Hurried
                case Died(part=part) as died if part not in wanted or (in_order and not died.is_in_order):
                    return died
        return None

    def abandon(self) -> None:
        """In a forked child: close its copies of the parts' pipes, by whose end they notice the launcher's."""
        for running in self._living.values():
            running.close()

    def kill(self) -> None:
        """End every living part at once."""
        for running in self._living.values():
            running.kill()
        while self._living:
            self.next_event()


def wait_until_started(
    launch: Launch, *, within_s: float, on_said: Callable[[Said], None]
) -> dict[str, Facts] | StopAsked:
    """Wait until every part has said `Started`; return their facts, or the wish to stop that came first.

    Raises:
        StartFailed: a part failed, died, or was not ready in time.
    """
    deadline = time.monotonic() + within_s
    facts: dict[str, Facts] = {}
    doing = dict.fromkeys(launch.names, "no progress reported")
    while len(facts) < len(launch.names):
        match launch.next_event(deadline):
            case None:
                late = ", ".join(f"the {name} ({doing[name]})" for name in launch.names if name not in facts)
                raise StartFailed(f"not ready after {within_s:g} s: {late}. Raise --start-timeout if it needs more.")
            case StopAsked() as asked:
                return asked
            case Died() as died:
                raise StartFailed(f"while starting, {describe(died)}")
            case Said(part=part, status=status) as said:
                on_said(said)
                match status:
                    case Failed(message=message):
                        raise StartFailed(f"the {part} could not start: {message}")
                    case Started():
                        facts[part] = status.facts
                    case Progress():
                        doing[part] = progress_text(status)
    return facts


def wait_for_end(launch: Launch) -> Died | StopAsked:
    """Wait until a part dies or a stop is asked for."""
    while True:
        event = launch.next_event()
        if isinstance(event, Died | StopAsked):
            return event


def stop_in_order(launch: Launch, *, grace_s: float) -> Died | Overdue | None:
    """Let open requests finish within `grace_s`, then end all parts; takes `grace_s` and 2.9 s at most.

    Returns what went wrong, when everything has stopped: a part died, upon which open requests have been answered, or
    parts had to be killed.

    Raises:
        Hurried: a stop was asked for again, upon which everything has been killed.
    """
    others = [name for name in launch.names if name not in launch.fronts]
    try:
        launch.tell(launch.fronts, Shutdown(grace_s=grace_s))
        died = launch.wait_gone(launch.fronts, within_s=grace_s + _LEAVE_S)
        if died is None:
            launch.tell(others, Shutdown(grace_s=_EXIT_S))
            died = launch.wait_gone(others, within_s=2 * _EXIT_S)
        if died is not None:
            stop_after_death(launch, died)
            return died
        overdue = tuple(name for name in launch.names if name in launch.living)
        return Overdue(parts=overdue) if overdue else None
    finally:
        launch.kill()


def stop_after_death(launch: Launch, died: Died) -> None:
    """Tell the other parts, so that they answer what is open, and end them within `GRACE_S` and a moment."""
    peer_died = PeerDied(process=died.part, exit_status=died.exit_status, last_words=died.last_words)
    try:
        launch.tell(launch.names, peer_died)
        launch.wait_gone(launch.names, within_s=GRACE_S + _EXIT_S, in_order=False)
    except Hurried:
        return
    finally:
        launch.kill()


def describe(died: Died) -> str:
    """What to say of a death: who, how, its last words, and what to do."""
    if died.exit_status == "killed by SIGKILL":
        advice = "So the kernel ends processes when memory runs out: lower --mem-fraction or --max-total-tokens."
    else:
        advice = "If its last words do not tell what to change, start again with AXIL_LOG=DEBUG."
    words = "".join(f"\n  | {line}" for line in died.last_words.splitlines()) or " none"
    return f"the {died.part} died ({died.exit_status}). {advice} Its last words:{words}"


def progress_text(progress: Progress) -> str:
    """What a part is doing and how far it is; bytes are given in MB."""
    if not progress.total:
        return progress.what
    percent = 100 * progress.done // progress.total
    scale, unit = (10**6, "MB") if progress.unit == "B" else (1, progress.unit)
    return f"{progress.what} {progress.done // scale} of {progress.total // scale} {unit}".rstrip() + f" ({percent}%)"
