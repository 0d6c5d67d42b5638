"""Workflows for the crash tests: every kind of step, against a registry process with a ledger."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

import httpx

from actum import Absent, Confirmed, Retry, WorkflowContext, http, step, workflow

QUICK = Retry(stop_after_attempt=8, wait_initial_seconds=0.1, wait_max_seconds=0.5, wait_jitter_seconds=0.1)
SECONDS = timedelta(seconds=2)


def _post(key: str, body: dict[str, Any]) -> dict[str, Any]:
    url = f"{os.environ['PROVIDER_URL']}/suppliers"
    answer: dict[str, Any] = http.request("POST", url, json=body, effect_key=key, timeout=1.5).json()
    return answer


@step(effect="recorded")
def prepare(n: int) -> int:
    """Do something that is only recorded."""
    return n + 1


@step(effect="reconcilable", owner="tests", timeout=SECONDS, retry=QUICK)
def order(n: int, *, effect_key: str) -> int:
    """Order at a provider that does not honour keys but can be asked."""
    return int(_post(effect_key, {"supplier_id": f"order {n}"})["registration_id"])


@order.reconciler(settle=timedelta(seconds=0.2))
def find_order(n: int, *, effect_key: str) -> Any:
    """Was it ordered?"""
    url = f"{os.environ['PROVIDER_URL']}/suppliers/by-key/{effect_key}"
    answer = httpx.get(url, timeout=2)
    if answer.status_code == 404:
        return Absent({"url": url})
    return Confirmed(answer.json()["registration_id"], {"url": url})


@workflow(
    version="1",
    owner="tests",
    deadline=timedelta(hours=1),
    on_upgrade="finish",
    name="seam_orders",
)
def orders(wf: WorkflowContext, n: int) -> list[int]:
    """Two orders with recorded work between them."""
    first = wf.run(order, wf.run(prepare, n))
    wf.now()
    second = wf.run(order, wf.run(prepare, first))
    return [first, second]


@step(effect="recorded", retry=Retry(stop_after_attempt=3))
def suicide(how: str) -> int:
    """Kill the worker that runs it, every time."""
    if how == "kill":
        os.kill(os.getpid(), 9)
    import ctypes

    return ctypes.string_at(0)[0]


@workflow(
    version="1",
    owner="tests",
    deadline=timedelta(hours=1),
    on_upgrade="finish",
    name="seam_poison",
)
def poison(wf: WorkflowContext, how: str) -> str:
    """Survive a step that no worker survives."""
    from actum import StepFailed

    try:
        wf.run(suicide, how)
    except StepFailed as failure:
        return f"gave up: {failure.error['type']}"
    return "impossible"
