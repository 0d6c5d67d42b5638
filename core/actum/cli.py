"""The command line: `actum COMMAND`.

Results go to stdout, messages to stderr. With `--json` a command prints one JSON object, or one a line.
What an error means for the caller is its exit code. Installed packages add commands through the entry
point group `actum.commands`.
"""

from __future__ import annotations

import getpass
import importlib
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime
from enum import StrEnum
from importlib.metadata import entry_points
from importlib.metadata import version as installed
from pathlib import Path
from typing import Annotated, Any, NoReturn

import orjson
import psycopg
import structlog
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from actum import codec
from actum.client import Client, Start
from actum.config import settings
from actum.domain.lifecycle import THREAD_TERMINAL, ThreadState
from actum.domain.thread import StepView, Thread
from actum.errors import ActumError, BadConfiguration, Rejected
from actum.journal.database import Database
from actum.journal.read import ThreadRow, holder_of, runnable_anywhere

EPILOG = (
    "Exit codes: 0 done · 1 it failed, or problems were found · 2 the input or a setting is wrong · "
    "3 it does not exist · 4 it conflicts with what is there · 6 a server does not answer, try again later. "
    "Settings: ACTUM_DATABASE_URL, ACTUM_BROKER_URL, ACTUM_WORKFLOWS, ACTUM_NAMESPACE."
)
CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
OLD_SCHEMA = (
    psycopg.errors.UndefinedTable,
    psycopg.errors.UndefinedColumn,
    psycopg.errors.UndefinedFunction,
    psycopg.errors.InvalidSchemaName,
)

