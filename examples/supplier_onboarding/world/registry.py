"""A supplier registry over HTTP with a durable ledger and knobs for every way to fail.

It counts each application. Unless it honours keys, a second POST is a second registration.
"""

from __future__ import annotations

import argparse
import json
import signal
import socket
import sqlite3
import threading
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from examples.supplier_onboarding.world import (
    HOST,
    STOP_SIGNALS,
    JsonHandler,
    WorldServer,
    open_ledger,
    print_ready,
    read_rows,
    serve_in_thread,
)

HANG_SECONDS = 30.0
NOT_APPLIED = {"X-Not-Applied": "true"}

SCHEMA = """
CREATE TABLE IF NOT EXISTS registrations (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    key TEXT NOT NULL,
    supplier_id TEXT NOT NULL,
    body TEXT NOT NULL,
    at REAL NOT NULL
);
CREATE INDEX IF NOT EXISTS registrations_by_key ON registrations (key);
"""


@dataclass(frozen=True)
class Registration:
    """One application of the effect. `body` is canonical JSON."""

    id: int
    key: str
    supplier_id: str
    body: str
    at: float


@dataclass(frozen=True)
class Knobs:
    """How to fail; `*_every` counts POSTs since the knobs were set, 0 is off.

    refuse: 503 before anything is done. drop: do it, then close without an answer.
    hang: do it, then answer nothing for 30 s. not_found: look-ups deny young registrations.
    mismatch: do it and drop, and look-ups then show another name under the key.
    """

    drop_every: int = 0
    hang_every: int = 0
    refuse_every: int = 0
    latency_seconds: float = 0.0
    not_found_seconds: float = 0.0
    refuse_supplier_ids: tuple[str, ...] = ()
    mismatch_supplier_ids: tuple[str, ...] = ()

    @classmethod
    def parse(cls, values: dict[str, Any]) -> Knobs:
        """Build knobs from JSON; a knob that isn't named is off."""
        known = {field.name: type(field.default) for field in fields(cls)}
        knobs: dict[str, Any] = {}
        for name, value in values.items():
            knobs[name] = tuple(value) if isinstance(value, list) else value
            wanted = known.get(name)
            if wanted is float and isinstance(value, int):
                wanted = int
            if wanted is None or not isinstance(knobs[name], wanted):
                raise ValueError(f"no such knob, or a wrong type: {name}={value!r}")
        return cls(**knobs)


def ledger_path(directory: Path) -> Path:
    """Return where the registry's ledger is."""
    return directory / "registry.sqlite3"


def read_ledger(directory: Path) -> list[Registration]:
    """Return every registration, oldest first."""
    rows = read_rows(ledger_path(directory), "SELECT * FROM registrations ORDER BY id")
    return [Registration(**dict(row)) for row in rows]


class Registry:
    """The ledger and the knobs, shared by all connections under one lock."""

    def __init__(self, directory: Path, knobs: Knobs, honour_keys: bool) -> None:
        self.stopping = threading.Event()
        self.honour_keys = honour_keys
        self._ledger = open_ledger(ledger_path(directory), SCHEMA)
        self._lock = threading.Lock()
        self._knobs = knobs
        self._posts = 0

    def set_knobs(self, knobs: Knobs) -> None:
        """Replace all knobs and count POSTs from 1 again, so that a test is deterministic."""
        with self._lock:
            self._knobs, self._posts = knobs, 0

    def next_post(self) -> tuple[int, Knobs]:
        """Return this POST's number and the knobs that hold for all of it."""
        with self._lock:
            self._posts += 1
            return self._posts, self._knobs

    def register(self, key: str, body: dict[str, Any]) -> Registration | None:
        """Commit a registration; None when the honoured key was used with another body."""
        text = json.dumps(body, sort_keys=True, ensure_ascii=False)
        with self._lock:
            known = self._first(key) if self.honour_keys else None
            if known is not None:
                return known if known.body == text else None
            return self._insert(key, str(body["supplier_id"]), text)

    def find(self, key: str) -> dict[str, Any] | None:
        """Look a registration up by its key, as truthfully as the knobs allow."""
        with self._lock:
            found, knobs = self._first(key), self._knobs
        if found is None or time.time() - found.at < knobs.not_found_seconds:
            return None
        supplier = json.loads(found.body)
        if found.supplier_id in knobs.mismatch_supplier_ids:
            supplier["name"] = f"Someone else than {supplier.get('name')}"
        return {"registration_id": found.id, "key": found.key, "supplier": supplier}

    def stats(self) -> dict[str, Any]:
        """Return the counters and the knobs."""
        count = "SELECT count(*) AS n, count(DISTINCT key) AS keys FROM registrations"
        with self._lock:
            row = self._ledger.execute(count).fetchone()
            return {
                "posts": self._posts,
                "registrations": row["n"],
                "duplicates": row["n"] - row["keys"],
                "honour_keys": self.honour_keys,
                "knobs": asdict(self._knobs),
            }

    def close(self) -> None:
        """Wake what hangs, and close the ledger."""
        self.stopping.set()
        with self._lock:
            self._ledger.close()

    def _first(self, key: str) -> Registration | None:
        query = "SELECT * FROM registrations WHERE key = ? ORDER BY id LIMIT 1"
        row: sqlite3.Row | None = self._ledger.execute(query, (key,)).fetchone()
        return Registration(**dict(row)) if row is not None else None

    def _insert(self, key: str, supplier_id: str, body: str) -> Registration:
        at = time.time()
        insert = "INSERT INTO registrations (key, supplier_id, body, at) VALUES (?, ?, ?, ?)"
        with self._ledger:
            row_id = self._ledger.execute(insert, (key, supplier_id, body, at)).lastrowid
        assert row_id is not None
        return Registration(row_id, key, supplier_id, body, at)


