"""What a simulation is asked: sessions of turns, each sent when the one before was answered and thought about.

Token ids are little-endian int32 in bytes, as in messages. Knows no scheduler and no clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

TOKEN_BYTES = 4
LARGEST_ID = 2**31 - 1

TokenIds = npt.NDArray[np.int32]


def _nothing() -> Sequence[Turn]:
    """No turn follows."""
    return ()


@dataclass(frozen=True, slots=True, eq=False)
class Turn:
    """One request: its prompt, the tokens that the runner will "sample", and the pause before it is sent.

    The pause counts from the answer that it builds on. `salt` separates caches. `follow` is called once, when the
    answer is there, for the turns that come then.
    """

    prompt: bytes
    output: TokenIds
    think_s: float = 0.0
    salt: str = ""
    follow: Callable[[], Sequence[Turn]] = _nothing

    @property
    def prompt_tokens(self) -> int:
        """The prompt's length."""
        return len(self.prompt) // TOKEN_BYTES

    @property
    def head(self) -> bytes:
        """The prompt's first token: prompts that differ in it share nothing."""
        return self.prompt[:TOKEN_BYTES]


@dataclass(frozen=True, slots=True, eq=False)
class Session:
    """Turns that begin it; the others follow. With `is_private` no other session shares its prompts' first token."""

    turns: Sequence[Turn]
    start_s: float = 0.0
    is_private: bool = False


@dataclass(frozen=True, slots=True)
class Workload:
    """Sessions in the order in which they start: at their own times, or `concurrency` of them open at any time."""

    sessions: Iterable[Session]
    concurrency: int | None = None


def to_bytes(token_ids: TokenIds) -> bytes:
    """Token ids as messages carry them."""
    return token_ids.astype("<i4", copy=False).tobytes()


def one_by_one(turns: Iterator[Turn], *, start_s: float = 0.0, is_private: bool = False) -> Session | None:
    """A session of turns that each wait for the answer to the one before; they are made when they are needed."""

    def following() -> Sequence[Turn]:
        found = next(turns, None)
        if found is None:
            return ()
        return (Turn(found.prompt, found.output, found.think_s, found.salt, following),)

    first = following()
    return Session(first, start_s, is_private) if first else None
