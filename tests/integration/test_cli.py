"""The commands that need a database and no gateway: migrate, protect, unprotect, status, doctor."""

import asyncio
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from tests.support.interleave import Connect, Connection
from tests.support.lease_racing import MINUTE, open_lease_race

from fencepost.cli.main import main
from fencepost.cli.shared import flag, to_environment, variable
from fencepost.server.ops.embedded import PostgresServer
from fencepost.server.ops.schema import newest
from fencepost.server.settings import Settings
from fencepost.testing.servers.postgres import in_database

Run = Callable[..., Any]


@pytest.fixture
def run(database: str, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command as a process would, on the test's database."""
    monkeypatch.setenv("FENCEPOST_DATABASE_URL", database)

    async def run(*arguments: str, **variables: str) -> Result:
        runner = CliRunner(env={**variables})
        return await asyncio.to_thread(runner.invoke, main, [*arguments])

    return run


@pytest.fixture
async def owner(connect: Connect) -> Connection:
    connection = await connect()
    await connection.execute("SET search_path = public")
    await connection.execute("CREATE TABLE t (id int PRIMARY KEY, v text); CREATE TABLE u (id int PRIMARY KEY)")
    return connection


@pytest.mark.usefixtures("owner")
async def test_protect_status_unprotect(run: Run) -> None:
    status = await run("status")
    assert status.exit_code == 0
    assert status.output.startswith("no table is protected: fencepost protect TABLE\nnot protected: t, u\nmarks: 0, ")
    made = await run("protect", "t", "--rule", "epoch")
    first, *more = made.output.splitlines()
    assert (made.exit_code, first) == (0, "t is protected: writes need a token")
    assert [line.split()[0] for line in more] == ["column", "triggers", "tokens"]
    assert "a made-up 999999999999999 would pass" in more[2]
    again = await run("protect", "public.t")
    stays = "  stays     rule epoch, source external, max token 4611686018427387903\n"
    assert (again.exit_code, again.output) == (0, f"{first}\n  changed   nothing\n{stays}"), "it can be repeated"
    status = await run("status")
    header, line, rest, *_sizes = status.output.splitlines()
    assert header.split() == ["TABLE", "RULE", "SOURCE", "KEY", "ROWS", "MARKS", "SINCE"]
    assert line.split()[:6] == ["t", "epoch", "external", "id", "0", "0"]
    assert rest == "not protected: u"
    changed = await run("protect", "t", "--max-jump", "1000", "--sealed")
    assert "  changed   max jump from none to 1000, sealed from off to on\n  stays     rule epoch" in changed.output
    gone = await run("unprotect", "t")
    assert gone.exit_code == 0
    assert "its column last_fence_token and its marks stay, and a later protect goes on from them." in gone.output


@pytest.mark.usefixtures("owner")
async def test_status_shows_who_holds_locks_who_waits_and_what_was_pruned(run: Run, connect: Connect) -> None:
    await run("protect", "t")
    race = await open_lease_race(connect)
    held = await race.acquire(race.a, "held", secret="s", owner="me", ttl_ms=10 * MINUTE)
    await race.queue(race.b, "held", secret="you")
    free = await race.acquire(race.a, "free", secret="f")
    await race.queue(race.b, "free", secret="next")
    await race.release_here(race.a, free.lease_id, "f")
    await race.observer.execute("UPDATE fencepost.waiters SET gateway = NULL")  # so that none has to beat for them
    await race.observer.execute("UPDATE fencepost.floors SET floor = 60 WHERE name = 't'")
    status = await run("status")
    assert "floors, up to which marks were pruned: t 60" in status.output.splitlines()
    shown = [line.split() for line in status.output.splitlines()]
    assert ["free", "(free)", "next"] in shown
    (line,) = [line for line in shown if line[:1] == ["held"]]
    assert (line[1:4], line[5]) == (["me", str(held.lease_id), str(held.tokens[0])], "you")
    assert 0 < float(line[4]) <= 600


async def test_protect_warns_of_what_could_undo_the_fence(run: Run, owner: Connection) -> None:
    await owner.execute(
        "CREATE TRIGGER zzzz BEFORE UPDATE ON t FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger()"
    )
    await run("protect", "u")
    made = await run("protect", "t")
    assert (made.exit_code, made.stdout.splitlines()[0]) == (0, "t is protected: writes need a token")
    assert made.stderr == "WARNING  t: BEFORE triggers run after the fence's and could change what it judged: zzzz\n"


@pytest.mark.parametrize("command", ["protect", "unprotect"])
async def test_sql_prints_and_touches_nothing(run: Run, owner: Connection, command: str) -> None:
    if command == "unprotect":
        await run("protect", "t")
    before = await owner.fetch("SELECT tgname FROM pg_trigger ORDER BY 1")
    printed = await run(command, "t", "--sql")
    assert printed.exit_code == 0
    assert printed.output.startswith("BEGIN;\n")
    assert ";\nCOMMIT;\n" in printed.output
    assert await owner.fetch("SELECT tgname FROM pg_trigger ORDER BY 1") == before


@pytest.mark.usefixtures("owner")
async def test_refusals_have_an_exit_code_and_no_traceback(run: Run) -> None:
    for arguments, code, message in (
        (("protect", "nowhere"), 1, "nowhere:"),
        (("unprotect", "t"), 1, "it is not protected"),
        (("unprotect", "nowhere"), 1, "no such table"),
        (("protect",), 2, "Missing argument 'TABLE'"),
        (("protect", "t", "--rule", "loose"), 2, "Invalid value for '--rule'"),
        (("protect", "t", "--source", "redis"), 1, "there is no source redis; known are builtin, external"),
        (("protect", "t", "--wait", "x"), 2, "Invalid value for '--wait'"),
        (("protect", "t", "--scope", "a/{id}", "--no-scope"), 2, "--scope and --no-scope exclude each other"),
        (("nonsense",), 2, "No such command"),
    ):
        result = await run(*arguments)
        assert (result.exit_code, message in result.output) == (code, True), result.output
        assert "Traceback" not in result.output
        assert isinstance(result.exception, SystemExit)


async def test_a_refusal_of_postgresql_has_its_hint(run: Run, owner: Connection) -> None:
    await run("protect", "u", "--queue", "postgres:default")
    await run("protect", "t")
    await owner.execute("SELECT fencepost.source_reaches('postgres:default', 1)")
    await owner.execute("BEGIN; SET LOCAL fencepost.token = '9'; INSERT INTO t VALUES (1); COMMIT")
    refused = await run("protect", "t", "--queue", "postgres:default")
    assert (refused.exit_code, refused.output.count("\n")) == (1, 1), refused.output
    assert "(FP400). fencepost source raise postgres:default --above 9 --reason …" in refused.output


@pytest.mark.parametrize("command", [["migrate"], ["protect", "t"]])
async def test_a_database_that_cannot_be_used_is_one_line(
    run: Run, postgres: PostgresServer, command: list[str], tmp_path: Path
) -> None:
    address = postgres.url.rpartition("@")[2]
    for url, message in (
        ("postgresql://me:topsecret@127.0.0.1:1/db", "cannot connect to PostgreSQL"),
        (f"postgresql://postgres:topsecret@{address}", "password authentication failed"),
        (f"postgresql://nobody:topsecret@{address}", "PostgreSQL refused"),
        (in_database(postgres.url, "no_such_database"), "does not exist"),
        ("postgresql://me:topsecret@no.such.host.invalid/db", "cannot connect to PostgreSQL"),
        ("mysql://me:topsecret@127.0.0.1/db", "it is postgresql://user:password@host:port/database"),
        ("nonsense topsecret", "it has a blank"),
        ("postgresql://me:topsecret@127.0.0.1:99999/db", "its host number 1 is no host:port"),
        ("postgresql://me:topsecret@[::]:1/db?sslmode=bogus", "sslmode: it is one of disable"),
    ):
        result = await run(*command, "--database-url", url)
        assert result.exit_code == (2 if "bad value" in result.output else 1), (url, result.output)
        assert result.output.startswith("Error: "), result.output
        assert (message in result.output, result.output.count("\n")) == (True, 1), result.output
        assert "topsecret" not in result.output, message
    result = await run(*command, "--data-dir", str(tmp_path), FENCEPOST_DATABASE_URL="")
    assert (result.exit_code, "no database: set --database-url or FENCEPOST_DATABASE_URL" in result.output) == (1, True)


async def test_a_database_without_the_schema_gets_the_advice_to_migrate(run: Run, postgres: PostgresServer) -> None:
    for command in (["protect", "t"], ["unprotect", "t"], ["status"], ["doctor"]):
        result = await run(*command, "--database-url", postgres.url)
        assert (result.exit_code, "run `fencepost migrate`" in result.output) == (1, True), command


async def test_migrate_shows_where_it_stands(run: Run) -> None:
    for _ in range(2):
        result = await run("migrate")
        assert (result.exit_code, result.output) == (0, f"the schema fencepost is at revision {newest()}\n")
    printed = await run("migrate", "--sql", "--gateway-role", 'the "role"')
    assert printed.exit_code == 0
    assert "CREATE TABLE fencepost.marks" in printed.output
    assert 'TO "the ""role"""' in printed.output


@pytest.mark.usefixtures("owner")
async def test_settings_are_options_and_variables_and_the_option_wins(run: Run, database: str) -> None:
    wrong = "postgresql://me@127.0.0.1:1/db"
    assert (await run("status", FENCEPOST_DATABASE_URL=wrong)).exit_code == 1
    assert (await run("status", "--database-url", database, FENCEPOST_DATABASE_URL=wrong)).exit_code == 0


BAD = [
    ("database_url_file", "/nowhere"), ("sources_file", "/"), ("queues_file", "/nowhere"), ("jwt_secret_file", "/"),
    ("seal_keys_file", "/nowhere"), ("seal_lifetime", "59"), ("port", "x"), ("port", "-1"), ("port", "65536"),
    ("admin_port", "x"), ("admin_port", "65536"), ("workers", "0"), ("pool_size", "0"), ("pool_timeout", "0"),
    ("batch_pool_size", "0"), ("lease_pool_size", "1"), ("max_waiting", "0"), ("batch_lines", "0"),
    ("statement_timeout", "-1"), ("lock_timeout", "soon"),
    ("max_body_bytes", "1k"), ("max_rows", "0"), ("max_ttl", "2000001"), ("max_wait", "0"), ("max_tokens", "0"),
    ("max_waiters", "0"), ("max_watchers", "0"), ("max_waiters_per_caller", "0"), ("max_watchers_per_caller", "0"),
    ("lease_history", "0"), ("idempotency_retention", "0"), ("max_kept_bytes", "0"), ("max_letter_bytes", "0"),
    ("max_answer_bytes", "0"), ("max_connections", "0"), ("max_connections_per_address", "0"),
    ("max_head_bytes", "4095"), ("keep_alive", "0"), ("head_timeout", "0"), ("body_timeout", "0"), ("least_rate", "0"),
    ("mark_retention", "0"), ("start_timeout", "-1"), ("shutdown_timeout", "0"),
    ("log_level", "loud"), ("log_format", "xml"),
]  # fmt: skip
"""Values that a setting cannot have."""
SWITCHES = {
    "api_keys",
    "demo",
    "serve_unprotected",
    "allow_remote",
    "access_log",
    "try_writes",
    "consume_here",
    "stop_resources",
}
TAKES_ANY_TEXT = {
    *("database_url", "data_dir", "schemas", "tables", "roles", "sources", "queues", "default_queue"),
    *("host", "admin_host", "allowed_hosts", "cors_origins", "rate_limit", "failed_rate_limit"),
    *("jwt_secret", "jwt_jwks", "jwt_aud", "jwt_issuer", "jwt_role_claim_key", "anon_role"),
}
"""What is wrong with these is found when they are used."""


def test_every_setting_has_a_bad_value_or_can_have_none() -> None:
    assert {name for name, _ in BAD} | SWITCHES | TAKES_ANY_TEXT == Settings.model_fields.keys()


async def test_bad_values_name_option_and_variable(run: Run) -> None:
    for name, bad in BAD:
        for arguments, variables in (((flag(name), bad), {}), ((), {variable(name): bad})):
            result = await run("serve", *arguments, **variables)
            assert result.exit_code == 2, result.output
            assert result.output.startswith(f"Error: bad value for {flag(name)} ({variable(name)}): ")
            assert (result.output.count("\n"), bad in result.output) == (1, True)


def test_settings_survive_the_way_through_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings.model_validate(
        {"database_url": "postgresql://a:b%20c@h/d", "port": 0, "demo": True, "schemas": "a, b"}
    )
    for name, value in to_environment(settings).items():
        monkeypatch.setenv(name, value)
    assert Settings() == settings


def test_a_secret_setting_comes_from_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "secret"
    for name in ("database_url", "sources", "queues"):
        first, other = (
            ("postgresql://:a%20b@h/0", "postgresql://h") if name == "database_url" else ("x=redis://h/0", "y")
        )
        file.write_text(f"{first}\n")
        settings = Settings.model_validate({f"{name}_file": str(file)})
        assert getattr(settings, name).get_secret_value() == first, name
        with monkeypatch.context() as patched:
            for each, value in to_environment(settings).items():
                patched.setenv(each, value)
            file.write_text(f"{other}\n")
            assert getattr(Settings(), name) == getattr(settings, name), "for the processes that serve begins"
            patched.delenv(variable(name))
            patched.setenv(variable(f"{name}_file"), str(file))
            assert getattr(Settings(), name).get_secret_value() == other, name
            file.write_text("\n")
            with pytest.raises(ValueError, match="it is empty"):
                Settings()


async def test_a_secret_setting_is_given_once_and_is_not_shown(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("postgresql://a:hidden@h/d")
    result = await run("status", "--database-url", "postgresql://b:hidden@h/d", "--database-url-file", str(file))
    assert result.exit_code == 2
    assert "--database-url (FENCEPOST_DATABASE_URL)" in result.output
    assert "in a file too" in result.output
    assert "hidden" not in result.output


def test_the_page_of_settings_lists_each_with_its_default() -> None:
    text = (Path(__file__).parents[2] / "docs/settings.md").read_text()
    rows = [
        [cell.strip().strip("`") for cell in line.strip().strip("|").split("|")]
        for line in text.splitlines()
        if "|" in line
    ]
    table = {row[0]: row for row in rows if row[0].startswith("FENCEPOST_")}
    assert table.keys() == {variable(name) for name in Settings.model_fields}, "a row for each"
    for name, field in Settings.model_fields.items():
        _, option, default, meaning = table[variable(name)]
        assert flag(name) in option
        assert plain(meaning) == plain(str(field.description))
        shown = default.strip("`").replace("_", "").replace(",", "")
        known = {
            None: {"", "—", "-", "none"},
            "": {"", "—", "-", "none"},
            False: {"false", "off", "no"},
            True: {"true", "on", "yes"},
        }
        expected = field.default
        if expected is None or expected == "" or isinstance(expected, bool):
            assert shown.lower() in known[expected], name
        else:
            assert shown in {str(expected), f"{expected:g}" if isinstance(expected, float) else str(expected)}, name


def plain(text: str) -> str:
    return re.sub(r"[`\\\s]+", " ", text).strip().rstrip(".")
