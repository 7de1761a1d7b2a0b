"""The commands that need a database and no gateway: protect, status, doctor, keys, queues and dead letters."""

import asyncio
import gc
import json
import re
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from click.testing import CliRunner, Result
from prometheus_client.parser import text_string_to_metric_families
from tests.support.asking import queueing
from tests.support.consuming import Queue, consumed, make_tables, opened, settings_of, token, write
from tests.support.interleave import Connect, Connection
from tests.support.lease_racing import MINUTE, open_lease_race
from tests.support.postgres import renamed

from fencepost.cli.main import main
from fencepost.cli.migrate import GRANTS
from fencepost.cli.shared import flag, to_environment, variable
from fencepost.server.gateway.write import Write
from fencepost.server.health import describe_queues, look_at_queues, measure_queues
from fencepost.server.observe.metrics import Metrics
from fencepost.server.ops.embedded import PostgresServer
from fencepost.server.ops.protect import protect
from fencepost.server.ops.schema import newest
from fencepost.server.parts import consumer_of, consuming, read_queues
from fencepost.server.postgres import api_keys, queues, sources
from fencepost.server.postgres.queues import MessageRow, PartitionProgress
from fencepost.server.queues.log import DeadLetter, LogUnavailableError, Position, partition_of
from fencepost.server.queues.postgres import PostgresDeadLetters
from fencepost.server.queues.registry import DEFAULT
from fencepost.server.serve import consumer_gateway
from fencepost.server.settings import Settings
from fencepost.server.times import ConsumingTimes, Times
from fencepost.testing.servers.gateway import run_command
from fencepost.testing.servers.postgres import in_database
from fencepost.testing.servers.processes import eventually, free_port

# The commands that need a database and no gateway: migrate, protect, unprotect, status, doctor.

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


async def test_protect_status_unprotect(run: Run, owner: Connection) -> None:
    status = await run("status")
    assert status.exit_code == 0
    assert status.output.startswith("no table is protected: fencepost protect TABLE\nnot protected: t, u\nmarks: 0, ")
    await owner.execute("INSERT INTO t VALUES (1), (2), (3)")
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
    assert line.split()[:6] == ["t", "epoch", "external", "id", "?", "0"], "it was never analyzed"
    await owner.execute("ANALYZE t")
    assert (await run("status")).output.splitlines()[1].split()[:6] == ["t", "epoch", "external", "id", "3", "0"]
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
    held = (await race.acquire(race.a, "held", secret="s", owner="me", ttl_ms=10 * MINUTE)).lease
    await race.queue(race.b, "held", secret="you")
    free = (await race.acquire(race.a, "free", secret="f")).lease
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


def test_every_setting_has_a_bad_value_or_can_have_none() -> None:
    switches = {
        "api_keys", "demo", "serve_unprotected", "allow_remote", "access_log", "try_writes", "consume_here",
        "stop_resources",
    }  # fmt: skip
    # What is wrong with these is found when they are used.
    takes_any_text = {
        *("database_url", "data_dir", "schemas", "tables", "roles", "sources", "queues", "default_queue"),
        *("host", "admin_host", "allowed_hosts", "cors_origins", "rate_limit", "failed_rate_limit"),
        *("jwt_secret", "jwt_jwks", "jwt_aud", "jwt_issuer", "jwt_role_claim_key", "anon_role"),
    }
    assert {name for name, _ in BAD} | switches | takes_any_text == Settings.model_fields.keys()


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


# `fencepost key`: what it prints, what it refuses; and what the table holds.

KEY = re.compile(r"fp_([0-9a-f]{12})_([0-9a-f]{48})\n")


@pytest.fixture
def key(database: str) -> Run:
    async def run(*arguments: str) -> Result:
        given = ("key", "--database-url", database, *arguments)
        return await asyncio.to_thread(CliRunner().invoke, main, given)

    return run


async def test_a_key_is_printed_once(key: Run, connect: Connect) -> None:
    made = await key(
        *("create", "--access", "write,read", "--locks", "orders/*", "--locks", "nightly", "--access", "lock,read"),
        *("--expires", "90d", "--note", "the shop"),
    )
    assert made.exit_code == 0, made.output
    found = KEY.fullmatch(made.stdout)
    assert found, "on stdout there is the key, and nothing else"
    key_id, secret = found.groups()
    assert f"key {key_id}" in made.stderr
    listed = await key("list")
    as_json = await key("list", "--json")
    assert secret not in listed.output + as_json.output
    assert listed.output.startswith(
        f"{key_id}  active; the gateway's role; read,lock; locks orders/* nightly; expires "
    )
    assert listed.output.endswith(": the shop\n")
    (line,) = as_json.output.splitlines()
    assert json.loads(line)["access"] == ["read", "lock"]
    (row,) = await (await connect()).fetch("SELECT k::text AS all, k.* FROM fencepost.api_keys k")
    assert secret not in row["all"]
    assert row["secret_hash"] == api_keys.hash_secret(secret)


