"""Every setting of the gateway, in one place: a command line option and a FENCEPOST_* variable each.

The descriptions here are the options' help and the settings table in README.md (a test compares them).
"""

import os
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, SecretStr, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

HOME_DATA = Path("~/.local/share/fencepost")
ROOT_DATA = Path("/var/lib/fencepost/data")

Positive = Annotated[int, Field(gt=0)]
Seconds = Annotated[float, Field(gt=0)]
# Milliseconds of it fit PostgreSQL's integer.
LeaseSeconds = Annotated[float, Field(gt=0, le=2_000_000)]


class Settings(BaseSettings):
    """What can be set. Times are in seconds, sizes in bytes. Bad values raise pydantic's ValidationError."""

    model_config = SettingsConfigDict(env_prefix="FENCEPOST_", extra="ignore", frozen=True)

    database_url: SecretStr | None = Field(
        default=None,
        description="PostgreSQL to protect (postgresql://user:password@host/db). Without it: an embedded one.",
    )
    data_dir: Path = Field(
        default=HOME_DATA,
        description="Where the embedded PostgreSQL keeps its data; root's is /var/lib/fencepost/data.",
    )
    demo: bool = Field(default=False, description="Add the small protected table orders, with the row order-123.")
    host: str = Field(default="127.0.0.1", description="Address to listen on.")
    port: Annotated[int, Field(ge=0, le=65535)] = Field(
        default=8080, description="Port to listen on; 0 takes a free one."
    )
    allow_remote: bool = Field(
        default=False, description="Listen on other addresses than loopback. There is no authentication yet."
    )
    workers: Positive = Field(default=1, description="Number of gateway processes.")
    schemas: str = Field(
        default="", description="Schemas to serve, separated by commas; empty serves all of the user's."
    )
    pool_size: Positive = Field(default=10, description="Connections to PostgreSQL, per worker.")
    batch_pool_size: Positive = Field(
        default=4, description="More connections, per worker, which carry batches of single-row writes."
    )
    max_waiting: Positive = Field(
        default=1000,
        description="Most requests, per worker, that wait for PostgreSQL; others are answered 503 at once.",
    )
    pool_timeout: Seconds = Field(
        default=5.0, description="How long a request waits for a connection before it is answered 503."
    )
    statement_timeout: Seconds = Field(default=30.0, description="How long one statement may run.")
    lock_timeout: Seconds = Field(
        default=10.0, description="How long a statement waits for a row that another transaction has locked."
    )
    max_body_bytes: Positive = Field(default=1_048_576, description="Largest request body.")
    max_rows: Positive = Field(default=10_000, description="Most rows that one request reads or writes.")
    sources: SecretStr | None = Field(
        default=None,
        description="Lock services whose locks and tokens can be had, as NAME=URL, separated by blanks.",
    )
    max_ttl: LeaseSeconds = Field(default=3600.0, description="Longest TTL of a lease.")
    max_wait: LeaseSeconds = Field(default=300.0, description="Longest that one request waits for a lock.")
    max_tokens: Positive = Field(default=1000, description="Most tokens that one request draws.")
    max_waiters: Positive = Field(default=1000, description="Most requests that wait for locks, per worker.")
    max_watchers: Positive = Field(default=1000, description="Most streams of elections that are open, per worker.")
    lease_history: Seconds = Field(
        default=3600.0,
        description="How long ended leases are remembered: a 409 names the holder that superseded the caller.",
    )
    idempotency_retention: Seconds = Field(
        default=86_400.0, description="How long answers given under an Idempotency-Key can be asked for again."
    )
    mark_retention: Seconds = Field(
        default=86_400.0,
        description="How long marks of keys without a row are kept, where tokens are built in; a floor replaces them.",
    )
    shutdown_timeout: Seconds = Field(
        default=30.0, description="How long requests in flight may take to finish after SIGTERM or Ctrl-C."
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="Least level that is logged."
    )
    log_format: Literal["console", "json"] = Field(
        default="console", description="Log lines for people or for machines."
    )
    access_log: bool = Field(default=False, description="Log every request, not only refusals and failures.")

    @field_validator("data_dir")
    @classmethod
    def _absolute(cls, value: Path) -> Path:
        # PostgreSQL refuses to run as root, and the user that it runs as instead cannot enter root's home.
        if value == HOME_DATA and os.geteuid() == 0:
            return ROOT_DATA
        return value.expanduser().absolute()

    @field_validator("database_url", "sources", mode="before")
    @classmethod
    def _empty_is_none(cls, value: object) -> object:
        return None if value == "" else value
