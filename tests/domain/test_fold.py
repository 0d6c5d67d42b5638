"""The fold: pure, total, and the same under any split."""

from __future__ import annotations

import itertools
from copy import deepcopy
from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from actum.domain import lifecycle
from actum.domain.events import CATALOGUE, Event
from actum.domain.thread import Thread, fold

START = datetime(2026, 1, 1, tzinfo=UTC)
NAMES = ["", "send#1", "read#1", "wait:go#1"]
few = st.sampled_from(["a", "b"])
anything = st.one_of(st.none(), st.integers(-9, 9), few, st.lists(few, max_size=2))
seconds = st.integers(0, 10_000)

FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "attempt": st.integers(1, 9),
    "seconds": seconds,
    "deadline_seconds": seconds,
    "error": st.fixed_dictionaries({"type": few, "message": few}),
    "evidence": st.dictionaries(few, anything, max_size=2),
    "until": seconds.map(lambda s: (START + timedelta(seconds=s)).isoformat()),
    "events": st.lists(
        st.fixed_dictionaries({"type": few, "name": st.sampled_from(NAMES), "body": st.just({})}),
        max_size=2,
    ),
    **dict.fromkeys(("digest", "effect_key", "name", "timer", "check", "reason", "wait_for"), few),
}
optional = {"after_seconds": seconds, "reason": few, "digest": few, "result": anything}


@st.composite
def _body(draw: st.DrawFn, type_: str) -> dict[str, Any]:
    required = {n: FIELDS.get(n, anything) for n in CATALOGUE[type_].required}
    more = {n: s for n, s in optional.items() if n not in required}
    return draw(st.fixed_dictionaries(required, optional=more))


@st.composite
def histories(draw: st.DrawFn) -> list[Event]:
    """Any sequence of well-formed events, legal or not."""
    types = draw(st.lists(st.sampled_from(sorted(CATALOGUE)), max_size=30))
    if draw(st.booleans()):
        types = ["thread.started", *types]
    return [
        Event(n, t, draw(st.sampled_from(NAMES)), START + timedelta(seconds=n), "x", draw(_body(t)))
        for n, t in enumerate(types, 1)
    ]


@given(histories(), st.lists(st.integers(0, 31), max_size=4))
def test_the_fold_is_the_same_under_any_split(events: list[Event], cuts: list[int]) -> None:
    """Invariant 3."""
    places = [0, *sorted(min(c, len(events)) for c in cuts), len(events)]
    thread = Thread()
    for start, end in itertools.pairwise(places):
        thread = fold(events[start:end], thread)
    assert thread == fold(events)


@given(histories())
def test_the_fold_is_total_and_leaves_its_events_alone(events: list[Event]) -> None:
    """Invariant 3: no sequence raises; folding twice gives the same; the events are not changed."""
    before = deepcopy(events)
    first = fold(events)
    assert first == fold(events)
    assert events == before
    assert first.version == len(events)


@given(histories())
def test_a_refused_event_changes_no_state_and_is_kept(events: list[Event]) -> None:
    """R37, invariant 4: each state follows from the one before by the table, or stays."""
    thread = Thread()
    for event in events:
        state, steps = thread.state, {k: v.state for k, v in thread.steps.items()}
        refused = len(thread.refusals)
        fold([event], thread)
        if event.type in lifecycle.THREAD_EVENTS:
            wanted = lifecycle.THREAD_TABLE.get((state, event.type))
            assert thread.state == (wanted or state)
        elif event.type in lifecycle.STEP_EVENTS:
            old = steps.get(event.name, lifecycle.NEW)
            wanted = lifecycle.STEP_TABLE.get((old, event.type))
            assert thread.steps[event.name].state == (wanted or old)
        else:
            assert (thread.state, {k: v.state for k, v in thread.steps.items()}) == (state, steps)
            continue
        assert len(thread.refusals) == refused + (wanted is None)


@given(histories())
def test_deleting_memory_and_talk_changes_no_state(events: list[Event]) -> None:
    """Invariant 10: late evidence and checks move nothing by themselves."""
    loud = {"evidence.late", "check.passed", "transition.refused"}
    quiet = fold(e for e in events if e.type not in loud)
    full = fold(events)
    assert quiet.state == full.state
    assert {k: v.state for k, v in quiet.steps.items()} == {k: v.state for k, v in full.steps.items()}
