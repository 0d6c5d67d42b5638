"""The commit: one round trip for the finished work of many Threads.

A `Block` is what one Thread's holder wants recorded: events, step moves, the Thread's next state and what
becomes of its claim. Facts are kept whenever the fence holds; decisions only if the Thread still has the
version on which they were made. Nothing here is retried: the caller sees each block's outcome.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Literal
from uuid import UUID

from actum.domain.events import FACTS
from actum.journal.database import Connection

Claim = Literal["keep", "done", "again"]


class Outcome(StrEnum):
    """What became of one block."""

    COMMITTED = "committed"
    CONFLICT = "conflict"  # facts kept, decisions dropped: read again and decide again
    ENDED = "ended"  # the Thread is terminal; facts kept, decisions dropped
    FENCED = "fenced"  # the claim is not ours any more; kept as late evidence
    MISSING = "missing"


@dataclass(frozen=True, slots=True)
class NewEvent:
    """An event to append; `body` is JSON text. Its number is given at commit."""

    type: str
    name: str
    body: str
    actor: str = "runtime"

    @property
    def fact(self) -> bool:
        """Whether it is kept though the decisions beside it are dropped."""
        return self.type in FACTS


@dataclass(frozen=True, slots=True)
class StepMove:
    """One move of a step's projection, belonging to the event of the same block."""

    step_id: str
    effect_class: str
    state: str
    digest: str
    effect_key: str
    attempts: int
    owner: str
    fact: bool


@dataclass(slots=True)
class Block:
    """What one holder wants recorded about one Thread, in order."""

    thread_id: UUID
    fence: int
    expected: int | None = None
    events: list[NewEvent] = field(default_factory=list)
    moves: list[StepMove] = field(default_factory=list)
    state: str | None = None
    reason: str | None = None
    wake_seconds: float | None = None
    wake_for: str | None = None
    claim: Claim = "keep"


@dataclass(frozen=True, slots=True)
class Receipt:
    """What the journal says about one block: its outcome and the versions around it."""

    outcome: Outcome
    before: int
    after: int
    at: datetime


STATEMENT = """
select outcome, coalesce(version_before, 0) as before, coalesce(version_after, 0) as after, recorded_at
  from actum.commit(%s::uuid[], %s::bigint[], %s::integer[], %s::text[], %s::text[],
                    %s::double precision[], %s::text[], %s::text[],
                    %s::integer[], %s::text[], %s::text[], %s::text[], %s::text[], %s::boolean[],
                    %s::integer[], %s::integer[], %s::text[], %s::text[], %s::text[], %s::text[],
                    %s::text[], %s::integer[], %s::text[], %s::boolean[])
 order by block
"""


def commit(connection: Connection, blocks: Sequence[Block]) -> list[Receipt]:
    """Commit `blocks` (at most one per Thread) in one round trip; receipts come in the same order."""
    cursor = connection.execute(STATEMENT, _parameters(blocks))
    return [Receipt(Outcome(o), before, after, at) for o, before, after, at in cursor]


def _parameters(blocks: Sequence[Block]) -> list[Any]:
    heads = [
        (b.thread_id, b.fence, b.expected, b.state, b.reason, b.wake_seconds, b.wake_for, b.claim)
        for b in blocks
    ]
    events = [(n, e.type, e.name, e.actor, e.body, e.fact) for n, b in enumerate(blocks, 1) for e in b.events]
    moves = [
        (n, stage, m.step_id, m.effect_class, m.state, m.digest, m.effect_key, m.attempts, m.owner, m.fact)
        for n, b in enumerate(blocks, 1)
        for stage, m in _staged(b.moves)
    ]
    return [*_columns(heads, 8), *_columns(events, 6), *_columns(moves, 10)]


def _staged(moves: Iterable[StepMove]) -> Iterable[tuple[int, StepMove]]:
    """Number the moves of each step, so that each is seen by the database's guard by itself."""
    seen: dict[str, int] = {}
    for move in moves:
        seen[move.step_id] = seen.get(move.step_id, 0) + 1
        yield seen[move.step_id], move


def _columns(rows: list[tuple[Any, ...]], width: int) -> list[list[Any]]:
    return [list(column) for column in zip(*rows, strict=True)] or [[] for _ in range(width)]