async def test_rotating_and_revoking(key: Run, connect: Connect) -> None:
    owner = await connect()
    assert (await key("list")).output == "there is no API key: fencepost key create\n"
    made = (await key("create", "--access", "read", "--expires", "1h")).stdout
    key_id = made.split("_")[1]
    rotated = await key("rotate", key_id, "--overlap", "30m")
    assert KEY.fullmatch(rotated.stdout)
    assert rotated.stdout.startswith(f"fp_{key_id}_")
    assert rotated.stdout != made
    assert "; the old secret ends " in (await key("list")).output
    await key("rotate", key_id)
    assert "old secret" not in (await key("list")).output
    await owner.execute("UPDATE fencepost.api_keys SET expires_at = clock_timestamp()")
    assert f"{key_id}  expired; " in (await key("list")).output
    late = await key("rotate", key_id)
    assert (late.exit_code, "give --expires" in late.stderr) == (1, True)
    assert (await key("rotate", key_id, "--expires", "2d")).exit_code == 0
    assert f"{key_id}  active; " in (await key("list")).output
    assert (await key("revoke", key_id)).output == f"key {key_id} is revoked\n"
    assert (await key("revoke", key_id)).output == f"key {key_id} was revoked before\n"
    assert f"{key_id}  revoked; " in (await key("list")).output
    again = await key("rotate", key_id)
    assert (again.exit_code, again.stderr) == (1, f"Error: key {key_id} is revoked, for good: create another\n")


async def test_what_makes_no_sense_is_refused(key: Run) -> None:
    for arguments, code, message in (
        (("create",), 2, "Missing option '--access'"),
        (("create", "--access", "all"), 2, "'all' is none of read, write, lock"),
        (("create", "--access", ""), 2, "'' is none of"),
        (("create", "--access", "read", "--locks", "a"), 2, "without --access lock"),
        (("create", "--access", "lock", "--locks", "*a"), 2, "--locks"),
        (("create", "--access", "read", "--role", "no_such_role"), 1, "there is no role no_such_role"),
        (("create", "--access", "read", "--role", " "), 2, "a role's name is needed"),
        (("create", "--access", "read", "--expires", "0d"), 2, "--expires: it is at least 1s"),
        (("create", "--access", "read", "--expires", "soon"), 2, "'soon' is no time"),
        (("create", "--access", "read", "--note", "a\x1b[2J"), 2, "cannot be printed"),
        (("rotate", "nope"), 1, "there is no key nope"),
        (("revoke", "nope"), 1, "there is no key nope"),
    ):
        result = await key(*arguments)
        assert (result.exit_code, message in result.output) == (code, True), result.output
        assert "Traceback" not in result.output
    assert (await key("list")).output.startswith("there is no API key")


@pytest.fixture
async def stranger(connect: Connect) -> Any:
    owner = await connect()
    await owner.execute("CREATE ROLE key_stranger; GRANT USAGE ON SCHEMA fencepost TO key_stranger")
    yield owner
    await owner.execute("RESET ROLE")
    await owner.execute("DROP OWNED BY key_stranger; DROP ROLE key_stranger")


@pytest.mark.versions
async def test_only_the_gateways_role_reads_keys_and_none_but_the_owner_changes_them(stranger: Connection) -> None:
    await api_keys.create(stranger, api_keys.NewKey(None, ("read",), None, None, ""))
    await stranger.execute("SET ROLE key_stranger")
    for statement in (
        "SELECT FROM fencepost.api_keys",
        "SELECT fencepost.api_keys_of('{a}')",
        "SELECT fencepost.api_keys_used('{a}')",
        "UPDATE fencepost.api_keys SET revoked_at = NULL",
        "INSERT INTO fencepost.api_keys (id, secret_hash, access) VALUES ('a', sha256('a'), '{read}')",
    ):
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await stranger.execute(statement)
    await stranger.execute("RESET ROLE")
    for grant in GRANTS:
        await stranger.execute(grant.format(role="key_stranger"))
    await stranger.execute("SET ROLE key_stranger")
    assert await stranger.fetch("SELECT fencepost.api_keys_of('{a}')") == []
    await stranger.execute("SELECT fencepost.api_keys_used('{a}')")
    for statement in ("SELECT FROM fencepost.api_keys", "UPDATE fencepost.api_keys SET revoked_at = NULL"):
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await stranger.execute(statement)


# `fencepost queue` on queues, also where a row stays locked; and what a consumer leaves behind in memory.

KAFKA = "kafka:orders"
SOON = Times(consuming=ConsumingTimes(blocked_after=0.1, note_every=0.05))


