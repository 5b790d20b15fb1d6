"""The application: which path leads where, who may call, and how an error becomes an answer."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Mapping
from typing import Any

from aiohttp import HttpVersion11, web
from aiohttp.hdrs import METH_ALL
from aiohttp.typedefs import Handler, Middleware

from wire.errors import AxilError, Broken, Refused

from . import (
    admin,
    anthropic_messages,
    belt,
    doctor,
    generate,
    loads,
    not_offered,
    ollama,
    openai_chat,
    openai_completions,
    openapi,
    pausing,
    profiling,
    reading,
    report,
    requests,
    responses,
    score,
    sessions,
    tokenizing,
    tree,
    ui,
)
from .access import KEYS, Keys, add_extra_headers, cross_origin, guarded, not_for_pages
from .anthropic import MESSAGES_PATH, anthropic_error
from .errors import Shape, envelope, error_response, json_response
from .explained import add_cache_header
from .fields import BODY_SCHEMA, add_ignored_header
from .front import FRONT, Front
from .ollama_lines import OLLAMA_PATH, ollama_error
from .route import Route
from .schema import Schema, shown
from .unknown_path import base_url_hint, meant_path

log = logging.getLogger(__name__)

ROUTES: tuple[Route, ...] = (
    *admin.ROUTES,
    *loads.ROUTES,
    *pausing.ROUTES,
    *profiling.ROUTES,
    *doctor.ROUTES,
    *report.ROUTES,
    *requests.ROUTES,
    *belt.ROUTES,
    *tokenizing.ROUTES,
    *sessions.ROUTES,
    *reading.ROUTES,
    *generate.ROUTES,
    *openai_completions.ROUTES,
    *openai_chat.ROUTES,
    *responses.ROUTES,
    *anthropic_messages.ROUTES,
    *ollama.ROUTES,
    *score.ROUTES,
    *tree.ROUTES,
    *ui.ROUTES,
    *not_offered.ROUTES,
    *openapi.ROUTES,
)
"""Everything that this server answers."""

SERVER_OPTIONS: Mapping[str, Any] = {
    "handler_cancellation": True,
    "auto_decompress": False,  # `body_encoding` does it, off the event loop
    "access_log": None,
}
"""How the application is to be served: a client's leaving cancels its request, and no body holds up others."""

_CLIENT_GONE = 499
_PATHS = frozenset(route.path for route in ROUTES if "{" not in route.path)


def build_app(front: Front) -> web.Application:
    """The whole HTTP front, to be served with `SERVER_OPTIONS`."""
    config = front.launch.config
    origins = config.origins
    middlewares: list[Middleware] = [_boundary]
    if origins:
        middlewares.insert(0, cross_origin(origins))
    app = web.Application(middlewares=middlewares, client_max_size=config.max_body_bytes)
    app[FRONT] = front
    app[sessions.SESSIONS] = {}
    app[admin.ROUTE_LIST] = admin.route_list(ROUTES)
    app[tree.OUTLINES] = tree.Outlines()
    app[ui.FILES] = ui.read_files()
    app[openapi.DOCUMENT] = openapi.document(ROUTES, version=str(front.launch.server_info.get("version")))
    app.on_response_prepare.append(add_extra_headers)
    app.on_response_prepare.append(add_cache_header)
    app.on_response_prepare.append(add_ignored_header)
    keys = app[KEYS] = Keys(api_key=config.api_key, admin_api_key=config.admin_api_key)
    for route in ROUTES:
        handler = _handler(route, keys, origins)
        if route.method == "GET":
            app.router.add_get(route.path, handler, expect_handler=_expected)  # HEAD too
        else:
            app.router.add_route(route.method, route.path, handler, expect_handler=_expected)
    return app


async def _expected(request: web.Request) -> None:
    """Have the body sent that its head asks about, but for one that is too large: it is refused without."""
    is_asked = request.headers["Expect"].lower() == "100-continue" and request.version >= HttpVersion11
    if is_asked and (request.content_length or 0) <= request.client_max_size:
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0


