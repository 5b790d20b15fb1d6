from __future__ import annotations

import json

import pytest
import tokenizers
from llguidance import LLMatcher, LLTokenizer

from runtime.text.answer_form import CALL_FORMS, AnswerForm, find_answer_form
from runtime.text.grammar import choice_grammar, ebnf_grammar, json_grammar, regex_grammar
from runtime.text.pieces import Call, Text, Thought
from runtime.text.tokenizer import ModelFiles, Tokenizer
from runtime.text.tool_calls.form import Tool
from tests.fakes import byte_tokenizer
from tests.runtime.text.answers import read
from wire.sampling import Grammar

WEATHER = Tool(
    name="weather",
    parameters={
        "type": "object",
        "properties": {"days": {"type": "integer"}, "city": {"type": "string"}, "unit": {"enum": ["C", "F"]}},
        "required": ["city"],
        "additionalProperties": False,
    },
)
TIME = Tool(name="time")
PROMPT = "<user>hi<assistant>"


def _backend(*special: str) -> tokenizers.Tokenizer:
    backend = byte_tokenizer()
    backend.add_special_tokens(list(special))
    return backend


def _tokenizer(backend: tokenizers.Tokenizer) -> Tokenizer:
    files = ModelFiles(tokenizer_config={"eos_token": "</s>"}, model_config={}, generation_config={})
    return Tokenizer(backend, files)


def _form(calls: str, thoughts: str, *special: str) -> AnswerForm:
    return find_answer_form(None, _tokenizer(_backend(*special)), calls=calls, thoughts=thoughts)


@pytest.mark.parametrize(
    ("template", "calls", "thoughts"),
    [
        ("{{ '<tool_call>' }}", "hermes", None),
        ("<tool_call>\n<function=example>", "qwen3_coder", None),
        ("{% if tools %}[AVAILABLE_TOOLS]{% endif %}[TOOL_CALLS]", "mistral", None),
        ('Respond in the format {"name": function name, "parameters": dictionary}. <|python_tag|>', "llama", None),
        ("[func_name1(params_name1=params_value1)]", "pythonic", None),
        ("{% set content = content.split('</think>')[-1] %}<tool_call>", "hermes", "think"),
        ("[THINK]x[/THINK]", None, "mistral"),
        ("plain", None, None),
        (None, None, None),
    ],
)
def test_a_template_shows_how_its_model_writes(template: str | None, calls: str | None, thoughts: str | None) -> None:
    form = find_answer_form(template, _tokenizer(_backend()), calls="auto", thoughts="auto")
    assert (form.call_form_name, form.thought_tags_name) == (calls, thoughts)


def test_names_come_before_the_template() -> None:
    form = find_answer_form("<tool_call></think>", _tokenizer(_backend()), calls="pythonic", thoughts="none")
    assert (form.call_form_name, form.thought_tags_name) == ("pythonic", None)


def test_marks_that_are_special_tokens_are_shown() -> None:
    form = _form("mistral", "mistral", "[TOOL_CALLS]", "[THINK]", "[/THINK]", "[INST]")
    assert form.special_ids.keys() == {"[TOOL_CALLS]", "[THINK]", "[/THINK]"}
    assert len(form.shown_ids) == 3


def test_thoughts_and_calls_are_read_from_one_answer() -> None:
    reader = _form("hermes", "think").reader(tools=[TIME], prompt=PROMPT)
    text = '<think>\nWhat?\n</think>\n\nSo.\n<tool_call>{"name": "time"}</tool_call>'
    assert read(reader, text, range(len(text))) == [Thought("What?"), Text("So."), Call("time", "{}")]


RIGHT = {
    "hermes": '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome", "unit": "C"}}\n</tool_call>',
    "llama": '{"name": "weather", "parameters": {"city": "Rome", "unit": "C"}}',
    "mistral": '[TOOL_CALLS] [{"name": "weather", "arguments": {"city": "Rome", "unit": "C"}}]',
    "pythonic": '[weather(city="Rome", unit="C")]',
    "qwen3_coder": (
        "<tool_call>\n<function=weather>\n<parameter=city>\nRome\n</parameter>\n"
        '<parameter=unit>\n"C"\n</parameter>\n</function>\n</tool_call>'
    ),
}
TWO = {
    "hermes": RIGHT["hermes"] + '\n<tool_call>\n{"name": "time", "arguments": {}}\n</tool_call>',
    "llama": RIGHT["llama"] + '; {"name": "time", "parameters": {}}',
    "mistral": RIGHT["mistral"][:-1] + ', {"name": "time", "arguments": {}}]',
    "pythonic": '[weather(city="Rome", unit="C"), time()]',
    "qwen3_coder": RIGHT["qwen3_coder"] + "\n<tool_call>\n<function=time>\n</function>\n</tool_call>",
}
WRONG = {name: [text.replace("weather", "wether"), text.replace('"C"', "5"), "Hello."] for name, text in RIGHT.items()}


