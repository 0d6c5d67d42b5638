"""What `actum doctor` finds, on real servers that are set up wrong on purpose."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from actum import Client, workflow
from actum.config import Settings, settings
from actum.doctor import Finding, examine
from actum.ids import new_id
from actum.journal.claim import enlist
from actum.journal.database import Connection
from actum_workers.broker_check import examine_broker
from actum_workers.devstack import Postgres, Valkey, free_port, private_directory, valkey_binary
from actum_workers.reconcile import Reconciler


@workflow(version="7", owner="team", deadline=timedelta(hours=1), on_upgrade="finish")
def doctor_job(wf: Any) -> None:
    """Never runs: no worker has it."""


def wrong(findings: list[Finding]) -> dict[str, str]:
    """The advice of every finding that is not ok; each is one line."""
    assert all("\n" not in f.detail + f.advice for f in findings)
    assert all(f.advice for f in findings if not f.ok)
    return {f.name: f.advice for f in findings if not f.ok}


def notes(findings: list[Finding]) -> set[str]:
    return {f.name for f in findings if f.ok and f.advice}


# --- Postgres ---


def test_a_healthy_installation(url: str) -> None:
    Reconciler().run_once()
    findings = examine(settings())
    assert wrong(findings) == {}
    assert notes(findings) == {"broker"}
    names = {"postgres version", "fsync", "synchronous_commit", "full_page_writes", "schema", "connections"}
    assert names <= {f.name for f in findings}


def test_reconciliation_that_never_ran(url: str) -> None:
    assert "actum reconcile --loop" in wrong(examine(settings()))["reconciliation"]


def test_what_is_stuck(url: str, connection: Connection) -> None:
    Reconciler().run_once()
    client = Client()
    client.start(doctor_job)
    client.close()
    assert set(wrong(examine(settings()))) == {"workflow versions"}
    connection.execute("select actum.advance('2 minutes')")
    findings = examine(settings())
    assert set(wrong(findings)) == {"workflow versions", "reconciliation", "oldest ready work"}
    assert "clock" in notes(findings)
    enlist(connection, new_id(), ["default"], ["doctor_job@7"], 60)
    assert "workflow versions" not in wrong(examine(settings()))


def test_too_many_workers_for_the_connections(url: str, connection: Connection) -> None:
    for _ in range(30):
        enlist(connection, new_id(), ["default"], [], 60)
    assert "raise max_connections to" in wrong(examine(settings()))["connections"]


def test_a_missing_schema_and_a_missing_server(url: str) -> None:
    empty = Settings(database_url=url.rsplit("/", 1)[0] + "/postgres")
    assert wrong(examine(empty)) == {"schema": "run `actum migrate`"}
    down = Settings(database_url=f"postgresql://x@127.0.0.1:{free_port()}/x")
    assert set(wrong(examine(down))) == {"postgres"}
    assert set(wrong(examine(Settings(database_url="")))) == {"postgres"}


def test_settings_that_lose_commits(directory: Path) -> None:
    careless = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}
    with Postgres(directory, careless) as server:
        found = wrong(examine(Settings(database_url=server.url)))
    assert set(careless) <= set(found)
    assert found["fsync"].endswith("set fsync = on")


def test_the_command_exits_1_and_prints_json_lines(url: str) -> None:
    ran = subprocess.run([sys.executable, "-m", "actum", "doctor", "--json"], capture_output=True, text=True)
    assert ran.returncode == 1, ran.stderr  # reconciliation never ran here
    assert '{"name":"postgres","ok":true' in ran.stdout
    human = subprocess.run([sys.executable, "-m", "actum", "doctor"], capture_output=True, text=True)
    assert "WRONG  reconciliation" in human.stdout


# --- the broker ---


@pytest.fixture
def directory() -> Iterator[Path]:
    """A folder that the servers' user can enter."""
    path = private_directory(f"doctor-{os.getpid()}-{time.monotonic_ns()}")
    yield path
    shutil.rmtree(path, ignore_errors=True)


