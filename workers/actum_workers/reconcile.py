"""Reconciliation: the duties that make good what died, was lost, or is due.

Each duty is one `run() -> result`, bounded, with no lock that outlives its statement: any number of beats
may run, and one that dies half-way is made good by the next (R134, R138). None needs the user's code:
reconcilers of unknown effects are asked by the turn that a due timer makes ready.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from actum.client import Doorbell, Silent
from actum.config import Settings, settings
from actum.errors import ActumError
from actum.journal import duties
from actum.journal.database import Connection, Database
from actum.telemetry import emit

BATCH_MAX = 500
DEAF_SECONDS = 60.0

Duty = Callable[[Connection], dict[str, Any]]


class Reconciler:
    """Runs the duties. One that fails does not keep the others from running."""

    def __init__(
        self,
        database: Database | None = None,
        doorbell: Doorbell | None = None,
        config: Settings | None = None,
    ) -> None:
        self._database = database or Database(name="actum-reconcile")
        self._doorbell = doorbell or Silent()
        self._settings = config or settings()

    def duties(self) -> dict[str, Duty]:
        """The duties in the order in which they run: what they make ready is rung last."""
        return {
            "rescue": lambda c: duties.rescue(c, BATCH_MAX, self._settings.crashes_max),
            "timers": lambda c: duties.fire_timers(c, BATCH_MAX, self._settings.resolution_days),
            "ring": self._ring,
            "tidy": self._tidy,
        }

    def run_once(self) -> dict[str, Any]:
        """Run every duty once; returns each one's result, or its error."""
        results = {name: self._run(name, duty) for name, duty in self.duties().items()}
        self._database.close()
        return results

    def _run(self, name: str, duty: Duty) -> dict[str, Any]:
        try:
            result = self._database.run(duty)
            self._database.run(lambda c: duties.record_success(c, name, result))
        except ActumError as error:
            emit("reconcile.failed", duty=name, why=str(error))
            return {"error": str(error)}
        emit("reconcile.duty", duty=name, **result)
        return result

    def _ring(self, connection: Connection) -> dict[str, Any]:
        """Ring every queue in which ready work waits, and say so when it has waited too long (C01)."""
        queues = duties.ready_queues(connection)
        for queue in queues:
            self._doorbell.ring(queue)
        age = duties.oldest_ready_seconds(connection)
        if age > DEAF_SECONDS:
            emit("worker.deaf", oldest_ready_seconds=age)
        return {"queues": queues, "oldest_ready_seconds": round(age, 3)}

    def _tidy(self, connection: Connection) -> dict[str, Any]:
        forgotten = duties.forget_workers(connection)
        return {"forgotten": forgotten, "partitions": duties.ensure_partitions(connection)}
