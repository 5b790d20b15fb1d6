"""What fuzzers throw bytes at: everything that reads text of clients or of models.

A target returns when the parser has answered as it promises, and raises when it has not.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence

import orjson

from runtime.http.app import ROUTES
from runtime.http.chat_messages import read_messages
from runtime.http.events import TextEvent
from runtime.http.fields import Fields
from runtime.http.openai import read_openai_sampling
from runtime.http.openai_chat import CHAT_BODY
from runtime.http.place import read_openai_place
from runtime.http.schema import check
from runtime.http.tools import read_chat_tools
from runtime.text.answer_form import CALL_FORMS, THOUGHT_TAGS
from runtime.text.grammar import ebnf_grammar, json_grammar, regex_grammar, tags_grammar
from runtime.text.pieces import Arguments, Call, Piece, Text, Thought
from runtime.text.reasoning import ThoughtReader
from runtime.text.stop import StopStrings
from runtime.text.stop_regex import StopPatterns
from runtime.text.tool_calls.form import Tool
from runtime.text.tool_calls.reader import CallReader
from wire.errors import Refused

Target = Callable[[bytes], None]

_STRINGS: dict[str, object] = {"type": "object", "properties": {"s": {"type": "string"}}}
_TOOLS = [Tool(name=name, parameters=_STRINGS) for name in ("f", "g")]
_BODIES = [route.body for route in ROUTES if route.body is not None]


def tool_calls(data: bytes) -> None:
    """A model's answer in every format of calls: cut anywhere it reads the same, and what is told is right JSON."""
    cuts, text = _cut(data)
    for name, form in CALL_FORMS.items():
        whole = _pieces(CallReader(form, _TOOLS), [text])
        assert _joined(_pieces(CallReader(form, _TOOLS), cuts)) == _joined(whole), name
        streamed = _pieces(CallReader(form, _TOOLS, is_streamed=True), cuts)
        for arguments, is_whole in _arguments(streamed):
            if is_whole:
                assert isinstance(json.loads(arguments), dict), name
        if not any(isinstance(piece, Call | Arguments) for piece in streamed):
            assert "".join(piece.text for piece in streamed if isinstance(piece, Text)).strip() in text, name


def thoughts(data: bytes) -> None:
    """A model's answer with thoughts: cut anywhere it reads the same."""
    cuts, text = _cut(data)
    for tags, is_open in itertools.product(THOUGHT_TAGS.values(), (False, True)):
        assert _thoughts(ThoughtReader(tags, is_open=is_open), cuts) == _thoughts(
            ThoughtReader(tags, is_open=is_open), [text]
        )


def stop_strings(data: bytes) -> None:
    """Stop strings: cut anywhere, the text before the one that ends first."""
    head, _, rest = data.partition(b"\n")
    strings = [string for string in head.decode(errors="replace").split(" ") if string]
    cuts, text = _cut(rest)
    shown, matched = _stopped(StopStrings(strings, is_kept=False), cuts)
    ends = [(found + len(string), -len(string)) for string in strings if (found := text.find(string)) >= 0]
    if not ends:
        assert (shown, matched) == (text, None)
    else:
        end, length = min(ends)
        assert shown == text[: end + length]
        assert matched is not None
        assert len(matched) == -length


def stop_patterns(data: bytes) -> None:
    """Stop patterns: taken or refused, and never more shown than has come."""
    head, _, rest = data.partition(b"\n")
    cuts, text = _cut(rest)
    try:
        stop = StopPatterns([head.decode(errors="replace")])
        shown = ""
        for cut in cuts:
            shown += stop.push(cut)
            if stop.matched is not None:
                break
    except Refused:
        return
    assert text.startswith(shown)


def json_bodies(data: bytes) -> None:
    """A JSON body against the schema of every route: taken or refused by name."""
    value = _json(data)
    for schema in _BODIES:
        try:
            check(schema, value, "")
        except Refused as error:
            assert error.message


def chat_bodies(data: bytes) -> None:
    """Chats, tools, sampling parameters and grammars in a body: read or refused."""
    value = _json(data)
    if not isinstance(value, dict):
        return
    readers: list[Callable[[Fields], object]] = [
        lambda fields: read_messages(fields, frozenset({"system", "user"})),
        read_chat_tools,
        lambda fields: read_openai_sampling(fields, max_new_tokens=None, num_top_logprobs=None),
        read_openai_place,
    ]
    for read in readers:
        try:
            check(CHAT_BODY, value, "")
            read(Fields(value, schema=CHAT_BODY))
        except Refused:
            continue


