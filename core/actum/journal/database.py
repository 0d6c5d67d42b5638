"""Connections to Postgres. Opened after fork, autocommit, one statement per round trip."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import psycopg
import tenacity
from psycopg.rows import namedtuple_row

from actum.config import settings
from actum.errors import BadConfiguration, Unavailable

T = TypeVar("T")
Connection = psycopg.Connection[Any]

CONNECT_TIMEOUT_SECONDS = 5
RETRYABLE = (psycopg.OperationalError, psycopg.InterfaceError)
"""Errors after which the same guarded statement may be sent again: connection loss, deadlock,
serialization failure, shutdown. Each statement carries its own key or fence, so a repeat is safe (C44)."""


def plain_url(url: str) -> str:
    """Return a libpq URL; accepts SQLAlchemy's `postgresql+psycopg://` spelling too."""
    return url.replace("postgresql+psycopg://", "postgresql://", 1)


def connect(url: str | None = None, *, name: str = "actum") -> Connection:
    """Open one connection in autocommit mode. Raises `Unavailable` or `BadConfiguration`."""
    address = plain_url(url or settings().require_database())
    try:
        return psycopg.connect(
            address,
            autocommit=True,
            row_factory=namedtuple_row,
            connect_timeout=CONNECT_TIMEOUT_SECONDS,
            application_name=name,
            prepare_threshold=None,
            options="-c timezone=UTC -c default_transaction_isolation=read\\ committed",
        )
    except psycopg.OperationalError as error:
        if "authentication" in str(error) or "does not exist" in str(error):
            raise BadConfiguration(f"ACTUM_DATABASE_URL: {_short(error)}") from None
        raise Unavailable(f"Postgres does not answer: {_short(error)}") from None
    except psycopg.ProgrammingError as error:
        raise BadConfiguration(f"ACTUM_DATABASE_URL can't be read: {_short(error)}") from None


def _short(error: Exception) -> str:
    lines = [line for line in str(error).strip().splitlines() if not line.startswith("\t")]  # libpq's hint
    return lines[-1] if lines else type(error).__name__


class Database:
    """One connection that is opened when first used and again after it broke. Not shared by threads."""

    def __init__(self, url: str | None = None, *, name: str = "actum") -> None:
        self._url = url
        self._name = name
        self._connection: Connection | None = None

    def connection(self) -> Connection:
        """Return the open connection, opening it if need be."""
        if self._connection is None or self._connection.closed:
            self._connection = connect(self._url, name=self._name)
        return self._connection

    def close(self) -> None:
        """Close the connection; it is opened again when next used."""
        if self._connection is not None:
            self._connection.close()
        self._connection = None

    def run(self, work: Callable[[Connection], T], *, attempts: int = 5) -> T:
        """Run `work` with the connection; on a passing fault run it again on a fresh one.

        `work` must be safe to repeat even if its first commit went through unseen. Raises `Unavailable`
        after `attempts` tries with growing pauses.
        """
        retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type((*RETRYABLE, Unavailable)),
            wait=tenacity.wait_random_exponential(multiplier=0.05, max=2),
            stop=tenacity.stop_after_attempt(attempts),
            reraise=True,
        )
        try:
            result: T = retrying(self._try, work)
        except RETRYABLE as error:
            raise Unavailable(f"Postgres: {_short(error)}") from error
        return result

    def _try(self, work: Callable[[Connection], T]) -> T:
        try:
            return work(self.connection())
        except RETRYABLE:
            self.close()
            raise
