"""Claims, fences, rescue and commits on real connections, also raced against each other."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from uuid import UUID, uuid4

import pytest

from actum.domain.events import Event
from actum.domain.thread import fold
from actum.ids import new_id
from actum.journal import duties
from actum.journal.claim import NOBODY, abandon, claim, renew, retire
from actum.journal.commit import Block, NewEvent, Outcome, commit
from actum.journal.database import Connection, connect
from actum.journal.read import events_of, thread_row
from actum.journal.submit import signal, submit
from tests.support.journal import (
    LABEL,
    a_start,
    a_thread,
    a_worker,
    assert_sound,
    claim_one,
    intended,
    recorded,
)


def _advance(connection: Connection, interval: str) -> None:
    connection.execute("select actum.advance(%s::interval)", (interval,))


def _expire(connection: Connection, worker: UUID) -> None:
    """End a lease as time would: moving the clock keeps every lease's length."""
    connection.execute("update actum.workers set expires_at = actum.now() where id = %s", (worker,))


def _types(connection: Connection, thread: UUID) -> list[str]:
    return [e.type for e in events_of(connection, [thread])[thread]]


def test_two_claimers_never_get_the_same_row(url: str, connection: Connection) -> None:
    """R57: eight claimers empty one queue; each Thread is claimed once, each fence is used once."""
    submit(connection, [a_start() for _ in range(400)])
    barrier = threading.Barrier(8)

    def take(_: int) -> list[tuple[UUID, int]]:
        with connect(url) as own:
            worker, taken = a_worker(own), []
            barrier.wait(20)
            while found := claim(own, worker, "default", [LABEL], 7):
                taken += [(c.thread_id, c.fence) for c in found]
            return taken

    with ThreadPoolExecutor(8) as pool:
        taken = [x for part in pool.map(take, range(8)) for x in part]
    assert len(taken) == 400
    assert len({t for t, _ in taken}) == 400
    assert len({f for _, f in taken}) == 400


def test_a_claimer_skips_what_another_is_just_claiming(url: str, connection: Connection) -> None:
    """R57: it neither waits nor takes the same."""
    a_thread(connection)
    mine, theirs = a_worker(connection), a_worker(connection)
    with connect(url) as other, other.transaction():
        assert len(claim(other, theirs, "default", [LABEL], 9)) == 1
        assert claim(connection, mine, "default", [LABEL], 9) == []


def test_the_most_urgent_is_claimed_first_and_then_the_oldest(connection: Connection) -> None:
    """R57: order by priority and age."""
    worker = a_worker(connection)
    wanted = [a_thread(connection, priority=p) for p in (5, 1, 5, 0)]
    order = [claim_one(connection, worker).thread_id for _ in wanted]
    assert order == [wanted[3], wanted[1], wanted[0], wanted[2]]


def test_a_claim_takes_only_its_queue_and_what_it_can_run(connection: Connection) -> None:
    """R57, C34."""
    worker = a_worker(connection)
    a_thread(connection, queue="other")
    a_thread(connection, version="2")
    assert claim(connection, worker, "default", [LABEL], 9) == []


def _missing(connection: Connection, worker: UUID) -> None:
    retire(connection, worker)


@pytest.mark.parametrize("end", [_expire, _missing])
def test_an_incarnation_that_has_ended_can_do_nothing_more(
    connection: Connection, end: Callable[[Connection, UUID], None]
) -> None:
    """C21, R58: it can't claim, can't win its lease back, and after the rescue it can't commit."""
    a_thread(connection)
    worker = a_worker(connection)
    held = claim_one(connection, worker)
    end(connection, worker)
    a_thread(connection)
    assert claim(connection, worker, "default", [LABEL], 9) == []
    assert renew(connection, [worker], 60) == set()
    assert duties.rescue(connection, 100, 3) == {"rescued": 1, "parked": 0}
    assert commit(connection, [recorded(held)])[0].outcome is Outcome.FENCED
    assert _types(connection, held.thread_id) == ["thread.started", "evidence.late"]


