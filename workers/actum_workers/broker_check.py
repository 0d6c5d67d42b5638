"""Examining the broker: does it answer, and will it keep what it takes?

Each check is bounded: all of them together stay within ten seconds. What is wrong is one line that names
the setting to change.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from actum.doctor import Finding

SECONDS = 2.0
"""For each single answer; the longest path through the checks waits for four."""
SETTING = "ACTUM_BROKER_URL"


def examine_broker(url: str) -> list[Finding]:
    """Examine the Redis or Valkey at `url`. Never raises; takes at most ten seconds."""
    wrong = _reading(url)
    if wrong:
        return [wrong]
    client = _client(url)
    try:
        return list(_answers(client, url))
    except redis.AuthenticationError as error:
        return [_bad(str(error), f"correct the user and password in {SETTING}")]
    except (redis.RedisError, OSError) as error:
        return [_unreachable(url, error)]
    finally:
        client.close()


def _bad(detail: str, advice: str) -> Finding:
    return Finding("broker", False, detail, advice)


def _reading(url: str) -> Finding | None:
    """What is wrong with the URL itself, before anything is connected."""
    parts = urlsplit(url)
    if parts.scheme not in ("redis", "rediss"):
        return _bad(f"scheme {parts.scheme!r}", f"write {SETTING} as redis://host:6379/0 or rediss://…")
    if parts.scheme == "rediss" and "ssl_cert_reqs" not in parse_qs(parts.query):
        return _bad("rediss:// without ssl_cert_reqs", f"append ?ssl_cert_reqs=required to {SETTING}")
    if not parts.path.strip("/").isdigit() and parts.path.strip("/"):
        return _bad(f"database {parts.path!r}", f"end {SETTING} with a database number, as /0")
    try:
        _ = parts.port
    except ValueError as error:
        return _bad(str(error), f"correct the port in {SETTING}")
    return None


def _client(url: str) -> redis.Redis:
    """A client on database 0 that gives up fast: a cluster knows no other, and its check comes first."""
    parts = urlsplit(url)
    return redis.Redis.from_url(
        parts._replace(path="/0").geturl(),
        socket_timeout=SECONDS,
        socket_connect_timeout=SECONDS,
        retry=Retry(NoBackoff(), 0),
    )


def _answers(client: redis.Redis, url: str) -> Iterator[Finding]:
    info: dict[str, Any] = client.info()
    version = info.get("valkey_version") or info.get("redis_version")
    yield Finding("broker", True, f"answers, version {version}")
    if info.get("cluster_enabled"):
        yield _bad(
            "is a Redis Cluster", f"point {SETTING} at a standalone server; Celery can't use a cluster"
        )
        return
    yield _policy(info)
    yield _index(client, int(urlsplit(url).path.strip("/") or 0))


def _policy(info: dict[str, Any]) -> Finding:
    """A broker that evicts loses doorbells and Celery's own bookkeeping without a word."""
    policy = info.get("maxmemory_policy", "unknown")
    advice = "" if policy == "noeviction" else "set maxmemory-policy noeviction on the broker"
    return Finding("broker eviction", not advice, str(policy), advice)


def _index(client: redis.Redis, index: int) -> Finding:
    try:
        client.select(index)
    except redis.ResponseError as error:
        advice = f"end {SETTING} with a database that exists, as /0, or raise the broker's `databases`"
        return Finding("broker database", False, f"{index}: {error}", advice)
    return Finding("broker database", True, str(index))


def _unreachable(url: str, error: Exception) -> Finding:
    detail = f"{type(error).__name__}: {error}".splitlines()[0][:200]
    if urlsplit(url).scheme == "redis" and _speaks_tls(url):
        return _bad("the port speaks TLS", f"write {SETTING} as rediss://…?ssl_cert_reqs=required")
    if isinstance(error, redis.ResponseError):
        return _bad(detail, f"give the user in {SETTING} the right to run INFO and SELECT")
    return _bad(detail, f"check host and port in {SETTING}, and that the broker runs")


def _speaks_tls(url: str) -> bool:
    """Whether a TLS server answers there; its certificate is not our question here."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    parts = urlsplit(url)
    try:
        with socket.create_connection((parts.hostname or "localhost", parts.port or 6379), SECONDS) as plain:
            context.wrap_socket(plain).close()
    except ssl.SSLError as error:
        # it may want our certificate or another version: an alert is TLS too, anything else is not
        return "ALERT" in (error.reason or "")
    except OSError:
        return False
    return True
