"""Effects: intent before bytes, and no guess about what happened outside."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest

from actum import (
    Absent,
    Confirmed,
    Mismatch,
    NotSent,
    Refused,
    Retry,
    StepFailed,
    Unclear,
    step,
    workflow,
)
from actum.domain.workflow import Step, Workflow
from actum.errors import Rejected
from tests.support.engine import Engine

SECONDS = timedelta(seconds=10)
QUICK = Retry(3, wait_initial_seconds=5, wait_exp_base=1, wait_jitter_seconds=0)


class Target:
    """An outside system: it keeps what arrived by key, and answers as the test's script says."""

    def __init__(self) -> None:
        self.keys: list[str] = []
        self.script: list[Exception | Any] = []
        self.findings: list[Any] = []
        self.asked = 0

    def send(self, key: str) -> Any:
        """Take one request; raise or return the script's next word (the last one stays)."""
        self.keys.append(key)
        word = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        if isinstance(word, Exception):
            raise word
        return word

    def find(self) -> Any:
        """Answer the reconciler with the next finding (the last one stays)."""
        self.asked += 1
        word = self.findings.pop(0) if len(self.findings) > 1 else self.findings[0]
        if isinstance(word, Exception):
            raise word
        return word


@pytest.fixture
def target() -> Target:
    """A fresh outside system that does what it is told."""
    made = Target()
    made.script = ["ok"]
    return made


def effect(target: Target, kind: str, *, settle: int = 30, asks_max: int = 4) -> Step:
    """Declare a step of class `kind` on `target`."""

    @step(effect=kind, owner="team", timeout=SECONDS, retry=QUICK, name="send")  # type: ignore[arg-type]
    def send(n: int, *, effect_key: str) -> Any:
        return target.send(effect_key)

    if kind == "reconcilable":

        @send.reconciler(settle=timedelta(seconds=settle), asks_max=asks_max)
        def find(n: int, *, effect_key: str) -> Any:
            assert effect_key == target.keys[-1]
            return target.find()

    return send


def flow(made: Step, *, deadline: timedelta = timedelta(days=2)) -> Workflow:
    """A workflow that runs one effect and returns what came of it."""

    @workflow(version="1", owner="team", deadline=deadline, on_upgrade="finish", name="flow")
    def body(wf: Any) -> Any:
        try:
            return wf.run(made, 1)
        except StepFailed as failed:
            return f"failed: {failed.error['type']}"

    return body


CLASSES = ["idempotent", "reconcilable", "unrepeatable"]


@pytest.mark.parametrize("kind", CLASSES)
def test_what_was_not_sent_is_tried_again_with_the_same_key(
    engine: Engine, target: Target, kind: str
) -> None:
    """R64, R69, invariant 8."""
    target.script = [NotSent("connection refused"), "ok"]
    thread = engine.run(flow(effect(target, kind)))
    assert engine.step(thread, "send#1").state == "authorized"
    assert len(target.keys) == 1
    engine.advance("6 seconds")
    assert engine.client.result(thread) == "ok"
    assert len(target.keys) == 2
    assert len(set(target.keys)) == 1
    assert engine.step(thread, "send#1").attempts == 2


@pytest.mark.parametrize("kind", CLASSES)
def test_what_the_target_refused_fails_at_once(engine: Engine, target: Target, kind: str) -> None:
    """R69: a refusal is known not to have happened and is not tried again."""
    target.script = [Refused("422")]
    thread = engine.run(flow(effect(target, kind)))
    assert engine.client.result(thread) == "failed: actum.domain.effects.Refused"
    assert len(target.keys) == 1


def test_what_is_never_sent_fails_after_the_declared_attempts(engine: Engine, target: Target) -> None:
    """R64."""
    target.script = [NotSent("refused")]
    thread = engine.run(flow(effect(target, "idempotent")))
    for _ in range(4):
        engine.advance("6 seconds")
    assert engine.client.result(thread) == "failed: actum.domain.effects.NotSent"
    assert len(target.keys) == 3


