"""The prompts of a log: bodies of requests, or rows of a trace with their token ids (`prompt_ids`)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

from runtime.model_files import tokenizer_files
from runtime.text.tokenizer import Tokenizer

from .prompts import SeenPrompt, prompt_of_body

_TIMES = ("at", "time", "timestamp", "created")
_BODIES = ("body", "request", "params")
_ROLES = ("system", "developer", "user", "assistant", "tool", "ipython", "model")
_MS = 1000.0


class DoctorFailed(Exception):
    """A file holds nothing to look at; the message says why."""


def recorded_prompts(path: Path, *, model: str | None) -> list[SeenPrompt]:
    """The prompts of a log in the order of their coming; `model` is whose tokenizer reads rows of token ids.

    A line is a request's body, or an object that has it as `body`, perhaps with a time in seconds; or such a row.

    Raises:
        DoctorFailed: a line is neither, or there is none.
        OSError: it can't be read.
        BadModel: the tokenizer is not there.
    """
    prompts = []
    tokenizer = cache(lambda: Tokenizer.load(tokenizer_files(model)[0]))
    with path.open(encoding="utf-8") as log:
        for num, line in enumerate(log, 1):
            if line.strip():
                row = json_object(line, f"{path}:{num}")
                is_ours = "hash_ids" in row
                prompts.append(
                    _of_row(row, tokenizer(), f"{path}:{num}") if is_ours else prompt_of_entry(row, f"{path}:{num}")
                )
    if not prompts:
        raise DoctorFailed(f"{path} is empty")
    return sorted(prompts, key=lambda prompt: prompt.at_s)


def prompt_of_entry(entry: Mapping[str, Any], name: str) -> SeenPrompt:
    """The prompt of a body, or of what is around one.

    Raises:
        DoctorFailed: there is none.
    """
    body = next((entry[key] for key in _BODIES if isinstance(entry.get(key), dict)), entry)
    at_s = next((entry[key] for key in _TIMES if isinstance(entry.get(key), int | float)), 0.0)
    try:
        prompt = prompt_of_body(body)
    except ValueError as error:
        raise DoctorFailed(f"{name} is no request with a prompt: {error}") from error
    return SeenPrompt(tools=prompt.tools, messages=prompt.messages, salt=prompt.salt, at_s=float(at_s))


def json_object(text: str, name: str) -> Mapping[str, Any]:
    """The JSON object in a text.

    Raises:
        DoctorFailed: it is none.
    """
    try:
        value = json.loads(text)
    except ValueError as error:
        raise DoctorFailed(f"{name} is no JSON: {error}") from error
    if not isinstance(value, dict):
        raise DoctorFailed(f"{name} must be a JSON object, a request's body")
    return value


def _of_row(row: Mapping[str, Any], tokenizer: Tokenizer, name: str) -> SeenPrompt:
    ids = row.get("prompt_ids")
    if not isinstance(ids, list):
        raise DoctorFailed(f"{name} is a row of a trace without prompt_ids: its tokens were not recorded")
    return SeenPrompt(
        tools=(),
        messages=list(_messages(ids, tokenizer)),
        salt=str(row.get("salt") or ""),
        at_s=float(row.get("timestamp", 0)) / _MS,
        num_tokens=len(ids),
    )


def _messages(ids: Sequence[int], tokenizer: Tokenizer) -> Iterator[dict[str, object]]:
    """What stands between special tokens, as messages; a role alone, or in a line of its own, is that of a message."""
    role = "prompt"
    for is_special, group in groupby(ids, lambda token_id: token_id in tokenizer.special_ids):
        text = "" if is_special else tokenizer.decode(list(group), skip_special_tokens=False)
        head, _, rest = text.partition("\n")
        if text.strip() in _ROLES:
            role = text.strip()
        elif head in _ROLES:
            yield {"role": head, "content": rest}
            role = "prompt"
        elif text.strip():
            yield {"role": role, "content": text}
            role = "prompt"
