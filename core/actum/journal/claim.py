"""Claims and leases: who may work on what, until when on the database's clock."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from actum import faults
from actum.journal.database import Connection

NOBODY = UUID(int=0)
"""The id of no worker: what it holds is rescued at the next look."""


@dataclass(frozen=True, slots=True)
class Claimed:
    """One claimed Thread. `crashes` counts how often it lost its worker without progress."""

    thread_id: UUID
    fence: int
    crashes: int
    workflow: str
    version: str
    at: datetime


def claim(
    connection: Connection,
    holder: UUID,
    queue: str,
    definitions: Sequence[str],
    limit: int,
    suspects: bool | None = None,
) -> list[Claimed]:
    """Claim up to `limit` ready Threads of `queue`, most urgent and oldest first.

    `suspects` chooses Threads that lost a worker before (True), that did not (False), or both (None).
    Returns nothing when the holder's own lease is not current. A claim whose commit is unknown is
    never worked on: the caller did not get its fence, and the lease ends it.
    """
    faults.point("claim.before")
    cursor = connection.execute(
        "select thread_id, fence, crashes, workflow, workflow_version, claimed_at "
        "from actum.claim(%s, %s, %s::text[], %s, %s)",
        (holder, queue, list(definitions), limit, suspects),
    )
    claimed = [Claimed(*row) for row in cursor]
    faults.point("claim.after")
    return claimed


def enlist(
    connection: Connection,
    incarnation: UUID,
    queues: Sequence[str],
    definitions: Sequence[str],
    lease_seconds: float,
) -> None:
    """Write the incarnation's row with its first lease; again after it was lost is harmless."""
    connection.execute(
        "insert into actum.workers (id, host, pid, queues, definitions, started_at, beat_at, expires_at) "
        "values (%s, %s, %s, %s::text[], %s::text[], actum.now(), actum.now(), "
        "actum.now() + make_interval(secs => %s)) on conflict (id) do nothing",
        (incarnation, socket.gethostname(), os.getpid(), list(queues), list(definitions), lease_seconds),
    )


def renew(connection: Connection, incarnations: Sequence[UUID], lease_seconds: float) -> set[UUID]:
    """Renew the leases that still run; return those renewed. An expired lease can't be won back (C21)."""
    cursor = connection.execute(
        "update actum.workers set beat_at = actum.now(), "
        "expires_at = actum.now() + make_interval(secs => %s) "
        "where id = any(%s::uuid[]) and expires_at > actum.now() returning id",
        (lease_seconds, list(incarnations)),
    )
    return {row[0] for row in cursor}


def retire(connection: Connection, incarnation: UUID) -> None:
    """End an incarnation at once: its claims are free to be rescued."""
    connection.execute("delete from actum.workers where id = %s", (incarnation,))


def abandon(connection: Connection, thread_id: UUID, fence: int) -> None:
    """Give up a claim whose turn could not be ended: nobody holds it, so the next rescue takes it."""
    connection.execute(
        "update actum.work set holder = %s where thread_id = %s and fence = %s and holder is not null",
        (NOBODY, thread_id, fence),
    )


def release_strays(connection: Connection, holder: UUID, active: Sequence[UUID]) -> None:
    """Give back claims that `holder` has but never learned of; no turn of theirs has started."""
    connection.execute(
        "update actum.work set holder = null, fence = nextval('actum.fences') "
        "where holder = %s and not thread_id = any(%s::uuid[])",
        (holder, list(active)),
    )