def registry_handler(registry: Registry) -> type[JsonHandler]:
    """Return the HTTP handler for this registry."""

    class RegistryHandler(JsonHandler):
        def do_POST(self) -> None:
            body, key = self.read_object(), self.headers.get("Idempotency-Key")
            if self.path != "/suppliers":
                self.answer(404, {"error": "post to /suppliers"}, NOT_APPLIED)
            elif not key or body is None or not body.get("supplier_id"):
                reason = "send the header Idempotency-Key and a JSON object with supplier_id"
                self.answer(400, {"error": reason}, NOT_APPLIED)
            else:
                self.register(key, body)

        def register(self, key: str, body: dict[str, Any]) -> None:
            number, knobs = registry.next_post()
            supplier_id = str(body["supplier_id"])
            if _is_turn(number, knobs.refuse_every):
                busy = {"error": "busy, nothing was done"}
                self.answer(503, busy, {**NOT_APPLIED, "Retry-After": "0"})
            elif supplier_id in knobs.refuse_supplier_ids:
                reason = f"{supplier_id} is on the list of suppliers not to be registered"
                self.answer(422, {"error": reason}, NOT_APPLIED)
            else:
                registry.stopping.wait(knobs.latency_seconds / 2)
                done = registry.register(key, body)
                registry.stopping.wait(knobs.latency_seconds / 2)
                mismatch = supplier_id in knobs.mismatch_supplier_ids
                if mismatch or _is_turn(number, knobs.drop_every):
                    self.drop()
                elif _is_turn(number, knobs.hang_every):
                    registry.stopping.wait(HANG_SECONDS)
                    self.drop()
                else:
                    self.tell(done)

        def tell(self, done: Registration | None) -> None:
            if done is None:
                # No X-Not-Applied: under this key something was applied, only not this body.
                self.answer(422, {"error": "this key was used with another body"})
            else:
                answer = {"registration_id": done.id, "key": done.key}
                self.answer(200, {**answer, "supplier": json.loads(done.body)})

        def drop(self) -> None:
            self.close_connection = True
            with suppress(OSError):  # the client may have gone first
                self.connection.shutdown(socket.SHUT_RDWR)

        def do_GET(self) -> None:
            prefix = "/suppliers/by-key/"
            if self.path == "/stats":
                self.answer(200, registry.stats())
            elif self.path.startswith(prefix):
                found = registry.find(unquote(self.path.removeprefix(prefix)))
                missing = {"error": "no supplier was registered under this key"}
                self.answer(200 if found else 404, found or missing)
            else:
                self.answer(404, {"error": "ask for /stats or /suppliers/by-key/KEY"})

        def do_PUT(self) -> None:
            body = self.read_object()
            try:
                if self.path != "/knobs" or body is None:
                    raise ValueError("put a JSON object to /knobs")
                registry.set_knobs(Knobs.parse(body))
            except ValueError as problem:
                self.answer(400, {"error": str(problem)})
            else:
                self.answer(200, registry.stats())

    return RegistryHandler


def _is_turn(number: int, every: int) -> bool:
    return every > 0 and number % every == 0


def serve(registry: Registry, port: int) -> None:
    """Serve until SIGTERM."""
    # Blocked before any thread starts, so that only sigwait() sees these signals.
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    server = WorldServer((HOST, port), registry_handler(registry))
    serve_in_thread(server)
    print_ready(port=server.server_port)
    signal.sigwait(STOP_SIGNALS)
    server.shutdown()
    registry.close()


def main() -> None:
    """Read the arguments and serve."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--directory", type=Path, required=True, help="where the ledger is kept")
    parser.add_argument("--port", type=int, default=0, help="0 chooses a free one")
    parser.add_argument("--honour-keys", action="store_true", help="same key, same answer")
    parser.add_argument("--knobs", type=json.loads, default={}, help="JSON, as for PUT /knobs")
    options = parser.parse_args()
    knobs = Knobs.parse(options.knobs)
    serve(Registry(options.directory, knobs, options.honour_keys), options.port)


if __name__ == "__main__":
    main()
