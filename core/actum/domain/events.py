"""The catalogue of Events: what may be appended, and what each one carries.

An Event is an immutable observation. Its class says who may append it: *evidence* comes from outside,
*decisions* only from the runtime, *administration* from operators. Postgres holds the same list of
types, so an unknown one is refused there too (R3).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal

from actum.errors import Rejected

EventClass = Literal["evidence", "decision", "administration"]


@dataclass(frozen=True, slots=True)
class Kind:
    """What one event type is: its class and the body's required fields."""

    event_class: EventClass
    required: frozenset[str]


def _kind(event_class: EventClass, *required: str) -> Kind:
    return Kind(event_class, frozenset(required))


CATALOGUE: Final[Mapping[str, Kind]] = {
    "thread.started": _kind("decision", "workflow", "version", "input", "deadline_seconds"),
    "thread.waiting": _kind("decision", "wait_for"),
    "thread.blocked": _kind("decision", "expected", "found"),
    "thread.unblocked": _kind("decision"),
    "thread.halted": _kind("decision", "reason"),
    "thread.resumed": _kind("administration", "actor"),
    "thread.completed": _kind("decision", "result"),
    "thread.failed": _kind("decision", "error"),
    "thread.cancelled": _kind("decision", "reason"),
    "thread.expired": _kind("decision", "reason"),
    "deadline.passed": _kind("decision", "in_doubt", "until"),
    "signal.received": _kind("evidence", "name", "body"),
    "timer.fired": _kind("evidence", "timer"),
    "wait.opened": _kind("decision", "seconds"),
    "sleep.started": _kind("decision", "seconds"),
    "value.recorded": _kind("decision", "value"),
    "step.recorded": _kind("decision", "digest", "result"),
    "attempt.failed": _kind("decision", "error", "attempt"),
    "step.failed": _kind("decision", "error"),
    "step.proposed": _kind("decision", "digest"),
    "step.completed": _kind("decision"),
    "step.expired": _kind("decision"),
    "step.cancelled": _kind("decision"),
    "approval.requested": _kind("decision", "digest"),
    "approval.granted": _kind("decision", "digest"),
    "approval.refused": _kind("decision", "digest"),
    "effect.intended": _kind("decision", "digest", "effect_key", "attempt"),
    "effect.confirmed": _kind("evidence", "evidence"),
    "effect.unknown": _kind("evidence", "reason"),
    "effect.absent": _kind("evidence", "evidence"),
    "effect.repeatable": _kind("decision", "reason"),
    "effect.unclear": _kind("evidence", "reason"),
    "check.passed": _kind("evidence", "check"),
    "resolution.required": _kind("decision", "owner", "reason"),
    "resolution.confirmed": _kind("administration", "actor", "reason"),
    "resolution.absent": _kind("administration", "actor", "reason"),
    "resolution.failed": _kind("administration", "actor", "reason"),
    "compensation.started": _kind("decision"),
    "compensation.completed": _kind("decision"),
    "evidence.late": _kind("evidence", "fence", "events"),
    "transition.refused": _kind("decision", "event", "reason"),
}

FACTS: Final = frozenset(
    {
        "value.recorded",
        "wait.opened",
        "sleep.started",
        "step.recorded",
        "step.failed",
        "effect.confirmed",
        "effect.unknown",
        "step.completed",
        "attempt.failed",
        "check.passed",
    },
)
"""Events that a holder appends whatever else happened meanwhile, as long as its fence holds."""


@dataclass(frozen=True, slots=True)
class Event:
    """One recorded observation.

    `seq` counts 1..n in its Thread without a gap; `at` is the database's time; `name` is the step,
    wait or value that it is about, or empty; `actor` is who or what observed it.
    """

    seq: int
    type: str
    name: str
    at: datetime
    actor: str
    body: Mapping[str, Any]


def check_event(type_: str, body: Mapping[str, Any]) -> None:
    """Raise `Rejected` for an unknown type or a body that lacks a required field (R3)."""
    kind = CATALOGUE.get(type_)
    if kind is None:
        raise Rejected(f"unknown event type {type_!r}")
    missing = kind.required - body.keys()
    if missing:
        raise Rejected(f"{type_} lacks {', '.join(sorted(missing))}")
