"""Writes what the scheduler was asked into a file, for `axil replay` and the simulator: lengths, times, what is shared.

The scheduler's loop only takes notes; hashing and writing have a thread of their own behind a queue of bounded length.
When it is full, a request is left out; when the file can't be written, recording ends; serving goes on in both cases.
Knows no text: token ids are written only when they are asked for.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import logging
import os
import queue
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple

from radix.journal import chained, hash_of_namespace
from wire.messages.to_tokenizer import Done, Tokens
from wire.recording import BLOCK_TOKENS, RecordedRequest, encode_row

from .request import Request
from .salts import salt_digest
from .sequences import Sequences
from .sessions import RENDERED_TOKENS
from .state import Reply

log = logging.getLogger(__name__)

QUEUE_REQUESTS = 1024
"""Requests that may wait to be written."""

_MOST_BLOCKS = 1 << 18
_MOST_TOKENS = 8 << 20
_CLOSE_S = 0.4


class _Span(NamedTuple):
    """What later rows need to know of one."""

    prompt_tokens: int
    ended_s: float
    session: int


@dataclass(slots=True)
class _Note:
    """What the loop has seen of a request; times are of its clock."""

    request: Request
    first_token_s: float | None = None
    ended_s: float = 0.0
    end: str = ""


class Recorder:
    """Records into `path`, or where that exists into the first of `path`.1, `path`.2, … that doesn't."""

    def __init__(self, path: Path, *, pool_tokens: int, with_ids: bool, now_s: float) -> None:
        """Open the file and start the thread; `close` ends both.

        Raises:
            OSError: the file can't be made.
        """
        file, self.path = _new_file(path)
        log.info("recording requests into %s", self.path)
        self._notes: dict[str, _Note] = {}
        self._queue: queue.Queue[_Note | None] = queue.Queue(QUEUE_REQUESTS)
        self._rows = _Rows(pool_tokens=pool_tokens, with_ids=with_ids, began_s=now_s)
        self._num_left_out = 0
        self._is_broken = False
        self._thread = threading.Thread(target=self._write, args=(file,), name="recorder", daemon=True)
        self._thread.start()

    def accepted(self, request: Request) -> None:
        """A request was queued."""
        if not self._is_broken:
            self._notes[request.request_id] = _Note(request)

    def told(self, replies: Sequence[Reply], *, now_s: float) -> None:
        """These replies go out now; those that end a request have it written."""
        for reply in replies:
            match reply.message:
                case Tokens(request_id=request_id, reuse=reuse) if reuse is not None:
                    if (note := self._notes.get(request_id)) is not None:
                        note.first_token_s = now_s
                case Done(request_id=request_id, reason=reason):
                    if (note := self._notes.pop(request_id, None)) is not None:
                        note.ended_s, note.end = now_s, reason
                        self._put(note)

    def close(self) -> None:
        """Write what waits, for a moment at most, and end the thread."""
        with contextlib.suppress(queue.Full):
            self._queue.put(None, timeout=_CLOSE_S)
        self._thread.join(_CLOSE_S)
        if self._num_left_out:
            log.warning("recording left out requests=%d, because writing was too slow", self._num_left_out)

    def _put(self, note: _Note) -> None:
        try:
            self._queue.put_nowait(note)
        except queue.Full:
            self._num_left_out += 1
            if self._num_left_out == 1:
                log.warning("recording into %s is too slow: requests are left out", self.path)

    def _write(self, file: BinaryIO) -> None:
        try:
            with file:
                while (note := self._queue.get()) is not None:
                    file.write(encode_row(self._rows.row(note)) + b"\n")
                    file.flush()
        except OSError as error:
            self._is_broken = True
            log.error("recording into %s has ENDED: %s. Serving goes on.", self.path, error.strerror)
            while self._queue.get() is not None:
                pass


