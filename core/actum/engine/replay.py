"""Replay: each request of the code is held against the recorded one, in order.

A request is identified by its kind, name, occurrence and the digest of its arguments. The first
difference ends the turn as `blocked`: recorded facts are never read as answers to other questions.
"""

from __future__ import annotations

from collections import Counter

from actum.domain.thread import Thread
from actum.engine.signals import Differs


class Replay:
    """The position of one run of the workflow's code in its Thread's recorded requests."""

    def __init__(self, thread: Thread) -> None:
        self._recorded = thread.requests
        self._position = 0
        self._occurrences: Counter[str] = Counter()

    def name(self, base: str) -> str:
        """Return the deterministic id of the next request called `base`, as in `send#2`."""
        self._occurrences[base] += 1
        return f"{base}#{self._occurrences[base]}"

    def expect(self, request: str, digest: str = "") -> bool:
        """Take the next request; return whether it is recorded. Raises `Differs` (C34)."""
        if self._position >= len(self._recorded):
            return False
        name, recorded_digest = self._recorded[self._position]
        if name != request:
            raise Differs(name, request)
        if digest and recorded_digest and digest != recorded_digest:
            raise Differs(f"{name} with arguments {recorded_digest[:12]}", f"arguments {digest[:12]}")
        self._position += 1
        return True

    def finish(self) -> None:
        """Raise `Differs` if the code ended before it asked for all that is recorded."""
        if self._position < len(self._recorded):
            raise Differs(self._recorded[self._position][0], "the end of the workflow")
