"""Hermes's and Qwen's tool calls: `<tool_call>{"name": …, "arguments": {…}}</tool_call>`, one after another."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from runtime.text.pieces import Call

from .form import Tool, call_object, object_rules
from .objects import ObjectForm


class HermesForm(ObjectForm):
    """`<tool_call>` and an object; a missing `</tool_call>` is forgiven."""

    marks: tuple[str, ...] = ("<tool_call>",)
    anchors = ""
    closings: tuple[str, ...] = ("</tool_call>",)

    def write(self, call: Call) -> str:
        """The object between its marks."""
        return f"{self.marks[0]}\n{call_object(call, 'arguments')}\n{self.closings[0]}"

    def grammar(self, tools: Sequence[Tool], literal: Callable[[str], str], *, is_single: bool) -> str:
        """Line ends as Qwen's template has them."""
        more = "" if is_single else ' ("\\n" call)*'
        begin, end = literal(self.marks[0]), literal(self.closings[0])
        return f'calls: call{more}\ncall: {begin} "\\n" object "\\n" {end}\n' + object_rules(tools, "arguments")
