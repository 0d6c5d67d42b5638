"""Real worker processes and a real provider for the crash tests."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from actum.client import Client
from actum.config import Settings
from actum.domain.lifecycle import THREAD_TERMINAL
from actum_workers.reconcile import Reconciler

ROOT = Path(__file__).parent.parent.parent
SUPPORT = Path(__file__).parent


def until(condition: Callable[[], bool], what: str, seconds: float = 40.0) -> None:
    """Wait until `condition` holds, or fail with `what`."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"gave up waiting for {what}"
        time.sleep(0.05)  # sleep-ok: polling another process, with a deadline


class Runner:
    """One worker process; `faults` arms it."""

    def __init__(self, environment: dict[str, str], faults: str = "") -> None:
        env = {**os.environ, **environment, "PYTHONPATH": f"{SUPPORT}:{ROOT}", "ACTUM_FAULTS": faults}
        self.process = subprocess.Popen(
            [sys.executable, str(SUPPORT / "runner.py")],
            env=env,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline().strip() == "ready"

    @property
    def dead(self) -> bool:
        """Whether it has been killed."""
        return self.process.poll() is not None

    def kill(self) -> None:
        """SIGKILL it and wait until it is gone."""
        self.process.kill()
        self.process.wait(10)
        assert self.process.stdout is not None
        self.process.stdout.close()


@contextlib.contextmanager
def provider(directory: Path, **knobs: object) -> Iterator[str]:
    """Run the registry as an outside provider with a ledger in `directory`; yields its URL."""
    directory.mkdir(parents=True, exist_ok=True)
    module = "examples.supplier_onboarding.world.registry"
    command = [sys.executable, "-m", module, "--directory", str(directory), "--knobs", json.dumps(knobs)]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{json.loads(process.stdout.readline())['port']}"
    finally:
        process.terminate()
        process.wait(10)
        assert process.stdout is not None
        process.stdout.close()


def settle(client: Client, threads: list, seconds: float = 40.0) -> list[str]:  # type: ignore[type-arg]
    """Reconcile until every Thread is terminal or needs its owner; return the states."""
    reconciler = Reconciler(config=Settings(reconcile_seconds=0.1))
    states: list[str] = []

    def done() -> bool:
        nonlocal states
        reconciler.run_once()
        states = [client.row(t).state for t in threads]
        return all(s in THREAD_TERMINAL or s == "needs_resolution" for s in states)

    until(done, f"the end of all Threads; they are {states}", seconds)
    return states


def settle_until(client: Client, threads: list, condition: Callable[[], bool]) -> None:  # type: ignore[type-arg]
    """Reconcile until `condition` holds."""
    reconciler = Reconciler()

    def done() -> bool:
        reconciler.run_once()
        return condition()

    until(done, "the condition")


class CeleryProcess:
    """A real `celery -A actum_workers ...` process in a session of its own."""

    def __init__(self, environment: dict[str, str], log: Path, *arguments: str) -> None:
        self.log = log
        with log.open("ab") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "celery", "-A", "actum_workers", *arguments],
                env={**os.environ, **environment, "PYTHONPATH": f"{SUPPORT}:{ROOT}"},
                stdout=out,
                stderr=out,
                start_new_session=True,
            )

    def ready(self) -> CeleryProcess:
        """Wait until a worker says so."""
        until(lambda: b" ready." in self.log.read_bytes(), f"{self.log.name} to be ready", 60)
        return self

    def kill(self) -> None:
        """SIGKILL the whole process group, as a crash of its machine would."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(10)

    def stop(self) -> int:
        """SIGTERM the main process and return its exit code; nothing of its group stays."""
        self.process.terminate()
        try:
            return self.process.wait(30)
        finally:
            self.kill()


def worker(environment: dict[str, str], log: Path, name: str = "w", *arguments: str) -> CeleryProcess:
    """Start a Celery worker on the default queue and wait until it is ready."""
    more = arguments or ("--concurrency", "2")
    where = ("--queues", "actum.default", "--hostname", f"{name}@%h", "--loglevel", "INFO")
    return CeleryProcess(environment, log, "worker", *where, *more).ready()