def test_a_living_incarnation_keeps_its_claims_as_time_goes_by(connection: Connection) -> None:
    """C22."""
    a_thread(connection)
    worker = a_worker(connection, 60)
    held = claim_one(connection, worker)
    assert renew(connection, [worker, new_id()], 60) == {worker}
    assert duties.rescue(connection, 100, 3) == {"rescued": 0, "parked": 0}
    assert commit(connection, [recorded(held)])[0].outcome is Outcome.COMMITTED


def test_a_stale_worker_can_not_commit_and_its_result_is_kept_as_late_evidence(
    connection: Connection,
) -> None:
    """C21, R60, invariant 7: the second worker's result stands."""
    thread = a_thread(connection)
    first, second = a_worker(connection), a_worker(connection)
    old = claim_one(connection, first)
    assert commit(connection, [intended(old, 1)])[0].outcome is Outcome.COMMITTED
    _expire(connection, first)
    duties.rescue(connection, 100, 3)
    new = claim_one(connection, second)
    assert new.fence > old.fence
    text = '{"evidence":{"id":"from the first"},"result":1}'
    late = Block(thread, old.fence, events=[NewEvent("effect.confirmed", "send#1", text, "send")])
    assert commit(connection, [late])[0].outcome is Outcome.FENCED
    folded = fold(events_of(connection, [thread])[thread])
    assert folded.steps["send#1"].state == "effect_unknown"
    assert folded.steps["send#1"].late[0]["body"]["evidence"] == {"id": "from the first"}
    assert_sound(connection, [thread])


def test_a_stale_decision_leaves_no_trace(connection: Connection) -> None:
    """Invariant 7: only facts are evidence; a plan that was never carried out is none."""
    thread = a_thread(connection)
    worker = a_worker(connection)
    old = claim_one(connection, worker)
    retire(connection, worker)
    duties.rescue(connection, 100, 3)
    assert commit(connection, [intended(old, 1)])[0].outcome is Outcome.FENCED
    assert _types(connection, thread) == ["thread.started"]
    assert connection.execute("select count(*) from actum.steps").fetchone() == (0,)


def test_a_decision_on_an_old_version_is_dropped_and_its_facts_are_kept(connection: Connection) -> None:
    """Design section 4, rule 4."""
    thread = a_thread(connection)
    held = claim_one(connection, a_worker(connection))
    signal(connection, thread, "s", "go", "1", "test")
    block = recorded(held, state="completed", expected=1, claim="done")
    block.events.append(NewEvent("thread.completed", "", '{"result":1}'))
    assert commit(connection, [block])[0].outcome is Outcome.CONFLICT
    assert _types(connection, thread) == ["thread.started", "signal.received", "step.recorded"]
    row = thread_row(connection, thread)
    assert row is not None
    assert row.state == "running"
    assert_sound(connection, [thread])


def test_one_batch_judges_each_of_its_blocks_alone(connection: Connection) -> None:
    """Design section 4: row by row; a bad neighbour harms nobody."""
    worker = a_worker(connection)
    threads = [a_thread(connection) for _ in range(3)]
    claims = [claim_one(connection, worker) for _ in threads]
    signal(connection, threads[1], "s", "go", "1", "test")
    abandon(connection, threads[2], claims[2].fence)
    duties.rescue(connection, 100, 3)
    blocks = [recorded(c, expected=1) for c in claims]
    blocks.append(Block(uuid4(), 1, events=[NewEvent("step.recorded", "x#1", "{}")]))
    outcomes = [r.outcome for r in commit(connection, blocks)]
    assert outcomes == [Outcome.COMMITTED, Outcome.CONFLICT, Outcome.FENCED, Outcome.MISSING]
    assert_sound(connection, threads)


