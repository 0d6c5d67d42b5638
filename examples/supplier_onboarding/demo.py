"""The main job, watched: real work through real kills on an embedded Postgres and broker.

Two phases. First every supplier is written to; a worker is killed in the middle. Then three days pass
(the database's clock is moved), the workers are deployed anew, the suppliers reply, and while they are
registered another worker is killed, the broker is flushed and the registry loses answers. At the end the
journal is verified and every figure of the outside world comes from its own ledgers.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import redis
from rich.console import Console
from rich.table import Table

from actum.client import Client, Start
from actum.config import settings
from actum.domain.lifecycle import THREAD_TERMINAL
from actum.journal.database import connect
from actum.journal.submit import Answer
from actum.verify import verify
from actum_workers.devstack import Stack, private_directory
from examples.supplier_onboarding.onboarding import onboard_supplier
from examples.supplier_onboarding.suppliers import RefusedRow, Supplier, read_suppliers
from examples.supplier_onboarding.world import mail, registry

HERE = Path(__file__).parent
MODULE = "examples.supplier_onboarding"
REGISTRY_KNOBS = {
    "drop_every": 7,
    "hang_every": 23,
    "refuse_every": 11,
    "not_found_seconds": 1.5,
    "latency_seconds": 0.1,
}
LATENCY_SECONDS = "0.1"
SETTLED = {*THREAD_TERMINAL, "needs_resolution"}
PHASE_SECONDS = 90.0

console = Console(stderr=False, highlight=False)


@dataclass
class Story:
    """What happened, for the table at the end."""

    refused_rows: list[RefusedRow] = field(default_factory=list)
    submitted: int = 0
    duplicates: int = 0
    kills: list[str] = field(default_factory=list)
    events: list[str] = field(default_factory=list)

    def tell(self, text: str) -> None:
        """Show a line now and keep it."""
        console.print(f"[bold cyan]·[/] {text}")
        self.events.append(text)


@contextlib.contextmanager
def process(module: str, *arguments: str) -> Iterator[dict[str, Any]]:
    """Run one part of the outside world; yields what it says when it is ready."""
    command = [sys.executable, "-m", f"{MODULE}.world.{module}", *arguments]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        assert running.stdout is not None
        yield json.loads(running.stdout.readline()) if module != "replier" else {}
    finally:
        running.terminate()
        try:
            running.wait(10)
        except subprocess.TimeoutExpired:
            running.kill()
            running.wait()


def until(condition: Callable[[], bool], what: str, pause: float = 0.05) -> None:
    """Wait until `condition` holds; stop the demonstration if it takes too long."""
    deadline = time.monotonic() + PHASE_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit(f"gave up waiting: {what}")
        time.sleep(pause)


class Demo:
    """The demonstration's parts, once the world and the stack are running."""

    def __init__(self, stack: Stack, mails: Path, registrations: Path, registry_url: str) -> None:
        self.stack = stack
        self.mails = mails
        self.registrations = registrations
        self.registry_url = registry_url
        self.client = Client(principal="demo")
        self.story = Story()

    # phases

    def submit(self) -> None:
        """Submit every row twice: the second time each answer must be `duplicate`."""
        suppliers, self.story.refused_rows = read_suppliers(HERE / "suppliers.csv")
        for row in self.story.refused_rows:
            self.story.tell(f"row {row.line} ({row.supplier_id}) refused: {row.reason}")
        self._set_knobs(suppliers)
        answers = Counter[Answer]()
        for _ in range(2):
            starts = [Start(onboard_supplier, [s], key=f"onboard {s.supplier_id}") for s in suppliers]
            answers.update(v.answer for v in self.client.start_many(starts))
        self.story.submitted = answers[Answer.ACCEPTED]
        self.story.duplicates = answers[Answer.DUPLICATE]
        self.story.tell(f"{answers[Answer.ACCEPTED]} accepted, {answers[Answer.DUPLICATE]} duplicates")

    def _set_knobs(self, suppliers: list[Supplier]) -> None:
        refused, mismatched = suppliers[5].supplier_id, suppliers[17].supplier_id
        knobs = {"refuse_supplier_ids": [refused], "mismatch_supplier_ids": [mismatched]}
        httpx.put(f"{self.registry_url}/knobs", json={**REGISTRY_KNOBS, **knobs}).raise_for_status()

    def write_to_all(self) -> None:
        """All verification mails go out, though a worker is killed in the middle."""
        until(lambda: self._mails("verification") >= self.story.submitted // 3, "the first mails")
        self._kill(1)
        self.stack.restart_worker(1)
        until(
            lambda: self._states().get("waiting", 0) == self.story.submitted,
            "all to wait for a reply",
        )
        self.story.tell(f"all {self.story.submitted} suppliers were written to and are waited for")

    def three_days_later(self) -> None:
        """Time passes; the workers are replaced as a deployment does."""
        self._advance("3 days")
        self.stack.restart_workers()
        self.story.tell("three days passed; the workers were deployed anew")

    def replies(self) -> None:
        """Suppliers reply and are registered, through a kill, a flush and lost answers."""
        until(lambda: self._registrations() >= self.story.submitted // 4, "the first registrations")
        self._kill(2)
        assert self.stack.valkey is not None
        redis.Redis.from_url(self.stack.valkey.url).flushall()
        self.story.tell("the broker was flushed (FLUSHALL)")
        self.stack.restart_worker(2)
        until(lambda: self._unsettled() <= self._silent(), "all who replied to be settled")
        self._advance("3 days")
        self.story.tell("three more days passed; who never replied is let go")
        until(lambda: self._unsettled() == 0, "all to be settled")

    # looking

    def _kill(self, number: int) -> None:
        pid = self.stack.kill_worker(number)
        self.story.kills.append(f"worker {number} (pid {pid})")
        self.story.tell(f"worker {number} was killed with SIGKILL, {self._in_flight()} effects in flight")

    def _in_flight(self) -> int:
        return int(self._one("select count(*) from actum.steps where state = 'dispatched'"))

    def _advance(self, by: str) -> None:
        with connect() as connection:
            connection.execute("select actum.advance(%s::interval)", (by,))

    def _one(self, query: str) -> Any:
        with connect() as connection:
            row = connection.execute(query).fetchone()
            return row[0] if row else 0

    def _states(self) -> dict[str, int]:
        with connect() as connection:
            rows = connection.execute("select state, count(*) from actum.threads group by state").fetchall()
        states = dict(rows)
        self._progress(states)
        return states

    _shown = ""

    def _progress(self, states: dict[str, int]) -> None:
        line = f"  mails {self._mails()}, registrations {self._registrations()}, Threads: " + ", ".join(
            f"{count} {state}" for state, count in sorted(states.items())
        )
        if line != self._shown:
            console.print(f"[dim]{line}[/]")
            self._shown = line

    def _unsettled(self) -> int:
        return sum(count for state, count in self._states().items() if state not in SETTLED)

    def _silent(self) -> int:
        return sum("no-reply" in m.recipient for m in mail.mails_after(self.mails, "verification", 0))

    def _mails(self, kind: str = "") -> int:
        return sum(not kind or m.kind == kind for m in mail.read_ledger(self.mails))

    def _registrations(self) -> int:
        return len(registry.read_ledger(self.registrations))

    # telling

    def summary(self) -> dict[str, Any]:
        """Return the figures; the world's come from its own ledgers."""
        mails = [m.effect_key for m in mail.read_ledger(self.mails)]
        keys = [r.key for r in registry.read_ledger(self.registrations)]
        states = self._states()
        with connect() as connection:
            report = verify(connection)
        return {
            "submitted": self.story.submitted,
            "duplicates_refused": self.story.duplicates,
            "completed": states.get("completed", 0),
            "needs_resolution": states.get("needs_resolution", 0),
            "mails": len(mails),
            "mails_duplicated": len(mails) - len(set(mails)),
            "registrations": len(keys),
            "registrations_duplicated": len(keys) - len(set(keys)),
            "lost": self.story.submitted - sum(n for s, n in states.items() if s in SETTLED),
            "kills": len(self.story.kills),
            "unknown_resolved": int(self._one(UNKNOWN_RESOLVED)),
            "verified": not report.problems and self._ledgers_match(),
        }

    def _ledgers_match(self) -> bool:
        """Every effect in the world has an intent that was committed before it (invariant 5)."""
        with connect() as connection:
            rows = connection.execute("select effect_key from actum.steps").fetchall()
        intents = {row[0] for row in rows}
        keys = {m.effect_key for m in mail.read_ledger(self.mails)}
        return keys | {r.key for r in registry.read_ledger(self.registrations)} <= intents

    def table(self) -> Table:
        """Return what happened to each class of row."""
        table = Table(title="Supplier onboarding: what happened", title_justify="left")
        table.add_column("rows", justify="right")
        table.add_column("what happened to them")
        for reason in self.story.refused_rows:
            table.add_row("1", f"refused at the door: {reason.reason}")
        table.add_row(str(self.story.duplicates), "submitted again: answered `duplicate`, nothing done twice")
        for outcome, count in self._outcomes():
            table.add_row(str(count), outcome)
        table.add_section()
        table.add_row(str(len(self.story.kills)), f"workers killed: {', '.join(self.story.kills)}")
        for settled, count in self._settlements():
            table.add_row(str(count), settled)
        return table

    def _outcomes(self) -> list[tuple[str, int]]:
        with connect() as connection:
            return connection.execute(OUTCOMES).fetchall()

    def _settlements(self) -> list[tuple[str, int]]:
        with connect() as connection:
            return connection.execute(SETTLEMENTS).fetchall()


UNKNOWN_RESOLVED = """
select count(*) from (
    select distinct on (u.thread_id, u.seq) 1
      from actum.events u join actum.events s
        on s.thread_id = u.thread_id and s.name = u.name and s.seq > u.seq
       and s.type in ('effect.confirmed', 'effect.absent')
     where u.type = 'effect.unknown') resolved
"""
OUTCOMES = """
select coalesce(e.body->'result'->>'outcome', t.state || ': ' || t.reason), count(*)
  from actum.threads t
  left join actum.events e on e.thread_id = t.id and e.type = 'thread.completed'
 group by 1 order by 2 desc
"""
SETTLEMENTS = """
select 'unknown effects (' || split_part(u.body->>'reason', ':', 1) || ') settled as: ' || s.type, count(*)
  from actum.events u
  join lateral (select type from actum.events s
                 where s.thread_id = u.thread_id and s.name = u.name and s.seq > u.seq
                   and s.type in ('effect.confirmed', 'effect.absent', 'resolution.required')
                 order by seq limit 1) s on true
 where u.type = 'effect.unknown'
 group by 1 order by 2 desc
"""


def play(directory: Path, keep: bool) -> dict[str, Any]:
    """Run the whole demonstration in `directory` and return its figures."""
    mails, registrations = directory / "mail", directory / "registry"
    for folder in (mails, registrations):
        folder.mkdir(parents=True)
    slow = ("--latency-seconds", LATENCY_SECONDS)
    with (
        process("mail", "--directory", str(mails), "--lose-answer-every", "9", *slow) as post,
        process("registry", "--directory", str(registrations)) as register,
    ):
        registry_url = f"http://127.0.0.1:{register['port']}"
        os.environ["ONBOARDING_SMTP_PORT"] = str(post["port"])
        os.environ["ONBOARDING_MAIL_URL"] = f"http://127.0.0.1:{post['http_port']}"
        os.environ["ONBOARDING_REGISTRY_URL"] = registry_url
        stack = Stack(directory / "stack", workflows=f"{MODULE}.onboarding", workers=2, concurrency=1)
        with stack:
            os.environ.update(stack.environment())
            settings.cache_clear()
            demo = Demo(stack, mails, registrations, registry_url)
            figures = _story(demo, mails)
            if keep:
                _keep(stack, registry_url)
            return figures


def _story(demo: Demo, mails: Path) -> dict[str, Any]:
    console.print(f"Flower: {demo.stack.flower_url}")
    demo.submit()
    demo.write_to_all()
    demo.three_days_later()
    with process("replier", "--mail-directory", str(mails), "--limit-seconds", "300"):
        demo.replies()
    console.print(demo.table())
    return demo.summary()


def _keep(stack: Stack, registry_url: str) -> None:
    console.print(f"Flower {stack.flower_url} user actum password {stack.flower_password}")
    console.print(f"Registry {registry_url}/stats")
    for name, value in stack.environment().items():
        console.print(f"export {name}={value}")
    console.print("Ctrl-C stops everything.")
    with contextlib.suppress(KeyboardInterrupt):
        signal.pause()


def main() -> None:
    """Run the demonstration; the last line is one JSON object."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    os.environ.setdefault("ACTUM_LEASE_SECONDS", "4")
    os.environ.setdefault("ACTUM_TURNS", "4")
    directory = private_directory(f"demo-{os.getpid()}")
    began = time.monotonic()
    try:
        figures = play(directory, os.environ.get("KEEP") == "1")
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    console.print(f"{time.monotonic() - began:.0f} seconds")
    print(json.dumps(figures), flush=True)
    good = figures["verified"] and not (
        figures["lost"] or figures["mails_duplicated"] or figures["registrations_duplicated"]
    )
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
