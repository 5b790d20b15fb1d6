"""What the linter has found, as text and as JSON."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from typing import TypedDict

from .causes import REMEDY, SEND_THOUGHTS, WHAT, shape
from .lint import Finding, Report
from .play import told
from .rules import RULES, Rule

_SHOWN_CHARACTERS = 60
_SHOWN_IDS = 8


class FindingJson(TypedDict):
    """One finding of `--json`."""

    rule: str
    cause: str
    is_allowed: bool
    what: str
    conversations: int
    turn: int
    fork_token: int
    lost_tokens: int
    every: str | None
    shared: str
    before: str
    after: str
    ids_before: list[int]
    ids_after: list[int]
    remedy: str
    variables: Mapping[str, object] | None
    messages: list[Mapping[str, object]]
    shape: str


def as_json(report: Report, *, model: str, allowed: Collection[str]) -> str:
    """The report for programs."""
    return json.dumps(
        {
            "model": model,
            "holds": all_hold(report, allowed),
            "conversations": report.num_conversations,
            "turns": report.num_turns,
            "rules": {rule: report.holds(rule) for rule in RULES},
            "not_taken": dict(report.not_taken),
            "findings": [_finding(finding, allowed) for finding in report.findings],
        },
        ensure_ascii=False,
        indent=1,
    )


def all_hold(report: Report, allowed: Collection[str]) -> bool:
    """Whether nothing was found but what is allowed."""
    return all(_is_allowed(finding, allowed) for finding in report.findings)


def as_text(report: Report, *, model: str, allowed: Collection[str]) -> str:
    """The report for people."""
    return "\n".join(_lines(report, model, allowed))


def _lines(report: Report, model: str, allowed: Collection[str]) -> Iterator[str]:
    yield f"{model}: {report.num_conversations} chats of {report.num_turns} turns"
    for rule, words in RULES.items():
        yield f"  {rule:<8} {words}: {'holds' if report.holds(rule) else 'BROKEN'}"
    for words, count in report.not_taken.items():
        yield f"  not tried: {count} chats, which the template refuses: {words}"
    for finding in report.findings:
        yield ""
        yield from _finding_lines(finding, allowed)


def _finding_lines(finding: Finding, allowed: Collection[str]) -> Iterator[str]:
    each = _finding(finding, allowed)
    fork = finding.fork
    mark = " (allowed)" if each["is_allowed"] else ""
    yield f"{each['rule']}: {each['what']} [{each['cause']}]{mark}"
    yield f"  chat      {each['shape']}"
    if fork.rule == "read":
        yield f"  written   {_start(fork.before)}"
        yield f"  read as   {fork.after}"
    else:
        one, other = _sides(fork.rule, fork.turn, fork.every)
        yield f"  fork      at token {fork.at} of {len(fork.ids_before)}, behind {_end(each['shared'])}"
        yield f"  {one:<9} {_start(each['before'])}  {each['ids_before']}"
        yield f"  {other:<9} {_start(each['after'])}  {each['ids_after']}"
        yield f"  costs     {_cost(finding)}"
    yield f"  remedy    {each['remedy']}"


def _sides(rule: Rule, turn: int, every: str | None) -> tuple[str, str]:
    return ("now", f"a {every} on") if rule == "clock" else (f"turn {turn}", f"turn {turn + 1}")


def _cost(finding: Finding) -> str:
    fork = finding.fork
    if fork.rule == "clock":
        return f"every prompt is computed again from token {fork.at} on, in all chats, once a {fork.every}"
    return (
        f"{fork.lost_tokens} of {len(fork.ids_before)} computed tokens are computed again, and so is all that comes "
        f"behind token {fork.at}, in each such turn"
    )


def _finding(finding: Finding, allowed: Collection[str]) -> FindingJson:
    fork, cause = finding.fork, finding.cause
    remedy = REMEDY[cause] if fork.conversation.sends_thoughts else SEND_THOUGHTS
    if finding.variables is not None:
        remedy = f"send chat_template_kwargs {json.dumps(finding.variables)}: then all rules hold for this chat"
    return {
        "rule": fork.rule,
        "cause": cause,
        "is_allowed": _is_allowed(finding, allowed),
        "what": WHAT[cause],
        "conversations": finding.num_conversations,
        "turn": fork.turn,
        "fork_token": fork.at,
        "lost_tokens": fork.lost_tokens,
        "every": fork.every,
        "shared": fork.before[: fork.at_character],
        "before": fork.before[fork.at_character :],
        "after": fork.after[fork.at_character :],
        "ids_before": list(fork.ids_before[fork.at : fork.at + _SHOWN_IDS]),
        "ids_after": list(fork.ids_after[fork.at : fork.at + _SHOWN_IDS]),
        "remedy": remedy,
        "variables": finding.variables,
        "messages": told(fork.conversation),
        "shape": shape(fork.conversation),
    }


def _is_allowed(finding: Finding, allowed: Collection[str]) -> bool:
    return finding.cause in allowed or finding.fork.rule in allowed


def _start(text: str) -> str:
    return json.dumps(text[:_SHOWN_CHARACTERS], ensure_ascii=False) + ("…" if len(text) > _SHOWN_CHARACTERS else "")


def _end(text: str) -> str:
    return ("…" if len(text) > _SHOWN_CHARACTERS else "") + json.dumps(text[-_SHOWN_CHARACTERS:], ensure_ascii=False)
