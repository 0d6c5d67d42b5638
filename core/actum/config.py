"""Settings, from the environment (`ACTUM_...`) or a `*_FILE` beside it for secrets."""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from actum.errors import BadConfiguration

SECRET_FILES = ("ACTUM_DATABASE_URL", "ACTUM_BROKER_URL")


class Settings(BaseSettings):
    """Every setting, its unit in its name. A bad one is refused at start with its name."""

    model_config = SettingsConfigDict(env_prefix="ACTUM_", extra="ignore", frozen=True)

    database_url: str = ""
    broker_url: str = ""
    workflows: str = ""
    namespace: str = Field(default="default", min_length=1, max_length=100)
    lease_seconds: float = Field(default=15.0, ge=1, le=3600)
    slice_seconds: float = Field(default=10.0, ge=0.1, le=600)
    reconcile_seconds: float = Field(default=1.0, ge=0.1, le=3600)
    claim_max: int = Field(default=50, ge=1, le=1000)
    turns: int = Field(default=8, ge=1, le=256)
    doorbells_max: int = Field(default=24, ge=1, le=1000)
    crashes_max: int = Field(default=3, ge=1, le=100)
    payload_max_bytes: int = Field(default=1_048_576, ge=1024, le=16_777_216)
    resolution_days: float = Field(default=30.0, gt=0)

    def require_database(self) -> str:
        """Return the database URL. Raises `BadConfiguration` when it is not set."""
        if not self.database_url:
            raise BadConfiguration("set ACTUM_DATABASE_URL, as postgresql://user@host/name")
        return self.database_url

    def require_broker(self) -> str:
        """Return the broker URL. Raises `BadConfiguration` when it is not set."""
        if not self.broker_url:
            raise BadConfiguration("set ACTUM_BROKER_URL, as redis://host:6379/0")
        return self.broker_url


@lru_cache(maxsize=1)
def settings() -> Settings:
    """Return the process's settings. Raises `BadConfiguration` naming each bad setting."""
    try:
        return Settings(**_from_files())
    except ValidationError as error:
        raise BadConfiguration(_readable(error)) from None


def _from_files() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in SECRET_FILES:
        path = os.environ.get(f"{name}_FILE")
        if path:
            found[name.removeprefix("ACTUM_").lower()] = Path(path).read_text().strip()
    return found


def _readable(error: ValidationError) -> str:
    lines = (f"ACTUM_{str(e['loc'][0]).upper()}: {e['msg']}" for e in error.errors())
    return "; ".join(lines)
