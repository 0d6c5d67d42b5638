"""HTTP requests whose outcome is one of four words: an answer, not sent, refused, or unknown.

A request is sent once: no redirect is followed and no transport tries again, because whether a
second try is safe is the engine's decision (RFC 9110 9.2.2, R69, C28). Messages name the method, the
URL without userinfo, query and fragment, and what went wrong; never a header that was sent, and
never the body of the answer, as a server may repeat there what it was sent.
"""

from __future__ import annotations

import hashlib
import re
import ssl
from contextlib import AbstractAsyncContextManager, AbstractContextManager, closing, nullcontext
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final

import httpx

from actum.codec import plain, storable_text
from actum.domain.effects import NotSent, OutcomeUnknown, Refused
from actum.errors import ActumError, BadValue

MAX_BODY: Final = 1_048_576
CUT_TEXT: Final = 8_000

_SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})  # RFC 9110 9.2.1
_SHOWN_HEADERS: Final = ("content-type", "date", "etag", "retry-after")
_REQUEST_IDS: Final = ("x-request-id", "request-id", "x-correlation-id", "x-amzn-requestid")
_FRAMING: Final = frozenset({"content-encoding", "content-length", "transfer-encoding"})
_BAD_HEADER: Final = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]|^[ \t]|[ \t]$")

_NEVER_SENT: Final = (
    httpx.ConnectError,  # also name resolution and the TLS handshake
    httpx.ConnectTimeout,
    httpx.PoolTimeout,
    httpx.ProxyError,  # the proxy opened no tunnel
    httpx.UnsupportedProtocol,
    httpx.InvalidURL,
)


@dataclass(frozen=True, slots=True)
class Answer:
    """A 2xx answer. `evidence` holds what a step or reconciler should keep as proof."""

    status: int
    text: str
    headers: dict[str, str] = field(default_factory=dict)
    evidence: dict[str, Any] = field(default_factory=dict)

    def json(self) -> Any:
        """The body as JSON; `OutcomeUnknown` if it isn't, as a 2xx alone doesn't say what was done."""
        if "cut_at" in self.evidence:
            raise OutcomeUnknown(f"answered {self.status} with more than {MAX_BODY:,} bytes")
        try:
            return plain(self.text)
        except BadValue:
            raise OutcomeUnknown(f"answered {self.status}, but the body is not JSON") from None


def request(
    method: str,
    url: str,
    *,
    effect_key: str = "",
    timeout: float = 20,
    client: httpx.Client | None = None,
    **kwargs: Any,
) -> Answer:
    """Send once and judge: an `Answer` for 2xx, else `NotSent`, `Refused` or `OutcomeUnknown`.

    `effect_key` is sent as the value of `Idempotency-Key` as it is, without the quotes of
    draft-ietf-httpapi-idempotency-key-header: providers compare the raw value. `timeout` is for each
    of connecting, sending and each read. `kwargs` are those of `httpx.Client.build_request`, and `auth`.
    """
    auth = kwargs.pop("auth", httpx.USE_CLIENT_DEFAULT)
    with _session(client) as session:
        prepared = _prepare(session, method, url, effect_key, timeout, kwargs)
        try:
            response = session.send(prepared, auth=auth, stream=True, follow_redirects=False)
            with closing(response):
                body = _collect(response)
        except httpx.HTTPError as error:
            raise judge_error(error) from None
    return judge_response(_read(response, body))


async def arequest(
    method: str,
    url: str,
    *,
    effect_key: str = "",
    timeout: float = 20,
    client: httpx.AsyncClient | None = None,
    **kwargs: Any,
) -> Answer:
    """`request` for coroutines; the same judgement."""
    auth = kwargs.pop("auth", httpx.USE_CLIENT_DEFAULT)
    async with _asession(client) as session:
        prepared = _prepare(session, method, url, effect_key, timeout, kwargs)
        try:
            response = await session.send(prepared, auth=auth, stream=True, follow_redirects=False)
            try:
                body = await _acollect(response)
            finally:
                await response.aclose()
        except httpx.HTTPError as error:
            raise judge_error(error) from None
    return judge_response(_read(response, body))


