"""Commands: one answer for one key, whoever asks, how often, and inside whose transaction."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from actum import Client, Start, workflow
from actum.domain import workflow as definitions
from actum.domain.workflow import Registry, Workflow
from actum.errors import KeyConflict, Missing, Rejected, ThreadEnded, ThreadNotFound
from actum.journal.database import Connection, connect
from actum.journal.migrate import engine as sa_engine
from actum.journal.submit import Answer, submit
from tests.support.journal import a_start, a_thread


@pytest.fixture
def charge(monkeypatch: pytest.MonkeyPatch) -> Workflow:
    """A workflow that nobody runs here."""
    monkeypatch.setattr(definitions, "REGISTRY", Registry())

    @workflow(version="1", owner="team", deadline=timedelta(days=1), on_upgrade="finish", name="charge")
    def made(wf: Any, amount: Any, note: str = "") -> None:
        """Only started, never run."""

    return made


@pytest.fixture
def client(url: str) -> Iterator[Client]:
    """A client of the default namespace."""
    made = Client()
    yield made
    made.close()


def _counts(connection: Connection) -> tuple[int, ...]:
    row = connection.execute(
        "select (select count(*) from actum.threads) as a, (select count(*) from actum.commands) as b, "
        "(select count(*) from actum.events) as c, (select count(*) from actum.work) as d"
    ).fetchone()
    assert row is not None
    return tuple(row)


def test_the_same_key_and_request_give_the_first_thread_again(client: Client, charge: Workflow) -> None:
    """C23: also with the default spelled out, for the input is canonical."""
    first = client.start(charge, 100, key="k1")
    again = client.start(charge, amount=100, note="", key="k1")
    assert (first.answer, again.answer) == (Answer.ACCEPTED, Answer.DUPLICATE)
    assert first.thread_id == again.thread_id
    assert first.fingerprint == again.stored_fingerprint


def test_the_same_key_with_another_request_is_a_conflict_that_says_what_differs(
    client: Client, charge: Workflow, connection: Connection
) -> None:
    """C23: by fingerprint, not content; the first is untouched."""
    client.start(charge, 100, key="k1")
    before = _counts(connection)
    with pytest.raises(
        KeyConflict, match="another input .fingerprints [0-9a-f]{12} and [0-9a-f]{12}"
    ) as error:
        client.start(charge, 999, key="k1")
    assert "999" not in str(error.value)
    (verdict,) = submit(connection, [a_start("k1", workflow="refund", input='{"amount":100}')])
    assert (verdict.answer, verdict.differs) == (Answer.CONFLICT, "workflow (charge)")
    assert _counts(connection) == before


def test_another_namespace_has_its_own_keys(client: Client, charge: Workflow) -> None:
    """C23."""
    other = Client(namespace="other")
    mine, theirs = client.start(charge, 1, key="k"), other.start(charge, 2, key="k")
    other.close()
    assert mine.thread_id != theirs.thread_id
    assert theirs.answer is Answer.ACCEPTED


def test_one_batch_may_hold_one_key_twice(client: Client, charge: Workflow, connection: Connection) -> None:
    """C23, C24: the first of them is taken; each gets its own verdict, in order."""
    starts = [Start(charge, (n,), key=k) for n, k in ((1, "b"), (1, "a"), (1, "b"), (2, "b"), (3, "c"))]
    verdicts = client.start_many(starts)
    answers = [v.answer for v in verdicts]
    assert answers == ["accepted", "accepted", "duplicate", "conflict", "accepted"]
    assert verdicts[0].thread_id == verdicts[2].thread_id == verdicts[3].thread_id
    assert [v.key for v in verdicts] == ["b", "a", "b", "b", "c"]
    assert _counts(connection) == (3, 3, 3, 3)


def test_32_clients_with_one_key_start_one_thread(url: str, connection: Connection) -> None:
    """C24: released at a barrier, several rounds; nobody gets an error or an empty answer."""
    barrier = threading.Barrier(32)
    rounds = 6

    def ask(_: int) -> list[UUID]:
        with connect(url) as own:
            got = []
            for n in range(rounds):
                barrier.wait(30)
                got.append(submit(own, [a_start(f"k-{n}")])[0].or_raise().thread_id)
            return got

    with ThreadPoolExecutor(32) as pool:
        answers = list(pool.map(ask, range(32)))
    assert all(len({got[n] for got in answers}) == 1 for n in range(rounds))
    assert _counts(connection) == (rounds,) * 4


@pytest.mark.parametrize("commits", [True, False])
def test_a_key_in_a_slow_transaction_is_waited_for(url: str, connection: Connection, commits: bool) -> None:
    """C24: the second one gets the first's Thread, or its own if the first is rolled back."""
    with connect(url) as slow, connect(url) as own, ThreadPoolExecutor(1) as pool:
        with slow.transaction() as transaction:
            first = submit(slow, [a_start("k")])[0]
            second = pool.submit(submit, own, [a_start("k")])
            _until_blocked(connection)
            assert not second.done()
            if not commits:
                raise psycopg.Rollback(transaction)
        answer = second.result(10)[0]
    assert answer.answer == ("duplicate" if commits else "accepted")
    assert (answer.thread_id == first.thread_id) == commits
    assert _counts(connection) == (1, 1, 1, 1)


