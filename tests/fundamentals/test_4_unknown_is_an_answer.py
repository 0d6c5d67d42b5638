"""4. Unknown is an answer: a lost reply is neither success nor failure.

When nobody knows whether an effect happened, the step is `effect_unknown`. A reconcilable step asks the
target; an unrepeatable one asks its owner. It is never sent again on a guess.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from actum import Absent, Client, Confirmed, WorkflowContext, step, workflow

outbox: dict[str, str] = {}
"""The mail provider's own list, by effect key."""


@step(effect="reconcilable", owner="you", timeout=timedelta(seconds=10))
def f4_send_mail(to: str, *, effect_key: str) -> str:
    """The mail goes out, but its reply never comes back."""
    outbox[effect_key] = to
    raise TimeoutError("the reply was lost")


@f4_send_mail.reconciler()
def f4_find_mail(to: str, *, effect_key: str) -> Confirmed | Absent:
    """Ask the provider: is there a mail under this key?"""
    if effect_key in outbox:
        return Confirmed(result="sent", evidence={"provider": "outbox"})
    return Absent()


@workflow(version="1", owner="you", deadline=timedelta(days=1), on_upgrade="finish")
def f4_notify(wf: WorkflowContext, to: str) -> str:
    """One mail."""
    return str(wf.run(f4_send_mail, to))


def test_the_target_is_asked(
    client: Client, work: Callable[[], None], later: Callable[[timedelta], None]
) -> None:
    """The step waits as `effect_unknown`, the reconciler finds the mail, and it is sent once only."""
    outbox.clear()
    thread = client.start(f4_notify, "ada@example.com").thread_id
    work()
    assert client.get(thread).in_doubt == ["f4_send_mail#1"]

    later(timedelta(minutes=1))
    assert client.result(thread) == "sent"
    assert len(outbox) == 1
    assert client.get(thread).steps["f4_send_mail#1"].evidence[-1]["provider"] == "outbox"


calls: list[str] = []


@step(effect="unrepeatable", owner="you", timeout=timedelta(seconds=10))
def f4_launch(*, effect_key: str) -> str:
    """Something that can be neither repeated nor looked up."""
    calls.append(effect_key)
    raise ConnectionResetError("line dropped")


@workflow(version="1", owner="you", deadline=timedelta(days=1), on_upgrade="finish")
def f4_once(wf: WorkflowContext) -> str:
    """One launch."""
    return str(wf.run(f4_launch))


def test_the_owner_is_asked(
    client: Client, work: Callable[[], None], later: Callable[[timedelta], None]
) -> None:
    """Nothing automatic happens until the owner says what the world shows."""
    calls.clear()
    thread = client.start(f4_once).thread_id
    work()
    later(timedelta(hours=1))
    assert client.row(thread).state == "needs_resolution"
    assert len(calls) == 1

    client.resolve(thread, "f4_launch#1", "confirmed", "seen on the pad", result="up")
    work()
    assert client.result(thread) == "up"
    assert len(calls) == 1
