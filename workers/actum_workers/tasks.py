"""The two Celery tasks: one answers a doorbell, one reconciles. Neither reads anything but ids."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

from actum.config import settings
from actum.domain.workflow import REGISTRY
from actum.telemetry import emit
from actum_workers import reconcile
from actum_workers.celery_app import app, stop_asked, workflow_modules
from actum_workers.doorbell import CeleryDoorbell
from actum_workers.flower_events import announce
from actum_workers.service import Service

_service: Service | None = None
_lock = threading.Lock()


def start_service() -> Service:
    """Start this process's engine room, once."""
    global _service
    with _lock:
        if _service is None:
            REGISTRY.load(workflow_modules())
            made = Service(settings(), REGISTRY, sorted({w.queue for w in REGISTRY.workflows.values()}))
            made.on_turn = announce
            made.start(stop_asked)
            _service = made
        return _service


def stop_service() -> None:
    """Stop this process's engine room, if it has one."""
    global _service
    if _service is not None:
        _service.stop()
        _service = None


@app.task(name="actum.doorbell", bind=True)
def doorbell(self: Any, queue: Any = "default", *_: Any, **__: Any) -> None:
    """Work on `queue` until nothing is ready or the slice ends; then ring again for what is left."""
    if not isinstance(queue, str) or len(queue) > 200:
        emit("doorbell.refused", why="not a queue name")
        return
    service = start_service()
    drained = service.drain(queue, settings().slice_seconds)
    if drained.more:
        CeleryDoorbell().ring_now(queue)
    if service.worn:
        # Step functions that never returned are still in this process: let the pool replace it.
        os.kill(os.getpid(), signal.SIGTERM)


@app.task(name="actum.reconcile")
def reconcile_task() -> dict[str, Any]:
    """Run every reconciliation duty once."""
    return reconcile.Reconciler(doorbell=CeleryDoorbell()).run_once()


__all__ = ["doorbell", "reconcile_task", "start_service", "stop_service"]
