"""Time in a worker: the database's time at a known moment, carried on by the monotonic clock.

Nothing is decided by this clock; it only fills in what a workflow sees as `wf.now()`.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import datetime, timedelta


@dataclass(frozen=True, slots=True)
class DatabaseClock:
    """The database said `at` when the process's monotonic clock showed `monotonic`."""

    at: datetime
    monotonic: float

    @classmethod
    def heard(cls, at: datetime) -> DatabaseClock:
        """Return a clock set to `at` now."""
        return cls(at, time.monotonic())

    def now(self) -> datetime:
        """Return the database's time as far as this process can tell."""
        return self.at + timedelta(seconds=time.monotonic() - self.monotonic)
