"""The errors that travel to a client. Knows no routes and no response shapes.

AxilError                status
├── Refused              400   the request is wrong
│   ├── PromptTooLong    400
│   ├── UnknownModel     404
│   ├── NotFound         404
│   ├── NotOffered       400
│   └── DuplicateId      409
├── UnknownKey           401   no key, or none of this server's
├── NotAllowed           403   for operators only
├── Overloaded           429   the queue is full
├── Unavailable          503   starting or stopping
├── DeadlineExceeded     504   the answer took longer than a request may
├── Cancelled            499   the client went away, or asked to stop
└── Broken               500   our fault
"""

from __future__ import annotations

from typing import ClassVar


class AxilError(Exception):
    """Something that ends one request, with a message written for the person who sent it."""

    status: ClassVar[int] = 500
    code: ClassVar[str] = "internal_error"

    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.field = field


class Refused(AxilError):
    """The request is wrong; the message names field, limit, given value and remedy."""

    status = 400
    code = "invalid_request"


class PromptTooLong(Refused):
    """Prompt and wanted output exceed the context or the KV pool."""

    code = "context_length_exceeded"


class UnknownModel(Refused):
    """The request names a model that this server does not serve."""

    status = 404
    code = "model_not_found"


class NotFound(Refused):
    """What the request names is not there, or not any more."""

    status = 404
    code = "not_found"


class NotOffered(Refused):
    """What is asked for is known, and not among what this server does."""

    code = "not_supported"


class DuplicateId(Refused):
    """A request with this id is still open."""

    status = 409
    code = "duplicate_request_id"


class UnknownKey(AxilError):
    """No API key came with the request, or none of this server's."""

    status = 401
    code = "invalid_api_key"


class NotAllowed(AxilError):
    """What is asked for is the operators' to ask."""

    status = 403
    code = "admin_key_needed"


class Overloaded(AxilError):
    """The queue is full; `retry_after_s` says when to come back."""

    status = 429
    code = "overloaded"

    def __init__(self, message: str, *, retry_after_s: int = 1) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class Unavailable(AxilError):
    """The server is starting or stopping."""

    status = 503
    code = "unavailable"


class DeadlineExceeded(AxilError):
    """The answer took longer than the server lets a request take."""

    status = 504
    code = "deadline_exceeded"


class Cancelled(AxilError):
    """The client went away, or somebody aborted the request."""

    status = 499
    code = "cancelled"


class Broken(AxilError):
    """Our fault: a process died, or the model gave no usable logits."""

    status = 500
    code = "internal_error"


def counted(number: int, noun: str) -> str:
    """A number and what it counts, for a message: `1 token`, `2 tokens`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


_ALL: tuple[type[AxilError], ...] = (
    Refused,
    PromptTooLong,
    UnknownModel,
    NotFound,
    NotOffered,
    DuplicateId,
    UnknownKey,
    NotAllowed,
    Overloaded,
    Unavailable,
    DeadlineExceeded,
    Cancelled,
    Broken,
)
BY_CODE: dict[str, type[AxilError]] = {cls.code: cls for cls in _ALL}
