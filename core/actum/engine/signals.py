"""How a turn leaves a workflow's stack. All derive from `BaseException`, so that a workflow's own
`except Exception` can't swallow them; they never leave the engine."""

from __future__ import annotations


class Leave(BaseException):
    """The root of the ways out."""


class Suspended(Leave):
    """Everything that can be done now is done and recorded; the claim was given back."""


class GiveWay(Leave):
    """The process is stopping or the deadline has passed: give the claim back, nothing lost."""


class Reenter(Leave):
    """The Thread moved on meanwhile: read it again and decide again."""


class Lost(Leave):
    """The claim is not ours any more, or nothing can be committed: stop without another word."""


class Differs(Leave):
    """The code asks for something else than the history records."""

    def __init__(self, expected: str, found: str) -> None:
        super().__init__(f"expected {expected}, found {found}")
        self.expected = expected
        self.found = found
