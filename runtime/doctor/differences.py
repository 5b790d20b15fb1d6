"""Where two texts differ that are alike: line by line, and in a line word by word. Knows no prompts."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from runtime.text.shared import num_shared

from .kinds import Kind, kind_of, masked

_MOST_LINES = 400
_MOST_WORDS = 400
_MOST_CHARACTERS = 10_000
_LEAST_LIKENESS = 0.5
_CONTEXT_CHARACTERS = 60
_WORD = re.compile(r"\w(?:[\w:.+/@-]*\w)?|\s+|.", re.DOTALL)
_WORD_CHARACTER = re.compile(r"[\w:.+/@-]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """`one` has become `other`, `at` characters into the first text and behind `context` in its line."""

    at: int
    context: str
    one: str
    other: str
    kind: Kind


def differences(one: str, other: str) -> list[Difference] | None:
    """The differences in order; None where the texts have little in common."""
    if one == other:
        return []
    start = _line_start(one, num_shared(one, other))
    rest_one, rest_other = one[start:], other[start:]
    end = num_shared(rest_one[::-1], rest_other[::-1])
    end = min(_line_end_before(rest_one, end), _line_end_before(rest_other, end))
    lines_one = rest_one[: len(rest_one) - end].splitlines(keepends=True)
    lines_other = rest_other[: len(rest_other) - end].splitlines(keepends=True)
    shared = start + end
    found = list(_of_lines(lines_one, lines_other, start))
    changed = sum(len(each.one) + len(each.other) for each in found) / 2
    longest = max(len(one), len(other))
    if shared == 0 and changed > _LEAST_LIKENESS * longest:
        return None
    return None if changed > _LEAST_LIKENESS * longest and shared < _LEAST_LIKENESS * longest else found


def _line_start(text: str, at: int) -> int:
    return text.rfind("\n", 0, at) + 1


def _line_end_before(text: str, num_tail: int) -> int:
    """How much of the tail of `num_tail` characters consists of whole lines."""
    line_end = text.find("\n", len(text) - num_tail)
    return 0 if line_end < 0 or not num_tail else len(text) - line_end - 1


def _of_lines(one: Sequence[str], other: Sequence[str], start: int) -> Iterator[Difference]:
    ones, others = list(one), list(other)
    if max(len(ones), len(others)) > _MOST_LINES:
        yield _whole("".join(ones), "".join(others), start)
        return
    matcher = SequenceMatcher(None, [masked(line) for line in ones], [masked(line) for line in others], autojunk=False)
    at = [start]
    for line in ones:
        at.append(at[-1] + len(line))
    for tag, i, i_end, j, j_end in matcher.get_opcodes():
        if tag == "equal" or (tag == "replace" and i_end - i == j_end - j):
            for k in range(i_end - i):
                if ones[i + k] != others[j + k]:
                    yield from _in_line(ones[i + k], others[j + k], at[i + k])
        else:
            yield _whole("".join(ones[i:i_end]), "".join(others[j:j_end]), at[i])


def _in_line(one: str, other: str, start: int) -> Iterator[Difference]:
    words_one, words_other = _WORD.findall(one[:_MOST_CHARACTERS]), _WORD.findall(other[:_MOST_CHARACTERS])
    if max(len(one), len(other)) > _MOST_CHARACTERS or max(len(words_one), len(words_other)) > _MOST_WORDS:
        yield from _in_long_line(one, other, start)
        return
    matcher = SequenceMatcher(None, words_one, words_other, autojunk=False)
    changed = [code for code in matcher.get_opcodes() if code[0] != "equal"]
    at = 0
    ends = [at := at + len(word) for word in words_one]
    first, last = changed[0], changed[-1]
    whole = "".join(words_one[first[1] : last[2]]), "".join(words_other[first[3] : last[4]])
    kind = kind_of(*whole, line=one)
    if kind != "text" or len(changed) == 1:
        changed = [("replace", first[1], last[2], first[3], last[4])]  # `14 Mar 10:59` has several words
    for _, i, i_end, j, j_end in changed:
        begin = ends[i - 1] if i else 0
        value, new = "".join(words_one[i:i_end]), "".join(words_other[j:j_end])
        yield Difference(
            at=start + begin,
            context=one[max(0, begin - _CONTEXT_CHARACTERS) : begin],
            one=value,
            other=new,
            kind=kind_of(value, new, line=one),
        )


def _in_long_line(one: str, other: str, start: int) -> Iterator[Difference]:
    """One difference from the first word that differs to the last."""
    begin = num_shared(one, other)
    while begin and _WORD_CHARACTER.match(one[begin - 1]):
        begin -= 1
    tail = min(num_shared(one[::-1], other[::-1]), len(one) - begin, len(other) - begin)
    while tail and _WORD_CHARACTER.match(one[len(one) - tail]):
        tail -= 1
    value, new = one[begin : len(one) - tail], other[begin : len(other) - tail]
    yield Difference(
        at=start + begin,
        context=one[max(0, begin - _CONTEXT_CHARACTERS) : begin],
        one=value,
        other=new,
        kind=kind_of(value, new, line=one[: begin + len(value)][-1000:]),
    )


def _whole(one: str, other: str, at: int) -> Difference:
    return Difference(at=at, context="", one=one, other=other, kind=kind_of(one, other, line=one))
