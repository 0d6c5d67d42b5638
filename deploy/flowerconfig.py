"""Flower's settings. Read-only, with a login, and with nothing of a task shown beyond its ids.

Basic auth comes from the file that FLOWER_BASIC_AUTH_FILE names, as `user:password`. Without it Flower does
not start: its pages would be open.
"""

import os
import re
from pathlib import Path

_ID = re.compile(r"thread=[0-9a-f-]{36}")

basic_auth = [Path(os.environ["FLOWER_BASIC_AUTH_FILE"]).read_text().strip()]
if not re.fullmatch(r"[^:\s]+:\S{12,}", basic_auth[0]):
    raise SystemExit("FLOWER_BASIC_AUTH_FILE: write user:password, the password of 12 characters or more")

read_only = True
persistent = False  # its file is a pickle
purge_offline_workers = 300
natural_time = False


def format_task(task):
    """Show which Thread a turn was about, and blank everything else that a task may carry."""
    found = _ID.search(str(task.args or ""))
    task.args = found[0] if found else ""
    task.kwargs = ""
    task.result = str(task.result)[:40] if task.result else task.result
    task.exception = task.traceback = None
    return task
