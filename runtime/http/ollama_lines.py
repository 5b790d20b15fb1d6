"""What Ollama's routes answer: lines of JSON, each with what is new, the last with the figures. Reads no request."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

import orjson

from runtime.generation import Delta, End, Generation
from runtime.text.pieces import Call, Piece, Text, Thought
from wire.errors import AxilError, Cancelled

from .chat_turn import Step
from .errors import status_of
from .events import Ending

OLLAMA_PATH = "/api/"
CONTENT_TYPE = "application/x-ndjson"
HEADERS = {"Content-Type": CONTENT_TYPE, "Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
_NS = 1_000_000_000


def ollama_error(status: int, message: str, *, code: str | None, param: str | None = None) -> dict[str, object]:
    """The body of an error."""
    return {"error": message}


def _line(body: Mapping[str, object]) -> bytes:
    return orjson.dumps(body) + b"\n"


def _bad_ending(error: AxilError) -> Sequence[bytes]:
    return (_line(ollama_error(status_of(error), error.message, code=error.code)),)


ENDING = Ending(good=(), bad=_bad_ending)


@dataclass(slots=True)
class Said:
    """What an answer says, or a line of it."""

    text: str = ""
    thought: str = ""
    calls: list[dict[str, object]] = field(default_factory=list)

    def add(self, pieces: Sequence[Piece]) -> None:
        """Take more of it."""
        for piece in pieces:
            match piece:
                case Text():
                    self.text += piece.text
                case Thought():
                    self.thought += piece.text
                case Call():
                    arguments = orjson.loads(piece.arguments)
                    self.calls.append({"function": {"name": piece.name, "arguments": arguments}})


Form = Callable[[Said], dict[str, object]]
"""How a route tells it."""


def as_message(said: Said) -> dict[str, object]:
    """As a chat's."""
    message: dict[str, object] = {"role": "assistant", "content": said.text}
    if said.thought:
        message["thinking"] = said.thought
    if said.calls:
        message["tool_calls"] = said.calls
    return {"message": message}


def as_response(said: Said) -> dict[str, object]:
    """As a single prompt's."""
    response: dict[str, object] = {"response": said.text}
    return response | ({"thinking": said.thought} if said.thought else {})


def plain_step(delta: Delta) -> Step:
    """A delta of an answer that is nothing but text.

    Raises:
        Cancelled: somebody aborted it.
    """
    if delta.end is not None and delta.end.reason == "cancelled":
        raise Cancelled(delta.end.message or "the request was aborted.")
    return Step([Text(delta.text)] if delta.text else [], [], delta.end)


def loaded(model: str, form: Form) -> dict[str, object]:
    """The answer to who asks for nothing but that the model be there."""
    return {"model": model, "created_at": _now(), **form(Said()), "done": True, "done_reason": "load"}


class Lines:
    """The lines of one answer, or all of it as one; `step` reads its deltas."""

    def __init__(self, model: str, generation: Generation, step: Callable[[Delta], Step], form: Form) -> None:
        self._model = model
        self._generation = generation
        self._step = step
        self._form = form
        self._end: End | None = None

    def of(self, i: int, delta: Delta) -> Sequence[bytes]:
        """The line of a delta that has something to tell."""
        said = self._taken(delta)
        if said == Said():
            return ()
        return (_line({**self._head(), **self._form(said), "done": False}),)

    def last(self) -> Sequence[bytes]:
        """The line with the figures."""
        return (_line(self._whole(Said())),)

    async def together(self) -> dict[str, object]:
        """The whole answer."""
        whole = Said()
        async for delta in self._generation:
            said = self._taken(delta)
            whole = Said(whole.text + said.text, whole.thought + said.thought, [*whole.calls, *said.calls])
        return self._whole(whole)

    def _taken(self, delta: Delta) -> Said:
        step, said = self._step(delta), Said()
        self._end = step.end
        said.add(step.pieces)
        return said

    def _head(self) -> dict[str, object]:
        return {"model": self._model, "created_at": _now()}

    def _whole(self, said: Said) -> dict[str, object]:
        generation, times = self._generation, self._generation.times
        first_s = times.elapsed_s if times.first_s is None else times.first_s
        return {
            **self._head(),
            **self._form(said),
            "done": True,
            "done_reason": "length" if self._end is not None and self._end.reason == "length" else "stop",
            "total_duration": round(times.elapsed_s * _NS),
            "load_duration": 0,
            "prompt_eval_count": len(generation.prompt.token_ids),
            "prompt_eval_duration": round(first_s * _NS),
            "eval_count": len(generation.output_ids),
            "eval_duration": round((times.elapsed_s - first_s) * _NS),
        }


def _now() -> str:
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")
