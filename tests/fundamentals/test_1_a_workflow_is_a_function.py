"""1. A workflow is a plain function, and its Thread is the list of what happened.

You write a function that takes `wf`. A client starts it and gets the id of a Thread at once: the request is
a row in Postgres, and any worker may take it. When the function returns, the Thread is completed.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest

from actum import Client, NotEnded, WorkflowContext, workflow


@workflow(version="1", owner="you", deadline=timedelta(hours=1), on_upgrade="finish")
def f1_greet(wf: WorkflowContext, name: str) -> str:
    """Return a greeting; no step, nothing outside."""
    return f"Hello, {name}"


def test_start_only_records_the_request(client: Client) -> None:
    """`start` returns once the request is durable; nobody has worked on it yet."""
    thread = client.start(f1_greet, "Ada").thread_id
    with pytest.raises(NotEnded):
        client.result(thread)


def test_a_worker_runs_it_to_its_result(client: Client, work: Callable[[], None]) -> None:
    """A worker claims the Thread, calls the function, and records what it returned."""
    thread = client.start(f1_greet, "Ada").thread_id
    work()
    assert client.result(thread) == "Hello, Ada"


def test_a_thread_is_its_events(client: Client, work: Callable[[], None]) -> None:
    """State is what the events mean; they are numbered from 1 without a gap and never change."""
    thread = client.start(f1_greet, "Ada").thread_id
    work()
    events = client.events(thread)
    assert [(e.seq, e.type) for e in events] == [(1, "thread.started"), (2, "thread.completed")]
