"""What a process may still assume about its lease, by its own monotonic clock.

The database decides when a lease ends. This is only the early warning: after the last renewal that is
known to have worked, nothing new is started once too little of the lease is left.
"""

from __future__ import annotations

import time
from typing import Protocol
from uuid import UUID

from actum.errors import LeaseLost

MARGIN = 0.25
"""The part of a lease that is kept back: an effect isn't started in the last quarter."""


class Lease(Protocol):
    """The right of one worker process to work, while it is renewed."""

    incarnation: UUID

    def check(self) -> None:
        """Raise `LeaseLost` unless an effect may be started now."""

    @property
    def stopping(self) -> bool:
        """Whether the process was asked to stop: turns give way at their next step."""


class TimedLease:
    """A lease that was renewed at a known monotonic moment."""

    def __init__(self, incarnation: UUID, lease_seconds: float, asked_at: float) -> None:
        self.incarnation = incarnation
        self.stopping = False
        self._seconds = lease_seconds
        self._renewed = asked_at

    def renewed(self, asked_at: float) -> None:
        """Note a renewal that was asked for at monotonic time `asked_at`."""
        self._renewed = max(self._renewed, asked_at)

    def check(self) -> None:
        """Raise `LeaseLost` in the last quarter of the lease and after it."""
        if time.monotonic() > self._renewed + self._seconds * (1 - MARGIN):
            raise LeaseLost("the lease was not renewed in time; nothing more is started")
