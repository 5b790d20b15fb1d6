"""What do a thousand silent streams and fifty readers that hardly read cost a server?

Starts `axil serve`, and looks at its processes' memory and at how fast /health and /metrics answer: alone, with the
slow readers, and with the silent streams, which wait behind them for a row. A slow reader takes a kilobyte a second of
an answer with logprobs, of which each frame repeats what came before:
    python -m bench.open_streams
"""

from __future__ import annotations

import argparse
import json
import socket
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from urllib.parse import urlsplit

from prometheus_client.parser import text_string_to_metric_families

from bench import results, summary
from bench.command import CannotMeasure, count, exit_status, parser_of, positive
from bench.health_latency import probe_until
from bench.processes import resident_mb
from bench.server import Server, add_launch_flags, launched
from bench.summary import percentile

RECEIVE_BUFFER_BYTES = 4096
READ_BYTES = 1024
READ_EVERY_S = 1.0
METRICS_S = 30.0
PARTS = ("runtime", "scheduler", "model_runner")
ANSWER: Mapping[str, object] = {
    "text": "Once upon a time",
    "stream": True,
    "sampling_params": {"max_new_tokens": 2000, "ignore_eos": True, "temperature": 0},
}
LARGE_ANSWER = {**ANSWER, "return_logprob": True, "top_logprobs_num": 20}


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print the table; 1 when a probe was not answered 200."""
    parser = parser_of("bench.open_streams", __doc__)
    add_launch_flags(parser)
    parser.add_argument("--silent", type=count, default=1000, help="streams that wait (default: 1000)")
    parser.add_argument("--slow", type=count, default=50, help="readers that hardly read (default: 50)")
    parser.add_argument("--seconds", type=positive, default=10.0, help="time of each stage (default: 10)")
    results.add_json_flag(parser)
    args = parser.parse_args(argv)
    flags = [*args.serve_flags, "--max-running", str(args.slow), "--max-queued-requests", str(args.silent + args.slow)]
    with launched(flags) as server:
        rows = measure(server, args)
    print(summary.table(rows))
    figures = {f"{stage.replace(' ', '_')}_{name}": row[name] for stage, row in rows.items() for name in row}
    results.write(args.json, figures, results.command_line("bench.open_streams"))
    return 1 if any(row["unhealthy_count"] for row in rows.values()) else 0


def measure(server: Server, args: argparse.Namespace) -> dict[str, dict[str, float]]:
    """What each stage shows."""
    with ExitStack() as stack:
        rows = {"alone": _stage(server, args.seconds)}
        readers = [stack.enter_context(_asked(server.url, LARGE_ANSWER)) for _ in range(args.slow)]
        stack.enter_context(_read_slowly(readers))
        rows["slow readers"] = _stage(server, args.seconds)
        for _ in range(args.silent):
            stack.enter_context(_asked(server.url, ANSWER))
        rows["and silent streams"] = _stage(server, args.seconds)
    return rows


def _stage(server: Server, seconds: float) -> dict[str, float]:
    ends_s = time.monotonic() + seconds
    probes = probe_until(lambda: time.monotonic() >= ends_s, server.url)
    took_ms = [1e3 * probe.took_s for probe in probes if probe.status == 200]
    if not took_ms:
        raise CannotMeasure("no probe of /health was answered 200")
    return {
        **{f"{part}_resident_mb": resident_mb(f"{part}.process", server.process_id) for part in PARTS},
        "health_p50_ms": percentile(took_ms, 50),
        "health_p99_ms": percentile(took_ms, 99),
        "unhealthy_count": len(probes) - len(took_ms),
        **_metrics(server.url),
    }


def _metrics(url: str) -> dict[str, float]:
    """How many streams are open, what they have got so far, and how long it took to be told."""
    asked_s = time.monotonic()
    with urllib.request.urlopen(f"{url}/metrics", timeout=METRICS_S) as reply:
        text = reply.read().decode()
    took_s = time.monotonic() - asked_s
    families = text_string_to_metric_families(text)
    samples = {sample.name: sample.value for family in families for sample in family.samples}
    return {
        "metrics_ms": 1e3 * took_s,
        "open_count": samples["axil_http_open_requests"],
        "output_tokens_count": samples["axil_output_tokens_total"],
    }


@contextmanager
def _asked(url: str, body: Mapping[str, object]) -> Iterator[socket.socket]:
    """A connection with a small buffer on which an answer was asked for."""
    parts = urlsplit(url)
    data = json.dumps(body).encode()
    head = f"POST /generate HTTP/1.1\r\nHost: {parts.netloc}\r\nContent-Type: application/json\r\n"
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
        connection.connect((parts.hostname, parts.port))
        connection.sendall(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
        yield connection


@contextmanager
def _read_slowly(connections: Sequence[socket.socket]) -> Iterator[None]:
    """Take a little from each now and then, in a thread."""
    is_over = threading.Event()

    def read() -> None:
        while not is_over.wait(READ_EVERY_S):
            for connection in connections:
                try:
                    connection.recv(READ_BYTES, socket.MSG_DONTWAIT)
                except BlockingIOError:
                    continue

    thread = threading.Thread(target=read, name="slow readers")
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


if __name__ == "__main__":
    raise SystemExit(exit_status(main))