app = typer.Typer(
    name="actum",
    help="Durable workflows on Celery that never guess whether an effect happened.",
    epilog=EPILOG,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")]
ThreadId = Annotated[str, typer.Argument(metavar="THREAD", help="The Thread's id.")]


# --- printing ---


def clean(value: object) -> str:
    """Return `value` as text that can't steer a terminal: control characters are escaped."""
    return CONTROLS.sub(lambda m: m[0].encode("unicode_escape", "surrogatepass").decode(), str(value))


def print_json(value: Any) -> None:
    """Print one JSON object on a line of its own, at once."""
    sys.stdout.write(orjson.dumps(value, default=str).decode() + "\n")
    sys.stdout.flush()


def tell(message: str) -> None:
    """Print a message for a person on stderr."""
    print(clean(message), file=sys.stderr, flush=True)


def print_fields(fields: dict[str, Any]) -> None:
    """Print `name: value` lines; empty values are left out."""
    width = max(map(len, fields), default=0)
    for name, value in fields.items():
        if value not in (None, ""):
            print(f"{name:<{width}}  {clean(value)}", flush=True)


def print_table(titles: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table; piped output is not folded to a terminal's width."""
    table = Table(*titles, box=None, pad_edge=False)
    for row in rows:
        table.add_row(*(Text(clean(_short(cell))) for cell in row))
    width = None if sys.stdout.isatty() else 240
    Console(width=width, highlight=False, markup=False).print(table)


def _short(cell: object) -> object:
    if isinstance(cell, datetime):
        return cell.isoformat(" ", "seconds")
    return "" if cell is None else cell


# --- reading what was typed ---


def read_json(text: str, option: str) -> Any:
    """Return the value of a JSON option; `@file` reads a file. Raises `Rejected` naming the option."""
    try:
        return codec.decode(Path(text[1:]).read_text() if text.startswith("@") else text)
    except OSError as error:
        raise Rejected(f"{option}: can't read {text[1:]}: {error.strerror}") from None
    except (Rejected, UnicodeDecodeError) as error:
        raise Rejected(f"{option}: {error}") from None


def _object(text: str, option: str) -> dict[str, Any]:
    value = read_json(text, option)
    if not isinstance(value, dict):
        raise Rejected(f'{option}: write a JSON object of arguments by name, as {{"n": 1}}')
    return value


@dataclass(frozen=True, slots=True)
class Session:
    """A client, and a connection for what only operators read."""

    client: Client
    database: Database


@contextmanager
def session() -> Iterator[Session]:
    """Open a client in the name of the person at the keyboard."""
    opened = Session(Client(principal=f"cli:{_user()}"), Database(name="actum-cli"))
    try:
        yield opened
    finally:
        opened.client.close()
        opened.database.close()


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's uid without a name
        return str(os.geteuid())


# --- commands that change something ---


@app.command()
def migrate(as_json: AsJson = False) -> None:
    """Bring the database's schema to the version of this code."""
    from actum.journal import migrate as schema

    url = settings().require_database()
    _reach(url)
    before, after = schema.current(url), schema.migrate(url)
    if as_json:
        print_json({"before": before or None, "after": after})
    else:
        print(f"schema {after}" + ("" if before == after else f" (was {before or 'none'})"))


def _reach(url: str) -> None:
    """Raise a readable error now if Postgres does not answer, rather than Alembic's later."""
    reached = Database(url)
    reached.run(lambda connection: connection.execute("select 1"), attempts=1)
    reached.close()


@app.command()
def start(
    workflow: Annotated[str, typer.Argument(help="The workflow's name.")],
    input_: Annotated[
        str, typer.Option("--input", metavar="JSON|@FILE", help="Its arguments by name.")
    ] = "{}",
    key: Annotated[str, typer.Option(help="The same key and input start it once only.")] = "",
    as_json: AsJson = False,
) -> None:
    """Start a Thread of a workflow that a worker has shown; prints its id."""
    kwargs = _object(input_, "--input")
    with session() as s:
        verdict = s.client.start_many([Start(workflow, (), kwargs, key)])[0].or_raise()
    if as_json:
        print_json({"thread_id": verdict.thread_id, "answer": verdict.answer, "key": verdict.key})
    else:
        print(verdict.thread_id)
        tell(f"{verdict.answer}: {workflow}")


@app.command()
def signal(
    words: Annotated[list[str], typer.Argument(metavar="[THREAD] NAME", help="No THREAD with --key-of.")],
    body: Annotated[str, typer.Option(metavar="JSON|@FILE", help="What the signal carries.")] = "null",
    key_of: Annotated[str, typer.Option(help="Name the Thread by the key it was started with.")] = "",
    dedup_key: Annotated[str, typer.Option(help="The same key and body are taken once only.")] = "",
    as_json: AsJson = False,
) -> None:
    """Send a signal to a Thread."""
    thread, name = _target(words, key_of)
    value = read_json(body, "--body")
    with session() as s:
        thread_id = s.client.find(thread, key_of)
        seq = s.client.signal(thread_id, name, value, dedup_key=dedup_key)
    answer = "duplicate" if seq is None else "accepted"
    if as_json:
        print_json({"thread_id": thread_id, "answer": answer, "seq": seq})
    else:
        print(answer if seq is None else f"{answer} as event {seq}")


def _target(words: list[str], key_of: str) -> tuple[str | None, str]:
    if len(words) != (1 if key_of else 2):
        raise Rejected("write THREAD NAME, or NAME with --key-of KEY")
    return (None, words[0]) if key_of else (words[0], words[1])


class Decision(StrEnum):
    """What the outside world shows of a step."""

    CONFIRMED = "confirmed"
    ABSENT = "absent"
    FAILED = "failed"


@app.command()
def resolve(
    thread: ThreadId,
    step: Annotated[str, typer.Argument(help="The step's id, as `show` names it.")] = "",
    decision: Annotated[Decision, typer.Option(help="What the world shows of the effect.")] = ...,  # type: ignore[assignment]
    reason: Annotated[str, typer.Option(help="Why; it is kept as evidence.")] = ...,  # type: ignore[assignment]
    result: Annotated[str, typer.Option(metavar="JSON|@FILE", help="A confirmed step's result.")] = "null",
    as_json: AsJson = False,
) -> None:
    """Settle what a Thread in needs_resolution waits for. Without STEP a parked Thread just goes on."""
    value = read_json(result, "--result")
    with session() as s:
        s.client.resolve(thread, step, decision.value, reason, value)
        row = s.client.row(thread)
    if as_json:
        print_json({"thread_id": row.id, "step_id": step, "decision": decision, "state": row.state})
    else:
        print(f"{decision.value}; the Thread is {row.state}")


# --- commands that read ---


@app.command()
def show(thread: ThreadId, as_json: AsJson = False) -> None:
    """Show a Thread: where it stands, why it is not moving, who has it, its steps."""
    with session() as s:
        row, folded = s.client.row(thread), s.client.get(thread)
        view = _view(row, folded, s.database)
    if as_json:
        print_json(view)
        return
    steps = view.pop("steps")
    print_fields(view)
    if steps:
        print()
        print_table(
            ("step", "state", "attempts", "effect key", "evidence"),
            [(*(s[k] for k in ("step_id", "state", "attempts", "effect_key")), _last(s)) for s in steps],
        )


def _view(row: ThreadRow, folded: Thread, database: Database) -> dict[str, Any]:
    holder = database.run(lambda c: holder_of(c, row.id))
    runnable = database.run(lambda c: runnable_anywhere(c, row.workflow, row.version))
    return {
        "thread_id": row.id,
        "workflow": f"{row.workflow}@{row.version}",
        "key": row.key,
        "state": row.state,
        "why": _why(row, holder, runnable),
        "reason": row.reason,
        "owner": row.owner,
        "holder": holder[0] if holder else None,
        "holder_until": holder[1] if holder else None,
        "runnable": runnable,
        "wake_at": row.wake_at,
        "wake_for": row.wake_for if row.wake_at else None,
        "deadline_at": row.deadline_at,
        "created_at": row.created_at,
        "updated_at": row.updated_at,
        "events": folded.version,
        "result": folded.result,
        "error": folded.error,
        "steps": [_step(step) for step in folded.steps.values()],
    }


def _why(row: ThreadRow, holder: tuple[str, datetime] | None, runnable: bool) -> str:
    """Say in one sentence why the Thread is not moving, or who moves it."""
    if row.state in THREAD_TERMINAL:
        return f"it has ended{': ' + row.reason if row.reason else ''}"
    if row.state == ThreadState.NEEDS_RESOLUTION:
        return f"{row.owner} must decide ({row.reason}); see `actum resolve`"
    if row.state == ThreadState.BLOCKED:
        return f"code and history differ ({row.reason}); deploy the version that it started with"
    if row.state == ThreadState.WAITING:
        until = row.wake_at.isoformat(" ", "seconds") if row.wake_at else "ever"
        return f"it waits for {row.reason}, until {until}"
    if holder:
        return f"{holder[0]} works on it"
    if not runnable:
        return f"no living worker has {row.workflow}@{row.version}"
    return "it is ready and waits for a free worker"


def _step(step: StepView) -> dict[str, Any]:
    names = ("step_id", "state", "attempts", "effect_key", "result", "error", "due_at", "evidence", "late")
    return {name: getattr(step, name) for name in names}


def _last(step: dict[str, Any]) -> str:
    """A step's last evidence, or its error, in one line."""
    shown = step["evidence"][-1] if step["evidence"] else step["error"]
    return orjson.dumps(shown, default=str).decode()[:100] if shown else ""


@app.command()
def events(
    thread: ThreadId,
    after: Annotated[int, typer.Option(min=0, help="Only events numbered above this.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Print a Thread's events in order."""
    with session() as s:
        found = s.client.events(thread, after)
    if as_json:
        for event in found:
            print_json(asdict(event))
        return
    rows = [(e.seq, e.at, e.type, e.name, e.actor, orjson.dumps(e.body).decode()[:120]) for e in found]
    print_table(("no", "at", "type", "name", "actor", "body"), rows)


@app.command("list")
def list_(
    state: Annotated[ThreadState | None, typer.Option(help="Only in this state.")] = None,
    workflow: Annotated[str, typer.Option(help="Only of this workflow.")] = "",
    owner: Annotated[str, typer.Option(help="Only of this owner.")] = "",
    limit: Annotated[int, typer.Option(help="At most so many, 1 to 1000.")] = 50,
    as_json: AsJson = False,
) -> None:
    """List Threads, newest first."""
    asked = {"state": state.value if state else "", "workflow": workflow, "owner": owner}
    filters: dict[str, Any] = {name: value for name, value in asked.items() if value}
    with session() as s:
        rows = s.client.list(limit=limit, **filters)
    if as_json:
        for row in rows:
            print_json(asdict(row))
        return
    titles = ("id", "workflow", "state", "reason", "owner", "wakes", "key")
    print_table(titles, [(r.id, r.workflow, r.state, r.reason, r.owner, r.wake_at, r.key) for r in rows])


@app.command()
def verify(
    thread: Annotated[str, typer.Argument(metavar="[THREAD]", help="Only this Thread.")] = "",
    limit: Annotated[int, typer.Option(min=1, help="At most so many Threads.")] = 1_000_000,
    as_json: AsJson = False,
) -> None:
    """Check numbering, hash chain and projections of what is stored; exit 1 if anything is wrong."""
    from actum.verify import verify as examine

    with session() as s:
        ids = [s.client.row(thread).id] if thread else None
        report = s.database.run(lambda c: examine(c, ids, limit))
    if as_json:
        print_json(asdict(report))
    else:
        for problem in report.problems:
            print(clean(f"Thread {problem.thread_id}: {problem.what}"))
        print(f"{report.threads} Threads, {report.events} events: {len(report.problems)} problems")
    raise typer.Exit(0 if report.ok else 1)


@app.command()
def doctor(as_json: AsJson = False) -> None:
    """Examine Postgres, the broker and what is stuck; exit 1 if something is wrong."""
    from actum.doctor import examine

    findings = examine(settings())
    if as_json:
        for finding in findings:
            print_json(asdict(finding))
    else:
        rows = [(_mark(f.ok, f.advice), f.name, f.detail, f.advice) for f in findings]
        print_table(("", "what", "found", "do"), rows)
    raise typer.Exit(0 if all(f.ok for f in findings) else 1)


def _mark(ok: bool, advice: str) -> str:
    return "WRONG" if not ok else "note" if advice else "ok"


@app.command()
def check(
    modules: Annotated[list[str], typer.Argument(metavar="MODULE...", help="As in ACTUM_WORKFLOWS.")],
    as_json: AsJson = False,
) -> None:
    """Import modules and say what their definitions lack; exit 2 if anything."""
    from actum.domain.workflow import REGISTRY

    problems = [p for m in ",".join(modules).split(",") for p in _import(m.strip())] + REGISTRY.problems()
    if as_json:
        print_json({"ok": not problems, "workflows": REGISTRY.labels(), "problems": problems})
    else:
        for problem in problems:
            tell(problem)
        print_fields({"workflows": ", ".join(REGISTRY.labels()), "problems": len(problems)})
    raise typer.Exit(2 if problems else 0)


def _import(module: str) -> list[str]:
    """Import user code as a worker would: from the current folder too. Whatever it raises is a problem."""
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        importlib.import_module(module)
    except Exception as error:
        return [f"{module}: {type(error).__name__}: {error}"]
    return []


@app.command()
def version(as_json: AsJson = False) -> None:
    """Print the version of actum."""
    number = installed("actum")
    if as_json:
        print_json({"actum": number, "python": sys.version.split()[0]})
    else:
        print(f"actum {number}")


# --- running ---


def _add_installed_commands() -> None:
    for entry in sorted(entry_points(group="actum.commands")):
        app.command(entry.name)(entry.load())


def _fail(message: str, code: int) -> NoReturn:
    tell(f"actum: {message}")
    sys.exit(code)


def main() -> None:
    """Run the command line. An error is one line on stderr, and its family's exit code."""
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))  # stdout is for results
    _add_installed_commands()
    try:
        app()
    except ActumError as error:
        _fail(str(error), error.exit_code)
    except OLD_SCHEMA:
        _fail("this database's schema is missing or old: run `actum migrate`", BadConfiguration.exit_code)
    except psycopg.Error as error:
        _fail(f"Postgres: {str(error).strip().splitlines()[0]}", 1)


__all__ = ["AsJson", "app", "clean", "main", "print_fields", "print_json", "session", "tell"]