@pytest.fixture
async def queue_owner(connect: Connect) -> asyncpg.Connection:
    connection = await connect()
    await queues.register(connection, KAFKA)
    again = await queues.check(connection, KAFKA, "x", [9, 4], [None, None])
    await queues.check(connection, KAFKA, "x", [9, 4], [None, None], before=again.recorded)
    noted = [PartitionProgress(0, 7, 1.0, applied=5, refused=1), PartitionProgress(1, 4, None, failed=2, redelivered=3)]
    await queues.note(connection, KAFKA, 0, noted)
    await queues.note(connection, KAFKA, 0, [PartitionProgress(0, 6, 1.0, applied=1)])
    return connection


@pytest.mark.usefixtures("queue_owner")
async def test_each_queue_is_listed_with_how_far_it_is(database: str) -> None:
    lines = run_command(database, "queue").splitlines()
    header, of_kafka, of_postgres = (line.split() for line in lines)
    assert header[:3] == ["QUEUE", "PARTITIONS", "LAG"]
    assert of_kafka[:3] == [KAFKA, "2", "2"], "what was decided does not become less"
    assert of_kafka[5:] == ["6", "1", "2", "3", "-", "generation", "0"]
    assert of_postgres == ["postgres:default", "8", "0", "-", *"0000", "0", "generation", "0"]


async def test_a_queue_that_is_quarantined_ends_the_command_with_1_and_says_how_to_mend_it(
    queue_owner: asyncpg.Connection, database: str
) -> None:
    await queues.quarantine(queue_owner, KAFKA, "it forgot messages", 0)
    done = await asyncio.to_thread(CliRunner().invoke, main, ["queue", "--database-url", database])
    assert (done.exit_code, "quarantined: it forgot messages" in done.stdout) == (1, True), done.output
    assert "when its log can be vouched for: fencepost source raise kafka:orders --reason …" in done.output


async def test_the_log_of_the_database_is_asked(queue_owner: asyncpg.Connection, database: str) -> None:
    await queues.append(queue_owner, [MessageRow(3, b"orders/1", (), None), MessageRow(3, b"orders/2", (), None)])
    shown = {each["name"]: each for each in map(json.loads, run_command(database, "queue", "--json").splitlines())}
    assert shown["postgres:default"]["lags"] == [0, 0, 0, 2, 0, 0, 0, 0]
    assert shown[KAFKA]["partitions"][0]["end"] == 9


async def test_who_looks_writes_nothing_and_hears_which_logs_were_not_asked(
    queue_owner: asyncpg.Connection, database: str
) -> None:
    await queues.append(queue_owner, [MessageRow(3, b"orders/1", (), None)])
    before = await queue_owner.fetch("SELECT source FROM fencepost.queues")
    for urls, trouble in (
        (f"redis://127.0.0.1:{free_port()}/items", "redis:items: its log was"),
        ("bogus", "the logs"),
    ):
        told = json.loads(await asyncio.to_thread(run_command, database, "status", "--queues", urls, "--json"))
        assert [each.startswith(trouble) for each in told["queue_trouble"]] == [True]
        assert {each["name"]: each["lags"] for each in told["queues"]} == {
            KAFKA: [2, 0], DEFAULT: [0, 0, 0, 1, 0, 0, 0, 0],
        }  # fmt: skip
    assert await asyncio.to_thread(run_command, database, "dead", "list", DEFAULT) == ""
    assert await queue_owner.fetch("SELECT source FROM fencepost.queues") == before


async def measured(queue: Queue, metrics: Metrics | None = None) -> dict[tuple[str, str | None, str | None], float]:
    """Give what /metrics has: by metric, queue and partition."""
    metrics, shown = metrics or Metrics(), {}
    await measure_queues(queue.gateway, {}, metrics)
    for family in text_string_to_metric_families(metrics.exposition().decode()):
        for each in family.samples:
            shown[each.name, each.labels.get("queue"), each.labels.get("partition")] = each.value
    return shown


async def test_what_became_of_messages_is_shown_everywhere(connect: Connect, database: str) -> None:
    owner = await connect()
    await make_tables(owner)
    async with opened(database, owner) as queue:
        await queue.append(write("orders/k1", body={"n": 1}), write("orders/k1", body={"status": "bad"}))
        async with consumed(queue):
            await queue.empty()
        await queue.append(write("orders/k1", body={"n": 2}))
        await owner.execute("UPDATE fencepost.queued SET appended_at = appended_at - interval '1 h'")
        described, shown = (await describe_queues(queue.gateway, {}))[DEFAULT], await measured(queue)
        status = await asyncio.to_thread(run_command, database, "status")
    line = (
        r"generation 0; lag 1; oldest 36\d\d s; applied 1; refused 0; failed 1; redelivered 0;"
        r" dead letters 1 \(fencepost dead list postgres:default\)"
    )
    assert re.fullmatch(line, described)
    assert re.search(f"^queue {DEFAULT}: {line}$", status, re.MULTILINE)
    partition = str(partition_of(b"orders/k1", 8))
    names = ("lag", "applied_total", "failed_total", "refused_total", "dead")
    assert [shown[f"fencepost_queue_{name}", DEFAULT, partition] for name in names] == [1, 1, 1, 0, 1]
    assert sum(value for (name, *_), value in shown.items() if name == "fencepost_queue_dead") == 1
    assert shown["fencepost_queue_paused", DEFAULT, None] == 0


