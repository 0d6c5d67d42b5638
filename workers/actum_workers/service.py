"""One worker process at work: it claims ready Threads of a queue and runs their turns.

Knows nothing of Celery. `start` after fork; `drain` until nothing is ready or the slice ends; `stop` gives
everything back.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from uuid import UUID

import orjson

from actum.config import Settings
from actum.domain.events import Event
from actum.domain.workflow import Registry, Workflow
from actum.engine.calls import Caller
from actum.engine.committer import Committer
from actum.engine.lease import Lease
from actum.engine.turn import Ending, Tools, Turn
from actum.errors import ActumError, LeaseLost, Unavailable
from actum.ids import new_id
from actum.journal.claim import Claimed, abandon, claim, enlist, release_strays, retire
from actum.journal.database import Connection, Database
from actum.journal.duties import unblock
from actum.journal.read import events_of
from actum.journal.submit import show_definition
from actum.telemetry import emit
from actum_workers.heart import SOCKET_VARIABLE, Beating, connect, spawn

FAST_SECONDS = 0.05
"""Claims are sized so that a batch keeps the process busy for about this long: slow work isn't hoarded."""

HEART_ENDS_SECONDS = 10.0

OnTurn = Callable[[Claimed, Ending, float], None]


@dataclass(frozen=True, slots=True)
class Drained:
    """What one slice did: `more` says that work may be left."""

    turns: int
    more: bool


