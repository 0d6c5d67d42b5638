"""The suppliers: they read their verification mail and answer it with a signal."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from actum.errors import ActumError, Unavailable
from examples.supplier_onboarding.world.mail import Mail, mails_after

if TYPE_CHECKING:
    from actum.client import Client

POLL_SECONDS = 0.2
NEVER_REPLIES = "no-reply"


def replies(mail_directory: Path, since_id: int) -> list[Mail]:
    """Return the verification mails after `since_id` whose recipient answers."""
    return [
        mail
        for mail in mails_after(mail_directory, "verification", since_id)
        if NEVER_REPLIES not in mail.recipient.partition("@")[0]
    ]


def terms_in(mail: Mail) -> str:
    """Return what stands behind `Terms:` in the mail: the supplier agrees to just that."""
    for line in mail.body.splitlines():
        if line.startswith("Terms:"):
            return line.removeprefix("Terms:").strip()
    return ""


def answer(client: Client, mail: Mail) -> None:
    """Signal the Thread that sent the mail; a repeat after a crash has the same dedup key."""
    client.signal(
        mail.thread_id or None,
        "supplier.replied",
        {"terms": terms_in(mail)},
        key="" if mail.thread_id else mail.thread_key,
        dedup_key=f"reply-{mail.id}",
    )


def is_settled(client: Client, mail: Mail) -> bool:
    """Answer a mail; False when it is worth another try."""
    try:
        answer(client, mail)
    except Unavailable as problem:
        print(f"mail {mail.id}: tried again later: {problem}", file=sys.stderr)
        return False
    except ActumError as problem:  # another try would be refused too
        print(f"mail {mail.id}: the answer was refused: {problem}", file=sys.stderr)
    return True


def run(client: Client, mail_directory: Path, limit_seconds: float) -> None:
    """Answer what comes in until the time is up. It keeps no state: SIGTERM may end it anywhere."""
    deadline = time.monotonic() + limit_seconds
    since_id, waiting = 0, list[Mail]()
    while time.monotonic() < deadline:
        fresh = replies(mail_directory, since_id)
        since_id = fresh[-1].id if fresh else since_id
        waiting = [mail for mail in waiting + fresh if not is_settled(client, mail)]
        time.sleep(POLL_SECONDS)


def main() -> None:
    """Read the arguments and answer mails."""
    from actum.client import Client

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mail-directory", type=Path, required=True)
    parser.add_argument("--limit-seconds", type=float, default=120.0)
    options = parser.parse_args()
    run(Client(), options.mail_directory, options.limit_seconds)


if __name__ == "__main__":
    main()