def test_rescue_makes_a_dispatched_step_unknown_and_raises_the_fence(connection: Connection) -> None:
    """R70, C27: a dead worker's effect is not known; it is neither done nor failed."""
    thread = a_thread(connection)
    worker = a_worker(connection)
    held = claim_one(connection, worker)
    commit(connection, [intended(held, 1)])
    retire(connection, worker)
    duties.rescue(connection, 100, 3)
    assert _types(connection, thread)[-1] == "effect.unknown"
    fence, holder = connection.execute("select fence, holder from actum.work").fetchone()
    assert fence > held.fence
    assert holder is None
    assert_sound(connection, [thread])
    assert duties.rescue(connection, 100, 3)["rescued"] == 0


def test_a_thread_that_loses_its_worker_every_time_is_parked(connection: Connection) -> None:
    """C08: after three crashes without progress the owner decides, and nobody claims it again."""
    thread = a_thread(connection)
    for crash in range(4):
        worker = a_worker(connection)
        assert claim_one(connection, worker).crashes == crash
        retire(connection, worker)
        assert duties.rescue(connection, 100, 3)["parked"] == (crash == 3)
        _advance(connection, "2 minutes")
    row = thread_row(connection, thread)
    assert row is not None
    assert (row.state, row.reason) == ("needs_resolution", "worker lost 4 times without progress")
    assert claim(connection, a_worker(connection), "default", [LABEL], 9) == []
    assert_sound(connection, [thread])


def test_progress_forgives_earlier_crashes(connection: Connection) -> None:
    """C08: a long Thread is not parked for three unrelated crashes in a week."""
    a_thread(connection)
    for n in range(6):
        worker = a_worker(connection)
        held = claim_one(connection, worker)
        commit(connection, [recorded(held, f"read#{n + 1}")])
        retire(connection, worker)
        assert duties.rescue(connection, 100, 3)["parked"] == 0
        _advance(connection, "2 minutes")


def test_a_parked_threads_unknown_effect_does_not_stay_open_for_ever(connection: Connection) -> None:
    """R100, invariant 12: also when nobody ever looks."""
    thread = a_thread(connection)
    worker = a_worker(connection)
    commit(connection, [intended(claim_one(connection, worker), 1)])
    retire(connection, worker)
    assert duties.rescue(connection, 100, 0) == {"rescued": 1, "parked": 1}
    _advance(connection, "2 days")
    duties.fire_timers(connection, 100, 30)
    row = thread_row(connection, thread)
    assert row is not None
    assert row.state == "expired"
    assert connection.execute("select state from actum.steps").fetchone() == ("expired",)
    assert_sound(connection, [thread])


def test_an_abandoned_claim_is_taken_by_the_next_rescue(connection: Connection) -> None:
    """C21: a living worker that gave up is not waited for."""
    a_thread(connection)
    held = claim_one(connection, a_worker(connection))
    abandon(connection, held.thread_id, held.fence)
    assert connection.execute("select holder from actum.work").fetchone() == (NOBODY,)
    assert commit(connection, [recorded(held)])[0].outcome is Outcome.COMMITTED
    assert duties.rescue(connection, 100, 3)["rescued"] == 1


def test_a_commit_waits_for_a_rescue_that_stands_in_the_middle(url: str, connection: Connection) -> None:
    """C21: the sweep has locked the row and is not done; the worker's write then meets the new fence."""
    thread = a_thread(connection)
    worker = a_worker(connection)
    held = claim_one(connection, worker)
    _expire(connection, worker)
    with ThreadPoolExecutor(1) as pool, connect(url) as sweep, connect(url) as late:
        with sweep.transaction():
            assert duties.rescue(sweep, 100, 3)["rescued"] == 1
            answer = pool.submit(commit, late, [recorded(held)])
            _until(
                lambda: bool(
                    connection.execute(
                        "select 1 from pg_stat_activity "
                        "where wait_event_type = 'Lock' and datname = current_database()"
                    ).fetchone()
                )
            )
            assert not answer.done()
        assert answer.result(10)[0].outcome is Outcome.FENCED
    assert_sound(connection, [thread])


