"""Postgres's own refusal of illegal moves, derived from the lifecycle tables and the event catalogue.

A legal move costs no function call: the trigger's WHEN clause lists the legal pairs.
"""

from __future__ import annotations

from actum.domain import lifecycle
from actum.domain.events import CATALOGUE
from actum.domain.lifecycle import Table

REFUSE = """
create or replace function actum.refuse() returns trigger language plpgsql as $$
begin
    raise exception '%: % is refused', tg_table_name, tg_argv[0]
        using errcode = 'integrity_constraint_violation',
              hint = 'states move only as the lifecycle table says; events never change';
end
$$
"""


def statements() -> list[str]:
    """Return the DDL that makes Postgres hold the lifecycle, in order; safe to run again."""
    return [
        REFUSE,
        *_guards("threads", lifecycle.THREAD_TABLE),
        *_guards("steps", lifecycle.STEP_TABLE),
        *_append_only(),
    ]


def _guards(table: str, moves: Table) -> list[str]:
    births = ", ".join(f"'{state}'" for state in lifecycle.first_states(moves))
    return [
        f"create or replace trigger {table}_moves before update of state on actum.{table} "
        f"for each row when ({lifecycle.guard_condition(moves)}) "
        "execute function actum.refuse('illegal move')",
        f"create or replace trigger {table}_birth before insert on actum.{table} "
        f"for each row when (new.state not in ({births})) "
        "execute function actum.refuse('illegal first state')",
    ]


def _append_only() -> list[str]:
    types = ", ".join(f"'{name}'" for name in sorted(CATALOGUE))
    return [
        "create or replace trigger events_frozen before update or delete on actum.events "
        "for each row execute function actum.refuse('a change of history')",
        *(
            f"create or replace trigger events_kept before truncate on actum.{table} "
            "for each statement execute function actum.refuse('a change of history')"
            for table in ("events", "events_default")
        ),
        "alter table actum.events drop constraint if exists events_known",
        f"alter table actum.events add constraint events_known check (type in ({types}))",
    ]
