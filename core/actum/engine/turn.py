"""One leased turn of one Thread: load, re-enter the workflow, act, commit, give the claim back.

This is the one straight story of the engine. A turn runs the workflow's code from its top against what is
recorded; it ends when the workflow returns, fails, must wait, differs from its history, or loses its
claim. Every way out commits what it means in the same commit that gives the claim back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from actum import codec, faults
from actum.clock import DatabaseClock
from actum.domain.events import Event
from actum.domain.thread import fold
from actum.domain.workflow import Workflow
from actum.engine import signals
from actum.engine.calls import Caller
from actum.engine.committer import Committer
from actum.engine.context import WorkflowContext
from actum.engine.lease import Lease
from actum.engine.record import Recorder, body
from actum.engine.steps import StepRunner, rebuilt
from actum.errors import ActumError
from actum.journal.claim import Claimed
from actum.journal.database import Connection, Database
from actum.journal.read import events_of
from actum.telemetry import emit

REENTRIES_MAX = 50


class Ending(StrEnum):
    """How a turn ended."""

    COMPLETED = "completed"
    FAILED = "failed"
    SUSPENDED = "suspended"
    BLOCKED = "blocked"
    GAVE_WAY = "gave way"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class Tools:
    """What all turns of one process share."""

    committer: Committer
    caller: Caller
    lease: Lease
    reading: Callable[[], Database]
    """Returns the calling thread's own database connection."""


class Turn:
    """One claim's work on one Thread. `events` are those that came with the claim."""

    def __init__(self, claimed: Claimed, events: list[Event], definition: Workflow, tools: Tools) -> None:
        self._claimed = claimed
        self._definition = definition
        self._tools = tools
        self._clock = DatabaseClock.heard(claimed.at)
        self._thread = fold(events)
        self._record = Recorder(claimed, self._thread, tools.committer)

    def run(self) -> Ending:
        """Run the turn to its end; never raises what the workflow or a step raised."""
        for _ in range(REENTRIES_MAX):
            try:
                ending = self._enter()
            except signals.Reenter:
                self._reload()
                continue
            except signals.Lost as lost:
                emit("thread.lost", thread=str(self._claimed.thread_id), why=str(lost))
                return Ending.LOST
            faults.point("turn.end")
            return ending
        return self._give_way()

    def _enter(self) -> Ending:
        """Run the workflow's code once, from its top."""
        if self._thread.ended or self._thread.state != "running":
            self._record.leave()
            return Ending.SUSPENDED
        if self._overdue():
            return self._give_way()
        wf = self._context()
        try:
            result = self._returned(wf)
            wf.replay.finish()
            return self._complete(codec.encode(result))
        except signals.Suspended:
            return Ending.SUSPENDED
        except signals.GiveWay:
            return self._give_way()
        except signals.Differs as difference:
            return self._block(difference)
        except Exception as error:
            return self._fail(wf, error)

    def _returned(self, wf: WorkflowContext) -> Any:
        """Run the workflow's function; a way out that its code caught is taken all the same."""
        try:
            return self._definition.function(wf, **self._input())
        finally:
            wf.stay()

    def _context(self) -> WorkflowContext:
        runner = StepRunner(
            self._thread,
            self._record,
            self._tools.caller,
            self._tools.lease,
            self._claimed.at,
            self._claimed.crashes,
            self._in_transaction,
        )
        return WorkflowContext(
            self._claimed.thread_id,
            self._thread,
            self._record,
            runner,
            self._clock,
            lambda: self._tools.lease.stopping or self._overdue(),
        )

    def _input(self) -> dict[str, Any]:
        return rebuilt(self._definition.function, codec.revive(self._thread.started["input"]))

    def _overdue(self) -> bool:
        """Whether the deadline seems to have passed; the timer duty decides it."""
        assert self._thread.deadline_at is not None
        return self._clock.now() >= self._thread.deadline_at

    def _complete(self, result: str) -> Ending:
        self._record.event("thread.completed", "", f'{{"result":{result}}}')
        self._record.decide("completed")
        return Ending.COMPLETED

    def _fail(self, wf: WorkflowContext, error: Exception) -> Ending:
        """The workflow raised. If it left recorded requests unasked, its code differs instead."""
        try:
            wf.replay.finish()
        except signals.Differs as difference:
            return self._block(difference, codec.storable_error(error)["message"])
        stored = codec.storable_error(error)
        self._record.event("thread.failed", "", body(error=stored))
        self._record.decide("failed", stored["message"][:500])
        return Ending.FAILED

    def _block(self, difference: signals.Differs, also: str = "") -> Ending:
        """Code and history differ: do nothing, say what was expected and found (C34)."""
        emit("thread.blocked", thread=str(self._claimed.thread_id), why=str(difference))
        text = body(expected=difference.expected, found=difference.found, error=also)
        self._record.event("thread.blocked", "", text)
        self._record.decide("blocked", f"incompatible code: {difference}")
        return Ending.BLOCKED

    def _give_way(self) -> Ending:
        """Give the claim back, burning no attempt; an overdue Thread is left to its timer."""
        if self._overdue():
            self._record.leave()
        else:
            self._record.release()
        return Ending.GAVE_WAY

    def _reload(self) -> None:
        """Somebody else wrote: read everything again; what we posted is among it."""
        try:
            events = self._tools.reading().run(
                lambda c: events_of(c, [self._claimed.thread_id])[self._claimed.thread_id],
            )
        except ActumError as error:
            raise signals.Lost(str(error)) from error
        self._thread = fold(events)
        self._record = Recorder(self._claimed, self._thread, self._tools.committer)

    def _in_transaction(
        self,
        function: Callable[..., Any],
        keywords: dict[str, Any],
        recorded: Callable[[Any], str],
    ) -> str:
        """Run a transactional step and its record in one transaction of this thread's connection."""
        connection: Connection = self._tools.reading().connection()
        with connection.transaction():
            text = recorded(function(**keywords, connection=connection))
            self._record.commit_on(connection)
        return text
