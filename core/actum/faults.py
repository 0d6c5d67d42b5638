"""Seams: named points at which a test can stop a process for real. Inert unless armed.

`ACTUM_FAULTS=name:action:hit,...` arms a process: at the `hit`-th pass of `name` it is killed (`kill`),
stopped (`stop`) or made to raise (`raise`). A file named by `ACTUM_FAULTS_ONCE` is removed at the moment
of firing, so that of many processes exactly one fires, once.
"""

from __future__ import annotations

import os
import signal
from collections import Counter

SEAMS = (
    "claim.before",
    "claim.after",
    "flush.before",
    "flush.after",
    "intent.before",
    "intent.after",
    "effect.before",
    "effect.after",
    "result.before",
    "turn.end",
    "ask.before",
    "ask.after",
    "rescue.before",
    "timer.before",
    "ring.before",
)


class InjectedFault(Exception):
    """Raised by a seam that was armed with `raise`."""


def _armed() -> dict[str, tuple[str, int]]:
    text = os.environ.get("ACTUM_FAULTS", "")
    parts = (item.split(":") for item in text.split(",") if item)
    return {name: (action, int(hit)) for name, action, hit in parts}


_ARMED = _armed()
_PASSES: Counter[str] = Counter()


def point(name: str) -> None:
    """Pass the seam `name`; does nothing unless it was armed."""
    if _ARMED:
        _pass(name)


def _pass(name: str) -> None:
    action, hit = _ARMED.get(name, ("", 0))
    if not action:
        return
    _PASSES[name] += 1
    if _PASSES[name] == hit and _mine():
        _fire(name, action)


def _mine() -> bool:
    """Whether this process takes the one shot: whoever removes the file has it."""
    path = os.environ.get("ACTUM_FAULTS_ONCE")
    if path is None:
        return True
    try:
        os.unlink(path)
    except FileNotFoundError:
        return False
    return True


def _fire(name: str, action: str) -> None:
    if action == "raise":
        raise InjectedFault(name)
    os.kill(os.getpid(), signal.SIGSTOP if action == "stop" else signal.SIGKILL)
