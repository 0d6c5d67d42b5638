"""Identifiers: time-ordered UUIDs (RFC 9562 version 7) and the effect key (R53)."""

from __future__ import annotations

import hashlib
from uuid import UUID

import uuid_utils


def new_id() -> UUID:
    """Return a fresh UUIDv7; ids sort by creation time, so a Thread's partition follows from its id."""
    return UUID(int=uuid_utils.uuid7().int)


def effect_key(thread_id: UUID, step_id: str, proposal_digest: str) -> str:
    """Return the dedup key for the outside system.

    It depends on Thread, step and proposal only, never on an attempt: the same across crashes and
    deploys (R53). 40 hex digits, so that it fits every provider's limit.
    """
    text = f"{thread_id}\n{step_id}\n{proposal_digest}"
    return hashlib.sha256(text.encode()).hexdigest()[:40]
