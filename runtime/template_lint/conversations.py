"""The chats that a template is tried with: a systematic set, random ones, and smaller ones of one that failed.

Every text is a sentence of its own, so that it can be found again in a prompt. Knows no templates and no tokens.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from runtime.text.pieces import Call
from runtime.text.template import Message


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What the model says in one turn; whitespace around `text` is the model's own."""

    thought: str = ""
    text: str = ""
    calls: tuple[Call, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """What is asked, and its answer: results of the last answer's calls first, then the note and the question."""

    question: str = ""
    note: str = ""
    answer: Answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """A chat; `sends_thoughts` says whether its client gives back what the model has thought."""

    system: str = ""
    tools: tuple[dict[str, object], ...] = ()
    turns: tuple[Turn, ...]
    variables: Mapping[str, object] = field(default_factory=dict)
    sends_thoughts: bool = True

    @property
    def tool_names(self) -> frozenset[str]:
        """The names of the tools."""
        return frozenset(name for tool in self.tools if isinstance(name := _function(tool).get("name"), str))

    def opening(self) -> list[Message]:
        """What stands before the first turn."""
        return [{"role": "system", "content": self.system}] if self.system else []

    def asked(self, k: int) -> list[Message]:
        """The messages between the answers k-1 and k; calls have the ids that `call_id` gives."""
        turn = self.turns[k]
        messages: list[Message] = []
        if k:
            for i, call in enumerate(self.turns[k - 1].answer.calls):
                result = f"Result {k}.{i} of {call.name} is fine."
                messages.append(
                    {"role": "tool", "tool_call_id": call_id(k - 1, i), "name": call.name, "content": result}
                )
        if turn.note:
            messages.append({"role": "system", "content": turn.note})
        if turn.question:
            messages.append({"role": "user", "content": turn.question})
        return messages

    @property
    def always_thinks(self) -> bool:
        """Whether there is a thought in every answer."""
        return all(turn.answer.thought for turn in self.turns)

    @property
    def is_whole(self) -> bool:
        """Whether each turn asks and answers something, and nothing is called that is not there."""
        called = {call.name for turn in self.turns for call in turn.answer.calls}
        return (
            len(self.turns) > 1
            and called <= self.tool_names
            and all(turn.answer.text or turn.answer.calls for turn in self.turns)
            and all(
                turn.question or (k > 0 and self.turns[k - 1].answer.calls and not turn.note)
                for k, turn in enumerate(self.turns)
            )
        )


def call_id(turn: int, index: int) -> str:
    """The id that a client has for a call; nine letters and digits, which all templates take."""
    return f"call{turn % 100:02}{index % 100:02}b"


def _function(tool: Mapping[str, object]) -> Mapping[str, object]:
    function = tool.get("function")
    return function if isinstance(function, dict) else {}


def _tool(name: str, description: str, **properties: object) -> dict[str, object]:
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


TOOLS = (
    _tool("get_weather", "Tells the weather of a city.", city={"type": "string"}, days={"type": "integer"}),
    _tool("list_files", "Lists the files of a folder.", folder={"type": "string"}),
)
SYSTEM = "You help people who ask about weather and files."

_CALLS = (
    Call("get_weather", '{"city": "Rome", "days": 2}'),
    Call("list_files", '{"folder": "/tmp"}'),
    Call("get_weather", '{"city": "Zürich \\"Nord\\" 東", "days": -1}'),
    Call("list_files", "{}"),
)
_SHAPES = ("Answer {} is short.", "Answer {} has a list:\n\n1. one\n2. zwei ä\n", "Answer {} ends in a gap. \n")


def systematic(*, with_tools: bool, with_thoughts: bool) -> Iterator[Conversation]:
    """Each thing that chats have, alone and beside the others."""
    for system in ("", SYSTEM):
        yield from _of_kind(system, with_thoughts=False, with_tools=with_tools)
        if with_thoughts:
            for sends in (True, False):
                for each in _of_kind(system, with_thoughts=True, with_tools=with_tools):
                    yield replace(each, sends_thoughts=sends)


def _of_kind(system: str, *, with_thoughts: bool, with_tools: bool) -> Iterator[Conversation]:
    def answer(k: int, *, shape: int = 0, calls: tuple[Call, ...] = (), text: bool = True) -> Answer:
        return Answer(
            thought=f"Thought {k} is about the question." if with_thoughts else "",
            text=_SHAPES[shape].format(k) if text else "",
            calls=calls,
        )

    def turn(k: int, *, note: bool = False, question: bool = True, **more: object) -> Turn:
        return Turn(
            question=f"Question {k} is this?" if question else "",
            note=f"Note {k} is from the system." if note else "",
            answer=answer(k, **more),  # type: ignore[arg-type]  # the keywords of `answer`
        )

    for shape in range(len(_SHAPES)):
        yield Conversation(system=system, turns=tuple(turn(k, shape=shape) for k in range(3)))
    yield Conversation(system=system, turns=(turn(0), turn(1, note=True), turn(2)))
    if not with_tools:
        return
    yield Conversation(system=system, tools=TOOLS, turns=tuple(turn(k) for k in range(3)))
    for calls in [(call,) for call in _CALLS] + [_CALLS[:2]]:
        for text in (False, True):
            called = turn(0, calls=calls, text=text)
            yield Conversation(system=system, tools=TOOLS, turns=(called, turn(1, question=False), turn(2), turn(3)))
    chain = (turn(0, calls=_CALLS[:1], text=False), turn(1, calls=_CALLS[1:2], text=False, question=False))
    yield Conversation(system=system, tools=TOOLS, turns=(*chain, turn(2, question=False), turn(3)))
    yield Conversation(system=system, tools=TOOLS, turns=(chain[0], turn(1), turn(2, note=True), turn(3)))


def random_one(seed: str, *, with_tools: bool, with_thoughts: bool) -> Conversation:
    """A chat of up to six turns, always the same for a seed."""
    chance = random.Random(seed)
    has_tools = with_tools and chance.random() < 0.6
    thinks = with_thoughts and chance.random() < 0.6
    turns: list[Turn] = []
    for k in range(chance.randint(2, 6)):
        is_result = bool(turns and turns[-1].answer.calls)
        num_calls = chance.choice((0, 1, 1, 2)) if has_tools and chance.random() < 0.5 else 0
        calls = tuple(chance.choice(_CALLS) for _ in range(num_calls))
        answer = Answer(
            thought=f"Thought {k} has {chance.randint(1, 99)} steps." if thinks and chance.random() < 0.8 else "",
            # Beside calls, the whitespace is the template's.
            text=("" if chance.random() < 0.5 else _SHAPES[0].format(k)) if calls else chance.choice(_SHAPES).format(k),
            calls=calls,
        )
        asks = not is_result or chance.random() < 0.2
        note = f"Note {k} is from the system." if asks and chance.random() < 0.1 else ""
        turns.append(Turn(question=f"Question {k} is this?" if asks else "", note=note, answer=answer))
    return Conversation(
        system=chance.choice(("", SYSTEM)),
        tools=TOOLS if has_tools else (),
        turns=tuple(turns),
        sends_thoughts=chance.random() < 0.7,
    )


def smaller(conversation: Conversation) -> Iterator[Conversation]:
    """Chats with one thing less, the largest steps first."""
    turns = conversation.turns
    for k in range(len(turns)):
        yield replace(conversation, turns=turns[:k] + turns[k + 1 :])
    if conversation.system:
        yield replace(conversation, system="")
    if not conversation.sends_thoughts:
        yield replace(conversation, sends_thoughts=True)
    if conversation.tools:
        yield replace(conversation, tools=())
        if len(conversation.tools) > 1:
            yield replace(conversation, tools=conversation.tools[:1])
    for k, turn in enumerate(turns):
        for less in _less_of(turn):
            yield replace(conversation, turns=(*turns[:k], less, *turns[k + 1 :]))


def _less_of(turn: Turn) -> Iterator[Turn]:
    answer = turn.answer
    if turn.note:
        yield replace(turn, note="")
    if answer.thought:
        yield replace(turn, answer=replace(answer, thought=""))
    for i in range(len(answer.calls)):
        yield replace(turn, answer=replace(answer, calls=answer.calls[:i] + answer.calls[i + 1 :]))
    if answer.text and answer.calls:
        yield replace(turn, answer=replace(answer, text=""))
    if answer.text != answer.text.strip():
        yield replace(turn, answer=replace(answer, text=answer.text.strip()))
