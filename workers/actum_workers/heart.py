"""The heart: one small process per worker that renews the leases of its pool's processes.

It beats though a child holds the GIL or blocks in C, because it is not the child; and it stops for a child
that is gone, because the child's socket closes at that moment. A stopped (SIGSTOP) child gets no beat. The
heart answers each renewal with the monotonic time at which it asked, so the child knows how long it may
still start effects.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import subprocess
import sys
import time
from pathlib import Path
from uuid import UUID

from actum.engine.lease import TimedLease
from actum.errors import ActumError
from actum.journal.claim import renew, retire
from actum.journal.database import Connection, Database
from actum.telemetry import emit

SOCKET_VARIABLE = "ACTUM_HEART_SOCKET"
START_SECONDS = 20.0


class Heart:
    """The loop of the heart's own process."""

    def __init__(self, address: str, lease_seconds: float, database: Database) -> None:
        self._lease_seconds = lease_seconds
        self._database = database
        self._selector = selectors.DefaultSelector()
        self._children: dict[socket.socket, UUID | None] = {}
        self._pids: dict[UUID, int] = {}
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(address)
        self._listener.listen(128)
        self._selector.register(self._listener, selectors.EVENT_READ)

    def run(self) -> None:
        """Beat until every process that was connected has gone."""
        next_beat = time.monotonic()
        while True:
            for key, _ in self._selector.select(max(0.0, next_beat - time.monotonic())):
                self._hear(key.fileobj)  # type: ignore[arg-type]
            if self._had_company and not self._children:
                return self._end()
            if time.monotonic() >= next_beat:
                next_beat = time.monotonic() + self._lease_seconds / 4
                self._beat()

    _had_company = False

    def _end(self) -> None:
        """Leave no address behind at which nobody listens."""
        Path(self._listener.getsockname()).unlink(missing_ok=True)
        self._selector.close()
        self._listener.close()
        self._database.close()

    def _hear(self, peer: socket.socket) -> None:
        if peer is self._listener:
            connection, _ = self._listener.accept()
            self._children[connection] = None
            self._had_company = True
            self._selector.register(connection, selectors.EVENT_READ)
            return
        words = self._receive(peer)
        if not words:
            self._part(peer)
        elif words.startswith("child "):
            _, incarnation, pid = words.split()[:3]
            self._children[peer] = UUID(incarnation)
            self._pids[UUID(incarnation)] = int(pid)

    def _receive(self, peer: socket.socket) -> str:
        try:
            return peer.recv(256).decode()
        except OSError:
            return ""

    def _part(self, peer: socket.socket) -> None:
        """A process has gone: its claims are free at once, not when its lease ends."""
        incarnation = self._children.pop(peer)
        self._selector.unregister(peer)
        peer.close()
        if incarnation is not None:
            with contextlib.suppress(ActumError):
                self._database.run(lambda c: retire(c, incarnation), attempts=3)

    def _beat(self) -> None:
        living = [i for i in self._children.values() if i is not None and not self._stopped(i)]
        if not living:
            return
        asked_at = time.monotonic()

        def work(connection: Connection) -> set[UUID]:
            return renew(connection, living, self._lease_seconds)

        try:
            renewed = self._database.run(work, attempts=2)
        except ActumError as error:
            emit("lease.unrenewed", why=str(error))
            return
        for peer, incarnation in self._children.items():
            if incarnation in renewed:
                with contextlib.suppress(OSError):
                    peer.send(f"{asked_at!r}\n".encode())

    def _stopped(self, incarnation: UUID) -> bool:
        """Whether the child is stopped by a signal; where that can't be seen, it is taken as running."""
        try:
            stat = Path(f"/proc/{self._pids[incarnation]}/stat").read_text()
        except OSError:
            return False
        return stat.rpartition(")")[2].split()[0] in ("T", "t")


class Beating(TimedLease):
    """A child's side: a lease that the heart renews."""

    def __init__(
        self,
        incarnation: UUID,
        lease_seconds: float,
        peer: socket.socket,
        asked_at: float,
    ) -> None:
        super().__init__(incarnation, lease_seconds, asked_at)
        self._socket = peer
        self._socket.sendall(f"child {incarnation} {os.getpid()}".encode())
        self._socket.setblocking(False)

    def check(self) -> None:
        """Hear the last beats, then raise `LeaseLost` if too little of the lease is left."""
        self._hear()
        super().check()

    def _hear(self) -> None:
        with contextlib.suppress(BlockingIOError, OSError):
            while words := self._socket.recv(4096):
                self.renewed(float(words.split()[-1]))

    def close(self) -> None:
        """Part from the heart; it retires the incarnation."""
        self._socket.close()


def connect(address: str, seconds: float = START_SECONDS) -> socket.socket:
    """Connect to the heart at `address`, waiting up to `seconds` while it starts."""
    deadline = time.monotonic() + seconds
    while True:
        peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            peer.connect(address)
        except OSError:
            peer.close()
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)
        else:
            return peer


def spawn(address: str) -> subprocess.Popen[bytes]:
    """Start a heart that listens at `address`. It ends when its last peer has gone."""
    return subprocess.Popen(
        [sys.executable, "-m", "actum_workers.heart", address],
        stdin=subprocess.DEVNULL,
        start_new_session=False,
    )


def main() -> None:
    """Run a heart: `python -m actum_workers.heart SOCKET`."""
    import signal

    from actum.config import settings

    # The heart outlives a graceful stop of its worker: it ends when its peers are gone.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    Heart(sys.argv[1], settings().lease_seconds, Database(name="actum-heart")).run()


if __name__ == "__main__":
    main()