# --- the judgement: pure -------------------------------------------------------------------------


def judge_response(response: httpx.Response) -> Answer:
    """The answer of a response that was read; raises what any status other than 2xx means."""
    if 200 <= response.status_code < 300:
        return _answer(response)
    kind, why = _verdict(response)
    raise kind(f"{_name(_request_of(response))} was answered with {response.status_code}: {why}")


def judge_error(error: Exception) -> ActumError:
    """`NotSent` for what happens before the first byte is sent, `OutcomeUnknown` for all else."""
    where, kind = _name(_request_of(error)), type(error).__name__
    if not isinstance(error, _NEVER_SENT):
        return OutcomeUnknown(f"{where} may have arrived, but no whole answer came back ({kind})")
    # Only this one's text is from the system alone; others quote the URL or a header.
    cause = f"{kind}: {error}" if isinstance(error, httpx.ConnectError) else kind
    return NotSent(storable_text(f"{where} was not sent ({cause})", 1_000))


_Verdict = tuple[type[ActumError], str]

_BY_STATUS: Final[dict[int, _Verdict]] = {
    408: (OutcomeUnknown, "the server gave up waiting for the request; it may have used a part"),
    409: (OutcomeUnknown, "a request with this key may be still running"),
    422: (Refused, "the server does not accept the content, or the key was used for other content"),
    425: (OutcomeUnknown, "too early; a first copy of the request may be still running"),
    429: (NotSent, "the server is busy and did not process it; try again later"),
}


def _verdict(response: httpx.Response) -> _Verdict:
    status = response.status_code
    if status in _BY_STATUS:
        return _BY_STATUS[status]
    if 300 <= status < 400:
        return _redirected(response)
    if 400 <= status < 500:
        return Refused, "the server did not do it"
    if status == 503 and response.headers.get("X-Not-Applied", "").strip().lower() == "true":
        return NotSent, "the server says that nothing was applied; try again later"
    return OutcomeUnknown, "the server failed, perhaps after doing it"


def _redirected(response: httpx.Response) -> _Verdict:
    """302 and 303 also are how servers say "done, the result is there" to a POST (RFC 9110 15.4.4)."""
    target = _location(response) or "another address"
    sent = _request_of(response)
    if response.status_code in (302, 303) and not (sent and sent.method in _SAFE_METHODS):
        return OutcomeUnknown, f"it may be done; redirects are not followed, so look at {target}"
    return Refused, f"redirects are not followed; request {target} itself, if you trust it"


def _answer(response: httpx.Response) -> Answer:
    cut = len(response.content) > MAX_BODY
    text = response.text.replace("\0", "\ufffd")  # Postgres can't store NUL
    headers = {name: _header(response, name) for name in _SHOWN_HEADERS if name in response.headers}
    if location := _location(response):
        headers["location"] = location
    return Answer(response.status_code, text[:CUT_TEXT] if cut else text, headers, _evidence(response, cut))


def _evidence(response: httpx.Response, cut: bool) -> dict[str, Any]:
    """From where, what status, the body's SHA-256 (of its first `cut_at` bytes), the server's id."""
    sent = _request_of(response)
    evidence: dict[str, Any] = {
        "url": _shown_url(sent.url) if sent else "",
        "status": response.status_code,
        "digest": hashlib.sha256(response.content[:MAX_BODY]).hexdigest(),
    }
    request_id = next((name for name in _REQUEST_IDS if name in response.headers), None)
    if request_id:
        evidence["request_id"] = _header(response, request_id)
    if cut:
        evidence["cut_at"] = MAX_BODY
    return evidence


# --- what may be shown ---------------------------------------------------------------------------


