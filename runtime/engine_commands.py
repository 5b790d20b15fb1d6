"""`axil generate` and `axil chat`: from parsed arguments to an engine or a server, and to what is shown."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import sys
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import msgspec

from wire.flags import flag_names, from_flags
from wire.sampling import SamplingParams

from .chat import converse
from .chat_model import EngineModel, ServerModel
from .config import ENGINE_FLAG_GROUPS
from .engine import Engine
from .engine_wishes import DEFAULT_NEW_TOKENS
from .printable import printable
from .sampling_flags import SamplingFlags


def generate(args: argparse.Namespace) -> int:
    """Show the continuation of a prompt; returns the exit status.

    Raises:
        ValueError: the arguments do not suit.
        AxilError: the prompt was refused, or a process died.
        ServerFailed: the server can't be reached.
        StartFailed: a process could not start.
    """
    sampling = _sampling(args)
    if sampling.max_new_tokens is None:
        sampling = msgspec.structs.replace(sampling, max_new_tokens=DEFAULT_NEW_TOKENS)
    model, prompt = _model_and_prompt(args.words)
    with asyncio.Runner() as runner:
        if args.url is None:
            _check_no_key(args)
            with Engine(model, **_settings(args)) as engine:
                runner.run(_show(_texts(engine, prompt, sampling)))
            return 0
        _check_nothing_of_an_engine(args, model)
        server = runner.run(ServerModel.connect(args.url, api_key=args.api_key, sampling=sampling))
        try:
            runner.run(_show(server.continuation(prompt)))
        finally:
            runner.run(server.close())
    return 0


def chat(args: argparse.Namespace) -> int:
    """Chat with a model; returns the exit status.

    Raises:
        ValueError: the arguments do not suit.
        ServerFailed: the server can't be reached.
        StartFailed: a process could not start.
    """
    sampling = _sampling(args)
    with asyncio.Runner() as runner:
        if args.url is None:
            _check_no_key(args)
            with Engine(args.model, **_settings(args)) as engine:
                return converse(EngineModel(engine, sampling), runner, system=args.system)
        _check_nothing_of_an_engine(args, args.model)
        server = runner.run(ServerModel.connect(args.url, api_key=args.api_key, sampling=sampling))
        try:
            return converse(server, runner, system=args.system)
        finally:
            runner.run(server.close())


async def _texts(engine: Engine, prompt: str, sampling: SamplingParams) -> AsyncGenerator[str, None]:
    async with aclosing(engine.stream(prompt, sampling)) as chunks:
        async for chunk in chunks:
            yield chunk.text


async def _show(texts: AsyncGenerator[str, None]) -> None:
    async with aclosing(texts):
        async for text in texts:
            print(printable(text) if sys.stdout.isatty() else text, end="", flush=True)
    print()


def _model_and_prompt(words: list[str]) -> tuple[str | None, str]:
    """`[MODEL] [PROMPT]`: one word that names a model is that, and the prompt comes from standard input."""
    model, prompt = _words_read(words)
    if not prompt:
        raise ValueError("the prompt is empty; give one in quotes, or send it to standard input")
    return model, prompt


def _words_read(words: list[str]) -> tuple[str | None, str]:
    match words:
        case [model, prompt]:
            return model, prompt
        case [word] if not _is_model(word):
            return None, word
        case [] | [_]:
            if sys.stdin.isatty():
                raise ValueError("there is no prompt: give one in quotes, or send it to standard input")
            return (words[0] if words else None), sys.stdin.read().removesuffix("\n")
        case _:
            raise ValueError(f"takes at most MODEL and PROMPT, got {len(words)} words; put the prompt into quotes")


def _is_model(word: str) -> bool:
    return word.endswith(".gguf") or (Path(word) / "config.json").is_file()


def _sampling(args: argparse.Namespace) -> SamplingParams:
    flags: SamplingFlags = from_flags(SamplingFlags, args)
    return flags.sampling()


def _settings(args: argparse.Namespace) -> dict[str, Any]:
    settings = {name: getattr(args, name) for _, _, cls in ENGINE_FLAG_GROUPS for name in flag_names(cls)}
    return {**settings, "chat_template": args.chat_template}


def _check_no_key(args: argparse.Namespace) -> None:
    if args.api_key is not None:
        raise ValueError("--api-key is for a server: give its --url too")


def _check_nothing_of_an_engine(args: argparse.Namespace, model: str | None) -> None:
    defaults = {field.name: field.default for _, _, cls in ENGINE_FLAG_GROUPS for field in dataclasses.fields(cls)}
    given = [name for name, value in _settings(args).items() if value != defaults.get(name)]
    if model is not None:
        raise ValueError(f"--url talks to a server, which has its own model; leave {model} out, or --url")
    if given:
        raise ValueError(
            f"--url talks to a server, for which --{given[0].replace('_', '-')} can't be set; leave it out"
        )
