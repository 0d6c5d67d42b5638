"""What `verify` finds: nothing in a healthy journal, and each way of changing it behind the guards' back."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest

from actum import Client, step, workflow
from actum.config import settings
from actum.domain.workflow import Registry
from actum.journal.database import Connection
from actum.verify import Report, verify
from actum_workers.heart import SOCKET_VARIABLE
from actum_workers.service import Service

HOUR = timedelta(hours=1)


@step(effect="recorded")
def verified_look(n: int) -> int:
    return n + 1


@step(effect="idempotent", owner="team", timeout=timedelta(seconds=5))
def verified_send(n: int, *, effect_key: str) -> dict[str, Any]:
    return {"n": n, "text": "Grüße\x1f"}


@workflow(version="1", owner="team", deadline=HOUR, on_upgrade="finish")
def verified_order(wf: Any, n: int) -> Any:
    sent = wf.run(verified_send, wf.run(verified_look, n))
    return [sent, wf.wait("one", within=HOUR), wf.wait("two", within=HOUR)]


@pytest.fixture
def service(url: str) -> Iterator[Service]:
    """A worker's engine room with a heart of its own."""
    os.environ.pop(SOCKET_VARIABLE, None)
    registry = Registry()
    registry.add_workflow(verified_order)
    made = Service(settings(), registry, ["default"])
    made.start()
    yield made
    made.stop()


@pytest.fixture
def thread_id(service: Service, connection: Connection) -> UUID:
    """A Thread that was signalled twice and has completed; this connection may now change history."""
    client = Client()
    started = client.start(verified_order, 1).thread_id
    for name in ("one", "two"):
        service.drain("default", 5)
        client.signal(started, name, {"from": name})
    service.drain("default", 5)
    assert client.row(started).state == "completed"
    client.close()
    connection.execute("set session_replication_role = replica")
    return started


def problems(report: Report, thread_id: UUID) -> list[str]:
    assert all(p.thread_id == thread_id for p in report.problems)
    return [p.what for p in report.problems]


def numbers(connection: Connection, type_: str) -> list[int]:
    rows = connection.execute("select seq from actum.events where type = %s order by seq", (type_,))
    return [row[0] for row in rows]


def test_a_healthy_thread_verifies(connection: Connection, thread_id: UUID) -> None:
    report = verify(connection)
    assert report.ok, report.problems
    assert (report.threads, report.steps) == (1, 1)
    count = connection.execute("select count(*) from actum.events").fetchone()
    assert count is not None
    assert report.events == count[0]
    assert verify(connection, [thread_id]).threads == 1
    assert verify(connection, []).threads == 0


def test_open_threads_verify_while_they_wait(connection: Connection, service: Service) -> None:
    client = Client()
    for n in range(3):
        client.start(verified_order, n)
    assert verify(connection).ok
    service.drain("default", 5)
    report = verify(connection)
    assert report.ok, report.problems
    assert verify(connection, limit=2).threads == 2
    client.close()


@pytest.mark.parametrize(
    "change",
    [
        """body = '{"name": "one", "body": {"from": "somebody else"}, "command": "x"}'""",
        "actor = 'somebody else'",
        "name = 'two'",
        "type = 'timer.fired', body = '{\"timer\": \"one\"}'",
        "at = at + interval '1 microsecond'",
        "body = (body::text || ' ')::json",
    ],
)
def test_an_edited_event_is_found(connection: Connection, thread_id: UUID, change: str) -> None:
    seq = numbers(connection, "signal.received")[0]
    connection.execute(f"update actum.events set {change} where seq = {seq}")
    found = problems(verify(connection), thread_id)
    assert f"event {seq}: the hash chain does not verify; something was changed here" in found


def test_an_edit_inside_a_block_names_the_block(connection: Connection, thread_id: UUID) -> None:
    row = connection.execute("select min(seq) from actum.events where link is null").fetchone()
    assert row is not None
    connection.execute("update actum.events set actor = 'x' where seq = %s", row[:1])
    (what,) = problems(verify(connection), thread_id)
    assert what.startswith(f"events {row[0]} to ")


def test_a_deleted_event_is_found(connection: Connection, thread_id: UUID) -> None:
    seq = numbers(connection, "signal.received")[1]
    connection.execute("delete from actum.events where seq = %s", (seq,))
    assert f"event {seq} is missing" in problems(verify(connection), thread_id)


def test_a_cut_end_is_found(connection: Connection, thread_id: UUID) -> None:
    (last,) = numbers(connection, "thread.completed")
    connection.execute("delete from actum.events where seq = %s", (last,))
    found = problems(verify(connection), thread_id)
    assert f"event {last} is missing" in found
    assert f"the Thread's head is not the link of its last event {last}" in found


def test_a_changed_state_is_found(connection: Connection, thread_id: UUID) -> None:
    connection.execute("update actum.threads set state = 'failed'")
    (last,) = numbers(connection, "thread.completed")
    assert problems(verify(connection), thread_id) == [
        f"the events say completed, the Thread's row failed (at event {last})",
    ]


def test_swapped_bodies_are_found(connection: Connection, thread_id: UUID) -> None:
    one, two = numbers(connection, "signal.received")
    connection.execute(
        "update actum.events e set body = o.body from actum.events o "
        "where e.seq in (%(a)s, %(b)s) and o.seq in (%(a)s, %(b)s) and e.seq <> o.seq",
        {"a": one, "b": two},
    )
    changed = [f"event {n}: the hash chain does not verify; something was changed here" for n in (one, two)]
    assert problems(verify(connection), thread_id) == changed


def test_a_changed_step_is_found(connection: Connection, thread_id: UUID) -> None:
    connection.execute("update actum.steps set state = 'failed'")
    (what,) = problems(verify(connection), thread_id)
    assert what.endswith("the events say completed, its row failed")


def test_a_missing_thread_row_is_found(connection: Connection, thread_id: UUID) -> None:
    connection.execute("delete from actum.threads")
    assert problems(verify(connection), thread_id) == ["has events or steps, but its own row is missing"]


def test_an_open_thread_without_an_owner_is_found(connection: Connection, url: str) -> None:
    client = Client()
    started = client.start(verified_order, 1).thread_id
    client.close()
    connection.execute("set session_replication_role = replica")
    connection.execute("update actum.threads set owner = ''")
    assert problems(verify(connection), started) == ["is running without an owner"]


def test_an_effect_key_that_two_threads_used_is_found(connection: Connection, thread_id: UUID) -> None:
    other = UUID(int=thread_id.int + 1)
    connection.execute(
        "insert into actum.events select %s, seq, type, name, at, actor, body, link from actum.events",
        (other,),
    )
    connection.execute(
        "insert into actum.threads select (jsonb_populate_record(t, jsonb_build_object("
        "'id', %s::uuid, 'key', 'other'))).* from actum.threads t",
        (other,),
    )
    found = [p.what for p in verify(connection).problems if p.thread_id == other]
    assert any("belongs to step" in what and str(thread_id) in what for what in found)
    assert "event 1: the hash chain does not verify; something was changed here" in found


def test_verify_only_reads(connection: Connection, thread_id: UUID) -> None:
    connection.execute("set default_transaction_read_only = on")
    assert verify(connection).ok
    with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
        connection.execute("delete from actum.steps")
