"""A worker's engine room in this process, on the test's own database and the database's clock."""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from actum import Client
from actum.config import settings
from actum.domain import workflow as definitions
from actum.domain.thread import StepView, Thread
from actum.domain.workflow import Registry, Workflow
from actum.journal.database import Connection, Database, connect
from actum_workers.heart import SOCKET_VARIABLE, Heart
from actum_workers.reconcile import Reconciler
from actum_workers.service import Service

ROUNDS_MAX = 60


def started_service(registry: Registry) -> Service:
    """Start a service. Its heart beats on a thread of this process: a process each would cost seconds."""
    address = os.path.join(tempfile.mkdtemp(prefix="actum-test-"), "s")
    heart = Heart(address, settings().lease_seconds, Database(settings().database_url))
    threading.Thread(target=heart.run, name="test-heart", daemon=True).start()
    os.environ[SOCKET_VARIABLE] = address
    service = Service(settings(), registry, ["default"])
    service.start()
    return service


def run_until_idle(service: Service, reconciler: Reconciler) -> int:
    """Drain and reconcile until neither finds anything to do; returns how many turns ran."""
    turns = 0
    for _ in range(ROUNDS_MAX):
        drained = service.drain("default", 5).turns
        results = reconciler.run_once()
        errors = [r for r in results.values() if "error" in r]
        assert not errors, errors
        turns += drained
        if not drained and not results["rescue"]["rescued"] and not results["timers"]["fired"]:
            return turns
    raise AssertionError(f"not idle after {ROUNDS_MAX} rounds")


@dataclass
class Engine:
    """A service, a reconciler and a client on one database."""

    registry: Registry
    service: Service
    reconciler: Reconciler
    client: Client
    connection: Connection
    started: list[UUID] = field(default_factory=list)

    def idle(self) -> int:
        """Do everything that can be done now."""
        return run_until_idle(self.service, self.reconciler)

    def advance(self, interval: str) -> int:
        """Move the database's clock, then do everything that can be done."""
        self.move_clock(interval)
        return self.idle()

    def move_clock(self, interval: str) -> None:
        """Move the database's clock; nothing else happens."""
        self.connection.execute("select actum.advance(%s::interval)", (interval,))

    def start(self, workflow: Workflow, *args: Any, **kwargs: Any) -> UUID:
        """Start a Thread; nothing runs yet."""
        thread_id = self.client.start(workflow, *args, **kwargs).thread_id
        self.started.append(thread_id)
        return thread_id

    def run(self, workflow: Workflow, *args: Any) -> UUID:
        """Start a Thread and do everything that can be done now."""
        thread_id = self.start(workflow, *args)
        self.idle()
        return thread_id

    def deploy(self) -> None:
        """Replace the worker by a new one, as a deployment does."""
        self.service.stop()
        self.service = started_service(self.registry)

    def state(self, thread_id: UUID) -> str:
        """The Thread's stored state; what a failed one raised is printed for the reader of a failed test."""
        row = self.client.row(thread_id)
        if row.state == "failed":
            print(self.thread(thread_id).error)
        return row.state

    def thread(self, thread_id: UUID) -> Thread:
        """What the Thread's events mean."""
        return self.client.get(thread_id)

    def step(self, thread_id: UUID, step_id: str) -> StepView:
        """What the Thread's events say of one step."""
        return self.thread(thread_id).steps[step_id]

    def types(self, thread_id: UUID) -> list[str]:
        """The types of the Thread's events, in order."""
        return [e.type for e in self.client.events(thread_id)]

    def close(self) -> None:
        """Stop, then hold what is stored against what the events mean."""
        self.service.stop()
        for thread_id in self.started:
            assert_projection(self.connection, self.client, thread_id)
        self.client.close()
        self.connection.close()


def assert_projection(connection: Connection, client: Client, thread_id: UUID) -> None:
    """Invariants 1 and 2: numbers without a gap, and the stored projection is what the fold says."""
    events = client.events(thread_id)
    assert [e.seq for e in events] == list(range(1, len(events) + 1))
    row, thread = client.row(thread_id), client.get(thread_id)
    assert (row.state, row.last_seq) == (thread.state, thread.version)
    assert row.deadline_at == thread.deadline_at
    assert thread.refusals == []
    stored = connection.execute(
        "select step_id, state, attempts, effect_key from actum.steps where thread_id = %s",
        (thread_id,),
    ).fetchall()
    for step_id, state, attempts, key in stored:
        view = thread.steps[step_id]
        assert (step_id, view.state) == (step_id, state)
        if key:
            assert (view.attempts, view.effect_key) == (attempts, key)


@contextmanager
def running(registry: Registry | None = None) -> Iterator[Engine]:
    """Give an engine on the database that the settings name."""
    known = definitions.REGISTRY if registry is None else registry
    engine = Engine(known, started_service(known), Reconciler(), Client(), connect())
    try:
        yield engine
    finally:
        engine.close()