class _Rows:
    """Makes rows of notes, in the order in which they are written."""

    def __init__(self, *, pool_tokens: int, with_ids: bool, began_s: float) -> None:
        self._with_ids = with_ids
        self._began_s = began_s
        self._numbers = itertools.count()
        # What four pools ago was last asked for, hardly any cache has.
        self._sequences = Sequences(most_tokens=min(4 * pool_tokens, _MOST_TOKENS))
        self._spans: OrderedDict[int, _Span] = OrderedDict()
        self._blocks: OrderedDict[int, int] = OrderedDict()
        self._block_numbers = itertools.count()

    def row(self, note: _Note) -> RecordedRequest:
        """The next row."""
        request, number = note.request, next(self._numbers)
        nothing = hash_of_namespace(request.namespace)
        follows, shared_tokens = self._shared(request, nothing)
        self._sequences.add(number, nothing, request.token_ids)
        session = self._session(number, follows, shared_tokens)
        self._spans[number] = _Span(request.prompt_tokens, note.ended_s, session)
        if len(self._spans) > _MOST_BLOCKS:
            self._spans.popitem(last=False)
        reuse = request.reuse
        first_s = note.first_token_s
        return RecordedRequest(
            timestamp=round(1e3 * (request.arrived_s - self._began_s)),
            input_length=request.prompt_tokens,
            output_length=request.output_tokens,
            hash_ids=self._hash_ids(request, nothing),
            row=number,
            follows=follows,
            shared_tokens=shared_tokens,
            session=session,
            salt=salt_digest(request.namespace.salt) if request.namespace.salt else "",
            cached_tokens=None if reuse is None else reuse.cached_tokens,
            ttft_ms=None if first_s is None else round(1e3 * (first_s - request.arrived_s), 3),
            latency_ms=round(1e3 * (note.ended_s - request.arrived_s), 3),
            end=note.end,
            cause=None if reuse is None or reuse.miss is None else reuse.miss.cause,
            prompt_ids=tuple(request.prompt_ids.tolist()) if self._with_ids else None,
        )

    def _shared(self, request: Request, nothing: int) -> tuple[int | None, int]:
        """The row that the prompt begins like, and how far: not into an answer that came after the prompt."""
        found = self._sequences.longest(nothing, request.prompt_ids)
        if found is None or found[0] not in self._spans:
            return None, 0
        follows, shared_tokens = found
        span = self._spans[follows]
        if span.ended_s > request.arrived_s:
            shared_tokens = min(shared_tokens, span.prompt_tokens)
        return (follows, shared_tokens) if shared_tokens else (None, 0)

    def _session(self, number: int, follows: int | None, shared_tokens: int) -> int:
        """The session of the row whose whole prompt this one begins with; else one of its own."""
        span = None if follows is None else self._spans.get(follows)
        return number if span is None or shared_tokens < span.prompt_tokens - RENDERED_TOKENS else span.session

    def _hash_ids(self, request: Request, nothing: int) -> tuple[int, ...]:
        """Small numbers of the prompt's blocks; the last one may be partly filled."""
        prompt = request.prompt_ids
        hashes = chained(nothing, prompt.tobytes(), page_tokens=BLOCK_TOKENS)
        if rest := len(prompt) % BLOCK_TOKENS:
            hashes += chained(hashes[-1] if hashes else nothing, prompt[-rest:].tobytes(), page_tokens=rest)
        return tuple(map(self._block, hashes))

    def _block(self, hashed: int) -> int:
        number = self._blocks.pop(hashed, None)
        self._blocks[hashed] = number = next(self._block_numbers) if number is None else number
        if len(self._blocks) > _MOST_BLOCKS:
            self._blocks.popitem(last=False)
        return number


def _for_its_owner(name: str, flags: int) -> int:
    """Open a file that nobody else can read: prompts may be in it."""
    return os.open(name, flags, 0o600)


def _new_file(path: Path) -> tuple[BinaryIO, Path]:
    """A file that nobody had, so that no recording is overwritten; a directory is no recording, and has none beside."""
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    for number in itertools.count():
        name = path if not number else path.with_name(f"{path.name}.{number}")
        with contextlib.suppress(FileExistsError):
            return open(name, "xb", opener=_for_its_owner), name
    raise AssertionError("counting does not end")