def _until_blocked(connection: Connection) -> None:
    deadline = time.monotonic() + 10
    blocked = "select 1 from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"
    while connection.execute(blocked).fetchone() is None:
        assert time.monotonic() < deadline
        time.sleep(0.005)  # sleep-ok: looks for a lock that another connection is about to wait for


def test_under_repeatable_read_a_lost_race_is_an_error_and_never_a_second_thread(
    url: str, connection: Connection
) -> None:
    """C24: Postgres says that the caller must repeat its transaction."""
    with connect(url) as own:
        own.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        with pytest.raises(psycopg.errors.SerializationFailure), own.transaction():
            own.execute("select count(*) from actum.threads")
            submit(connection, [a_start("k")])
            submit(own, [a_start("k")])
    assert _counts(connection) == (1, 1, 1, 1)


# inside the caller's own transaction


class Places:
    """A caller's transaction in each library: run some work in it, then commit it or roll it back."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.engine = sa_engine(url)

    def session(self, work: Callable[[Any], Any], commit: bool) -> None:
        """A SQLAlchemy Session."""
        with Session(self.engine) as session:
            work(session)
            session.commit() if commit else session.rollback()

    def connection(self, work: Callable[[Any], Any], commit: bool) -> None:
        """A SQLAlchemy Connection."""
        with self.engine.connect() as connection:
            work(connection)
            connection.commit() if commit else connection.rollback()

    def psycopg(self, work: Callable[[Any], Any], commit: bool) -> None:
        """A plain psycopg connection."""
        with psycopg.connect(self.url) as connection:
            work(connection)
            connection.commit() if commit else connection.rollback()


LIBRARIES = ["session", "connection", "psycopg"]


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_thread_exists_if_and_when_the_callers_transaction_commits(
    url: str, client: Client, charge: Workflow, connection: Connection, library: str
) -> None:
    """C26: nobody sees it before; a rollback leaves nothing, and its key is free."""
    run = getattr(Places(url), library)

    def work(place: Any) -> None:
        verdict = client.start_in(place, charge, 100, key="k")
        assert verdict.answer is Answer.ACCEPTED
        assert _counts(connection) == (0, 0, 0, 0)

    run(work, False)
    assert _counts(connection) == (0, 0, 0, 0)
    run(work, True)
    assert _counts(connection) == (1, 1, 1, 1)
    run(lambda place: client.start_in(place, charge, 100, key="k"), True)
    assert _counts(connection) == (1, 1, 1, 1)


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_savepoint_that_is_rolled_back_leaves_nothing(
    url: str, client: Client, charge: Workflow, connection: Connection, library: str
) -> None:
    """C26: what stands beside it in the transaction is committed."""

    def with_psycopg(place: Any) -> None:
        with place.transaction() as inner:
            client.start_in(place, charge, 2, key="dropped")
            raise psycopg.Rollback(inner)

    def with_sqlalchemy(place: Any) -> None:
        nested = place.begin_nested()
        client.start_in(place, charge, 2, key="dropped")
        nested.rollback()

    def work(place: Any) -> None:
        client.start_in(place, charge, 1, key="kept")
        (with_psycopg if library == "psycopg" else with_sqlalchemy)(place)

    getattr(Places(url), library)(work, True)
    keys = [r[0] for r in connection.execute("select key from actum.threads").fetchall()]
    assert keys == ["kept"]
    assert _counts(connection) == (1, 1, 1, 1)


def test_an_async_session_can_start_too(
    url: str, client: Client, charge: Workflow, connection: Connection
) -> None:
    """C26: the statement and its verdicts are the client's."""
    pytest.importorskip("greenlet", reason="SQLAlchemy's asyncio needs greenlet")
    from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

    async def work(commit: bool) -> None:
        made = create_async_engine(
            url.replace("postgresql://", "postgresql+psycopg://", 1), poolclass=sa.pool.NullPool
        )
        async with AsyncSession(made) as session:
            commands = [client.command(Start(charge, (1,), key="k"))]
            rows = (await session.execute(client.statement(commands))).all()
            assert client.verdicts(commands, rows)[0].answer is Answer.ACCEPTED
            await (session.commit() if commit else session.rollback())
        await made.dispose()

    asyncio.run(work(False))
    assert _counts(connection) == (0, 0, 0, 0)
    asyncio.run(work(True))
    assert _counts(connection) == (1, 1, 1, 1)


# what can't be stored


