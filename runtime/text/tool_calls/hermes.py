"""Hermes's and Qwen's tool calls: `<tool_call>{"name": …, "arguments": {…}}</tool_call>`, one after another."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from runtime.text.pieces import Call

from .form import Tool, json_call, object_rules, parsed_json, plain_body_at


class HermesForm:
    """`<tool_call>` and an object; a missing `</tool_call>` is forgiven."""

    marks: tuple[str, ...] = ("<tool_call>",)
    anchors = ""
    closings: tuple[str, ...] = ("</tool_call>",)
    quotes = '"'
    id_characters: int | None = None

    def body_at(self, text: str) -> int | None:
        """The object."""
        return plain_body_at(text, "{")

    def calls(self, text: str) -> list[Call]:
        """One call."""
        return [json_call(parsed_json(text))]

    def grammar(self, tools: Sequence[Tool], literal: Callable[[str], str], *, is_single: bool) -> str:
        """Line ends as Qwen's template has them."""
        more = "" if is_single else ' ("\\n" call)*'
        begin, end = literal(self.marks[0]), literal(self.closings[0])
        return f'calls: call{more}\ncall: {begin} "\\n" object "\\n" {end}\n' + object_rules(tools, "arguments")
