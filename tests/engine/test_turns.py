"""Turns: what is recorded is read back, what is new is done, and what must wait gives its claim back."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from actum import NotEnded, Retry, StepFailed, ThreadFailed, WaitExpired, step, workflow
from actum.domain.workflow import Registry, Workflow
from tests.support.engine import Engine

DAYS = timedelta(days=14)
MINUTE = timedelta(minutes=1)


def flow(function: Any, *, deadline: timedelta = DAYS, version: str = "1") -> Workflow:
    """Declare a workflow with the usual words."""
    return workflow(version=version, owner="team", deadline=deadline, on_upgrade="finish", name="flow")(
        function
    )


def test_a_recorded_result_is_read_back_and_not_made_again(engine: Engine) -> None:
    """R68: a model call or a read of a clock is made once; a later turn reads what it returned."""
    made: list[int] = []

    @step(effect="recorded")
    def draw() -> dict[str, Any]:
        made.append(1)
        return {"n": len(made)}

    def body(wf: Any) -> Any:
        first = wf.run(draw)
        wf.sleep(MINUTE)
        return [first, wf.run(draw)]

    thread = engine.run(flow(body))
    assert engine.state(thread) == "waiting"
    engine.advance("2 minutes")
    assert engine.client.result(thread) == [{"n": 1}, {"n": 2}]
    assert len(made) == 2


def test_values_of_time_chance_and_ids_are_the_same_on_every_replay(engine: Engine) -> None:
    """R24, R68."""
    seen: list[tuple[Any, ...]] = []

    def body(wf: Any) -> None:
        seen.append((wf.now(), wf.random(), wf.uuid()))
        wf.sleep(MINUTE)
        wf.sleep(MINUTE)

    thread = engine.run(flow(body))
    engine.advance("2 minutes")
    engine.advance("2 minutes")
    assert engine.state(thread) == "completed"
    assert len(seen) == 3
    assert len(set(seen)) == 1


def test_ten_recorded_steps_cost_at_most_three_commits(engine: Engine) -> None:
    """R29: commit behind; a chain of steps without outside effect doesn't wait for its commits."""

    turns_entered: list[int] = []

    @step(effect="recorded")
    def one(n: int) -> int:
        return n

    def body(wf: Any) -> int:
        turns_entered.append(1)
        return sum(wf.run(one, n) for n in range(10))

    thread = engine.start(flow(body))
    before = engine.service._committer.flushes
    engine.service.drain("default", 5)
    assert engine.client.result(thread) == 45
    assert engine.service._committer.flushes - before <= 3
    assert turns_entered == [1], "a decision must not conflict with its own Thread's facts"


def test_ten_effects_cost_at_most_eleven_commits(engine: Engine) -> None:
    """R29: one step's result and the next one's intent are one commit."""

    @step(effect="idempotent", owner="team", timeout=MINUTE)
    def put(n: int, *, effect_key: str) -> int:
        return n

    def body(wf: Any) -> int:
        return sum(wf.run(put, n) for n in range(10))

    thread = engine.start(flow(body))
    before = engine.service._committer.flushes
    engine.service.drain("default", 5)
    assert engine.client.result(thread) == 45
    assert engine.service._committer.flushes - before <= 11
    assert engine.types(thread).count("effect.intended") == 10


def test_a_wait_takes_the_signal_that_comes_while_it_waits(engine: Engine) -> None:
    """R65."""
    thread = engine.run(flow(lambda wf: wf.wait("go", MINUTE)))
    assert engine.client.row(thread).reason == "signal go"
    engine.client.signal(thread, "go", {"yes": True})
    engine.idle()
    assert engine.client.result(thread) == {"yes": True}


def test_a_signal_that_came_before_its_wait_counts(engine: Engine) -> None:
    """R65, C26."""
    thread = engine.start(flow(lambda wf: wf.wait("go", MINUTE)))
    engine.client.signal(thread, "go", 1)
    engine.idle()
    assert engine.client.result(thread) == 1


