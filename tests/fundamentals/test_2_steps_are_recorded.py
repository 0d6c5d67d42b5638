"""2. Steps are recorded: the function runs again from its top, its steps don't.

A worker never keeps a paused function in memory. To go on, it calls the function again; each `wf.run`
that is on record returns the recorded result. So a crash costs no step that was recorded.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from actum import Client, Retry, StepFailed, WorkflowContext, step, workflow

asked: list[str] = []


@step(effect="recorded")
def f2_ask_the_model(question: str) -> str:
    """Something whose answer may differ each time, so that it must be kept."""
    asked.append(question)
    return f"answer {len(asked)}"


@workflow(version="1", owner="you", deadline=timedelta(days=1), on_upgrade="finish")
def f2_think_twice(wf: WorkflowContext) -> list[str]:
    """Ask, wait for a person, ask again."""
    first = wf.run(f2_ask_the_model, "first")
    wf.wait("go on", within=timedelta(hours=1))
    return [first, wf.run(f2_ask_the_model, "second")]


def test_a_recorded_step_is_not_run_again(client: Client, work: Callable[[], None]) -> None:
    """The second turn calls the function from its top, but asks the first question no more."""
    asked.clear()
    thread = client.start(f2_think_twice).thread_id
    work()
    client.signal(thread, "go on")
    work()
    assert client.result(thread) == ["answer 1", "answer 2"]
    assert asked == ["first", "second"]


tries: list[int] = []


@step(effect="recorded", retry=Retry(stop_after_attempt=2, wait_initial_seconds=60))
def f2_flaky() -> str:
    """Fail the first time."""
    tries.append(1)
    if len(tries) == 1:
        raise ConnectionError("not now")
    return "fine"


@step(effect="pure")
def f2_broken() -> None:
    """Fail every time."""
    raise ValueError("no")


@workflow(version="1", owner="you", deadline=timedelta(days=1), on_upgrade="finish")
def f2_retry(wf: WorkflowContext) -> str:
    """Run the flaky step."""
    return str(wf.run(f2_flaky))


def test_a_failed_attempt_is_tried_again_later(
    client: Client, work: Callable[[], None], later: Callable[[timedelta], None]
) -> None:
    """The pause is a time in Postgres: no worker sleeps, and a restart loses nothing."""
    tries.clear()
    thread = client.start(f2_retry).thread_id
    work()
    assert client.row(thread).state == "waiting"
    later(timedelta(minutes=2))
    assert client.result(thread) == "fine"


@workflow(version="1", owner="you", deadline=timedelta(days=1), on_upgrade="finish")
def f2_fall_back(wf: WorkflowContext) -> str:
    """Do something else when the step has failed for good."""
    try:
        wf.run(f2_broken)
    except StepFailed as failed:
        return f"instead of {failed.step_id}"
    return "no"


def test_a_step_that_failed_for_good_raises_in_the_workflow(
    client: Client, work: Callable[[], None], later: Callable[[timedelta], None]
) -> None:
    """`StepFailed` is an ordinary exception: catch it and decide."""
    thread = client.start(f2_fall_back).thread_id
    work()
    later(timedelta(minutes=2))
    later(timedelta(minutes=2))
    assert client.result(thread) == "instead of f2_broken#1"
