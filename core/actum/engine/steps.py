"""Running one step by its effect class, and settling what is not known.

Classes without an outside effect are run, recorded and not waited for. An outside effect is sent only
after its intent and key are committed (R63); what it then leaves open is settled here: sent again with the
same key, asked of the target, or handed to the owner (R69 to R74).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, NoReturn, cast

from actum import codec, faults
from actum.domain import effects, lifecycle
from actum.domain.effects import Absent, Confirmed, EffectClass, Mismatch, NotSent, Refused, Unclear
from actum.domain.thread import StepView, Thread
from actum.domain.workflow import Step
from actum.engine.calls import Caller, Overdue
from actum.engine.lease import Lease
from actum.engine.record import Recorder, body
from actum.engine.signals import Lost, Suspended
from actum.errors import BadValue, LeaseLost
from actum.journal.database import RETRYABLE
from actum.telemetry import emit

S = lifecycle.StepState
ASK_FIRST_SECONDS = 1.0
ASK_MAX_SECONDS = 300.0
Transactional = Callable[[Callable[..., Any], dict[str, Any], Callable[[Any], str]], Any]


class StepFailed(Exception):
    """A step failed for good. `error` holds the type and message of what it raised."""

    def __init__(self, step_id: str, error: dict[str, Any] | None) -> None:
        self.step_id = step_id
        self.error = error or {}
        super().__init__(f"{step_id}: {self.error.get('type', '')}: {self.error.get('message', '')}")


class StepRunner:
    """Runs the steps of one turn."""

    def __init__(
        self,
        thread: Thread,
        recorder: Recorder,
        caller: Caller,
        lease: Lease,
        claimed_at: datetime,
        crashes: int,
        in_transaction: Transactional,
    ) -> None:
        self._thread = thread
        self._record = recorder
        self._caller = caller
        self._lease = lease
        self._claimed_at = claimed_at
        self._crashes = crashes
        self._in_transaction = in_transaction

    def run(self, step: Step, step_id: str, digest: str, text: str) -> Any:
        """Return the step's recorded result, or make one. `text` holds the arguments by name."""
        view = self._thread.steps.get(step_id) or StepView(step_id, digest=digest)
        return self._go_on(_Call(step, view, digest, text))

    def _go_on(self, call: _Call) -> Any:
        """Do what the step's state asks for. The one place where a state leads to an action."""
        match call.view.state:
            case S.COMPLETED | S.COMPENSATED | S.COMPENSATING:
                return call.result()
            case S.FAILED | S.REJECTED | S.EXPIRED | S.CANCELLED:
                raise StepFailed(call.view.step_id, call.view.error or {"type": call.view.state})
            case S.NEEDS_RESOLUTION:
                self._halt(call, "an owner must decide")
            case S.EFFECT_UNKNOWN:
                return self._settle(call)
            case S.EFFECT_CONFIRMED:
                return self._check(call)
            case S.DISPATCHED:
                self._event(call, "effect.unknown", body(reason="the claim changed hands"))
                call.view.unknown_at = self._claimed_at
                return self._after_unknown(call)
            case _:
                return self._attempt(call)

    # attempts

    def _attempt(self, call: _Call) -> Any:
        due = call.view.due_at
        if due is not None and due > self._claimed_at:
            self._pause(call, "retry", (due - self._claimed_at).total_seconds())
        if call.step.effect.external:
            return self._send(call)
        if self._crashes >= call.step.retry.stop_after_attempt:
            return self._fail(call, {"type": "WorkerLost", "message": f"{self._crashes} workers died"})
        self._check_lease()
        if call.step.effect is EffectClass.TRANSACTIONAL:
            return self._transact(call)
        try:
            value = self._call(call, call.step.function)
            text = codec.encode(value)
        except Exception as error:
            return self._attempt_failed(call, error)
        self._event(call, "step.recorded", _recorded(call.digest, text))
        self._record.post()
        return call.decoded(text)

    def _transact(self, call: _Call) -> Any:
        """Run the step inside the transaction that records it: one commit, never unknown."""
        self._record.barrier()
        before = call.view.state

        def recorded(value: Any) -> str:
            text = codec.encode(value)
            self._event(call, "step.recorded", _recorded(call.digest, text))
            return text

        try:
            text = self._in_transaction(call.step.function, call.keywords(), recorded)
        except Exception as error:
            if self._record.undo(call.view.step_id, before) and isinstance(error, RETRYABLE):
                raise Lost("the connection broke at the commit: the journal knows how it ended") from error
            return self._attempt_failed(call, error)
        return call.decoded(text)

    def _attempt_failed(self, call: _Call, error: Exception) -> Any:
        """Known not to have happened: try again later as a row, or fail for good."""
        call.view.attempts = max(call.view.attempts, 0) + (0 if call.step.effect.external else 1)
        stored = codec.storable_error(error)
        if self._exhausted(call) or isinstance(error, (Refused, BadValue)):
            return self._fail(call, stored)
        pause = call.step.retry.wait_seconds(call.view.attempts, random.random())
        text = body(error=stored, attempt=call.view.attempts, after_seconds=pause, digest=call.digest)
        self._event(call, "attempt.failed", text)
        self._pause(call, "retry", pause)

    def _exhausted(self, call: _Call) -> bool:
        return call.view.attempts - call.view.forgiven >= call.step.retry.stop_after_attempt

    def _fail(self, call: _Call, error: dict[str, Any]) -> Any:
        emit("step.failed", step=call.view.step_id, error=error.get("message", ""))
        self._event(call, "step.failed", body(error=error, digest=call.digest))
        self._record.post()
        raise StepFailed(call.view.step_id, error)

    # effects

    def _send(self, call: _Call) -> Any:
        """Commit intent and key, look at the lease once more, then let the bytes go."""
        if self._exhausted(call):
            self._record.decide()  # "absent" must be on record before "failed" follows from it
            message = f"the effect is absent after {call.view.attempts} attempts"
            return self._fail(call, {"type": "Exhausted", "message": message})
        call.view.attempts += 1
        key = self._record.key(call.view.step_id, call.digest)
        text = body(digest=call.digest, effect_key=key, attempt=call.view.attempts)
        faults.point("intent.before")
        self._event(call, "effect.intended", text[:-1] + f',"arguments":{call.text}}}')
        self._record.decide()
        faults.point("intent.after")
        self._check_lease()
        faults.point("effect.before")
        try:
            value = self._call(call, call.step.function, effect_key=key)
            result = codec.encode(value)
        except (NotSent, Refused) as error:
            return self._attempt_failed(call, error)
        except Exception as error:
            faults.point("effect.after")
            return self._unknown(call, error)
        faults.point("effect.after")
        return self._confirm(call, result, {"source": call.step.name, "digest": codec.digest(result)})

    def _unknown(self, call: _Call, error: Exception) -> Any:
        reason = codec.storable_text(f"{type(error).__name__}: {error}", 2000)
        emit("effect.unknown", step=call.view.step_id, reason=reason)
        self._event(call, "effect.unknown", body(reason=reason))
        call.view.unknown_at = None
        return self._after_unknown(call)

    def _after_unknown(self, call: _Call) -> Any:
        """The outcome was just lost: by class, try again later, ask later, or hand over."""
        match call.step.effect:
            case EffectClass.IDEMPOTENT if not self._exhausted(call):
                pause = call.step.retry.wait_seconds(max(call.view.attempts, 1), random.random())
                text = body(reason="the provider honours the key", after_seconds=pause)
                self._event(call, "effect.repeatable", text)
                self._pause(call, "retry", pause)
            case EffectClass.RECONCILABLE:
                self._pause(call, "ask", ASK_FIRST_SECONDS)
            case _:
                self._require_resolution(call, self._why_not(call), {})

    def _why_not(self, call: _Call) -> str:
        if call.step.effect is EffectClass.IDEMPOTENT:
            return f"unknown after {call.view.attempts} attempts"
        return "the effect can be neither repeated nor looked up"

    def _settle(self, call: _Call) -> Any:
        """Reconcile an unknown effect (R70 to R74)."""
        if call.step.effect is EffectClass.IDEMPOTENT and not self._exhausted(call):
            self._event(call, "effect.repeatable", body(reason="the provider honours the key"))
            return self._send(call)
        if call.step.effect is not EffectClass.RECONCILABLE:
            self._require_resolution(call, self._why_not(call), {})
        if call.view.due_at is not None and call.view.due_at > self._claimed_at:
            self._pause(call, "ask", (call.view.due_at - self._claimed_at).total_seconds())
        return self._judge(call, self._ask(call))

    def _ask(self, call: _Call) -> effects.Finding:
        assert call.step.ask is not None
        self._check_lease()
        faults.point("ask.before")
        try:
            found = _storable(self._call(call, call.step.ask, effect_key=call.view.effect_key))
        except Exception as error:
            found = Unclear(codec.storable_text(f"{type(error).__name__}: {error}", 2000))
        faults.point("ask.after")
        return found

    def _judge(self, call: _Call, finding: effects.Finding) -> Any:
        late = [x for x in call.view.late if x["type"] == "effect.confirmed"]
        match finding:
            case Confirmed(result, evidence):
                return self._confirm(call, codec.encode(result), {"source": "reconciler", **evidence})
            case Mismatch(differences, evidence):
                details = {"differences": differences, **evidence}
                return self._require_resolution(call, "the target shows something else", details)
            case Absent(evidence) if late:
                details = {"late": late, **evidence}
                return self._require_resolution(call, "late evidence contradicts the target", details)
            case Absent(evidence):
                return self._absent(call, evidence)
            case Unclear(reason):
                return self._unclear(call, reason)

    def _absent(self, call: _Call, evidence: dict[str, Any]) -> Any:
        """Believe "absent" only after the send window and the settling time are over."""
        since = call.view.unknown_at or self._claimed_at
        window = call.step.settle_seconds + (call.step.timeout_seconds or 0.0)
        left = (since + timedelta(seconds=window) - self._claimed_at).total_seconds()
        if left > 0:
            return self._ask_again(call, "absent so far", left)
        self._event(call, "effect.absent", body(evidence=_plain(evidence)))
        return self._send(call)

    def _unclear(self, call: _Call, reason: str) -> Any:
        """Ask again with growing pauses, up to a limit; then the owner decides."""
        if call.view.asks + 1 >= call.step.asks_max:
            return self._require_resolution(call, f"asked {call.view.asks + 1} times: {reason}", {})
        return self._ask_again(call, reason, min(ASK_FIRST_SECONDS * 2.0**call.view.asks, ASK_MAX_SECONDS))

    def _ask_again(self, call: _Call, reason: str, pause: float) -> Any:
        self._event(call, "effect.unclear", body(reason=reason, after_seconds=pause))
        self._pause(call, "ask", pause)

    def _confirm(self, call: _Call, result: str, evidence: dict[str, Any]) -> Any:
        text = body(evidence=_plain(evidence))
        self._event(call, "effect.confirmed", text[:-1] + f',"result":{result}}}')
        call.view.result = codec.plain(result)
        return self._check(call)

    def _check(self, call: _Call) -> Any:
        """`completed` needs evidence for every declared check (R32)."""
        for check in call.step.checks:
            if check.__name__ in call.view.passed_checks:
                continue
            self._record.barrier()
            if not self._passes(call, check):
                return self._require_resolution(call, f"check {check.__name__} does not hold", {})
            self._record.event("check.passed", call.view.step_id, body(check=check.__name__))
        self._event(call, "step.completed", "{}")
        self._record.post()
        return call.result()

    def _passes(self, call: _Call, check: Callable[..., Any]) -> bool:
        try:
            return bool(self._caller.call(check, call.step.timeout_seconds, {"result": call.result()}))
        except Exception as error:
            emit("step.failed", step=call.view.step_id, error=str(error))
            return False

    # ways out

    def _require_resolution(self, call: _Call, reason: str, evidence: dict[str, Any]) -> Any:
        emit("resolution.required", step=call.view.step_id, owner=call.step.owner, reason=reason)
        text = body(owner=call.step.owner, reason=reason, evidence=_plain(evidence))
        self._event(call, "resolution.required", text)
        self._halt(call, reason)

    def _halt(self, call: _Call, reason: str) -> NoReturn:
        reason = f"{call.view.step_id}: {reason}"
        self._record.event("thread.halted", "", body(reason=reason))
        self._record.decide("needs_resolution", reason)
        raise Suspended

    def _pause(self, call: _Call, what: str, seconds: float) -> NoReturn:
        timer = f"{what}:{call.view.step_id}"
        self._record.event("thread.waiting", "", body(wait_for=timer, timer=timer))
        self._record.decide("waiting", timer, max(0.0, seconds), timer)
        raise Suspended

    def _event(self, call: _Call, type_: str, text: str) -> None:
        self._record.step_event(call.step, call.view.step_id, call.digest, type_, text, call.view.attempts)

    def _call(self, call: _Call, function: Callable[..., Any], **extra: Any) -> Any:
        timeout = call.step.timeout_seconds
        try:
            return self._caller.call(function, timeout, {**call.keywords(), **extra})
        except Overdue:
            emit("step.overdue", step=call.view.step_id, seconds=timeout)
            raise
        except (SystemExit, KeyboardInterrupt, GeneratorExit) as exit_:
            raise RuntimeError(f"the step raised {type(exit_).__name__}") from exit_

    def _check_lease(self) -> None:
        try:
            self._lease.check()
        except LeaseLost as error:
            raise Lost(str(error)) from error


