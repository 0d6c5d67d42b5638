"""Processes killed at every seam: nothing lost, nothing done twice (R53, R63, R64, R67, R69, R73, R90)."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from actum import faults
from actum.client import Client, Start
from actum.journal.database import Database
from examples.supplier_onboarding.world.registry import read_ledger
from tests.support import fleet

WORKER_SEAMS = [s for s in faults.SEAMS if s.split(".")[0] not in ("rescue", "timer", "ring")]
THREADS = 4


def _start(client: Client, url: str, workflow: str, inputs: list[dict[str, object]]) -> list[object]:
    fleet.until(lambda: bool(_known(url, workflow)), "the workflow to be shown")
    starts = [Start(workflow, kwargs=i, key=f"k{n}") for n, i in enumerate(inputs)]
    return [v.thread_id for v in client.start_many(starts)]


def _known(url: str, workflow: str) -> int:
    database = Database(url)
    try:
        return database.run(
            lambda c: c.execute(
                "select count(*) from actum.manifests where workflow = %s",
                (workflow,),
            ).fetchone()[0],
        )
    finally:
        database.close()


@pytest.mark.parametrize("hit", [1, 3])
@pytest.mark.parametrize("seam", WORKER_SEAMS)
def test_a_worker_killed_at_a_seam_loses_nothing_and_repeats_nothing(
    seam: str,
    hit: int,
    url: str,
    tmp_path: Path,
) -> None:
    """C27, invariants 5 and 8: intent before effect, one effect a key, every Thread completed."""
    if seam.startswith("ask") and hit > 1:
        pytest.skip("with every answer given, nothing is asked a third time")
    with fleet.provider(tmp_path / "ledger", drop_every=2 if seam.startswith("ask") else 0) as address:
        environment = {
            "ACTUM_DATABASE_URL": url,
            "ACTUM_WORKFLOWS": "seam_jobs",
            "ACTUM_LEASE_SECONDS": "2",
            "PROVIDER_URL": address,
        }
        runner = fleet.Runner(environment, f"{seam}:kill:{hit}")
        client = Client(url)
        try:
            threads = _start(client, url, "seam_orders", [{"n": 10 * n} for n in range(THREADS)])
            if seam.startswith("ask"):
                fleet.settle_until(client, threads, lambda: runner.dead)
            fleet.until(lambda: runner.dead, f"the kill at {seam}")
            runner.kill()
            runner = fleet.Runner(environment)
            assert fleet.settle(client, threads) == ["completed"] * THREADS
        finally:
            runner.kill()
        keys = Counter(r.key for r in read_ledger(tmp_path / "ledger"))
        assert set(keys.values()) == {1}
        assert len(keys) == 2 * THREADS
        assert set(keys) == _intents(client)
        client.close()


def _intents(client: Client) -> set[str]:
    rows = client._database.connection().execute("select effect_key from actum.steps").fetchall()
    return {row[0] for row in rows}


@pytest.mark.parametrize("how", ["kill", "segfault"])
def test_a_step_that_kills_every_worker_is_given_up_and_harms_no_other(
    how: str,
    url: str,
    tmp_path: Path,
) -> None:
    """C08: bounded attempts, counted in Postgres; the workflow's own failure branch runs."""
    with fleet.provider(tmp_path / "ledger") as address:
        environment = {
            "ACTUM_DATABASE_URL": url,
            "ACTUM_WORKFLOWS": "seam_jobs",
            "ACTUM_LEASE_SECONDS": "2",
            "ACTUM_CRASHES_MAX": "5",
            "PROVIDER_URL": address,
        }
        client = Client(url)
        runners = [fleet.Runner(environment)]
        try:
            bad = _start(client, url, "seam_poison", [{"how": how}])
            good = [v.thread_id for v in client.start_many([Start("seam_orders", kwargs={"n": 7}, key="g")])]

            def done() -> bool:
                if runners[-1].dead:
                    runners[-1].kill()
                    runners.append(fleet.Runner(environment))
                fleet.Reconciler().run_once()
                client._database.connection().execute("update actum.work set ready_at = actum.now()")
                return all(client.row(t).wake_at is None for t in (*bad, *good))

            fleet.until(done, "the poison to be given up", 60)
            assert client.result(bad[0]) == "gave up: WorkerLost"
            assert client.row(good[0]).state == "completed"
            assert len(runners) == 4
        finally:
            runners[-1].kill()
            client.close()
