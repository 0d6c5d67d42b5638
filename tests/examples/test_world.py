"""The example's outside world: real processes, real sockets, ledgers that survive SIGKILL."""

from __future__ import annotations

import json
import os
import signal
import smtplib
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from email.message import EmailMessage
from pathlib import Path
from typing import Any, cast

import httpx
import pytest

from actum.client import Client
from actum.errors import ActumError, ThreadEnded, Unavailable
from examples.supplier_onboarding.suppliers import read_suppliers
from examples.supplier_onboarding.world import mail, registry, replier

ROOT = Path(__file__).parents[2]
WORLD = "examples.supplier_onboarding.world"
CSV = ROOT / "examples" / "supplier_onboarding" / "suppliers.csv"
STOP_SECONDS = 5.0
SUPPLIER = {"supplier_id": "S-1", "name": "Møller & Sønner A/S"}


class Server:
    """One process of the world, and its ports as it printed them."""

    def __init__(self, module: str, directory: Path, *arguments: str) -> None:
        command = [sys.executable, "-m", f"{WORLD}.{module}", "--directory", str(directory)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "core"), str(ROOT)])}
        self.process = subprocess.Popen(
            [*command, *arguments], cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        self.ports: dict[str, int] = json.loads(self.process.stdout.readline())

    def http(self, port_name: str = "port", **options: Any) -> httpx.Client:
        """Return a client for this server."""
        url = f"http://127.0.0.1:{self.ports[port_name]}"
        return httpx.Client(base_url=url, trust_env=False, **options)

    def end(self, number: signal.Signals) -> int:
        """Send a signal and return the exit code."""
        self.process.send_signal(number)
        try:
            return self.process.wait(STOP_SECONDS)
        finally:
            self.process.kill()
            assert self.process.stdout is not None
            self.process.stdout.close()


Start = Callable[..., Server]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start servers whose ledgers are in `tmp_path`; end with SIGTERM those still running."""
    servers: list[Server] = []

    def start_one(module: str, *arguments: str) -> Server:
        servers.append(Server(module, tmp_path, *arguments))
        return servers[-1]

    yield start_one
    for server in servers:
        if server.process.poll() is None:
            assert server.end(signal.SIGTERM) == 0


def register(client: httpx.Client, key: str, **changes: str) -> httpx.Response:
    """Register the supplier under a key."""
    body = {**SUPPLIER, **changes}
    return client.post("/suppliers", json=body, headers={"Idempotency-Key": key})


def look_up(client: httpx.Client, key: str) -> httpx.Response:
    """Ask the registry what it has under a key."""
    return client.get(f"/suppliers/by-key/{key}")


def send(server: Server, effect_key: str, recipient: str = "a@example.com") -> None:
    """Send one verification mail."""
    message = EmailMessage()
    message["From"], message["To"] = "onboarding@example.org", recipient
    message["Subject"] = "Bitte bestätigen"
    message["X-Actum-Effect-Key"] = effect_key
    message["X-Actum-Kind"] = "verification"
    message["X-Actum-Thread"] = "0198c0de-0000-7000-8000-000000000001"
    message.set_content("Grüße\nTerms: 30 days net\n")
    port = server.ports["port"]
    with smtplib.SMTP("127.0.0.1", port, local_hostname="localhost", timeout=10) as smtp:
        smtp.send_message(message)


# --- mail ---------------------------------------------------------------------------------------


def test_mail_is_in_the_ledger_with_its_headers(start: Start, tmp_path: Path) -> None:
    send(start("mail"), "k1", "mueller.a@example.com")
    (stored,) = mail.read_ledger(tmp_path)
    assert (stored.effect_key, stored.kind) == ("k1", "verification")
    assert stored.thread_id == "0198c0de-0000-7000-8000-000000000001"
    assert stored.recipient == "mueller.a@example.com"
    assert (stored.subject, stored.body) == ("Bitte bestätigen", "Grüße\nTerms: 30 days net")
    assert replier.terms_in(stored) == "30 days net"


def test_an_answer_is_lost_after_the_mail_was_stored(start: Start) -> None:
    server = start("mail", "--lose-answer-every", "2")
    send(server, "k1")
    with pytest.raises(smtplib.SMTPServerDisconnected):
        send(server, "k2")
    with server.http("http_port") as client:
        found = client.get("/mails", params={"effect_key": "k2"}).json()
        assert [row["effect_key"] for row in found] == ["k2"]
        assert client.get("/mails", params={"effect_key": "k3"}).json() == []
        assert client.get("/health").json() == {"ok": True}


def test_a_mail_sent_twice_is_stored_twice(start: Start, tmp_path: Path) -> None:
    server = start("mail", "--lose-answer-every", "1")
    with pytest.raises(smtplib.SMTPServerDisconnected):
        send(server, "k1")
    send(server, "k1")  # seen before, so this one is answered
    assert [row.effect_key for row in mail.read_ledger(tmp_path)] == ["k1", "k1"]


def test_replies_leave_out_who_never_replies(start: Start, tmp_path: Path) -> None:
    server = start("mail")
    for number, recipient in enumerate(["a@example.com", "no-reply@example.com", "b@example.org"]):
        send(server, f"k{number}", recipient)
    assert [row.recipient for row in replier.replies(tmp_path, 0)] == [
        "a@example.com",
        "b@example.org",
    ]
    assert [row.id for row in replier.replies(tmp_path, 1)] == [3]


class FakeClient:
    """Stands in for actum's client: unavailable first, then refuses one, then takes all."""

    def __init__(self) -> None:
        self.problems: list[ActumError] = [Unavailable("down"), ThreadEnded("too late")]
        self.signals: list[tuple[object, ...]] = []

    def signal(self, *arguments: object, key: str, dedup_key: str) -> None:
        """Take a signal, or fail as planned."""
        if self.problems:
            raise self.problems.pop(0)
        self.signals.append((*arguments, key, dedup_key))


def test_a_reply_is_tried_again_only_when_that_may_help(start: Start, tmp_path: Path) -> None:
    send(start("mail"), "k1")
    (stored,) = replier.replies(tmp_path, 0)
    fake = FakeClient()
    client = cast(Client, fake)
    assert [replier.is_settled(client, stored) for _ in range(3)] == [False, True, True]
    body = {"terms": "30 days net"}
    assert fake.signals == [(stored.thread_id, "supplier.replied", body, "", "reply-1")]


@pytest.mark.parametrize("lost_every", ["0", "1"])
def test_sigkill_keeps_mails(start: Start, tmp_path: Path, lost_every: str) -> None:
    server = start("mail", "--lose-answer-every", lost_every)
    try:
        send(server, "k1")
    except smtplib.SMTPServerDisconnected:
        assert lost_every == "1"
    assert server.end(signal.SIGKILL) == -signal.SIGKILL
    assert len(mail.read_ledger(tmp_path)) == 1
    send(start("mail"), "k2")
    assert [row.effect_key for row in mail.read_ledger(tmp_path)] == ["k1", "k2"]


# --- registry -----------------------------------------------------------------------------------


def test_without_honoured_keys_a_repeat_is_a_second_registration(start: Start) -> None:
    with start("registry").http() as client:
        assert register(client, "k1").json()["registration_id"] == 1
        assert register(client, "k1").json()["registration_id"] == 2
        assert look_up(client, "k1").json()["supplier"] == SUPPLIER
        stats = client.get("/stats").json()
        assert (stats["posts"], stats["registrations"], stats["duplicates"]) == (2, 2, 1)


def test_an_honoured_key_repeats_its_answer_only(start: Start, tmp_path: Path) -> None:
    with start("registry", "--honour-keys").http() as client:
        first = register(client, "k1")
        again = register(client, "k1")
        assert (again.status_code, again.content) == (200, first.content)
        other = register(client, "k1", name="Other")
        assert other.status_code == 422
        assert "X-Not-Applied" not in other.headers
    assert len(registry.read_ledger(tmp_path)) == 1


def test_drop_does_it_and_closes(start: Start) -> None:
    with start("registry", "--knobs", '{"drop_every": 2}').http() as client:
        assert register(client, "k1").status_code == 200
        with pytest.raises(httpx.RemoteProtocolError):
            register(client, "k2")
        assert look_up(client, "k2").status_code == 200


def test_hang_does_it_and_does_not_block_the_shutdown(start: Start) -> None:
    server = start("registry", "--knobs", '{"hang_every": 1}')
    with server.http() as client:
        with pytest.raises(httpx.ReadTimeout):
            client.post("/suppliers", json=SUPPLIER, headers={"Idempotency-Key": "k1"}, timeout=0.3)
        assert look_up(client, "k1").status_code == 200
    assert server.end(signal.SIGTERM) == 0  # within STOP_SECONDS, though a handler still hangs


def test_refusals_do_nothing_and_say_so(start: Start, tmp_path: Path) -> None:
    knobs = {"refuse_every": 2, "refuse_supplier_ids": ["S-9"]}
    with start("registry", "--knobs", json.dumps(knobs)).http() as client:
        listed = register(client, "k1", supplier_id="S-9")
        assert (listed.status_code, listed.headers["X-Not-Applied"]) == (422, "true")
        assert "S-9" in listed.json()["error"]
        busy = register(client, "k2")
        assert (busy.status_code, busy.headers["X-Not-Applied"]) == (503, "true")
        assert busy.headers["Retry-After"] == "0"
        assert look_up(client, "k2").status_code == 404
        assert registry.read_ledger(tmp_path) == []
        assert register(client, "k2").status_code == 200


def test_the_look_up_denies_a_young_registration(start: Start) -> None:
    with start("registry", "--knobs", '{"not_found_seconds": 3600}').http() as client:
        register(client, "k1")
        assert look_up(client, "k1").status_code == 404
        assert client.put("/knobs", json={"not_found_seconds": 0}).status_code == 200
        assert look_up(client, "k1").status_code == 200


def test_a_mismatch_shows_another_name_after_a_dropped_answer(start: Start) -> None:
    with start("registry").http() as client:
        client.put("/knobs", json={"mismatch_supplier_ids": ["S-1"]})
        with pytest.raises(httpx.RemoteProtocolError):
            register(client, "k1")
        assert look_up(client, "k1").json()["supplier"]["name"] != SUPPLIER["name"]


def test_bad_requests_change_nothing(start: Start, tmp_path: Path) -> None:
    with start("registry").http() as client:
        assert client.post("/suppliers", json=SUPPLIER).status_code == 400
        bad = client.post("/suppliers", content=b"{", headers={"Idempotency-Key": "k"})
        assert bad.status_code == 400
        assert client.put("/knobs", json={"dorp_every": 1}).status_code == 400
        assert client.put("/knobs", json={"drop_every": "2"}).status_code == 400
    assert registry.read_ledger(tmp_path) == []


def test_fifty_connections_at_once(start: Start, tmp_path: Path) -> None:
    server = start("registry")

    def one(number: int) -> int:
        with server.http(timeout=30) as client:
            return register(client, f"k{number}").status_code

    with ThreadPoolExecutor(60) as pool:
        assert list(pool.map(one, range(60))) == [200] * 60
    assert len({row.key for row in registry.read_ledger(tmp_path)}) == 60


def test_sigkill_keeps_registrations(start: Start, tmp_path: Path) -> None:
    server = start("registry", "--knobs", '{"hang_every": 2}')
    with server.http() as client:
        register(client, "k1")
        with pytest.raises(httpx.ReadTimeout):
            client.post("/suppliers", json=SUPPLIER, headers={"Idempotency-Key": "k2"}, timeout=0.3)
    assert server.end(signal.SIGKILL) == -signal.SIGKILL
    assert [row.key for row in registry.read_ledger(tmp_path)] == ["k1", "k2"]
    with start("registry").http() as client:
        assert look_up(client, "k2").status_code == 200


# --- suppliers.csv ------------------------------------------------------------------------------


def test_the_real_file_has_one_refused_row() -> None:
    suppliers, refused = read_suppliers(CSV)
    assert len(suppliers) >= 60
    assert [(row.supplier_id, row.line) for row in refused] == [("S-1061", 65)]
    assert "write it as name@domain" in refused[0].reason
    by_id = {supplier.supplier_id: supplier for supplier in suppliers}
    # Every duplicate is exact once cleaned: no two rows disagree about a supplier.
    assert len(set(suppliers)) == len(by_id) < len(suppliers)
    assert by_id["S-1001"].name == "Møller & Sønner A/S"
    assert by_id["S-1001"].address == "Havnegade 12\n8000 Aarhus C"
    assert by_id["S-1002"].name == 'Bäckerei "Zur Krone" GmbH'
    assert by_id["S-1050"].name == "Crème & Brûlée Pâtisserie"  # decomposed in the file
    assert by_id["S-1010"].address == ""
    assert sum(replier.NEVER_REPLIES in supplier.email for supplier in by_id.values()) == 2


HEADER = "\ufeffsupplier_id,name,email,country,address,terms\r\n"


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("S-1,A,,DE,x,y", "email is empty"),
        ("S-1,A,a.example.com,DE,x,y", "write it as name@domain"),
        (",A,a@example.com,DE,x,y", "supplier_id is empty"),
        ("S-1,A", "email is empty"),
        ("S-1,A,a@example.com,DE,Road 1, Town,y", "put quotes round"),
    ],
)
def test_a_refused_row_says_what_to_change(tmp_path: Path, row: str, reason: str) -> None:
    path = tmp_path / "s.csv"
    good = 'S-0,"A, ""B""",a@example.com,DE,"1\r\n2",\r\n'
    path.write_bytes((HEADER + good + row + "\r\n").encode())
    suppliers, refused = read_suppliers(path)
    assert [(s.name, s.address) for s in suppliers] == [('A, "B"', "1\n2")]
    assert refused[0].line == 4
    assert reason in refused[0].reason


def test_a_file_without_the_columns_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "s.csv"
    path.write_text("id;name\n1;A\n", encoding="utf-8")
    with pytest.raises(ValueError, match="lacks the columns"):
        read_suppliers(path)
