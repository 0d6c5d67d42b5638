"""5. Waiting takes no worker: a wait is a row with a time, not a thread that sleeps.

`wf.wait` and `wf.sleep` end the turn. The Thread goes on when its signal is recorded or its time has come on
the database's clock, on any worker.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import psycopg

from actum import Client, WaitExpired, WorkflowContext, workflow


@workflow(version="1", owner="you", deadline=timedelta(days=14), on_upgrade="finish")
def f5_ask(wf: WorkflowContext) -> str:
    """Wait three days for a reply."""
    try:
        reply = wf.wait("reply", within=timedelta(days=3))
    except WaitExpired:
        return "no reply"
    return f"replied {reply}"


def held(connection: psycopg.Connection) -> int:
    """How much work any worker holds or could take."""
    return int(connection.execute("select count(*) from actum.work").fetchone()[0])


def test_nothing_is_held_while_it_waits(
    client: Client, work: Callable[[], None], connection: psycopg.Connection
) -> None:
    """The Thread waits, and there is no work row for it."""
    thread = client.start(f5_ask).thread_id
    work()
    assert client.row(thread).state == "waiting"
    assert held(connection) == 0


def test_a_signal_goes_on(client: Client, work: Callable[[], None]) -> None:
    """A signal is recorded first and then makes the Thread ready."""
    thread = client.start(f5_ask).thread_id
    work()
    client.signal(thread, "reply", "yes")
    work()
    assert client.result(thread) == "replied yes"


def test_a_signal_that_comes_early_counts(client: Client, work: Callable[[], None]) -> None:
    """It is an event of the Thread, so the wait finds it whenever it begins."""
    thread = client.start(f5_ask).thread_id
    client.signal(thread, "reply", "early")
    work()
    assert client.result(thread) == "replied early"


def test_time_goes_on(client: Client, work: Callable[[], None], later: Callable[[timedelta], None]) -> None:
    """After three days on the database's clock the wait expires."""
    thread = client.start(f5_ask).thread_id
    work()
    later(timedelta(days=2))
    assert client.row(thread).state == "waiting"
    later(timedelta(days=1, minutes=1))
    assert client.result(thread) == "no reply"