def events(data: bytes) -> None:
    """Any text in a streamed event is one line of JSON, and comes out as it went in."""
    text = data.decode(errors="replace")
    made = TextEvent(lambda text: {"index": 0, "delta": {"content": text}}).of(text)
    line, *rest = made.split(b"\n")
    assert rest == [b"", b""]
    assert json.loads(line.removeprefix(b"data: ")) == {"index": 0, "delta": {"content": text}}


def grammars(data: bytes) -> None:
    """A grammar in each of the forms: taken or refused before anything compiles it."""
    text = data.decode(errors="replace")
    for make in (json_grammar, regex_grammar, ebnf_grammar, tags_grammar):
        try:
            make(text, field="f")
        except Refused as error:
            assert error.field == "f"


TARGETS: Mapping[str, Target] = {
    target.__name__: target
    for target in (tool_calls, thoughts, stop_strings, stop_patterns, json_bodies, chat_bodies, events, grammars)
}

SEEDS: Mapping[str, tuple[bytes, ...]] = {
    "tool_calls": (
        b'\x03<tool_call>\n{"name": "f", "arguments": {"s": "a", "n": [1, 2.5e3, null]}}\n</tool_call>',
        b"\x05<tool_call>\n<function=f>\n<parameter=s>\nx\n</parameter>\n</function>\n</tool_call>",
        b'\x02[TOOL_CALLS] [{"name": "f", "arguments": {}}, {"name": "g", "arguments": {"s": "\\u00e9"}}]',
        b"\x04[f(s='x', y=[1]), g()]",
        b'\x01{"name": "f", "parameters": {"s": "\\ud83d\\ude00"}}; {"name": "g", "parameters": {}}',
    ),
    "thoughts": (b"\x03<think>\nwhy\n</think>\n\nso", b"\x02[THINK]x[/THINK]y"),
    "stop_strings": (b"aab abab\n\x02aaabababab", "é 漢字\n\x02漢é漢字".encode()),
    "stop_patterns": (b"[0-9]{2}$\n\x03a1b23", b"(a|b)+\\b\n\x02ab ab"),
    "json_bodies": (b'{"text": "x", "sampling_params": {"stop": ["a"], "n": 2}, "rid": ["a", 5]}',),
    "chat_bodies": (
        b'{"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}]}], "logit_bias": {"5": 1}}',
        b'{"tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}], "tool_choice": "required"}',
    ),
    "events": ('\u2028\n\r"\\é😀'.encode(),),
    "grammars": (
        b'{"type": "object", "properties": {"a": {"pattern": "^a{2,3}$"}}, "required": ["a"]}',
        b'start: "a" /b{1,9}/ c?\nc: "x"{2,5}',
        b'root ::= "a" [0-9]+ | "b"',
        b'{"structures": [{"begin": "<f>", "schema": {}, "end": "</f>"}], "triggers": ["<f"]}',
        b"(a{2}){3}|[^b]*",
    ),
}
"""Where to begin; a first byte tells how to cut."""


def _cut(data: bytes) -> tuple[list[str], str]:
    """A text in pieces of as many characters as its first byte says, and whole."""
    step, text = 1 + (data[0] % 9 if data else 0), data[1:].decode(errors="replace")
    return [text[i : i + step] for i in range(0, len(text), step)], text


def _json(data: bytes) -> object:
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        return None


def _pieces(reader: CallReader, cuts: Sequence[str]) -> list[Piece]:
    return [*(piece for cut in cuts for piece in reader.push(cut)), *reader.flush()]


def _joined(pieces: Sequence[Piece]) -> list[Piece]:
    """The pieces with texts that stand side by side joined."""
    joined: list[Piece] = []
    for piece in pieces:
        if isinstance(piece, Text) and joined and isinstance(joined[-1], Text):
            joined[-1] = Text(joined[-1].text + piece.text)
        else:
            joined.append(piece)
    return joined


def _arguments(pieces: Sequence[Piece]) -> Iterator[tuple[str, bool]]:
    """The arguments of each call, and whether they are told to the end."""
    told: str | None = None
    for piece in pieces:
        match piece:
            case Call():
                if told is not None:
                    yield told, False
                told = piece.arguments
                if piece.is_whole:
                    yield told, True
                    told = None
            case Arguments():
                assert told is not None
                told += piece.text
                if piece.is_last:
                    yield told, True
                    told = None
            case _:
                pass


def _thoughts(reader: ThoughtReader, cuts: Sequence[str]) -> tuple[str, str]:
    said = [*map(reader.push, cuts), reader.flush()]
    thought = "".join(piece.text for pieces, _ in said for piece in pieces if isinstance(piece, Thought))
    return thought, "".join(answer for _, answer in said)


def _stopped(stop: StopStrings, cuts: Sequence[str]) -> tuple[str, str | None]:
    shown = ""
    for cut in cuts:
        shown += stop.push(cut)
        if stop.matched is not None:
            return shown, stop.matched
    return shown + stop.flush(), None
