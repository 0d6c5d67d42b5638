"""Definitions that lack something are refused with the words of what to write."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from actum import step, workflow
from actum.domain import workflow as definitions
from actum.domain.workflow import Registry
from actum.errors import BadDefinition, Rejected

SECOND = timedelta(seconds=1)


@pytest.fixture(autouse=True)
def registry(monkeypatch: pytest.MonkeyPatch) -> Registry:
    """Fresh definitions for each test."""
    made = Registry()
    monkeypatch.setattr(definitions, "REGISTRY", made)
    return made


def send(n: int, *, effect_key: str) -> None:
    """A step's function."""


def plain(n: int) -> None:
    """A step's function that takes no key."""


def body(wf: Any) -> None:
    """A workflow's function."""


async def waits(wf: Any) -> None:
    """An async workflow's function."""


def nothing() -> None:
    """A workflow's function without `wf`."""


BAD_STEPS: dict[str, tuple[Callable[..., Any], dict[str, Any], str]] = {
    "no owner": (send, {"effect": "idempotent", "timeout": SECOND}, "add owner='team' to @step"),
    "no time-out": (send, {"effect": "idempotent", "owner": "t"}, r"add timeout=timedelta\(seconds=...\)"),
    "no reconciler": (
        send,
        {"effect": "reconcilable", "owner": "t", "timeout": SECOND},
        r"add @send.reconciler\(settle=...\), or declare effect='unrepeatable'",
    ),
    "no key": (
        plain,
        {"effect": "unrepeatable", "owner": "t", "timeout": SECOND},
        "take the keyword effect_key",
    ),
    "unknown class": (plain, {"effect": "maybe"}, "'maybe' is not one of pure, recorded, transactional"),
    "empty name": (plain, {"effect": "pure", "name": " "}, "step name: must not be empty"),
    "long name": (plain, {"effect": "pure", "name": "x" * 201}, "has 201 characters; the limit is 200"),
    "name with NUL": (plain, {"effect": "pure", "name": "a\0"}, "unprintable character"),
}


@pytest.mark.parametrize("case", BAD_STEPS)
def test_a_bad_step_is_refused_and_the_message_says_what_to_write(registry: Registry, case: str) -> None:
    """R61, R63."""
    function, words, message = BAD_STEPS[case]
    with pytest.raises(Rejected, match=message):
        step(**words)(function)
        registry.load([])


def test_a_step_without_a_class_can_not_be_written() -> None:
    """R61: there is no default effect class."""
    with pytest.raises(TypeError, match="effect"):
        step()(plain)  # type: ignore[call-arg]


GOOD = {"version": "1", "owner": "team", "deadline": SECOND, "on_upgrade": "finish"}


@pytest.mark.parametrize("word", GOOD)
def test_a_workflow_can_not_be_written_without_its_required_words(word: str) -> None:
    """R61, R100: version, owner, deadline and upgrade rule have no default."""
    with pytest.raises(TypeError, match=word):
        workflow(**{k: v for k, v in GOOD.items() if k != word})(body)  # type: ignore[arg-type]


BAD_WORKFLOWS: dict[str, tuple[Callable[..., Any], dict[str, Any], str]] = {
    "async": (waits, {}, "is async; write a plain def"),
    "no owner": (body, {"owner": ""}, "needs owner='team'"),
    "no deadline": (body, {"deadline": timedelta(0)}, "needs a positive deadline"),
    "past deadline": (body, {"deadline": -SECOND}, "needs a positive deadline"),
    "upgrade rule": (body, {"on_upgrade": "hope"}, "one of finish, migrate, review"),
    "no wf": (nothing, {}, "must take wf as its first parameter"),
    "priority": (body, {"priority": 10}, "priority from 0"),
    "empty version": (body, {"version": ""}, "workflow version: must not be empty"),
    "queue": (body, {"queue": "a\nb"}, "queue: has the unprintable character"),
    "name": (body, {"name": "x" * 201}, "workflow name: has 201 characters"),
}


@pytest.mark.parametrize("case", BAD_WORKFLOWS)
def test_a_bad_workflow_is_refused_and_the_message_says_what_to_write(registry: Registry, case: str) -> None:
    """R61, R100: and it is not registered."""
    function, changes, message = BAD_WORKFLOWS[case]
    with pytest.raises(Rejected, match=message):
        workflow(**{**GOOD, **changes})(function)
    assert registry.workflows == {}


def test_two_functions_can_not_have_one_name(registry: Registry) -> None:
    """R61: the message names both places; the first stays."""
    step(effect="pure", name="same")(plain)
    with pytest.raises(BadDefinition, match="step 'same' is defined twice: in .* and in .*; rename one"):
        step(effect="pure", name="same")(send)
    workflow(**GOOD, name="same")(body)
    with pytest.raises(BadDefinition, match="workflow 'same@1' is defined twice"):
        workflow(**GOOD, name="same")(lambda wf: None)
    assert registry.steps["same"].function is plain


def test_two_versions_of_a_workflow_live_side_by_side(registry: Registry) -> None:
    """R46."""
    workflow(**GOOD, name="same")(body)
    workflow(**{**GOOD, "version": "2"}, name="same")(lambda wf: None)
    assert registry.labels() == ["same@1", "same@2"]


def test_a_module_that_can_not_be_imported_is_named(registry: Registry) -> None:
    """R61."""
    with pytest.raises(BadDefinition, match="ACTUM_WORKFLOWS: can't import 'no.such.module'"):
        registry.load(["no.such.module"])


def test_a_step_called_directly_is_the_plain_function() -> None:
    """R61: users test their steps without actum."""
    double = step(effect="pure")(lambda n: 2 * n)
    assert double(4) == 8
