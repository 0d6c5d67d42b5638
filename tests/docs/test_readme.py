"""The pages say what is so: their Python runs, their diagrams and lists are the derived ones."""

from __future__ import annotations

import contextlib
import re
import sys
import threading
import types
from collections.abc import Iterator
from inspect import isclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from actum import errors
from actum.config import Settings, settings
from actum.domain.events import CATALOGUE
from actum.domain.lifecycle import STEP_TABLE, THREAD_TABLE, diagram
from actum.domain.workflow import Registry
from actum_workers import heart
from actum_workers.service import Service

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
SHELL_RUN_ELSEWHERE = {
    "README.md": ["tests/examples", "tests/workers", "tests/deploy", "tests/cli"],
    "docs/tutorial.md": ["tests/workers", "tests/cli"],
}
"""Shell blocks are not run here; these folders run the same programs."""


def blocks(page: Path, language: str) -> list[str]:
    """Return the fenced blocks of exactly this language, in order."""
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(), re.M | re.S)


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Registry:
    """A registry of its own, as in a process of its own."""
    made = Registry()
    monkeypatch.setattr("actum.domain.workflow.REGISTRY", made)
    return made


@contextlib.contextmanager
def worker(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A worker that works until the block ends, in a thread of this process."""
    with TemporaryDirectory(prefix="heart-") as folder:
        monkeypatch.setenv(heart.SOCKET_VARIABLE, f"{folder}/s")
        process = heart.spawn(f"{folder}/s")
        with heart.connect(f"{folder}/s"):
            service, done = Service(settings(), registry, ["default"]), threading.Event()
            service.start()
            thread = threading.Thread(target=_work, args=(service, done))
            thread.start()
            try:
                yield
            finally:
                done.set()
                thread.join()
                service.stop()
        process.wait(20)


def _work(service: Service, done: threading.Event) -> None:
    while not done.wait(0.05):
        service.drain("default", 1)


@pytest.mark.parametrize(("page", "printed"), [("README.md", "refunded"), ("docs/tutorial.md", "ada")])
def test_the_python_of_a_page_runs(
    page: str,
    printed: str,
    url: str,
    registry: Registry,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The first block is the module that the page says to save; the others go on from it, in order."""
    definition, *others = blocks(ROOT / page, "python")
    module = types.ModuleType("refunds")
    monkeypatch.setitem(sys.modules, "refunds", module)
    exec(definition, module.__dict__)  # noqa: S102 - that is the test
    assert registry.problems() == []
    names: dict[str, Any] = {"__name__": "page"}
    with worker(registry, monkeypatch):
        for block in others:
            exec(block, names)  # noqa: S102
    names["client"].close()
    assert printed in capsys.readouterr().out


def test_the_workflow_of_the_readme_is_short() -> None:
    assert len(blocks(ROOT / "README.md", "python")[0].splitlines()) <= 31


@pytest.mark.parametrize("page", SHELL_RUN_ELSEWHERE)
def test_shell_blocks_are_run_elsewhere(page: str) -> None:
    assert blocks(ROOT / page, "sh")
    assert all((ROOT / folder).is_dir() for folder in SHELL_RUN_ELSEWHERE[page])


def test_the_diagrams_are_the_derived_ones() -> None:
    drawn = [block.rstrip("\n") for block in blocks(ROOT / "docs/reference/lifecycle.md", "mermaid")]
    assert drawn == [diagram(THREAD_TABLE), diagram(STEP_TABLE)]


def test_every_event_is_explained() -> None:
    rows = re.findall(
        r"^\| `([a-z.]+)` \| (\w+) \| (.*?) \| (.+) \|$",
        (ROOT / "docs/reference/events.md").read_text(),
        re.M,
    )
    told = {name: (kind, set(re.findall(r"`(\w+)`", fields))) for name, kind, fields, _ in rows}
    assert told == {name: (kind.event_class, set(kind.required)) for name, kind in CATALOGUE.items()}


def test_every_setting_is_explained() -> None:
    rows = re.findall(r"^\| `ACTUM_(\w+)` \| (.*?) \|", (ROOT / "docs/how-to/configure.md").read_text(), re.M)
    told = {name.lower(): default.strip("`") for name, default in rows}
    assert told == {name: _shown(field.default) for name, field in Settings.model_fields.items()}


def _shown(default: object) -> str:
    if isinstance(default, float):
        return f"{default:g}"
    return str(default) or "–"


def test_every_exit_code_is_explained() -> None:
    page = (ROOT / "docs/reference/exit-codes.md").read_text()
    told = {int(code) for code in re.findall(r"^\| (\d+) \|", page, re.M)}
    families = [e for e in vars(errors).values() if isclass(e) and issubclass(e, errors.ActumError)]
    assert told == {0, 130} | {e.exit_code for e in families}


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        if not target.startswith("https://"):
            assert (page.parent / target).exists(), target
