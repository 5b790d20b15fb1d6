"""`axil serve`: from a configuration to a running server, and back to nothing. Knows no protocol and no model."""

from __future__ import annotations

import contextlib
import dataclasses
import ipaddress
import json
import logging
import math
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from model_runner.config import RunnerLaunch
from scheduler.config import SchedulerLaunch

from .config import MODULES, SECRETS, HttpConfig, ServerConfig, TokenizerLaunch
from .display import Display, address, curl
from .launch import (
    Facts,
    Hurried,
    Launch,
    Overdue,
    StartFailed,
    StopAsked,
    describe,
    stop_after_death,
    stop_in_order,
    wait_for_end,
    wait_until_started,
)
from .model_files import ModelFiles, resolve_model
from .part import Part
from .port import reserved
from .run_dir import run_directory

log = logging.getLogger(__name__)

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_KILLED_BY_CTRL_C = 130
_ONE_WISH_S = 0.1
"""Signals so close together are one wish: `timeout` and other supervisors send each to the process and to its group."""


def serve(config: ServerConfig, *, version: str, modules: Mapping[str, str] = MODULES) -> int:
    """Serve until somebody asks to stop or a part dies; returns the exit status.

    Raises:
        BadModel: the model's files are not there or not usable.
        StartFailed: a part could not start; everything has been stopped.
    """
    started_at = time.monotonic()
    files = resolve_model(config.model)
    for warning in files.warnings:
        log.warning("%s", warning)
    if not _is_loopback(config.http.host) and config.http.api_key is None:
        log.warning("listening on %s WITHOUT --api-key: whoever reaches it can use the model", config.http.host)
    display = Display()
    with run_directory() as run_dir, _port(config) as config:
        parts = server_parts(config, files, run_dir, version=version, modules=modules)
        launch = Launch(parts, forward=display.line, num_fronts=config.http.tokenizer_workers)
        with _asking_on_signals(launch):
            try:
                launch.start()
                started = wait_until_started(launch, within_s=config.launch.start_timeout, on_said=display.said)
                if isinstance(started, StopAsked):
                    log.info("%s while starting: stopping", started.why)
                    return 0
                _announce(config, files, started, elapsed_s=time.monotonic() - started_at)
                return _watch(launch, grace_s=config.http.drain_seconds)
            finally:
                display.close()
                launch.kill()


def server_parts(
    config: ServerConfig, files: ModelFiles, run_dir: Path, *, version: str, modules: Mapping[str, str]
) -> tuple[Part, ...]:
    """The processes of a server, those that clients talk to first."""
    model_path = str(files.weights)
    tokenizer = TokenizerLaunch(
        run_dir=str(run_dir),
        tokenizer_dir=str(files.tokenizer_dir),
        model_path=model_path,
        model_name=_model_name(config, files),
        config=config.http,
        server_info={"version": version, "model_path": model_path, **_settings(config)},
    )
    runner = RunnerLaunch(
        run_dir=str(run_dir),
        weights=model_path,
        model_config=str(files.model_config),
        tokenizer=str(files.tokenizer_dir / "tokenizer.json"),
        config=config.runner,
    )
    num_ranks = config.runner.tensor_parallel
    scheduler = SchedulerLaunch(
        run_dir=str(run_dir), config=config.scheduler, kv_events=config.kv_events, num_ranks=num_ranks
    )
    tokenizers = [dataclasses.replace(tokenizer, name=name) for name in _tokenizer_names(config.http)]
    return (
        *(Part(name=each.name, module=modules["tokenizer"], config=each) for each in tokenizers),
        Part(name="scheduler", module=modules["scheduler"], config=scheduler),
        *(
            Part(
                name="model runner" if num_ranks == 1 else f"model runner of rank {rank}",
                module=modules["model runner"],
                config=dataclasses.replace(runner, rank=rank),
            )
            for rank in range(num_ranks)
        ),
    )


def _tokenizer_names(config: HttpConfig) -> list[str]:
    """The names of the processes that serve HTTP."""
    num_workers = config.tokenizer_workers
    return ["tokenizer"] if num_workers == 1 else [f"tokenizer {i}" for i in range(1, num_workers + 1)]


