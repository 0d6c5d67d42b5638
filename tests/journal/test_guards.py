"""Postgres itself refuses what the lifecycle doesn't list: from psql, as superuser, for every pair."""

from __future__ import annotations

import re
from uuid import UUID

import psycopg
import pytest
from psycopg.errors import CheckViolation, IntegrityConstraintViolation

from actum.domain import lifecycle
from actum.domain.events import CATALOGUE
from actum.domain.lifecycle import StepState, ThreadState
from actum.journal import guards
from actum.journal.database import Connection
from actum.journal.submit import StartCommand, submit
from tests.support.journal import a_start

THREAD_MOVES = frozenset(lifecycle.legal_moves(lifecycle.THREAD_TABLE))
STEP_MOVES = frozenset(lifecycle.legal_moves(lifecycle.STEP_TABLE))


def _thread(connection: Connection) -> UUID:
    command: StartCommand = a_start()
    return submit(connection, [command])[0].thread_id


def _route(moves: frozenset[tuple[str, str]], births: list[str], goal: str) -> list[str]:
    """A way from birth to `goal` by legal moves."""
    routes = [[b] for b in births]
    for route in routes:
        if route[-1] == goal:
            return route
        routes += [[*route, b] for a, b in sorted(moves) if a == route[-1] and b not in route]
    raise AssertionError(f"{goal} can't be reached")


def _put_step(connection: Connection, thread: UUID, state: str, name: str = "s#1") -> None:
    connection.execute(
        "insert into actum.steps values (%s, %s, 'pure', %s, '', '', 0, '', actum.now())",
        (thread, name, state),
    )


def _move_step(connection: Connection, thread: UUID, state: str) -> None:
    connection.execute(
        "update actum.steps set state = %s where thread_id = %s and step_id = 's#1'", (state, thread)
    )


def _move_thread(connection: Connection, thread: UUID, state: str) -> None:
    """Move a Thread and keep its other constraint: the terminal ones have no wake-up time."""
    connection.execute(
        "update actum.threads set state = %s, wake_at = case when %s then null else deadline_at end "
        "where id = %s",
        (state, state in lifecycle.THREAD_TERMINAL, thread),
    )


@pytest.mark.parametrize("before", StepState)
def test_postgres_allows_exactly_the_listed_moves_of_a_step(connection: Connection, before: str) -> None:
    """R37, invariant 4: from each state every other one is tried."""
    for n, after in enumerate(StepState):
        thread = _thread(connection)
        first, *rest = _route(STEP_MOVES, lifecycle.first_states(lifecycle.STEP_TABLE), before)
        _put_step(connection, thread, first)
        for state in rest:
            _move_step(connection, thread, state)
        if (before, after) in STEP_MOVES or before == after:
            _move_step(connection, thread, after)
        else:
            with pytest.raises(IntegrityConstraintViolation, match="illegal move"):
                _move_step(connection, thread, after)
            stands = connection.execute(
                "select state from actum.steps where thread_id = %s", (thread,)
            ).fetchone()
            assert stands == (before,), n


@pytest.mark.parametrize("before", ThreadState)
def test_postgres_allows_exactly_the_listed_moves_of_a_thread(connection: Connection, before: str) -> None:
    """R37, invariant 4: from each state every other one is tried."""
    for after in ThreadState:
        thread = _thread(connection)
        for state in _route(THREAD_MOVES, ["running"], before)[1:]:
            _move_thread(connection, thread, state)
        if (before, after) in THREAD_MOVES or before == after:
            _move_thread(connection, thread, after)
        else:
            with pytest.raises(IntegrityConstraintViolation, match="illegal move"):
                _move_thread(connection, thread, after)


def test_a_terminal_state_can_not_be_left_in_the_database() -> None:
    """R37: the lists that the triggers enforce name no way out of a terminal state."""
    assert not {a for a, _ in THREAD_MOVES} & set(map(str, lifecycle.THREAD_TERMINAL))
    assert not {a for a, _ in STEP_MOVES} & set(map(str, lifecycle.STEP_TERMINAL))


