"""`axil chat`: reads lines, shows answers as they come, and says after each what was cached and how fast it was.

Works in a terminal and with a pipe. Knows no HTTP and no processes; `runtime/chat_model.py` does.
"""

from __future__ import annotations

import asyncio
import difflib
import json
import os
import sys
import time
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path

from wire.errors import AxilError

from .chat_model import ChatModel, Usage
from .engine_wishes import Message
from .printable import printable
from .remote import ServerFailed

HELP = """\
/reset          begin a new chat (the system prompt stays)
/system TEXT    set the system prompt and begin a new chat; without TEXT, have none
/save FILE      write the chat to FILE as JSON
/help           this list
/quit           leave (so do Ctrl-D, and Ctrl-C twice)
Ctrl-C stops an answer. A line that begins with // is sent with one /."""

_COMMANDS = ("/reset", "/system", "/save", "/help", "/quit")


class Terminal:
    """Where the chat is read from and shown. What is not an answer goes to stderr when stdout is not a terminal."""

    def __init__(self) -> None:
        self.is_interactive = sys.stdin.isatty()
        self._is_shown = sys.stdout.isatty()
        self._has_style = self._is_shown and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
        if self.is_interactive:
            import readline  # noqa: F401  (importing it gives `input` its line editing)

    def read(self) -> str | None:
        """The next line, None at the end."""
        if not self.is_interactive:
            line = sys.stdin.readline()
            return line.removesuffix("\n") if line else None
        try:
            return input("> ")
        except EOFError:
            print()
            return None

    def show(self, text: str) -> None:
        """A piece of an answer; a pipe gets it as it is."""
        print(printable(text) if self._is_shown else text, end="", flush=True)

    def note(self, text: str) -> None:
        """A line that is no part of an answer."""
        text = printable(text)
        if self._has_style:
            text = f"\x1b[2m{text}\x1b[0m"
        print(text, file=sys.stdout if self._is_shown else sys.stderr, flush=True)


@dataclass(slots=True)
class Chat:
    """What has been said so far."""

    system: str | None = None
    turns: list[Message] = field(default_factory=list)

    @property
    def messages(self) -> list[Message]:
        """All messages, as the model is given them."""
        return [*([] if self.system is None else [{"role": "system", "content": self.system}]), *self.turns]


def converse(model: ChatModel, runner: asyncio.Runner, *, system: str | None) -> int:
    """Chat until the user leaves; answers run on `runner`. Returns the exit status, 1 when an answer failed."""
    terminal = Terminal()
    chat = Chat(system)
    status = 0
    was_interrupted = False
    if terminal.is_interactive:
        terminal.note("/help lists the commands, /quit leaves.")
    while True:
        try:
            line = terminal.read()
            if line is None:
                break
            was_interrupted = False
            if line.startswith("/") and not line.startswith("//"):
                if not _obey(line, chat, terminal):
                    break
            elif line.strip():
                _answer(line.removeprefix("/") if line.startswith("//") else line, chat, model, runner, terminal)
        except KeyboardInterrupt:
            if was_interrupted or not terminal.is_interactive:
                return 130
            was_interrupted = True
            terminal.note("\n(stopped; Ctrl-C again leaves)")
        except (AxilError, ServerFailed) as error:
            terminal.note(f"error: {error}")
            status = 0 if terminal.is_interactive else 1
    return status


def _answer(text: str, chat: Chat, model: ChatModel, runner: asyncio.Runner, terminal: Terminal) -> None:
    """Add a turn of both; what was shown of an answer that was stopped stays, a question without answer goes."""
    chat.turns.append({"role": "user", "content": text})
    said: list[str] = []
    try:
        runner.run(_stream(model, chat.messages, said, terminal))
    finally:
        if any(said):
            chat.turns.append({"role": "assistant", "content": "".join(said)})
        else:
            chat.turns.pop()


async def _stream(model: ChatModel, messages: list[Message], said: list[str], terminal: Terminal) -> None:
    asked_at = time.monotonic()
    first_at = last_at = None
    async with aclosing(model.reply(messages)) as reply:
        async for item in reply:
            if isinstance(item, Usage):
                terminal.show("\n")
                terminal.note(_figures(item, asked_at, first_at or time.monotonic(), last_at or time.monotonic()))
            elif item:
                last_at = time.monotonic()
                first_at = first_at or last_at
                said.append(item)
                terminal.show(item)


def _figures(usage: Usage, asked_at: float, first_at: float, last_at: float) -> str:
    figures = [
        f"{usage.cached_tokens} of {usage.prompt_tokens} prompt tokens cached",
        f"TTFT {first_at - asked_at:.2f} s",
    ]
    if usage.completion_tokens > 1 and last_at > first_at:
        figures.append(f"{(usage.completion_tokens - 1) / (last_at - first_at):.1f} tokens/s")
    return " · ".join(figures)


def _obey(line: str, chat: Chat, terminal: Terminal) -> bool:
    """Do what a command says; returns whether the chat goes on."""
    command, _, rest = line.strip().partition(" ")
    rest = rest.strip()
    match command:
        case "/quit":
            return False
        case "/help":
            terminal.note(HELP)
        case "/reset":
            chat.turns.clear()
            terminal.note("a new chat")
        case "/system":
            chat.system = rest or None
            chat.turns.clear()
            terminal.note("a new chat with this system prompt" if rest else "a new chat without a system prompt")
        case "/save":
            _save(rest, chat, terminal)
        case _:
            matches = difflib.get_close_matches(command, _COMMANDS, n=1)
            terminal.note(f"there is no {command}; " + (f"did you mean {matches[0]}?" if matches else "see /help"))
    return True


def _save(name: str, chat: Chat, terminal: Terminal) -> None:
    if not name:
        terminal.note("/save needs the name of a file")
        return
    path = Path(name).expanduser()
    try:
        path.write_text(json.dumps(chat.messages, ensure_ascii=False, indent=2) + "\n", "utf-8")
    except OSError as error:
        terminal.note(f"can't write {path}: {error.strerror}")
        return
    terminal.note(f"{len(chat.messages)} messages are in {path}")
