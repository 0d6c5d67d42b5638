"""The embedded servers for real: durability, crashes, and nothing left behind."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import psycopg
import pytest
import redis

from actum.errors import BadConfiguration, Unavailable
from actum_workers import devstack
from actum_workers.devstack import Postgres, Process, Stack, Valkey, private_directory

DEADLINE_SECONDS = 30.0
SOURCES = [str(Path(__file__).parents[2] / part) for part in ("core", "workers")]

START_BOTH = """
import sys
from pathlib import Path
from actum_workers.devstack import Postgres, Valkey
base = Path(sys.argv[1])
postgres, valkey = Postgres(base / "postgres"), Valkey(base / "valkey")
print(postgres.start(), valkey.start(), flush=True)
sys.stdin.read()
"""

STAND_IN_APP = """
import os
from celery import Celery
app = Celery("stand-in", broker=os.environ["ACTUM_BROKER_URL"])
app.conf.broker_connection_retry_on_startup = True
"""


@pytest.fixture
def directory() -> Iterator[Path]:
    """A folder that the servers' user can enter (pytest's own is closed to it)."""
    path = private_directory(f"test-{os.getpid()}-{time.monotonic_ns()}")
    yield path
    shutil.rmtree(path)


def processes_of(directory: Path) -> list[psutil.Process]:
    """Return the living processes that were started in or with `directory`."""
    return [p for p in psutil.process_iter() if _belongs(p, str(directory))]


def _belongs(process: psutil.Process, directory: str) -> bool:
    try:
        if process.status() == psutil.STATUS_ZOMBIE or process.pid == os.getpid():
            return False
        return process.cwd().startswith(directory) or directory in " ".join(process.cmdline())
    except psutil.Error:
        return False


def eventually(condition: Callable[[], bool]) -> bool:
    """Return whether `condition` comes true before the deadline."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)  # sleep-ok: the pause of a poll with a deadline
    return True


def show(url: str, setting: str) -> str:
    with psycopg.connect(url) as connection:
        row = connection.execute(f"SHOW {setting}").fetchone()
    assert row is not None
    return str(row[0])


def test_postgres_is_durable_private_and_on_loopback(directory: Path) -> None:
    with Postgres(directory, {"max_connections": "37"}) as postgres:
        assert "@127.0.0.1:" in postgres.url and postgres.url.endswith("/actum")
        assert show(postgres.url, "fsync") == "on"
        assert show(postgres.url, "synchronous_commit") == "on"
        assert show(postgres.url, "max_connections") == "37"
        assert show(postgres.url, "listen_addresses") == "127.0.0.1"
        assert show(postgres.url, "server_encoding") == "UTF8"
        assert (directory / "password").stat().st_mode & 0o777 == 0o600
        with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
            psycopg.connect(postgres.url.replace("postgres:", "postgres:x"))
        if os.geteuid() == 0:
            assert psutil.Process(postgres.pid).uids() == (65534, 65534, 65534)


def test_postgres_keeps_a_committed_row_over_a_crash_at_the_same_url(directory: Path) -> None:
    with Postgres(directory) as postgres:
        before = postgres.url
        with psycopg.connect(before, autocommit=True) as connection:
            connection.execute("CREATE TABLE kept AS SELECT 42 AS answer")
            postgres.kill()
            assert postgres.pid is None and not postgres.alive
            assert processes_of(directory) == []
        assert postgres.start() == before
        with psycopg.connect(before) as connection:
            assert connection.execute("SELECT answer FROM kept").fetchone() == (42,)


def test_postgres_restarts_after_only_its_parent_process_was_killed(directory: Path) -> None:
    with Postgres(directory) as postgres:
        assert postgres.pid is not None
        os.kill(postgres.pid, signal.SIGKILL)
        assert eventually(lambda: not postgres.alive)
        assert show(postgres.start(), "fsync") == "on"


