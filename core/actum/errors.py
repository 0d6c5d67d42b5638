"""The one error tree, shaped by what the caller does next.

`Rejected`: change the input. `Conflict`: look at what is there. `Missing`: it does not exist.
`Unavailable`: try again later. Control-flow signals derive from `BaseException` and are private.
Exit codes of the CLI are mapped here, once per family.
"""

from __future__ import annotations


class ActumError(Exception):
    """Root of every error that actum raises on purpose."""

    exit_code = 1


class Rejected(ActumError):
    """The input can't be accepted; nothing was stored. The message says what to change."""

    exit_code = 2


class BadValue(Rejected):
    """A value can't be stored as JSON without loss. `path` points at it, as in `$.items[2].at`."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


class BadDefinition(Rejected):
    """A workflow or step definition is incomplete; the message says what to write."""


class BadConfiguration(Rejected):
    """A setting is missing or wrong; the message names the setting to change."""


class Missing(ActumError):
    """What was named does not exist."""

    exit_code = 3


class ThreadNotFound(Missing):
    """No Thread has this id or key."""


class Conflict(ActumError):
    """Somebody else was first; look at what is there and decide again."""

    exit_code = 4


class KeyConflict(Conflict):
    """The dedup key was used for another request; nothing was changed."""


class ThreadEnded(Conflict):
    """The Thread has reached a terminal state; it accepts nothing more."""


class IllegalTransition(Conflict):
    """The lifecycle table has no such move; the refusal is recorded and no state changes."""


class LeaseLost(Conflict):
    """The lease or its fence is no longer current; what was written late is kept as evidence."""


class Unavailable(ActumError):
    """A server that is needed does not answer now; trying again later is safe."""

    exit_code = 6