def _request_of(source: Any) -> httpx.Request | None:
    """The request that a response or an error belongs to, if httpx knows it."""
    try:
        sent = source.request
    except (AttributeError, RuntimeError):
        return None
    return sent if isinstance(sent, httpx.Request) else None


def _name(sent: httpx.Request | None) -> str:
    return f"{sent.method} {_shown_url(sent.url)}" if sent else "the request"


def _shown_url(url: httpx.URL) -> str:
    return storable_text(str(url.copy_with(userinfo=b"", query=None, fragment=None)), 500)


def _location(response: httpx.Response) -> str:
    """Where the answer points, absolute and without credentials; empty if nowhere readable."""
    sent, target = _request_of(response), response.headers.get("location")
    if not sent or not target:
        return ""
    try:
        return _shown_url(sent.url.join(target))
    except (httpx.InvalidURL, ValueError):
        return ""


def _header(response: httpx.Response, name: str) -> str:
    return storable_text(response.headers[name], 200)


# --- sending -------------------------------------------------------------------------------------


@cache
def _tls() -> ssl.SSLContext:
    """Reading the certificates costs more than a request; unlike a connection it survives a fork."""
    return httpx.create_ssl_context()


def _session(client: httpx.Client | None) -> AbstractContextManager[httpx.Client]:
    """The caller's client, left open; else a new one, whose transport has `retries=0` by default.

    A transport given here would switch off the proxies of the environment. Retries of a caller's
    `HTTPTransport` are of connecting only, so they never send twice.
    """
    return nullcontext(client) if client else httpx.Client(verify=_tls())


def _asession(client: httpx.AsyncClient | None) -> AbstractAsyncContextManager[httpx.AsyncClient]:
    return nullcontext(client) if client else httpx.AsyncClient(verify=_tls())


def _prepare(
    session: httpx.Client | httpx.AsyncClient,
    method: str,
    url: str,
    effect_key: str,
    timeout: float,
    options: dict[str, Any],
) -> httpx.Request:
    """The request to send; `NotSent` if there can't be one, without repeating what was given."""
    try:
        prepared = session.build_request(method, url, timeout=timeout, **options)
        prepared.headers["Accept-Encoding"] = "identity"  # the digest is of the bytes on the wire
        if effect_key:
            prepared.headers["Idempotency-Key"] = effect_key.encode("ascii").decode()
    except (httpx.InvalidURL, httpx.CookieConflict, ValueError, TypeError) as error:
        why = f"url, headers or content can't be sent as given ({type(error).__name__})"
        raise NotSent(f"the request was not sent: {why}") from None
    _check_headers(prepared)
    return prepared


def _check_headers(prepared: httpx.Request) -> None:
    """Refuse what h11 would refuse: its error looks as one that comes in the middle of sending."""
    for name, value in prepared.headers.raw:
        if _BAD_HEADER.search(value):
            shown = storable_text(name.decode("ascii", "replace"), 100)
            why = f"header {shown} has a line break, control character or space at an end; strip it"
            raise NotSent(f"{_name(prepared)} was not sent: {why}")


def _collect(response: httpx.Response) -> bytes:
    """The body, or a little more than `MAX_BODY` bytes of it."""
    body = bytearray()
    for chunk in response.iter_bytes():
        body += chunk
        if len(body) > MAX_BODY:
            break
    return bytes(body)


async def _acollect(response: httpx.Response) -> bytes:
    body = bytearray()
    async for chunk in response.aiter_bytes():
        body += chunk
        if len(body) > MAX_BODY:
            break
    return bytes(body)


def _read(response: httpx.Response, body: bytes) -> httpx.Response:
    """`response` with the body that was collected, as `judge_response` wants it."""
    headers = [(name, value) for name, value in response.headers.multi_items() if name not in _FRAMING]
    return httpx.Response(response.status_code, headers=headers, content=body, request=response.request)
