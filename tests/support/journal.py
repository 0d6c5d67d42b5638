"""Small words for tests that speak to the journal directly."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from actum.domain.thread import fold
from actum.ids import new_id
from actum.journal.claim import Claimed, claim, enlist
from actum.journal.commit import Block, NewEvent, StepMove
from actum.journal.database import Connection
from actum.journal.read import events_of
from actum.journal.submit import StartCommand, submit

LABEL = "flow@1"


def a_start(key: str = "", **changes: Any) -> StartCommand:
    """A start command with the usual words."""
    thread_id = new_id()
    usual: dict[str, Any] = {
        "thread_id": thread_id,
        "namespace": "default",
        "key": key or str(thread_id),
        "workflow": "flow",
        "version": "1",
        "queue": "default",
        "priority": 5,
        "owner": "team",
        "deadline_seconds": 86400.0,
        "principal": "test",
        "manifest": "",
        "input": "{}",
    }
    return StartCommand(**{**usual, **changes})


def a_thread(connection: Connection, **changes: Any) -> UUID:
    """Start a Thread; return its id."""
    return submit(connection, [a_start(**changes)])[0].thread_id


def a_worker(connection: Connection, seconds: float = 60.0) -> UUID:
    """Enlist an incarnation; return its id."""
    incarnation = new_id()
    enlist(connection, incarnation, ["default"], [LABEL], seconds)
    return incarnation


def claim_one(connection: Connection, worker: UUID) -> Claimed:
    """Claim one Thread; there must be one."""
    (claimed,) = claim(connection, worker, "default", [LABEL], 1)
    return claimed


def recorded(claimed: Claimed, name: str = "read#1", **more: Any) -> Block:
    """A block with one recorded step: a fact."""
    event = NewEvent("step.recorded", name, '{"digest":"","result":1}')
    return Block(claimed.thread_id, claimed.fence, events=[event], **more)


def intended(claimed: Claimed, expected: int, name: str = "send#1") -> Block:
    """A block that dispatches one effect."""
    text = '{"digest":"d","effect_key":"%s","attempt":1}' % new_id()
    key = text.split('"effect_key":"')[1].split('"')[0]
    return Block(
        claimed.thread_id,
        claimed.fence,
        expected,
        events=[NewEvent("effect.intended", name, text)],
        moves=[StepMove(name, "reconcilable", "dispatched", "d", key, 1, "team", False)],
    )


def assert_sound(connection: Connection, threads: list[UUID]) -> None:
    """Invariants 1, 2 and 4: no gap, the projection is the fold, and nothing was refused."""
    events = events_of(connection, threads)
    rows = connection.execute(
        "select id, state, version, deadline_at from actum.threads where id = any(%s)", (threads,)
    )
    for thread_id, state, version, deadline_at in rows.fetchall():
        mine = events[thread_id]
        folded = fold(mine)
        assert [e.seq for e in mine] == list(range(1, len(mine) + 1))
        assert (folded.version, folded.state, folded.refusals) == (version, state, [])
        assert folded.deadline_at == deadline_at
        steps = connection.execute(
            "select step_id, state from actum.steps where thread_id = %s", (thread_id,)
        ).fetchall()
        assert {s: folded.steps[s].state for s, _ in steps} == dict(steps)