def test_each_signal_is_taken_by_exactly_one_wait_in_order(engine: Engine) -> None:
    """Invariant 11: an inbound message applies at most once."""

    def body(wf: Any) -> list[Any]:
        return [wf.wait("go", MINUTE), wf.wait("go", MINUTE), wf.wait("other", MINUTE)]

    thread = engine.start(flow(body))
    for name, value in (("go", "a"), ("other", "b"), ("go", "c")):
        engine.client.signal(thread, name, value)
    assert engine.client.signal(thread, "go", "d", dedup_key="k") is not None
    assert engine.client.signal(thread, "go", "d", dedup_key="k") is None
    engine.idle()
    assert engine.client.result(thread) == ["a", "c", "b"]


def _waits(wf: Any) -> str:
    try:
        return str(wf.wait("go", MINUTE))
    except WaitExpired:
        return "expired"


def test_a_wait_without_its_signal_expires(engine: Engine) -> None:
    """R65, R100."""
    thread = engine.run(flow(_waits))
    engine.advance("59 seconds")
    assert engine.state(thread) == "waiting"
    engine.advance("2 seconds")
    assert engine.client.result(thread) == "expired"


def test_at_a_waits_deadline_a_signal_recorded_first_wins(engine: Engine) -> None:
    """R65: whichever event is recorded first decides, though the time is over."""
    thread = engine.run(flow(_waits))
    engine.move_clock("2 minutes")
    engine.client.signal(thread, "go", "in time")
    engine.idle()
    assert engine.client.result(thread) == "in time"


def test_at_a_waits_deadline_a_timer_recorded_first_wins(engine: Engine) -> None:
    """R65: the signal stays on record and is not taken by the wait that had expired."""
    thread = engine.run(flow(_waits))
    engine.move_clock("2 minutes")
    engine.reconciler.run_once()
    engine.client.signal(thread, "go", "too late")
    engine.idle()
    assert engine.client.result(thread) == "expired"
    assert [s.body for s in engine.thread(thread).signals] == ["too late"]


def test_a_signal_that_missed_one_wait_is_taken_by_the_next(engine: Engine) -> None:
    """Invariant 11: it reaches exactly one disposition."""
    thread = engine.run(flow(lambda wf: [_waits(wf), _waits(wf)]))
    engine.move_clock("2 minutes")
    engine.reconciler.run_once()
    engine.client.signal(thread, "go", "late")
    engine.idle()
    assert engine.client.result(thread) == ["expired", "late"]


def test_a_sleep_lasts_its_time_on_the_databases_clock(engine: Engine) -> None:
    """R65."""
    thread = engine.run(flow(lambda wf: wf.sleep(timedelta(days=3))))
    engine.advance("2 days 23 hours")
    assert engine.state(thread) == "waiting"
    with pytest.raises(NotEnded, match="waiting: sleep"):
        engine.client.result(thread)
    engine.advance("2 hours")
    assert engine.state(thread) == "completed"


def test_a_signal_does_not_end_a_sleep(engine: Engine) -> None:
    """R65."""
    thread = engine.run(flow(lambda wf: wf.sleep(MINUTE)))
    engine.client.signal(thread, "noise")
    engine.idle()
    assert engine.state(thread) == "waiting"
    engine.advance("61 seconds")
    assert engine.state(thread) == "completed"


def test_failed_attempts_are_tried_again_after_growing_pauses(engine: Engine) -> None:
    """R64: a retry is a row with a time, not a sleep in a worker."""
    made: list[int] = []
    retry = Retry(3, wait_initial_seconds=10, wait_exp_base=4, wait_jitter_seconds=0)

    @step(effect="recorded", retry=retry)
    def fragile() -> str:
        made.append(1)
        if len(made) < 3:
            raise OSError(f"not now ({len(made)})")
        return "done"

    thread = engine.run(flow(lambda wf: wf.run(fragile)))
    assert engine.step(thread, "fragile#1").state == "authorized"
    engine.advance("9 seconds")
    assert len(made) == 1
    engine.advance("2 seconds")
    assert len(made) == 2
    engine.advance("38 seconds")
    assert len(made) == 2
    engine.advance("3 seconds")
    assert engine.client.result(thread) == "done"


