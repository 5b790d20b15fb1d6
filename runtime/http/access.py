"""Who may ask: API keys, and pages of other origins. Knows no route; each says itself what it needs.

A key comes as `Authorization: Bearer KEY` or as `x-api-key: KEY`, and is compared in a time that tells nothing of it.
"""

from __future__ import annotations

import hmac
import ipaddress
from dataclasses import dataclass

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from wire.errors import NotAllowed, Refused, UnknownKey

from .route import Access
from .schema import shown

_BEARER = "bearer "
_PREFLIGHT_S = "600"
_READABLE = "X-Request-Id, X-Axil-Cache, X-Axil-Normalized, X-Axil-Ignored, Retry-After"
"""Our headers, which a browser shows to a page of another origin only where they are named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Keys:
    """The keys of the server. The admin key opens everything; without one, the API key opens admin routes too."""

    api_key: str | None
    admin_api_key: str | None

    @property
    def all(self) -> tuple[str, ...]:
        """Every key that opens something."""
        return tuple(key for key in (self.api_key, self.admin_api_key) if key is not None)

    def wanted(self, access: Access) -> tuple[str, ...]:
        """The keys that open a route of this kind; none means that it is open."""
        if access == "open":
            return ()
        if access == "admin":
            return self.all[-1:]
        return self.all if self.api_key is not None else ()


KEYS = web.AppKey("keys", Keys)


def is_operator(request: web.Request) -> bool:
    """Whether who asks may do what operators do, such as read other people's prompts.

    Without keys everybody may, but for pages of other origins: what they may read is what they have asked themselves.
    A loopback address under a name that isn't its own counts as another origin.
    """
    keys = request.app[KEYS]
    wanted = keys.wanted("admin")
    if wanted:
        return not _known(request, keys).isdisjoint(wanted)
    return not (_is_of_other_origin(request) or _is_renamed(request))


def guarded(handler: Handler, keys: Keys, access: Access) -> Handler:
    """`handler` for those who bring a key that opens a route of this kind."""
    wanted = keys.wanted(access)
    if not wanted:
        return handler

    async def checked(request: web.Request) -> web.StreamResponse:
        known = _known(request, keys)
        if known.intersection(wanted):
            return await handler(request)
        if known:
            raise NotAllowed("this is for operators, and the API key is a user's. Send the server's --admin-api-key.")
        if _given_keys(request):
            raise UnknownKey("the API key is not one of this server's. Send another in `Authorization` or `x-api-key`.")
        raise UnknownKey("this needs an API key. Send the header `Authorization: Bearer KEY`, or `x-api-key: KEY`.")

    return checked


def not_for_pages(handler: Handler, origins: frozenset[str]) -> Handler:
    """A handler of an operator's wish, which no web page from elsewhere may have a local server do.

    Pages of one of `origins` may; that all origins may read (`*`) does not mean that all may wish.
    """

    async def checked(request: web.Request) -> web.StreamResponse:
        origin = request.headers.get("Origin")
        if origin in origins:
            return await handler(request)
        if _is_of_other_origin(request):
            who = shown(origin) if origin is not None else "another origin"
            raise Refused(f"a page of {who} may not do this. Ask 127.0.0.1 or localhost with curl, for example.")
        if _is_renamed(request):
            raise Refused(
                f"the header Host is {shown(request.host)}; on a loopback address without keys, operators' wishes are "
                "taken under 127.0.0.1 or localhost only, lest a web page makes them. Ask under one of these; behind "
                "a proxy, have it send Host: localhost, or start the server with --admin-api-key."
            )
        return await handler(request)

    return checked


def cross_origin(origins: frozenset[str]) -> Middleware:
    """Let pages of these origins (`*`: of all) read answers, and answer their browsers' questions beforehand."""

    def headers_for(origin: str) -> dict[str, str]:
        allowed = "*" if "*" in origins else origin
        return {
            "Access-Control-Allow-Origin": allowed,
            "Access-Control-Expose-Headers": _READABLE,
            "Vary": "Origin",
        }

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        origin = request.headers.get("Origin")
        if origin is None or not ("*" in origins or origin in origins):
            return await handler(request)
        if request.method == "OPTIONS" and "Access-Control-Request-Method" in request.headers:
            asked = request.headers.get("Access-Control-Request-Headers", "")
            return web.Response(
                status=204,
                headers=headers_for(origin)
                | {
                    "Access-Control-Allow-Methods": "GET, POST, PUT, DELETE",
                    "Access-Control-Allow-Headers": asked or "*",
                    "Access-Control-Max-Age": _PREFLIGHT_S,
                },
            )
        request[EXTRA_HEADERS] = headers_for(origin)
        return await handler(request)

    return middleware


EXTRA_HEADERS = web.RequestKey("extra_headers", dict[str, str])
"""Headers that go with a request's answer, whoever makes it."""


async def add_extra_headers(request: web.Request, response: web.StreamResponse) -> None:
    """Called for each answer before its head is sent; a stream's head goes long before the stream ends."""
    response.headers.update(request.get(EXTRA_HEADERS, {}))


def _is_of_other_origin(request: web.Request) -> bool:
    """Whether a page of another origin asks."""
    origin = request.headers.get("Origin")
    is_other = origin is not None and origin.partition("//")[2] != request.host
    # A page's image or link sends no origin, but says from where it was asked for.
    return is_other or request.headers.get("Sec-Fetch-Site") == "cross-site"


def _is_renamed(request: web.Request) -> bool:
    """Whether a keyless server's loopback address is asked by another name, as by a page whose name was led to it.

    For its browser that page is of this origin, and only the name tells.
    """
    if request.app[KEYS].all:
        return False
    own = request.get_extra_info("sockname")
    if not isinstance(own, tuple) or not _is_loopback(str(own[0])):
        return False
    host = request.host.lower()
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    return not (name == "localhost" or name.endswith(".localhost") or _is_address(name))


def _is_loopback(name: str) -> bool:
    return _is_address(name) and ipaddress.ip_address(name.partition("%")[0]).is_loopback


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        return False
    return True


def _known(request: web.Request, keys: Keys) -> set[str]:
    """The server's keys that a request brings."""
    given = _given_keys(request)
    # All comparisons are made, so that the time does not tell which of the keys came close.
    return {key for key in keys.all for one in given if hmac.compare_digest(one, _bytes(key))}


def _given_keys(request: web.Request) -> list[bytes]:
    authorization = request.headers.get("Authorization", "")
    given = [authorization[len(_BEARER) :]] if authorization[: len(_BEARER)].lower() == _BEARER else []
    given += [request.headers["x-api-key"]] if "x-api-key" in request.headers else []
    return [_bytes(key.strip()) for key in given]


def _bytes(key: str) -> bytes:
    return key.encode("utf-8", errors="surrogateescape")
