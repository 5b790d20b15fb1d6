from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.text.answer_form import CALL_FORMS
from runtime.text.pieces import Arguments, Call, Piece, Text
from runtime.text.tool_calls.form import Tool
from runtime.text.tool_calls.reader import CallReader
from tests.runtime.text.answers import read, whole_calls

STRINGS = {"type": "object", "properties": {key: {"type": "string"} for key in ("city", "s", "t")}}
TOOLS = [Tool(name=name, parameters=STRINGS) for name in ("f", "get_weather", "a.b")]
ROME = Call("get_weather", '{"city": "Rome"}')
HARD = '\n 5 "<x>\\\n\t'
EMPTY = Call("f", "{}")
TRICKY = Call(
    "f", json.dumps({"x": 'a"}]</tool_call>[TOOL_CALLS]\\', "y": [1, {"z": None}], "é": "日本"}, ensure_ascii=False)
)


def _read(form: str, text: str, cuts: list[int] | None = None, *, is_streamed: bool = False) -> list[Piece]:
    return read(CallReader(CALL_FORMS[form], TOOLS, is_streamed=is_streamed), text, cuts or [])


def _streamed(form: str, text: str, cuts: list[int]) -> list[Piece]:
    """What a stream tells, with the parts of each call joined."""
    return whole_calls(_read(form, text, cuts, is_streamed=True))


def _xml(name: str, **parameters: str) -> str:
    values = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in parameters.items())
    return f"<tool_call>\n<function={name}>\n{values}</function>\n</tool_call>"


def _object(call: Call, arguments: str = "arguments") -> str:
    return f'{{"name": "{call.name}", "{arguments}": {call.arguments}}}'


