"""From prompts in the order of their coming to what changes in them: groups of one make, compared turn by turn."""

from __future__ import annotations

import hashlib
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from runtime.text.shared import num_shared

from .compare import Change, front_changes, front_characters, history_changes, is_trimmed, shared_front_characters
from .diagnosis import Diagnosis, Finding, Group, in_order
from .kinds import VOLATILE, Kind, masked
from .prompts import SeenPrompt

_ALIKE = 0.5
"""The share of words (numbers aside) and tools that prompts of one make have in common."""

_LOOKED_AT_CHARACTERS = 4096
_FIRST_WORDS = 8
"""What tells the make of a prompt that has neither system prompt nor tools."""

_LEAST_SHARE = 0.5
_LEAST_LOST_TOKENS = 16
_FEW_SALTS = 3
_LOOKED_BACK = 8
"""How many prompts before a new chat it may be the rest of."""

_KEY_CHARACTERS = 24
_VALUE_CHARACTERS = 80
_TITLE_CHARACTERS = 80
_VALUES = 3

Scope = Literal["turn", "conversation"]
_Key = tuple[Scope, str, Kind, str]


@dataclass(slots=True)
class _Seen:
    """Where one thing has changed: each time, with the tokens before it and those lost behind it."""

    changes: list[tuple[Change, int, int]] = field(default_factory=list)


@dataclass(slots=True)
class _Make:
    """The prompts of one make so far."""

    words: frozenset[str]
    has: tuple[bool, bool]
    prompts: list[SeenPrompt] = field(default_factory=list)
    last_of_chat: dict[str, SeenPrompt] = field(default_factory=dict)
    fronts: set[int] = field(default_factory=set)
    compared: dict[Scope, int] = field(default_factory=lambda: {"turn": 0, "conversation": 0})
    seen: dict[_Key, _Seen] = field(default_factory=dict)
    lost_each: list[dict[_Key, int]] = field(default_factory=list)
    lost_to_salts: list[int] = field(default_factory=list)


def diagnose(
    prompts: Sequence[SeenPrompt], *, token_s: float = 0.0, least_lost_tokens: int = _LEAST_LOST_TOKENS
) -> Diagnosis:
    """Find what changes in these prompts, oldest first. Takes about a millisecond for each, more for long ones."""
    makes: list[_Make] = []
    for prompt in prompts:
        _take(_make_of(prompt, makes), prompt)
    return Diagnosis(
        requests=len(prompts),
        window_s=max(0.0, prompts[-1].at_s - prompts[0].at_s) if prompts else 0.0,
        groups=in_order(_group(make, least_lost_tokens) for make in makes),
        token_s=token_s,
    )


def compare_two(one: SeenPrompt, other: SeenPrompt) -> list[Change]:
    """All changes between two prompts, in the order of their places; history counts where it is the same chat's."""
    changes = list(front_changes(one, other))
    if _chat_of(one) == _chat_of(other):
        changes += history_changes(one, other)
    return sorted(changes, key=lambda change: change.at)


def _make_of(prompt: SeenPrompt, makes: list[_Make]) -> _Make:
    words, has = _words(prompt), _has_alike(prompt)
    others = [make for make in makes if make.has == has]
    best = max(others, key=lambda make: _likeness(make.words, words), default=None)
    if best is None or _likeness(best.words, words) < _ALIKE:
        best = _Make(words, has)
        makes.append(best)
    return best


def _words(prompt: SeenPrompt) -> frozenset[str]:
    """What tells a prompt's make: the words of its system prompt and its tools' names, else how it begins."""
    if not any(_has_alike(prompt)):
        return frozenset(_first_words(prompt))
    front = prompt.message_parts[: prompt.num_instructions]
    words = [word for part in front for word in masked(part.text[:_LOOKED_AT_CHARACTERS]).split()]
    return frozenset(words) | {f"tool {part.name}" for part in prompt.tool_parts}


def _first_words(prompt: SeenPrompt) -> list[str]:
    text = prompt.message_parts[0].text if prompt.message_parts else ""
    return masked(text[:_LOOKED_AT_CHARACTERS]).split()[:_FIRST_WORDS]


def _has_alike(prompt: SeenPrompt) -> tuple[bool, bool]:
    """Whether there is a system prompt, and whether there are tools: what a client does in all its prompts."""
    return prompt.num_instructions > 0, bool(prompt.tools)


def _likeness(one: frozenset[str], other: frozenset[str]) -> float:
    return len(one & other) / max(1, len(one | other))


def _chat_of(prompt: SeenPrompt) -> str:
    """What tells a chat of others: the first message that is not the system's, numbers aside."""
    first = prompt.message_parts[prompt.num_instructions : prompt.num_instructions + 1]
    return masked(first[0].text[:_LOOKED_AT_CHARACTERS]) if first else ""


def _take(make: _Make, prompt: SeenPrompt) -> None:
    """Compare a prompt with the one before it in its chat; the first of a chat, with the last of another."""
    chat = _chat_of(prompt)
    earlier = make.last_of_chat.get(chat) or next(
        (each for each in reversed(make.prompts[-_LOOKED_BACK:]) if is_trimmed(each, prompt)), None
    )
    front = _front_hash(prompt)
    if earlier is not None:
        _note(make, "turn", earlier, prompt, [*front_changes(earlier, prompt), *history_changes(earlier, prompt)])
    elif make.prompts:
        before = make.prompts[-1]
        _note(make, "conversation", before, prompt, [] if front in make.fronts else list(front_changes(before, prompt)))
    make.fronts.add(front)
    make.last_of_chat[chat] = prompt
    make.prompts.append(prompt)


