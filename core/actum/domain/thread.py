"""The Thread: what its events mean. A pure fold; the same under any split of the events.

`fold` reads nothing but the events. A move that the lifecycle table does not list changes no state and is
kept in `refusals`, so the fold is total.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from actum.domain import lifecycle
from actum.domain.events import Event
from actum.errors import IllegalTransition


@dataclass(slots=True)
class StepView:
    """What the events say of one step: requested, executed, verified, decided (R41)."""

    step_id: str
    state: str = lifecycle.NEW
    digest: str = ""
    effect_key: str = ""
    attempts: int = 0
    result: Any = None
    error: dict[str, Any] | None = None
    due_at: datetime | None = None
    unknown_at: datetime | None = None
    asks: int = 0
    forgiven: int = 0
    evidence: list[dict[str, Any]] = field(default_factory=list)
    late: list[dict[str, Any]] = field(default_factory=list)
    passed_checks: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Wait:
    """An opened wait or sleep: since when and until when."""

    name: str
    opened_at: datetime
    due_at: datetime


@dataclass(frozen=True, slots=True)
class Signal:
    """A received signal; `seq` is its place in the Thread."""

    seq: int
    name: str
    body: Any


@dataclass(slots=True)
class Thread:
    """One Thread as its events tell it. `version` is the number of the last event."""

    version: int = 0
    state: str = lifecycle.NEW
    reason: str = ""
    started: dict[str, Any] = field(default_factory=dict)
    deadline_at: datetime | None = None
    requests: list[tuple[str, str]] = field(default_factory=list)
    steps: dict[str, StepView] = field(default_factory=dict)
    waits: dict[str, Wait] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)
    signals: list[Signal] = field(default_factory=list)
    fired: dict[str, int] = field(default_factory=dict)
    result: Any = None
    error: dict[str, Any] | None = None
    refusals: list[str] = field(default_factory=list)

    @property
    def ended(self) -> bool:
        """Whether the Thread is terminal."""
        return self.state in lifecycle.THREAD_TERMINAL

    @property
    def in_doubt(self) -> list[str]:
        """The steps of which nobody knows whether their effect happened."""
        return [s.step_id for s in self.steps.values() if s.state in lifecycle.IN_DOUBT]


def fold(events: Iterable[Event], thread: Thread | None = None) -> Thread:
    """Return what `events` mean, going on from `thread` if one is given (which is then changed)."""
    folded = thread or Thread()
    for event in events:
        _apply(folded, event)
    return folded


def _apply(thread: Thread, event: Event) -> None:
    thread.version = event.seq
    if event.type in lifecycle.STEP_EVENTS:
        _apply_step(thread, event)
    elif event.type in lifecycle.THREAD_EVENTS:
        _apply_thread(thread, event)
    else:
        _apply_other(thread, event)


def _apply_step(thread: Thread, event: Event) -> None:
    view = thread.steps.get(event.name)
    if view is None:
        view = thread.steps[event.name] = StepView(event.name, digest=event.body.get("digest", ""))
        thread.requests.append((event.name, view.digest))
    try:
        view.state = lifecycle.next_state(lifecycle.STEP_TABLE, view.state, event.type)
    except IllegalTransition as refusal:
        thread.refusals.append(f"{event.seq}: {refusal}")
        return
    _STEP_DETAILS.get(event.type, _no_detail)(view, event)


def _no_detail(view: StepView, event: Event) -> None:
    """Most step events only move the state."""


def _intended(view: StepView, event: Event) -> None:
    view.attempts = event.body["attempt"]
    view.effect_key = event.body["effect_key"]
    view.due_at = view.unknown_at = None
    view.asks = 0


def _recorded(view: StepView, event: Event) -> None:
    view.result = event.body["result"]


def _confirmed(view: StepView, event: Event) -> None:
    view.result = event.body.get("result")
    view.evidence.append({"seq": event.seq, "at": event.at, **(event.body.get("evidence") or {})})


def _attempt_failed(view: StepView, event: Event) -> None:
    view.attempts = event.body["attempt"]
    view.error = event.body["error"]
    view.due_at = event.at + timedelta(seconds=event.body.get("after_seconds", 0))


def _failed(view: StepView, event: Event) -> None:
    view.error = event.body.get("error") or {"type": "resolution", "message": event.body.get("reason")}


def _unknown(view: StepView, event: Event) -> None:
    view.unknown_at = event.at
    view.evidence.append({"seq": event.seq, "at": event.at, "unknown": event.body["reason"]})


def _unclear(view: StepView, event: Event) -> None:
    view.asks += 1
    view.due_at = event.at + timedelta(seconds=event.body.get("after_seconds", 0))


def _repeatable(view: StepView, event: Event) -> None:
    view.due_at = event.at + timedelta(seconds=event.body.get("after_seconds", 0))


def _asked(view: StepView, event: Event) -> None:
    view.evidence.append({"seq": event.seq, "at": event.at, **event.body})


def _allowed_again(view: StepView, event: Event) -> None:
    """An owner's word that the effect is absent gives the step a fresh set of attempts."""
    view.forgiven = view.attempts
    view.due_at = None


