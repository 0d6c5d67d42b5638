"""3. Effects have intent first: nothing leaves before the intent and its key are committed.

A step that acts on the outside world declares its effect class, an owner and a time-out, and takes an
`effect_key`. The key is the same on every attempt, so that the other side can recognise a repeat.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import psycopg
import pytest

from actum import Client, Retry, WorkflowContext, step, workflow
from actum.config import settings
from actum.domain.workflow import Registry

posted: list[str] = []
recorded_before: list[str] = []


def events_so_far() -> list[str]:
    """Look at the database as an outsider."""
    with psycopg.connect(settings().require_database()) as connection:
        return [r[0] for r in connection.execute("select type from actum.events order by seq")]


@step(
    effect="idempotent",
    owner="you",
    timeout=timedelta(seconds=10),
    retry=Retry(wait_initial_seconds=60),
)
def f3_create_account(name: str, *, effect_key: str) -> str:
    """POST with an Idempotency-Key that the provider honours. The first answer gets lost."""
    recorded_before.extend(events_so_far())
    posted.append(effect_key)
    if len(posted) == 1:
        raise TimeoutError("no answer")
    return f"account of {name}"


@workflow(version="1", owner="you", deadline=timedelta(days=1), on_upgrade="finish")
def f3_open_account(wf: WorkflowContext, name: str) -> str:
    """One effect."""
    return str(wf.run(f3_create_account, name))


def test_intent_is_on_record_when_the_request_goes_out(
    client: Client, work: Callable[[], None], later: Callable[[timedelta], None]
) -> None:
    """While the step runs, its intent can already be seen; the retry carries the same key."""
    posted.clear()
    recorded_before.clear()
    thread = client.start(f3_open_account, "Ada").thread_id
    work()
    assert recorded_before == ["thread.started", "effect.intended"]

    later(timedelta(minutes=2))
    assert client.result(thread) == "account of Ada"
    assert len(posted) == 2
    assert len(set(posted)) == 1


def test_the_thread_says_what_was_intended_and_what_was_seen(
    client: Client, work: Callable[[], None]
) -> None:
    """Requested, sent and confirmed are different events, in this order."""
    posted[:] = ["an earlier one"]
    thread = client.start(f3_open_account, "Ada").thread_id
    work()
    kinds = [e.type for e in client.events(thread)]
    assert kinds == [
        "thread.started",
        "effect.intended",
        "effect.confirmed",
        "step.completed",
        "thread.completed",
    ]


def test_an_incomplete_effect_is_refused_at_import(monkeypatch: pytest.MonkeyPatch) -> None:
    """A definition that lacks owner, time-out or key is refused with a sentence that says what to write."""
    registry = Registry()
    monkeypatch.setattr("actum.domain.workflow.REGISTRY", registry)

    @step(effect="reconcilable")
    def f3_pay(amount: int) -> None: ...

    told = "; ".join(registry.problems())
    for word in ("owner=", "timeout=", "reconciler", "effect_key"):
        assert word in told
