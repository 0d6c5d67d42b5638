"""kombu's Redis transport, made to survive messages that are not messages.

As it stands, one undecodable list item ends the whole worker process, and again after each restart. Here
it is put aside with a word of why: doorbells are hints, so nothing is lost by it (C38).
"""

from __future__ import annotations

from queue import Empty
from typing import Any

from kombu.transport import TRANSPORT_ALIASES, redis

from actum.telemetry import emit

NOT_A_MESSAGE = (ValueError, TypeError, LookupError, AttributeError)


class Channel(redis.Channel):
    """A channel that drops what can't be decoded."""

    def _brpop_read(self, **options: Any) -> Any:
        try:
            return super()._brpop_read(**options)  # type: ignore[no-untyped-call]
        except NOT_A_MESSAGE as error:
            emit("doorbell.refused", why=f"undecodable: {type(error).__name__}")
            raise Empty from None


class Transport(redis.Transport):
    """The Redis transport with that channel."""

    Channel = Channel


def install() -> None:
    """Use this transport for `redis://` and `rediss://` in this process."""
    for scheme in ("redis", "rediss"):
        TRANSPORT_ALIASES[scheme] = f"{__name__}:Transport"