@pytest.mark.parametrize(
    ("form", "text", "pieces"),
    [
        ("hermes", f"<tool_call>\n{_object(ROME)}\n</tool_call>", [ROME]),
        ("hermes", f"Let me see.\n<tool_call>{_object(TRICKY)}</tool_call>\n", [Text("Let me see."), TRICKY]),
        (
            "hermes",
            f"<tool_call>\n{_object(ROME)}\n</tool_call>\n<tool_call>\n{_object(EMPTY)}\n</tool_call>",
            [ROME, EMPTY],
        ),
        ("hermes", f"<tool_call>{_object(ROME)}", [ROME]),
        ("hermes", f"<tool_call>{_object(ROME)}</tool_call> Done.", [ROME, Text("Done.")]),
        ("hermes", '<tool_call>{"arguments": {}, "name": "f"}</tool_call>', [EMPTY]),
        ("hermes", '<tool_call>{"name": "f"}</tool_call>', [EMPTY]),
        ("hermes", '<tool_call>{"name": "f", "arguments": "{}"}</tool_call>', [EMPTY]),
        ("llama", _object(ROME, "parameters"), [ROME]),
        ("llama", f"<|python_tag|>{_object(ROME, 'parameters')}; {_object(EMPTY, 'parameters')}", [ROME, EMPTY]),
        ("llama", f"\n{_object(TRICKY)}", [TRICKY]),
        ("llama", f"Here: {_object(ROME)}", [Text(f"Here: {_object(ROME)}")]),
        ("mistral", f"[TOOL_CALLS] [{_object(ROME)}, {_object(TRICKY)}]", [ROME, TRICKY]),
        ("mistral", f"Well. [TOOL_CALLS]{_object(ROME)}", [Text("Well."), ROME]),
        ("mistral", f"[TOOL_CALLS]f[ARGS]{TRICKY.arguments}[TOOL_CALLS]f[CALL_ID]abc[ARGS]{{}}", [TRICKY, EMPTY]),
        ("mistral", "[TOOL_CALLS]a.b{}", [Call("a.b", "{}")]),
        ("pythonic", "[get_weather(city='Rome')]", [ROME]),
        ("pythonic", "[get_weather(city=\"Rome\"), f()]", [ROME, EMPTY]),
        ("pythonic", "<|python_start|>[a.b(x=-1, y=[true, None], z={'k': (1.5,)})]<|python_end|>", [
            Call("a.b", '{"x": -1, "y": [true, null], "z": {"k": [1.5]}}')
        ]),
        ("qwen3_coder", f"Look.\n{_xml('get_weather', city='Rome')}", [Text("Look."), ROME]),
        ("qwen3_coder", f"{_xml('f')}\n{_xml('get_weather', city='Rome')} Done.", [EMPTY, ROME, Text("Done.")]),
        ("qwen3_coder", _xml("f", n="5", b="True", o='{"a": [1]}', w="C"), [
            Call("f", '{"n": 5, "b": true, "o": {"a": [1]}, "w": "C"}')
        ]),
        ("qwen3_coder", _xml("f", s=HARD, t=""), [Call("f", json.dumps({"s": HARD, "t": ""}))]),
    ],
)  # fmt: skip
def test_calls_are_taken_out_of_the_text(form: str, text: str, pieces: list[Piece]) -> None:
    assert _read(form, text) == pieces
    for cuts in ([], list(range(len(text)))):
        assert _streamed(form, text, cuts) == pieces


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("hermes", "Nothing at all, not even < or <tool."),
        ("hermes", "  spaces  \n"),
        ("hermes", f"a <tool_call>{_object(Call('unknown', '{}'))}</tool_call> b"),
        ("hermes", '<tool_call>{"name": "f", "arguments": {"a": }}</tool_call>'),
        ("hermes", '<tool_call>{"name": "f", "arguments": [1]}</tool_call>'),
        ("hermes", '<tool_call>{"name": "f", "arguments": {"a": NaN}}</tool_call>'),
        ("hermes", '<tool_call>{"name": "f", "arguments": {"a": "\\ud800"}}</tool_call>'),
        ("hermes", '<tool_call>{"name": 5}</tool_call>'),
        ("hermes", '<tool_call>{"name": "f", "arguments": {"a": "cut off'),
        ("hermes", "<tool_call>" + "[" * 3000),
        ("hermes", "<tool_call> no object </tool_call>"),
        ("hermes", "<tool_call>" + " " * 300 + "{}"),
        ("hermes", '<tool_call>{"name": "f", "arguments": ' + '{"a": ' * 2000 + "1" + "}" * 2001),
        ("llama", '{"answer": 42}'),
        ("llama", "[1, 2]"),
        ("mistral", "[TOOL_CALLS] none"),
        ("mistral", "[TOOL_CALLS]f[ARGS]"),
        ("mistral", "[TOOL_CALLS] []"),
        ("pythonic", "[1, 2, 3]"),
        ("pythonic", "[f(1)]"),
        ("pythonic", "[f(**{'a': 1})]"),
        ("pythonic", "[f(x=__import__('os'))]"),
        ("pythonic", "[f(x=b'1')]"),
        ("pythonic", "[f(x=1e999)]"),
        ("pythonic", "[f(x={1: 2})]"),
        ("pythonic", r"[g(x='\d')]"),
        ("pythonic", "[" + "(" * 500 + ")" * 500 + "]"),
        ("pythonic", "[" + ".".join("a" * 3000) + "()]"),
        ("qwen3_coder", _xml("unknown", city="Rome")),
        ("qwen3_coder", '<tool_call>{"name": "f"}</tool_call>'),
        ("qwen3_coder", "<tool_call>\n<function=f>\n<parameter=city>\nRo"),
        ("qwen3_coder", "<tool_call>\n<function=f>\n<parameter=city>\nRome\n</function>"),
        ("qwen3_coder", "<tool_call>\n<function=f>what?</function>"),
    ],
)
def test_what_is_no_right_call_stays_text_as_it_was_written(form: str, text: str) -> None:
    assert _read(form, text) == [Text(text)]


