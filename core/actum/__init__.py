"""Durable workflows that never guess whether an effect happened.

What a workflow's author and a producer need is imported here; the rest is machinery.
"""

from __future__ import annotations

from actum.client import Client, NotEnded, Start, ThreadFailed, Verdict
from actum.domain.effects import (
    Absent,
    Confirmed,
    Mismatch,
    NotSent,
    OutcomeUnknown,
    Refused,
    Unclear,
)
from actum.domain.workflow import Retry, step, workflow
from actum.engine.context import WaitExpired, WorkflowContext
from actum.engine.steps import StepFailed

__all__ = [
    "Absent",
    "Client",
    "Confirmed",
    "Mismatch",
    "NotEnded",
    "NotSent",
    "OutcomeUnknown",
    "Refused",
    "Retry",
    "Start",
    "StepFailed",
    "ThreadFailed",
    "Unclear",
    "Verdict",
    "WaitExpired",
    "WorkflowContext",
    "step",
    "workflow",
]
