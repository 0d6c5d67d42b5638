"""Definitions: what a step and a workflow declare, checked when they are registered.

A definition that lacks something is refused with a message that says what to write. Steps are registered
by name, workflows by name and version.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal, TypeVar, get_type_hints

from actum.codec import check_name, encode
from actum.domain.effects import EffectClass
from actum.errors import BadDefinition, BadValue

F = TypeVar("F", bound=Callable[..., Any])
ON_UPGRADE = ("finish", "migrate", "review")


@dataclass(frozen=True, slots=True)
class Retry:
    """When a failed attempt is tried again, in tenacity's words. Waits are rows in Postgres, not sleeps.

    The n-th wait is `wait_initial_seconds * wait_exp_base ** (n - 1)`, at most `wait_max_seconds`, plus
    up to `wait_jitter_seconds` at random. `stop_after_attempt` counts all attempts, the first included.
    """

    stop_after_attempt: int = 3
    wait_initial_seconds: float = 1.0
    wait_exp_base: float = 2.0
    wait_max_seconds: float = 60.0
    wait_jitter_seconds: float = 1.0

    def wait_seconds(self, attempt: int, chance: float) -> float:
        """Return the pause after failed attempt number `attempt`; `chance` is in 0..1."""
        growing = self.wait_initial_seconds * self.wait_exp_base ** min(attempt - 1, 60)
        return min(growing, self.wait_max_seconds) + self.wait_jitter_seconds * chance


@dataclass(eq=False, slots=True)
class Step:
    """A unit of work with a declared effect class. Called directly it is the plain function."""

    function: Callable[..., Any]
    name: str
    effect: EffectClass
    owner: str
    timeout_seconds: float | None
    retry: Retry
    ask: Callable[..., Any] | None = None
    settle_seconds: float = 0.0
    asks_max: int = 8
    compensate: Callable[..., Any] | None = None
    checks: list[Callable[..., Any]] = field(default_factory=list)
    signature: inspect.Signature = field(init=False)
    result_type: Any = field(init=False)

    def __post_init__(self) -> None:
        self.signature = inspect.signature(self.function)
        self.result_type = _result_type(self.function)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    def reconciler(self, *, settle: timedelta = timedelta(0), asks_max: int = 8) -> Callable[[F], F]:
        """Declare who asks the target "did this happen?". `settle` is how long "absent" must last."""

        def declare(function: F) -> F:
            self.ask = function
            self.settle_seconds = settle.total_seconds()
            self.asks_max = asks_max
            return function

        return declare

    def compensator(self, function: F) -> F:
        """Declare how the effect is undone."""
        self.compensate = function
        return function

    def check(self, function: F) -> F:
        """Declare an end-state check: `completed` waits until it returns true for the step's result."""
        self.checks.append(function)
        return function

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments by name, defaults applied. Raises `TypeError` as a call would."""
        hidden = dict.fromkeys(self.injected)
        bound = self.signature.bind(*args, **kwargs, **hidden)
        bound.apply_defaults()
        return {k: v for k, v in bound.arguments.items() if k not in hidden}

    @property
    def injected(self) -> list[str]:
        """The parameters that the runtime fills in: `effect_key`, `connection`."""
        return [n for n in ("effect_key", "connection") if n in self.signature.parameters]


def _result_type(function: Callable[..., Any]) -> Any:
    try:
        hint = get_type_hints(function).get("return")
    except Exception:
        return None
    return None if hint in (None, type(None), Any, dict, list, str, int, float, bool) else hint


@dataclass(frozen=True, eq=False, slots=True)
class Workflow:
    """A workflow's definition. `deadline_seconds` bounds a Thread's whole life."""

    function: Callable[..., Any]
    name: str
    version: str
    owner: str
    deadline_seconds: float
    on_upgrade: str
    queue: str
    priority: int

    @property
    def label(self) -> str:
        """Name and version, as claims are matched by it."""
        return f"{self.name}@{self.version}"

    @property
    def digest(self) -> str:
        """A digest of what was declared; not of the source."""
        text = f"{self.label}|{self.owner}|{self.deadline_seconds}|{self.on_upgrade}|{self.queue}"
        return hashlib.sha256(text.encode()).hexdigest()

    def input_text(self, args: tuple[Any, ...], kwargs: dict[str, Any], max_bytes: int) -> str:
        """Return the canonical input: arguments by name, defaults applied. Raises `BadValue`."""
        signature = inspect.signature(self.function)
        try:
            bound = signature.bind(None, *args, **kwargs)
        except TypeError as error:
            raise BadValue("$", f"{self.name} can't be started so: {error}") from None
        bound.apply_defaults()
        named = dict(list(bound.arguments.items())[1:])
        return encode(named, max_bytes=max_bytes)

    def parameter_types(self) -> dict[str, Any]:
        """Return the declared types of the input's parameters."""
        try:
            hints = get_type_hints(self.function)
        except Exception:
            return {}
        return {k: v for k, v in hints.items() if k != "return"}


