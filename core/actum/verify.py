"""Checking what is stored: numbering, hash chain, and that every projection says what the events say.

Reads only. The chain is computed anew, in Python: a wrong SQL function can't vouch for itself.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from uuid import UUID

import orjson

from actum.domain import lifecycle
from actum.domain.events import Event
from actum.domain.thread import Thread, fold
from actum.journal.database import Connection

PAGE = 200
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
ROW_KEPT = lifecycle.IN_DOUBT | {lifecycle.StepState.NEEDS_RESOLUTION}
"""Step states that reconciliation finds by the steps table alone, so that a missing row loses an effect."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong with a Thread; `what` names the event's number where there is one."""

    thread_id: UUID
    what: str


@dataclass(slots=True)
class Report:
    """What was looked at, and every problem found. `ok` when there is none."""

    threads: int = 0
    events: int = 0
    steps: int = 0
    problems: list[Problem] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems


@dataclass(frozen=True, slots=True)
class StoredEvent:
    """An event's row, with the body's exact text."""

    seq: int
    type: str
    name: str
    at: datetime
    actor: str
    body: str
    link: bytes | None

    def text(self) -> str:
        """The event's part of its block's text."""
        return "\x1f".join((self.type, self.name, self.actor, self.body))

    def event(self) -> Event:
        """The event as the fold takes it."""
        return Event(self.seq, self.type, self.name, self.at, self.actor, orjson.loads(self.body))


@dataclass(frozen=True, slots=True)
class StoredStep:
    """A row of the steps projection."""

    step_id: str
    state: str
    effect_key: str


@dataclass(frozen=True, slots=True)
class Stored:
    """Everything that is stored of one Thread, read in one snapshot."""

    id: UUID
    state: str
    version: int
    head: bytes
    owner: str
    wake_at: datetime | None
    events: list[StoredEvent]
    steps: list[StoredStep]


def verify(
    connection: Connection, thread_ids: Sequence[UUID] | None = None, limit: int = 1_000_000
) -> Report:
    """Check `thread_ids`, or all Threads up to `limit`; returns counts and problems.

    Takes no lock and needs an autocommit connection: each page is one snapshot, so that running workers
    are no problem.
    """
    report = Report()
    users: dict[str, tuple[UUID, str]] = {}
    for stored in _read(connection, thread_ids, limit):
        report.threads += 1
        report.events += len(stored.events)
        report.steps += len(stored.steps)
        found = [*check(stored), *_shared_keys(stored, users)]
        report.problems += [Problem(stored.id, what) for what in found]
    if thread_ids is None:
        report.problems += _orphans(connection)
    return report


def check(stored: Stored) -> Iterator[str]:
    """Yield what is wrong with one Thread. Pure."""
    yield from _numbering(stored)
    yield from _chain(stored)
    yield from _waking(stored)
    try:
        folded = fold(event.event() for event in stored.events)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        yield f"the events can't be folded: {type(error).__name__}: {error}"
    else:
        yield from _projections(stored, folded)


def _numbering(stored: Stored) -> Iterator[str]:
    numbers = {event.seq for event in stored.events}
    last = max(numbers, default=0)
    for seq in range(1, max(last, stored.version) + 1):
        if seq not in numbers:
            yield f"event {seq} is missing"
    if last > stored.version:
        yield f"event {last} is there, but the Thread counts only {stored.version}"


def _chain(stored: Stored) -> Iterator[str]:
    """After a broken block go on from its stored link, so that each break is named by itself."""
    head = stored.id.bytes
    for block in _blocks(stored.events):
        kept = block[-1].link
        if kept is None:
            yield f"{_numbers(block)}: the block's last event carries no link"
        elif link(head, block) != kept:
            yield f"{_numbers(block)}: the hash chain does not verify; something was changed here"
        head = kept or head
    if head != stored.head:
        yield f"the Thread's head is not the link of its last event {stored.version}"


def _blocks(events: Sequence[StoredEvent]) -> Iterator[list[StoredEvent]]:
    block: list[StoredEvent] = []
    for event in events:
        block.append(event)
        if event.link is not None:
            yield block
            block = []
    if block:
        yield block


def _numbers(block: Sequence[StoredEvent]) -> str:
    first, last = block[0].seq, block[-1].seq
    return f"event {first}" if first == last else f"events {first} to {last}"


def link(head: bytes, block: Sequence[StoredEvent]) -> bytes:
    """Return a block's link, by the definition that stands beside the table `actum.events`."""
    text = "\x1e".join(event.text() for event in block)
    micros = (block[0].at - EPOCH) // timedelta(microseconds=1)
    hashed = hashlib.sha256(text.encode()).digest()
    return hashlib.sha256(head + hashed + struct.pack(">qi", micros, block[0].seq)).digest()