def _handler(route: Route, keys: Keys, origins: frozenset[str]) -> Handler:
    """The route's handler behind all that it asks for."""
    handler = _with_schema(route.handler, route.body) if route.body is not None else route.handler
    if route.is_work:
        handler = _admitted(handler)
    if route.access == "admin":
        handler = not_for_pages(handler, origins)
    return guarded(handler, keys, route.access)


def _with_schema(handler: Handler, schema: Schema) -> Handler:
    async def knowing(request: web.Request) -> web.StreamResponse:
        request[BODY_SCHEMA] = schema
        return await handler(request)

    return knowing


@web.middleware
async def _boundary(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turn whatever a handler raises into an answer, give it an id, and count it."""
    status = _CLIENT_GONE
    try:
        response = await _answered(request, handler)
        status = response.status
        if not response.prepared:
            response.headers.setdefault("X-Request-Id", uuid.uuid4().hex)
            if request.app[FRONT].gate.is_closed():
                response.force_close()  # so that balancers and clients connect elsewhere
        return response
    finally:
        resource = request.match_info.route.resource
        route = resource.canonical if resource is not None else "unknown"
        method = request.method if request.method in METH_ALL else "other"  # clients may send any word
        request.app[FRONT].metrics.answered(route, method, status)


def _admitted(handler: Handler) -> Handler:
    """A handler of work, which is only taken while the server can and shall serve."""

    async def admitted(request: web.Request) -> web.StreamResponse:
        front = request.app[FRONT]
        front.generator.client.check_accepting()
        with front.gate.passed():
            return await handler(request)

    return admitted


async def _answered(request: web.Request, handler: Handler) -> web.StreamResponse:
    meant = None if request.match_info.http_exception is None else meant_path(request.path, _PATHS)
    shape = _shape_of(meant or request.path)
    try:
        return await handler(request)
    except AxilError as error:
        if isinstance(error, Broken):
            log.error("%s %s failed: %s", request.method, shown(request.path), error.message)
        return error_response(error, shape)
    except RecursionError:
        return error_response(Refused("the body is nested too deeply. Send a flatter one."), shape)
    except web.HTTPRequestEntityTooLarge:
        limit = request.app[FRONT].launch.config.max_body_bytes
        message = f"the body is larger than {limit:,} bytes. Send less, or start the server with --max-body-bytes."
        return json_response(shape(413, message, code="body_too_large"), status=413)
    except web.RequestPayloadError as error:
        reason = " ".join(str(error).split())
        return error_response(
            Refused(f"the body can't be read: {reason}. Send it whole, and encoded as it says."), shape
        )
    except web.HTTPException as error:
        return _refused_by_router(request, error, meant, shape)
    except ConnectionError:
        if request.transport is not None and not request.transport.is_closing():
            raise
        return web.Response(status=_CLIENT_GONE)  # which nobody reads: the client left while it was written to
    except (asyncio.CancelledError, KeyboardInterrupt, SystemExit):
        raise
    except BaseException:  # a panic in a Rust library is no Exception, and must not reach the event loop
        log.exception("%s %s failed", request.method, shown(request.path))
        return error_response(Broken("internal error; the server's log has the traceback."), shape)


def _shape_of(path: str) -> Shape:
    """How errors are written in the API that a path is of."""
    if path.startswith(MESSAGES_PATH):
        return anthropic_error
    return ollama_error if path.startswith(OLLAMA_PATH) else envelope


def _refused_by_router(request: web.Request, error: web.HTTPException, meant: str | None, shape: Shape) -> web.Response:
    """The answer to a path that is not there, or not with this method."""
    headers = None
    remedy = "See GET / for what this server answers."
    if isinstance(error, web.HTTPMethodNotAllowed):
        allowed = ", ".join(sorted(error.allowed_methods))
        headers = {"Allow": allowed}
        remedy = f"Send {allowed.replace(', ', ' or ')}."
    elif meant is not None:
        remedy = (
            f"Did you mean {meant}? {base_url_hint(request.path, meant, f'{request.scheme}://{request.host}')}".rstrip()
        )
    message = f"{request.method} {shown(request.path)}: {error.reason}. {remedy}"
    code = error.reason.lower().replace(" ", "_")
    return json_response(shape(error.status, message, code=code), status=error.status, headers=headers)