class Registry:
    """The definitions that a process knows."""

    def __init__(self) -> None:
        self.steps: dict[str, Step] = {}
        self.workflows: dict[tuple[str, str], Workflow] = {}

    def add_step(self, step: Step) -> None:
        """Register a step. Raises `BadDefinition` if another function has its name."""
        _refuse_other(self.steps.get(step.name), step, f"step {step.name!r}")
        self.steps[step.name] = step

    def add_workflow(self, workflow: Workflow) -> None:
        """Register a workflow version. Raises `BadDefinition` if another function has its label."""
        key = (workflow.name, workflow.version)
        _refuse_other(self.workflows.get(key), workflow, f"workflow {workflow.label!r}")
        self.workflows[key] = workflow

    def load(self, modules: Iterable[str]) -> None:
        """Import the modules that define workflows, then check everything that is registered."""
        for module in modules:
            _import(module)
        problems = self.problems()
        if problems:
            raise BadDefinition("; ".join(problems))

    def problems(self) -> list[str]:
        """Return what the registered definitions lack, one sentence each."""
        return [p for step in self.steps.values() for p in _lacks(step)]

    def labels(self) -> list[str]:
        """Return the workflow versions that can be run here."""
        return sorted(w.label for w in self.workflows.values())


REGISTRY = Registry()


def _import(module: str) -> None:
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise BadDefinition(f"ACTUM_WORKFLOWS: can't import {module!r}: {error}") from error


def _refuse_other(old: Step | Workflow | None, new: Step | Workflow, what: str) -> None:
    if old is None:
        return
    places = [(d.function.__module__, d.function.__qualname__) for d in (old, new)]
    if places[0] != places[1]:
        raise BadDefinition(f"{what} is defined twice: in {places[0][0]} and in {places[1][0]}; rename one")


def _lacks(step: Step) -> list[str]:
    """Say what an effect needs before it may be dispatched: owner, time-out, reconciler."""
    lacks = []
    if step.effect.external and not step.owner:
        lacks.append(f"step {step.name!r} acts outside: add owner='team' to @step")
    if step.effect.external and step.timeout_seconds is None:
        lacks.append(f"step {step.name!r} acts outside: add timeout=timedelta(seconds=...) to @step")
    if step.effect is EffectClass.RECONCILABLE and step.ask is None:
        lacks.append(
            f"step {step.name!r} is reconcilable: add @{step.name}.reconciler(settle=...), "
            "or declare effect='unrepeatable'",
        )
    if step.effect.external and "effect_key" not in step.signature.parameters:
        lacks.append(f"step {step.name!r} acts outside: take the keyword effect_key and send it")
    return lacks


EffectName = Literal["pure", "recorded", "transactional", "idempotent", "reconcilable", "unrepeatable"]


def step(
    *,
    effect: EffectName,
    owner: str = "",
    timeout: timedelta | None = None,
    retry: Retry | None = None,
    name: str = "",
) -> Callable[[Callable[..., Any]], Step]:
    """Declare a step. `effect` is required; effects outside also need owner, timeout and reconciler."""

    def declare(function: Callable[..., Any]) -> Step:
        made = Step(
            function=function,
            name=check_name(name or function.__name__, "step name"),
            effect=_effect_class(effect, function.__name__),
            owner=owner,
            timeout_seconds=timeout.total_seconds() if timeout else None,
            retry=retry or Retry(),
        )
        REGISTRY.add_step(made)
        return made

    return declare


def _effect_class(effect: str, name: str) -> EffectClass:
    try:
        return EffectClass(effect)
    except ValueError:
        known = ", ".join(EffectClass)
        raise BadDefinition(f"step {name!r}: effect={effect!r} is not one of {known}") from None


def workflow(
    *,
    version: str,
    owner: str,
    deadline: timedelta,
    on_upgrade: str,
    name: str = "",
    queue: str = "default",
    priority: int = 5,
) -> Callable[[Callable[..., Any]], Workflow]:
    """Declare a workflow: a plain `def` that takes `wf` first. Smaller `priority` is more urgent."""

    def declare(function: Callable[..., Any]) -> Workflow:
        made = Workflow(
            function=function,
            name=check_name(name or function.__name__, "workflow name"),
            version=check_name(version, "workflow version"),
            owner=owner,
            deadline_seconds=deadline.total_seconds(),
            on_upgrade=on_upgrade,
            queue=check_name(queue, "queue"),
            priority=priority,
        )
        _check_workflow(made)
        REGISTRY.add_workflow(made)
        return made

    return declare


def _check_workflow(made: Workflow) -> None:
    problem = ""
    if inspect.iscoroutinefunction(made.function):
        problem = "is async; write a plain def (steps may be async)"
    elif not made.owner:
        problem = "needs owner='team': who is told when it is stuck"
    elif made.deadline_seconds <= 0:
        problem = "needs a positive deadline=timedelta(...)"
    elif made.on_upgrade not in ON_UPGRADE:
        problem = f"needs on_upgrade to be one of {', '.join(ON_UPGRADE)}"
    elif not list(inspect.signature(made.function).parameters):
        problem = "must take wf as its first parameter"
    elif not 0 <= made.priority <= 9:
        problem = "needs a priority from 0 (most urgent) to 9"
    if problem:
        raise BadDefinition(f"workflow {made.name!r} {problem}")
