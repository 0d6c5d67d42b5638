"""The compose file: valid, hardened, and every command line in it is one that its program takes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

ROOT = Path(__file__).resolve().parents[2]
COMPOSE = ROOT / "docker-compose.yml"
SERVICES = YAML(typ="safe").load(COMPOSE.read_text())["services"]
OURS = ("migrate", "worker", "reconcile", "beat", "flower")


def _run(*command: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=100)


def _tool(name: str) -> str:
    return str(Path(sys.executable).parent / name)


def _as_given(service: str) -> list[str]:
    return [str(word) for word in SERVICES[service]["command"]]


def test_the_schema_accepts_it() -> None:
    done = _run(_tool("check-jsonschema"), "--builtin-schema", "vendor.compose-spec", str(COMPOSE))
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_security_linter_accepts_it() -> None:
    done = _run(_tool("compose-lint"), str(COMPOSE))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("service", SERVICES)
def test_each_service_is_hardened(service: str) -> None:
    facts: dict[str, Any] = SERVICES[service]
    assert facts["read_only"] is True
    assert facts["cap_drop"] == ["ALL"]
    assert facts["security_opt"] == ["no-new-privileges:true"]
    assert facts["init"] is True
    assert facts["user"] not in ("root", "0")
    assert facts["mem_limit"]
    assert facts["cpus"]
    assert any(t.startswith("/tmp") for t in facts["tmpfs"])
    assert re.fullmatch(r"[\w./-]+:[\w.-]*\d+\.\d+[\w.-]*", facts["image"]), "pin the image"
    assert "healthcheck" in facts


def test_only_flower_is_reached_from_outside_and_only_on_loopback() -> None:
    ports = {name: facts["ports"] for name, facts in SERVICES.items() if "ports" in facts}
    assert ports == {"flower": ["127.0.0.1:5555:5555"]}


def test_no_secret_is_in_the_file_and_each_is_explained() -> None:
    page = (ROOT / "deploy/secrets/README.md").read_text()
    declared = YAML(typ="safe").load(COMPOSE.read_text())["secrets"]
    for name, facts in declared.items():
        assert facts["file"] == f"./deploy/secrets/{name}"
        assert f"| `{name}` |" in page
    used = {secret for facts in SERVICES.values() for secret in facts.get("secrets", [])}
    assert used == set(declared)
    assert "PASSWORD: " not in COMPOSE.read_text()


@pytest.mark.parametrize("service", ["worker", "reconcile", "beat"])
def test_celery_takes_the_command_line(service: str, tmp_path: Path) -> None:
    """`--help` is answered only after every other option was parsed; a wrong one is an error."""
    program, *words = _as_given(service)
    broker = tmp_path / "broker_url"
    broker.write_text("redis://127.0.0.1:1/0\n")
    env = _without_settings() | {"ACTUM_BROKER_URL_FILE": str(broker)}
    done = _run(_tool(program), *words, "--help", env=env)
    assert done.returncode == 0, done.stderr
    assert f"Usage: celery {words[2]}" in done.stdout
    wrong = _run(_tool(program), *words, "--no-such-option", "--help", env=env)
    assert wrong.returncode != 0


def _without_settings() -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if not k.startswith(("ACTUM_", "FLOWER_"))}


def _flower_options(conf: Path, secret: Path) -> subprocess.CompletedProcess[str]:
    """Let Flower's own parser read the command line and the settings file, as it does at its start."""
    words = [w for w in _as_given("flower")[4:] if not w.startswith("--conf")]
    code = (
        "import sys, json; from flower.command import apply_options, is_flower_option; "
        "from tornado.options import options; "
        "assert all(map(is_flower_option, sys.argv[1:])), sys.argv; "
        "apply_options('flower', sys.argv[1:]); "
        "print(json.dumps([options.read_only, options.basic_auth, options.address, options.port, "
        "options.format_task.__name__, options.persistent]))"
    )
    env = _without_settings() | {"FLOWER_BASIC_AUTH_FILE": str(secret)}
    return _run(sys.executable, "-c", code, f"--conf={conf}", *words, env=env)


def test_flower_takes_its_options_and_settings(tmp_path: Path) -> None:
    secret = tmp_path / "flower_basic_auth"
    secret.write_text("actum:a-long-password\n")
    assert "--conf=/app/deploy/flowerconfig.py" in _as_given("flower")
    done = _flower_options(ROOT / "deploy/flowerconfig.py", secret)
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout)
    assert shown == [True, ["actum:a-long-password"], "0.0.0.0", 5555, "format_task", False]  # noqa: S104


def test_flower_does_not_start_without_a_login(tmp_path: Path) -> None:
    secret = tmp_path / "flower_basic_auth"
    secret.write_text("\n")
    done = _flower_options(ROOT / "deploy/flowerconfig.py", secret)
    assert done.returncode != 0
    assert "write user:password" in done.stderr


def test_flower_shows_no_arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from celery.events.state import Task

    secret = tmp_path / "flower_basic_auth"
    secret.write_text("actum:a-long-password")
    monkeypatch.setenv("FLOWER_BASIC_AUTH_FILE", str(secret))
    settings: dict[str, Any] = {}
    exec((ROOT / "deploy/flowerconfig.py").read_text(), settings)  # noqa: S102 - as Flower reads it
    thread = "01890000-0000-7000-8000-000000000000"
    told = Task(uuid="u", args=f"thread={thread} card=4111", kwargs="{'password': 'x'}", result="r" * 99)
    shown = settings["format_task"](told)
    assert (shown.args, shown.kwargs, shown.result) == (f"thread={thread}", "", "r" * 40)


def test_the_migration_is_a_command_of_ours() -> None:
    assert _as_given("migrate") == ["python", "-m", "actum", "migrate"]
    pytest.importorskip("actum.cli")
    done = _run(sys.executable, "-m", "actum", "migrate", "--help")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("service", [s for s in OURS if s != "migrate"])
def test_health_checks_are_programs(service: str) -> None:
    test = SERVICES[service]["healthcheck"]["test"]
    assert test[:3] == ["CMD", "python", "-c"]
    compile(test[3], service, "exec")


@pytest.mark.parametrize("service", ["worker", "reconcile", "beat"])
def test_health_checks_run(service: str, url: str) -> None:
    """Against a real database: unhealthy while nobody beats, healthy once somebody does."""
    import socket

    import psycopg

    check = [sys.executable, "-c", SERVICES[service]["healthcheck"]["test"][3]]
    assert _run(*check).returncode == 1
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("insert into actum.duties values ('ring', actum.now(), '{}')")
        connection.execute(
            "insert into actum.workers values (gen_random_uuid(), %s, 1, '{default}', '{}', "
            "actum.now(), actum.now(), actum.now() + interval '1 minute')",
            (socket.gethostname(),),
        )
    done = _run(*check)
    assert done.returncode == 0, done.stderr


def test_the_image_installs_only_what_is_locked() -> None:
    lines = (ROOT / "deploy/Dockerfile").read_text().splitlines()
    assert sum(line.startswith("FROM python:3.13-slim") for line in lines) == 2
    fetching = [line for line in lines if "pip install" in line and "/wheels/" not in line]
    assert fetching
    assert all("--require-hashes" in line for line in fetching)
    assert [line for line in lines if line.startswith("USER")] == ["USER 10001:10001"]
