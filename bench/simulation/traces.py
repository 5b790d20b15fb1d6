"""Recorded traffic as sessions: Mooncake's block hashes, and sessions of a coding agent. Reads files, knows no text.

Equal block ids stand for equal tokens, so each block is given token ids of its own.

Mooncake and our own: see `wire.recording`. Sessions: gzipped JSON lines {"block_size", "requests": [{"type", "t", "in",
"out", "keep", "new": [[first, count], ...], "think_time", "api_time"}]}; a request's blocks are the first `keep` of the
one before it and then the runs in `new`. An entry of type "subagent" nests requests of its own. Block ids mean
something inside one session only.
"""

from __future__ import annotations

import gzip
import itertools
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.command import CannotMeasure
from bench.simulation.workload import LARGEST_ID, Session, TokenIds, Turn, one_by_one, to_bytes
from runtime.recorded_prompts import RecordedPrompts
from wire.recording import BLOCK_TOKENS, RecordedRequest


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AgentRequest:
    """One request of an agent's session; `think_s` passes between the answer before and this request,
    `gap_s` between the request before and this one.

    `tokens` are those of its whole blocks; the first `kept_tokens` equal those of request number `follows`.
    """

    number: int
    follows: int

    prompt_tokens: int
    output_tokens: int
    think_s: float
    gap_s: float
    tokens: TokenIds
    kept_tokens: int


@dataclass(frozen=True, slots=True)
class AgentSession:
    """The lines of one session; requests are restored on demand, because their prompts are long."""

    block_tokens: int
    entries: Sequence[Mapping[str, Any]]

    @property
    def num_tokens(self) -> int:
        """One more than the highest token id."""
        return _num_blocks(self.entries) * self.block_tokens

    def requests(self, first_id: int = 0) -> Iterator[AgentRequest]:
        """In order, with ids from `first_id` on; a sub-agent's stand where it was started and are waited for."""
        return _restored(self.entries, self.block_tokens, first_id, itertools.count())


