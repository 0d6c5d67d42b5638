"""6. A key makes a start repeatable: the same request twice is one Thread.

Whoever is not sure that a request arrived sends it again with the same key. Another request under the same
key is a conflict: it changes nothing. The same door also works inside your own transaction.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import psycopg
import pytest

from actum import Client, WorkflowContext, workflow
from actum.errors import KeyConflict, ThreadNotFound


@workflow(version="1", owner="you", deadline=timedelta(days=1), on_upgrade="finish")
def f6_order(wf: WorkflowContext, item: str, count: int) -> str:
    """Return the order in words."""
    return f"{count} x {item}"


def test_the_same_request_is_one_thread(client: Client, work: Callable[[], None]) -> None:
    """The repeat gets the first Thread's id, also after it has ended."""
    first = client.start(f6_order, "tea", 2, key="order-1")
    work()
    again = client.start(f6_order, item="tea", count=2, key="order-1")
    assert (first.answer, again.answer) == ("accepted", "duplicate")
    assert again.thread_id == first.thread_id
    assert client.result(again.thread_id) == "2 x tea"


def test_another_request_under_the_key_is_a_conflict(client: Client) -> None:
    """The error says what differs; the first Thread is untouched."""
    first = client.start(f6_order, "tea", 2, key="order-1").thread_id
    with pytest.raises(KeyConflict, match="another input"):
        client.start(f6_order, "tea", 3, key="order-1")
    assert len(client.events(first)) == 1


def test_a_start_can_be_part_of_your_own_transaction(client: Client, url: str) -> None:
    """It exists if and when your transaction commits: no row without a Thread, no Thread without a row."""
    with psycopg.connect(url) as yours:
        client.start_in(yours, f6_order, "tea", 1, key="undone")
        yours.rollback()
        with pytest.raises(ThreadNotFound):
            client.find(None, key="undone")

        made = client.start_in(yours, f6_order, "tea", 1, key="kept").thread_id
        yours.commit()
    assert client.find(None, key="kept") == made
