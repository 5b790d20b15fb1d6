"""From what the command line names to printed findings: a server's, a log's, or those of two files."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from .diagnose import compare_two, diagnose
from .diagnosis import told
from .flags import DoctorFlags
from .prompts import SeenPrompt, prompt_of_body
from .report import lines, two_json, two_lines

DEFAULT_URL = "http://127.0.0.1:30000"
_SERVER_S = 60.0
_TIMES = ("at", "time", "timestamp", "created", "at_s")
_BODIES = ("body", "request", "params")


class DoctorFailed(Exception):
    """There is nothing to look at; the message says why."""


def doctor(sources: Sequence[str], flags: DoctorFlags) -> int:
    """Look, print, and return the exit status: 0 when nothing was found, else 1.

    Raises:
        DoctorFailed: the server can't be asked, or a file holds no prompts.
        OSError: a file can't be read.
    """
    match sources:
        case []:
            found = _asked(DEFAULT_URL, flags.api_key)
        case [url] if url.startswith(("http://", "https://")):
            found = _asked(url, flags.api_key)
        case [log]:
            found = told(diagnose(list(_recorded(Path(log))), token_s=flags.token_seconds))
        case [one, other]:
            return _compared([one, other], as_json=flags.json)
        case _:
            raise DoctorFailed(f"one address, one log or two request bodies can be looked at, got {len(sources)} names")
    print(json.dumps(found, ensure_ascii=False, indent=1) if flags.json else "\n".join(lines(found)))
    return 1 if any(group["findings"] for group in found["groups"]) else 0


def _compared(names: Sequence[str], *, as_json: bool) -> int:
    prompts = [_prompt(_object(Path(name).read_text("utf-8"), name), name) for name in names]
    changes = compare_two(*prompts)
    if as_json:
        print(json.dumps(two_json(prompts, changes), ensure_ascii=False, indent=1))
    else:
        print("\n".join(two_lines(names, prompts, changes)))
    return 1 if changes else 0


def _recorded(path: Path) -> Iterator[SeenPrompt]:
    """The prompts of a log; a line is a request's body, or has it as `body`, perhaps beside the time."""
    num = 0
    with path.open(encoding="utf-8") as log:
        for num, line in enumerate(log, 1):
            if line.strip():
                yield _prompt(_object(line, f"{path}:{num}"), f"{path}:{num}")
    if not num:
        raise DoctorFailed(f"{path} is empty")


def _prompt(entry: Mapping[str, Any], name: str) -> SeenPrompt:
    body = next((entry[key] for key in _BODIES if isinstance(entry.get(key), dict)), entry)
    at_s = next((entry[key] for key in _TIMES if isinstance(entry.get(key), int | float)), 0.0)
    try:
        prompt = prompt_of_body(body)
    except ValueError as error:
        raise DoctorFailed(f"{name} is no request with a prompt: {error}") from error
    return SeenPrompt(tools=prompt.tools, messages=prompt.messages, salt=prompt.salt, at_s=float(at_s))


def _object(text: str, name: str) -> Mapping[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise DoctorFailed(f"{name} is no JSON: {error}") from error
    if not isinstance(value, dict):
        raise DoctorFailed(f"{name} must be a JSON object, a request's body")
    return value


def _asked(url: str, api_key: str | None) -> Any:  # noqa: ANN401 - JSON of a server
    request = urllib.request.Request(f"{url.rstrip('/').removesuffix('/v1')}/doctor")
    if api_key is not None:
        request.add_header("Authorization", f"Bearer {api_key}")
    try:
        with urllib.request.urlopen(request, timeout=_SERVER_S) as response:
            return json.loads(response.read())
    except urllib.error.HTTPError as error:
        raise DoctorFailed(f"{url} answered {error.code}: {_reason(error.read())}") from error
    except (OSError, ValueError) as error:
        raise DoctorFailed(f"can't ask {url}: {error}. Is it running? Start one with: axil serve") from error


def _reason(answer: bytes) -> str:
    try:
        return str(json.loads(answer)["error"]["message"])
    except (ValueError, LookupError, TypeError):
        return answer[:200].decode(errors="replace").strip()
