"""A peer as `fake_peer.sh` starts it: notes its process id, then serves `FakeOpenAI` on $PORT, or never answers."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path

from aiohttp import web

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.bench.fake_openai import FakeOpenAI


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--notes", type=Path, required=True)
    parser.add_argument("--stubborn", action="store_true")
    parser.add_argument("--deaf", action="store_true")
    args = parser.parse_args()
    args.notes.write_text(f"{os.getpid()}")
    if args.deaf:
        signal.pause()
    fake = FakeOpenAI(has_flush=False, names_models=False)
    web.run_app(
        fake.app(), host="127.0.0.1", port=int(os.environ["PORT"]), print=None, handle_signals=not args.stubborn
    )


if __name__ == "__main__":
    main()
