"""The life of one answer to a chat, beneath all APIs: from the chat to its prompt, from deltas to pieces.

What an API adds is how it spells the request, and how it writes pieces.
"""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from runtime.generation import Delta, End, Generation, Prompt, TokenLogprob
from runtime.merged import merged
from runtime.text.answer_form import AnswerReader
from runtime.text.pieces import Arguments, Call, Piece
from wire.errors import Cancelled, Refused
from wire.sampling import MAX_LOGIT_BIAS, SamplingParams

from .chat_prompt import Chat, ChatPrompt, rendered
from .front import Front
from .place import Place


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """A chat ready to be answered."""

    front: Front
    chat: Chat
    prompt: ChatPrompt
    sampling: SamplingParams
    with_thoughts: bool

    @property
    def shown_ids(self) -> frozenset[int]:
        """Special tokens that the reader has to see."""
        return self.front.answer_form.shown_ids if self._is_read else frozenset()

    @property
    def _is_read(self) -> bool:
        return bool(self.chat.tools.allowed) or self.with_thoughts

    def cut_to_context(self) -> Turn:
        """The turn, its answer cut off by the context where the most that it may have goes beyond that."""
        sampling = self.front.generator.cut_to_context(self.sampling, len(self.prompt.token_ids))
        return dataclasses.replace(self, sampling=sampling)

    def reader(self, *, is_streamed: bool) -> AnswerReader:
        """Reads one answer."""
        prompt = self.prompt.text if self.with_thoughts else None
        return self.front.answer_form.reader(tools=self.chat.tools.allowed, prompt=prompt, is_streamed=is_streamed)


@dataclass(frozen=True, slots=True)
class Step:
    """What has come of one answer since the last step; the last one has `end`."""

    pieces: list[Piece]
    logprobs: list[TokenLogprob]
    end: End | None


@dataclass(slots=True)
class Count:
    """What is told of an answer beside its text."""

    thought_tokens: int = 0
    calls: int = 0
    has_whole_call: bool = False


@dataclass(slots=True)
class Answers:
    """The answers to one chat as they come; `counts` has one for each. Calls are told in parts where it is streamed."""

    turn: Turn
    generations: Sequence[Generation]
    is_streamed: bool
    counts: list[Count] = field(init=False)
    _readers: list[AnswerReader] = field(init=False)

    def __post_init__(self) -> None:
        self.counts = [Count() for _ in self.generations]
        self._readers = [self.turn.reader(is_streamed=self.is_streamed) for _ in self.generations]

    async def steps(self) -> AsyncIterator[tuple[int, Step]]:
        """The steps of all answers, each with its answer's index.

        Raises:
            AxilError: one of them failed, or somebody aborted it.
        """
        async for i, delta in merged(self.generations):
            yield i, self.step(i, delta)

    def step(self, i: int, delta: Delta) -> Step:
        """What a delta of the i-th answer brings.

        Raises:
            Cancelled: somebody aborted it.
        """
        reader, count, end = self._readers[i], self.counts[i], delta.end
        if end is not None and end.reason == "cancelled":
            raise Cancelled(end.message or "the request was aborted.")
        num_before = reader.num_thought_characters
        pieces = reader.push(delta.text) if delta.text else []
        if num_thought := reader.num_thought_characters - num_before:
            # Of tokens that came together, the share of their text.
            count.thought_tokens += round(len(delta.token_ids) * num_thought / max(num_thought, len(delta.text)))
        if end is not None:
            pieces += reader.flush()
        if self.turn.chat.tools.is_single:
            pieces = self._up_to_one_call(i, pieces)
        count.calls += sum(isinstance(piece, Call) for piece in pieces)
        return Step(pieces, delta.logprobs, end)

    def _up_to_one_call(self, i: int, pieces: list[Piece]) -> list[Piece]:
        """Who wants one call at a time has the whole answer with it."""
        if self.counts[i].has_whole_call:
            return []
        num = next((k + 1 for k, piece in enumerate(pieces) if _ends_a_call(piece)), 0)
        if not num:
            return pieces
        self.counts[i].has_whole_call = True
        self.generations[i].finish()
        return pieces[:num]

    @property
    def num_thought_tokens(self) -> int:
        """Tokens of thoughts in all answers."""
        return sum(count.thought_tokens for count in self.counts)


def _ends_a_call(piece: Piece) -> bool:
    match piece:
        case Call():
            return piece.is_whole
        case Arguments():
            return piece.is_last
        case _:
            return False


async def prepared(front: Front, chat: Chat, sampling: SamplingParams, *, with_thoughts: bool = True) -> Turn:
    """Render the chat and make the sampling parameters do what its tools ask for.

    Raises:
        Refused: the template does not take the chat, or the model's way of calling tools is not known.
    """
    form, tools = front.answer_form, chat.tools
    prompt = await rendered(front, chat)
    if tools.choice == "required":
        if form.calls is None:
            raise Refused(
                "how this model calls tools is not known, so tool_choice can't force a call. "
                "Start the server with --tool-call-parser, or leave tool_choice out.",
                field="tool_choice",
            )
        if sampling.grammar is not None:
            raise Refused(
                f"tool_choice and {sampling.grammar.field} can't both force the answer. Send one of them.",
                field="tool_choice",
            )
        grammar = form.forced(tools.callable, prompt=prompt.text, is_single=tools.is_single, field="tools")
        sampling = replace(sampling, grammar=grammar)
    elif sampling.grammar is not None and with_thoughts:
        sampling = replace(sampling, grammar=form.behind_thought(sampling.grammar, prompt=prompt.text))
    if tools.choice == "none" and tools.shown:
        # The tools stay in the prompt, so that it is found in the cache; the token that begins a call is ruled out.
        barred = [(token_id, -MAX_LOGIT_BIAS) for token_id in sorted(form.call_ids)]
        sampling = replace(sampling, logit_bias=(*sampling.logit_bias, *barred))
    return Turn(
        front=front,
        chat=chat,
        prompt=prompt,
        sampling=sampling,
        with_thoughts=with_thoughts and form.thoughts is not None,
    )


def prompts_of(turn: Turn, place: Place, *, request_id: str, num_samples: int = 1) -> list[Prompt]:
    """The turn as something to submit, once for each answer; the doctor may look at it from now on."""
    turn.front.window.take(
        turn.chat.messages,
        turn.chat.tools.shown,
        salt=place.salt,
        num_tokens=len(turn.prompt.token_ids),
        text=turn.prompt.text,
    )
    prompt = Prompt(
        token_ids=turn.prompt.token_ids,
        sampling=turn.sampling,
        request_id=request_id,
        salt=place.salt,
        priority=place.priority,
        cache_priority=place.cache_priority,
        cache_ttl_s=place.cache_ttl_s,
        shown_ids=turn.shown_ids,
        source=turn.prompt.source,
    )
    return prompt.samples(num_samples)
