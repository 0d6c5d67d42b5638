"""Bringing the schema to the version that this code knows, with Alembic."""

from __future__ import annotations

from pathlib import Path

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory

from actum.errors import BadConfiguration
from actum.journal.database import plain_url


def _script_folder() -> Path:
    """The migrations of the wheel, or of the checkout."""
    package = Path(__file__).resolve().parent.parent
    found = [p for p in (package / "migrations", package.parent.parent / "migrations") if p.is_dir()]
    if not found:
        raise BadConfiguration("the migrations are missing from this installation; install it again")
    return found[0]


def _config(url: str) -> Config:
    config = Config()
    config.set_main_option("script_location", str(_script_folder()))
    config.attributes["url"] = url
    return config


def engine(url: str) -> sa.Engine:
    """Return a SQLAlchemy engine on psycopg 3 for `url`, without a pool."""
    address = plain_url(url).replace("postgresql://", "postgresql+psycopg://", 1)
    return sa.create_engine(address, poolclass=sa.pool.NullPool)


def migrate(url: str) -> str:
    """Bring the schema to the newest version; returns it. Two at once: the second waits."""
    command.upgrade(_config(url), "head")
    return newest(url)


def newest(url: str) -> str:
    """Return the version that this code expects."""
    return ScriptDirectory.from_config(_config(url)).get_current_head() or ""


def current(url: str) -> str:
    """Return the schema's version, or an empty text when there is none."""
    opened = engine(url)
    with opened.connect() as connection:
        options = {"version_table_schema": "actum"}
        if not sa.inspect(connection).has_schema("actum"):
            return ""
        return MigrationContext.configure(connection, opts=options).get_current_revision() or ""