def read_sessions(path: Path, *, num_sessions: int, seed: int) -> list[AgentSession]:
    """So many sessions of a file, drawn without repetition by the seed; all of them, shuffled, when it has fewer.

    Raises:
        CannotMeasure: the file is absent or holds something else.
    """
    try:
        with gzip.open(path, "rb") as lines:
            rows = [json.loads(line) for line in lines]
        drawn = random.Random(seed).sample(rows, min(num_sessions, len(rows)))
        return [AgentSession(row["block_size"], row["requests"]) for row in drawn]
    except OSError as error:
        raise CannotMeasure(f"--sessions: {path} can't be read: {error}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise CannotMeasure(f"--sessions: {path} holds no sessions: {error!r}") from error


def recorded_sessions(trace: Sequence[RecordedRequest], *, speed: float) -> Iterator[Session]:
    """Every request of a recording of ours at its recorded time divided by `speed`.

    What its prompt shares with others it shares to the token, and an answer that was continued is so again.
    """
    fresh = _Fresh(0)
    prompts = RecordedPrompts(trace, lambda _, count: fresh.tokens(count))
    first_ms = trace[0].timestamp
    for place, row in enumerate(trace):
        prompt = prompts.prompt(place)
        output = fresh.tokens(max(1, row.output_length))
        prompts.tell_answer(place, output)
        turn = Turn(to_bytes(prompt), output, salt=row.salt)
        yield Session((turn,), (row.timestamp - first_ms) / 1000 / speed)


def mooncake_sessions(trace: Sequence[RecordedRequest], *, speed: float) -> Iterator[Session]:
    """Every request at its recorded time divided by `speed`; its output is its own."""
    num_blocks = 1 + max(max(row.hash_ids) for row in trace)
    fresh = _Fresh(num_blocks * BLOCK_TOKENS)
    first_ms = trace[0].timestamp
    for row in trace:
        prompt = tokens_of_blocks(row.hash_ids)[: row.input_length]
        turn = Turn(to_bytes(prompt), fresh.tokens(max(1, row.output_length)))
        yield Session((turn,), (row.timestamp - first_ms) / 1000 / speed)


def agent_sessions(sessions: Sequence[AgentSession], *, most_think_s: float) -> Iterator[Session]:
    """Sessions in closed loop, with pauses of at most `most_think_s`.

    Where the next prompt extends the present one, the answer is what the next prompt holds there, as it is when an
    agent sends its history again; else it is tokens of its own.
    """
    fresh = _Fresh(0)
    for session in sessions:
        first = fresh.reserve(session.num_tokens)
        made = one_by_one(_turns(session, fresh, first, most_think_s), is_private=True)
        if made is not None:
            yield made


def tokens_of_blocks(blocks: Sequence[int]) -> TokenIds:
    """The tokens of Mooncake's blocks, one after the other."""
    starts: TokenIds = np.array(blocks, dtype=np.int32) * np.int32(BLOCK_TOKENS)
    tokens = starts[:, None] + np.arange(BLOCK_TOKENS, dtype=np.int32)
    return tokens.astype(np.int32, copy=False).reshape(-1)


@dataclass(slots=True)
class _Fresh:
    """Token ids that nobody has had."""

    next_id: int

    def reserve(self, count: int) -> int:
        """The first of so many ids."""
        first = self.next_id
        self.next_id += count
        if self.next_id > LARGEST_ID:
            raise CannotMeasure("the trace has more tokens than there are ids of 31 bits; take fewer sessions")
        return first

    def tokens(self, count: int) -> TokenIds:
        """So many of them."""
        first = self.reserve(count)
        return np.arange(first, first + count, dtype=np.int32)


def _turns(session: AgentSession, fresh: _Fresh, first_id: int, most_think_s: float) -> Iterator[Turn]:
    requests = session.requests(first_id)
    present = next(requests, None)
    while present is not None:
        following = next(requests, None)
        known = len(present.tokens)
        wanted = present.prompt_tokens + present.output_tokens - known
        tokens = [present.tokens]
        if following is not None and following.follows == present.number and following.kept_tokens == known:
            tokens.append(following.tokens[known : known + wanted])
            wanted -= len(tokens[-1])
        tokens.append(fresh.tokens(wanted))
        whole = np.concatenate(tokens)
        prompt, output = whole[: present.prompt_tokens], whole[present.prompt_tokens :]
        yield Turn(to_bytes(prompt), output, min(present.think_s, most_think_s))
        present = following


def _restored(
    entries: Sequence[Mapping[str, Any]], block_tokens: int, first_id: int, numbers: Iterator[int]
) -> Iterator[AgentRequest]:
    follows = -1
    blocks_tokens = np.empty(0, np.int32)
    asked_s = answered_s = 0.0
    for entry in entries:
        if entry["type"] == "subagent":
            yield from _restored(entry["requests"], block_tokens, first_id, numbers)
            continue
        kept_tokens = entry["keep"] * block_tokens
        runs = [(first_id + first * block_tokens, count * block_tokens) for first, count in entry["new"]]
        added = [np.arange(first, first + count, dtype=np.int32) for first, count in runs]
        blocks_tokens = np.concatenate([blocks_tokens[:kept_tokens], *added])
        think_s = entry.get("think_time")
        if think_s is None:
            think_s = max(0.0, entry["t"] - answered_s)
        gap_s = max(0.0, entry["t"] - asked_s)
        asked_s = entry["t"]
        answered_s = asked_s + (entry.get("api_time") or 0.0)
        number = next(numbers)
        yield AgentRequest(
            number=number,
            follows=follows,
            prompt_tokens=max(1, entry["in"]),
            output_tokens=max(1, entry["out"]),
            think_s=think_s,
            gap_s=gap_s,
            tokens=blocks_tokens[: entry["in"]],
            kept_tokens=kept_tokens,
        )
        follows = number


def _num_blocks(entries: Sequence[Mapping[str, Any]]) -> int:
    most = 0
    for entry in entries:
        if entry["type"] == "subagent":
            most = max(most, _num_blocks(entry["requests"]))
        else:
            most = max([most, *(first + count for first, count in entry["new"])])
    return most
