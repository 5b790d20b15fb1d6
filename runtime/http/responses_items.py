"""The output items of `/v1/responses`, and the events that tell of them as they grow. Knows no request."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from runtime.text.pieces import Arguments, Call, Piece, Text, Thought

Item = dict[str, object]


class Items:
    """The items of one answer so far; `new_id` gives ids with a prefix, `new_call_id` those of calls.

    `spaces` has the namespace and the name in it of functions that are in one. `output` are the whole items. Events
    have no sequence numbers yet.
    """

    def __init__(
        self, new_id: Callable[[str], str], new_call_id: Callable[[], str], spaces: Mapping[str, tuple[str, str]]
    ) -> None:
        self._new_id = new_id
        self._new_call_id = new_call_id
        self._spaces = spaces
        self._kind: type[Piece] | None = None
        self._id = ""
        self._texts: list[str] = []
        self._call: Item = {}
        self._logprobs: list[dict[str, object]] = []
        self.output: list[Item] = []

    def add(self, piece: Piece, logprobs: Sequence[dict[str, object]] = ()) -> Iterator[dict[str, object]]:
        """Add a piece; gives the events that tell of it."""
        match piece:
            case Call():
                yield from self.close()
                yield from self._open_call(piece)
                yield from self._more_arguments(piece.arguments, is_last=piece.is_whole)
            case Arguments():
                yield from self._more_arguments(piece.text, is_last=piece.is_last)
            case Text() | Thought():
                if self._kind is not type(piece):
                    yield from self.close()
                    yield from self._open(type(piece))
                self._texts.append(piece.text)
                self._logprobs += logprobs
                more = {"logprobs": list(logprobs)} if isinstance(piece, Text) else {}
                yield self._event(f"{self._text_event}.delta", content_index=0, delta=piece.text, **more)

    def close(self, *, is_whole: bool = True) -> Iterator[dict[str, object]]:
        """End the item that is open, if one is; gives the events that say so."""
        if self._kind is None:
            return
        if self._kind is Call:  # its last arguments have not come
            yield from self._close_call("incomplete")
            return
        text = "".join(self._texts)
        more = {"logprobs": self._logprobs} if self._kind is Text else {}
        yield self._event(f"{self._text_event}.done", content_index=0, text=text, **more)
        part, item = self._part(text), self._item([self._part(text)], "completed" if is_whole else "incomplete")
        yield self._event("response.content_part.done", content_index=0, part=part)
        yield {"type": "response.output_item.done", "output_index": len(self.output), "item": item}
        self.output.append(item)
        self._kind = None

    def _open(self, kind: type[Piece]) -> Iterator[dict[str, object]]:
        self._kind, self._texts, self._logprobs = kind, [], []
        self._id = self._new_id("msg" if kind is Text else "rs")
        item = self._item([], "in_progress")
        yield {"type": "response.output_item.added", "output_index": len(self.output), "item": item}
        yield self._event("response.content_part.added", content_index=0, part=self._part(""))

    def _open_call(self, call: Call) -> Iterator[dict[str, object]]:
        self._kind, self._texts, self._logprobs = Call, [], []
        self._id = self._new_id("fc")
        space, name = self._spaces.get(call.name, (None, call.name))
        self._call = {
            "id": self._id,
            "type": "function_call",
            "call_id": self._new_call_id(),
            "name": name,
            **({} if space is None else {"namespace": space}),
            "arguments": "",
            "status": "in_progress",
        }
        yield {"type": "response.output_item.added", "output_index": len(self.output), "item": self._call}

    def _more_arguments(self, text: str, *, is_last: bool) -> Iterator[dict[str, object]]:
        self._texts.append(text)
        if text:
            yield self._event("response.function_call_arguments.delta", delta=text)
        if is_last:
            yield from self._close_call("completed")

    def _close_call(self, status: str) -> Iterator[dict[str, object]]:
        arguments = "".join(self._texts)
        yield self._event("response.function_call_arguments.done", name=self._call["name"], arguments=arguments)
        item = self._call | {"arguments": arguments, "status": status}
        yield {"type": "response.output_item.done", "output_index": len(self.output), "item": item}
        self.output.append(item)
        self._kind = None

    @property
    def _text_event(self) -> str:
        return "response.output_text" if self._kind is Text else "response.reasoning_text"

    def _event(self, kind: str, **more: object) -> dict[str, object]:
        return {"type": kind, "item_id": self._id, "output_index": len(self.output), **more}

    def _part(self, text: str) -> dict[str, object]:
        if self._kind is Thought:
            return {"type": "reasoning_text", "text": text}
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": self._logprobs if text else []}

    def _item(self, content: list[dict[str, object]], status: str) -> Item:
        if self._kind is Thought:
            return {"id": self._id, "type": "reasoning", "summary": [], "content": content, "status": status}
        return {"id": self._id, "type": "message", "role": "assistant", "content": content, "status": status}
