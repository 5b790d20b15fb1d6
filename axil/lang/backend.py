"""What a program needs of the place that answers its calls: one protocol and the values that cross it.

Those that every call makes are msgspec structs, which are made in a fraction of the time, and outside of what the
garbage collector looks at. Knows no HTTP and no engine; those stand in `backends/`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from msgspec import Struct

from .home import Home
from .turns import Turns

Role = Literal["system", "user", "assistant"]


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a chat."""

    role: Role
    content: str


class Prompt(Struct, frozen=True, kw_only=True, gc=False):
    """What is to be continued: plain `text`, or a chat whose open turn of `role` has `text` so far.

    >>> Prompt(text="Once").key
    'Once'
    """

    text: str
    role: Role | None = None
    messages: tuple[Message, ...] = ()

    @property
    def key(self) -> str:
        """A string that orders prompts so that those with a common beginning stand side by side."""
        if self.role is None:
            return self.text
        turns = "".join(f"{message.role}\x00{message.content}\x00" for message in self.messages)
        return f"{turns}{self.role}\x00{self.text}"


class Wish(Struct, frozen=True, kw_only=True, gc=False):
    """How a call wants its tokens chosen; None leaves it to the backend.

    `regex` and `json_schema` force the answer's form; `likely_regex` does where neither is given and the backend can.
    `num_top_logprobs` None means no logprobs.
    """

    max_tokens: int | None = None
    min_tokens: int | None = None
    n: int = 1
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    stop_regex: tuple[str, ...] = ()
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: tuple[tuple[int, float], ...] = ()
    seed: int | None = None
    ignore_eos: bool | None = None
    regex: str | None = None
    json_schema: str | None = None
    likely_regex: str | None = None
    num_top_logprobs: int | None = None

    @property
    def forced_regex(self) -> str | None:
        """The pattern that a backend which can do so has to follow."""
        return self.likely_regex if self.regex is None and self.json_schema is None else self.regex


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token of an answer with its logprob and the most likely tokens in its place.

    Engines and axil servers tell its text and its id, OpenAI's API its text; `top` has ids from an engine, else texts.
    """

    text: str | None
    logprob: float
    top: tuple[tuple[str | int, float], ...] = ()
    token_id: int | None = None


class Usage(Struct, frozen=True, kw_only=True, gc=False):
    """Tokens of a call; `cached_tokens` is None where the backend doesn't tell."""

    prompt_tokens: int = 0
    cached_tokens: int | None = None
    completion_tokens: int = 0


class Answer(Struct, frozen=True, kw_only=True, gc=False):
    """What came back from a call: one text for each of its `n` samples."""

    texts: tuple[str, ...]
    finish_reasons: tuple[str, ...]
    usage: Usage
    logprobs: tuple[tuple[TokenLogprob, ...], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """The tokens of one choice, as a continuation of a prompt, with their logprobs."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """All choices of a prompt, each scored from the first token at which any of them departs from the prompt's."""

    choices: tuple[Scored, ...]
    usage: Usage


class Backend(Protocol):
    """A place that answers calls. Its coroutines all run on one event loop, and one call's failure hurts no other.

    Each raises `AxilError` when a call can't be answered; `Unsupported` when it never can be, here.
    """

    @property
    def home(self) -> Home:
        """The event loop that its coroutines run on."""
        ...

    @property
    def turns(self) -> Turns:
        """Lets its calls go, at most so many at a time, in an order that suits the tree."""
        ...

    async def generate(self, prompt: Prompt, wish: Wish, put: Callable[[str], None] | None) -> Answer:
        """Continue a prompt; `put`, if given, takes the first sample's text, piece by piece, as it grows."""
        ...

    async def score(self, prompt: Prompt, choices: Sequence[str]) -> Scores:
        """Give the logprobs of each choice's tokens behind the prompt."""
        ...

    async def score_alone(self, token_ids: Sequence[Sequence[int]]) -> Scores:
        """Give the logprobs of each list's tokens with nothing before them; that of a first token counts as 0."""
        ...
