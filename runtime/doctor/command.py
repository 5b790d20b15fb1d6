"""From what the command line names to printed findings: a server's, a log's, or those of two files."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from runtime.config import DEFAULT_URL
from runtime.remote import base_url_of, get_json, session_with

from .diagnose import compare_two, diagnose
from .diagnosis import told
from .flags import DoctorFlags
from .recorded import DoctorFailed, json_object, prompt_of_entry, recorded_prompts
from .report import lines, two_json, two_lines


def doctor(sources: Sequence[str], flags: DoctorFlags) -> int:
    """Look, print, and return the exit status: 0 when nothing was found, else 1.

    Raises:
        ServerFailed: the server can't be asked.
        DoctorFailed: a file holds no prompts.
        OSError: a file can't be read.
        BadModel: the tokenizer of a recording's token ids is not there.
    """
    if sources and flags.url is not None:
        raise DoctorFailed(f"either the server at --url or files can be looked at, got {flags.url} and {sources[0]}")
    match sources:
        case []:
            found = _asked(flags.url or DEFAULT_URL, flags.api_key)
        case [url] if url.startswith(("http://", "https://")):
            found = _asked(url, flags.api_key)
        case [log]:
            found = told(diagnose(recorded_prompts(Path(log), model=flags.model), token_s=flags.token_seconds))
        case [one, other]:
            return _compared([one, other], as_json=flags.json)
        case _:
            raise DoctorFailed(f"one address, one log or two request bodies can be looked at, got {len(sources)} names")
    print(json.dumps(found, ensure_ascii=False, indent=1) if flags.json else "\n".join(lines(found)))
    return 1 if any(group["findings"] for group in found["groups"]) else 0


def _compared(names: Sequence[str], *, as_json: bool) -> int:
    prompts = [prompt_of_entry(json_object(Path(name).read_text("utf-8"), name), name) for name in names]
    changes = compare_two(*prompts)
    if as_json:
        print(json.dumps(two_json(prompts, changes), ensure_ascii=False, indent=1))
    else:
        print("\n".join(two_lines(names, prompts, changes)))
    return 1 if changes else 0


def _asked(url: str, api_key: str | None) -> Any:  # noqa: ANN401 - JSON of a server
    async def ask() -> Any:  # noqa: ANN401
        async with session_with(api_key) as session:
            return await get_json(session, f"{base_url_of(url)}/doctor")

    return asyncio.run(ask())