@contextmanager
def _port(config: ServerConfig) -> Iterator[ServerConfig]:
    """The configuration with a port that is this launch's.

    Raises:
        StartFailed: it can't be had.
    """
    with contextlib.ExitStack() as stack:
        try:
            http = stack.enter_context(reserved(config.http))
        except OSError as error:
            raise StartFailed(str(error)) from error
        yield dataclasses.replace(config, http=http)


def _watch(launch: Launch, *, grace_s: float) -> int:
    end = wait_for_end(launch)
    if isinstance(end, StopAsked):
        log.info("%s: finishing open requests for up to %g s, then stopping; once more stops at once", end.why, grace_s)
        try:
            fault = stop_in_order(launch, grace_s=grace_s)
        except Hurried:
            log.warning("stopped at once")
            return _KILLED_BY_CTRL_C
        if fault is None:
            log.info("stopped")
            return 0
        if isinstance(fault, Overdue):
            return _killed(launch, fault.parts)
        died = fault
        log.error("%s", describe(died))
    else:
        died = end
        log.error("%s", describe(died))
        stop_after_death(launch, died)
    log.error("stopped, because the %s died (%s)", died.part, died.exit_status)
    return 1


def _killed(launch: Launch, parts: Sequence[str]) -> int:
    """Say that parts were killed; the exit status is an error where clients were left without an answer's end."""
    names = " and the ".join(parts)
    if set(parts).isdisjoint(launch.fronts):
        log.warning("stopped; the %s did not end in time and had to be killed", names)
        return 0
    log.error(
        "stopped; the %s did not end in time and had to be killed: answers still open were cut off. It hung, or the "
        "machine is too busy; raise --drain-seconds, or see its log with AXIL_LOG=DEBUG",
        names,
    )
    return 1


def _announce(config: ServerConfig, files: ModelFiles, facts: dict[str, Facts], *, elapsed_s: float) -> None:
    port = urlsplit(str(facts[_tokenizer_names(config.http)[0]]["address"])).port or config.http.port
    url = address(config.http.host, port)
    name = _model_name(config, files)
    is_chat = config.http.chat_template is not None or _has_chat_template(files.tokenizer_dir)
    command = curl(url, model=name, is_chat=is_chat, has_key=config.http.api_key is not None)
    print(f"axil serves {name} at {url} (ready after {elapsed_s:.1f} s); a live view: {url}/ui\n{command}", flush=True)


@contextmanager
def _asking_on_signals(launch: Launch) -> Iterator[None]:
    """Turn the signals that end a program into a wish to stop; behind it they change nothing, as the program ends."""
    asked_at = -math.inf

    def ask(number: int, _: object) -> None:
        nonlocal asked_at
        now = time.monotonic()
        if now - asked_at >= _ONE_WISH_S:
            asked_at = now
            launch.ask_to_stop(signal.Signals(number).name)

    # nohup ignores SIGHUP, so that a server outlives its terminal.
    heard = [each for each in _SIGNALS if each is not signal.SIGHUP or signal.getsignal(each) is not signal.SIG_IGN]
    for number in heard:
        signal.signal(number, ask)
    try:
        yield
    finally:
        for number in heard:
            signal.signal(number, signal.SIG_IGN)


def _model_name(config: ServerConfig, files: ModelFiles) -> str:
    return config.http.served_model_name or files.name


def _settings(config: ServerConfig) -> dict[str, str | int | float | bool | None]:
    """Every setting but the secret ones."""
    sections = (config.http, config.scheduler, config.kv_events, config.runner, config.launch)
    merged = {name: value for section in sections for name, value in dataclasses.asdict(section).items()}
    return {name: value for name, value in merged.items() if name not in SECRETS}


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _has_chat_template(tokenizer_dir: Path) -> bool:
    if (tokenizer_dir / "chat_template.jinja").is_file():
        return True
    path = tokenizer_dir / "tokenizer_config.json"
    return path.is_file() and bool(json.loads(path.read_text("utf-8")).get("chat_template"))
