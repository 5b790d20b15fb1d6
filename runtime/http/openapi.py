"""The OpenAPI document, made from the routes that the application is built from and the schemas that bodies must meet.

Knows no route of its own but the one that shows it.
"""

from __future__ import annotations

import inspect
import re
from collections import defaultdict
from collections.abc import Sequence

from aiohttp import web

from .errors import json_response
from .route import Route
from .schema import Schema

_ERROR: Schema = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}
_SECURITY: dict[str, list[dict[str, list[str]]]] = {
    "user": [{"key": []}, {"key_header": []}],
    "admin": [{"admin_key": []}, {"admin_key_header": []}],
}
DOCUMENT = web.AppKey("document", dict[str, object])

_VARIABLE = re.compile(r"\{(\w+)(:[^}]*)?\}")


def document(routes: Sequence[Route], *, version: str) -> dict[str, object]:
    """All of `routes`, as OpenAPI 3.1."""
    paths: dict[str, dict[str, object]] = defaultdict(dict)
    for route in routes:
        paths[_VARIABLE.sub(r"{\1}", route.path)][route.method.lower()] = _operation(route)
    bearer, header = {"type": "http", "scheme": "bearer"}, {"type": "apiKey", "in": "header", "name": "x-api-key"}
    return {
        "openapi": "3.1.0",
        "info": {"title": "axil", "version": version},
        "paths": paths,
        "components": {
            "schemas": {"Error": _ERROR},
            "securitySchemes": {
                "key": bearer,
                "key_header": header,
                "admin_key": bearer,
                "admin_key_header": header,
            },
        },
    }


def _operation(route: Route) -> dict[str, object]:
    summary, _, rest = inspect.getdoc(route.handler).partition("\n")  # type: ignore[union-attr]  # all have one
    error = {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}}
    operation: dict[str, object] = {
        "operationId": f"{route.method.lower()}{re.sub(r'[^a-z0-9]+', '_', route.path.lower()).rstrip('_')}",
        "summary": summary,
        "responses": {
            **({"200": {"description": "The answer.", "content": {route.answer: {}}}} if route.answer else {}),
            "400": {"description": "The request is wrong; the message says what and how.", **error},
            "default": {"description": "It could not be done.", **error},
        },
    }
    if rest.strip():
        operation["description"] = rest.strip()
    if route.access != "open":
        operation["security"] = [{}, *_SECURITY[route.access]]
    parameters = [*_path_parameters(route), *_query_parameters(route)]
    if parameters:
        operation["parameters"] = parameters
    if route.body is not None:
        content: dict[str, object] = {"schema": route.body}
        if route.examples:
            content["examples"] = {f"example_{i}": {"value": value} for i, value in enumerate(route.examples, 1)}
        operation["requestBody"] = {"required": True, "content": {"application/json": content}}
    return operation


def _path_parameters(route: Route) -> list[dict[str, object]]:
    return [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name, _ in _VARIABLE.findall(route.path)
    ]


def _query_parameters(route: Route) -> list[dict[str, object]]:
    properties = {} if route.query is None else route.query["properties"]
    assert isinstance(properties, dict)
    return [{"name": name, "in": "query", "schema": schema} for name, schema in properties.items()]


async def show_document(request: web.Request) -> web.Response:
    """Give this document."""
    return json_response(request.app[DOCUMENT])


ROUTES = (Route(method="GET", path="/openapi.json", handler=show_document),)
