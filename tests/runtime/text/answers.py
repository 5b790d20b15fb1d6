"""Reads answers whole and in pieces, for the tests of what reads them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Protocol

from runtime.text.pieces import Arguments, Call, Piece, Text, Thought


class Reader(Protocol):
    def push(self, text: str) -> list[Piece]: ...

    def flush(self) -> list[Piece]: ...


def read(reader: Reader, text: str, cuts: Sequence[int] = ()) -> list[Piece]:
    """The pieces of `text` when it comes cut at `cuts`, with neighbours of a kind joined."""
    places = [0, *sorted(cut % (len(text) + 1) for cut in cuts), len(text)]
    pieces = [piece for i in range(len(places) - 1) for piece in reader.push(text[places[i] : places[i + 1]])]
    joined: list[Piece] = []
    for piece in [*pieces, *reader.flush()]:
        match (joined[-1] if joined else None), piece:
            case Text(before), Text(text):
                joined[-1] = Text(before + text)
            case Thought(before), Thought(text):
                joined[-1] = Thought(before + text)
            case _:
                joined.append(piece)
    assert all(piece.text for piece in joined if not isinstance(piece, Call))
    return joined


def whole_calls(pieces: Sequence[Piece]) -> list[Piece]:
    """The pieces with the arguments of each call joined to it, and spaced as those of whole calls are."""
    joined: list[Piece] = []
    for piece in pieces:
        if isinstance(piece, Arguments):
            call = joined[-1]
            assert isinstance(call, Call) and not call.is_whole
            text = call.arguments + piece.text
            text = json.dumps(json.loads(text), ensure_ascii=False) if piece.is_last else text
            joined[-1] = Call(call.name, text, is_whole=piece.is_last)
        else:
            joined.append(piece)
    return joined