@pytest.mark.parametrize("form", CALL_FORMS)
def test_what_a_form_writes_it_reads(form: str) -> None:
    calls = [ROME, EMPTY, Call("f", json.dumps({"s": 'an "odd" 東', "n": -1, "y": [True, {"z": None}]}))]
    whole = [Call(call.name, json.dumps(json.loads(call.arguments), ensure_ascii=False)) for call in calls]
    assert _read(form, "".join(CALL_FORMS[form].write(call) for call in calls)) == whole


def test_a_right_call_behind_a_wrong_one_is_found() -> None:
    wrong = "<tool_call>what?</tool_call>"
    assert _read("hermes", f"{wrong}<tool_call>{_object(ROME)}</tool_call>") == [Text(wrong), ROME]


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("hermes", f"<tool_call>{_object(TRICKY)}</tool_call>"),
        ("llama", _object(TRICKY, "parameters")),
        ("mistral", f"[TOOL_CALLS] [{_object(TRICKY)}]"),
        ("mistral", f"[TOOL_CALLS]f[ARGS]{TRICKY.arguments}"),
        ("qwen3_coder", _xml("f", s="x" * 40, n="5")),
    ],
)
def test_a_stream_tells_arguments_as_they_are_written_and_only_what_is_right(form: str, text: str) -> None:
    pieces = _read(form, text, list(range(len(text))), is_streamed=True)
    (begin,) = [piece for piece in pieces if isinstance(piece, Call)]
    more = [piece for piece in pieces if isinstance(piece, Arguments)]
    assert (begin.name, begin.is_whole) == ("f", False)
    assert len(more) > 10
    assert [piece.is_last for piece in more] == [False] * (len(more) - 1) + [True]
    told = begin.arguments + "".join(piece.text for piece in more[:-1])
    for end in range(len(told)):
        with pytest.raises(ValueError):
            json.loads(told[:end])


_F = '<tool_call>{"name": "f", "arguments": '
_X = "<tool_call><function=f><parameter=s>x"


@pytest.mark.parametrize(
    ("form", "text", "told", "rest"),
    [
        ("hermes", _F + '{"s": "x", "n": oops}}', '{"s": "x", "n": ', "oops}}"),
        ("hermes", _F + '{"s": "x"} oops}!', '{"s": "x"', "} oops}!"),
        ("hermes", _F + '{"s": "x"}, "name": "a.b"}', '{"s": "x"', '}, "name": "a.b"}'),
        ("hermes", _F + '{"s": "\\ud800 and", "t": 5}} so', '{"s": "', '\\ud800 and", "t": 5}} so'),
        ("qwen3_coder", _X + "</parameter> oops </function> so", '{"s": "x"', " oops </function> so"),
    ],
)  # fmt: skip
def test_a_call_that_goes_wrong_in_a_stream_never_parses_and_the_rest_is_text(
    form: str, text: str, told: str, rest: str
) -> None:
    for cuts in (list(range(len(text))), list(range(0, len(text), 7))):
        first, *others = _read(form, text, cuts, is_streamed=True)
        assert isinstance(first, Call)
        parts = [each.text for each in others if isinstance(each, Arguments)]
        assert first.arguments + "".join(parts) == told
        assert others[len(parts) :] == [Text(rest)]


def test_of_a_call_that_is_cut_off_in_a_stream_nothing_comes_as_text() -> None:
    pieces = _read(
        "hermes", '<tool_call>{"name": "f", "arguments": {"s": "x", "n": tr', list(range(60)), is_streamed=True
    )
    assert {type(piece) for piece in pieces} == {Call, Arguments}
    assert not any(piece.is_last for piece in pieces if isinstance(piece, Arguments))


def test_text_before_a_possible_call_flows() -> None:
    reader = CallReader(CALL_FORMS["hermes"], TOOLS)
    assert reader.push("Let me <tool") == [Text("Let me")]
    assert reader.push("box") == [Text(" <toolbox")]


