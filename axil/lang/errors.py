"""What goes wrong in a program, as exceptions that name the call and the line that made it."""

from __future__ import annotations

from wire.errors import AxilError, Refused


class ProgramError(AxilError):
    """A call of a program failed; `__cause__` is why. Raised where the call's value is used.

    `is_seen` turns true when it has been raised there.
    """

    code = "program_error"
    is_seen = False


class Unsupported(Refused):
    """What a call asks for can't be had from this backend."""

    code = "unsupported"


class WrongUse(Refused):
    """A program is written in a way that has no meaning; the message says how to write it."""

    code = "wrong_use"