def test_a_step_is_born_only_in_a_listed_state(connection: Connection) -> None:
    """R37."""
    thread = _thread(connection)
    births = lifecycle.first_states(lifecycle.STEP_TABLE)
    for n, state in enumerate([*StepState, "invented"]):
        if state in births:
            _put_step(connection, thread, state, f"s#{n}")
        else:
            with pytest.raises(IntegrityConstraintViolation, match="illegal first state"):
                _put_step(connection, thread, state, f"s#{n}")


def test_a_thread_is_born_only_running(connection: Connection) -> None:
    """R37."""
    thread = _thread(connection)
    insert = (
        "insert into actum.threads select gen_random_uuid(), namespace, 'other', workflow, "
        "workflow_version, queue, priority, %s, reason, version, head, owner, principal, created_at, "
        "updated_at, deadline_at, wake_at, wake_for from actum.threads where id = %s"
    )
    for state in set(ThreadState) - {"running"}:
        with pytest.raises(IntegrityConstraintViolation, match="illegal first state"):
            connection.execute(insert, (state, thread))
    connection.execute(insert, ("running", thread))


HISTORY_CHANGES = {
    "update": "update actum.events set actor = 'me'",
    "update of the body": "update actum.events set body = '{}'",
    "update of the number": "update actum.events set seq = seq + 1",
    "delete": "delete from actum.events",
    "truncate": "truncate actum.events",
    "update in a partition": "update actum.{partition} set actor = 'me'",
    "delete in a partition": "delete from actum.{partition}",
    "truncate of a partition": "truncate actum.{partition}",
    "truncate of the default partition": "truncate actum.events_default",
}


def test_history_can_not_be_changed_even_by_a_superuser(connection: Connection) -> None:
    """R2, invariant 1."""
    thread = _thread(connection)
    assert connection.execute("show is_superuser").fetchone() == ("on",)
    (partition,) = connection.execute(
        "select tableoid::regclass::text from actum.events where thread_id = %s", (thread,)
    ).fetchone()
    for change in HISTORY_CHANGES.values():
        statement = change.replace("{partition}", partition.split(".")[-1])
        with pytest.raises(IntegrityConstraintViolation, match="change of history is refused"):
            connection.execute(statement)
    assert connection.execute("select count(*) from actum.events").fetchone() == (1,)


def test_an_unknown_type_of_event_is_refused(connection: Connection) -> None:
    """R3."""
    thread = _thread(connection)
    with pytest.raises(CheckViolation, match="events_known"):
        connection.execute("select actum.append(%s, 'effect.guessed', '', 'me', '{}')", (thread,))
    assert connection.execute("select max(seq) from actum.events").fetchone() == (1,)


def test_every_known_type_of_event_is_taken(connection: Connection) -> None:
    """R3: Python's catalogue and Postgres's are the same."""
    thread = _thread(connection)
    for n, type_ in enumerate(CATALOGUE, 2):
        row = connection.execute("select actum.append(%s, %s, 'x', 'me', '{}')", (thread, type_))
        assert row.fetchone() == (n,)


def test_an_event_number_can_not_be_used_twice(connection: Connection) -> None:
    """Invariant 1."""
    thread = _thread(connection)
    with pytest.raises(psycopg.errors.UniqueViolation):
        connection.execute(
            "insert into actum.events values (%s, 1, 'thread.waiting', '', actum.now(), 'me', '{}', null)",
            (thread,),
        )


def test_the_triggers_in_the_database_are_those_of_the_table(connection: Connection) -> None:
    """R37: running the derived statements once more changes not one trigger's text."""

    def triggers() -> list[tuple[str, ...]]:
        return [
            tuple(row)
            for row in connection.execute(
                "select c.relname, t.tgname, pg_get_triggerdef(t.oid), t.tgenabled from pg_trigger t "
                "join pg_class c on c.oid = t.tgrelid join pg_namespace n on n.oid = c.relnamespace "
                "where n.nspname = 'actum' and not t.tgisinternal order by 1, 2"
            )
        ]

    before = triggers()
    assert {"threads_moves", "threads_birth", "steps_moves", "steps_birth", "events_frozen"} <= {
        name for _, name, _, _ in before
    }
    for statement in guards.statements():
        connection.execute(statement)
    assert triggers() == before
    text = next(definition for _, name, definition, _ in before if name == "steps_moves")
    pairs = re.findall(r"old.state <> '(\w+)'::text\) OR \(new.state <> '(\w+)'", text)
    assert set(pairs) == STEP_MOVES
