"""The OpenAPI document says what the server does: all routes are in it, and its schemas are those that bodies meet."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import aiohttp
import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.http.app import ROUTES, build_app
from runtime.http.openapi import document
from runtime.http.route import Route
from runtime.http.schema import NOT_SUPPORTED, Schema, check
from tests.fakes import Server
from wire.errors import Refused

DOCUMENT: Any = json.loads(json.dumps(document(ROUTES, version="1")))
WITH_BODY = [route for route in ROUTES if route.body is not None]
BODIES = list({id(route.body): route for route in WITH_BODY}.values())

SCALARS: st.SearchStrategy[object] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 40),
    st.sampled_from([-(2**70), 2**70, 1001, 0.5, -0.5, 1.5, 100.5, 1e9]),
    st.sampled_from(["", "a", "x" * 300, "user", "text", "5"]),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=40) | st.dictionaries(st.sampled_from(["5", "type", "a"]), inner, max_size=3)
    ),
    max_leaves=6,
)


def drawn(draw: st.DrawFn, schema: Schema) -> object:
    """A value near to what `schema` says: often right, often wrong somewhere."""
    if draw(st.integers(0, 4)) == 0:
        return draw(VALUES)
    branches = schema.get("anyOf")
    if isinstance(branches, list):
        return drawn(draw, draw(st.sampled_from(branches)))
    kinds = schema.get("type")
    kind = draw(st.sampled_from(kinds)) if isinstance(kinds, list) else kinds
    properties, items = schema.get("properties"), schema.get("items")
    if kind == "object" and isinstance(properties, dict):
        names = draw(st.lists(st.sampled_from(sorted(properties)), max_size=4, unique=True)) if properties else []
        return {name: drawn(draw, properties[name]) for name in names}
    if kind == "array" and isinstance(items, dict):
        return [drawn(draw, items) for _ in range(draw(st.integers(0, 3)))]
    choices = {"integer": st.integers(-2, 12), "number": st.sampled_from([0, 0.5, 1, 2, -1, 3.5])}.get(
        str(kind), VALUES
    )
    return draw(choices)


def near_limits(schema: Schema) -> list[object]:
    """Values at and just beyond every limit that `schema` states, and some of every type."""
    values: list[object] = [None, True, 0, 1, -1, 0.5, "", "a", [], [None], ["a"], [1], [[1]], [{}], {}, {"a": 1}]
    for keyword in ("minimum", "maximum", "exclusiveMinimum"):
        limit = schema.get(keyword)
        if isinstance(limit, int | float):
            # JSON Schema takes 1.0 for an integer and the server does not, so no whole number is written as a float.
            values += [limit, limit - 1, limit + 1, *([limit + 0.25] if abs(limit) < 2**31 else [])]
    longest, most, names = (schema.get(keyword) for keyword in ("maxLength", "maxItems", "maxProperties"))
    values += ["a" * length for length in (longest, longest + 1) if isinstance(longest, int)] if longest else []
    if isinstance(most, int):
        values += [[item] * length for item in (1, "a") for length in (most, most + 1)]
    if isinstance(names, int):
        values += [dict.fromkeys(map(str, range(length)), 1) for length in (names, names + 1)]
    return [*values, *(schema["enum"] if isinstance(schema.get("enum"), list) else ())]


def inner_schemas(schema: Schema) -> Iterator[Schema]:
    """`schema` and all that it is made of."""
    yield schema
    properties, items, others = (schema.get(keyword) for keyword in ("properties", "items", "additionalProperties"))
    inner = [*(properties.values() if isinstance(properties, dict) else ()), items, others]
    for each in [*inner, *(schema["anyOf"] if isinstance(schema.get("anyOf"), list) else ())]:
        if isinstance(each, dict) and NOT_SUPPORTED not in schema:
            yield from inner_schemas(each)


def assert_agreed(schema: Schema, published: Schema, value: object) -> None:
    try:
        check(schema, value, "field")
        is_taken = True
    except Refused as error:
        is_taken = False
        assert error.field
        assert error.field in error.message
    # Fields pass null by without a look; only an object's check knows which are required.
    if value is not None:
        assert is_taken == jsonschema.Draft202012Validator(published).is_valid(value), (schema, str(value)[:200])


@pytest.mark.parametrize("route", BODIES, ids=lambda route: f"{route.method} {route.path}")
def test_the_server_and_the_document_agree_at_every_limit(route: Route) -> None:
    assert route.body is not None
    for schema in inner_schemas(route.body):
        for value in near_limits(schema):
            assert_agreed(schema, json.loads(json.dumps(schema)), value)


@pytest.mark.parametrize("route", BODIES, ids=lambda route: f"{route.method} {route.path}")
def test_a_body_passes_exactly_when_the_published_schema_says_so(route: Route) -> None:
    operation = DOCUMENT["paths"][route.path][route.method.lower()]
    published = operation["requestBody"]["content"]["application/json"]["schema"]
    schema = route.body
    assert schema is not None

    @given(st.data())
    @settings(max_examples=40, derandomize=True)
    def agrees(data: st.DataObject) -> None:
        body = drawn(data.draw, schema)
        assert_agreed(schema, published, body if isinstance(body, dict) else {})

    agrees()


@pytest.mark.parametrize("path", ["/generate", "/v1/completions", "/v1/chat/completions"])
async def test_what_the_schema_forbids_is_a_400_of_the_server(
    server: Server, http: aiohttp.ClientSession, path: str
) -> None:
    schema = DOCUMENT["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    good: dict[str, object] = {"text": "x", "prompt": "x", "messages": [{"role": "user", "content": "x"}]}
    for name, property_ in schema["properties"].items():
        validator = jsonschema.Draft202012Validator(property_)
        for wrong in (5.5, "?", [[["?"]]], {"?": 5}, -7000):
            if validator.is_valid(wrong):
                continue
            async with http.post(path, json=good | {name: wrong}) as response:
                answer = await response.json()
            assert response.status == 400, (name, wrong, answer)
            assert answer["error"]["param"].partition("[")[0].partition(".")[0] == name


async def test_every_route_of_the_application_is_in_the_document(server: Server) -> None:
    documented = {(method.upper(), path) for path, methods in DOCUMENT["paths"].items() for method in methods}
    served = {
        (route.method, str(route.resource.canonical))
        for route in build_app(server.front).router.routes()
        if route.resource is not None and route.method != "HEAD"
    }
    assert served == documented


@pytest.mark.parametrize("route", WITH_BODY, ids=lambda route: f"{route.method} {route.path}")
async def test_every_documented_example_is_taken(http: aiohttp.ClientSession, route: Route) -> None:
    assert route.examples, "a route with a body shows how one looks"
    for example in route.examples:
        async with http.request(route.method, route.path, json=example) as response:
            assert response.status == 200, (example, await response.text())


async def test_the_document_is_served_and_names_each_operation_once(http: aiohttp.ClientSession) -> None:
    async with http.get("/openapi.json") as response:
        served = await response.json()
    assert served["openapi"].startswith("3.1")
    assert served["paths"].keys() == DOCUMENT["paths"].keys()
    operations = [operation for path in served["paths"].values() for operation in path.values()]
    assert all(operation["summary"] for operation in operations)
    ids = [operation["operationId"] for operation in operations]
    assert len(ids) == len(set(ids))
