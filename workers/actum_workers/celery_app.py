"""The Celery app: queues, settings, and the hooks that start a worker's heart and its engine rooms.

Messages carry ids only, JSON only. No result backend, no ETA, no late acknowledgement: a lost or repeated
message can neither lose nor repeat work.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from datetime import timedelta
from typing import Any

from celery import Celery
from celery.signals import (
    worker_init,
    worker_process_init,
    worker_process_shutdown,
    worker_shutdown,
    worker_shutting_down,
)
from kombu.entity import Queue

from actum.config import settings
from actum.domain.workflow import REGISTRY
from actum_workers import transport

PREFIX = "actum."
RECONCILE = "reconcile"


def queue_name(queue: str) -> str:
    """Return the broker's name for an actum queue."""
    return f"{PREFIX}{queue}"


def workflow_modules() -> list[str]:
    """Return the modules that ACTUM_WORKFLOWS names."""
    return [m.strip() for m in settings().workflows.split(",") if m.strip()]


def make_app() -> Celery:
    """Return a configured Celery app."""
    transport.install()
    made = Celery("actum", broker=settings().require_broker(), include=["actum_workers.tasks"])
    made.conf.update(
        accept_content=["json"],
        task_serializer="json",
        event_serializer="json",
        task_ignore_result=True,
        task_store_errors_even_if_ignored=False,
        result_backend=None,
        task_acks_late=False,
        task_default_queue=queue_name("default"),
        task_create_missing_queues=True,
        task_queues=_queues(),
        worker_prefetch_multiplier=1,
        worker_send_task_events=True,
        task_send_sent_event=False,
        worker_hijack_root_logger=False,
        worker_enable_remote_control=True,
        worker_proc_alive_timeout=60,
        worker_max_tasks_per_child=10_000,
        broker_connection_retry_on_startup=True,
        broker_connection_timeout=2,
        broker_transport_options={"socket_connect_timeout": 2, "socket_keepalive": True},
        timezone="UTC",
        beat_schedule={
            "reconcile": {
                "task": "actum.reconcile",
                "schedule": timedelta(seconds=settings().reconcile_seconds),
                "options": {
                    "queue": queue_name(RECONCILE),
                    "expires": 10 * settings().reconcile_seconds,
                },
            },
        },
    )
    return made


def _queues() -> list[Queue]:
    names = {"default", RECONCILE, *(w.queue for w in REGISTRY.workflows.values())}
    return [Queue(queue_name(n), routing_key=queue_name(n)) for n in sorted(names)]


app = make_app()

_stop_flag = mmap.mmap(-1, 1)
"""One byte shared with every child of the pool: set when the worker is told to stop."""


def stop_asked() -> bool:
    """Whether this worker was told to stop."""
    return _stop_flag[0] != 0


@worker_init.connect
def _start_heart(**_: Any) -> None:
    """In the parent, before it forks: import the workflows once, and start the heart."""
    from actum_workers import heart

    REGISTRY.load(workflow_modules())
    address = os.path.join(tempfile.mkdtemp(prefix="actum-heart-"), "s")
    os.environ[heart.SOCKET_VARIABLE] = address
    app.actum_heart = heart.spawn(address)
    app.actum_presence = heart.connect(address)


@worker_shutting_down.connect
def _ask_to_stop(**_: Any) -> None:
    _stop_flag[0] = 1


@worker_shutdown.connect
def _part_from_heart(**_: Any) -> None:
    if hasattr(app, "actum_presence"):
        app.actum_presence.close()
        app.actum_heart.wait(10)


@worker_process_init.connect
def _start_service(**_: Any) -> None:
    from actum_workers import tasks

    if hasattr(app, "actum_presence"):
        app.actum_presence.close()  # the parent's line; a child has its own
    tasks.start_service()


@worker_process_shutdown.connect
def _stop_service(**_: Any) -> None:
    from actum_workers import tasks

    tasks.stop_service()
