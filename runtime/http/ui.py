"""The live view at `/ui`: files of the package, the same for everybody. Knows nothing of what they show.

The page asks this server alone, as its content security policy says, and brings its key with each question; the files
themselves need none.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from aiohttp import web

from .route import Route

_FOLDER = Path(__file__).parent.parent / "ui"
_INDEX = "index.html"
_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",  # kept, but asked for anew: another version of axil may stand here
}


@dataclass(frozen=True, slots=True)
class File:
    """One file of the page."""

    body: bytes
    content_type: str
    etag: str


Files: TypeAlias = dict[str | None, File]
"""All files by name; the page itself also by an empty one and, for who asks without a slash behind `/ui`, by None."""

FILES = web.AppKey("ui_files", Files)


def read_files(folder: Path = _FOLDER) -> Files:
    """Read all files of the page."""
    paths = [path for path in folder.iterdir() if path.suffix in _TYPES]
    found: Files = {path.name: _file(path.read_bytes(), path.suffix) for path in paths}
    page = found[_INDEX].body
    for path in paths:
        page = page.replace(f'"{path.name}"'.encode(), f'"ui/{path.name}"'.encode())
    return found | {"": found[_INDEX], None: _file(page, ".html")}


def _file(body: bytes, suffix: str) -> File:
    return File(body, _TYPES[suffix], hashlib.sha256(body).hexdigest()[:16])


async def file(request: web.Request) -> web.StreamResponse:
    """The live view, which shows the tree of cached prefixes, hit rates and times; or one of its files."""
    found = request.app[FILES].get(request.match_info.get("name"))
    if found is None:
        raise web.HTTPNotFound
    response = web.Response(body=found.body, content_type=found.content_type, charset="utf-8", headers=_HEADERS)
    response.etag = found.etag
    given = request.if_none_match or ()
    if any(tag.value == found.etag for tag in given):
        response.body = None
        response.set_status(304)
    return response


ROUTES = (
    Route(method="GET", path="/ui", handler=file, access="open", answer="text/html"),
    Route(method="GET", path="/ui/{name:.*}", handler=file, access="open", answer="text/html"),
)
