"""The journal: Threads, events, work, steps, commands, workers, and the verbs on them."""

from __future__ import annotations

from importlib.resources import files

from alembic import op

from actum.journal import guards

revision = "0001_pre_journal"
down_revision = None


def upgrade() -> None:
    """Create everything; plain SQL, so it goes to the driver as it is."""
    raw = op.get_bind().connection.driver_connection
    assert raw is not None
    for name in ("tables", "functions"):
        raw.execute(files("actum.journal").joinpath(f"sql/{name}.sql").read_text())
    for statement in guards.statements():
        raw.execute(statement)
    raw.execute("select actum.ensure_partitions(2)")
