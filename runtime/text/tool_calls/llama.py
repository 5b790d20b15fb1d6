"""Llama 3's tool calls in JSON: an answer that is `{"name": …, "parameters": {…}}`, several joined by semicolons."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from runtime.text.pieces import Call

from .form import Tool, call_object, object_rules
from .objects import ObjectForm


class LlamaForm(ObjectForm):
    """An object at the start of the answer, or behind `<|python_tag|>`."""

    marks: tuple[str, ...] = ("<|python_tag|>",)
    anchors = "{"
    closings: tuple[str, ...] = (";",)

    def write(self, call: Call) -> str:
        """The object alone, as the first thing of an answer."""
        return call_object(call, "parameters")

    def grammar(self, tools: Sequence[Tool], literal: Callable[[str], str], *, is_single: bool) -> str:
        """Without the mark, which the templates leave out for functions of one's own."""
        more = "" if is_single else ' ("; " object)*'
        return f"calls: object{more}\n" + object_rules(tools, "parameters")