class Service:
    """A worker process's engine room."""

    def __init__(self, settings: Settings, registry: Registry, queues: list[str]) -> None:
        self._settings = settings
        self._registry = registry
        self._queues = queues
        self._database = Database(name="actum-worker")
        self._committer = Committer(Database(name="actum-committer"))
        self._caller = Caller()
        self._pool = ThreadPoolExecutor(settings.turns, thread_name_prefix="actum-turn")
        self._local = threading.local()
        self._turn_databases: list[Database] = []
        self._turn_seconds = FAST_SECONDS
        self._lease: Beating | None = None
        self._own_heart: subprocess.Popen[bytes] | None = None
        self._tainted = False
        self._strays = False
        self._active: set[UUID] = set()
        self._stop_asked: Callable[[], bool] = lambda: False
        self.on_turn: OnTurn = lambda claimed, ending, seconds: None

    def start(self, stop_asked: Callable[[], bool] = lambda: False) -> None:
        """Take up an incarnation and show the definitions. Call after fork, once."""
        self._stop_asked = stop_asked
        self._committer.start()
        self._begin_incarnation()
        self._database.run(self._show)

    def _begin_incarnation(self) -> Beating:
        """Enlist under a fresh id; an incarnation that was lost is never taken up again.

        The heart is there first, so that the first beat comes in time.
        """
        if self._lease is not None:
            self._lease.close()  # the heart retires it; whatever it still holds is rescued
        lease_seconds = self._settings.lease_seconds
        incarnation, labels = new_id(), self._registry.labels()
        peer = self._heart()
        asked_at = time.monotonic()
        self._database.run(lambda c: enlist(c, incarnation, self._queues, labels, lease_seconds))
        self._lease = Beating(incarnation, lease_seconds, peer, asked_at)
        self._tainted = False
        return self._lease

    def _heart(self) -> socket.socket:
        """A line to the worker's heart; a process that finds none starts its own."""
        address = os.environ.get(SOCKET_VARIABLE, "")
        if address:
            with contextlib.suppress(OSError):
                return connect(address, seconds=1.0)
        address = os.path.join(tempfile.mkdtemp(prefix="actum-heart-"), "s")
        os.environ[SOCKET_VARIABLE] = address
        self._own_heart = spawn(address)
        return connect(address)

    def _show(self, connection: Connection) -> None:
        for workflow in self._registry.workflows.values():
            show_definition(
                connection,
                workflow=workflow.name,
                version=workflow.version,
                owner=workflow.owner,
                queue=workflow.queue,
                deadline_seconds=workflow.deadline_seconds,
                on_upgrade=workflow.on_upgrade,
                digest=workflow.digest,
                body=orjson.dumps({"label": workflow.label}).decode(),
            )
        unblock(connection, self._registry.labels())

    def drain(self, queue: str, slice_seconds: float) -> Drained:
        """Run turns of `queue` until nothing is ready, the slice ends or the process is to stop."""
        lease = self._current_lease()
        tools = Tools(self._committer, self._caller, lease, self._reading)
        ends, running = time.monotonic() + slice_seconds, set[Future[None]]()
        turns = self._drain_suspects(queue, tools, ends)
        more = True
        while more or running:
            lease.stopping = self._stop_asked()
            more = more and not lease.stopping and time.monotonic() < ends
            if more and len(running) <= self._settings.turns // 2:
                claimed = self._claim(queue, lease, self._room(len(running)))
                more = bool(claimed)
                turns += len(claimed)
                running |= {self._pool.submit(self._turn, c, e, tools) for c, e in claimed}
            if running:
                _, running = wait(running, timeout=0.2, return_when=FIRST_COMPLETED)
                more = more or (bool(running) and not lease.stopping)
        return Drained(turns, time.monotonic() >= ends and not lease.stopping)

    def _drain_suspects(self, queue: str, tools: Tools, ends: float) -> int:
        """Run Threads that lost a worker before, one by one with nothing beside them (C08)."""
        turns = 0
        while time.monotonic() < ends and not self._stop_asked():
            claimed = self._claim(queue, tools.lease, 1, suspects=True)
            if not claimed:
                break
            self._turn(*claimed[0], tools)
            turns += 1
        return turns

    def _current_lease(self) -> Beating:
        lease = self._lease or self._begin_incarnation()
        try:
            lease.check()
        except LeaseLost:
            self._tainted = True
        if self._tainted:
            return self._begin_incarnation()
        return lease

    def _room(self, running: int) -> int:
        free = self._settings.turns - running
        fast = int(self._settings.turns * FAST_SECONDS / max(self._turn_seconds, 0.0005))
        return max(1, min(self._settings.claim_max, max(free, fast)))

    def _claim(
        self,
        queue: str,
        lease: Lease,
        limit: int,
        suspects: bool = False,
    ) -> list[tuple[Claimed, list[Event]]]:
        """Claim, and read what was claimed.

        A claim whose answer was lost, or whose events could not be read, is not worked on: `_active` does
        not know it, so the next claim first gives it back (C44).
        """

        def work(connection: Connection) -> list[tuple[Claimed, list[Event]]]:
            if self._strays:
                release_strays(connection, lease.incarnation, list(self._active))
            self._strays = True
            found = claim(connection, lease.incarnation, queue, self._registry.labels(), limit, suspects)
            events = events_of(connection, [c.thread_id for c in found]) if found else {}
            self._active.update(c.thread_id for c in found)
            self._strays = False
            return [(c, events[c.thread_id]) for c in found]

        try:
            return self._database.run(work)
        except ActumError as error:
            emit("commit.retry", blocks=0, error=str(error))
            return []

    def _turn(self, claimed: Claimed, events: list[Event], tools: Tools) -> None:
        began = time.monotonic()
        ending = self._ended(claimed, events, tools)
        if ending is Ending.LOST:
            self._abandon(claimed)
        self._active.discard(claimed.thread_id)
        seconds = time.monotonic() - began
        self._turn_seconds += 0.1 * (seconds - self._turn_seconds)
        emit("thread.turn", thread=str(claimed.thread_id), ending=str(ending), seconds=seconds)
        self.on_turn(claimed, ending, seconds)

    def _ended(self, claimed: Claimed, events: list[Event], tools: Tools) -> Ending:
        """Run the turn. Whatever escapes it must not leave a claim with a living worker (C08)."""
        try:
            return Turn(claimed, events, self._definition(claimed), tools).run()
        except BaseException as error:
            emit("thread.lost", thread=str(claimed.thread_id), why=repr(error))
            return Ending.LOST

    def _abandon(self, claimed: Claimed) -> None:
        """A living worker must not hold what it no longer works on; failing that, end the incarnation."""
        try:
            self._reading().run(lambda c: abandon(c, claimed.thread_id, claimed.fence))
        except Unavailable:
            self._tainted = True

    def _definition(self, claimed: Claimed) -> Workflow:
        return self._registry.workflows[claimed.workflow, claimed.version]

    def _reading(self) -> Database:
        """Each turn thread's own connection, opened when first needed."""
        if not hasattr(self._local, "database"):
            self._local.database = Database(name="actum-turn")
            self._turn_databases.append(self._local.database)
        database: Database = self._local.database
        return database

    @property
    def worn(self) -> bool:
        """Whether step functions were left behind, so that the process should be replaced."""
        return self._caller.stuck > 0

    def stop(self) -> None:
        """Flush, retire the incarnation, and part from the heart."""
        self._pool.shutdown(wait=True)
        for database in self._turn_databases:
            database.close()
        self._committer.stop()
        self._caller.close()
        if self._lease is not None:
            incarnation = self._lease.incarnation
            with contextlib.suppress(Unavailable):  # else the lease ends by itself
                self._database.run(lambda c: retire(c, incarnation), attempts=1)
            self._lease.close()
        if self._own_heart is not None:
            self._own_heart.wait(HEART_ENDS_SECONDS)
        self._database.close()
