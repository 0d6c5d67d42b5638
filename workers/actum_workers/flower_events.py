"""What Flower shows: each turn as a task event under its workflow's name. Ids only, never payloads.

Telemetry: losing it changes nothing, and it is limited so that it never costs more than the work.
"""

from __future__ import annotations

import contextlib
import time
from typing import Any

from actum.engine.turn import Ending
from actum.ids import new_id
from actum.journal.claim import Claimed

PER_SECOND_MAX = 20


class _Allowance:
    """How many turns may still be announced in this second."""

    def __init__(self) -> None:
        self.second = 0
        self.left = 0

    def take(self) -> bool:
        second = int(time.monotonic())
        if second != self.second:
            self.second, self.left = second, PER_SECOND_MAX
        self.left -= 1
        return self.left >= 0


_allowance = _Allowance()


def announce(claimed: Claimed, ending: Ending, seconds: float) -> None:
    """Send one turn's events to whoever watches (Flower)."""
    if not _allowance.take():
        return
    with contextlib.suppress(Exception):
        _send(claimed, ending, seconds)


def _send(claimed: Claimed, ending: Ending, seconds: float) -> None:
    from actum_workers.celery_app import app

    uuid = str(new_id())
    label = f"{claimed.workflow}@{claimed.version}"
    ended = "task-failed" if ending is Ending.FAILED else "task-succeeded"
    details: dict[str, Any] = {"runtime": seconds, "result": str(ending), "exception": str(ending)}
    with app.events.default_dispatcher() as dispatcher:
        thread = f"thread={claimed.thread_id}"
        dispatcher.send("task-received", uuid=uuid, name=label, args=thread, kwargs="{}", retries=0)
        dispatcher.send("task-started", uuid=uuid)
        dispatcher.send(ended, uuid=uuid, **details)