def _front_hash(prompt: SeenPrompt) -> int:
    return hash((*prompt.message_parts[: prompt.num_instructions], *prompt.tool_parts))


def _note(make: _Make, scope: Scope, earlier: SeenPrompt, prompt: SeenPrompt, changes: Sequence[Change]) -> None:
    make.compared[scope] += 1
    shared_characters = earlier.num_characters if scope == "turn" else front_characters(earlier)
    tokens_each = earlier.tokens / max(1, earlier.num_characters)
    lost_by: dict[_Key, int] = {}
    for key, change in {_key(scope, change): change for change in reversed(changes)}.items():
        lost = lost_by[key] = round((shared_characters - change.at) * tokens_each)
        make.seen.setdefault(key, _Seen()).changes.append((change, round(change.at * tokens_each), lost))
    make.lost_each.append(lost_by)
    if prompt.salt != earlier.salt:
        make.lost_to_salts.append(round(shared_front_characters(earlier, prompt) * tokens_each))


def _key(scope: Scope, change: Change) -> _Key:
    """Equal for what changes in the same place again and again."""
    return scope, change.place, change.kind, masked(change.context[-_KEY_CHARACTERS:])


def _group(make: _Make, least_lost_tokens: int) -> Group:
    found = dict(_findings(make, least_lost_tokens))
    salts = list(_salts(make, least_lost_tokens))
    # What stands before a change is lost to salts, what stands behind it to the first that was found.
    lost_tokens = sum(finding.lost_tokens for finding in salts)
    lost_tokens += sum(max((lost for key, lost in by.items() if key in found), default=0) for by in make.lost_each)
    first = make.prompts[0]
    return Group(
        id=_id(first),
        requests=len(make.prompts),
        prompt_tokens=sum(prompt.tokens for prompt in make.prompts),
        lost_tokens=lost_tokens,
        findings=tuple(sorted([*salts, *found.values()], key=lambda finding: finding.tokens_before)),
        title=_title(make),
    )


def _title(make: _Make) -> str:
    """The first line of what its prompts say; where they have no system prompt in common, of how all of them begin."""
    first = make.prompts[0]
    texts = [prompt.message_parts[0].text for prompt in make.prompts if prompt.message_parts]
    if any(make.has) or not texts:
        title = next((part.text for part in first.message_parts if part.text.strip()), "").strip()
        tools = ", ".join(part.name for part in first.tool_parts[:_VALUES])
        return _short(title.partition("\n")[0] or tools, _TITLE_CHARACTERS)
    begin = texts[0]
    for text in texts:
        begin = begin[: num_shared(begin, text)]
    title = begin.strip().partition("\n")[0] or "prompts without a system prompt"
    return _short(title if begin in (texts[0], "") else f"{title}…", _TITLE_CHARACTERS)


def _id(prompt: SeenPrompt) -> str:
    """The same for prompts of one make, in all tokenizers."""
    lines = [masked(part.text).partition("\n")[0] for part in prompt.message_parts[: prompt.num_instructions]]
    names = sorted(part.name for part in prompt.tool_parts)
    if not any(_has_alike(prompt)):
        lines = _first_words(prompt)
    return hashlib.sha256("\n".join([*lines, *names]).encode()).hexdigest()[:12]


def _findings(make: _Make, least_lost_tokens: int) -> Iterator[tuple[_Key, Finding]]:
    for key, seen in make.seen.items():
        scope, place, kind, _ = key
        compared, changed = make.compared[scope], len(seen.changes)
        lost = sum(tokens for _, _, tokens in seen.changes)
        is_steady = changed >= max(2, _LEAST_SHARE * compared)
        # A user may have changed the text of a message, but not a time in it.
        is_clients = kind in VOLATILE or not place.startswith("message") or kind in ("trimmed", "whitespace")
        if not is_steady or not is_clients or lost < least_lost_tokens * changed:
            continue
        change = seen.changes[-1][0]
        values = [change.one, *(each.other for each, _, _ in seen.changes[-_VALUES + 1 :])]
        yield (
            key,
            Finding(
                place=place,
                kind=kind,
                scope=scope,
                changed=changed,
                of=compared,
                tokens_before=round(statistics.median(before for _, before, _ in seen.changes)),
                lost_tokens=lost,
                context=change.context,
                values=tuple(_short(value, _VALUE_CHARACTERS) for value in dict.fromkeys(values)),
            ),
        )


def _salts(make: _Make, least_lost_tokens: int) -> Iterator[Finding]:
    distinct = {prompt.salt for prompt in make.prompts if prompt.salt}
    changed, lost = len(make.lost_to_salts), sum(make.lost_to_salts)
    if len(distinct) < max(_FEW_SALTS, 0.8 * len(make.prompts)) or lost < max(1, least_lost_tokens * changed):
        return
    yield Finding(
        place="cache_salt",
        kind="salt",
        scope="turn",
        changed=changed,
        of=sum(make.compared.values()),
        tokens_before=0,
        lost_tokens=lost,
        values=tuple(_short(salt, _VALUE_CHARACTERS) for salt in _first(distinct)),
    )


def _first(values: Iterable[str]) -> list[str]:
    return sorted(values)[:_VALUES]


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"