def test_a_signal_does_not_cut_a_retrys_pause_short(engine: Engine) -> None:
    """R64."""
    made: list[int] = []

    @step(effect="recorded", retry=Retry(3, wait_initial_seconds=10, wait_jitter_seconds=0))
    def fragile() -> None:
        made.append(1)
        raise OSError("not now")

    thread = engine.run(flow(lambda wf: wf.run(fragile)))
    engine.client.signal(thread, "noise")
    engine.idle()
    assert len(made) == 1
    assert engine.state(thread) == "waiting"


def test_when_all_attempts_failed_the_workflow_sees_the_last_error(engine: Engine) -> None:
    """R64."""

    @step(effect="recorded", retry=Retry(2, wait_jitter_seconds=0))
    def broken() -> None:
        raise OSError("never")

    def body(wf: Any) -> str:
        try:
            wf.run(broken)
        except StepFailed as failed:
            return str(failed)
        return "?"

    thread = engine.run(flow(body))
    engine.advance("10 seconds")
    assert engine.client.result(thread) == "broken#1: builtins.OSError: never"
    assert engine.types(thread).count("attempt.failed") == 1


def test_a_workflow_that_raises_fails_with_what_it_raised(engine: Engine) -> None:
    """R41."""

    def body(wf: Any) -> None:
        raise KeyError("supplier")

    thread = engine.run(flow(body))
    with pytest.raises(ThreadFailed, match="failed: 'supplier'"):
        engine.client.result(thread)


def test_catching_every_exception_does_not_swallow_a_suspension(engine: Engine) -> None:
    """Design section 2: suspension is a BaseException."""

    def body(wf: Any) -> str:
        try:
            wf.sleep(MINUTE)
        except Exception:
            return "swallowed"
        return "slept"

    thread = engine.run(flow(body))
    assert engine.state(thread) == "waiting"
    engine.advance("2 minutes")
    assert engine.client.result(thread) == "slept"


def test_a_finally_block_runs_no_step_while_the_workflow_is_suspended(engine: Engine) -> None:
    """Leaving the stack is not the end of the block: what stands in `finally` waits for its time."""
    made: list[str] = []

    @step(effect="recorded")
    def clean() -> None:
        made.append("cleaned")

    def body(wf: Any) -> None:
        try:
            wf.sleep(MINUTE)
        finally:
            wf.run(clean)

    thread = engine.run(flow(body))
    assert made == []
    engine.advance("2 minutes")
    assert made == ["cleaned"]
    assert "evidence.late" not in engine.types(thread)


def test_even_a_bare_except_can_not_go_on_after_a_suspension(engine: Engine) -> None:
    """Design section 2: a swallowed suspension is raised again at the next request and at the end."""
    made: list[str] = []

    @step(effect="recorded")
    def wrong() -> None:
        made.append("wrong")

    def body(wf: Any) -> str:
        try:
            wf.sleep(MINUTE)
        except BaseException:
            wf.run(wrong)
            return "swallowed"
        return "slept"

    thread = engine.run(flow(body))
    engine.advance("2 minutes")
    assert engine.client.result(thread) == "slept"
    assert made == []


@pytest.mark.parametrize("leaves", [SystemExit, KeyboardInterrupt, GeneratorExit])
def test_a_step_that_raises_no_exception_but_an_exit_fails_like_any_other(
    engine: Engine, leaves: type[BaseException]
) -> None:
    """R61, C08: a living worker must not sit on a claim that it no longer works on."""

    @step(effect="recorded", retry=Retry(1))
    def exits() -> None:
        raise leaves

    thread = engine.run(flow(lambda wf: wf.run(exits)))
    assert engine.state(thread) == "failed"
    assert engine.step(thread, "exits#1").state == "failed"


def test_a_workflow_that_exits_its_worker_is_parked_with_its_owner(engine: Engine) -> None:
    """C08: it is neither lost nor tried for ever."""

    def body(wf: Any) -> None:
        raise SystemExit

    thread = engine.run(flow(body))
    for _ in range(6):
        engine.advance("2 minutes")
    assert engine.state(thread) == "needs_resolution"


