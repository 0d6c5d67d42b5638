"""What the tutorial's tests share: a client, a worker in this process, and a way to let time pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from tempfile import TemporaryDirectory

import psycopg
import pytest

from actum import Client
from actum.config import settings
from actum.domain.workflow import REGISTRY
from actum_workers.heart import SOCKET_VARIABLE, connect, spawn
from actum_workers.reconcile import Reconciler
from actum_workers.service import Service


@pytest.fixture
def client(url: str) -> Iterator[Client]:
    """A producer's client. There is no broker here: it rings nobody."""
    made = Client(principal="you")
    yield made
    made.close()


@pytest.fixture
def work(url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """A worker process's engine room, in this process. Call it: it works until nothing is ready."""
    with TemporaryDirectory(prefix="heart-") as folder:  # a socket's path must be short
        monkeypatch.setenv(SOCKET_VARIABLE, f"{folder}/s")
        heart = spawn(f"{folder}/s")
        with connect(f"{folder}/s"):
            yield from _serve()
        heart.wait(10)


def _serve() -> Iterator[Callable[[], None]]:
    service = Service(settings(), REGISTRY, ["default"])
    service.start()
    yield lambda: _drain(service)
    service.stop()


def _drain(service: Service) -> None:
    service.drain("default", 5)


@pytest.fixture
def later(connection: psycopg.Connection, work: Callable[[], None]) -> Callable[[timedelta], None]:
    """Let time pass: move the database's clock, let reconciliation fire what is due, and work."""

    def pass_time(by: timedelta) -> None:
        connection.execute("select actum.advance(%s)", (by,))
        Reconciler().run_once()
        work()

    return pass_time
