"""The command line as a person and a script meet it: a real process, its output, its exit code."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest

from actum import Client, OutcomeUnknown, step, workflow
from actum.config import settings
from actum.domain.workflow import Registry
from actum.journal.database import Connection
from actum_workers.devstack import free_port, private_directory
from actum_workers.heart import SOCKET_VARIABLE
from actum_workers.service import Service

SOURCES = os.pathsep.join(str(Path(__file__).parents[2] / part) for part in ("core", "workers"))
NOBODY = "01890000-0000-7000-8000-000000000000"
UP_SECONDS = 110.0
UP_JOBS = """
from datetime import timedelta
from actum import step, workflow

@step(effect="recorded")
def up_double(n: int) -> int:
    return 2 * n

@workflow(version="1", owner="team", deadline=timedelta(hours=1), on_upgrade="finish")
def up_job(wf, n: int):
    return wf.run(up_double, n)
"""
BAD_JOBS = """
from actum import step

@step(effect="reconcilable")
def bad_send(n: int) -> int:
    return n
"""


@step(effect="unrepeatable", owner="team", timeout=timedelta(seconds=5))
def cli_send(n: int, *, effect_key: str) -> dict[str, Any]:
    raise OutcomeUnknown("the line went dead\x1b[2J")


@workflow(version="1", owner="team", deadline=timedelta(hours=1), on_upgrade="finish")
def cli_order(wf: Any, n: int) -> Any:
    word = wf.wait("go", within=timedelta(hours=2))
    return {"word": word, "sent": wf.run(cli_send, n)}


def actum(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run one command in a process of its own, with the settings of this test."""
    return subprocess.run(
        [sys.executable, "-m", "actum", *words],
        env={**os.environ, "PYTHONPATH": SOURCES, **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )


def done(*words: str) -> str:
    """Run a command that must succeed; return its output."""
    ran = actum(*words)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def lines(*words: str) -> list[Any]:
    """Run a command that must succeed with `--json`; return its objects."""
    return [json.loads(line) for line in done(*words, "--json").splitlines()]


@pytest.fixture
def service(url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    """A worker's engine room in this process, with a heart of its own."""
    monkeypatch.delenv(SOCKET_VARIABLE, raising=False)
    registry = Registry()
    registry.add_workflow(cli_order)
    made = Service(settings(), registry, ["default"])
    made.start()
    yield made
    made.stop()


# --- what goes wrong ---


BAD_INPUTS = [
    (("start", "cli_order", "--input", "{nonsense"), 2, "--input: $: is not JSON"),
    (("start", "cli_order", "--input", "[1]"), 2, "--input: write a JSON object"),
    (("start", "cli_order", "--input", "@/no/such/file"), 2, "--input: can't read /no/such/file"),
    (("start", "never_shown"), 3, "no worker has shown a workflow 'never_shown' yet"),
    (("start", "a\nb"), 2, "workflow name: has the unprintable character"),
    (("show", NOBODY), 3, f"no Thread {NOBODY}"),
    (("show", "x\x1b[2J"), 2, "is not a Thread id"),
    (("events", "17"), 2, "'17' is not a Thread id"),
    (("events", NOBODY), 3, f"no Thread {NOBODY}"),
    (("verify", NOBODY), 3, f"no Thread {NOBODY}"),
    (("signal", NOBODY, "go"), 3, f"no Thread {NOBODY}"),
    (("signal", NOBODY), 2, "write THREAD NAME"),
    (("signal", "go", "--key-of", "unknown"), 3, "no Thread was started with key 'unknown'"),
    (("signal", NOBODY, "go", "--body", "{"), 2, "--body: $: is not JSON"),
    (("resolve", NOBODY, "s", "--decision", "absent", "--reason", "looked"), 3, f"no Thread {NOBODY}"),
    (("resolve", NOBODY, "s", "--decision", "maybe", "--reason", "looked"), 2, "maybe"),
    (("resolve", NOBODY, "s", "--decision", "absent"), 2, "--reason"),
    (("list", "--limit", "0"), 2, "limit must be from 1 to 1000"),
    (("list", "--state", "lost"), 2, "lost"),
    (("reconcile", "--once", "--loop"), 2, "choose --once or --loop"),
    (("check", "no_such_module"), 2, "no_such_module: ModuleNotFoundError"),
    (("fly",), 2, "fly"),
]


def test_bad_input_is_one_readable_line_and_its_exit_code(url: str) -> None:
    for words, code, message in BAD_INPUTS:
        ran = actum(*words)
        shown = " ".join(ran.stderr.split())
        assert (ran.returncode, message in shown) == (code, True), (words, ran.returncode, ran.stderr)
        assert "Traceback" not in ran.stderr
        assert "\x1b" not in ran.stderr


SERVED = [("show", NOBODY), ("list",), ("migrate",), ("reconcile", "--once"), ("verify",)]


@pytest.mark.parametrize("words", SERVED, ids=lambda words: words[0])
def test_a_database_that_is_not_named_or_down(words: tuple[str, ...]) -> None:
    unset = actum(*words, ACTUM_DATABASE_URL="")
    assert (unset.returncode, unset.stdout) == (2, "")
    assert unset.stderr == "actum: set ACTUM_DATABASE_URL, as postgresql://user@host/name\n"
    down = actum(*words, ACTUM_DATABASE_URL=f"postgresql://x@127.0.0.1:{free_port()}/x")
    assert (down.returncode, down.stdout) == (6, ""), down.stderr
    assert down.stderr.startswith("actum: Postgres does not answer")
    assert len(down.stderr.splitlines()) == 1


def test_a_bad_setting_and_a_wrong_password_are_named(url: str) -> None:
    bad = actum("list", ACTUM_LEASE_SECONDS="soon")
    assert bad.returncode == 2
    assert "ACTUM_LEASE_SECONDS" in bad.stderr
    closed = actum("list", ACTUM_DATABASE_URL=url.replace("postgres:", "postgres:x"))
    assert closed.returncode == 2
    assert closed.stderr.startswith("actum: ACTUM_DATABASE_URL")


def test_a_database_without_schema_says_migrate(url: str) -> None:
    empty = url.rsplit("/", 1)[0] + "/postgres"
    ran = actum("list", ACTUM_DATABASE_URL=empty)
    assert (ran.returncode, ran.stderr) == (
        2,
        "actum: this database's schema is missing or old: run `actum migrate`\n",
    )


def test_help_is_fast_and_needs_no_celery(tmp_path: Path) -> None:
    (tmp_path / "celery.py").write_text("raise SystemExit('celery was imported')")
    ran = actum("--help", PYTHONPATH=f"{tmp_path}{os.pathsep}{SOURCES}")
    assert ran.returncode == 0, ran.stderr
    assert "Exit codes: 0 done" in ran.stdout
    for command in ("up", "doctor", "migrate", "resolve", "reconcile", "check", "verify", "version"):
        assert command in ran.stdout


def test_check_says_what_definitions_lack(tmp_path: Path) -> None:
    (tmp_path / "up_jobs.py").write_text(UP_JOBS)
    (tmp_path / "bad_jobs.py").write_text(BAD_JOBS)
    path = f"{tmp_path}{os.pathsep}{SOURCES}"
    good = actum("check", "up_jobs", "--json", PYTHONPATH=path)
    assert (good.returncode, json.loads(good.stdout)) == (
        0,
        {"ok": True, "workflows": ["up_job@1"], "problems": []},
    )
    bad = actum("check", "up_jobs,bad_jobs", PYTHONPATH=path)
    assert bad.returncode == 2
    assert "step 'bad_send' acts outside: add owner='team' to @step" in bad.stderr
    assert "add @bad_send.reconciler" in bad.stderr


# --- what goes right ---


def test_a_thread_from_start_to_end(service: Service, tmp_path: Path) -> None:
    (tmp_path / "input.json").write_text('{"n": 3}')
    (started,) = lines("start", "cli_order", "--input", f"@{tmp_path / 'input.json'}", "--key", "k1")
    thread = started["thread_id"]
    assert started == {"thread_id": thread, "answer": "accepted", "key": "k1"}
    assert done("start", "cli_order", "--input", '{"n": 3}', "--key", "k1") == f"{thread}\n"
    other = actum("start", "cli_order", "--input", '{"n": 4}', "--key", "k1")
    assert (other.returncode, "another input" in other.stderr) == (4, True)

    (shown,) = lines("show", thread)
    assert (shown["state"], shown["why"]) == ("running", "it is ready and waits for a free worker")
    service.drain("default", 5)
    (shown,) = lines("show", thread)
    assert (shown["state"], shown["runnable"], shown["holder"]) == ("waiting", True, None)
    assert shown["why"].startswith("it waits for signal go, until 20")

    signal_words = ("signal", "go", "--key-of", "k1", "--body", '{"a": 1}', "--dedup-key", "s1")
    (taken,) = lines(*signal_words)
    assert (taken["answer"], taken["thread_id"]) == ("accepted", thread)
    assert lines(*signal_words)[0]["answer"] == "duplicate"
    service.drain("default", 5)
    _settle(thread, service)
    _look_back(thread)


def _settle(thread: str, service: Service) -> None:
    """The step's outcome is unknown: its owner decides, and the Thread goes on."""
    (row,) = lines("list", "--state", "needs_resolution", "--workflow", "cli_order", "--owner", "team")
    assert row["id"] == thread
    (shown,) = lines("show", thread)
    assert "see `actum resolve`" in shown["why"]
    (unknown,) = shown["steps"]
    assert (unknown["state"], unknown["attempts"], len(unknown["effect_key"])) == ("needs_resolution", 1, 40)
    human = done("show", thread)
    assert "\x1b" not in human
    assert unknown["effect_key"] in human
    settle = ("resolve", thread, unknown["step_id"], "--decision", "confirmed", "--reason", "I looked")
    assert lines(*settle, "--result", '{"id": 7}')[0]["state"] == "running"
    assert actum(*settle).returncode == 2
    service.drain("default", 5)


def _look_back(thread: str) -> None:
    (shown,) = lines("show", thread)
    assert shown["state"] == "completed"
    assert shown["result"] == {"word": {"a": 1}, "sent": {"id": 7}}
    events = lines("events", thread)
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    assert lines("events", thread, "--after", str(len(events) - 1)) == events[-1:]
    assert "thread.completed" in done("events", thread)
    assert thread in done("list")
    assert lines("verify", thread)[0]["problems"] == []
    assert "0 problems" in done("verify")
    late = actum("signal", thread, "go")
    assert (late.returncode, "has ended" in late.stderr) == (4, True)


def test_stored_control_characters_do_not_reach_the_terminal(service: Service) -> None:
    client = Client()
    thread = client.start(cli_order, 1, key="k2").thread_id
    client.signal(thread, "go", "\x1b]0;owned\x07")
    client.close()
    service.drain("default", 5)
    for words in (("events", str(thread)), ("show", str(thread)), ("list",)):
        shown = done(*words)
        assert not {c for c in shown if c < " " and c != "\n"}, shown


def test_why_says_that_nobody_has_the_version(service: Service, connection: Connection) -> None:
    (started,) = lines("start", "cli_order", "--input", '{"n": 3}')
    connection.execute("update actum.workers set expires_at = actum.now()")
    (shown,) = lines("show", started["thread_id"])
    assert (shown["why"], shown["runnable"]) == ("no living worker has cli_order@1", False)


def test_verify_exits_1_on_a_problem(service: Service, connection: Connection) -> None:
    (started,) = lines("start", "cli_order", "--input", '{"n": 3}')
    connection.execute("set session_replication_role = replica")
    connection.execute("update actum.events set actor = 'x'")
    ran = actum("verify")
    assert ran.returncode == 1
    assert f"Thread {started['thread_id']}: event 1: the hash chain" in ran.stdout


def test_migrate_and_version(url: str) -> None:
    (migrated,) = lines("migrate")
    assert migrated["before"] == migrated["after"]
    assert done("version").startswith("actum ")
    assert lines("version")[0]["actum"]


def test_reconcile_once(url: str, connection: Connection) -> None:
    (results,) = lines("reconcile", "--once")
    assert set(results) == {"rescue", "timers", "ring", "tidy"}
    row = connection.execute("select count(*) from actum.duties").fetchone()
    assert row is not None
    assert row[0] == 4
    assert "rescued 0" in done("reconcile")


def test_reconcile_loop_ends_cleanly(url: str) -> None:
    command = [sys.executable, "-m", "actum", "reconcile", "--loop", "--every", "0.1", "--json"]
    with subprocess.Popen(
        command, env={**os.environ, "PYTHONPATH": SOURCES}, stdout=subprocess.PIPE, text=True
    ) as running:
        assert running.stdout is not None
        for _ in range(3):
            assert "rescue" in json.loads(running.stdout.readline())
        running.send_signal(signal.SIGTERM)
        assert running.wait(20) == 0


# --- up ---


@pytest.fixture
def directory() -> Iterator[Path]:
    """A fresh folder that the servers' user can enter."""
    path = private_directory(f"up-{os.getpid()}-{time.monotonic_ns()}")
    yield path
    for process in processes_of(path):
        process.kill()
    shutil.rmtree(path, ignore_errors=True)


def processes_of(directory: Path) -> list[psutil.Process]:
    """The living processes that have `directory` in their command line or environment."""
    return [p for p in psutil.process_iter() if p.pid != os.getpid() and _belongs(p, str(directory))]


def _belongs(process: psutil.Process, directory: str) -> bool:
    try:
        if process.status() == psutil.STATUS_ZOMBIE:
            return False
        return directory in " ".join(process.cmdline()) or directory in str(process.environ())
    except psutil.Error:
        return False


def eventually(condition: Callable[[], bool], seconds: float) -> bool:
    """Return whether `condition` comes true in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)  # sleep-ok: the pause of a poll with a deadline
    return True


class Up:
    """A running `actum up`; `said` is its output so far."""

    def __init__(self, directory: Path, *words: str) -> None:
        environment = {**os.environ, "PYTHONPATH": f"{directory}{os.pathsep}{SOURCES}"}
        for name in ("ACTUM_DATABASE_URL", "ACTUM_BROKER_URL", SOCKET_VARIABLE):
            environment.pop(name, None)
        self.said = ""
        self.process = subprocess.Popen(
            [sys.executable, "-m", "actum", "up", "--directory", str(directory), *words],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said += line

    def says(self, words: str, seconds: float) -> bool:
        """Return whether its output has `words` in time; False as soon as it has ended."""
        eventually(lambda: words in self.said or self.process.poll() is not None, seconds)
        return words in self.said

    def value(self, name: str) -> str:
        """Return what stands beside `name` in the output."""
        (line,) = [line for line in self.said.splitlines() if line.split()[:1] == [name]]
        return line.split()[1]

    def stop(self, number: signal.Signals) -> int:
        """Send `number`; return the exit code."""
        self.process.send_signal(number)
        return self.end()

    def end(self) -> int:
        """Wait for its end; return the exit code."""
        code = self.process.wait(60)
        self._reader.join(10)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code


@pytest.mark.timeout(240)
def test_up_runs_a_thread_and_leaves_nothing(directory: Path) -> None:
    (directory / "up_jobs.py").write_text(UP_JOBS)
    up = Up(directory, "--workers", "1", "--workflows", "up_jobs")
    try:
        assert up.says("ready", UP_SECONDS), up.said
        assert "Flower login" in up.said
        where = {n: up.value(n) for n in ("ACTUM_DATABASE_URL", "ACTUM_BROKER_URL")}
        started = actum("start", "up_job", "--input", '{"n": 21}', "--json", **where)
        assert started.returncode == 0, started.stderr
        client = Client(where["ACTUM_DATABASE_URL"])
        assert client.result(json.loads(started.stdout)["thread_id"], timeout=40) == 42
        client.close()
        assert up.says("completed 1", 20), up.said
    finally:
        code = up.stop(signal.SIGINT)
    assert code == 0, up.said
    assert processes_of(directory) == []


@pytest.mark.timeout(120)
def test_up_stops_cleanly_while_it_starts(directory: Path) -> None:
    (directory / "up_jobs.py").write_text(UP_JOBS)
    up = Up(directory, "--workers", "1", "--workflows", "up_jobs", "--no-flower")
    assert up.says("starting in", 60), up.said
    assert up.stop(signal.SIGTERM) == 0, up.said
    assert processes_of(directory) == []


def test_up_refuses_bad_definitions_before_it_starts_anything(directory: Path) -> None:
    (directory / "bad_jobs.py").write_text(BAD_JOBS)
    up = Up(directory, "--workflows", "bad_jobs")
    assert up.says("add owner='team'", 60), up.said
    assert up.end() == 2
    assert not (directory / "postgres").exists()
