"""Reading Threads: their events, their rows, lists of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

import orjson

from actum.domain.events import Event
from actum.errors import Rejected
from actum.journal.database import Connection


@dataclass(frozen=True, slots=True)
class ThreadRow:
    """One Thread's projection, as stored."""

    id: UUID
    namespace: str
    key: str
    workflow: str
    version: str
    queue: str
    priority: int
    state: str
    reason: str
    last_seq: int
    owner: str
    principal: str
    created_at: datetime
    updated_at: datetime
    deadline_at: datetime
    wake_at: datetime | None
    wake_for: str


COLUMNS = (
    "id, namespace, key, workflow, workflow_version, queue, priority, state, reason, version, owner, "
    "principal, created_at, updated_at, deadline_at, wake_at, wake_for"
)
FILTERS = ("state", "workflow", "owner", "namespace")


def events_of(
    connection: Connection,
    threads: Sequence[UUID],
    after: int = 0,
) -> dict[UUID, list[Event]]:
    """Return each Thread's events in order, those with a number above `after`."""
    cursor = connection.execute(
        "select thread_id, seq, type, name, at, actor, body::text from actum.events "
        "where thread_id = any(%s::uuid[]) and seq > %s order by thread_id, seq",
        (list(threads), after),
    )
    found: dict[UUID, list[Event]] = {thread: [] for thread in threads}
    for thread, seq, type_, name, at, actor, body in cursor:
        found[thread].append(Event(seq, type_, name, at, actor, orjson.loads(body)))
    return found


def thread_row(connection: Connection, thread_id: UUID) -> ThreadRow | None:
    """Return one Thread's projection, or None."""
    row = connection.execute(
        f"select {COLUMNS} from actum.threads where id = %s",
        (thread_id,),
    ).fetchone()
    return ThreadRow(*row) if row else None


def thread_by_key(connection: Connection, namespace: str, key: str) -> UUID | None:
    """Return the Thread that was started with `key`, or None."""
    row = connection.execute(
        "select id from actum.threads where namespace = %s and key = %s",
        (namespace, key),
    ).fetchone()
    return row[0] if row else None


def list_threads(
    connection: Connection,
    filters: dict[str, str],
    *,
    before: UUID | None = None,
    limit: int = 50,
) -> list[ThreadRow]:
    """Return Threads, newest first. Filter names are allow-listed, values are bound (C53)."""
    unknown = filters.keys() - set(FILTERS)
    if unknown:
        raise Rejected(f"can't filter by {sorted(unknown)[0]!r}; use one of {', '.join(FILTERS)}")
    wheres = [f"{name} = %({name})s" for name in filters]
    parameters: dict[str, Any] = {**filters, "limit": limit, "before": before}
    if before is not None:
        wheres.append("id < %(before)s")
    where = f"where {' and '.join(wheres)}" if wheres else ""
    cursor = connection.execute(
        f"select {COLUMNS} from actum.threads {where} order by id desc limit %(limit)s",
        parameters,
    )
    return [ThreadRow(*row) for row in cursor]


def holder_of(connection: Connection, thread_id: UUID) -> tuple[str, datetime] | None:
    """Return who works on the Thread now (`host:pid`) and until when its lease runs, or None."""
    row = connection.execute(
        "select k.host || ':' || k.pid, k.expires_at from actum.work w "
        "join actum.workers k on k.id = w.holder where w.thread_id = %s",
        (thread_id,),
    ).fetchone()
    return (row[0], row[1]) if row else None


def runnable_anywhere(connection: Connection, workflow: str, version: str) -> bool:
    """Whether some living worker has this version of the workflow."""
    row = connection.execute(
        "select exists (select from actum.workers where expires_at > actum.now() and %s = any(definitions))",
        (f"{workflow}@{version}",),
    ).fetchone()
    return bool(row and row[0])
