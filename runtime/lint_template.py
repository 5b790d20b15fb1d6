"""`axil lint-template MODEL`: its flags and its exit status; what it does stands in `template_lint/`."""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass

from wire.flags import add_flags, flag, from_flags

from .command_parser import CommandParser, add_model
from .config import HttpConfig
from .errors import BadModel

COULD_NOT_RUN = 2

_DESCRIPTION = (
    "Prove that a model's chat template lets turn n+1 of a chat begin with the tokens of turn n, or show the smallest "
    "chat where it does not. Exit status: 0 all rules hold, 1 one is broken, 2 nothing could be tried."
)
_HTTP = HttpConfig.__dataclass_fields__


@dataclass(frozen=True, slots=True, kw_only=True)
class LintFlags:
    """What is linted, and how thoroughly."""

    chat_template: str | None = flag(
        None, "File with a Jinja chat template; auto takes the model's own.", metavar="FILE"
    )
    tool_call_parser: str = flag(
        "auto", "How the model writes tool calls, as for serve.", choices=_HTTP["tool_call_parser"].metadata["choices"]
    )
    reasoning_parser: str = flag(
        "auto",
        "How the model writes its thoughts, as for serve.",
        choices=_HTTP["reasoning_parser"].metadata["choices"],
    )
    random_chats: int = flag(200, "Random chats to try, besides the systematic ones.")
    seed: int = flag(0, "Seed of the random chats.")
    allow: str | None = flag(None, "Rules or causes that are known and no failure, separated by commas; auto: none.")
    json: bool = flag(False, "Print the report as JSON.")

    def __post_init__(self) -> None:
        """Check the number.

        Raises:
            ValueError: names the flag and the given value.
        """
        if self.random_chats < 0:
            raise ValueError(f"--random-chats must be 0 or more, got {self.random_chats}")


def add_lint_template(commands: argparse._SubParsersAction[CommandParser]) -> None:
    """Add the command to the others."""
    parser = commands.add_parser(
        "lint-template", help="find what a chat template costs the cache", description=_DESCRIPTION
    )
    add_model(parser)
    add_flags(parser, LintFlags, title="linter")


def run_lint_template(args: argparse.Namespace) -> int:
    """Run the command; returns its exit status."""
    from .template_lint.command import lint_template

    try:
        return lint_template(args.model, from_flags(LintFlags, args))
    except BrokenPipeError:
        raise  # whoever read has gone, which is no error of the template
    except (BadModel, OSError, ValueError) as error:
        print(f"axil: error: {error}", file=sys.stderr)
        return COULD_NOT_RUN
