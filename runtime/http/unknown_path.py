"""Which path a client means that asks for one that is not there, mostly because of its base URL. Knows no routes."""

from __future__ import annotations

import difflib
from collections.abc import Collection

_CLOSE = 0.85
"""How alike a mistyped path must be, on difflib's scale of 0 to 1."""

_LONGEST_CHARACTERS = 200
"""No path is meant by more than this; comparing takes time that grows with the length."""


def meant_path(path: str, paths: Collection[str]) -> str | None:
    """The one of `paths` that `path` stands for: with a prefix too many or too few, or mistyped; None if there is none.

    >>> paths = ["/v1/chat/completions", "/v1/completions", "/generate", "/"]
    >>> meant_path("/chat/completions", paths), meant_path("/v1/v1/chat/completions/", paths)
    ('/v1/chat/completions', '/v1/chat/completions')
    >>> meant_path("/v1/generate", paths), meant_path("/v1/chat/completion", paths), meant_path("/admin", paths)
    ('/generate', '/v1/chat/completions', None)
    """
    asked = "/" + "/".join(part for part in path.split("/") if part)
    if asked == "/" or len(asked) > _LONGEST_CHARACTERS:
        return None
    known = sorted(paths, key=lambda one: (len(one), one))
    longer = [one for one in known if one.endswith(asked)]
    shorter = [one for one in known if one != "/" and (asked.endswith(one) or asked.startswith(f"{one}/"))]
    if shorter or longer:
        return shorter[-1] if shorter else longer[0]
    close = difflib.get_close_matches(asked, known, n=1, cutoff=_CLOSE)
    return close[0] if close else None


def base_url_hint(path: str, meant: str, origin: str) -> str:
    """What a client's base URL should be when that is what is wrong with `path`; empty when it isn't."""
    if not meant.startswith("/v1/"):
        return ""
    rest = meant.removeprefix("/v1")
    asked = path.rstrip("/")
    if not asked.endswith(rest) or asked == meant:
        return ""
    return f"A client of OpenAI's API wants the base URL {origin}/v1, one of Anthropic's {origin}."
