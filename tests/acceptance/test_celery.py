"""actum on real Celery processes, a real Valkey and a real Postgres, with real kills."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from actum.client import Client, Start
from actum.config import Settings, settings
from actum_workers.devstack import Valkey
from actum_workers.doorbell import CeleryDoorbell
from actum_workers.reconcile import Reconciler
from examples.supplier_onboarding.world.registry import read_ledger
from tests.support import fleet

SECONDS = 30.0


@pytest.fixture
def environment(url: str, valkey: Valkey, tmp_path: Path) -> Iterator[dict[str, str]]:
    """A broker of its own emptiness, a provider with a ledger, and the settings for workers."""
    redis.Redis.from_url(valkey.url).flushall()
    with fleet.provider(tmp_path / "ledger") as address:
        yield {
            "ACTUM_DATABASE_URL": url,
            "ACTUM_BROKER_URL": valkey.url,
            "ACTUM_WORKFLOWS": "seam_jobs",
            "ACTUM_LEASE_SECONDS": "3",
            "PROVIDER_URL": address,
        }


@pytest.fixture
def client(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    """A producer that rings the broker."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    settings.cache_clear()
    made = Client()
    yield made
    made.close()


def _orders(client: Client, count: int, prefix: str = "k") -> list[object]:
    starts = [Start("seam_orders", kwargs={"n": n}, key=f"{prefix}{n}") for n in range(count)]
    return [v.thread_id for v in client.start_many(starts)]


def _all_completed(client: Client, threads: list[object], seconds: float = SECONDS) -> None:
    reconciler = Reconciler(doorbell=CeleryDoorbell(), config=Settings())

    def done() -> bool:
        reconciler.run_once()
        return all(client.row(t).state == "completed" for t in threads)

    fleet.until(done, "all Threads to be completed", seconds)


def _no_duplicates(ledger: Path, expected: int) -> None:
    keys = Counter(r.key for r in read_ledger(ledger))
    assert len(keys) == expected
    assert set(keys.values()) == {1}


def test_work_goes_on_through_kills_flushes_and_lost_connections(
    environment: dict[str, str],
    client: Client,
    valkey: Valkey,
    tmp_path: Path,
) -> None:
    """C01, C05, C09, R7, R129: SIGKILL, FLUSHALL, CLIENT KILL, duplicate messages; one effect a key."""
    broker = redis.Redis.from_url(valkey.url)
    first = fleet.worker(environment, tmp_path / "w1.log", "w1")
    second = fleet.worker(environment, tmp_path / "w2.log", "w2")
    try:
        threads = _orders(client, 30)
        fleet.until(lambda: len(read_ledger(tmp_path / "ledger")) >= 5, "the first effects")
        first.kill()
        broker.flushall()
        for _ in range(5):
            broker.client_kill_filter(_type="normal", skipme=True)
            broker.client_kill_filter(_type="pubsub")
        for _ in range(20):
            broker.lpush("actum.default", _message("default"))
        threads += _orders(client, 5, "late")
        _all_completed(client, threads, 60)
        _no_duplicates(tmp_path / "ledger", 2 * 35)
        assert second.stop() == 0
    finally:
        first.kill()
        second.kill()


def _message(queue: object) -> str:
    """A doorbell as kombu writes it."""
    import base64

    body = base64.b64encode(json.dumps([[queue], {}, {}]).encode()).decode()
    headers = {"lang": "py", "task": "actum.doorbell", "id": "x", "root_id": "x", "argsrepr": "x"}
    properties = {
        "correlation_id": "x",
        "delivery_mode": 2,
        "delivery_info": {"exchange": "", "routing_key": "actum.default"},
        "delivery_tag": "x",
        "body_encoding": "base64",
        "priority": 0,
    }
    return json.dumps(
        {
            "body": body,
            "content-encoding": "utf-8",
            "content-type": "application/json",
            "headers": headers,
            "properties": properties,
        },
    )


BAD_MESSAGES = [
    "not json",
    "null",
    "{}",
    '{"body": "%%%", "headers": {}, "properties": {}}',
    _message("default").replace("application/json", "application/x-python-serialize"),
    _message("default").replace("utf-8", "klingon"),
    _message("default").replace("actum.doorbell", "nope"),
    _message({"not": "a queue"}),
    _message("x" * 5000),
]


def test_a_worker_survives_messages_that_are_not_doorbells(
    environment: dict[str, str],
    client: Client,
    valkey: Valkey,
    tmp_path: Path,
) -> None:
    """C38, C53: undecodable, foreign and forged messages do nothing; work behind them runs."""
    worker = fleet.worker(environment, tmp_path / "w.log")
    try:
        broker = redis.Redis.from_url(valkey.url)
        for message in BAD_MESSAGES:
            broker.lpush("actum.default", message)
        _all_completed(client, _orders(client, 3), 60)
    finally:
        worker.kill()