def test_an_idempotent_effect_of_unknown_outcome_is_sent_again_with_its_key(
    engine: Engine, target: Target
) -> None:
    """R71, C28."""
    target.script = [ConnectionResetError("after sending"), "ok"]
    thread = engine.run(flow(effect(target, "idempotent")))
    assert engine.types(thread)[-3:] == ["effect.unknown", "effect.repeatable", "thread.waiting"]
    engine.client.signal(thread, "noise")
    engine.idle()
    assert len(target.keys) == 1, "a signal cuts no pause short"
    engine.advance("6 seconds")
    assert engine.client.result(thread) == "ok"
    assert len(target.keys) == 2
    assert len(set(target.keys)) == 1


def test_an_idempotent_effect_that_stays_unknown_is_handed_to_its_owner(
    engine: Engine, target: Target
) -> None:
    """R71, R74: unknown is never turned into failed by counting."""
    target.script = [ConnectionResetError("after sending")]
    thread = engine.run(flow(effect(target, "idempotent")))
    for _ in range(4):
        engine.advance("6 seconds")
    assert engine.state(thread) == "needs_resolution"
    assert engine.step(thread, "send#1").state == "needs_resolution"
    assert len(target.keys) == 3


def test_an_unrepeatable_effect_of_unknown_outcome_waits_for_its_owner(
    engine: Engine, target: Target
) -> None:
    """R74: nothing automatic."""
    target.script = [ConnectionResetError("after sending")]
    thread = engine.run(flow(effect(target, "unrepeatable")))
    engine.advance("1 hour")
    assert engine.state(thread) == "needs_resolution"
    assert len(target.keys) == 1
    required = next(e for e in engine.client.events(thread) if e.type == "resolution.required")
    assert required.body["owner"] == "team"


def _unknown(engine: Engine, target: Target, **settings: Any) -> Any:
    target.script = [ConnectionResetError("after sending"), "ok"]
    thread = engine.run(flow(effect(target, "reconcilable", **settings)))
    assert engine.step(thread, "send#1").state == "effect_unknown"
    return thread


def test_a_reconciler_that_confirms_completes_the_step_with_its_evidence(
    engine: Engine, target: Target
) -> None:
    """R70, R72, C27: found by key, sent once."""
    target.findings = [Confirmed("found", {"external_id": "x-1"})]
    thread = _unknown(engine, target)
    engine.advance("2 seconds")
    assert engine.client.result(thread) == "found"
    assert len(target.keys) == 1
    evidence = engine.step(thread, "send#1").evidence[-1]
    assert (evidence["source"], evidence["external_id"]) == ("reconciler", "x-1")


def test_absent_is_believed_only_after_time_out_and_settling(engine: Engine, target: Target) -> None:
    """R71, R73, C28: 10 s in which it may still be sent, and 30 s in which it may still appear."""
    target.findings = [Absent({"seen": 0})]
    thread = _unknown(engine, target)
    engine.advance("2 seconds")
    assert target.asked == 1
    engine.advance("30 seconds")
    assert len(target.keys) == 1
    engine.advance("10 seconds")
    assert engine.client.result(thread) == "ok"
    assert target.keys[0] == target.keys[1]
    assert engine.types(thread).count("effect.absent") == 1


def test_an_effect_that_appears_while_absent_settles_is_not_sent_again(
    engine: Engine, target: Target
) -> None:
    """R73."""
    target.findings = [Absent(), Confirmed("late")]
    thread = _unknown(engine, target)
    engine.advance("2 seconds")
    engine.advance("1 minute")
    assert engine.client.result(thread) == "late"
    assert len(target.keys) == 1


def test_an_effect_that_is_absent_after_every_attempt_fails(engine: Engine, target: Target) -> None:
    """R64, R71: what the target says did not happen may be called failed."""
    target.findings = [Absent()]
    thread = _unknown(engine, target, asks_max=99)
    target.script = [ConnectionResetError("again")]
    for _ in range(10):
        engine.advance("1 minute")
    assert engine.client.result(thread) == "failed: Exhausted"
    assert len(target.keys) == 3


