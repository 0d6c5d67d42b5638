"""Each test has its own definitions, its own database and its own worker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from actum.domain import workflow as definitions
from actum.domain.workflow import Registry
from tests.support.engine import Engine, running


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Registry:
    """Fresh definitions: `@step` and `@workflow` inside the test register here."""
    made = Registry()
    monkeypatch.setattr(definitions, "REGISTRY", made)
    return made


@pytest.fixture
def engine(url: str, registry: Registry) -> Iterator[Engine]:
    """A worker's engine room in this process."""
    with running(registry) as made:
        yield made
