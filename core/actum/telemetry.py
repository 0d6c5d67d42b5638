"""Emit, don't log: code says what happened, subscribers turn it into lines, metrics, traces.

Losing a subscriber changes no state (R60). The catalogue is `EVENTS`; a name outside it is a bug.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import Any

import structlog

EVENTS = {
    "thread.turn": "one leased turn ended",
    "thread.blocked": "code and history differ",
    "thread.lost": "a turn lost its lease",
    "step.failed": "a step failed for good",
    "step.overdue": "a step outlived its time-out",
    "effect.unknown": "an effect's outcome is not known",
    "resolution.required": "an owner must decide",
    "commit.flush": "a batch was committed",
    "commit.retry": "a flush is tried again",
    "doorbell.failed": "the broker could not be rung",
    "doorbell.refused": "a message was not a doorbell",
    "lease.unrenewed": "the heartbeat could not renew",
    "reconcile.duty": "one reconciliation duty ran",
    "reconcile.failed": "a reconciliation duty failed",
    "worker.deaf": "work is ready and nobody takes it",
}

QUIET = frozenset({"thread.turn", "commit.flush", "reconcile.duty"})
"""Events that come with every piece of healthy work: only written with `ACTUM_VERBOSE=1`."""

VERBOSE = os.environ.get("ACTUM_VERBOSE") == "1"

Subscriber = Callable[[str, dict[str, Any]], None]
_log = structlog.get_logger("actum")


def _log_line(name: str, fields: dict[str, Any]) -> None:
    if name in QUIET and not VERBOSE:
        return
    _log.info(name, **fields)


SUBSCRIBERS: list[Subscriber] = [_log_line]


def emit(name: str, **fields: Any) -> None:
    """Tell every subscriber that `name` happened. Never raises: telemetry decides nothing."""
    assert name in EVENTS, name
    for subscriber in SUBSCRIBERS:
        with contextlib.suppress(Exception):  # a broken exporter must not touch a transition
            subscriber(name, fields)
