"""What one turn wants recorded: it collects events and moves, posts facts, and waits at decisions.

A fact is posted and not waited for (commit behind). A decision is a barrier: it goes out with everything
posted before it, in one commit, and holds only if nobody else moved the Thread meanwhile.
"""

from __future__ import annotations

from typing import Any

import orjson

from actum import faults
from actum.domain import lifecycle
from actum.domain.thread import Thread
from actum.domain.workflow import Step
from actum.engine.committer import Committer, Expect
from actum.engine.signals import Lost, Reenter
from actum.errors import ActumError
from actum.ids import effect_key
from actum.journal.claim import Claimed
from actum.journal.commit import Block, NewEvent, Outcome, Receipt, StepMove, commit
from actum.journal.database import Connection


def body(**fields: Any) -> str:
    """Return an event's body as JSON text."""
    return orjson.dumps(fields).decode()


class Recorder:
    """The pen of one turn: it alone writes for its Thread while the claim holds."""

    def __init__(self, claimed: Claimed, thread: Thread, committer: Committer) -> None:
        self._claimed = claimed
        self._committer = committer
        self._version = thread.version
        self._states = {s.step_id: s.state for s in thread.steps.values()}
        self._keys = {s.step_id: s.effect_key for s in thread.steps.values()}
        self._open = self._fresh()

    def _fresh(self) -> Block:
        return Block(self._claimed.thread_id, self._claimed.fence)

    def event(self, type_: str, name: str, text: str, actor: str = "runtime") -> None:
        """Add an event that moves no step."""
        self._open.events.append(NewEvent(type_, name, text, actor))

    def step_event(
        self,
        step: Step,
        step_id: str,
        digest: str,
        type_: str,
        text: str,
        attempts: int,
    ) -> None:
        """Add an event that moves a step. Raises `IllegalTransition` for a move not in the table."""
        before = self._states.get(step_id, lifecycle.NEW)
        after = lifecycle.next_state(lifecycle.STEP_TABLE, before, type_)
        self._states[step_id] = after
        event = NewEvent(type_, step_id, text, step.name if type_ == "effect.confirmed" else "runtime")
        self._open.events.append(event)
        if step.effect.external or after not in ("completed", "failed") or before != lifecycle.NEW:
            self._open.moves.append(self._move(step, step_id, digest, after, attempts, event.fact))

    def _move(self, step: Step, step_id: str, digest: str, state: str, attempts: int, fact: bool) -> StepMove:
        key = self.key(step_id, digest) if step.effect.external else ""
        return StepMove(step_id, step.effect, state, digest, key, attempts, step.owner, fact)

    def key(self, step_id: str, digest: str) -> str:
        """Return the step's effect key: the one on record, else the one derived from the proposal."""
        return self._keys.get(step_id) or effect_key(self._claimed.thread_id, step_id, digest)

    def post(self) -> None:
        """Hand the collected facts over without waiting for them."""
        if self._open.events:
            self._committer.post(self._take(), self._note)

    def decide(
        self,
        state: str | None = None,
        reason: str = "",
        wake_seconds: float | None = None,
        wake_for: str | None = None,
    ) -> Receipt:
        """Commit the collected events as a decision and wait for it.

        Raises `Reenter` if the Thread moved on, `Lost` if the claim is not ours or nothing can be
        committed. With a `state` other than running the claim is given back in the same commit.
        """
        block = self._take()
        block.state, block.reason = state, reason
        block.wake_seconds, block.wake_for = wake_seconds, wake_for
        block.claim = "keep" if state is None else "done"
        return self._settled(block, lambda: self._version)

    def release(self) -> None:
        """Give the claim back so that the Thread goes on elsewhere; facts collected are kept."""
        block = self._take()
        block.claim = "again"
        self._settled(block)

    def leave(self) -> None:
        """Give the claim back and leave the Thread to its timer; facts collected are kept."""
        block = self._take()
        block.claim = "done"
        self._settled(block)

    def commit_on(self, connection: Connection) -> None:
        """Commit the collected facts in the caller's open transaction. Raises `Lost` to undo it."""
        receipt = commit(connection, [self._take()])[0]
        if receipt.outcome in (Outcome.FENCED, Outcome.MISSING):
            raise Lost(receipt.outcome)
        self._note(receipt, None)

    def undo(self, step_id: str, state: str) -> bool:
        """Forget what a rolled-back transaction had recorded; return whether it had recorded anything."""
        moved = self._states.get(step_id, lifecycle.NEW) != state
        self._states[step_id] = state
        self._open = self._fresh()
        return moved

    def barrier(self) -> None:
        """Wait until everything posted for this Thread is durable."""
        self._settled(self._take())

    def _settled(self, block: Block, expect: Expect | None = None) -> Receipt:
        try:
            receipt = self._committer.post(block, self._note, expect).wait()
        except ActumError as error:
            raise Lost(str(error)) from error
        faults.point("result.before")
        if receipt.outcome is Outcome.CONFLICT:
            raise Reenter
        if receipt.outcome is not Outcome.COMMITTED:
            raise Lost(receipt.outcome)
        return receipt

    def _take(self) -> Block:
        taken, self._open = self._open, self._fresh()
        return taken

    def _note(self, receipt: Receipt | None, error: Exception | None) -> None:
        """Follow the version, as long as nobody else wrote in between (on the committing thread)."""
        if receipt is not None and receipt.before == self._version:
            self._version = receipt.after
