"""The outside world: separate processes with durable ledgers, which misbehave when told to.

Nothing here imports actum (but for the supplier who answers). The world doesn't help the engine:
it counts every effect it is asked for, so a duplicate is visible.
"""

from __future__ import annotations

import json
import signal
import sqlite3
import sys
import threading
from collections.abc import Mapping
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

HOST = "127.0.0.1"
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def open_ledger(path: Path, schema: str) -> sqlite3.Connection:
    """Open the ledger for its only writer; what is committed survives SIGKILL and power loss."""
    path.parent.mkdir(parents=True, exist_ok=True)
    ledger = sqlite3.connect(path, check_same_thread=False)
    ledger.row_factory = sqlite3.Row
    ledger.execute("PRAGMA journal_mode=WAL")
    ledger.execute("PRAGMA synchronous=FULL")
    ledger.executescript(schema)
    return ledger


def read_rows(path: Path, query: str, *parameters: object) -> list[sqlite3.Row]:
    """Read a ledger from any process, also while its server runs; no file means no rows."""
    if not path.exists():
        return []
    # mode=rw, not ro: after a SIGKILL the reader may have to recover the write-ahead log.
    with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=rw", uri=True)) as ledger:
        ledger.row_factory = sqlite3.Row
        return ledger.execute(query, parameters).fetchall()


class WorldServer(ThreadingHTTPServer):
    """One thread per connection; the queue is long enough for a burst of connections."""

    request_queue_size = 256
    daemon_threads = True  # a hanging answer must not block the shutdown

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Report what is wrong here; clients that go away are part of the game."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class JsonHandler(BaseHTTPRequestHandler):
    """JSON over HTTP/1.1 with connections kept alive."""

    protocol_version = "HTTP/1.1"
    # Head and body leave in one packet; two would meet Nagle and delayed ACK, 40 ms per answer.
    wbufsize = -1
    disable_nagle_algorithm = True

    def answer(self, status: int, body: object, headers: Mapping[str, str] | None = None) -> None:
        """Send a JSON answer."""
        data = json.dumps(body, ensure_ascii=False).encode()
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def read_object(self) -> dict[str, Any] | None:
        """Return the request's JSON object, or None when the body is something else."""
        raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        try:
            body = json.loads(raw)
        except ValueError:
            return None
        return body if isinstance(body, dict) else None

    def log_message(self, format: str, *args: object) -> None:
        """Stay silent: the ledger is the log, and stdout carries only the ready line."""


def serve_in_thread(server: WorldServer) -> None:
    """Serve until `server.shutdown()`."""
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()


def print_ready(**ports: int) -> None:
    """Tell the parent process that the server listens, and where."""
    print(json.dumps({"ready": True, **ports}), flush=True)