def test_a_deadline_ends_a_thread_that_waits(engine: Engine) -> None:
    """R100, invariant 12: with all outsiders silent, every Thread ends."""
    thread = engine.run(flow(lambda wf: wf.wait("go", timedelta(days=30)), deadline=timedelta(days=2)))
    engine.advance("47 hours")
    assert engine.state(thread) == "waiting"
    engine.advance("2 hours")
    assert engine.state(thread) == "expired"
    with pytest.raises(ThreadFailed, match="expired"):
        engine.client.result(thread)


def test_a_deadline_ends_a_thread_that_never_ran(engine: Engine) -> None:
    """R100: though no worker has its code."""
    made = flow(lambda wf: None)
    engine.registry.workflows.clear()
    engine.deploy()
    thread = engine.run(made)
    assert engine.state(thread) == "running"
    engine.advance("15 days")
    assert engine.state(thread) == "expired"


def test_a_deadline_expires_the_steps_that_wait_for_another_attempt(engine: Engine) -> None:
    """R100: nothing stays in progress in a Thread that has ended."""

    @step(effect="recorded", retry=Retry(9, wait_initial_seconds=9e9, wait_max_seconds=9e9))
    def fragile() -> None:
        raise OSError("not now")

    thread = engine.run(flow(lambda wf: wf.run(fragile)))
    engine.advance("15 days")
    assert engine.state(thread) == "expired"
    assert engine.step(thread, "fragile#1").state == "expired"


# new code against old history


def _registered(engine: Engine, function: Any) -> None:
    engine.registry.workflows.clear()
    flow(function)
    engine.deploy()


class _Steps:
    def __init__(self) -> None:
        self.ran: list[str] = []

        @step(effect="recorded", name="read")
        def read(n: int) -> int:
            self.ran.append(f"read {n}")
            return n

        @step(effect="idempotent", owner="team", timeout=MINUTE, name="send")
        def send(n: int, *, effect_key: str) -> int:
            self.ran.append(f"send {n}")
            return n

        self.read, self.send = read, send


def _old(s: _Steps) -> Any:
    def body(wf: Any) -> str:
        wf.run(s.read, 1)
        wf.run(s.send, 1)
        wf.sleep(MINUTE)
        wf.run(s.send, 2)
        return "done"

    return body


def _inserted(s: _Steps) -> Any:
    def body(wf: Any) -> None:
        wf.run(s.read, 1)
        wf.run(s.read, 7)
        wf.run(s.send, 1)
        wf.sleep(MINUTE)

    return body


def _removed(s: _Steps) -> Any:
    def body(wf: Any) -> None:
        wf.run(s.read, 1)
        wf.sleep(MINUTE)
        wf.run(s.send, 2)

    return body


def _other_input(s: _Steps) -> Any:
    def body(wf: Any) -> None:
        wf.run(s.read, 1)
        wf.run(s.send, 7)
        wf.sleep(MINUTE)
        wf.run(s.send, 2)

    return body


def _reordered(s: _Steps) -> Any:
    def body(wf: Any) -> None:
        wf.run(s.send, 1)
        wf.run(s.read, 1)
        wf.sleep(MINUTE)
        wf.run(s.send, 2)

    return body


def _shortened(s: _Steps) -> Any:
    def body(wf: Any) -> str:
        wf.run(s.read, 1)
        return "early"

    return body


def _raising(s: _Steps) -> Any:
    def body(wf: Any) -> None:
        wf.run(s.read, 1)
        raise ValueError("new code has a fault")

    return body


def _hiding(s: _Steps) -> Any:
    def body(wf: Any) -> None:
        try:
            wf.run(s.read, 7)
        except BaseException:
            wf.run(s.send, 99)

    return body


def _renamed(s: _Steps) -> Any:
    @step(effect="recorded", name="lookup")
    def lookup(n: int) -> int:
        s.ran.append("lookup")
        return n

    def body(wf: Any) -> None:
        wf.run(lookup, 1)
        wf.run(s.send, 1)

    return body


