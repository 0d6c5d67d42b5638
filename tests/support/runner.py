"""A worker process without Celery, for crash tests: it looks for work until it is killed."""

from __future__ import annotations

import os
import sys
import time

from actum.config import settings
from actum.domain.workflow import REGISTRY
from actum_workers.service import Service


def main() -> None:
    """Run `python runner.py`; the workflows come from ACTUM_WORKFLOWS."""
    REGISTRY.load([m for m in settings().workflows.split(",") if m])
    service = Service(settings(), REGISTRY, ["default"])
    service.start()
    print("ready", flush=True)
    parent = os.getppid()
    while os.getppid() == parent:
        service.drain("default", 1.0)
        time.sleep(0.05)  # sleep-ok: stands in for the doorbell
    service.stop()


if __name__ == "__main__":
    sys.exit(main())
