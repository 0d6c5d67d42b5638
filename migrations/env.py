"""Alembic's environment: one transaction a migration, serialised by a transaction-scoped lock."""

from __future__ import annotations

from alembic import context
from sqlalchemy import text

from actum.journal.migrate import engine

LOCK = 0x61637475  # any fixed number; held by the transaction, so a pooler can't leave it behind


def run() -> None:
    """Run what is due."""
    with engine(context.config.attributes["url"]).connect() as connection:
        connection.execute(text("select pg_advisory_xact_lock(:n)"), {"n": LOCK})
        connection.execute(text("set lock_timeout = '5s'"))
        connection.execute(text("create schema if not exists actum"))
        context.configure(connection=connection, version_table_schema="actum")
        with context.begin_transaction():
            context.run_migrations()
        connection.commit()


run()