class _Call:
    """One step as it is asked for now: its definition, what is recorded, and the arguments."""

    def __init__(self, step: Step, view: StepView, digest: str, text: str) -> None:
        self.step = step
        self.view = view
        self.digest = digest
        self.text = text

    def keywords(self) -> dict[str, Any]:
        """The arguments by name, rebuilt as the types that the function declares."""
        return rebuilt(self.step.function, codec.decode(self.text))

    def result(self) -> Any:
        """The recorded result as the declared type."""
        return codec.revive(self.view.result, self.step.result_type)

    def decoded(self, text: str) -> Any:
        """A fresh result, read back so that it is what a replay will see."""
        return codec.decode(text, self.step.result_type)


def rebuilt(function: Callable[..., Any], arguments: dict[str, Any]) -> dict[str, Any]:
    """Return `arguments` with each value as its parameter's declared type."""
    types = codec.parameter_types(function)
    return {k: codec.convert(v, types[k]) if k in types else v for k, v in arguments.items()}


def _recorded(digest: str, text: str) -> str:
    return f'{{"digest":"{digest}","result":{text}}}'


def _storable(found: Any) -> effects.Finding:
    """Return a reconciler's answer if it can be stored; what can't be stored decides nothing."""
    match found:
        case Confirmed(result, evidence):
            codec.encode([result, {**evidence}])
        case Mismatch(differences, evidence):
            codec.encode([{**differences}, {**evidence}])
        case Absent(evidence):
            codec.encode({**evidence})
        case Unclear(reason):
            return Unclear(codec.storable_text(str(reason), 2000))
        case _:
            return Unclear(codec.storable_text(f"not a finding: {found!r}", 500))
    return cast(effects.Finding, found)


def _plain(value: dict[str, Any]) -> Any:
    return codec.plain(codec.encode(value))
