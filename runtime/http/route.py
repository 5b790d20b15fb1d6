"""What a route is: where it stands, who may ask, and what its body may be. Each API's module lists its own.

The application is built from the list, and so is the OpenAPI document: a route can't be in one and not in the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from aiohttp.typedefs import Handler

from .schema import Schema

Access = Literal["open", "user", "admin"]
Method = Literal["GET", "POST", "PUT", "DELETE"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One method of one path; the handler's docstring is its description.

    `access` "open" needs no key, "user" the API key, "admin" the admin key. `is_work` is refused while the server
    drains or stops. A handler that reads a body has its schema in `body`, and `examples` of it. `query` describes what
    may stand behind the path's question mark. `answer` is the content type of a good answer; None where there is none,
    because the route only says why it is not offered.
    """

    method: Method
    path: str
    handler: Handler
    access: Access = "user"
    is_work: bool = False
    body: Schema | None = None
    examples: tuple[dict[str, object], ...] = ()
    query: Schema | None = None
    answer: str | None = "application/json"
