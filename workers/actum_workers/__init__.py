"""actum on Celery: `celery -A actum_workers worker`."""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    """Make the Celery app when it is first asked for, not when a part of the package is imported."""
    if name in ("app", "celery"):
        from actum_workers.celery_app import app

        return app
    raise AttributeError(name)
