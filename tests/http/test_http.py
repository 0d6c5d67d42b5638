"""What an HTTP exchange says about the effect, against a server of bare sockets (R69, C28)."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from actum import http
from actum.domain.effects import NotSent, OutcomeUnknown, Refused
from actum.errors import ActumError

Script = Callable[[socket.socket, "Server"], None]
Send = Callable[..., http.Answer]


class Server:
    """Runs one script for each connection and keeps what it was sent."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.listener.getsockname()[1]
        self.script: Script = reply(200, b"{}")
        self.requests: list[bytes] = []
        self.connections = 0
        self.over = threading.Event()
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/suppliers"

    def run(self) -> None:
        while True:
            connection, _ = self.listener.accept()
            with connection:
                if self.over.is_set():
                    return
                self.connections += 1
                try:
                    self.script(connection, self)
                except OSError:
                    continue  # the client went away first

    def close(self) -> None:
        self.over.set()
        socket.create_connection(("127.0.0.1", self.port)).close()  # wakes `accept`
        self.thread.join()
        self.listener.close()

    def read(self, connection: socket.socket) -> None:
        """One whole request: headers, and as much body as they announce."""
        raw = b""
        while b"\r\n\r\n" not in raw:
            raw += connection.recv(65_536) or b"\r\n\r\n"
        head, _, body = raw.partition(b"\r\n\r\n")
        while len(body) < int(header(head, "content-length") or 0):
            body += connection.recv(65_536)
        self.requests.append(head + b"\r\n\r\n" + body)


def header(raw: bytes, name: str) -> str | None:
    """The raw value of a header in a request, if it is there."""
    for line in raw.partition(b"\r\n\r\n")[0].decode().split("\r\n")[1:]:
        key, _, value = line.partition(": ")
        if key.lower() == name.lower():
            return value
    return None


