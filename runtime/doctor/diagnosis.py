"""What the doctor has found, as other processes and programs are told; sums over several tokenizers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from .kinds import REMEDY, WHAT, Kind

_DAY_S = 86400


class Finding(Struct, frozen=True, kw_only=True):
    """Something in `place` that `changed` in so many `of` the turns, or conversations, of a group.

    It stands `tokens_before` tokens into the prompt; `lost_tokens` could have been reused behind it, in the window.
    `context` and `values` are text of prompts.
    """

    place: str
    kind: Kind
    scope: Literal["turn", "conversation"]
    changed: int
    of: int
    tokens_before: int
    lost_tokens: int
    context: str | None = None
    values: tuple[str, ...] = ()


class Group(Struct, frozen=True, kw_only=True):
    """Prompts of one make. `lost_tokens` counts each request once, whatever else changes in it; `title` is text."""

    id: str
    requests: int
    prompt_tokens: int
    lost_tokens: int
    findings: tuple[Finding, ...]
    title: str | None = None


class Diagnosis(Struct, frozen=True, kw_only=True):
    """Of the prompts of `window_s` seconds; computing one token takes `token_s`, 0 where that is not known."""

    requests: int
    window_s: float
    groups: tuple[Group, ...]
    token_s: float = 0.0


def merged(diagnoses: Sequence[Diagnosis]) -> Diagnosis:
    """The findings of several tokenizers of one server."""
    groups: dict[str, Group] = {}
    for group in (group for diagnosis in diagnoses for group in diagnosis.groups):
        known = groups.get(group.id)
        groups[group.id] = group if known is None else _sum(known, group)
    return Diagnosis(
        requests=sum(each.requests for each in diagnoses),
        window_s=max(each.window_s for each in diagnoses),
        groups=in_order(groups.values()),
        token_s=max(each.token_s for each in diagnoses),
    )


def in_order(groups: Iterable[Group]) -> tuple[Group, ...]:
    """The costliest group first."""
    return tuple(sorted(groups, key=lambda group: -group.lost_tokens))


def without_text(diagnosis: Diagnosis) -> Diagnosis:
    """The same for those who may not read prompts."""
    groups = tuple(
        replace(
            group,
            title=None,
            findings=tuple(replace(finding, context=None, values=()) for finding in group.findings),
        )
        for group in diagnosis.groups
    )
    return replace(diagnosis, groups=groups)


def told(diagnosis: Diagnosis) -> dict[str, object]:
    """The diagnosis as JSON, with words, remedies, and what everything comes to in a day at this rate."""
    return {
        "requests": diagnosis.requests,
        "window_s": round(diagnosis.window_s, 3),
        "seconds_per_token": diagnosis.token_s or None,
        "groups": [
            {
                "id": group.id,
                "title": group.title,
                "requests": group.requests,
                "prompt_tokens": group.prompt_tokens,
                **_cost(diagnosis, group.lost_tokens),
                "findings": [_finding(diagnosis, finding) for finding in group.findings],
            }
            for group in diagnosis.groups
        ],
    }


def _finding(diagnosis: Diagnosis, finding: Finding) -> dict[str, object]:
    return {
        "place": finding.place,
        "kind": finding.kind,
        "what": WHAT[finding.kind],
        "scope": finding.scope,
        "changed": finding.changed,
        "of": finding.of,
        "tokens_before": finding.tokens_before,
        **_cost(diagnosis, finding.lost_tokens),
        "remedy": REMEDY[finding.kind],
        "context": finding.context,
        "values": list(finding.values),
    }


def _cost(diagnosis: Diagnosis, lost_tokens: int) -> dict[str, object]:
    a_day = lost_tokens * _DAY_S / diagnosis.window_s if diagnosis.window_s else None
    return {
        "lost_tokens": lost_tokens,
        "lost_tokens_a_day": None if a_day is None else round(a_day),
        "lost_seconds_a_day": None if a_day is None or not diagnosis.token_s else round(a_day * diagnosis.token_s, 1),
    }


def _sum(one: Group, other: Group) -> Group:
    findings: dict[tuple[str, str, str], Finding] = {}
    for finding in one.findings + other.findings:
        key = (finding.place, finding.kind, finding.scope)
        known = findings.get(key)
        findings[key] = (
            finding
            if known is None
            else replace(
                known,
                changed=known.changed + finding.changed,
                of=known.of + finding.of,
                lost_tokens=known.lost_tokens + finding.lost_tokens,
                values=(known.values + finding.values)[: max(len(known.values), len(finding.values))],
            )
        )
    return replace(
        one,
        requests=one.requests + other.requests,
        prompt_tokens=one.prompt_tokens + other.prompt_tokens,
        lost_tokens=one.lost_tokens + other.lost_tokens,
        findings=tuple(sorted(findings.values(), key=lambda finding: finding.tokens_before)),
    )