async def test_why_a_consumer_elsewhere_is_paused_is_shown_until_it_goes_on(connect: Connect, database: str) -> None:
    owner, name = await connect(), "redis:orders"
    await make_tables(owner)
    settings = settings_of(database, shutdown_timeout=120, queues=f"redis://127.0.0.1:{free_port()}/orders")
    async with opened(database, owner) as queue:

        async def seen() -> list[bool]:
            described, shown = (await describe_queues(queue.gateway, {}))[name], await measured(queue)
            told = await asyncio.to_thread(run_command, database, "queue")
            return [
                "paused: eu-1: " in described,
                shown["fencepost_queue_paused", name, None] == 1,
                "paused: eu-1: " in told,
            ]

        async def everywhere() -> bool:
            return all(await seen())

        times = Times(consuming=replace(SOON.consuming, end_within=60.0))  # it has to say that it is over
        async with consumer_gateway(settings, read_queues(settings), times) as gateway:
            consumer = consumer_of(gateway, name, settings, "eu-1")
            async with consuming(gateway, {name: consumer}, settings):
                await eventually(everywhere, what="the pause to be shown")
        assert not any(await seen())


async def test_where_no_consumer_runs_the_log_says_how_old_the_oldest_message_is(
    queue_owner: asyncpg.Connection, database: str
) -> None:
    rows = [MessageRow(3, b"orders/1", (), None), MessageRow(3, b"orders/2", (), None)]
    await queues.append(queue_owner, rows)
    await queue_owner.execute(
        "UPDATE fencepost.queued SET appended_at = appended_at - interval '1 h' WHERE position = 0"
    )
    await queues.note(queue_owner, KAFKA, 0, [PartitionProgress(0, 8, None)])
    async with opened(database, queue_owner) as queue:
        shown = await measured(queue)
    assert shown["fencepost_queue_lag", DEFAULT, "3"] == 2
    assert 3600 <= shown["fencepost_queue_oldest_seconds", DEFAULT, "3"] < 7200
    assert shown["fencepost_queue_oldest_seconds", DEFAULT, "0"] == 0
    assert shown["fencepost_queue_lag", KAFKA, "0"] == 1
    assert ("fencepost_queue_oldest_seconds", KAFKA, "0") not in shown, "not configured, not noted: not known"
    of_postgres = run_command(database, "queue").splitlines()[2].split()
    assert 3600 <= float(of_postgres[3]) < 7200


async def test_what_is_not_known_has_no_sample(connect: Connect, database: str) -> None:
    """The age of a message whose time is to come; and everything, where the log does not answer any more."""
    owner = await connect()
    await queues.append(owner, [MessageRow(3, b"orders/1", (), None)])
    await owner.execute("UPDATE fencepost.queued SET appended_at = appended_at + interval '1 h'")
    async with opened(database, owner) as queue:
        metrics = Metrics()
        shown = await measured(queue, metrics)
        assert shown["fencepost_queue_lag", DEFAULT, "3"] == 1
        assert ("fencepost_queue_oldest_seconds", DEFAULT, "3") not in shown
        assert shown["fencepost_queue_oldest_seconds", DEFAULT, "0"] == 0
        async with renamed(database, "FUNCTION fencepost.queue_decided"):
            shown = await measured(queue, metrics)
    assert not [name for name, *_ in shown if name in {"fencepost_queue_lag", "fencepost_queue_oldest_seconds"}]


async def test_what_servers_say_is_a_line_in_which_nothing_is_for_a_terminal(connect: Connect, database: str) -> None:
    owner = await connect()
    await queues.register(owner, DEFAULT)
    await queues.note_pause(owner, DEFAULT, "eu-1", "c\rd")
    await owner.execute("""
        CREATE OR REPLACE FUNCTION fencepost.queue_state(OUT incarnation text, OUT ends bigint[]) LANGUAGE plpgsql AS
          $$ BEGIN RAISE '%', E'a\nb\x1b[2J' USING ERRCODE = 'P0001'; END $$""")
    async with opened(database, owner) as queue:
        (status,) = await look_at_queues(queue.gateway)
    assert status.faults() == [r"paused: eu-1: c\x0dd", r"its log: PostgreSQL refused: a\x0ab\x1b[2J"]


