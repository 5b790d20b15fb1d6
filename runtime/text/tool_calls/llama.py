"""Llama 3's tool calls in JSON: an answer that is `{"name": …, "parameters": {…}}`, several joined by semicolons."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from runtime.text.pieces import Call

from .form import Tool, json_call, object_rules, parsed_json, plain_body_at


class LlamaForm:
    """An object at the start of the answer, or behind `<|python_tag|>`."""

    marks: tuple[str, ...] = ("<|python_tag|>",)
    anchors = "{"
    closings: tuple[str, ...] = (";",)
    quotes = '"'
    id_characters: int | None = None

    def body_at(self, text: str) -> int | None:
        """The object."""
        return plain_body_at(text, "{")

    def calls(self, text: str) -> list[Call]:
        """One call."""
        return [json_call(parsed_json(text))]

    def grammar(self, tools: Sequence[Tool], literal: Callable[[str], str], *, is_single: bool) -> str:
        """Without the mark, which the templates leave out for functions of one's own."""
        more = "" if is_single else ' ("; " object)*'
        return f"calls: object{more}\n" + object_rules(tools, "parameters")
