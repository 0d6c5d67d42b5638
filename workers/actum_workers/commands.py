"""The commands that need the workers' side: `actum up` and `actum reconcile`.

Imported for every `actum --help`, so whatever is slow or needs Celery is imported when a command runs.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from actum.cli import AsJson, clean, print_fields, print_json, tell
from actum.config import Settings, settings
from actum.errors import ActumError, BadDefinition, Rejected, Unavailable
from actum.journal.database import Connection, Database, connect

if TYPE_CHECKING:
    from actum_workers.devstack import Stack

READY_SECONDS = 90.0
LOOK_SECONDS = 1.0
SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stopped(BaseException):
    """SIGINT or SIGTERM came."""


@contextmanager
def until_stopped() -> Iterator[None]:
    """Run the body until it ends or a signal comes; a second signal can't cut the clean-up short."""

    def stop(_number: int, _frame: FrameType | None) -> None:
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        raise Stopped

    before = {number: signal.signal(number, stop) for number in SIGNALS}
    try:
        with suppress(Stopped):
            yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# --- reconcile ---


def reconcile(
    once: Annotated[bool, typer.Option("--once", help="Run every duty once (the default).")] = False,
    loop: Annotated[bool, typer.Option("--loop", help="Run until told to stop.")] = False,
    every: Annotated[float, typer.Option(min=0.1, help="Seconds between two runs of --loop.")] = 1.0,
    as_json: AsJson = False,
) -> None:
    """Rescue what died, fire what is due, ring for what is ready."""
    from actum.client import installed_doorbell
    from actum_workers.reconcile import Reconciler

    if once and loop:
        raise Rejected("choose --once or --loop")
    connect(name="actum-reconcile").close()  # says now, and readably, that there is no database
    reconciler = Reconciler(doorbell=installed_doorbell())
    if loop:
        _loop(reconciler.run_once, every, as_json)
    elif not _show_duties(reconciler.run_once(), as_json):
        raise typer.Exit(1)


def _loop(run_once: Callable[[], dict[str, Any]], every: float, as_json: bool) -> None:
    with until_stopped():
        while True:
            _show_duties(run_once(), as_json)
            time.sleep(every)


def _show_duties(results: dict[str, Any], as_json: bool) -> bool:
    """Print one run's results; returns whether every duty succeeded."""
    if as_json:
        print_json(results)
    else:
        print_fields({duty: _words(result) for duty, result in results.items()})
    return not any("error" in result for result in results.values())


def _words(result: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in result.items())


# --- up ---


def up(
    directory: Annotated[
        Path | None, typer.Option(help="Where data and logs are kept; the same one goes on.")
    ] = None,
    workers: Annotated[int, typer.Option(min=1, max=64, help="How many workers.")] = 2,
    workflows: Annotated[str, typer.Option(help="Modules, by comma; else ACTUM_WORKFLOWS.")] = "",
    flower: Annotated[bool, typer.Option("--flower/--no-flower", help="Run Flower.")] = True,
    as_json: AsJson = False,
) -> None:
    """Run everything on this machine: Postgres, Valkey, workers, beat, Flower. For development.

    A server whose ACTUM_DATABASE_URL or ACTUM_BROKER_URL is set is used instead of an embedded one.
    """
    from actum_workers.devstack import Stack, private_directory

    config = settings()
    modules = workflows or config.workflows
    _check(modules)
    stack = Stack(
        directory or private_directory("up"),
        workflows=modules,
        workers=workers,
        flower=flower,
        database_url=config.database_url or None,
        broker_url=config.broker_url or None,
    )
    with until_stopped():
        try:
            tell(f"starting in {stack.directory}")
            stack.start()
            _watch(stack, config, as_json)
        finally:
            tell("stopping")
            stack.stop()
    tell("stopped")


def _check(modules: str) -> None:
    """Refuse bad definitions now: Celery would only log them, and the workers would stay idle."""
    if not modules:
        tell("no workflows: give --workflows or ACTUM_WORKFLOWS")
        return
    command = [sys.executable, "-m", "actum", "check", modules]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode:
        raise BadDefinition(done.stderr.strip())


def _watch(stack: Stack, config: Settings, as_json: bool) -> None:
    database = Database(stack.environment()["ACTUM_DATABASE_URL"], name="actum-up")
    deadline = time.monotonic() + READY_SECONDS
    while not database.run(_living):
        _refuse_dead(stack)
        if time.monotonic() > deadline:
            raise Unavailable(f"no worker came up; see {stack.directory / 'logs'}")
        time.sleep(0.1)
    _announce(stack, as_json)
    shown = ""
    while True:
        shown = _show_state(stack, database, as_json, shown)
        time.sleep(LOOK_SECONDS)


def _refuse_dead(stack: Stack) -> None:
    for part in stack.status():
        if not part["alive"]:
            raise Unavailable(f"{part['name']} ended at once; see {part['log']}")


def _announce(stack: Stack, as_json: bool) -> None:
    addresses = {name: value for name, value in stack.environment().items() if value}
    if stack.flower_url:
        addresses |= {"Flower": stack.flower_url, "Flower login": f"actum / {stack.flower_password}"}
    addresses["logs"] = str(stack.directory / "logs")
    if as_json:
        print_json({"event": "ready", **addresses})
    else:
        print_fields(addresses)
        print("ready: stop with Ctrl-C", flush=True)


def _show_state(stack: Stack, database: Database, as_json: bool, shown: str) -> str:
    """Show the state if it is not what was `shown` last; returns what is shown now."""
    state = _state(stack, database)
    line = "  ".join(f"{name} {value}" for name, value in state.items() if value not in (0, []))
    if line == shown:
        return shown
    if as_json:
        print_json({"event": "state", **state})
    elif sys.stdout.isatty():
        print(f"\r\x1b[2K{clean(line)}", end="", flush=True)
    else:
        print(clean(line), flush=True)
    return line


def _state(stack: Stack, database: Database) -> dict[str, Any]:
    down = [part["name"] for part in stack.status() if not part["alive"]]
    try:
        threads = database.run(_by_state, attempts=1)
        return {"workers": database.run(_living, attempts=1), **threads, "down": down}
    except ActumError as error:
        return {"error": str(error), "down": down}


def _living(connection: Connection) -> int:
    row = connection.execute("select count(*) from actum.workers where expires_at > actum.now()").fetchone()
    return int(row[0]) if row else 0


def _by_state(connection: Connection) -> dict[str, int]:
    rows = connection.execute("select state, count(*) from actum.threads group by 1 order by 1")
    return dict(rows.fetchall())
