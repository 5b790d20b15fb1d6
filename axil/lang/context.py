"""Which backend answers: the innermost `use_backend` of the current context, never a global."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from runtime.engine import Engine

from .backend import Backend
from .backends.in_process import InProcess
from .errors import WrongUse

_current: ContextVar[Backend | None] = ContextVar("axil_backend", default=None)


@contextmanager
def use_backend(backend: Backend | Engine) -> Iterator[None]:
    """Answer the calls of all programs that are run inside this `with` by `backend`. Threads don't share it."""
    token = _current.set(as_backend(backend))
    try:
        yield
    finally:
        _current.reset(token)


def as_backend(backend: Backend | Engine) -> Backend:
    """A backend as it is; an engine, wrapped into one."""
    return InProcess(backend) if isinstance(backend, Engine) else backend


def current_backend() -> Backend:
    """The innermost `use_backend`'s.

    Raises:
        WrongUse: there is none.
    """
    backend = _current.get()
    if backend is None:
        raise WrongUse(
            "no backend has been chosen. Run the program inside `with axil.use_backend(…)`, or use"
            " `program.using(backend=…)`."
        )
    return backend