BAD_STARTS: dict[str, tuple[tuple[Any, ...], dict[str, Any], str]] = {
    "NUL": (("a\0b",), {}, "amount"),
    "lone surrogate": (("\ud800",), {}, "amount"),
    "NaN": ((math.nan,), {}, "JSON can't hold"),
    "infinity deep inside": (([{"x": math.inf}],), {}, r"amount\[0\].x"),
    "too large": (("x" * 2_000_000,), {}, "bytes"),
    "naive datetime": ((datetime(2026, 1, 1),), {}, "has no timezone"),
    "not JSON": ((object(),), {}, "amount"),
    "too few arguments": ((), {}, "charge can't be started so"),
    "too many arguments": ((1, 2, 3), {}, "charge can't be started so"),
    "unknown argument": ((1,), {"colour": "red"}, "charge can't be started so"),
    "long key": ((1,), {"key": "k" * 201}, "key: has 201 characters"),
    "blank key": ((1,), {"key": " "}, "key: must not be empty"),
    "key with NUL": ((1,), {"key": "a\0"}, "key: has the unprintable"),
    "key that is no text": ((1,), {"key": 7}, "key: must be text"),
}


def test_a_bad_request_is_refused_before_anything_is_stored(
    client: Client, charge: Workflow, connection: Connection
) -> None:
    """C20, C36, C39: with the path to what is wrong."""
    for args, kwargs, message in BAD_STARTS.values():
        with pytest.raises(Rejected, match=message):
            client.start(charge, *args, **kwargs)
    assert _counts(connection) == (0, 0, 0, 0)


def test_one_bad_request_in_a_batch_stores_none_of_it(
    client: Client, charge: Workflow, connection: Connection
) -> None:
    """C36."""
    with pytest.raises(Rejected):
        client.start_many([Start(charge, (1,)), Start(charge, ("\0",)), Start(charge, (3,))])
    assert _counts(connection) == (0, 0, 0, 0)


def test_what_is_not_a_workflow_or_not_known_is_refused(client: Client, connection: Connection) -> None:
    """C36: a name that no worker has shown is missing, not stored for nobody."""
    with pytest.raises(Rejected, match="a @workflow or its name"):
        client.start(print, 1)  # type: ignore[arg-type]
    with pytest.raises(Missing, match="no worker has shown a workflow 'nobody'"):
        client.start("nobody", key="k")
    assert _counts(connection) == (0, 0, 0, 0)


# signals


def test_a_signal_is_taken_once_by_its_key(client: Client, connection: Connection) -> None:
    """R14, invariant 11: the same again is a repeat; another under its key is a conflict."""
    thread, other = a_thread(connection), a_thread(connection)
    assert client.signal(thread, "go", {"a": 1}, dedup_key="s") == 2
    assert client.signal(thread, "go", {"a": 1}, dedup_key="s") is None
    for place, name, body in ((thread, "go", {"a": 2}), (thread, "stop", {"a": 1}), (other, "go", {"a": 1})):
        with pytest.raises(KeyConflict):
            client.signal(place, name, body, dedup_key="s")
    assert client.row(thread).last_seq == 2
    assert client.row(other).last_seq == 1


def test_a_starts_key_can_not_be_a_signals_key(client: Client, connection: Connection) -> None:
    """C23: another command type under the same key is a conflict, both ways."""
    thread = a_thread(connection, key="k")
    with pytest.raises(KeyConflict):
        client.signal(thread, "go", dedup_key="k")
    client.signal(thread, "go", dedup_key="s")
    assert submit(connection, [a_start("s")])[0].answer is Answer.CONFLICT


def test_sixteen_repeats_of_one_signal_at_once_are_one_event(url: str, connection: Connection) -> None:
    """C24, invariant 11."""
    thread = a_thread(connection)
    barrier = threading.Barrier(16)

    def send(_: int) -> int | None:
        own = Client(url)
        barrier.wait(30)
        seq = own.signal(thread, "go", 1, dedup_key="s")
        own.close()
        return seq

    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(send, range(16)))
    assert sorted(a for a in answers if a is not None) == [2]


def test_a_signal_to_nobody_or_to_an_ended_thread_is_refused(client: Client, connection: Connection) -> None:
    """R14, invariant 11: the refusal is the command's one disposition."""
    with pytest.raises(ThreadNotFound):
        client.signal(uuid4(), "go")
    with pytest.raises(ThreadNotFound):
        client.signal(None, "go", key="nobody")
    with pytest.raises(Rejected, match="is not a Thread id"):
        client.signal("x", "go")
    thread = a_thread(connection, deadline_seconds=1.0)
    connection.execute("select actum.advance('2 seconds')")
    connection.execute("select actum.fire_timers(9, '1 day')")
    before = client.row(thread).last_seq
    with pytest.raises(ThreadEnded):
        client.signal(thread, "go", dedup_key="s")
    assert client.row(thread).last_seq == before
    stored = connection.execute("select disposition from actum.commands where key = 's'").fetchone()
    assert stored == ("refused: ended",)


def test_a_signal_that_can_not_be_stored_is_refused(client: Client, connection: Connection) -> None:
    """C36."""
    thread = a_thread(connection)
    for body in ("a\0b", math.nan, datetime(2026, 1, 1), "x" * 2_000_000):
        with pytest.raises(Rejected):
            client.signal(thread, "go", body)
    assert _counts(connection) == (1, 1, 1, 1)
