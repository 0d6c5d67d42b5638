"""Commands into the journal: one statement for the client's own connection and for a caller's transaction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any
from uuid import UUID

import sqlalchemy as sa

from actum.errors import KeyConflict
from actum.journal.database import Connection


class Answer(StrEnum):
    """How a command was received."""

    ACCEPTED = "accepted"
    DUPLICATE = "duplicate"
    CONFLICT = "conflict"


@dataclass(frozen=True, slots=True)
class StartCommand:
    """One request to start a Thread; `input` is canonical JSON text."""

    thread_id: UUID
    namespace: str
    key: str
    workflow: str
    version: str
    queue: str
    priority: int
    owner: str
    deadline_seconds: float
    principal: str
    manifest: str
    input: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """The typed answer to a command.

    `accepted`: it is recorded. `duplicate`: same key, same request: `thread_id` is the first one's.
    `conflict`: same key, another request: nothing changed; `differs` names what differs.
    """

    answer: Answer
    thread_id: UUID
    key: str
    fingerprint: str
    stored_fingerprint: str
    differs: str = ""

    def or_raise(self) -> Verdict:
        """Return itself, or raise `KeyConflict` when the key was used for another request."""
        if self.answer is Answer.CONFLICT:
            raise KeyConflict(
                f"key {self.key!r} was used before with another {self.differs} "
                f"(fingerprints {self.fingerprint[:12]} and {self.stored_fingerprint[:12]}); "
                "use another key for another request",
            )
        return self


_ARRAYS = (
    ("thread", "uuid"),
    ("namespace", "text"),
    ("key", "text"),
    ("workflow", "text"),
    ("version", "text"),
    ("queue", "text"),
    ("priority", "smallint"),
    ("owner", "text"),
    ("deadline_seconds", "double precision"),
    ("principal", "text"),
    ("manifest", "text"),
    ("input", "text"),
)
_SELECT = "select verdict, thread_id, fingerprint, stored_fingerprint, stored_subject from actum.submit"
PSYCOPG = f"{_SELECT}({', '.join(f'%({n})s::{t}[]' for n, t in _ARRAYS)}) order by n"
SQLALCHEMY = f"{_SELECT}({', '.join(f'cast(:{n} as {t}[])' for n, t in _ARRAYS)}) order by n"


def _arrays(commands: Sequence[StartCommand]) -> dict[str, list[Any]]:
    fields = ("thread_id", *(name for name, _ in _ARRAYS[1:]))
    columns = zip(_ARRAYS, fields, strict=True)
    return {name: [getattr(c, attribute) for c in commands] for (name, _), attribute in columns}


def submit(connection: Connection, commands: Sequence[StartCommand]) -> list[Verdict]:
    """Submit start commands in one round trip, in the connection's transaction if it has one."""
    rows = connection.execute(PSYCOPG, _arrays(commands)).fetchall()
    return verdicts(commands, rows)


def statement(commands: Sequence[StartCommand]) -> sa.TextClause:
    """Return the same as a SQLAlchemy statement, for a Session, Connection or AsyncSession."""
    return sa.text(SQLALCHEMY).bindparams(**_arrays(commands))


def verdicts(commands: Sequence[StartCommand], rows: Sequence[Any]) -> list[Verdict]:
    """Turn the statement's rows into verdicts, in the order of `commands`."""
    return [_verdict(c, tuple(row)) for c, row in zip(commands, rows, strict=True)]


def _verdict(command: StartCommand, row: tuple[Any, ...]) -> Verdict:
    answer, thread_id, fingerprint, stored, subject = row
    differs = "" if answer != Answer.CONFLICT else _difference(command.workflow, subject)
    return Verdict(Answer(answer), thread_id, command.key, fingerprint, stored, differs)


def _difference(workflow: str, subject: str) -> str:
    return "input" if workflow == subject else f"workflow ({subject})"


def signal(
    connection: Connection,
    thread_id: UUID,
    key: str,
    name: str,
    body: str,
    principal: str,
) -> tuple[str, int | None, str, str]:
    """Record a signal. Returns (verdict, event number, fingerprint, stored fingerprint)."""
    row = connection.execute(
        "select verdict, seq, fingerprint, stored_fingerprint from actum.signal(%s, %s, %s, %s, %s)",
        (thread_id, key, name, body, principal),
    ).fetchone()
    assert row is not None
    return row[0], row[1], row[2] or "", row[3] or ""


def resolve(
    connection: Connection,
    thread_id: UUID,
    step_id: str,
    decision: str,
    actor: str,
    reason: str,
    result: str,
) -> str:
    """Record an owner's decision on a step that needs resolution; returns what became of it."""
    row = connection.execute(
        "select actum.resolve(%s, %s, %s, %s, %s, %s)",
        (thread_id, step_id, decision, actor, reason, result),
    ).fetchone()
    assert row is not None
    return str(row[0])


def show_definition(
    connection: Connection,
    *,
    workflow: str,
    version: str,
    owner: str,
    queue: str,
    deadline_seconds: float,
    on_upgrade: str,
    digest: str,
    body: str,
) -> None:
    """Record a definition, so that operators see it and producers can start it by name."""
    connection.execute(
        "insert into actum.manifests values (%s, %s, %s, %s, %s, %s, %s, %s, actum.now()) "
        "on conflict (workflow, version) do update set owner = excluded.owner, queue = excluded.queue, "
        "deadline_seconds = excluded.deadline_seconds, on_upgrade = excluded.on_upgrade, "
        "digest = excluded.digest, body = excluded.body, seen_at = excluded.seen_at",
        (workflow, version, owner, queue, deadline_seconds, on_upgrade, digest, body),
    )


def known_definition(connection: Connection, workflow: str) -> Any:
    """Return the newest shown definition of `workflow` as a row, or None."""
    return connection.execute(
        "select workflow, version, owner, queue, deadline_seconds, digest from actum.manifests "
        "where workflow = %s order by seen_at desc limit 1",
        (workflow,),
    ).fetchone()