def test_a_mismatch_is_listed_for_the_owner(engine: Engine, target: Target) -> None:
    """R74."""
    target.findings = [Mismatch({"amount": [1, 2]}, {"external_id": "x-1"})]
    thread = _unknown(engine, target)
    engine.advance("2 seconds")
    assert engine.state(thread) == "needs_resolution"
    required = next(e for e in engine.client.events(thread) if e.type == "resolution.required")
    assert required.body["evidence"] == {"differences": {"amount": [1, 2]}, "external_id": "x-1"}


NO_ANSWERS = {
    "unclear": Unclear("503"),
    "raises": OSError("no route"),
    "nothing": None,
    "a text with NUL": "a\0b\ud800",
    "a reason with a lone surrogate": Unclear("a\ud800"),
    "a result that can't be stored": Confirmed(math.nan),
    "evidence that can't be stored": Confirmed("x", {"at": datetime(2026, 1, 1)}),
    "evidence that is no mapping": Absent([1]),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("answer", NO_ANSWERS)
def test_an_answer_that_decides_nothing_is_asked_for_again_up_to_the_limit(
    engine: Engine, target: Target, answer: str
) -> None:
    """R72, R74, C36: then the owner decides; the Thread is not failed."""
    target.findings = [NO_ANSWERS[answer]]
    thread = _unknown(engine, target)
    for _ in range(6):
        engine.advance("30 seconds")
    assert engine.state(thread) == "needs_resolution"
    assert target.asked == 4
    assert len(target.keys) == 1


def _in_need(engine: Engine, target: Target) -> Any:
    target.script = [ConnectionResetError("after sending"), "second"]
    thread = engine.run(flow(effect(target, "unrepeatable")))
    assert engine.state(thread) == "needs_resolution"
    return thread


def test_an_owner_who_confirms_gives_the_result(engine: Engine, target: Target) -> None:
    """R74, R100."""
    thread = _in_need(engine, target)
    engine.client.resolve(thread, "send#1", "confirmed", "seen in the ledger", {"id": 7})
    engine.idle()
    assert engine.client.result(thread) == {"id": 7}
    assert len(target.keys) == 1


def test_an_owner_who_says_absent_lets_it_be_sent_again(engine: Engine, target: Target) -> None:
    """R74."""
    thread = _in_need(engine, target)
    engine.client.resolve(thread, "send#1", "absent", "not in the ledger")
    engine.idle()
    assert engine.client.result(thread) == "second"
    assert target.keys[0] == target.keys[1]


def test_an_owner_who_says_failed_lets_the_workflow_go_on(engine: Engine, target: Target) -> None:
    """R74."""
    thread = _in_need(engine, target)
    engine.client.resolve(thread, "send#1", "failed", "bounced")
    engine.idle()
    assert engine.client.result(thread) == "failed: resolution"


def test_a_decision_nobody_waits_for_is_refused(engine: Engine, target: Target) -> None:
    """R74: an owner's second word changes nothing."""
    thread = _in_need(engine, target)
    with pytest.raises(Rejected, match="no such step"):
        engine.client.resolve(thread, "other#1", "failed", "x")
    engine.client.resolve(thread, "send#1", "failed", "x")
    with pytest.raises(Rejected, match="not needed"):
        engine.client.resolve(thread, "send#1", "confirmed", "x")
    engine.idle()


def test_a_deadline_with_an_effect_in_doubt_asks_the_owner_and_ends_later(
    engine: Engine, target: Target
) -> None:
    """R100, invariant 12: what may have happened is not called failed, and not left open for ever."""
    target.findings = [Unclear("503")]
    thread = _unknown(engine, target, asks_max=10_000)
    engine.advance("3 days")
    assert engine.state(thread) == "needs_resolution"
    assert engine.step(thread, "send#1").state == "needs_resolution"
    engine.advance("29 days")
    assert engine.state(thread) == "needs_resolution"
    engine.advance("2 days")
    assert engine.state(thread) == "expired"
    assert engine.step(thread, "send#1").state == "expired"


def test_a_step_that_took_too_long_is_unknown(engine: Engine) -> None:
    """C28, R61: and its process is replaced, for Python can't interrupt a thread."""
    done = threading.Event()

    @step(effect="unrepeatable", owner="team", timeout=timedelta(milliseconds=50))
    def hangs(n: int, *, effect_key: str) -> None:
        done.wait(20)

    thread = engine.run(flow(hangs))
    assert engine.service.worn
    done.set()
    assert engine.state(thread) == "needs_resolution"
    assert "Overdue" in engine.step(thread, "hangs#1").evidence[0]["unknown"]


@pytest.mark.parametrize("seconds", [0, 30])
def test_an_async_step_runs_and_is_cancelled_at_its_time_out(engine: Engine, seconds: int) -> None:
    """R61."""
    cancelled: list[bool] = []

    @step(effect="recorded", timeout=timedelta(milliseconds=100), retry=Retry(1))
    async def slow(n: int) -> str:
        try:
            await asyncio.sleep(seconds)  # sleep-ok: the time-out of a step is the subject
        except asyncio.CancelledError:
            cancelled.append(True)
            raise
        return "done"

    thread = engine.run(flow(slow))
    expected = "failed: actum.engine.calls.Overdue" if seconds else "done"
    assert engine.client.result(thread) == expected
    assert cancelled == [True] * bool(seconds)
    assert not engine.service.worn


def test_a_check_that_holds_completes_the_step(engine: Engine, target: Target) -> None:
    """R32, invariant 9."""
    made = effect(target, "reconcilable")

    @made.check
    def arrived(result: str) -> bool:
        return result == "ok"

    thread = engine.run(flow(made))
    assert engine.client.result(thread) == "ok"
    types = engine.types(thread)
    assert types.index("check.passed") < types.index("step.completed")


@pytest.mark.parametrize("answer", [False, OSError("no route")])
def test_a_check_that_does_not_hold_needs_resolution(engine: Engine, target: Target, answer: Any) -> None:
    """R32, invariant 9: never completed without its evidence."""
    made = effect(target, "reconcilable")

    @made.check
    def arrived(result: str) -> bool:
        if isinstance(answer, Exception):
            raise answer
        return bool(answer)

    thread = engine.run(flow(made))
    assert engine.state(thread) == "needs_resolution"
    assert "step.completed" not in engine.types(thread)


UNSTORABLE = {"nan": math.nan, "nul": "a\0b", "surrogate": "\ud800", "naive": datetime(2026, 1, 1)}


@pytest.mark.parametrize("value", UNSTORABLE)
def test_a_result_that_can_not_be_stored_fails_the_step(engine: Engine, value: str) -> None:
    """C36: the Thread isn't left running; the message says what is wrong."""

    @step(effect="recorded")
    def returns(n: int) -> Any:
        return {"x": UNSTORABLE[value]}

    thread = engine.run(flow(returns))
    assert engine.client.result(thread) == "failed: actum.errors.BadValue"
    assert engine.step(thread, "returns#1").error["message"].startswith("$.x")


def test_an_effect_whose_result_can_not_be_stored_is_unknown(engine: Engine, target: Target) -> None:
    """C36: it happened, so it is not called failed."""
    target.script = [math.nan]
    thread = engine.run(flow(effect(target, "unrepeatable")))
    assert engine.state(thread) == "needs_resolution"
    assert len(target.keys) == 1


def test_a_workflow_result_that_can_not_be_stored_fails_the_thread(engine: Engine) -> None:
    """C36."""

    @workflow(version="1", owner="team", deadline=SECONDS, on_upgrade="finish", name="flow")
    def body(wf: Any) -> Any:
        return "a\0b"

    thread = engine.run(body)
    assert engine.state(thread) == "failed"


@pytest.mark.parametrize("kind", ["recorded", "unrepeatable"])
def test_an_error_of_fifty_megabytes_is_stored_cut(engine: Engine, target: Target, kind: str) -> None:
    """C39."""

    @step(effect="recorded", retry=Retry(1))
    def huge(n: int) -> None:
        raise ValueError("x" * 50_000_000)

    target.script = [ValueError("x" * 50_000_000)]
    thread = engine.run(flow(huge if kind == "recorded" else effect(target, kind)))
    largest = engine.connection.execute("select max(length(body::text)) from actum.events").fetchone()
    assert largest[0] < 20_000
    assert engine.state(thread) in ("completed", "needs_resolution")


# transactional


@pytest.fixture
def own_table(engine: Engine) -> Iterator[str]:
    """A table of the user's own in the same database, with a constraint that is checked at commit."""
    engine.connection.execute(
        "create table own (n int, constraint one unique (n) deferrable initially deferred)"
    )
    yield "own"


def _own(engine: Engine) -> int:
    return engine.connection.execute("select count(*) from own").fetchone()[0]


@pytest.mark.usefixtures("own_table")
def test_a_transactional_step_commits_with_its_record(engine: Engine) -> None:
    """R67: one commit, never unknown."""

    @step(effect="transactional")
    def put(n: int, *, connection: Any) -> int:
        connection.execute("insert into own values (%s)", (n,))
        return n

    thread = engine.run(flow(put))
    assert engine.client.result(thread) == 1
    assert _own(engine) == 1


@pytest.mark.usefixtures("own_table")
def test_a_transactional_step_that_fails_leaves_nothing(engine: Engine) -> None:
    """R67."""

    @step(effect="transactional", retry=QUICK)
    def put(n: int, *, connection: Any) -> int:
        connection.execute("insert into own values (%s)", (n,))
        raise OSError("after the insert")

    thread = engine.run(flow(put))
    assert _own(engine) == 0
    assert engine.step(thread, "put#1").state == "authorized"
    for _ in range(3):
        engine.advance("6 seconds")
    assert engine.client.result(thread) == "failed: builtins.OSError"
    assert _own(engine) == 0


@pytest.mark.usefixtures("own_table")
@pytest.mark.parametrize("value", ["nan", "nul"])
def test_a_transactional_step_whose_result_can_not_be_stored_leaves_nothing(
    engine: Engine, value: str
) -> None:
    """R67, C36."""

    @step(effect="transactional")
    def put(n: int, *, connection: Any) -> Any:
        connection.execute("insert into own values (%s)", (n,))
        return UNSTORABLE[value]

    thread = engine.run(flow(put))
    assert engine.client.result(thread) == "failed: actum.errors.BadValue"
    assert _own(engine) == 0


@pytest.mark.usefixtures("own_table")
def test_a_transactional_step_that_fails_at_its_commit_is_a_failed_attempt(engine: Engine) -> None:
    """R67: what the commit refused, deferred constraints included, is known not to have happened."""

    @step(effect="transactional", retry=QUICK)
    def twice(n: int, *, connection: Any) -> None:
        connection.execute("insert into own values (%s), (%s)", (n, n))

    thread = engine.run(flow(twice))
    for _ in range(3):
        engine.advance("6 seconds")
    assert engine.client.result(thread) == "failed: psycopg.errors.UniqueViolation"
    assert _own(engine) == 0


@pytest.mark.usefixtures("own_table")
def test_a_transactional_step_whose_connection_breaks_is_run_again(engine: Engine) -> None:
    """R67, C44: whether it was committed is read from the journal, never guessed."""
    ran: list[int] = []

    @step(effect="transactional", retry=QUICK)
    def put(n: int, *, connection: Any) -> int:
        connection.execute("insert into own values (%s)", (n,))
        ran.append(n)
        if len(ran) == 1:
            connection.execute("select pg_terminate_backend(pg_backend_pid())")
        return n

    thread = engine.run(flow(put))
    for _ in range(3):
        engine.advance("6 seconds")
    assert engine.client.result(thread) == 1
    assert _own(engine) == 1
