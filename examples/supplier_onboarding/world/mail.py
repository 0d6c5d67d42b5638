"""An SMTP server which writes each mail into a ledger before it answers, and may lose the answer.

It does not deduplicate: a mail sent twice is in the ledger twice.
"""

from __future__ import annotations

import argparse
import asyncio
import email
import email.policy
import sqlite3
import time
from dataclasses import asdict, dataclass
from email.message import EmailMessage
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from aiosmtpd.smtp import SMTP, Envelope, Session

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

SCHEMA = """
CREATE TABLE IF NOT EXISTS mails (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    message_id TEXT NOT NULL,
    effect_key TEXT NOT NULL,
    kind TEXT NOT NULL,
    thread_id TEXT NOT NULL,
    thread_key TEXT NOT NULL,
    recipient TEXT NOT NULL,
    subject TEXT NOT NULL,
    body TEXT NOT NULL,
    at REAL NOT NULL
);
CREATE INDEX IF NOT EXISTS mails_by_key ON mails (effect_key);
"""
INSERT = """
INSERT INTO mails
    (message_id, effect_key, kind, thread_id, thread_key, recipient, subject, body, at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
"""


@dataclass(frozen=True)
class Mail:
    """One accepted mail. A header that was not sent is an empty string."""

    id: int
    message_id: str
    effect_key: str
    kind: str
    thread_id: str
    thread_key: str
    recipient: str
    subject: str
    body: str
    at: float


def ledger_path(directory: Path) -> Path:
    """Return where the mail ledger is."""
    return directory / "mail.sqlite3"


def read_ledger(directory: Path) -> list[Mail]:
    """Return every accepted mail, oldest first."""
    return _mails(directory, "SELECT * FROM mails ORDER BY id")


def mails_after(directory: Path, kind: str, since_id: int) -> list[Mail]:
    """Return the mails of one kind with a higher id, oldest first."""
    query = "SELECT * FROM mails WHERE kind = ? AND id > ? ORDER BY id"
    return _mails(directory, query, kind, since_id)


def mails_for(directory: Path, effect_key: str) -> list[Mail]:
    """Return the mails sent under one effect key; more than one is a duplicate effect."""
    return _mails(directory, "SELECT * FROM mails WHERE effect_key = ? ORDER BY id", effect_key)


def _mails(directory: Path, query: str, *parameters: object) -> list[Mail]:
    return [Mail(**dict(row)) for row in read_rows(ledger_path(directory), query, *parameters)]


class MailHandler:
    """aiosmtpd's handler: ledger first, answer second."""

    def __init__(
        self,
        ledger: sqlite3.Connection,
        lose_answer_every: int,
        latency_seconds: float,
    ) -> None:
        self._ledger = ledger
        self._lose_answer_every = lose_answer_every
        self._latency_seconds = latency_seconds

    async def handle_DATA(self, server: SMTP, session: Session, envelope: Envelope) -> str:
        """Accept a mail; every N-th one seen for the first time gets no answer."""
        content = envelope.content
        raw = content.encode() if isinstance(content, str) else content or b""
        await asyncio.sleep(self._latency_seconds / 2)
        mail_id, first_seen = self._store(raw, ", ".join(envelope.rcpt_tos))
        await asyncio.sleep(self._latency_seconds / 2)
        if first_seen and self._is_answer_lost():
            assert server.transport is not None
            server.transport.abort()  # type: ignore[attr-defined]  # aiosmtpd's type is too wide
        return f"250 OK: mail {mail_id}"

    def _store(self, raw: bytes, recipient: str) -> tuple[int, bool]:
        """Commit the mail; return its id and whether its effect key is new."""
        message = email.message_from_bytes(raw, policy=email.policy.default)
        assert isinstance(message, EmailMessage)
        headers = ("Message-ID", "X-Actum-Effect-Key", "X-Actum-Kind", "X-Actum-Thread")
        message_id, effect_key, *others = (str(message.get(name, "")) for name in headers)
        effect_key = effect_key or message_id
        thread_key, subject = str(message.get("X-Actum-Key", "")), str(message.get("Subject", ""))
        values = (message_id, effect_key, *others, thread_key, recipient, subject, _text(message))
        with self._ledger:
            mail_id = self._ledger.execute(INSERT, (*values, time.time())).lastrowid
        assert mail_id is not None
        older = "SELECT 1 FROM mails WHERE effect_key = ? AND id < ?"
        return mail_id, self._ledger.execute(older, (effect_key, mail_id)).fetchone() is None

    def _is_answer_lost(self) -> bool:
        """Count in the ledger, so that a restarted server goes on where it was."""
        if not self._lose_answer_every:
            return False
        (seen,) = self._ledger.execute("SELECT count(DISTINCT effect_key) FROM mails").fetchone()
        return int(seen) % self._lose_answer_every == 0


def _text(message: EmailMessage) -> str:
    """Return the plain text with `\\n` line ends, or an empty string."""
    part = message.get_body(("plain",))
    return "\n".join(str(part.get_content()).splitlines()) if part is not None else ""


def lookup_handler(directory: Path) -> type[JsonHandler]:
    """Return the HTTP handler that answers which mails were sent under an effect key."""

    class LookupHandler(JsonHandler):
        def do_GET(self) -> None:
            url = urlsplit(self.path)
            keys = parse_qs(url.query).get("effect_key")
            if url.path == "/health":
                self.answer(200, {"ok": True})
            elif url.path == "/mails" and keys:
                self.answer(200, [asdict(mail) for mail in mails_for(directory, keys[0])])
            else:
                self.answer(404, {"error": "ask for /health or /mails?effect_key=KEY"})

    return LookupHandler


async def serve(
    directory: Path,
    port: int,
    http_port: int,
    lose_answer_every: int,
    latency_seconds: float,
) -> None:
    """Serve SMTP and the look-up until SIGTERM."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, stop.set)
    ledger = open_ledger(ledger_path(directory), SCHEMA)
    handler = MailHandler(ledger, lose_answer_every, latency_seconds)
    smtp = await loop.create_server(
        lambda: SMTP(handler, enable_SMTPUTF8=True, hostname="localhost"),
        HOST,
        port,
        backlog=256,
    )
    lookup = WorldServer((HOST, http_port), lookup_handler(directory))
    serve_in_thread(lookup)
    print_ready(port=smtp.sockets[0].getsockname()[1], http_port=lookup.server_port)
    await stop.wait()
    smtp.close()
    lookup.shutdown()
    ledger.close()


def main() -> None:
    """Read the arguments and serve."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--directory", type=Path, required=True, help="where the ledger is kept")
    parser.add_argument("--port", type=int, default=0, help="SMTP; 0 chooses a free one")
    parser.add_argument("--http-port", type=int, default=0, help="look-up; 0 chooses a free one")
    parser.add_argument("--lose-answer-every", type=int, default=0, metavar="N")
    parser.add_argument("--latency-seconds", type=float, default=0.0, help="for each mail")
    options = parser.parse_args()
    asyncio.run(
        serve(
            options.directory,
            options.port,
            options.http_port,
            options.lose_answer_every,
            options.latency_seconds,
        )
    )


if __name__ == "__main__":
    main()