_SNIPPETS = {
    "hermes": ["<tool_call>", "</tool_call>", _object(ROME), _object(TRICKY), "<tool", "{", "}", '"', "\\"],
    "llama": ["<|python_tag|>", ";", _object(ROME, "parameters"), _object(TRICKY), "<|", "{", "}", '"', "\\"],
    "mistral": ["[TOOL_CALLS]", f"[{_object(ROME)}]", "f[ARGS]", "{}", "[CALL_ID]", "x1", "[", "]", '"'],
    "pythonic": ["[f()]", "[get_weather(city='R\"o)me')]", "<|python_start|>", "<|python_end|>", "[", "(", "'", ")]"],
    "qwen3_coder": [
        "<tool_call>", "</tool_call>", "<function=f>", "<function=", "</function>", "<parameter=s>", "<parameter=x>",
        "</parameter>", "5", "<", "{", '"',
    ],
}  # fmt: skip


@pytest.mark.parametrize("form", CALL_FORMS)
@given(data=st.data())
def test_any_cuts_give_the_same_as_the_whole_and_nothing_is_lost(form: str, data: st.DataObject) -> None:
    snippet = st.sampled_from([*_SNIPPETS[form], " ", "\n", "a", "日", "😀"])
    text = "".join(data.draw(st.lists(snippet, max_size=14)))
    cuts = data.draw(st.lists(st.integers(0, max(1, len(text))), max_size=12))
    whole = _read(form, text)
    assert _read(form, text, cuts) == whole
    assert _read(form, text, list(range(len(text)))) == whole
    if not any(isinstance(piece, Call) for piece in whole):
        assert "".join(piece.text for piece in whole if isinstance(piece, Text)) == text
    for piece in whole:
        if isinstance(piece, Text):
            assert piece.text.strip() in text
        elif isinstance(piece, Call):
            assert isinstance(json.loads(piece.arguments), dict)
    streamed = _streamed(form, text, cuts)
    assert [each for each in streamed if isinstance(each, Call) and each.is_whole] == [
        each for each in whole if isinstance(each, Call)
    ]
    if not any(isinstance(piece, Call) and not piece.is_whole for piece in streamed):
        assert streamed == whole


@pytest.mark.parametrize("form", CALL_FORMS)
@given(data=st.data())
def test_calls_between_texts_are_all_found(form: str, data: st.DataObject) -> None:
    value = st.recursive(
        st.none() | st.booleans() | st.integers(-(10**9), 10**9) | st.text(st.characters(codec="utf-8"), max_size=12),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(st.characters(codec="utf-8")), inner),
        max_leaves=6,
    )
    arguments = st.dictionaries(st.from_regex(r"[a-z]{1,8}_", fullmatch=True), value, max_size=3)
    calls = [
        Call("f", json.dumps(each, ensure_ascii=False))
        for each in data.draw(st.lists(arguments, min_size=1, max_size=3))
    ]
    texts = {
        "hermes": "\n".join(f"<tool_call>\n{_object(call)}\n</tool_call>" for call in calls),
        "llama": "; ".join(_object(call, "parameters") for call in calls),
        "mistral": f"[TOOL_CALLS] [{', '.join(map(_object, calls))}]",
        "pythonic": f"[{', '.join(_pythonic(call) for call in calls)}]",
        "qwen3_coder": "\n".join(_written_xml(call) for call in calls),
    }
    cuts = data.draw(st.lists(st.integers(0, len(texts[form])), max_size=12))
    assert _read(form, texts[form], cuts) == calls
    assert _streamed(form, texts[form], cuts) == calls


def _pythonic(call: Call) -> str:
    return f"{call.name}({', '.join(f'{key}={value!r}' for key, value in json.loads(call.arguments).items())})"


def _written_xml(call: Call) -> str:
    return _xml(call.name, **{key: json.dumps(value) for key, value in json.loads(call.arguments).items()})


@pytest.mark.parametrize("is_streamed", [False, True])
def test_a_long_call_in_small_pieces_takes_linear_time(is_streamed: bool) -> None:
    call = Call("f", json.dumps({"x": "y\\" * 100_000}))
    pieces = _read(
        "hermes", f"<tool_call>{_object(call)}</tool_call>", list(range(0, 400_000, 7)), is_streamed=is_streamed
    )
    assert whole_calls(pieces) == [call]
