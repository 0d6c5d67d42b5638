"""The lifecycle tables, every pair of them."""

from __future__ import annotations

import pytest

from actum.domain import lifecycle
from actum.domain.events import CATALOGUE
from actum.domain.lifecycle import NEW, STEP_TABLE, THREAD_TABLE, StepState, Table, ThreadState
from actum.errors import IllegalTransition

TABLES = {"step": (STEP_TABLE, StepState), "thread": (THREAD_TABLE, ThreadState)}
TERMINAL = {"step": lifecycle.STEP_TERMINAL, "thread": lifecycle.THREAD_TERMINAL}
EVENTS = [*CATALOGUE, "effect.guessed", ""]
PLACES = [(n, s) for n, (_, states) in TABLES.items() for s in (NEW, *states)]
both = pytest.mark.parametrize("name", TABLES)


@pytest.mark.parametrize(("name", "state"), PLACES)
def test_every_event_moves_a_state_as_listed_or_is_refused(name: str, state: str) -> None:
    """R37, invariant 4: every state with every event of the catalogue, and with unknown ones."""
    table = TABLES[name][0]
    for event in EVENTS:
        if (state, event) in table:
            assert lifecycle.next_state(table, state, event) == table[state, event]
        else:
            with pytest.raises(IllegalTransition, match=f"{event} is not allowed in state {state}"):
                lifecycle.next_state(table, state, event)


def _reached(table: Table, start: str) -> set[str]:
    found = {start}
    while more := {str(b) for (a, _), b in table.items() if a in found} - found:
        found |= more
    return found


@both
def test_every_state_can_be_reached(name: str) -> None:
    """R37: no state is listed that nothing leads to."""
    table, states = TABLES[name]
    assert _reached(table, NEW) - {NEW} == set(map(str, states))


@both
def test_only_events_of_the_catalogue_move_a_state(name: str) -> None:
    """R3."""
    assert {event for _, event in TABLES[name][0]} <= CATALOGUE.keys()


def test_no_event_moves_both_a_step_and_a_thread() -> None:
    """R37: each event has one meaning."""
    assert not lifecycle.STEP_EVENTS & lifecycle.THREAD_EVENTS


@both
def test_terminal_states_have_no_way_out(name: str) -> None:
    """R37."""
    table, _ = TABLES[name]
    assert not [pair for pair in table if pair[0] in TERMINAL[name]]


@both
def test_every_other_state_leads_to_a_terminal_one(name: str) -> None:
    """R100, invariant 12: nothing is in progress for ever. A completed step may rest."""
    table, states = TABLES[name]
    for state in set(states) - TERMINAL[name]:
        assert [pair for pair in table if pair[0] == state], state
        assert _reached(table, state) & set(map(str, TERMINAL[name])), state


@pytest.mark.parametrize("state", [s for s in ThreadState if s not in lifecycle.THREAD_TERMINAL])
def test_every_open_thread_can_expire(state: str) -> None:
    """R100."""
    assert THREAD_TABLE[state, "thread.expired"] == ThreadState.EXPIRED


def test_an_unknown_effect_is_left_only_by_reconciliation() -> None:
    """R70, invariant 9."""
    exits = {event for state, event in STEP_TABLE if state == StepState.EFFECT_UNKNOWN}
    assert exits == {
        "effect.confirmed", "effect.absent", "effect.repeatable", "effect.unclear", "resolution.required",
    }  # fmt: skip
    assert StepState.FAILED not in {STEP_TABLE[StepState.EFFECT_UNKNOWN, e] for e in exits}


def test_a_proposal_is_neither_dispatched_nor_completed_without_approval() -> None:
    """R38: without the approval's event, no way leads from a proposal to an effect."""
    without = {k: v for k, v in STEP_TABLE.items() if k[1] != "approval.granted"}
    assert not _reached(without, StepState.PROPOSED) & {"dispatched", "completed", "authorized"}
    assert (StepState.PROPOSED, "effect.intended") not in STEP_TABLE


def test_a_dispatched_step_completes_only_with_evidence() -> None:
    """R39, invariant 9."""
    without = {k: v for k, v in STEP_TABLE.items() if v != StepState.EFFECT_CONFIRMED}
    assert STEP_TABLE[StepState.DISPATCHED, "effect.confirmed"] == StepState.EFFECT_CONFIRMED
    assert (StepState.DISPATCHED, "step.completed") not in without
    assert (StepState.DISPATCHED, "step.recorded") not in without


@both
def test_the_guards_condition_names_each_legal_move_once(name: str) -> None:
    """R37: what Postgres enforces is derived, not written again."""
    table, _ = TABLES[name]
    text = lifecycle.guard_condition(table)
    for a, b in lifecycle.legal_moves(table):
        assert text.count(f"('{a}','{b}')") == 1
    assert text.count("','") == len(lifecycle.legal_moves(table))


@both
def test_the_diagram_shows_every_row_and_every_end(name: str) -> None:
    """R37: mermaid, as it stands in the documentation."""
    table, _ = TABLES[name]
    lines = lifecycle.diagram(table).splitlines()
    assert lines[0] == "stateDiagram-v2"
    for (a, event), b in table.items():
        assert f"    {'[*]' if a == NEW else a} --> {b} : {event}" in lines
    assert {f"    {s} --> [*]" for s in TERMINAL[name]} == {x for x in lines if x.endswith("--> [*]")}
    assert len(lines) == 1 + len(table) + len(TERMINAL[name])