def _takes(form: AnswerForm, text: str, backend: tokenizers.Tokenizer, *, is_single: bool, prompt: str) -> bool:
    return _follows(form.forced([WEATHER, TIME], prompt=prompt, is_single=is_single, field="tools"), text, backend)


def _follows(grammar: Grammar, text: str, backend: tokenizers.Tokenizer) -> bool:
    matcher = LLMatcher(LLTokenizer(backend.to_str(), eos_token=[257]), grammar.source, log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    token_ids = backend.encode(text, add_special_tokens=False).ids
    return matcher.try_consume_tokens(token_ids) == len(token_ids) and matcher.is_accepting()


@pytest.mark.parametrize("special", [(), ("[TOOL_CALLS]", "[THINK]", "[/THINK]")])
@pytest.mark.parametrize("name", CALL_FORMS)
def test_a_forced_answer_is_a_call_that_can_be_read(name: str, special: tuple[str, ...]) -> None:
    backend = _backend(*special)
    form = find_answer_form(None, _tokenizer(backend), calls=name, thoughts="none")
    assert _takes(form, RIGHT[name], backend, is_single=True, prompt=PROMPT)
    assert _takes(form, TWO[name], backend, is_single=False, prompt=PROMPT)
    assert not _takes(form, TWO[name], backend, is_single=True, prompt=PROMPT)
    assert not any(_takes(form, text, backend, is_single=True, prompt=PROMPT) for text in WRONG[name])
    calls = read(form.reader(tools=[WEATHER, TIME], prompt=PROMPT), TWO[name])
    rome = Call("weather", json.dumps({"city": "Rome", "unit": "C"}))
    assert calls == [rome, Call("time", "{}")]


@pytest.mark.parametrize("thoughts", ["think", "mistral"])
@pytest.mark.parametrize("special", [(), ("[THINK]", "[/THINK]")])
def test_a_forced_call_may_stand_behind_a_thought(thoughts: str, special: tuple[str, ...]) -> None:
    backend = _backend(*special)
    form = find_answer_form(None, _tokenizer(backend), calls="hermes", thoughts=thoughts)
    assert form.thoughts is not None
    begin, end = form.thoughts.begin, form.thoughts.end
    answer = f"\nHm? 日本\n{end}\n\n{RIGHT['hermes']}"
    assert _takes(form, f"{begin}{answer}", backend, is_single=True, prompt=PROMPT)
    assert _takes(form, RIGHT["hermes"], backend, is_single=True, prompt=PROMPT)
    assert _takes(form, answer, backend, is_single=True, prompt=f"{PROMPT}{begin}\n")
    assert not _takes(form, f"{begin}Hm?{end}Hello.", backend, is_single=True, prompt=PROMPT)


@pytest.mark.parametrize("prompt", [PROMPT, f"{PROMPT}<think>\n"])
@pytest.mark.parametrize(
    "grammar",
    [
        json_grammar({"type": "object"}, field="f"),
        regex_grammar(r"\{\}", field="f"),
        choice_grammar(["{}", "[]"], field="f"),
        ebnf_grammar('start: "{" "}"', field="f"),
    ],
)
def test_a_forced_form_stands_behind_the_thought(prompt: str, grammar: Grammar) -> None:
    backend = _backend()
    form = find_answer_form(None, _tokenizer(backend), calls="none", thoughts="think")
    forced = form.behind_thought(grammar, prompt=prompt)
    begin = "" if prompt.endswith("\n") else "<think>"
    assert _follows(forced, f"{begin}Hm?</think>\n\n{{}}", backend)
    assert _follows(forced, "{}", backend) == bool(begin)
    assert not _follows(forced, f"{begin}Hm?</think>no", backend)


def test_a_template_without_tools_has_no_form() -> None:
    form = find_answer_form("{{ messages }}", _tokenizer(_backend()), calls="auto", thoughts="auto")
    assert form.calls is None
    assert form.shown_ids == frozenset()
    assert read(form.reader(tools=(), prompt=PROMPT), "<tool_call>") == [Text("<tool_call>")]
