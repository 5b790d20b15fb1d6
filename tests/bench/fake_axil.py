"""Stands in for `axil serve`: answers /health, keeps a note in its cache directory, or fails as its flags say."""

from __future__ import annotations

import argparse
import http.server
import os
import signal
from pathlib import Path


class _Health(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        return


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--host")
    parser.add_argument("--port", type=int)
    parser.add_argument("--notes", type=Path)
    parser.add_argument("--fail")
    parser.add_argument("--stubborn", action="store_true")
    args = parser.parse_args()
    if args.fail:
        raise SystemExit(args.fail)
    if args.stubborn:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    else:
        signal.signal(signal.SIGTERM, lambda number, frame: os._exit(0))
    if args.notes:
        cached = Path(os.environ["XDG_CACHE_HOME"]) / "converted"
        with args.notes.open("a") as notes:
            notes.write("later\n" if cached.exists() else "first\n")
        cached.touch()
    http.server.ThreadingHTTPServer((args.host, args.port), _Health).serve_forever()


if __name__ == "__main__":
    main()