@contextmanager
def serving(directory: Path, *options: str) -> Iterator[int]:
    """Run a Valkey with `options`; yields its port once it listens."""
    port = free_port()
    command = [str(valkey_binary()), "--port", str(port), "--dir", str(directory), "--save", "", *options]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as server:
        try:
            _wait_for(port)
            yield port
        finally:
            server.kill()


def _wait_for(port: int) -> None:
    deadline = time.monotonic() + 20
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            assert time.monotonic() < deadline, "the server does not listen"
            time.sleep(0.05)  # sleep-ok: the pause of a poll with a deadline
        else:
            return


def advice(url: str) -> str:
    """The one advice that the broker's examination gives, in time."""
    began = time.monotonic()
    (only,) = wrong(examine_broker(url)).values()
    assert time.monotonic() - began < 10
    return only


def test_a_good_broker(valkey: Valkey) -> None:
    findings = examine_broker(valkey.url)
    assert wrong(findings) == {}
    assert [f.name for f in findings] == ["broker", "broker eviction", "broker database"]


def test_doctor_examines_the_configured_broker(url: str, valkey: Valkey) -> None:
    Reconciler().run_once()
    found = examine(Settings(database_url=url, broker_url=f"redis://127.0.0.1:{free_port()}/0"))
    assert set(wrong(found)) == {"broker"}
    assert wrong(examine(Settings(database_url=url, broker_url=valkey.url))) == {}


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("amqp://localhost", "redis://host:6379/0"),
        ("rediss://localhost:1/0", "append ?ssl_cert_reqs=required to ACTUM_BROKER_URL"),
        ("redis://localhost:1/zero", "end ACTUM_BROKER_URL with a database number"),
        ("redis://localhost:99999/0", "correct the port in ACTUM_BROKER_URL"),
        ("redis://127.0.0.1:1/0", "check host and port in ACTUM_BROKER_URL"),
        ("redis://no-such-host.invalid:6379/0", "check host and port in ACTUM_BROKER_URL"),
    ],
)
def test_a_url_that_leads_nowhere(url: str, expected: str) -> None:
    assert expected in advice(url)


def test_a_broker_that_accepts_and_says_nothing() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as mute:
        assert "check host and port" in advice(f"redis://127.0.0.1:{mute.getsockname()[1]}/0")


def test_a_wrong_password(directory: Path) -> None:
    with serving(directory, "--requirepass", "secret") as port:
        assert "password in ACTUM_BROKER_URL" in advice(f"redis://:wrong@127.0.0.1:{port}/0")
        assert "password in ACTUM_BROKER_URL" in advice(f"redis://127.0.0.1:{port}/0")
        assert wrong(examine_broker(f"redis://:secret@127.0.0.1:{port}/0")) == {}


def test_a_broker_that_evicts(directory: Path) -> None:
    with serving(directory, "--maxmemory-policy", "allkeys-lru") as port:
        assert "maxmemory-policy noeviction" in advice(f"redis://127.0.0.1:{port}/0")


def test_a_database_out_of_range(valkey: Valkey) -> None:
    assert "with a database that exists" in advice(valkey.url.rsplit("/", 1)[0] + "/99")


def test_a_cluster(directory: Path) -> None:
    with serving(directory, "--cluster-enabled", "yes") as port:
        assert "Celery can't use a cluster" in advice(f"redis://127.0.0.1:{port}/3")


def test_a_tls_port_without_tls(directory: Path) -> None:
    with tls_server(directory) as port:
        assert "as rediss://" in advice(f"redis://127.0.0.1:{port}/0")


@contextmanager
def tls_server(directory: Path) -> Iterator[int]:
    """A TLS server that shakes hands and answers nothing else; no broker's wheel is built with TLS."""
    import ssl

    key, certificate = directory / "key.pem", directory / "cert.pem"
    make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=x", "-days", "2"]
    subprocess.run([*make, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=_shake_hands, args=(listener, context), daemon=True).start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts


def _shake_hands(listener: socket.socket, context: Any) -> None:
    while True:
        try:
            peer, _ = listener.accept()
        except OSError:
            return
        with peer:
            try:
                context.wrap_socket(peer, server_side=True).close()
            except OSError:
                continue
