"""Real servers for tests: one Postgres a session, one database a test, cloned from a migrated template."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest

from actum.config import settings
from actum.journal.database import Database, connect
from actum.journal.migrate import migrate
from actum_workers.devstack import Postgres, Valkey, private_directory

TEMPLATE = "actum_template"


def _admin(url: str, statement: str) -> None:
    with psycopg.connect(url.rsplit("/", 1)[0] + "/postgres", autocommit=True) as connection:
        connection.execute(statement)


def _sibling(url: str, name: str) -> str:
    return f"{url.rsplit('/', 1)[0]}/{name}"


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """A real, fsyncing Postgres with a migrated template database."""
    with Postgres(private_directory(f"test-{uuid4().hex[:12]}") / "pg", {"max_connections": "200"}) as server:
        _admin(server.url, f"create database {TEMPLATE}")
        migrate(_sibling(server.url, TEMPLATE))
        yield server
    _remove(server)


def _remove(server: Postgres | Valkey) -> None:
    import shutil

    shutil.rmtree(Path(server.directory).parent, ignore_errors=True)


@pytest.fixture(scope="session")
def valkey() -> Iterator[Valkey]:
    """A real Valkey."""
    with Valkey(private_directory(f"test-{uuid4().hex[:12]}") / "valkey") as server:
        yield server
    _remove(server)


@pytest.fixture
def url(postgres: Postgres, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A fresh migrated database; the process's settings point at it."""
    name = f"t_{uuid4().hex[:16]}"
    _admin(postgres.url, f"create database {name} template {TEMPLATE}")
    address = _sibling(postgres.url, name)
    monkeypatch.setenv("ACTUM_DATABASE_URL", address)
    monkeypatch.delenv("ACTUM_BROKER_URL", raising=False)
    settings.cache_clear()
    yield address
    settings.cache_clear()
    _admin(postgres.url, f"drop database {name} with (force)")


@pytest.fixture
def connection(url: str) -> Iterator[psycopg.Connection]:
    """An autocommit connection to the test's database."""
    with connect(url) as opened:
        yield opened


@pytest.fixture
def database(url: str) -> Iterator[Database]:
    """The same, as the product uses it."""
    made = Database(url)
    yield made
    made.close()


os.environ.setdefault("ACTUM_LEASE_SECONDS", "5")
