"""The doorbell on the broker: a hint that a queue has work. It never blocks a producer.

A ring is skipped while enough unread doorbells wait: each of them will be read after our commit, and
whoever reads one works until nothing is ready.
"""

from __future__ import annotations

import atexit
import os
import queue as queues
import threading
from typing import Any, ClassVar

import tenacity

from actum.config import settings
from actum.telemetry import emit

CLOSING_SECONDS = 0.5


class CeleryDoorbell:
    """Rings by Celery message, on a thread of its own; one per process is enough."""

    _shared: ClassVar[dict[int, CeleryDoorbell]] = {}

    def __new__(cls) -> CeleryDoorbell:
        """Return the process's doorbell; a forked child gets a fresh one."""
        pid = os.getpid()
        if pid not in cls._shared:
            made = super().__new__(cls)
            made._begin()
            cls._shared = {pid: made}
        return cls._shared[pid]

    def _begin(self) -> None:
        self._waiting: set[str] = set()
        self._lock = threading.Lock()
        self._rings: queues.SimpleQueue[str] = queues.SimpleQueue()
        self._idle = threading.Event()
        self._idle.set()
        threading.Thread(target=self._loop, name="actum-doorbell", daemon=True).start()
        atexit.register(self._idle.wait, CLOSING_SECONDS)

    def ring(self, queue: str) -> None:
        """Ask for a ring; returns at once. Rings for one queue that wait together become one."""
        with self._lock:
            if queue in self._waiting:
                return
            self._waiting.add(queue)
            self._idle.clear()
        self._rings.put(queue)

    def _loop(self) -> None:
        while True:
            queue = self._rings.get()
            with self._lock:
                self._waiting.discard(queue)
            try:
                self.ring_now(queue)
            except Exception as error:
                emit("doorbell.failed", queue=queue, why=f"{type(error).__name__}: {error}"[:300])
            with self._lock:
                if not self._waiting:
                    self._idle.set()

    def ring_now(self, queue: str) -> bool:
        """Ring, waiting for the broker; return whether a message was sent. Raises what kombu raises."""
        retrying = tenacity.Retrying(
            stop=tenacity.stop_after_attempt(2),
            wait=tenacity.wait_random(0.05, 0.2),
            reraise=True,
        )
        return bool(retrying(self._send, queue))

    def _send(self, queue: str) -> bool:
        from actum_workers.celery_app import queue_name
        from actum_workers.tasks import doorbell

        name = queue_name(queue)
        with doorbell.app.connection_for_write() as connection:
            connection.ensure_connection(max_retries=1, timeout=2)
            if unread(connection, name) >= settings().doorbells_max:
                return False
            doorbell.apply_async(
                args=[queue], queue=name, connection=connection, retry=False, ignore_result=True
            )
        return True


def unread(connection: Any, name: str) -> int:
    """Return how many messages wait in a broker queue; a queue that isn't there has none."""
    try:
        with connection.channel() as channel:
            return int(channel.queue_declare(queue=name, passive=True).message_count)
    except connection.channel_errors:
        return 0
