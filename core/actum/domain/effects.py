"""Effect classes, and the words in which a step or a reconciler says what happened outside.

A step that raises `NotSent` or `Refused` says that the target was certainly not changed; anything else
that goes wrong after the intent was committed leaves the outcome unknown (R69, RFC 9110 9.2.2).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from actum.errors import ActumError


class EffectClass(StrEnum):
    """What may be done when a step's outcome is not known."""

    PURE = "pure"  # run again
    RECORDED = "recorded"  # run again; once recorded, never again
    TRANSACTIONAL = "transactional"  # cannot be unknown: one commit
    IDEMPOTENT = "idempotent"  # send again with the same key
    RECONCILABLE = "reconcilable"  # ask the target
    UNREPEATABLE = "unrepeatable"  # ask the owner

    @property
    def external(self) -> bool:
        """Whether the step acts on the outside world, so that intent comes before it."""
        return self in _EXTERNAL


_EXTERNAL = frozenset(
    {EffectClass.IDEMPOTENT, EffectClass.RECONCILABLE, EffectClass.UNREPEATABLE},
)


class NotSent(ActumError):
    """The request certainly did not reach the target (refused, never connected); safe to retry."""


class Refused(ActumError):
    """The target answered that it did not and will not do it (a 4xx); not retried."""


class OutcomeUnknown(ActumError):
    """The request may have reached the target; nobody knows whether it was carried out."""


@dataclass(frozen=True, slots=True)
class Confirmed:
    """The target says that the effect happened. `result` is what the step would have returned;
    `evidence` is what the target showed: external id, digest of the raw answer, from where."""

    result: Any = None
    evidence: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Absent:
    """The target says that the effect did not happen (so far)."""

    evidence: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Mismatch:
    """The target shows something under this key that is not what was intended."""

    differences: dict[str, Any] = field(default_factory=dict)
    evidence: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Unclear:
    """The target could not be asked, or its answer does not decide."""

    reason: str = ""


Finding = Confirmed | Absent | Mismatch | Unclear
