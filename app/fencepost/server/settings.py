"""Every setting of the gateway, in one place: a command line option and a FENCEPOST_* variable each.

The descriptions here are the options' help and the table of docs/settings.md (a test compares them).
"""

import os
import re
from pathlib import Path
from typing import Annotated, Final, Literal
from urllib.parse import parse_qs

from pydantic import Field, SecretStr, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError
from pydantic_settings import BaseSettings, SettingsConfigDict

from fencepost.server.setting_files import SettingFileError, read_setting_file

HOME_DATA = Path("~/.local/share/fencepost")
ROOT_DATA = Path("/var/lib/fencepost/data")

FILES: Final = ("database_url_file", "jwt_secret_file", "sources_file", "queues_file", "seal_keys_file")
"""Settings that name a file, which must have content."""
DECIDING: Final = (
    *("database_url", "data_dir", "jwt_secret", "jwt_jwks", "jwt_aud", "jwt_issuer"),
    *("schemas", "tables", "roles", "sources", "queues", *FILES),
)
"""Settings that decide who may call, what is served, and where data lies. An empty variable counts as not set, and
who starts a process says so (cli/shared.py).
"""

Positive = Annotated[int, Field(gt=0)]
Seconds = Annotated[float, Field(gt=0)]
# Milliseconds of it fit PostgreSQL's integer.
LeaseSeconds = Annotated[float, Field(gt=0, le=2_000_000)]


