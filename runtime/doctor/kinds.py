"""What kind of thing a piece of text is that changes from prompt to prompt, and what to do about it."""

from __future__ import annotations

import re
from collections import Counter
from typing import Literal

Kind = Literal[
    "billing_header",
    "timestamp",
    "date",
    "uuid",
    "counter",
    "number",
    "nonce",
    "whitespace",
    "reordered",
    "text",
    "tool_order",
    "tool_set",
    "key_order",
    "trimmed",
    "salt",
]

WHAT: dict[Kind, str] = {
    "billing_header": "a billing header of the client, new for each request",
    "timestamp": "a time",
    "date": "a date",
    "uuid": "a UUID",
    "counter": "a number that counts up",
    "number": "a number",
    "nonce": "an identifier made up for each request",
    "whitespace": "other whitespace",
    "reordered": "the same words in another order",
    "text": "other text",
    "tool_order": "the same tools in another order",
    "tool_set": "other tools",
    "key_order": "the same JSON with its keys in another order",
    "trimmed": "messages at the start are left out",
    "salt": "a cache_salt of its own for nearly each request",
}

REMEDY: dict[Kind, str] = {
    "billing_header": "serve with --drop-billing-headers, or turn the header off in the client",
    "timestamp": "move it to the end, into the last message, or round it to the day",
    "date": "move it to the end, into the last message",
    "uuid": "take it out, or move it to the end, into the last message",
    "counter": "take it out, or move it to the end, into the last message",
    "number": "move it to the end, into the last message",
    "nonce": "take it out, or move it to the end, into the last message",
    "whitespace": "send the same bytes each time",
    "reordered": "sort it, so that it is written in one order each time",
    "text": "move what changes behind what does not",
    "tool_order": "sort the tools by name in the client, or serve with --sort-tools",
    "tool_set": "send all tools in each request and restrict them with tool_choice",
    "key_order": "write JSON with sorted keys, or serve with --sort-tools",
    "trimmed": "leave out many messages at once and seldom, rather than one each turn",
    "salt": "give the same salt to all requests that may share a cache",
}

VOLATILE: frozenset[Kind] = frozenset({"billing_header", "timestamp", "date", "uuid", "counter", "number", "nonce"})
"""Kinds that are a client's doing wherever they stand, and not what the user has said."""

_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", re.IGNORECASE)
_TIME = re.compile(r"\d{1,2}:\d\d(?::\d\d)?|\d{8}T\d{4,6}")
_MONTH = r"(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*"
_DAY = r"(?:mon|tue|wed|thu|fri|sat|sun)[a-z]*"
_DATE = re.compile(
    rf"\d{{4}}[-/.]\d{{1,2}}[-/.]\d{{1,2}}|\d{{1,2}}[-/.]\d{{1,2}}[-/.]\d{{2,4}}|\b{_MONTH}\b.*\d|\d.*\b{_MONTH}\b|\A{_DAY}\Z",
    re.IGNORECASE,
)
_NUMBER = re.compile(r"-?[\d,_]*\.?\d+%?")
_NONCE = re.compile(r"(?=.*\d)(?=.*[a-zA-Z])[\w+/=.-]{5,}|[0-9a-fA-F]{5,}")
_BILLING = re.compile(r"x-[\w-]*billing[\w-]*:", re.IGNORECASE)
_LONGEST_COUNT = 1000
_MOST_DIGITS = 20
_EPOCH_FROM = 1_000_000_000
_LONGEST_VALUE = 200
"""No time, id or number is longer; expressions are not tried on what a client has made long to keep them busy."""

_LOOKED_AT_LINE = 1000
_DIGITS = re.compile(r"(?<![0-9a-fA-F])[a-fA-F]*+\d[0-9a-fA-F]*")


def kind_of(one: str, other: str, *, line: str) -> Kind:
    """What has become `other` that was `one`, in `line`."""
    if one.split() == other.split():
        return "whitespace"
    if max(len(one), len(other)) <= _LONGEST_VALUE and (kind := _kind_of_value(one, other, line[:_LOOKED_AT_LINE])):
        return kind
    if Counter(re.findall(r"\w+", one)) == Counter(re.findall(r"\w+", other)):
        return "reordered"
    return "text"


def _kind_of_value(one: str, other: str, line: str) -> Kind | None:
    if _BILLING.search(line):
        return "billing_header"
    for kind, pattern in (("uuid", _UUID), ("timestamp", _TIME), ("date", _DATE)):
        if pattern.search(one) and pattern.search(other):
            return kind  # type: ignore[return-value]  # mypy widens the names in the tuple
    if _NUMBER.fullmatch(one) and _NUMBER.fullmatch(other):
        return _number(one, other)
    if _NONCE.fullmatch(one) and _NONCE.fullmatch(other):
        return "nonce"
    return None


def _number(one: str, other: str) -> Kind:
    if not (one.isdecimal() and other.isdecimal()) or max(len(one), len(other)) > _MOST_DIGITS:
        return "number"
    first, second = int(one), int(other)
    if min(first, second) >= _EPOCH_FROM and len(one) in (10, 13, 16, 19):
        return "timestamp"
    return "counter" if 0 < second - first <= _LONGEST_COUNT else "number"


def masked(text: str) -> str:
    """The text with 0 for every run of letters and digits that has a digit: equal for texts that are alike."""
    return _DIGITS.sub("0", text)