def test_sigterm_gives_work_back_and_repeats_nothing(
    environment: dict[str, str],
    client: Client,
    tmp_path: Path,
) -> None:
    """C09: a rolling restart in the middle of work burns no attempt and repeats no effect."""
    worker = fleet.worker(environment, tmp_path / "w0.log", "w0")
    try:
        threads = _orders(client, 24)
        for n in range(1, 3):
            fleet.until(lambda n=n: len(read_ledger(tmp_path / "ledger")) >= 8 * n, "some effects")
            assert worker.stop() == 0
            worker = fleet.worker(environment, tmp_path / f"w{n}.log", f"w{n}")
        _all_completed(client, threads)
        _no_duplicates(tmp_path / "ledger", 2 * 24)
        attempts = client._database.connection().execute("select max(attempts) from actum.steps")
        assert attempts.fetchone()[0] == 1
    finally:
        worker.kill()


def test_messages_hold_ids_only(
    environment: dict[str, str],
    client: Client,
    valkey: Valkey,
    tmp_path: Path,
) -> None:
    """C39, C51: whoever reads the broker learns nothing."""
    worker = fleet.worker(environment, tmp_path / "w.log")
    worker.kill()
    client.start("seam_orders", n=1234567, key="S3CR3T")
    broker = redis.Redis.from_url(valkey.url)
    fleet.until(lambda: broker.llen("actum.default") > 0, "the doorbell")
    for message in broker.lrange("actum.default", 0, -1):
        assert b"1234567" not in message
        assert b"S3CR3T" not in message
        assert len(message) < 1500


def test_a_start_answers_though_the_broker_is_down_or_silent(
    url: str,
    tmp_path: Path,
) -> None:
    """C03: refused or black-holed, a producer has its durable verdict in under a second."""
    silent = socket.socket()
    silent.bind(("127.0.0.1", 0))
    silent.listen(0)
    blocker = socket.create_connection(silent.getsockname())  # fills the backlog: others hang
    refused = socket.socket()
    refused.bind(("127.0.0.1", 0))
    try:
        for place in (silent, refused):
            took = _start_in_a_process(url, f"redis://127.0.0.1:{place.getsockname()[1]}/0")
            assert took < 1.0
    finally:
        for each in (silent, blocker, refused):
            each.close()


PRODUCER = """
import time
from datetime import timedelta
from actum import Client, workflow
@workflow(version="1", owner="t", deadline=timedelta(hours=1), on_upgrade="finish")
def job(wf): return 1
client = Client()
client.list()
began = time.monotonic()
assert client.start(job).answer == "accepted"
print(time.monotonic() - began, flush=True)
"""


def _start_in_a_process(url: str, broker: str) -> float:
    import os

    env = {**os.environ, "ACTUM_DATABASE_URL": url, "ACTUM_BROKER_URL": broker}
    done = subprocess.run(
        [sys.executable, "-c", PRODUCER], env=env, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return float(done.stdout.splitlines()[-1])


def test_each_child_has_its_own_connection(
    environment: dict[str, str],
    client: Client,
    tmp_path: Path,
) -> None:
    """C11: no socket is shared after fork: every incarnation is another process with its own backends."""
    worker = fleet.worker(environment, tmp_path / "w.log", "w", "--concurrency", "4")
    try:
        rows = client._database.connection().execute("select distinct pid from actum.workers").fetchall()
        assert len(rows) == 4
        names = "select count(distinct pid) from pg_stat_activity where application_name = 'actum-worker'"
        assert client._database.connection().execute(names).fetchone()[0] == 4
        _all_completed(client, _orders(client, 12))
        _no_duplicates(tmp_path / "ledger", 24)
    finally:
        worker.kill()


def test_threads_are_free_of_shared_state_between_producers(url: str) -> None:
    """C24 on the client: many producers with one key get one Thread."""
    barrier = threading.Barrier(8)
    found: list[object] = []

    def produce() -> None:
        mine = Client(url)
        barrier.wait()
        found.append(mine.start_many([Start(_JOB, key="same")])[0].thread_id)
        mine.close()

    threads = [threading.Thread(target=produce) for _ in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(SECONDS)
    assert len(found) == 8
    assert len(set(found)) == 1


def _make_job() -> object:
    from datetime import timedelta

    from actum import workflow

    @workflow(version="1", owner="t", deadline=timedelta(hours=1), on_upgrade="finish", name="celery_job")
    def job(wf: object) -> int:
        return 1

    return job


_JOB = _make_job()
