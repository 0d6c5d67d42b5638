"""What reconciliation does in SQL; bounded batches, no user code, safe to run by any number at once."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import orjson

from actum import faults
from actum.journal.database import Connection


def rescue(connection: Connection, limit: int, crashes_max: int) -> dict[str, int]:
    """Take back the claims of dead workers; returns how many were rescued and how many parked."""
    faults.point("rescue.before")
    rows = connection.execute(
        "select parked from actum.rescue(%s, %s)",
        (limit, crashes_max),
    ).fetchall()
    return {"rescued": len(rows), "parked": sum(row[0] for row in rows)}


def fire_timers(connection: Connection, limit: int, resolution_days: float) -> dict[str, int]:
    """Turn due timers and deadlines into events; returns how many."""
    faults.point("timer.before")
    rows = connection.execute(
        "select timer from actum.fire_timers(%s, make_interval(secs => %s))",
        (limit, resolution_days * 86400),
    ).fetchall()
    deadlines = sum(row[0] == "deadline" for row in rows)
    return {"fired": len(rows), "deadlines": deadlines}


def ready_queues(connection: Connection) -> list[str]:
    """Return the queues in which work is ready and nobody has taken it."""
    rows = connection.execute(
        "select queue from (select distinct queue from actum.manifests union select 'default') q "
        "where exists (select from actum.work w where w.queue = q.queue and w.holder is null "
        "and w.ready_at <= actum.now()) order by 1",
    ).fetchall()
    return [row[0] for row in rows]


def oldest_ready_seconds(connection: Connection) -> float:
    """Return the age of the oldest ready, unclaimed work in seconds; 0 when there is none."""
    row = connection.execute(
        "select coalesce(extract(epoch from actum.now() - min(ready_at)), 0) from actum.work "
        "where holder is null and ready_at <= actum.now()",
    ).fetchone()
    return float(row[0]) if row else 0.0


def forget_workers(connection: Connection) -> int:
    """Delete rows of workers that expired an hour ago and hold nothing."""
    cursor = connection.execute(
        "delete from actum.workers k where expires_at < actum.now() - interval '1 hour' "
        "and not exists (select from actum.work w where w.holder = k.id)",
    )
    return cursor.rowcount


def ensure_partitions(connection: Connection, months: int = 2) -> int:
    """Create the coming months' partitions; returns how many were new."""
    row = connection.execute("select actum.ensure_partitions(%s)", (months,)).fetchone()
    return int(row[0]) if row else 0


def record_success(connection: Connection, duty: str, result: dict[str, Any]) -> None:
    """Note that a duty ran to its end; the age of this note is an operator's first look."""
    connection.execute(
        "insert into actum.duties values (%s, actum.now(), %s) on conflict (name) do update "
        "set succeeded_at = excluded.succeeded_at, result = excluded.result",
        (duty, orjson.dumps(result).decode()),
    )


def last_successes(connection: Connection) -> dict[str, tuple[datetime, float]]:
    """Return each duty's last success and its age in seconds."""
    rows = connection.execute(
        "select name, succeeded_at, extract(epoch from actum.now() - succeeded_at) from actum.duties",
    ).fetchall()
    return {name: (at, float(age)) for name, at, age in rows}


def unblock(connection: Connection, definitions: list[str], limit: int = 1000) -> int:
    """Let blocked Threads of these definitions be tried again; returns how many."""
    row = connection.execute("select actum.unblock(%s::text[], %s)", (definitions, limit)).fetchone()
    return int(row[0]) if row else 0
