"""Examining an installation: can it keep its promises, and is anything stuck? Reads only.

Each examination returns findings; one that fails is a finding too. Installed packages add theirs through
the entry point group `actum.examinations`: a callable that takes the broker's URL.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import entry_points

import psycopg
from sqlalchemy.exc import SQLAlchemyError

from actum.config import Settings
from actum.errors import ActumError
from actum.journal import duties, migrate
from actum.journal.database import Connection, connect

POSTGRES_MIN = 150000
FIXED_CONNECTIONS = 2
"""What each worker process holds: one to claim, one to commit. Each of its turns may open one more (for a
transactional step, or to read again after a conflict)."""
HEART_CONNECTIONS = 1
STALE_SECONDS = 60.0
WAIT_SECONDS = 60.0
DURABLE = {
    "fsync": ("off", "a crash of the machine loses what was acknowledged: set fsync = on"),
    "synchronous_commit": ("off", "a crash loses acknowledged commits: set synchronous_commit = on"),
    "full_page_writes": ("off", "a crash can tear pages: set full_page_writes = on"),
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One answer. Not `ok`: `advice` says in one line what to change. `ok` with advice is a warning."""

    name: str
    ok: bool
    detail: str
    advice: str = ""


Examination = Callable[[Connection, Settings], Iterator[Finding]]


def examine(settings: Settings) -> list[Finding]:
    """Examine the database and the broker that `settings` name. Never raises for what it finds."""
    return [*_database(settings), *_broker(settings)]


def _database(settings: Settings) -> list[Finding]:
    try:
        connection = connect(settings.require_database(), name="actum-doctor")
    except ActumError as error:
        return [Finding("postgres", False, str(error), "check ACTUM_DATABASE_URL and that Postgres runs")]
    with connection:
        found = [f for look in BASIC for f in _guarded(look, connection, settings)]
        if found[-1].ok:  # the rest reads tables
            found += [f for look in LIVE for f in _guarded(look, connection, settings)]
    return found


def _guarded(look: Examination, connection: Connection, settings: Settings) -> list[Finding]:
    """One examination that fails must not hide the others."""
    try:
        return list(look(connection, settings))
    except (psycopg.Error, SQLAlchemyError) as error:
        line = str(error).splitlines()[0]
        return [Finding(getattr(look, "__name__", "").strip("_"), False, line, "see Postgres's log")]


def _server(connection: Connection, _: Settings) -> Iterator[Finding]:
    version, words = connection.info.server_version, connection.info.parameter_status("server_version")
    yield Finding("postgres", True, f"answers at {connection.info.host}:{connection.info.port}")
    advice = "" if version >= POSTGRES_MIN else "move to Postgres 15 or newer"
    yield Finding("postgres version", not advice, str(words), advice)


def _durability(connection: Connection, _: Settings) -> Iterator[Finding]:
    for name, (bad, advice) in DURABLE.items():
        value = _one(connection, f"show {name}")
        yield Finding(name, value != bad, str(value), advice if value == bad else "")


def _schema(_: Connection, settings: Settings) -> Iterator[Finding]:
    url = settings.require_database()
    current, newest = migrate.current(url), migrate.newest(url)
    ok = current == newest
    detail = f"{current or 'none'}; this code needs {newest}"
    yield Finding("schema", ok, newest if ok else detail, "" if ok else "run `actum migrate`")


def _clock(connection: Connection, _: Settings) -> Iterator[Finding]:
    ahead = float(_one(connection, "select extract(epoch from ahead) from actum.clock"))
    advice = "set actum.clock.ahead to '0' in production; only tests move it" if ahead else ""
    yield Finding("clock", True, f"{ahead:g} s ahead of Postgres's own", advice)


def _budget(connection: Connection, settings: Settings) -> Iterator[Finding]:
    """How many worker processes fit at their most, and whether those that live do."""
    names = ("max_connections", "superuser_reserved_connections")
    most, reserved = (int(_one(connection, f"show {name}")) for name in names)
    living = int(_one(connection, "select count(*) from actum.workers where expires_at > actum.now()"))
    each = FIXED_CONNECTIONS + settings.turns + HEART_CONNECTIONS
    fit = (most - reserved) // each
    detail = f"max_connections {most}: {fit} worker processes fit, at up to {each} each; {living} live"
    advice = f"raise max_connections to {living * each + reserved}, or lower ACTUM_TURNS"
    yield Finding("connections", living <= fit, detail, "" if living <= fit else advice)


def _reconciliation(connection: Connection, _: Settings) -> Iterator[Finding]:
    ages = [age for _, age in duties.last_successes(connection).values()]
    detail = f"every duty succeeded within {max(ages):.0f} s" if ages else "never ran"
    ok = bool(ages) and max(ages) <= STALE_SECONDS
    advice = "" if ok else "run `celery -A actum_workers beat`, or `actum reconcile --loop`"
    yield Finding("reconciliation", ok, detail, advice)


def _oldest_work(connection: Connection, _: Settings) -> Iterator[Finding]:
    age = duties.oldest_ready_seconds(connection)
    ok = age <= WAIT_SECONDS
    advice = "" if ok else "start workers for its queue, or more of them"
    yield Finding("oldest ready work", ok, f"{age:.1f} s old" if age else "none waits", advice)


def _versions(connection: Connection, _: Settings) -> Iterator[Finding]:
    """Open Threads that nobody can run."""
    rows = connection.execute(
        "select workflow || '@' || workflow_version as label, count(*) from actum.threads t "
        "where wake_at is not null and not exists (select from actum.workers k "
        "where k.expires_at > actum.now() "
        "and t.workflow || '@' || t.workflow_version = any(k.definitions)) group by 1 order by 1",
    ).fetchall()
    detail = ", ".join(f"{label} ({count} open)" for label, count in rows)
    advice = "start a worker whose ACTUM_WORKFLOWS defines these versions" if rows else ""
    yield Finding("workflow versions", not rows, detail or "a living worker has every open one", advice)


BASIC: tuple[Examination, ...] = (_server, _durability, _schema)
LIVE: tuple[Examination, ...] = (_clock, _budget, _reconciliation, _oldest_work, _versions)


def _broker(settings: Settings) -> list[Finding]:
    if not settings.broker_url:
        advice = "set ACTUM_BROKER_URL, as redis://host:6379/0, if workers run on Celery"
        return [Finding("broker", True, "not configured", advice)]
    found: list[Finding] = []
    for entry in entry_points(group="actum.examinations"):
        found += entry.load()(settings.broker_url)
    return found


def _one(connection: Connection, statement: str) -> str:
    """Return the only value that `statement` gives, as text."""
    row = connection.execute(statement).fetchone()
    assert row is not None
    return str(row[0])
