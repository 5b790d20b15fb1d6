"""The application: which path leads where, who may call, and how an error becomes an answer."""

from __future__ import annotations

import asyncio
import hmac
import logging
import uuid

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from wire.errors import AxilError, Broken, Refused

from . import admin
from .errors import envelope, error_response, json_response
from .fields import shown
from .front import FRONT, Front
from .generate import generate
from .openai_chat import chat_completions
from .openai_completions import completions

log = logging.getLogger(__name__)

OPEN_TO_ALL = ("/health", "/health_generate", "/live", "/ready", "/metrics")
"""Paths that need no API key."""

_CLIENT_GONE = 499


def build_app(front: Front) -> web.Application:
    """The whole HTTP front. Serve it with `handler_cancellation`, so that a client's leaving cancels its request."""
    middlewares: list[Middleware] = [_boundary]
    if front.launch.config.api_key is not None:
        middlewares.append(_authorised(front.launch.config.api_key))
    app = web.Application(middlewares=middlewares, client_max_size=front.launch.config.max_body_bytes)
    app[FRONT] = front
    app.add_routes(
        [
            web.get("/", admin.index),
            web.get("/health", admin.health),
            web.get("/ready", admin.health),
            web.get("/live", admin.live),
            web.get("/health_generate", _admitted(admin.health_generate)),
            web.get("/metrics", admin.metrics),
            web.get("/model_info", admin.model_info),
            web.get("/get_model_info", admin.model_info),
            web.get("/server_info", admin.server_info),
            web.get("/get_server_info", admin.server_info),
            web.get("/flush_cache", admin.flush_cache),
            web.post("/flush_cache", _not_for_pages(admin.flush_cache)),
            web.post("/abort_request", _not_for_pages(admin.abort_request)),
            web.get("/drain", admin.show_drain),
            web.post("/drain", _not_for_pages(admin.drain)),
            web.delete("/drain", admin.end_drain),
            web.post("/tokenize", admin.tokenize),
            web.post("/detokenize", admin.detokenize),
            web.post("/generate", _admitted(generate)),
            web.put("/generate", _admitted(generate)),
            web.get("/v1/models", admin.list_models),
            web.get("/v1/models/{name:.+}", admin.show_model),
            web.post("/v1/completions", _admitted(completions)),
            web.post("/v1/chat/completions", _admitted(chat_completions)),
        ]
    )
    return app


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
        request.app[FRONT].metrics.answered(route, status)


def _admitted(handler: Handler) -> Handler:
    """A handler of work, which is only taken while the server can and shall serve."""

    async def admitted(request: web.Request) -> web.StreamResponse:
        front = request.app[FRONT]
        front.generator.client.check_accepting()
        with front.gate.passed():
            return await handler(request)

    return admitted


def _not_for_pages(handler: Handler) -> Handler:
    """A handler of an operator's wish, which no web page from elsewhere may have a local server do."""

    async def checked(request: web.Request) -> web.StreamResponse:
        origin = request.headers.get("Origin")
        if origin is not None and origin.partition("//")[2] != request.host:
            raise Refused(f"a page of {shown(origin)} may not do this. Ask with curl, for example.")
        return await handler(request)

    return checked


async def _answered(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except AxilError as error:
        if isinstance(error, Broken):
            log.error("%s %s failed: %s", request.method, request.path, error.message)
        return error_response(error)
    except RecursionError:
        return error_response(Refused("the body is nested too deeply. Send a flatter one."))
    except web.HTTPRequestEntityTooLarge:
        limit = request.app[FRONT].launch.config.max_body_bytes
        message = f"the body is larger than {limit:,} bytes. Send less, or start the server with --max-body-bytes."
        return json_response(envelope(413, message, code="body_too_large"), status=413)
    except web.RequestPayloadError as error:
        reason = " ".join(str(error).split())
        return error_response(Refused(f"the body can't be read: {reason}. Send it whole, and encoded as it says."))
    except web.HTTPException as error:
        message = f"{request.method} {request.path}: {error.reason}. See GET / for what this server answers."
        headers = {"Allow": error.headers["Allow"]} if "Allow" in error.headers else None
        code = error.reason.lower().replace(" ", "_")
        return json_response(envelope(error.status, message, code=code), status=error.status, headers=headers)
    except (asyncio.CancelledError, ConnectionError, KeyboardInterrupt, SystemExit):
        raise
    except BaseException:  # a panic in a Rust library is no Exception, and must not reach the event loop
        log.exception("%s %s failed", request.method, request.path)
        return error_response(Broken("internal error; the server's log has the traceback."))


def _authorised(api_key: str) -> Middleware:
    wanted = f"Bearer {api_key}".encode()

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        given = request.headers.get("Authorization", "").encode("utf-8", errors="surrogateescape")
        if request.path in OPEN_TO_ALL or hmac.compare_digest(given, wanted):
            return await handler(request)
        message = "this server needs an API key. Send the header `Authorization: Bearer KEY`."
        return json_response(envelope(401, message, code="invalid_api_key"), status=401)

    return check
