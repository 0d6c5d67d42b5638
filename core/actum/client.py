"""The client: how other services start Threads, signal them and read their results.

Every way in is the same command. An answer never waits for the broker: the doorbell is rung on a thread
of its own, and what could not be rung is rung by reconciliation.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any, Protocol
from uuid import UUID

import psycopg
import sqlalchemy as sa

from actum import codec
from actum.config import Settings, settings
from actum.domain.events import Event
from actum.domain.thread import Thread, fold
from actum.domain.workflow import Workflow
from actum.errors import ActumError, KeyConflict, Missing, Rejected, ThreadEnded, ThreadNotFound
from actum.ids import new_id
from actum.journal import read, submit
from actum.journal.database import Database
from actum.journal.read import ThreadRow
from actum.journal.submit import StartCommand, Verdict

POLL_SECONDS = 0.05


class NotEnded(ActumError):
    """The Thread has not ended yet; ask again later."""

    exit_code = 4


class ThreadFailed(ActumError):
    """The Thread ended without a result; `state` and `error` say how."""

    def __init__(self, thread_id: UUID, state: str, error: dict[str, Any] | None) -> None:
        self.thread_id = thread_id
        self.state = state
        self.error = error or {}
        super().__init__(f"Thread {thread_id} {state}: {self.error.get('message', '')}")


class Doorbell(Protocol):
    """Something that can tell workers that a queue has work."""

    def ring(self, queue: str) -> None:
        """Ring without waiting and without raising; a lost ring is made good by reconciliation."""


class Silent:
    """No doorbell: reconciliation rings instead."""

    def ring(self, queue: str) -> None:
        """Do nothing."""


def installed_doorbell() -> Doorbell:
    """Return the doorbell that an installed package offers, or a silent one."""
    if not settings().broker_url:
        return Silent()
    for entry in entry_points(group="actum.doorbells"):
        made: Doorbell = entry.load()()
        return made
    return Silent()


@dataclass(frozen=True, slots=True)
class Start:
    """One request to start a Thread, for `start_many` and for submitting in your own transaction."""

    workflow: Workflow | str
    args: Sequence[Any] = ()
    kwargs: dict[str, Any] | None = None
    key: str = ""
    priority: int | None = None


class Client:
    """A producer's view. Thread-safe is each call by itself only: use one client per thread."""

    def __init__(
        self,
        database_url: str | None = None,
        *,
        namespace: str | None = None,
        principal: str = "client",
        doorbell: Doorbell | None = None,
    ) -> None:
        self._settings: Settings = settings()
        self._database = Database(database_url, name="actum-client")
        self._namespace = codec.check_name(namespace or self._settings.namespace, "namespace")
        self._principal = codec.check_name(principal, "principal")
        self._doorbell = doorbell or installed_doorbell()

    def close(self) -> None:
        """Close the connection."""
        self._database.close()

    # commands

    def start(self, workflow: Workflow | str, *args: Any, key: str = "", **kwargs: Any) -> Verdict:
        """Start a Thread with `args`. `key` makes the request repeatable: the same key and input give
        the first Thread again, another input raises `KeyConflict`. Returns once it is durable."""
        return self.start_many([Start(workflow, args, kwargs, key)])[0].or_raise()

    def start_many(self, starts: Iterable[Start]) -> list[Verdict]:
        """Start many in one round trip; each gets its own verdict, conflicts included."""
        commands = [self.command(s) for s in starts]
        if not commands:
            return []
        answers = self._database.run(lambda c: submit.submit(c, commands))
        self.ring({c.queue for c in commands})
        return answers

    def start_in(self, place: Any, workflow: Workflow | str, *args: Any, key: str = "", **kw: Any) -> Verdict:
        """Start a Thread inside the caller's own transaction: it exists if and when that commits.

        `place` is a SQLAlchemy Session or Connection, or a psycopg connection. Ring afterwards with
        `ring`, or leave it to reconciliation. For an AsyncSession use `statement` and `verdicts`.
        """
        command = self.command(Start(workflow, args, kw, key))
        if isinstance(place, psycopg.Connection):
            return submit.submit(place, [command])[0].or_raise()
        rows = place.execute(submit.statement([command])).all()
        return submit.verdicts([command], rows)[0].or_raise()

    def statement(self, commands: Sequence[StartCommand]) -> sa.TextClause:
        """Return the submitting statement, for any SQLAlchemy connection, sync or async."""
        return submit.statement(commands)

    def verdicts(self, commands: Sequence[StartCommand], rows: Sequence[Any]) -> list[Verdict]:
        """Read the verdicts from the rows that `statement` returned."""
        return submit.verdicts(commands, rows)

    def command(self, start: Start) -> StartCommand:
        """Check a request and turn it into a command. Raises `Rejected` before anything is stored."""
        thread_id = new_id()
        key = codec.check_name(start.key or str(thread_id), "key")
        kwargs = start.kwargs or {}
        if isinstance(start.workflow, str):
            return self._by_name(start, thread_id, key, kwargs)
        defined = start.workflow
        if not isinstance(defined, Workflow):
            raise Rejected(f"start takes a @workflow or its name, not {defined!r}")
        return StartCommand(
            thread_id=thread_id,
            namespace=self._namespace,
            key=key,
            workflow=defined.name,
            version=defined.version,
            queue=defined.queue,
            priority=defined.priority if start.priority is None else start.priority,
            owner=defined.owner,
            deadline_seconds=defined.deadline_seconds,
            principal=self._principal,
            manifest=defined.digest,
            input=defined.input_text(tuple(start.args), kwargs, self._settings.payload_max_bytes),
        )

    def _by_name(self, start: Start, thread_id: UUID, key: str, kwargs: dict[str, Any]) -> StartCommand:
        """Start by name, for services that don't have the code; arguments are given by name."""
        if start.args:
            raise Rejected("a workflow started by its name takes its arguments by name")
        name = codec.check_name(str(start.workflow), "workflow name")
        row = self._database.run(lambda c: submit.known_definition(c, name))
        if row is None:
            raise Missing(f"no worker has shown a workflow {name!r} yet")
        text = codec.encode(kwargs, max_bytes=self._settings.payload_max_bytes)
        return StartCommand(
            thread_id, self._namespace, key, name, row.version, row.queue,
            5 if start.priority is None else start.priority,
            row.owner, row.deadline_seconds, self._principal, row.digest, text,
        )  # fmt: skip

    def signal(
        self,
        thread: UUID | str | None,
        name: str,
        body: Any = None,
        *,
        key: str = "",
        dedup_key: str = "",
    ) -> int | None:
        """Send a signal to a Thread, by its id or by the `key` it was started with.

        `dedup_key` makes it repeatable: the same signal is taken once. Returns the event's number, or
        None for a repeat. Raises `ThreadNotFound`, `ThreadEnded`, `KeyConflict`.
        """
        codec.check_name(name, "signal name")
        text = codec.encode(body, max_bytes=self._settings.payload_max_bytes)
        thread_id = self.find(thread, key)
        command_key = codec.check_name(dedup_key or f"signal {new_id()}", "dedup_key")
        verdict, seq, mine, stored = self._database.run(
            lambda c: submit.signal(c, thread_id, command_key, name, text, self._principal),
        )
        self._raise_for(verdict, thread_id, command_key, mine, stored)
        row = self.row(thread_id)
        self.ring({row.queue})
        return seq

    def _raise_for(self, verdict: str, thread_id: UUID, key: str, mine: str, stored: str) -> None:
        if verdict == "missing":
            raise ThreadNotFound(f"no Thread {thread_id}")
        if verdict == "ended":
            raise ThreadEnded(f"Thread {thread_id} has ended; the signal was not taken")
        if verdict == "conflict":
            raise KeyConflict(
                f"key {key!r} was used for another command (fingerprints {mine[:12]} and {stored[:12]})",
            )

    def resolve(
        self, thread: UUID | str, step_id: str, decision: str, reason: str, result: Any = None
    ) -> None:
        """Settle a Thread that needs resolution.

        `decision` is what the world shows of `step_id`: `confirmed` (with its `result`), `absent` (it is
        tried again) or `failed`. With an empty `step_id` a parked Thread just goes on.
        """
        if decision not in ("confirmed", "absent", "failed"):
            raise Rejected("decision must be confirmed, absent or failed")
        codec.check_name(reason, "reason", 1000)
        text = codec.encode(result)
        thread_id = self.find(thread)
        became = self._database.run(
            lambda c: submit.resolve(c, thread_id, step_id, decision, self._principal, reason, text),
        )
        if became == "missing":
            raise ThreadNotFound(f"no Thread {thread_id}")
        if became != "resumed":
            raise Rejected(f"Thread {thread_id}: {became}: nothing waits for a decision on {step_id!r}")
        self.ring({self.row(thread_id).queue})

    def ring(self, queues: Iterable[str]) -> None:
        """Ring the doorbells of `queues`; never raises and never waits for the broker."""
        for queue in queues:
            self._doorbell.ring(queue)

    # reading

    def find(self, thread: UUID | str | None, key: str = "") -> UUID:
        """Return a Thread's id from an id, its text, or its key. Raises `ThreadNotFound`."""
        if thread is not None and key:
            raise Rejected("name the Thread by its id or by its key, not by both")
        if thread is None:
            found = self._database.run(lambda c: read.thread_by_key(c, self._namespace, key))
            if found is None:
                raise ThreadNotFound(f"no Thread was started with key {key!r}")
            return found
        try:
            return thread if isinstance(thread, UUID) else UUID(thread)
        except ValueError:
            raise Rejected(f"{thread!r} is not a Thread id") from None

    def row(self, thread: UUID | str) -> ThreadRow:
        """Return a Thread's projection. Raises `ThreadNotFound`."""
        thread_id = self.find(thread)
        row = self._database.run(lambda c: read.thread_row(c, thread_id))
        if row is None:
            raise ThreadNotFound(f"no Thread {thread_id}")
        return row

    def events(self, thread: UUID | str, after: int = 0) -> list[Event]:
        """Return a Thread's events in order, those numbered above `after`."""
        thread_id = self.row(thread).id
        return self._database.run(lambda c: read.events_of(c, [thread_id], after))[thread_id]

    def get(self, thread: UUID | str) -> Thread:
        """Return what a Thread's events mean."""
        return fold(self.events(thread))

    def result(self, thread: UUID | str, *, timeout: float | None = None) -> Any:
        """Return a Thread's result, waiting up to `timeout` seconds (None: don't wait).

        Raises `NotEnded` when it is still open then, `ThreadFailed` when it ended otherwise.
        """
        ends = time.monotonic() + (timeout or 0.0)
        while not self._ended(row := self.row(thread)):
            if time.monotonic() >= ends:
                raise NotEnded(f"Thread {row.id} is {row.state}" + (f": {row.reason}" if row.reason else ""))
            time.sleep(POLL_SECONDS)
        folded = self.get(row.id)
        if row.state != "completed":
            raise ThreadFailed(row.id, row.state, folded.error or {"message": row.reason})
        return codec.revive(folded.result)

    def _ended(self, row: ThreadRow) -> bool:
        return row.wake_at is None

    def list(self, *, limit: int = 50, before: UUID | None = None, **filters: str) -> list[ThreadRow]:
        """Return Threads, newest first, filtered by state, workflow, owner; `before` pages on."""
        if not 1 <= limit <= 1000:
            raise Rejected("limit must be from 1 to 1000")
        mine = {"namespace": self._namespace, **filters}
        return self._database.run(lambda c: read.list_threads(c, mine, before=before, limit=limit))


__all__ = ["Client", "NotEnded", "Start", "ThreadFailed", "Verdict"]