def test_a_directory_is_used_again_by_another_object(directory: Path) -> None:
    with Postgres(directory) as first:
        password = first.url.split("@")[0]
        first.stop()
        first.stop()
        assert processes_of(directory) == []
    with Postgres(directory) as second:
        assert second.url.split("@")[0] == password


def test_two_servers_never_share_a_directory(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devstack, "RESTART_SECONDS", 0.3)
    with Valkey(directory), pytest.raises(Unavailable, match="in use by another server"):
        Valkey(directory).start()


def test_a_foreign_data_folder_is_refused(directory: Path) -> None:
    (directory / "data").mkdir()
    with pytest.raises(BadConfiguration, match="is not ours"):
        Postgres(directory).start()
    assert list((directory / "data").iterdir()) == []


def test_a_folder_that_the_server_cannot_enter_is_named(directory: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("NOT RUN: only root drops to another user")
    closed = directory / "closed"
    closed.mkdir(mode=0o700)
    with pytest.raises(BadConfiguration, match=r"can't enter .*/closed/postgres"):
        Postgres(closed / "postgres").start()


def test_valkey_keeps_everything_and_evicts_nothing(directory: Path) -> None:
    with Valkey(directory) as valkey:
        with redis.Redis.from_url(valkey.url) as client:
            assert client.ping()
            wanted = {"maxmemory-policy": "noeviction", "appendonly": "yes", "save": ""}
            assert {name: client.config_get(name)[name] for name in wanted} == wanted
            client.set("kept", "1")
            client.waitaof(1, 0, 5000)
        before = valkey.url
        valkey.kill()
        assert processes_of(directory) == []
        assert valkey.start() == before
        with redis.Redis.from_url(before) as client:
            assert client.get("kept") == b"1"
    assert processes_of(directory) == []


def test_a_server_outlives_the_thread_that_started_it(directory: Path) -> None:
    valkey = Valkey(directory)
    thread = threading.Thread(target=valkey.start)
    thread.start()
    thread.join()
    try:
        with redis.Redis.from_url(valkey.url) as client:
            assert client.ping()
        assert valkey.alive
    finally:
        valkey.stop()


def start_in_a_subprocess(
    directory: Path, python: str, uid: int | None = None
) -> tuple[subprocess.Popen[str], list[str]]:
    """Start both servers in another process; return it and their URLs."""
    path = [*SOURCES, *(p for p in sys.path if p.endswith("site-packages"))]
    parent = subprocess.Popen(
        [python, "-c", START_BOTH, str(directory)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path), "TMPDIR": str(directory)},
        user=uid,
        group=uid,
        extra_groups=None if uid is None else [],
        cwd="/",
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None
    return parent, parent.stdout.readline().split()


def assert_all_die_with(parent: subprocess.Popen[str], directory: Path) -> None:
    servers = [p for p in processes_of(directory) if p.pid != parent.pid]
    assert len(servers) > 2, "Postgres with children, and Valkey"
    with parent:
        parent.kill()
    _, alive = psutil.wait_procs(servers, timeout=DEADLINE_SECONDS)
    assert [p for p in alive if p.status() != psutil.STATUS_ZOMBIE] == []
    assert processes_of(directory) == []


def test_servers_die_with_a_killed_parent(directory: Path) -> None:
    parent, urls = start_in_a_subprocess(directory, sys.executable)
    assert show(urls[0], "fsync") == "on"
    assert_all_die_with(parent, directory)


def python_for_anybody() -> str | None:
    """Return an interpreter of this version that an unprivileged user can run."""
    name = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for python in (sys.executable, shutil.which(name, path="/usr/local/bin:/usr/bin")):
        tried = python and _runs_as_nobody(python)
        if python and tried:
            return python
    return None


def _runs_as_nobody(python: str) -> bool:
    try:
        command = [python, "-c", "import ctypes, ssl"]
        done = subprocess.run(command, user=65534, group=65534, extra_groups=[], cwd="/")
    except OSError:
        return False
    return done.returncode == 0


def test_an_ordinary_user_runs_the_servers_too(directory: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("NOT RUN: every other test here already runs as an ordinary user")
    python = python_for_anybody()
    if python is None:
        pytest.skip("NOT RUN: no interpreter of this version that uid 65534 can run")
    home = directory / "home"
    home.mkdir()
    os.chown(home, 65534, 65534)
    parent, urls = start_in_a_subprocess(home, python, 65534)
    assert show(urls[0], "fsync") == "on"
    assert_all_die_with(parent, home)


def test_the_systems_postgres_serves_where_the_wheel_is_missing(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devstack, "_wheel", lambda package: None)
    if not list(Path("/usr/lib/postgresql").glob("*/bin/postgres")):
        pytest.skip("NOT RUN: this machine has no Postgres of its own")
    with Postgres(directory) as postgres:
        assert show(postgres.url, "fsync") == "on"


def test_without_any_program_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(devstack, "_wheel", lambda package: None)
    monkeypatch.setattr(devstack, "Path", lambda *parts: Path("/nonexistent", "x"))
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(BadConfiguration, match=r"install actum\[embedded\]"):
        devstack.postgres_binaries()
    with pytest.raises(BadConfiguration, match=r"install actum\[embedded\]"):
        devstack.valkey_binary()


def test_killing_a_process_takes_its_family(directory: Path) -> None:
    script = "sleep 600 & setsid sleep 601 & echo ready; wait"
    env = {"PATH": os.defpath}
    log = directory / "log"
    process = Process("family", ["/bin/sh", "-c", script], log=log, env=env, cwd=directory)
    process.start()
    assert eventually(lambda: len(processes_of(directory)) == 3)
    process.kill()
    assert processes_of(directory) == []
    assert process.kill() is None


def stand_ins(directory: Path) -> Path:
    """Write packages that stand in for the CLI and the Celery app, to test only the supervisor."""
    code = directory / "code"
    for package, name, text in (
        ("actum", "__main__", "import sys; sys.exit(sys.argv[1:] != ['migrate'])"),
        ("actum_workers", "celery", STAND_IN_APP),
    ):
        (code / package).mkdir(parents=True)
        (code / package / "__init__.py").touch()
        (code / package / f"{name}.py").write_text(text)
    return code


def alive_by_name(stack: Stack) -> dict[object, object]:
    return {part["name"]: part["alive"] for part in stack.status()}


def test_the_stack_supervises_every_process(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(stand_ins(directory)))
    names = ["postgres", "valkey", "worker1", "worker2", "reconcile", "beat", "flower"]
    base = directory / "stack"
    with Stack(base, workflows="none") as stack:
        assert set(stack.environment()) > {"ACTUM_DATABASE_URL", "ACTUM_BROKER_URL"}
        assert eventually(lambda: _says(base, "worker1", "ready"))
        assert eventually(lambda: _says(base, "beat", "is starting"))
        assert eventually(lambda: _says(base, "flower", "Visit me"))
        assert alive_by_name(stack) == dict.fromkeys(names, True)
        killed = stack.kill_worker(1)
        assert killed is not None and not psutil.pid_exists(killed)
        assert alive_by_name(stack) == {**dict.fromkeys(names, True), "worker1": False}
        stack.restart_worker(1)
        stack.restart_workers()
        assert alive_by_name(stack) == dict.fromkeys(names, True)
        assert stack.flower_password not in _command_lines(directory)
    stack.stop()
    assert processes_of(directory) == []


def test_a_failed_migration_leaves_nothing_behind(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = stand_ins(directory)
    (code / "actum" / "__main__.py").write_text("raise SystemExit('no such table')")
    monkeypatch.setenv("PYTHONPATH", str(code))
    with pytest.raises(Unavailable, match="no such table"):
        Stack(directory / "stack", workflows="none").start()
    assert processes_of(directory) == []


def _says(base: Path, name: str, words: str) -> bool:
    return words in (base / "logs" / f"{name}.log").read_text()


def _command_lines(directory: Path) -> str:
    return " ".join(" ".join(p.cmdline()) for p in processes_of(directory))