def reply(status: int, body: bytes = b"", **headers: str) -> Script:
    """Read a request, then answer it."""
    lines = [f"HTTP/1.1 {status} Word", f"Content-Length: {len(body)}", "Connection: close"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return raw_reply("\r\n".join(lines).encode() + b"\r\n\r\n" + body)


def raw_reply(raw: bytes) -> Script:
    def script(connection: socket.socket, server: Server) -> None:
        server.read(connection)
        connection.sendall(raw)

    return script


def drop_unread(connection: socket.socket, server: Server) -> None:
    """Accept and close at once."""


def drop_read(connection: socket.socket, server: Server) -> None:
    """The request arrived whole; nothing comes back."""
    server.read(connection)


def hang(connection: socket.socket, server: Server) -> None:
    """Read, then say nothing until the client goes away."""
    server.read(connection)
    connection.recv(1)


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()


def _asend(*args: Any, **kwargs: Any) -> http.Answer:
    return asyncio.run(http.arequest(*args, **kwargs))


@pytest.fixture(params=[http.request, _asend], ids=["sync", "async"])
def send(request: pytest.FixtureRequest) -> Send:
    sender: Send = request.param
    return sender


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    return port


# --- nothing comes back --------------------------------------------------------------------------


def test_refused_connection_is_not_sent(send: Send) -> None:
    with pytest.raises(NotSent, match=r"POST http://127\.0\.0\.1:\d+/x was not sent \(ConnectError: "):
        send("POST", f"http://127.0.0.1:{_free_port()}/x")


@pytest.mark.parametrize(
    "url",
    [
        "http://host.invalid/",
        "foo://127.0.0.1/",
        "/no-host",
        "http://127.0.0.1:no/",
        "http://[/",
        "http://a\n/",
    ],
)
def test_unusable_url_is_not_sent(send: Send, url: str) -> None:
    with pytest.raises(NotSent):
        send("POST", url)


@pytest.mark.parametrize("script", [drop_unread, drop_read, raw_reply(b"nonsense\r\n\r\n")])
def test_lost_answer_is_unknown_and_sent_once(send: Send, server: Server, script: Script) -> None:
    server.script = script
    with pytest.raises(OutcomeUnknown, match="may have arrived"):
        send("POST", server.url, json={"id": 1}, effect_key="k")
    assert server.connections == 1


@pytest.mark.parametrize(
    "raw",
    [
        b"HTTP/1.1 200 O",
        b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhel",
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 3\r\n\r\nabc",
    ],
)
def test_half_an_answer_is_unknown(send: Send, server: Server, raw: bytes) -> None:
    server.script = raw_reply(raw)
    with pytest.raises(OutcomeUnknown):
        send("POST", server.url)


def test_a_hang_is_unknown(send: Send, server: Server) -> None:
    server.script = hang
    with pytest.raises(OutcomeUnknown, match="ReadTimeout"):
        send("POST", server.url, timeout=0.1)


NOT_SENT = [
    httpx.ConnectError,
    httpx.ConnectTimeout,
    httpx.PoolTimeout,
    httpx.ProxyError,
    httpx.UnsupportedProtocol,
    httpx.InvalidURL,
]
UNKNOWN = [
    httpx.ReadTimeout,
    httpx.WriteTimeout,
    httpx.ReadError,
    httpx.WriteError,
    httpx.CloseError,
    httpx.RemoteProtocolError,
    httpx.LocalProtocolError,
    httpx.DecodingError,
    RuntimeError,
]


@pytest.mark.parametrize(
    ("error", "kind"), [(e, NotSent) for e in NOT_SENT] + [(e, OutcomeUnknown) for e in UNKNOWN]
)
def test_every_error_is_judged(error: type[Exception], kind: type[ActumError]) -> None:
    assert type(http.judge_error(error("text"))) is kind


# --- an answer comes back ------------------------------------------------------------------------

TABLE: list[tuple[int, type[ActumError]]] = [
    *((status, Refused) for status in (300, 301, 304, 307, 308, 400, 401, 403, 404, 405, 410, 412, 422, 451)),
    (302, OutcomeUnknown),
    (303, OutcomeUnknown),
    (408, OutcomeUnknown),
    (409, OutcomeUnknown),
    (425, OutcomeUnknown),
    (429, NotSent),
    *((status, OutcomeUnknown) for status in (500, 501, 502, 503, 504, 599, 600)),
]


@pytest.mark.parametrize(("status", "kind"), TABLE)
def test_each_status(send: Send, server: Server, status: int, kind: type[ActumError]) -> None:
    server.script = reply(status, b"" if status == 304 else b"because")
    with pytest.raises(ActumError, match=f"POST {server.url} was answered with {status}: ") as caught:
        send("POST", server.url)
    assert type(caught.value) is kind


@pytest.mark.parametrize(("value", "kind"), [("true", NotSent), ("false", OutcomeUnknown)])
def test_503_may_say_that_nothing_was_applied(
    send: Send, server: Server, value: str, kind: type[ActumError]
) -> None:
    server.script = reply(503, X_Not_Applied=value)
    with pytest.raises(kind):
        send("POST", server.url)


@pytest.mark.parametrize("status", [200, 201, 202, 299])
def test_success_is_an_answer_with_evidence(send: Send, server: Server, status: int) -> None:
    body = '{"id": "é"}'.encode()
    server.script = reply(status, body, X_Request_Id="r-1", ETag='"1"', Location="/s/1?token=hidden")
    answer = send("POST", server.url + "?q=hidden")
    assert (answer.status, answer.json(), answer.text) == (status, {"id": "é"}, body.decode())
    assert answer.headers == {"etag": '"1"', "location": server.url.replace("/suppliers", "/s/1")}
    digest = hashlib.sha256(body).hexdigest()
    assert answer.evidence == {"url": server.url, "status": status, "digest": digest, "request_id": "r-1"}


@pytest.mark.parametrize("body", [b"", b"<html>", b"\xff\x00"])
def test_success_without_json_stays_an_answer(send: Send, server: Server, body: bytes) -> None:
    server.script = reply(200, body)
    answer = send("POST", server.url)
    assert "\0" not in answer.text
    with pytest.raises(OutcomeUnknown, match="not JSON"):
        answer.json()


def test_large_body_is_cut_but_answered(send: Send, server: Server) -> None:
    body = b"x" * (http.MAX_BODY * 8)
    server.script = reply(200, body)
    answer = send("POST", server.url)
    assert answer.status == 200
    assert len(answer.text) == http.CUT_TEXT
    assert answer.evidence["digest"] == hashlib.sha256(body[: http.MAX_BODY]).hexdigest()
    assert answer.evidence["cut_at"] == http.MAX_BODY
    with pytest.raises(OutcomeUnknown, match="more than"):
        answer.json()


def test_body_of_exactly_the_limit_is_whole(send: Send, server: Server) -> None:
    server.script = reply(200, b'"' + b"x" * (http.MAX_BODY - 2) + b'"')
    assert len(send("POST", server.url).json()) == http.MAX_BODY - 2


def test_compressed_in_spite_of_the_request(send: Send, server: Server) -> None:
    server.script = reply(200, gzip.compress(b"[1]"), Content_Encoding="gzip")
    assert send("GET", server.url).json() == [1]
    assert header(server.requests[0], "accept-encoding") == "identity"


# --- redirects, keys, clients --------------------------------------------------------------------


def test_redirect_is_not_followed(send: Send, server: Server) -> None:
    server.script = reply(307, Location="https://u:hidden@other.example/new?token=hidden#hidden")
    with pytest.raises(Refused, match=r"not followed; request https://other\.example/new itself") as caught:
        send("POST", server.url)
    assert "hidden" not in str(caught.value)
    assert server.connections == 1


def test_redirect_of_a_read_is_refused(send: Send, server: Server) -> None:
    server.script = reply(302)
    with pytest.raises(Refused, match="another address"):
        send("GET", server.url)


def test_redirect_to_an_unreadable_address_is_unknown(send: Send, server: Server) -> None:
    server.script = reply(307, Location="http://a:no/")
    with pytest.raises(OutcomeUnknown):
        send("POST", server.url)


def test_the_key_is_sent_as_it_is_each_time(send: Send, server: Server) -> None:
    for _ in range(2):
        send("POST", server.url, effect_key="thread/step/1", headers={"idempotency-key": "other"})
    assert [header(raw, "Idempotency-Key") for raw in server.requests] == ["thread/step/1"] * 2
    send("POST", server.url)
    assert header(server.requests[2], "Idempotency-Key") is None


@pytest.mark.parametrize(
    "options",
    [
        {"effect_key": "a\r\nb"},
        {"effect_key": "é"},
        {"headers": {"Authorization": "Bearer hidden\n"}},
        {"json": object()},
        {"follow_redirects": True},
    ],
)
def test_what_cannot_be_sent_is_not_sent(send: Send, server: Server, options: dict[str, Any]) -> None:
    with pytest.raises(NotSent) as caught:
        send("POST", server.url, **options)
    assert "hidden" not in str(caught.value)
    assert server.connections == 0


def _answers(sent: httpx.Request) -> httpx.Response:
    return httpx.Response(200, json=sent.url.path)


def test_the_clients_transport_is_used_and_left_open() -> None:
    with httpx.Client(
        transport=httpx.MockTransport(_answers), base_url="http://a", follow_redirects=True
    ) as client:
        assert http.request("GET", "/b", client=client).json() == "/b"
        assert not client.is_closed


def test_the_async_clients_transport_is_used_and_left_open() -> None:
    async def body() -> None:
        async with httpx.AsyncClient(transport=httpx.MockTransport(_answers), base_url="http://a") as client:
            assert (await http.arequest("GET", "/b", client=client)).json() == "/b"
            assert not client.is_closed

    asyncio.run(body())


def test_a_following_client_does_not_follow_here(server: Server) -> None:
    server.script = reply(308, Location=server.url)
    with httpx.Client(follow_redirects=True) as client, pytest.raises(Refused):
        http.request("POST", server.url, client=client)
    assert server.connections == 1


# --- credentials ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "script", [drop_read, reply(400, b"hidden"), reply(409), reply(429), reply(500, b"hidden"), reply(302)]
)
def test_no_message_holds_credentials(send: Send, server: Server, script: Script) -> None:
    server.script = script
    url = server.url.replace("http://", "http://me-hidden:pw-hidden@")
    with pytest.raises(ActumError) as caught:
        send("POST", f"{url}?token=hidden#hidden", headers={"X-Api-Key": "hidden"}, timeout=2)
    assert "hidden" not in repr(caught.value)
    assert caught.value.__suppress_context__ or caught.value.__context__ is None
    assert b"hidden" in server.requests[0]


@pytest.mark.parametrize("url", ["http://me:hidden@127.0.0.1:{port}/?q=hidden", "http://me:hidden@x:hidden/"])
def test_no_message_holds_credentials_when_not_sent(send: Send, url: str) -> None:
    with pytest.raises(NotSent) as caught:
        send("POST", url.format(port=_free_port()))
    assert "hidden" not in repr(caught.value)


def test_evidence_is_judged_without_a_request() -> None:
    answer = http.judge_response(httpx.Response(204))
    assert (answer.status, answer.text, answer.evidence["url"]) == (204, "", "")