def test_a_rescue_passes_by_a_thread_that_a_commit_has_locked(url: str, connection: Connection) -> None:
    """C21, C42: it neither waits nor overwrites; the next one looks again."""
    thread = a_thread(connection)
    worker = a_worker(connection)
    held = claim_one(connection, worker)
    with connect(url) as own, own.transaction():
        block = recorded(held, state="completed", expected=1, claim="done")
        block.events.append(NewEvent("thread.completed", "", '{"result":1}'))
        assert commit(own, [block])[0].outcome is Outcome.COMMITTED
        _expire(connection, worker)
        assert duties.rescue(connection, 100, 3)["rescued"] == 0
    assert duties.rescue(connection, 100, 3)["rescued"] == 0
    assert_sound(connection, [thread])


def _until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.005)  # sleep-ok: looks for a lock that another connection is about to wait for


class Race:
    """Random verbs from many connections on few Threads, until a deadline."""

    def __init__(self, url: str, seconds: float) -> None:
        self._url = url
        self._ends = time.monotonic() + seconds
        self.threads: list[UUID] = []
        self.outcomes: set[str] = set()

    def run(self, roles: list[Callable[[Connection, random.Random], None]]) -> None:
        """Run each role on a connection of its own; an error of any of them is raised."""
        with ThreadPoolExecutor(len(roles)) as pool:
            jobs = [pool.submit(self._play, role, n) for n, role in enumerate(roles)]
            for job in jobs:
                job.result(60)

    def _play(self, role: Callable[[Connection, random.Random], None], seed: int) -> None:
        dice = random.Random(seed)
        with connect(self._url) as own:
            while time.monotonic() < self._ends:
                role(own, dice)

    def work(self, own: Connection, dice: random.Random) -> None:
        """Claim a few, dispatch, record, and end each claim in one of its ways, in batches."""
        worker = a_worker(own, dice.choice([0.01, 60]))
        held = claim(own, worker, "default", [LABEL], 5)
        events = events_of(own, [c.thread_id for c in held])
        blocks = []
        for c in held:
            mine = fold(events[c.thread_id])
            name = f"send#{mine.version}"
            blocks.append(intended(c, mine.version, name))
        dice.shuffle(blocks)
        receipts = commit(own, blocks)
        ended = [self._ending(b, r.after, dice) for b, r in zip(blocks, receipts, strict=True)]
        self.outcomes |= {str(r.outcome) for r in [*receipts, *commit(own, ended)]}
        if dice.random() < 0.5:
            retire(own, worker)

    def _ending(self, sent: Block, version: int, dice: random.Random) -> Block:
        text = '{"evidence":{},"result":1}'
        name = sent.events[0].name
        block = Block(sent.thread_id, sent.fence, version)
        if dice.random() < 0.5:
            block.events.append(NewEvent("thread.waiting", "", '{"wait_for":"x","timer":"x"}'))
            block.state, block.wake_seconds, block.wake_for = "waiting", dice.random() / 20, "x"
            block.claim = "done"
        else:
            block.expected = None
            block.events.append(NewEvent("value.recorded", name, text.replace("result", "value")))
            block.claim = "again"
        return block

    def rescue(self, own: Connection, dice: random.Random) -> None:
        """Take back what is expired."""
        duties.rescue(own, dice.choice([1, 10, 500]), 10_000)
        own.execute(
            "update actum.work set ready_at = actum.now() where thread_id in (select thread_id from "
            "actum.work where holder is null order by thread_id for update skip locked)"
        )

    def timers(self, own: Connection, dice: random.Random) -> None:
        """Fire what is due."""
        duties.fire_timers(own, dice.choice([1, 10, 500]), 30)

    def signals(self, own: Connection, dice: random.Random) -> None:
        """Signal anybody, now and then twice with one key."""
        signal(own, dice.choice(self.threads), f"k{dice.randrange(500)}", "go", "1", "test")

    def starts(self, own: Connection, dice: random.Random) -> None:
        """Start in batches with overlapping keys, in any order."""
        keys = [f"start {dice.randrange(40)}" for _ in range(5)]
        submit(own, [a_start(key) for key in keys])

    def renews(self, own: Connection, dice: random.Random) -> None:
        """Renew everybody."""
        workers = [r[0] for r in own.execute("select id from actum.workers").fetchall()]
        dice.shuffle(workers)
        renew(own, workers, 0.05)