_STEP_DETAILS = {
    "resolution.absent": _allowed_again,
    "effect.intended": _intended,
    "step.recorded": _recorded,
    "effect.confirmed": _confirmed,
    "resolution.confirmed": _confirmed,
    "attempt.failed": _attempt_failed,
    "step.failed": _failed,
    "resolution.failed": _failed,
    "effect.unknown": _unknown,
    "effect.unclear": _unclear,
    "effect.absent": _asked,
    "effect.repeatable": _repeatable,
    "resolution.required": _asked,
}


def _apply_thread(thread: Thread, event: Event) -> None:
    try:
        thread.state = lifecycle.next_state(lifecycle.THREAD_TABLE, thread.state, event.type)
    except IllegalTransition as refusal:
        thread.refusals.append(f"{event.seq}: {refusal}")
        return
    body = event.body
    if event.type == "thread.started":
        thread.started = dict(body)
        thread.deadline_at = event.at + timedelta(seconds=body["deadline_seconds"])
    elif event.type == "deadline.passed":
        thread.deadline_at = datetime.fromisoformat(body["until"])
    elif event.type == "signal.received":
        thread.signals.append(Signal(event.seq, body["name"], body["body"]))
    elif event.type == "timer.fired":
        thread.fired.setdefault(body["timer"], event.seq)
    elif event.type == "thread.completed":
        thread.result = body["result"]
    elif event.type == "thread.failed":
        thread.error = body["error"]
    thread.reason = str(body.get("wait_for") or body.get("reason") or body.get("found") or "")


def _apply_other(thread: Thread, event: Event) -> None:
    if event.type in ("wait.opened", "sleep.started"):
        _open_wait(thread, event)
    elif event.type == "value.recorded":
        if event.name not in thread.values:
            thread.requests.append((event.name, ""))
        thread.values.setdefault(event.name, event.body["value"])
    elif event.type == "check.passed":
        _pass_check(thread, event)
    elif event.type == "evidence.late":
        _keep_late(thread, event)


def _pass_check(thread: Thread, event: Event) -> None:
    view = thread.steps.get(event.name)
    if view is None:
        thread.refusals.append(f"{event.seq}: check.passed names no step of this Thread")
    else:
        view.passed_checks.add(event.body["check"])


def _open_wait(thread: Thread, event: Event) -> None:
    if event.name in thread.waits:
        return
    due = event.at + timedelta(seconds=event.body["seconds"])
    thread.waits[event.name] = Wait(event.name, event.at, due)
    thread.requests.append((event.name, ""))


def _keep_late(thread: Thread, event: Event) -> None:
    for late in event.body["events"]:
        if late["name"] in thread.steps:
            thread.steps[late["name"]].late.append({"seq": event.seq, **late})
