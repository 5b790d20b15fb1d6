"""What the tokenizer process may do, what it is told at start, and the whole server's configuration."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from model_runner.config import RunnerConfig
from scheduler.config import KvEventsConfig, SchedulerConfig
from wire.flags import flag

DEFAULT_URL = "http://127.0.0.1:30000"
"""Where a server listens that is told nothing."""

MAX_TOKENIZER_WORKERS = 64
_LONGEST_STALL_S = 86400
_ORIGIN = re.compile(r"null|[a-z][a-z0-9+.-]*://[^\s/?#@*]+", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpConfig:
    """Where the HTTP front listens and what it accepts."""

    host: str = flag("127.0.0.1", "Address to listen on.")
    port: int = flag(30000, "Port to listen on; 0 takes a free one.")
    tokenizer_workers: int = flag(1, "Processes that serve HTTP on the one port and work on text, each on a core.")
    api_key: str | None = flag(None, "Key that requests must carry (bearer or x-api-key); auto asks for none.")
    admin_api_key: str | None = flag(None, "Key for what operators do, such as /flush_cache; auto takes --api-key.")
    cors_origins: str | None = flag(
        None, "Origins whose pages may read answers in a browser, separated by commas, or *; auto: none."
    )
    served_model_name: str | None = flag(None, "Name of the model in replies; auto takes it from the path.")
    max_body_bytes: int = flag(
        32 * 1024 * 1024, "Largest request body; all streams wait while it is parsed, for up to some 0.2 s."
    )
    request_timeout: float | None = flag(
        None, "Seconds that an answer may take in all; what takes longer ends with an error. auto: no limit."
    )
    stalled_reader_timeout: float = flag(
        30.0, "Seconds that a client may take nothing of what is sent to it; then its connection is reset."
    )
    incremental_streaming_output: bool = flag(
        False, "Frames of /generate's streams hold what is new, instead of everything so far."
    )
    log_misses: float = flag(0.0, "Part of the requests, 0 to 1, of which a line says what was reused and why no more.")
    drain_seconds: float = flag(2.0, "Time that open requests get to finish after SIGTERM or Ctrl-C.")
    chat_template: str | None = flag(
        None, "File with a Jinja chat template; auto takes the model's own.", metavar="FILE"
    )
    doctor_prompts: int = flag(
        256, "Recent prompts that /doctor looks at, in memory only, for each tokenizer; 0 keeps none."
    )
    drop_billing_headers: bool = flag(
        False, "Drop the billing headers that coding agents put in front of system prompts, new in each request."
    )
    sort_tools: bool = flag(
        False, "Write tools by name and the keys of their schemas in order, however a client sends them."
    )
    tool_call_parser: str = flag(
        "auto",
        "How the model writes tool calls; auto takes it from the chat template.",
        choices=("auto", "none", "hermes", "llama", "mistral", "pythonic", "qwen3_coder"),
    )
    reasoning_parser: str = flag(
        "auto",
        "How the model writes its thoughts; auto takes it from the chat template.",
        choices=("auto", "none", "think", "mistral", "kimi"),
    )

    def __post_init__(self) -> None:
        """Check the ranges.

        Raises:
            ValueError: names the flag, its limit and the given value.
        """
        if not 0 <= self.port <= 65535:
            raise ValueError(f"--port must be in [0, 65535], got {self.port}")
        if not 1 <= self.tokenizer_workers <= MAX_TOKENIZER_WORKERS:
            raise ValueError(
                f"--tokenizer-workers must be in [1, {MAX_TOKENIZER_WORKERS}], got {self.tokenizer_workers}"
            )
        for origin in self.origins:
            if origin != "*" and not _ORIGIN.fullmatch(origin):
                raise ValueError(
                    f"--cors-origins must be * or origins such as https://chat.example.com or http://localhost:8080, "
                    f"without a path; got {origin!r}"
                )
        if self.doctor_prompts < 0:
            raise ValueError(f"--doctor-prompts must be 0 or more, got {self.doctor_prompts}")
        if self.max_body_bytes < 1:
            raise ValueError(f"--max-body-bytes must be at least 1, got {self.max_body_bytes}")
        if self.request_timeout is not None and not 0 < self.request_timeout < math.inf:
            raise ValueError(f"--request-timeout must be a number of seconds above 0, got {self.request_timeout}")
        if not 0.1 <= self.stalled_reader_timeout <= _LONGEST_STALL_S:
            raise ValueError(
                f"--stalled-reader-timeout must be in [0.1, {_LONGEST_STALL_S}], got {self.stalled_reader_timeout}"
            )
        if not 0 <= self.log_misses <= 1:
            raise ValueError(f"--log-misses must be in [0, 1], got {self.log_misses}")
        if not 0 <= self.drain_seconds < math.inf:
            raise ValueError(f"--drain-seconds must be a number of seconds, 0 or more, got {self.drain_seconds}")

    @property
    def origins(self) -> frozenset[str]:
        """The origins of --cors-origins."""
        return frozenset((self.cors_origins or "").replace(",", " ").split())


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchConfig:
    """How the processes are started."""

    start_timeout: float = flag(600.0, "Seconds until all processes must be ready.")

    def __post_init__(self) -> None:
        """Check the range.

        Raises:
            ValueError: names the flag, its limit and the given value.
        """
        if not self.start_timeout > 0:
            raise ValueError(f"--start-timeout must be above 0, got {self.start_timeout}")


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerLaunch:
    """What the launcher tells the tokenizer process.

    `tokenizer_dir` holds `tokenizer.json`, `tokenizer_config.json` (chat template and special tokens) and
    `config.json`; `server_info` is what `/server_info` reports of the whole configuration.
    """

    run_dir: str
    tokenizer_dir: str
    model_path: str
    model_name: str
    config: HttpConfig
    server_info: dict[str, str | int | float | bool | None]
    name: str = "tokenizer"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """Everything that `axil serve` can be told."""

    model: str | None = None
    http: HttpConfig = field(default_factory=HttpConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    kv_events: KvEventsConfig = field(default_factory=KvEventsConfig)
    runner: RunnerConfig = field(default_factory=RunnerConfig)
    launch: LaunchConfig = field(default_factory=LaunchConfig)


SECRETS = ("api_key", "admin_api_key")
"""Settings that are told to nobody."""

FLAG_GROUPS = (
    ("http", "HTTP", HttpConfig),
    ("runner", "model runner", RunnerConfig),
    ("scheduler", "scheduler", SchedulerConfig),
    ("kv_events", "KV events", KvEventsConfig),
    ("launch", "launcher", LaunchConfig),
)
"""The fields of `ServerConfig` whose classes are flags of `axil serve`, with the titles of their groups."""

ENGINE_FLAG_GROUPS = FLAG_GROUPS[1:]
"""Those of them that are also about an engine, which has no HTTP."""

MODULES: Mapping[str, str] = {
    "tokenizer": "runtime.process",
    "scheduler": "scheduler.process",
    "model runner": "model_runner.process",
}
"""The processes of a server and the modules that they run."""
