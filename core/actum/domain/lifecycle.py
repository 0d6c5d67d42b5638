"""The lifecycle, once, as data: `(state, event) -> state`.

Everything that knows about states is derived from the two tables here: the guard below, the triggers by
which Postgres refuses an illegal move, the diagram in the documentation and the exhaustive test.
An event that is not listed for a state is refused; it never means "stay".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum

from actum.errors import IllegalTransition

RULES_VERSION = "1"
"""Goes up with every change of a table below; events fold under the version that they name (R48)."""

NEW = "new"
"""The state of what has no event yet."""


class StepState(StrEnum):
    """Where one step stands; each value says who moves it on."""

    PROPOSED = "proposed"  # a plan without authority; a request for approval moves it
    AWAITING_APPROVAL = "awaiting_approval"  # an eligible approver, or the end of the window
    AUTHORIZED = "authorized"  # may be tried (again): the turn dispatches it
    DISPATCHED = "dispatched"  # sent or about to be; says nothing about the effect
    EFFECT_UNKNOWN = "effect_unknown"  # only reconciliation moves it
    EFFECT_CONFIRMED = "effect_confirmed"  # the target's evidence is attached; checks are due
    COMPLETED = "completed"  # every declared check has evidence; only compensation follows
    NEEDS_RESOLUTION = "needs_resolution"  # a person decides; nothing automatic
    COMPENSATING = "compensating"  # the declared undoing is under way
    COMPENSATED = "compensated"
    FAILED = "failed"  # known not to have happened, and not to be tried again
    REJECTED = "rejected"
    EXPIRED = "expired"  # nobody decided in time
    CANCELLED = "cancelled"


class ThreadState(StrEnum):
    """Where one Thread stands."""

    RUNNING = "running"  # a turn is due or under way
    WAITING = "waiting"  # for a signal, a time, a retry or a reconciliation; has a wake-up time
    BLOCKED = "blocked"  # code and history differ; goes on when matching code is there
    NEEDS_RESOLUTION = "needs_resolution"  # the owner decides
    COMPLETED = "completed"
    FAILED = "failed"
    EXPIRED = "expired"  # the deadline passed
    CANCELLED = "cancelled"


Table = Mapping[tuple[str, str], str]

S = StepState
STEP_TABLE: Table = {
    (NEW, "step.proposed"): S.PROPOSED,
    (NEW, "effect.intended"): S.DISPATCHED,
    (NEW, "attempt.failed"): S.AUTHORIZED,
    (NEW, "step.recorded"): S.COMPLETED,
    (NEW, "step.failed"): S.FAILED,
    (S.PROPOSED, "approval.requested"): S.AWAITING_APPROVAL,
    (S.PROPOSED, "step.cancelled"): S.CANCELLED,
    (S.PROPOSED, "step.expired"): S.EXPIRED,
    (S.AWAITING_APPROVAL, "approval.granted"): S.AUTHORIZED,
    (S.AWAITING_APPROVAL, "approval.refused"): S.REJECTED,
    (S.AWAITING_APPROVAL, "step.expired"): S.EXPIRED,
    (S.AWAITING_APPROVAL, "step.cancelled"): S.CANCELLED,
    (S.AUTHORIZED, "effect.intended"): S.DISPATCHED,
    (S.AUTHORIZED, "attempt.failed"): S.AUTHORIZED,
    (S.AUTHORIZED, "step.recorded"): S.COMPLETED,
    (S.AUTHORIZED, "step.failed"): S.FAILED,
    (S.AUTHORIZED, "step.expired"): S.EXPIRED,
    (S.AUTHORIZED, "step.cancelled"): S.CANCELLED,
    (S.DISPATCHED, "effect.confirmed"): S.EFFECT_CONFIRMED,
    (S.DISPATCHED, "effect.unknown"): S.EFFECT_UNKNOWN,
    (S.DISPATCHED, "attempt.failed"): S.AUTHORIZED,
    (S.DISPATCHED, "step.failed"): S.FAILED,
    (S.EFFECT_UNKNOWN, "effect.confirmed"): S.EFFECT_CONFIRMED,
    (S.EFFECT_UNKNOWN, "effect.absent"): S.AUTHORIZED,
    (S.EFFECT_UNKNOWN, "effect.repeatable"): S.AUTHORIZED,
    (S.EFFECT_UNKNOWN, "effect.unclear"): S.EFFECT_UNKNOWN,
    (S.EFFECT_UNKNOWN, "resolution.required"): S.NEEDS_RESOLUTION,
    (S.EFFECT_CONFIRMED, "step.completed"): S.COMPLETED,
    (S.EFFECT_CONFIRMED, "resolution.required"): S.NEEDS_RESOLUTION,
    (S.NEEDS_RESOLUTION, "resolution.confirmed"): S.EFFECT_CONFIRMED,
    (S.NEEDS_RESOLUTION, "resolution.absent"): S.AUTHORIZED,
    (S.NEEDS_RESOLUTION, "resolution.failed"): S.FAILED,
    (S.NEEDS_RESOLUTION, "step.expired"): S.EXPIRED,
    (S.COMPLETED, "compensation.started"): S.COMPENSATING,
    (S.COMPENSATING, "compensation.completed"): S.COMPENSATED,
    (S.COMPENSATING, "resolution.required"): S.NEEDS_RESOLUTION,
}

T = ThreadState
THREAD_TABLE: Table = {
    (NEW, "thread.started"): T.RUNNING,
    (T.RUNNING, "thread.waiting"): T.WAITING,
    (T.RUNNING, "thread.blocked"): T.BLOCKED,
    (T.RUNNING, "thread.halted"): T.NEEDS_RESOLUTION,
    (T.RUNNING, "thread.completed"): T.COMPLETED,
    (T.RUNNING, "thread.failed"): T.FAILED,
    (T.RUNNING, "thread.cancelled"): T.CANCELLED,
    (T.RUNNING, "signal.received"): T.RUNNING,
    (T.RUNNING, "timer.fired"): T.RUNNING,
    (T.WAITING, "signal.received"): T.RUNNING,
    (T.WAITING, "timer.fired"): T.RUNNING,
    (T.WAITING, "thread.cancelled"): T.CANCELLED,
    (T.BLOCKED, "signal.received"): T.BLOCKED,
    (T.BLOCKED, "thread.unblocked"): T.RUNNING,
    (T.BLOCKED, "thread.cancelled"): T.CANCELLED,
    (T.NEEDS_RESOLUTION, "signal.received"): T.NEEDS_RESOLUTION,
    (T.NEEDS_RESOLUTION, "thread.resumed"): T.RUNNING,
    (T.NEEDS_RESOLUTION, "thread.cancelled"): T.CANCELLED,
    (T.RUNNING, "thread.expired"): T.EXPIRED,
    (T.WAITING, "thread.expired"): T.EXPIRED,
    (T.BLOCKED, "thread.expired"): T.EXPIRED,
    (T.NEEDS_RESOLUTION, "thread.expired"): T.EXPIRED,
    (T.RUNNING, "deadline.passed"): T.NEEDS_RESOLUTION,
    (T.WAITING, "deadline.passed"): T.NEEDS_RESOLUTION,
    (T.BLOCKED, "deadline.passed"): T.NEEDS_RESOLUTION,
}

STEP_EVENTS = frozenset(event for _, event in STEP_TABLE)
THREAD_EVENTS = frozenset(event for _, event in THREAD_TABLE)
STEP_TERMINAL = frozenset(
    {S.COMPENSATED, S.FAILED, S.REJECTED, S.EXPIRED, S.CANCELLED},
)
THREAD_TERMINAL = frozenset({T.COMPLETED, T.FAILED, T.EXPIRED, T.CANCELLED})
IN_DOUBT = frozenset({S.DISPATCHED, S.EFFECT_UNKNOWN})
"""Step states in which the outside world may have been touched and nobody knows yet."""


def next_state(table: Table, state: str, event: str) -> str:
    """Return the state after `event`. Raises `IllegalTransition` for a pair that is not listed (R37)."""
    try:
        return table[state, event]
    except KeyError:
        raise IllegalTransition(f"{event} is not allowed in state {state}") from None


def legal_moves(table: Table) -> list[tuple[str, str]]:
    """Return every (from, to) pair that changes a stored state, sorted; what Postgres enforces."""
    moves = {(str(a), str(b)) for (a, _), b in table.items() if a != NEW and a != b}
    return sorted(moves)


def first_states(table: Table) -> list[str]:
    """Return the states in which a row may be born, sorted."""
    return sorted({str(b) for (a, _), b in table.items() if a == NEW})


def guard_condition(table: Table, column: str = "state") -> str:
    """Return the trigger's WHEN clause: true for a move that no table row allows."""
    pairs = ", ".join(f"('{a}','{b}')" for a, b in legal_moves(table))
    return f"old.{column} is distinct from new.{column} and (old.{column}, new.{column}) not in ({pairs})"


def diagram(table: Table) -> str:
    """Return the table as a mermaid state diagram."""
    lines = ["stateDiagram-v2"]
    lines += [f"    {_node(a)} --> {b} : {event}" for (a, event), b in table.items()]
    lines += [f"    {state} --> [*]" for state in _terminal(table)]
    return "\n".join(lines)


def _node(state: str) -> str:
    return "[*]" if state == NEW else str(state)


def _terminal(table: Table) -> Iterable[str]:
    left = {str(a) for a, _ in table}
    return sorted({str(b) for b in table.values()} - left)