class Settings(BaseSettings):
    """What can be set. Times are in seconds, sizes in bytes. Bad values raise pydantic's ValidationError."""

    model_config = SettingsConfigDict(env_prefix="FENCEPOST_", extra="ignore", frozen=True)

    database_url_file: Path | None = Field(
        default=None, description="File with the database URL: an option shows it to all users of the machine."
    )
    database_url: SecretStr | None = Field(
        default=None,
        validate_default=True,
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
    admin_host: str = Field(default="127.0.0.1", description="Address that the admin port listens on.")
    admin_port: Annotated[int, Field(ge=0, le=65535)] | None = Field(
        default=None, description="Port for /metrics and the details of /readyz, which the main port has not then."
    )
    allow_remote: bool = Field(
        default=False, description="Listen on other addresses than loopback; needs authentication."
    )
    allowed_hosts: str = Field(
        default="",
        description="Names (without ports) by which the gateway is reached, beside those of loopback; * allows all.",
    )
    cors_origins: str = Field(
        default="",
        description="Sites whose pages may use the gateway (https://shop.example), separated by commas; none does.",
    )
    api_keys: bool = Field(
        default=False, description="Serve requests with an API key (fencepost key), and refuse those without a caller."
    )
    max_head_bytes: Annotated[int, Field(ge=4096)] = Field(
        default=65_536, description="Most bytes of a request's path, query and headers together."
    )
    keep_alive: Seconds = Field(
        default=75.0,
        description="Time for which a connection stays open between requests: longer than a proxy in front keeps it.",
    )
    head_timeout: Seconds = Field(default=10.0, description="Time in which a request's head is to arrive.")
    body_timeout: Seconds = Field(
        default=60.0, description="Time in which a request's body is to arrive, and its client to take the answer."
    )
    least_rate: Positive = Field(
        default=1024, description="Bytes a second of a body, and of an answer that is taken, at least, on average."
    )
    max_connections: Positive = Field(default=4096, description="Most connections of clients, per worker.")
    max_connections_per_address: Positive = Field(
        default=1024, description="Most connections of one address, per worker."
    )
    rate_limit: str = Field(
        default="", description="Most requests of one caller, per worker, as 100/second or 5 per 10 minutes."
    )
    failed_rate_limit: str = Field(
        default="600/minute",
        description="Most requests of one address, per worker, whose token or key is not accepted.",
    )
    workers: Positive = Field(default=1, description="Number of gateway processes.")
    jwt_secret_file: Path | None = Field(default=None, description="File with the JWT secret.")
    jwt_secret: SecretStr | None = Field(
        default=None,
        validate_default=True,
        description="What verifies callers' JWTs: a secret of 32 bytes or more, a JWK, JWKS or public key, or @FILE.",
    )
    jwt_jwks: str = Field(
        default="",
        description="Or where a JWKS with public keys is, looked at every five minutes: an https URL, or a file.",
    )
    jwt_aud: str = Field(default="", description="The audience (aud) that JWTs must be for.")
    jwt_issuer: str = Field(default="", description="The issuer (iss) that JWTs must be from.")
    jwt_role_claim_key: str = Field(
        default=".role", description="Which claim names the caller's role: .role, .realm.roles[0]; empty: none does."
    )
    anon_role: str = Field(
        default="", description="Role of requests without a credential; without it they are refused."
    )
    schemas: str = Field(
        default="", description="Schemas to serve, separated by commas; empty serves all of the user's."
    )
    tables: str = Field(
        default="",
        description="Tables to serve, separated by commas, as orders or sales.orders; empty serves all of the schemas.",
    )
    serve_unprotected: bool = Field(
        default=False, description="Serve tables and views that are not protected, too: they can be read."
    )
    roles: str = Field(
        default="",
        description="Roles of the database as which callers may act, separated by commas; empty: those that the login"
        " may take.",
    )
    pool_size: Positive = Field(default=10, description="Connections to PostgreSQL, per worker.")
    batch_pool_size: Positive = Field(
        default=4, description="More connections, per worker, which carry batches of single-row writes."
    )
    lease_pool_size: int = Field(
        default=7,
        ge=2,
        description="More connections, per worker, for leases: all but two, at least one, take locks; the others are"
        " for renewals, mints, releases and heartbeats.",
    )
    max_waiting: Positive = Field(
        default=1000,
        description="Most requests, per worker, that wait for PostgreSQL; others are answered 503 at once.",
    )
    batch_lines: Positive = Field(
        default=256,
        description="Most lines that a batch (POST /v1/batch) has in hand. A worker decides those of four batches at"
        " the same time; the lines of others wait.",
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
    max_answer_bytes: Positive = Field(
        default=67_108_864,
        description="Largest answer to a read of rows, or to a write that answers rows: a larger one is refused.",
    )
    sources_file: Path | None = Field(default=None, description="File with the lock services.")
    sources: SecretStr | None = Field(
        default=None,
        validate_default=True,
        description="Lock services whose locks and tokens can be had, as NAME=URL, separated by blanks.",
    )
    queues_file: Path | None = Field(default=None, description="File with the logs of writes.")
    queues: SecretStr | None = Field(
        default=None,
        validate_default=True,
        description="Logs of writes beside the one in PostgreSQL: kafka://… and redis://… URLs, separated by blanks.",
    )
    default_queue: str = Field(
        default="postgres:default",
        description="The queue of writes with Prefer: respond-async to tables that have none of their own.",
    )
    consume_here: bool = Field(
        default=True, description="Apply what the queue postgres:default holds, in each gateway process."
    )
    max_letter_bytes: Positive = Field(
        default=1_073_741_824,
        description="Most bytes of dead letters of a queue; then no more writes are queued, and of one caller after a"
        " quarter.",
    )
    stop_resources: bool = Field(
        default=False, description="After a dead letter, later queued writes of its resource become dead letters, too."
    )
    max_ttl: LeaseSeconds = Field(default=3600.0, description="Longest TTL of a lease.")
    max_wait: LeaseSeconds = Field(default=300.0, description="Longest that one request waits for a lock.")
    max_tokens: Positive = Field(default=1000, description="Most tokens that one request draws.")
    max_waiters: Positive = Field(default=1000, description="Most requests that wait for locks, per worker.")
    max_waiters_per_caller: Positive = Field(default=250, description="Most of these of one caller.")
    max_watchers: Positive = Field(
        default=1000,
        description="Most streams of elections, and most requests that wait for queued writes, per worker.",
    )
    max_watchers_per_caller: Positive = Field(default=250, description="Most of either of one caller.")
    lease_history: Seconds = Field(
        default=3600.0,
        description="How long, at least, ended leases are remembered: a 409 names the holder that superseded the"
        " caller.",
    )
    seal_keys_file: Path | None = Field(
        default=None,
        description="File with the keys that seal tokens and sign whose queued writes are, one a line as ID:BASE64; the"
        " first one seals.",
    )
    seal_lifetime: Annotated[float, Field(ge=60)] = Field(
        default=86_400.0,
        description="How long a seal is good, so that old keys can be taken away. It does not decide who may write.",
    )
    max_kept_bytes: Positive = Field(
        default=1_073_741_824,
        description="Most bytes of answers, per worker, that are kept in FENCEPOST_IDEMPOTENCY_RETENTION under"
        " Idempotency-Keys and for queued writes; of one caller a quarter. Small answers do not count.",
    )
    idempotency_retention: Seconds = Field(
        default=86_400.0,
        description="How long, at least, answers given under an Idempotency-Key can be asked for again.",
    )
    mark_retention: Seconds = Field(
        default=86_400.0,
        description="How long, at least, marks of keys without a row are kept, where tokens are built in; a floor"
        " replaces them.",
    )
    start_timeout: Annotated[float, Field(ge=0)] = Field(
        default=30.0,
        description="How long the gateway, while it starts, goes on trying to reach PostgreSQL; 0: it tries once.",
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
    try_writes: bool = Field(
        default=False,
        description="Let /docs send writes to all tables, not only to the demo's. Its forms have examples.",
    )
    access_log: bool = Field(default=False, description="Log every request, not only refusals and failures.")

    @property
    def pool_sizes(self) -> tuple[int, int, int]:
        """How many connections to PostgreSQL a worker may open, for each of its pools."""
        return self.pool_size, self.batch_pool_size, self.lease_pool_size

    @field_validator("data_dir", mode="before")
    @classmethod
    def _default_if_empty(cls, value: object) -> object:
        return HOME_DATA if value == "" else value

    @field_validator("data_dir")
    @classmethod
    def _absolute(cls, value: Path) -> Path:
        # PostgreSQL refuses to run as root, and the user that it runs as instead cannot enter root's home.
        if value == HOME_DATA and os.geteuid() == 0:
            return ROOT_DATA
        return value.expanduser().absolute()

    @field_validator("admin_port", *FILES, mode="before")
    @classmethod
    def _none_if_empty(cls, value: object) -> object:
        return None if value == "" else value

    @field_validator("seal_keys_file")
    @classmethod
    def _readable(cls, value: Path | None) -> Path | None:
        """Refuse a file that cannot be read. It is read again whenever it changes (gateway/gateway.py)."""
        if value is not None:
            _content(value, "seal_keys_file")
        return value

    @field_validator("database_url", "sources", "queues", "jwt_secret", mode="before")
    @classmethod
    def _from_its_file(cls, value: object, info: ValidationInfo) -> object:
        """Take what the file has, whose setting stands before this one; of the JWT secret also @FILE, as PostgREST
        does. Processes of ours get both.
        """
        given = value.get_secret_value() if isinstance(value, SecretStr) else value
        name = f"{info.field_name}_file"
        if (file := info.data.get(name)) is not None:
            content = _content(file, name)
            if given not in (None, "", content):
                raise ValueError("it is given, and in a file too: give one of them")
            return content
        if info.field_name == "jwt_secret" and isinstance(given, str) and given.startswith("@"):
            try:
                return read_setting_file(Path(given[1:]))
            except SettingFileError as error:
                raise ValueError(f"{given}: {error}") from None
        return None if given == "" else value

    @field_validator("database_url")
    @classmethod
    def _one_url(cls, value: SecretStr | None) -> SecretStr | None:
        """Refuse what clients of PostgreSQL read in different ways: the one asks another server, the other shows it."""
        if value is not None and (fault := database_url_fault(value.get_secret_value())) is not None:
            raise ValueError(fault)
        return value

    @field_validator(*DECIDING, mode="before")
    @classmethod
    def _not_blank(cls, value: object) -> object:
        if isinstance(value, str) and value and not value.replace(",", " ").strip():
            raise ValueError("it has nothing but blanks and commas")
        return value


_BLANK: Final = re.compile(r"[\s\x00-\x1f\x7f]")
_HOST: Final = re.compile(r"(?:\[[0-9A-Fa-f:.]+(?:%25\w+)?\]|[^\[\]:@]+)(?::([0-9]{1,5}))?")
_LAST_PORT: Final = 65_535
_NO_ESCAPE: Final = re.compile("%(?![0-9A-Fa-f]{2})")
_VALUES: Final = {
    "sslmode": ("disable", "allow", "prefer", "require", "verify-ca", "verify-full"),
    "target_session_attrs": ("any", "primary", "standby", "prefer-standby", "read-write", "read-only"),
}
"""Which values parameters of a database URL may have."""
_ALSO: Final = ("verify_ca", "verify_full")  # asyncpg takes these too
_FILES: Final = ("sslrootcert", "sslcert", "sslkey", "sslcrl")
_OF_LIBPQ: Final = frozenset(
    {
        "channel_binding", "connect_timeout", "fallback_application_name", "gssencmode", "hostaddr", "keepalives",
        "keepalives_count", "keepalives_idle", "keepalives_interval", "load_balance_hosts", "require_auth",
        "requirepeer", "sslcompression", "sslsni", "tcp_user_timeout",
    }
)  # fmt: skip
"""Parameters that asyncpg would send to PostgreSQL as settings, which it refuses."""


def database_url_fault(url: str) -> str | None:
    """Say what is wrong with the form of a database URL, without anything of it; None: nothing."""
    encoded = "a special character in user or password is percent-encoded: a blank is %20, / %2F, ? %3F, @ %40, # %23"
    scheme, _, rest = url.partition("://")
    authority = re.split("[/?]", rest, maxsplit=1)[0]
    user, _, hosts = authority.rpartition("@")
    query = rest.partition("?")[2]
    if _BLANK.search(url):
        return f"it has a blank, or more than one line; {encoded}"
    if scheme not in ("postgresql", "postgres"):
        return "it is postgresql://user:password@host:port/database"
    if "#" in url or "@" in user or "@" in rest[len(authority) :]:
        return f"it has a # or an @ where none may be; {encoded}"
    for number, host in enumerate(hosts.split(",") if hosts else (), 1):
        found = _HOST.fullmatch(host)
        if found is None or not (found[1] is None or 0 < int(found[1]) <= _LAST_PORT):
            return f"its host number {number} is no host:port; {encoded}"
    path = rest[len(authority) :].partition("?")[0]
    fault = _form_fault(url, path, query)
    if fault is not None:
        return f"{fault}; {encoded}"
    return _parameter_fault({name: values[-1] for name, values in parse_qs(query).items()})


def _form_fault(url: str, path: str, query: str) -> str | None:
    if any("=" not in each for each in query.split("&") if query):
        return "behind its ? is something that is no name=value"
    if _NO_ESCAPE.search(url) or "%00" in url:
        return "it has a % without two hexadecimal digits (a % is %25), or the character NUL (%00)"
    if "/" in path[1:]:
        return "its path is the name of a database, and has a / in it"
    return None


def _parameter_fault(given: dict[str, str]) -> str | None:
    """Say what is wrong with the parameters of a database URL. Those that are not known are PostgreSQL's settings."""
    for name, known in _VALUES.items():
        if name in given and given[name] not in known and given[name] not in _ALSO:
            return f"{name}: it is one of {', '.join(known)}"
    ports = given.get("port", "1").split(",")
    if not all(re.fullmatch("[0-9]{1,5}", each) and 0 < int(each) <= _LAST_PORT for each in ports):
        return f"port: it is a number from 1 to {_LAST_PORT}"
    if others := sorted(_OF_LIBPQ & given.keys()):
        return f"{', '.join(others)}: a parameter that psql has, and Fencepost has not"
    for name in _FILES:
        if name in given and given.get("sslmode") != "disable" and not Path(given[name]).is_file():
            return f"{name}: there is no file {given[name]!r}"
    return None


def _content(file: Path, name: str) -> str:
    """Read the file that the setting `name` has. Raises an error of pydantic's that names both."""
    try:
        return read_setting_file(file)
    except SettingFileError as error:
        said = {"file": repr(str(file)), "reason": str(error), "of": name}
        raise PydanticCustomError("file", "{file}: {reason}", said) from None