NEW_CODE = {
    "inserted": (_inserted, "send#1", "read#2"),
    "removed": (_removed, "send#1", "wf.sleep#1"),
    "renamed": (_renamed, "read#1", "lookup#1"),
    "other input": (_other_input, "send#1 with arguments", "arguments "),
    "reordered": (_reordered, "read#1", "send#1"),
    "shortened": (_shortened, "send#1", "the end of the workflow"),
    "raising": (_raising, "send#1", "the end of the workflow"),
    "hiding": (_hiding, "read#1 with arguments", "arguments "),
}


@pytest.mark.parametrize("change", NEW_CODE)
def test_code_that_differs_from_the_history_blocks_and_does_nothing(engine: Engine, change: str) -> None:
    """C34, R46: expected and found are shown, nothing runs, and the old code goes on."""
    steps = _Steps()
    thread = engine.run(flow(_old(steps)))
    assert steps.ran == ["read 1", "send 1"]
    new, expected, found = NEW_CODE[change]
    _registered(engine, new(steps))
    engine.advance("2 minutes")
    assert engine.state(thread) == "blocked"
    blocked = next(e for e in engine.client.events(thread) if e.type == "thread.blocked")
    assert blocked.body["expected"].startswith(expected)
    assert blocked.body["found"].startswith(found)
    assert expected in engine.client.row(thread).reason
    assert steps.ran == ["read 1", "send 1"]
    _registered(engine, _old(steps))
    engine.idle()
    assert engine.client.result(thread) == "done"
    assert steps.ran == ["read 1", "send 1", "send 2"]


def test_a_change_that_touches_no_recorded_step_blocks_nothing(engine: Engine) -> None:
    """C34: neither source nor a wait's length is pinned."""
    steps = _Steps()
    thread = engine.run(flow(_old(steps)))

    def body(wf: Any) -> str:
        x = wf.run(steps.read, 1)
        wf.run(steps.send, x)
        wf.sleep(timedelta(days=3))
        wf.run(steps.send, x + 1)
        return "new"

    _registered(engine, body)
    engine.advance("2 minutes")
    assert engine.client.result(thread) == "new"


@pytest.mark.parametrize("attempts", [1, 5])
def test_a_recorded_failure_is_no_answer_to_another_input(engine: Engine, attempts: int) -> None:
    """C34: also a failed attempt, and a step that failed for good, stand for their arguments."""
    ran: list[int] = []

    @step(effect="recorded", retry=Retry(attempts))
    def fails(n: int) -> None:
        ran.append(n)
        raise OSError("no")

    def calls(n: int) -> Any:
        def body(wf: Any) -> None:
            try:
                wf.run(fails, n)
            except StepFailed:
                wf.sleep(MINUTE)

        return body

    thread = engine.run(flow(calls(1)))
    assert engine.state(thread) == "waiting"
    _registered(engine, calls(2))
    engine.advance("2 minutes")
    assert engine.state(thread) == "blocked"
    assert ran == [1]


def test_a_blocked_thread_takes_signals_and_ends_by_its_deadline(engine: Engine) -> None:
    """C34, R100."""
    steps = _Steps()
    thread = engine.run(flow(_old(steps)))
    _registered(engine, _inserted(steps))
    engine.advance("2 minutes")
    assert engine.client.signal(thread, "note") is not None
    engine.idle()
    assert engine.state(thread) == "blocked"
    engine.advance("15 days")
    assert engine.state(thread) == "expired"


def test_a_thread_whose_version_nobody_has_stays_ready(engine: Engine, registry: Registry) -> None:
    """C34: it is not failed and uses up no attempt."""
    made = flow(lambda wf: "ran")
    registry.workflows.clear()
    engine.deploy()
    thread = engine.run(made)
    assert engine.state(thread) == "running"
    assert engine.types(thread) == ["thread.started"]
    registry.add_workflow(made)
    engine.deploy()
    engine.idle()
    assert engine.client.result(thread) == "ran"


def test_a_worker_that_lost_its_lease_goes_on_under_a_new_incarnation(engine: Engine) -> None:
    """C21, R59: the old incarnation is never taken up again."""
    engine.service._tainted = True
    thread = engine.run(flow(lambda wf: "ran"))
    assert engine.client.result(thread) == "ran"
    assert engine.connection.execute("select count(*) from actum.workers").fetchone()[0] >= 1