def _waking(stored: Stored) -> Iterator[str]:
    """Who or what moves the Thread on: a time and an owner (R42)."""
    if stored.state in lifecycle.THREAD_TERMINAL:
        return
    if stored.wake_at is None:
        yield f"is {stored.state} without a time at which it wakes"
    if not stored.owner:
        yield f"is {stored.state} without an owner"


def _projections(stored: Stored, folded: Thread) -> Iterator[str]:
    for refusal in folded.refusals:
        yield f"event {refusal}"
    if folded.state != stored.state:
        yield f"the events say {folded.state}, the Thread's row {stored.state} (at event {stored.version})"
    rows = {step.step_id: step for step in stored.steps}
    for step_id, row in rows.items():
        yield from _step(row, folded, step_id)
    for view in folded.steps.values():
        if view.state in ROW_KEPT and view.step_id not in rows:
            yield f"step {view.step_id!r} is {view.state}, but has no row"


def _step(row: StoredStep, folded: Thread, step_id: str) -> Iterator[str]:
    view = folded.steps.get(step_id)
    if view is None:
        yield f"step {step_id!r} has a row, but no event"
        return
    if view.state != row.state:
        yield f"step {step_id!r}: the events say {view.state}, its row {row.state}"
    if view.effect_key and view.effect_key != row.effect_key:
        yield f"step {step_id!r}: its row has another effect key than its events"


def _shared_keys(stored: Stored, users: dict[str, tuple[UUID, str]]) -> Iterator[str]:
    """An effect key belongs to one step for good, over all its attempts (R53)."""
    for event in stored.events:
        if event.type != "effect.intended":
            continue
        key = str(orjson.loads(event.body).get("effect_key"))
        thread_id, step_id = users.setdefault(key, (stored.id, event.name))
        if (thread_id, step_id) != (stored.id, event.name):
            yield f"event {event.seq}: effect key {key} belongs to step {step_id!r} of Thread {thread_id}"


# --- reading ---


def _read(connection: Connection, thread_ids: Sequence[UUID] | None, limit: int) -> Iterator[Stored]:
    after, left = UUID(int=0), limit
    while left > 0 and (page := _page(connection, thread_ids, after, min(PAGE, left))):
        yield from page
        after, left = page[-1].id, left - len(page)


def _page(connection: Connection, thread_ids: Sequence[UUID] | None, after: UUID, limit: int) -> list[Stored]:
    """One page of Threads with their events and steps, all of one moment."""
    wanted = None if thread_ids is None else list(thread_ids)
    with connection.transaction():
        connection.execute("set transaction isolation level repeatable read, read only")
        rows = connection.execute(
            "select id, state, version, head, owner, wake_at from actum.threads where id > %s "
            "and (%s::uuid[] is null or id = any(%s::uuid[])) order by id limit %s",
            (after, wanted, wanted, limit),
        ).fetchall()
        ids = [row[0] for row in rows]
        events, steps = _events(connection, ids), _steps(connection, ids)
    return [
        Stored(thread_id, state, version, head, owner, wake_at, events[thread_id], steps[thread_id])
        for thread_id, state, version, head, owner, wake_at in rows
    ]


def _events(connection: Connection, ids: list[UUID]) -> dict[UUID, list[StoredEvent]]:
    found: dict[UUID, list[StoredEvent]] = {thread_id: [] for thread_id in ids}
    cursor = connection.execute(
        "select thread_id, seq, type, name, at, actor, body::text, link from actum.events "
        "where thread_id = any(%s::uuid[]) order by thread_id, seq",
        (ids,),
    )
    for thread_id, *columns in cursor:
        found[thread_id].append(StoredEvent(*columns))
    return found


def _steps(connection: Connection, ids: list[UUID]) -> dict[UUID, list[StoredStep]]:
    found: dict[UUID, list[StoredStep]] = {thread_id: [] for thread_id in ids}
    cursor = connection.execute(
        "select thread_id, step_id, state, effect_key from actum.steps "
        "where thread_id = any(%s::uuid[]) order by thread_id, step_id",
        (ids,),
    )
    for thread_id, *columns in cursor:
        found[thread_id].append(StoredStep(*columns))
    return found


def _orphans(connection: Connection) -> list[Problem]:
    """Events and steps of Threads that have no row."""
    cursor = connection.execute(
        "select thread_id from (select thread_id from actum.events where seq = 1 "
        "union select thread_id from actum.steps) found "
        "where not exists (select from actum.threads t where t.id = thread_id) order by 1 limit 100",
    )
    return [Problem(row[0], "has events or steps, but its own row is missing") for row in cursor]
