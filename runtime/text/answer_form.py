"""How one model writes thoughts and tool calls: found in its chat template, or named by a flag; and what reads them.

Knows no HTTP. What a format is stands in `tool_calls/` and `reasoning.py`.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from wire.sampling import Grammar

from .grammar import grammars_of, lark_grammar
from .pieces import Piece, Text
from .reasoning import ThoughtReader, ThoughtTags
from .tokenizer import Tokenizer
from .tool_calls.form import CallForm, Tool
from .tool_calls.hermes import HermesForm
from .tool_calls.llama import LlamaForm
from .tool_calls.mistral import MistralForm
from .tool_calls.pythonic import PythonicForm
from .tool_calls.qwen_xml import QwenXmlForm
from .tool_calls.reader import CallReader

CALL_FORMS: Mapping[str, CallForm] = {
    "hermes": HermesForm(),
    "llama": LlamaForm(),
    "mistral": MistralForm(),
    "pythonic": PythonicForm(),
    "qwen3_coder": QwenXmlForm(),
}

THOUGHT_TAGS: Mapping[str, ThoughtTags] = {
    "think": ThoughtTags("<think>", "</think>"),
    "mistral": ThoughtTags("[THINK]", "[/THINK]"),
    "kimi": ThoughtTags("◁think▷", "◁/think▷"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerForm:
    """A model's ways; None where it has none.

    `special_ids` are the marks that are special tokens of its own, `call_ids` all tokens that begin a call.
    """

    calls: CallForm | None
    call_form_name: str | None
    thoughts: ThoughtTags | None
    thought_tags_name: str | None
    special_ids: Mapping[str, int]
    call_ids: frozenset[int]

    @property
    def shown_ids(self) -> frozenset[int]:
        """Special tokens whose text has to be seen by those who read answers."""
        return frozenset(self.special_ids.values())

    @property
    def call_id_characters(self) -> int | None:
        """How many letters and digits a call's id must have; None: any number."""
        return None if self.calls is None else self.calls.id_characters

    def reader(self, *, tools: Collection[Tool], prompt: str | None, is_streamed: bool = False) -> AnswerReader:
        """Reads one answer to a chat whose text is `prompt` (None: its thoughts are text); without tools, no calls.

        Where the answer is streamed, calls are told as they are written.
        """
        thoughts = self.thoughts
        return AnswerReader(
            None
            if thoughts is None or prompt is None
            else ThoughtReader(thoughts, is_open=thoughts.is_open_in(prompt)),
            None if self.calls is None or not tools else CallReader(self.calls, tools, is_streamed=is_streamed),
        )

    def forced(self, tools: Sequence[Tool], *, prompt: str, is_single: bool, field: str) -> Grammar:
        """The grammar of an answer that calls one of `tools`, or several, perhaps behind a thought."""
        assert self.calls is not None, "who has no form can't be forced"
        rules = self.calls.grammar(tools, self._literal, is_single=is_single)
        return lark_grammar(self._behind_thought("calls", prompt) + rules, field=field)

    def behind_thought(self, grammar: Grammar, *, prompt: str) -> Grammar:
        """`grammar` for an answer that may think first, or must where `prompt` has opened the thought."""
        if self.thoughts is None:
            return grammar
        first, *others = grammars_of(grammar)
        start = {"lark_grammar": self._behind_thought("@answer", prompt)}
        return msgspec.structs.replace(
            grammar, source=json.dumps({"grammars": [start, {**first, "name": "answer"}, *others]})
        )

    def _behind_thought(self, what: str, prompt: str) -> str:
        """Lark rules that begin with what the model thinks, and go on with `what`."""
        if self.thoughts is None:
            return f"start: {what}\n"
        is_open = self.thoughts.is_open_in(prompt)
        start = f"thought {what}" if is_open else f"({self._literal(self.thoughts.begin)} thought)? {what}"
        if self.thoughts.end in self.special_ids:
            return f"start: {start}\nthought: /(?s:.*)/ {self._literal(self.thoughts.end)} /\\n{{0,2}}/\n"
        end = json.dumps(self.thoughts.end)
        return f"start: {start}\nthought: thinking /\\n{{0,2}}/\nthinking[suffix={end}]: /(?s:.*)/\n"

    def _literal(self, mark: str) -> str:
        """A mark in Lark: by its id where it is a special token, which no text can become."""
        return f"<[{self.special_ids[mark]}]>" if mark in self.special_ids else json.dumps(mark)


class AnswerReader:
    """Turns a growing answer into pieces; however it is cut, they are the same when joined."""

    def __init__(self, thoughts: ThoughtReader | None, calls: CallReader | None) -> None:
        self._thoughts = thoughts
        self._calls = calls

    @property
    def num_thought_characters(self) -> int:
        """How much of the text so far was a thought."""
        return 0 if self._thoughts is None else self._thoughts.num_characters

    def push(self, text: str) -> list[Piece]:
        """Add `text`; return what is certain now."""
        if self._thoughts is None:
            return self._answered(text)
        pieces, answer = self._thoughts.push(text)
        return pieces + self._answered(answer)

    def flush(self) -> list[Piece]:
        """What was held back; no text may follow."""
        pieces: list[Piece] = []
        if self._thoughts is not None:
            pieces, answer = self._thoughts.flush()
            pieces += self._answered(answer)
        return pieces + (self._calls.flush() if self._calls is not None else [])

    def _answered(self, text: str) -> list[Piece]:
        if not text:
            return []
        return [Text(text)] if self._calls is None else self._calls.push(text)


def find_answer_form(template: str | None, tokenizer: Tokenizer, *, calls: str, thoughts: str) -> AnswerForm:
    """The forms that are named, `none` being none at all; `auto` is the one that the chat template shows."""
    call_name = _call_form_in(template or "") if calls == "auto" else calls
    tags_name = _thought_tags_in(template or "") if thoughts == "auto" else thoughts
    form, tags = CALL_FORMS.get(call_name or ""), THOUGHT_TAGS.get(tags_name or "")
    marks = [*(form.marks + form.closings if form else ()), *((tags.begin, tags.end) if tags else ())]
    return AnswerForm(
        calls=form,
        call_form_name=call_name if form else None,
        thoughts=tags,
        thought_tags_name=tags_name if tags else None,
        special_ids={
            mark: token_id for token_id in tokenizer.special_ids if (mark := tokenizer.token_text(token_id)) in marks
        },
        call_ids=frozenset(ids[0] for ids in map(_encoded(tokenizer), form.marks if form else ()) if len(ids) == 1),
    )


def _encoded(tokenizer: Tokenizer) -> Callable[[str], list[int]]:
    return functools.partial(tokenizer.encode, add_special_tokens=False)


def _call_form_in(template: str) -> str | None:
    if "[TOOL_CALLS]" in template:
        return "mistral"
    if "<tool_call>" in template:
        return "qwen3_coder" if "<function=" in template else "hermes"
    if '{"name": function name, "parameters":' in template:
        return "llama"
    if "func_name1(" in template or "[func_name" in template:
        return "pythonic"
    return None


def _thought_tags_in(template: str) -> str | None:
    return next((name for name, tags in THOUGHT_TAGS.items() if tags.end in template), None)
