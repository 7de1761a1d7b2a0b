"""`fencepost key`: what it prints, what it refuses; and what the table holds."""

import asyncio
import json
import re
from collections.abc import Callable
from typing import Any

import asyncpg
import pytest
from click.testing import CliRunner, Result
from tests.support.interleave import Connect, Connection

from fencepost.cli.main import main
from fencepost.cli.migrate import GRANTS
from fencepost.server.postgres import api_keys

Run = Callable[..., Any]
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
