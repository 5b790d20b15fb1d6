"""`axil doctor`: its flags and its exit status; what it does stands in the modules beside, which load more."""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass

from runtime.command_parser import CommandParser
from runtime.config import DEFAULT_URL
from runtime.errors import BadModel
from wire.flags import add_flags, flag, from_flags

COULD_NOT_RUN = 2

_DESCRIPTION = (
    "Find what changes at the front of prompts from request to request, so that nothing behind it is reused: in the "
    "last prompts of a running server, in a recorded log (one request's body as JSON a line), or between two request "
    "bodies in files. Exit status: 0 nothing found, 1 something found, 2 nothing could be looked at."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorFlags:
    """How the server is asked, and what is printed."""

    url: str | None = flag(None, f"Address of a running server; auto: {DEFAULT_URL}.", metavar="URL")
    api_key: str | None = flag(
        None, "The key that the server asks for; prompts' text is for its admin key.", metavar="KEY"
    )
    json: bool = flag(False, "Print the findings as JSON.")
    model: str | None = flag(None, "Model whose tokenizer reads token ids in a log; auto: the embedded model.")
    token_seconds: float = flag(0.0, "Seconds that computing a prompt's token takes, for logs; a server knows its own.")


def add_doctor(commands: argparse._SubParsersAction[CommandParser]) -> None:
    """Add the command to the others."""
    parser = commands.add_parser("doctor", help="find what keeps prompts from being reused", description=_DESCRIPTION)
    parser.add_argument(
        "sources",
        nargs="*",
        metavar="URL | LOG | BODY BODY",
        help="a server's address, as with --url, a log, or two files with a request's body each",
    )
    add_flags(parser, DoctorFlags, title="doctor")


def run_doctor(args: argparse.Namespace) -> int:
    """Run the command; returns its exit status."""
    from runtime.remote import ServerFailed

    from .command import doctor
    from .recorded import DoctorFailed

    try:
        return doctor(args.sources, from_flags(DoctorFlags, args))
    except BrokenPipeError:
        raise  # whoever read has gone, which is no error of what was looked at
    except FileNotFoundError as error:
        return _failed(f"there is no file {error.filename}; an address begins with http:// or https://")
    except (BadModel, DoctorFailed, ServerFailed, OSError, ValueError) as error:
        return _failed(error)


def _failed(reason: object) -> int:
    print(f"axil: error: {reason}", file=sys.stderr)
    return COULD_NOT_RUN
