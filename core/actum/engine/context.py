"""What a workflow asks for: `wf.run`, `wf.wait`, `wf.sleep`, `wf.now`, `wf.random`, `wf.uuid`.

Each request is first held against the history. What is recorded is answered from there; what is new is
done, recorded, and its claim given back where it must wait. One code path for the first run and for every
later one (R24).
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, Concatenate, NoReturn, ParamSpec, TypeVar
from uuid import UUID

from actum import codec
from actum.clock import DatabaseClock
from actum.domain.thread import Thread, Wait
from actum.domain.workflow import Step
from actum.engine.record import Recorder, body
from actum.engine.replay import Replay
from actum.engine.signals import GiveWay, Leave, Suspended
from actum.engine.steps import StepRunner
from actum.errors import BadValue, Rejected
from actum.ids import new_id


class WaitExpired(Exception):
    """Raised in a workflow when a wait's time ended before its signal came."""


R = TypeVar("R")
P = ParamSpec("P")


def _request(
    method: Callable[Concatenate[WorkflowContext, P], R],
) -> Callable[Concatenate[WorkflowContext, P], R]:
    """Make a way out final: code in a `finally` or after a bare `except` can ask for nothing more."""

    def request(self: WorkflowContext, /, *args: P.args, **kwargs: P.kwargs) -> R:
        self.stay()
        try:
            return method(self, *args, **kwargs)
        except Leave as leave:
            self._way_out = leave
            raise

    functools.update_wrapper(request, method)
    return request


class WorkflowContext:
    """The `wf` of one run of a workflow function."""

    def __init__(
        self,
        thread_id: UUID,
        thread: Thread,
        recorder: Recorder,
        runner: StepRunner,
        clock: DatabaseClock,
        must_yield: Callable[[], bool],
    ) -> None:
        self.thread_id = thread_id
        self._thread = thread
        self._record = recorder
        self._runner = runner
        self._clock = clock
        self._must_yield = must_yield
        self.replay = Replay(thread)
        self._taken: set[int] = set()
        self._way_out: Leave | None = None

    def stay(self) -> None:
        """Raise again what this run was left by, if the workflow's code caught it."""
        if self._way_out is not None:
            raise self._way_out

    @_request
    def run(self, step: Step, *args: Any, **kwargs: Any) -> Any:
        """Run a step and return its result; raises `StepFailed` when it failed for good.

        Each call is one occurrence of the step. Arguments are stored; they must be JSON (see the codec).
        """
        if not isinstance(step, Step):
            raise Rejected(f"wf.run takes a function decorated with @step, not {step!r}")
        text = self._arguments(step, args, kwargs)
        step_id = self.replay.name(step.name)
        digest = codec.digest(f"{step.name}\n{text}")
        if not self.replay.expect(step_id, digest):
            self._yield_if_due()
        return self._runner.run(step, step_id, digest, text)

    def _arguments(self, step: Step, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        try:
            return codec.encode(step.bind(args, kwargs))
        except TypeError as error:
            raise Rejected(f"step {step.name!r} can't be called so: {error}") from None
        except BadValue as error:
            raise BadValue(f"{step.name}: {error.path}", error.reason) from None

    @_request
    def wait(self, name: str, within: timedelta) -> Any:
        """Wait for the signal `name` and return its body. Raises `WaitExpired` after `within`.

        Signals of one name are taken in the order of their events, each by one wait. A signal that came
        before the wait counts. At the deadline whichever event is recorded first decides.
        """
        request = self.replay.name(f"wait:{codec.check_name(name, 'signal name')}")
        self.replay.expect(request)
        opened = self._thread.waits.get(request)
        signal = self._next_signal(name, self._thread.fired.get(request))
        if opened is None:
            self._yield_if_due()
            self._record.event("wait.opened", request, body(name=name, seconds=within.total_seconds()))
        if signal is not None:
            self._taken.add(signal.seq)
            self._record.post()
            return codec.revive(signal.body)
        if request in self._thread.fired:
            raise WaitExpired(f"no {name!r} came within {within}")
        self._suspend(request, f"signal {name}", self._left(opened, within))

    def _next_signal(self, name: str, fired_at: int | None) -> Any:
        """Return the first signal of this name that no earlier wait took and that beat the timer."""
        for signal in self._thread.signals:
            if signal.name == name and signal.seq not in self._taken:
                return signal if fired_at is None or signal.seq < fired_at else None
        return None

    @_request
    def sleep(self, duration: timedelta) -> None:
        """Sleep at least `duration` on the database's clock; takes no worker's time."""
        request = self.replay.name("wf.sleep")
        self.replay.expect(request)
        opened = self._thread.waits.get(request)
        if opened is None:
            self._yield_if_due()
            self._record.event("sleep.started", request, body(seconds=duration.total_seconds()))
        if request not in self._thread.fired:
            self._suspend(request, "sleep", self._left(opened, duration))

    def _left(self, opened: Wait | None, duration: timedelta) -> float:
        if opened is None:
            return duration.total_seconds()
        return max(0.0, (opened.due_at - self._clock.now()).total_seconds())

    def _suspend(self, request: str, waits_for: str, seconds: float) -> NoReturn:
        """Commit the condition and its deadline, give the claim back, and leave the stack (R65)."""
        self._record.event("thread.waiting", "", body(wait_for=waits_for, timer=request))
        self._record.decide("waiting", waits_for, seconds, request)
        raise Suspended

    @_request
    def now(self) -> datetime:
        """Return the time at which this line ran first (database time; recorded)."""
        return datetime.fromisoformat(self._value("wf.now", lambda: self._clock.now().isoformat()))

    @_request
    def random(self) -> float:
        """Return a random number in [0, 1), the same on every replay."""
        return float(self._value("wf.random", random.random))

    @_request
    def uuid(self) -> UUID:
        """Return a UUIDv7, the same on every replay."""
        return UUID(self._value("wf.uuid", lambda: str(new_id())))

    def _value(self, base: str, make: Callable[[], Any]) -> Any:
        request = self.replay.name(base)
        if self.replay.expect(request):
            return self._thread.values[request]
        self._yield_if_due()
        value = make()
        self._record.event("value.recorded", request, body(value=value))
        self._record.post()
        return value

    def _yield_if_due(self) -> None:
        if self._must_yield():
            raise GiveWay