def test_racing_verbs_neither_deadlock_nor_break_a_history(url: str, connection: Connection) -> None:
    """C42, invariants 1, 2, 4 and 7: rescue, commit, claim, signal, timers, renewal and starts at once."""
    race = Race(url, 3)
    race.threads = [a_thread(connection, deadline_seconds=9e6) for _ in range(12)]
    race.run([
        race.work, race.work, race.work, race.rescue, race.rescue, race.timers, race.timers,
        race.signals, race.signals, race.starts, race.starts, race.renews,
    ])  # fmt: skip
    deadlocks = connection.execute(
        "select deadlocks from pg_stat_database where datname = current_database()"
    ).fetchone()
    assert deadlocks == (0,)
    every = [r[0] for r in connection.execute("select id from actum.threads").fetchall()]
    assert (
        len(every)
        == 12
        + connection.execute(
            "select count(*) from actum.commands where kind = 'start' and key like 'start %'"
        ).fetchone()[0]
    )
    assert_sound(connection, every)
    assert {"committed", "fenced"} <= race.outcomes
    work = "select count(*) from actum.threads t left join actum.work w on w.thread_id = t.id "
    stranded = connection.execute(work + "where (t.state = 'running') <> (w.thread_id is not null)")
    assert stranded.fetchone() == (0,), "running means claimable or claimed, and nothing else is"


def test_concurrent_appenders_keep_the_numbers_without_a_gap(url: str, connection: Connection) -> None:
    """R2, invariant 1: also when some of them roll back."""
    thread = a_thread(connection)

    def append(n: int) -> None:
        with connect(url) as own:
            for i in range(25):
                with own.transaction() as transaction:
                    own.execute(
                        "select actum.append(%s, 'timer.fired', '', 'x', '{\"timer\":\"x\"}')", (thread,)
                    )
                    if (n + i) % 5 == 0:
                        from psycopg import Rollback

                        raise Rollback(transaction)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(append, range(8)))
    events = events_of(connection, [thread])[thread]
    assert [e.seq for e in events] == list(range(1, 1 + 8 * 20 + 1))
    assert_sound(connection, [thread])


def test_a_reader_with_a_cursor_per_thread_misses_nothing(url: str, connection: Connection) -> None:
    """C43: numbers become visible in their order, though transactions overlap."""
    threads = [a_thread(connection) for _ in range(3)]
    done = threading.Event()

    def write(n: int) -> None:
        with connect(url) as own:
            for i in range(40):
                with own.transaction():
                    signal(own, threads[(n + i) % 3], f"{n}.{i}", "go", str(i), "test")

    def read() -> dict[UUID, list[Event]]:
        seen: dict[UUID, list[Event]] = {t: [] for t in threads}
        with connect(url) as own:
            last = False
            while not last:
                last = done.is_set()
                for thread in threads:
                    after = seen[thread][-1].seq if seen[thread] else 0
                    seen[thread] += events_of(own, [thread], after)[thread]
        return seen

    with ThreadPoolExecutor(7) as pool:
        reader = pool.submit(read)
        list(pool.map(write, range(6)))
        done.set()
        assert reader.result(30) == events_of(connection, threads)
