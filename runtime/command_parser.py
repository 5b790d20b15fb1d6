"""How `axil` answers arguments that are wrong: in two lines, without all flags before them; and arguments that
several commands take."""

from __future__ import annotations

import argparse
from typing import NoReturn

from wire.names import near

_USAGE = 2


class CommandParser(argparse.ArgumentParser):
    """A parser of one command; a command of its own (`add_subparsers`) is of this class too."""

    def error(self, message: str) -> NoReturn:
        """Say what is wrong and where the flags are listed, and leave with status 2."""
        self.exit(_USAGE, f"{self.prog}: error: {message}\n{self.prog} --help says what it takes.\n")

    def refuse(self, unknown: str) -> NoReturn:
        """Refuse an argument that the command does not take, with the flag that looks most like it."""
        flag = unknown.partition("=")[0]
        flags = [name for action in self._actions for name in action.option_strings]
        if not flag.startswith("-"):
            is_address = "--url" in flags and flag.startswith(("http://", "https://"))
            self.error(f"there is no place for {unknown!r}" + f"; did you mean --url {unknown}?" * is_address)
        self.error(f"there is no flag {flag}{near(flag, flags)}")


def add_model(parser: argparse.ArgumentParser) -> None:
    """The model that a command works with."""
    parser.add_argument(
        "model",
        nargs="?",
        metavar="MODEL",
        help="a .gguf file, a directory with config.json, tokenizer.json and *.safetensors, or a name on the hub; "
        "without one, the small embedded model is taken",
    )
