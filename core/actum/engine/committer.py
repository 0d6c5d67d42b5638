"""The committer: one thread per process that groups the commits of all its turns.

It flushes as soon as the last flush is done, with no timer: a batch is as large as the load makes it.
What one turn posts is committed in the order of posting. A turn that needs to know (a barrier) waits on
its ticket; facts are posted and not waited for.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from uuid import UUID

from actum import faults
from actum.errors import ActumError, Unavailable
from actum.journal.commit import Block, Outcome, Receipt, commit
from actum.journal.database import Connection, Database
from actum.telemetry import emit

OnDone = Callable[[Receipt | None, Exception | None], None]
Expect = Callable[[], int]


class CommitRefused(ActumError):
    """Postgres did not take a block: the Thread is left as it was, and its claim is given up."""


class Ticket:
    """The promise of a receipt for one posted block."""

    def __init__(self, block: Block, on_done: OnDone | None = None, expect: Expect | None = None) -> None:
        self.block = block
        self._on_done = on_done
        self._expect = expect
        self._done = threading.Event()
        self._receipt: Receipt | None = None
        self._error: Exception | None = None

    def aim(self) -> None:
        """Called by the committer just before it commits, after everything posted earlier was settled:
        a decision must not lose against its own Thread's facts that were still on their way."""
        if self._expect is not None:
            self.block.expected = self._expect()

    def settle(self, receipt: Receipt | None, error: Exception | None = None) -> None:
        """Called by the committer, once."""
        self._receipt, self._error = receipt, error
        self._done.set()
        if self._on_done is not None:
            self._on_done(receipt, error)

    def wait(self) -> Receipt:
        """Wait until the block is durable (or refused) and return its receipt."""
        self._done.wait()
        if self._error is not None:
            raise self._error
        assert self._receipt is not None
        return self._receipt


class Committer:
    """Groups commits. `start` after fork; `stop` flushes what is left."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._condition = threading.Condition()
        self._queue: list[Ticket] = []
        self._stopping = False
        self._thread = threading.Thread(target=self._loop, name="actum-committer", daemon=True)
        self.flushes = 0

    def start(self) -> None:
        """Start the committing thread."""
        self._thread.start()

    def stop(self) -> None:
        """Flush what was posted and end."""
        with self._condition:
            self._stopping = True
            self._condition.notify()
        self._thread.join()
        self._database.close()

    def post(self, block: Block, on_done: OnDone | None = None, expect: Expect | None = None) -> Ticket:
        """Hand over a block; returns at once. `expect` makes it a decision: it gives the version on which
        it was made. Both callables run on the committing thread: keep them short."""
        ticket = Ticket(block, on_done, expect)
        with self._condition:
            self._queue.append(ticket)
            self._condition.notify()
        return ticket

    def _loop(self) -> None:
        while True:
            with self._condition:
                while not self._queue and not self._stopping:
                    self._condition.wait()
                tickets, self._queue = self._queue, []
            if not tickets:
                return
            self._flush(tickets)

    def _flush(self, tickets: list[Ticket]) -> None:
        for ticket in tickets:
            ticket.aim()
        groups = _by_thread(tickets)
        blocks = [_merged([t.block for t in group]) for group in groups]
        faults.point("flush.before")
        results = self._commit(blocks)
        faults.point("flush.after")
        self.flushes += 1
        for group, (receipt, error) in zip(groups, results, strict=True):
            for ticket in group:
                ticket.settle(receipt, error)

    def _commit(self, blocks: list[Block]) -> list[tuple[Receipt | None, Exception | None]]:
        """Commit together; if the batch is refused, one by one, so that one bad block harms no other."""
        try:
            return [(r, None) for r in self._attempt(blocks)]
        except Exception as error:  # this thread serves every turn: it must outlive any one block
            emit("commit.retry", blocks=len(blocks), error=str(error))
            if isinstance(error, Unavailable) or len(blocks) == 1:
                return [(None, CommitRefused(str(error))) for _ in blocks]
        return [self._commit([block])[0] for block in blocks]

    def _attempt(self, blocks: list[Block]) -> list[Receipt]:
        """Commit; a repeat after an answer was lost first looks whether the commit went through (C44)."""
        tried = False

        def work(connection: Connection) -> list[Receipt]:
            nonlocal tried
            again, tried = tried, True
            receipts = [_seen(connection, b) if again else None for b in blocks]
            fresh = iter(commit(connection, [b for b, r in zip(blocks, receipts, strict=True) if not r]))
            return [r or next(fresh) for r in receipts]

        return self._database.run(work, attempts=8)


def _by_thread(tickets: list[Ticket]) -> list[list[Ticket]]:
    groups: dict[UUID, list[Ticket]] = {}
    for ticket in tickets:
        groups.setdefault(ticket.block.thread_id, []).append(ticket)
    return list(groups.values())


def _merged(blocks: list[Block]) -> Block:
    """Join one Thread's blocks in order. Only the last may hold a decision: a turn waits for each."""
    if len(blocks) == 1:
        return blocks[0]
    return replace(
        blocks[-1],
        events=[e for b in blocks for e in b.events],
        moves=[m for b in blocks for m in b.moves],
    )


def _seen(connection: Connection, block: Block) -> Receipt | None:
    """Return the receipt of an earlier try whose answer was lost, if that try was committed.

    The fence makes us the only writer of such events. Only the facts being there means that the decisions
    beside them had lost to somebody else.
    """
    rows = connection.execute(
        "select seq, type, name, body::text, at from actum.events where thread_id = %s "
        "order by seq desc limit %s",
        (block.thread_id, len(block.events) + 16),
    ).fetchall()
    found = list(reversed(rows))
    for events, outcome in (
        (block.events, Outcome.COMMITTED),
        ([e for e in block.events if e.fact], Outcome.CONFLICT),
    ):
        place = _place(found, [(e.type, e.name, e.body) for e in events])
        if place is not None:
            last = found[place + len(events) - 1]
            return Receipt(outcome, found[place][0] - 1, last[0], last[4])
    return None


def _place(found: list[Any], wanted: list[tuple[str, str, str]]) -> int | None:
    """Return where `wanted` stands as one run in the `found` rows."""
    width = len(wanted)
    texts = [(row[1], row[2], row[3]) for row in found]
    places = (i for i in range(len(texts) - width + 1) if width and texts[i : i + width] == wanted)
    return next(places, None)