async def test_letters_that_are_of_no_partition_have_their_number_only(connect: Connect, database: str) -> None:
    async with opened(database, await connect()) as queue:
        await queue.log.dead.put(DeadLetter("x", "", Position(-1, 0), write("orders/k1"), 0.0))
        shown = await measured(queue)
    assert {name: value for (name, _, partition), value in shown.items() if partition == "-1"} == {
        "fencepost_queue_dead": 1.0
    }


async def test_what_an_older_generation_knew_is_forgotten_and_its_counts_stay(queue_owner: asyncpg.Connection) -> None:
    await queue_owner.execute("SELECT fencepost.source_raise($1, 'test', 0)", KAFKA)
    await queues.note(queue_owner, KAFKA, 0, [PartitionProgress(0, 8, 1.0, applied=1)])
    [queue] = await queues.known(queue_owner)
    assert (queue.generation, queue.incarnation) == (1, None)
    assert [(each.decided, each.end, each.oldest_s) for each in queue.partitions] == [(None, None, None)] * 2
    assert queue.partitions[0].applied == 7


async def test_a_row_that_is_locked_is_named(connect: Connect, database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FENCEPOST_DATABASE_URL", database)
    owner, other = await connect(), await connect()
    await make_tables(owner)

    async def run(*arguments: str) -> str:
        return (await asyncio.to_thread(CliRunner().invoke, main, ["queue", *arguments])).output

    async with opened(database, owner, lock_timeout=0.2) as queue, consumed(queue, times=SOON):
        async with other.transaction():
            await other.execute("SELECT FROM orders WHERE order_id = 'k1' FOR UPDATE")
            await queue.append(*(write(f"orders/{key}", body={"n": 1}) for key in ("k1", "k1", "k2")))

            async def described() -> bool:
                return "orders/k1 waits for" in (await describe_queues(queue.gateway, {}))[DEFAULT]

            await eventually(described, what="it to be in the detail of /readyz")
            assert "orders/k1 waits for" in await run()
            known = json.loads((await run("--json")).splitlines()[0])
            (blocked,) = [each["blocked"] for each in known["partitions"] if each["blocked"]]
            assert (blocked["resource"], "lock" in blocked["because"]) == ("orders/k1", True)
            assert await queue.n("k2") == 1, "others go on"
        await queue.empty()

        async def cleared() -> bool:
            return not await described()

        await eventually(cleared, what="it to be gone from there")


MESSAGES = 20


@pytest.fixture
def garbage() -> Iterator[list[object]]:
    """Keep what only a search finds, from now on; `gc.collect` puts it into this list."""
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        yield gc.garbage
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


async def test_a_message_that_was_applied_is_gone(connect: Connect, database: str, garbage: list[object]) -> None:
    """What a consumer makes for a message goes with it: none of it is left in circles, which Python looks for only now
    and then, among all that is in hand. That search took a quarter of a consumer's time.
    """
    owner = await connect()
    await make_tables(owner)
    async with opened(database, owner) as queue:
        await queue.append(*(write(f"orders/k{n}", body={"n": n}) for n in range(MESSAGES)))
        async with consumed(queue):
            await queue.empty()
        assert await queue.states() == {"applied": MESSAGES}
        gc.collect()
        left = [type(each).__name__ for each in garbage if isinstance(each, Write)]
    assert left == []


# `fencepost dead`: list, show, retry, drop; and what `fencepost status` shows of a queue.


@pytest.fixture
def run_dead(database: str, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command as a process would, on the test's database."""
    monkeypatch.setenv("FENCEPOST_DATABASE_URL", database)

    async def run(*arguments: str) -> Result:
        return await asyncio.to_thread(CliRunner().invoke, main, [*arguments])

    return run


@pytest.fixture
async def queue(database: str, connect: Connect) -> AsyncIterator[Queue]:
    """Give a queue whose resource k1 has stopped at a dead letter, with a later one; k2 has one, too."""
    owner = await connect()
    await make_tables(owner)
    async with opened(database, owner, stop_resources=True) as queue:
        await queue.append(
            write("orders/k1", body={"n": 1, "status": "bad"}),
            write("orders/k1", body={"n": 2}),
            write("orders/k2", body={"colour": "red"}),
        )
        async with consumed(queue):
            await queue.empty()
        yield queue


async def _ids(queue: Queue, resource: str) -> list[str]:
    letters = [each for each in await queue.log.dead.list(10) if each.message.key.decode() == resource]
    return [each.id for each in sorted(letters, key=lambda each: each.position.offset)]


async def test_list_and_show_say_what_is_wrong(queue: Queue, run_dead: Run) -> None:
    listed = await run_dead("dead", "list")
    assert (listed.exit_code, listed.output.count("\n")) == (0, 6)
    several = await run_dead("dead", "list", "--queues", "redis://127.0.0.1:1/orders")
    assert (several.exit_code, f"There are {DEFAULT}, redis:orders." in several.output) == (2, True)
    assert "orders/k2" in listed.output
    assert "FP016: body: colour" in listed.output
    of_one = await run_dead("dead", "list", DEFAULT, "--resource", "orders/k1", "--json")
    lines = [json.loads(line) for line in of_one.output.splitlines()]
    assert [line["resource"] for line in lines] == ["orders/k1"] * 2
    (letter,) = await _ids(queue, "orders/k2")
    shown = json.loads((await run_dead("dead", "show", DEFAULT, letter)).output)
    assert (shown["id"], shown["body"], shown["resource"]) == (letter, '{"colour": "red"}', "orders/k2")
    assert ["method", "PATCH"] in shown["headers"]
    looked = await run_dead("doctor")
    assert looked.exit_code == 0
    found = f"WARNING  queue {DEFAULT}: dead letters: 3, writes that were acknowledged and are not applied."
    assert f"{found} `fencepost dead list {DEFAULT}`\n" in looked.output
    (line,) = [line for line in (await run_dead("status")).output.splitlines() if line.startswith(f"queue {DEFAULT}")]
    assert ("failed 3" in line, "2 resources stopped" in line) == (True, True), line


async def test_a_letter_that_is_dropped_or_retried_stays_so_when_its_message_comes_again(
    queue: Queue, run_dead: Run
) -> None:
    """The consumer was killed after it had put the letter, and before it said that the message is done."""
    await queue.owner.execute("ALTER TABLE orders ADD colour text")
    dropped, retried = (await _ids(queue, "orders/k1"))[0], (await _ids(queue, "orders/k2"))[0]
    messages = await queue.owner.fetch(
        "SELECT id, partition, position, key, header_names, header_values, value FROM fencepost.queue_dead"
        " WHERE id = ANY ($1)",
        [dropped, retried],
    )
    assert (await run_dead("dead", "drop", DEFAULT, dropped)).exit_code == 0
    named_twice = await run_dead("dead", "retry", DEFAULT, "--no-wait", retried, retried)
    assert (named_twice.exit_code, named_twice.output.count("appended again")) == (0, 1)
    for each in messages:
        await queue.owner.execute(
            "INSERT INTO fencepost.queued (partition, position, key, header_names, header_values, value)"
            " VALUES ($1, $2, $3, $4, $5, $6)",
            *list(each.values())[1:],
        )
    async with consumed(queue):
        await queue.empty()
    left = {each.id for each in await queue.log.dead.list(10)}
    assert not left & {dropped, retried}
    assert await queue.owner.fetchval("SELECT count(*) FROM fencepost.queue_stopped WHERE resource = 'orders/k1'") == 0


async def test_a_letter_that_is_retried_twice_has_one_effect(
    queue: Queue, run_dead: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first retry was cut off between its append and its drop."""
    await queue.owner.execute("ALTER TABLE orders ADD COLUMN colour text")
    (letter,) = await _ids(queue, "orders/k2")
    mark = "SELECT last_fence_token FROM orders WHERE order_id = 'k2'"

    async def fail(_letters: PostgresDeadLetters, _id: str) -> bool:
        raise LogUnavailableError("gone")

    with monkeypatch.context() as patched:
        patched.setattr(PostgresDeadLetters, "drop", fail)
        assert (await run_dead("dead", "retry", DEFAULT, "--no-wait", letter)).exit_code == 1
    async with consumed(queue):
        await queue.empty()
        once = await queue.owner.fetchval(mark)
        assert (await run_dead("dead", "retry", DEFAULT, letter)).exit_code == 0
        await queue.empty()
    assert once is not None
    assert await queue.owner.fetchval(mark) == once


async def test_a_letter_of_another_partition_is_retried_by_name_only(queue: Queue, run_dead: Run) -> None:
    """Partitions were added, and its row has later writes in its new one: this one would undo them."""
    (moved,) = await _ids(queue, "orders/k2")
    await queue.owner.execute("ALTER TABLE orders ADD COLUMN colour text")
    await queue.owner.execute("UPDATE fencepost.queue_dead SET partition = partition + 1 WHERE id = $1", moved)
    retried = await run_dead("dead", "retry", DEFAULT, "--no-wait", "--all")
    assert (retried.exit_code, retried.output.count("appended again")) == (1, 2), retried.output
    assert f"{moved} orders/k2: its message was in another partition" in retried.output
    assert await _ids(queue, "orders/k2") == [moved]
    assert (await run_dead("dead", "retry", DEFAULT, "--no-wait", moved)).exit_code == 0


async def test_a_letter_that_is_dropped_lets_its_resource_go_on(queue: Queue, run_dead: Run) -> None:
    first, second = await _ids(queue, "orders/k1")
    assert (await run_dead("dead", "drop", DEFAULT, first)).exit_code == 0
    await queue.append(write("orders/k1", body={"n": 3}))
    async with consumed(queue):
        await queue.empty()
    assert await queue.n("k1") == 3
    assert await _ids(queue, "orders/k1") == [second]
    assert (await run_dead("dead", "drop", DEFAULT, "--all")).exit_code == 0
    assert (await run_dead("dead", "list", DEFAULT)).output == ""
    assert (await run_dead("dead", "drop", DEFAULT, "--all")).output == "no dead letters\n"


async def test_stops_whose_letters_are_gone_are_listed_and_cleared(queue: Queue, run_dead: Run) -> None:
    """As after a log was emptied, with its dead letters."""
    first, second = await _ids(queue, "orders/k1")
    await queue.owner.execute("DELETE FROM fencepost.queue_dead WHERE id = $1", first)
    listed = await run_dead("dead", "list", DEFAULT, "--resource", "orders/k1")
    assert f"gone: `fencepost dead drop {DEFAULT} {first}` lets it go on" in listed.output
    shown = (await run_dead("dead", "list", DEFAULT, "--resource", "orders/k1", "--json")).output.splitlines()
    assert [each["id"] for each in map(json.loads, shown) if each.get("gone")] == [first]
    retried = await run_dead("dead", "retry", DEFAULT, "--no-wait", "--all")
    assert f"{first} orders/k1: the resource is stopped by this write, and its dead letter is gone" in retried.output
    dropped = await run_dead("dead", "drop", DEFAULT, "--resource", "orders/k1")
    assert f"{first} orders/k1: the letter was gone; the resource goes on\n" in dropped.output
    assert second not in dropped.output, "it was appended again before"
    assert await queue.owner.fetchval("SELECT count(*) FROM fencepost.queue_stopped WHERE resource = 'orders/k1'") == 0


@pytest.mark.usefixtures("queue")
async def test_what_is_asked_wrongly_is_one_line(run_dead: Run) -> None:
    for arguments, code, said in (
        (("show", DEFAULT, "postgres:default.0.9.0123456789abcdef"), 1, "has no dead letter"),
        (("retry", DEFAULT, "postgres:default.0.9.0123456789abcdef"), 1, "nothing was done"),
        (("retry", DEFAULT), 2, "name the letters by ID, or by --resource, or --all"),
        (("retry", DEFAULT, "--all", "--wait", "1", "--no-wait"), 2, "--wait and --no-wait exclude each other."),
        (("drop", DEFAULT, "x", "--all"), 2, "name the letters by ID, or by --resource, or --all"),
        (("list", "kafka:none"), 1, "kafka:none is not configured here"),
    ):
        result = await run_dead("dead", *arguments)
        assert (result.exit_code, said in result.output) == (code, True), (arguments, result.output)


async def test_the_page_of_a_write_says_what_became_of_its_letter(queue: Queue, run_dead: Run, database: str) -> None:
    await queue.owner.execute("ALTER TABLE orders ADD colour text")
    first, second = await _ids(queue, "orders/k1")
    (third,) = await _ids(queue, "orders/k2")

    async with queueing(database) as gateway:

        async def page(write_id: str) -> tuple[bool, bool, str | None]:
            shown = (await gateway.api.ask("GET", f"writes/{write_id}")).json()
            assert shown["state"] == "failed"
            assert not {"fencepost-letter", "fencepost-state"} & shown["answer"]["headers"].keys()
            return shown["dead_letter"], shown["dropped"], shown["retried_as"]

        behind = (await gateway.api.ask("GET", f"writes/{second}")).json()["answer"]
        assert (behind["status"], behind["body"]["code"]) == (409, "FP030"), "it was behind the first"
        assert await page(first) == (True, False, None)
        await run_dead("dead", "drop", DEFAULT, first)
        assert await page(first) == (False, True, None)
        output = (await run_dead("dead", "retry", DEFAULT, "--no-wait", third)).output
        again = output.rpartition("whether it is applied is not known yet: GET /v1/writes/")[2].strip()
        assert await page(third) == (False, False, again)
        async with consumed(queue):
            await queue.empty()
        shown = (await gateway.api.ask("GET", f"writes/{again}")).json()
        assert (shown["state"], shown["answer"]["body"]["colour"], shown["retried_as"]) == ("applied", "red", None)


async def test_a_write_that_waits_while_its_table_changes_from_a_lock_to_a_queue_or_back_is_a_dead_letter(
    database: str, connect: Connect, run_dead: Run
) -> None:
    """So the page says to wait until the lag is 0; and which letters can be retried, and where."""
    owner = await connect()
    await make_tables(owner, source="external")
    async with opened(database, owner) as queue:
        await queue.append(write("orders/k1", body={"n": 1}, token=token(34)))
        await protect(owner, "orders", queue=DEFAULT)
        await queue.append(write("orders/k2", body={"n": 2}))
        async with consumed(queue):
            await queue.empty()
            assert list(await queue.letters()) == ["orders/k1"]
            await run_dead("dead", "retry", DEFAULT, "--all")
            await queue.empty()
            assert "orders takes the positions of its queue" in (await queue.letters())["orders/k1"].reason
        await queue.append(write("orders/k3", body={"n": 3}))
        await protect(owner, "orders", source="external")
        async with consumed(queue):
            await queue.empty()
            assert (await queue.letters())["orders/k3"].reason.startswith("FP003: ")
            await sources.raise_source(owner, DEFAULT, "for a test", 34)
            await protect(owner, "orders", queue=DEFAULT)
            await run_dead("dead", "retry", DEFAULT, "--resource", "orders/k3")
            await queue.empty()
        assert list(await queue.letters()) == ["orders/k1"]
        assert [await queue.n(key) for key in ("k1", "k2", "k3")] == [0, 2, 3]


async def test_a_retry_waits_for_the_decision_and_keeps_what_the_fence_refuses(
    database: str, connect: Connect, run_dead: Run
) -> None:
    """k1 is applied, k2 fails again, k3's row has a later write before the retry, k4's after its append."""
    owner = await connect()
    await make_tables(owner, source="external")
    async with opened(database, owner) as queue:
        await queue.append(
            *(write(f"orders/k{n}", body={"colour": "red", "n": n}, token=token(34)) for n in (1, 2, 3, 4))
        )
        async with consumed(queue):
            await queue.empty()
        before = {each.message.key.decode(): each.id for each in await queue.log.dead.list(10)}
        await owner.execute("ALTER TABLE orders ADD colour text CHECK (order_id <> 'k2' OR colour <> 'red')")

        async def overtake(key: str) -> None:
            async with owner.transaction():
                await owner.execute("SET LOCAL fencepost.token = '36'")
                await owner.execute("UPDATE orders SET colour = 'blue' WHERE order_id = $1", key)

        await overtake("k3")
        stale = await run_dead("dead", "retry", DEFAULT, before["orders/k3"])
        assert (stale.exit_code, stale.output.count("\n")) == (1, 1)
        assert "the fence would refuse its token 34, since the mark of orders/k3 is 36 by now" in stale.output
        waiting = asyncio.create_task(run_dead("dead", "retry", DEFAULT, "--all", "--wait", "600"))
        await eventually(lambda: appended(owner, 3), what="what can be retried is appended")
        await overtake("k4")
        async with consumed(queue):
            retried = await waiting
        after = {each.message.key.decode(): each.id for each in await queue.log.dead.list(10)}
    for key, said in (
        ("k1", "applied"),
        ("k2", f"failed again, and its letter is {after['orders/k2']} now: 23514: "),
        ("k3", "the fence would refuse its token 34"),
        ("k4", "refused, and the letter stays: FP001: "),
    ):
        assert f"{before[f'orders/{key}']} orders/{key}: {said}" in retried.output, retried.output
    assert retried.exit_code == 1
    assert after == {key: before[key] for key in ("orders/k3", "orders/k4")} | {"orders/k2": after["orders/k2"]}
    coloured = "SELECT array_agg(colour ORDER BY order_id) FROM orders WHERE colour IS NOT NULL"
    assert await owner.fetchval(coloured) == ["red", "blue", "blue"]


async def test_a_letter_whose_mark_cannot_be_asked_for_keeps_no_other_from_being_retried(
    database: str, connect: Connect, run_dead: Run
) -> None:
    owner = await connect()
    await make_tables(owner, source="external")
    await owner.execute("CREATE TABLE numbered (id int PRIMARY KEY, n int)")
    await protect(owner, "numbered")
    async with opened(database, owner) as queue:
        await queue.append(
            *(write(name, body={"nothing": 1}, token=token(34)) for name in ("numbered/seven", "orders/k1"))
        )
        async with consumed(queue):
            await queue.empty()
        retried = await run_dead("dead", "retry", DEFAULT, "--all", "--no-wait")
    assert (retried.exit_code, await appended(owner, 2)) == (0, True), retried.output


async def appended(owner: Connection, count: int) -> bool:
    found: int = await owner.fetchval("SELECT count(*) FROM fencepost.queued")
    return found == count


async def test_a_retry_that_nobody_decides_keeps_its_letter(queue: Queue, run_dead: Run) -> None:
    (letter,) = await _ids(queue, "orders/k2")
    retried = await run_dead("dead", "retry", DEFAULT, letter, "--wait", "0.01")
    assert retried.exit_code == 1
    assert "is not decided yet, and the letter stays\nnothing was decided for 0.01 s" in retried.output
    assert await _ids(queue, "orders/k2") == [letter]
