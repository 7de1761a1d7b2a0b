"""`fencepost doctor` on the built-in token source: its sequence, and tables whose functions or marks do not fit it."""

import asyncio

import pytest
from click.testing import CliRunner, Result
from tests.support.interleave import Connect, Connection
from tests.support.racing import owner

from fencepost.cli.main import main
from fencepost.storage.protecting.protect import protect

BY_HAND = "UPDATE fencepost.protected SET source ="


async def doctor(database: str) -> Result:
    return await asyncio.to_thread(CliRunner().invoke, main, ["doctor", "--database-url", database])


@pytest.fixture
async def db(connect: Connect) -> Connection:
    """Give the owner's connection; t is of the built-in source, which has issued 50 tokens, e of an external one."""
    connection = await owner(connect)
    for name, source in (("t", "builtin"), ("e", "external")):
        await connection.execute(f"CREATE TABLE {name} (id int PRIMARY KEY, v text)")
        await protect(connection, name, source=source)
        await connection.execute("SELECT setval('fencepost.tokens', 50)")
        await connection.execute(f"INSERT INTO {name} (id, last_fence_token) VALUES (1, 50)")
    await connection.execute("UPDATE e SET last_fence_token = 9000")
    return connection


@pytest.mark.usefixtures("db")
async def test_a_sound_source_is_ok(database: str) -> None:
    found = await doctor(database)
    assert found.exit_code == 0, found.output
    assert "tokens: the built-in source has issued 50" in found.output


SEQUENCE = "ALTER SEQUENCE fencepost.tokens"
AMISS = [
    (f"{SEQUENCE} CACHE 20", "hand out old ones later", f"{SEQUENCE} CACHE 1"),
    (f"{SEQUENCE} CYCLE", "begin again at its end", f"{SEQUENCE} NO CYCLE"),
    (f"{SEQUENCE} INCREMENT BY 5", "in steps of 5", f"{SEQUENCE} INCREMENT BY 1"),
    (f"{SEQUENCE} AS integer", "ends at 2147483647", f"{SEQUENCE} AS bigint NO MAXVALUE"),
    (f"{SEQUENCE} MAXVALUE 99", "ends at 99", f"{SEQUENCE} AS bigint NO MAXVALUE"),
    (
        "REVOKE SELECT ON fencepost.tokens FROM PUBLIC",
        "a role that writes directly may not read it",
        "GRANT SELECT ON fencepost.tokens TO PUBLIC",
    ),
    ("SELECT setval('fencepost.tokens', 49)", "it has the mark 50, and the newest token is 49", "issue_beyond(50)"),
    (
        "SELECT fencepost.raise_mark('t/9', 77, 'strict', true)",
        "it has the mark 77, and the newest token is 50",
        "issue_beyond(77)",
    ),
    ("SELECT fencepost.prune('t', 88)", "it has the mark 88, and the newest token is 50", "issue_beyond(88)"),
    (f"{BY_HAND} 'builtin' WHERE name = 'e'", "its functions (del, insmark, upd) do not ask", "fencepost protect e"),
    (f"{BY_HAND} 'external' WHERE name = 't'", "its functions (del, insmark, upd) ask", "fencepost protect t"),
]


@pytest.mark.parametrize(("harm", "message", "mend"), AMISS, ids=[each[0] for each in AMISS])
async def test_doctor_finds_what_is_amiss_and_its_advice_mends_it(
    db: Connection, database: str, harm: str, message: str, mend: str
) -> None:
    await db.execute(harm)
    found = await doctor(database)
    lines = [line for line in found.output.splitlines() if line.startswith("ERROR")]
    assert any(message in line and mend in line for line in lines), found.output
    assert found.exit_code == 1
    if mend.startswith("fencepost protect"):
        await protect(db, mend.rsplit(maxsplit=1)[-1])
    else:
        await db.execute(f"SELECT fencepost.{mend}" if mend.startswith("issue") else mend)
    if "'e'" in harm:  # its marks are those of another source
        assert "SELECT fencepost.issue_beyond(9000)" in (await doctor(database)).output
        await db.execute("SELECT fencepost.issue_beyond(9000)")
    healed = await doctor(database)
    assert healed.exit_code == 0, healed.output


async def test_doctor_finds_an_update_function_that_was_put_back(db: Connection, database: str) -> None:
    """An older version's, for example: one function is enough to let a made-up token in."""
    names = {row["name"]: row["functions"] for row in await db.fetch("SELECT name, functions FROM fencepost.protected")}
    old = await db.fetchval("SELECT pg_get_functiondef($1::text::regprocedure)", f'fencepost."{names["e"]}_upd"()')
    await db.execute(old.replace(names["e"], names["t"]).replace("'e'", "'t'"))
    found = await doctor(database)
    assert "its functions (upd) do not ask" in found.output
    await protect(db, "t")
    assert (await doctor(database)).exit_code == 0


async def test_doctor_finds_that_the_sequence_is_gone(db: Connection, database: str) -> None:
    await db.execute("DROP SEQUENCE fencepost.tokens CASCADE")
    found = await doctor(database)
    assert (found.exit_code, "the sequence fencepost.tokens is gone" in found.output) == (1, True), found.output


async def test_a_role_that_may_not_read_marks_is_refused_by_the_row(db: Connection, database: str) -> None:
    login = database.replace(database.partition("://")[2].partition("@")[0], "gate:secret")
    await db.execute("CREATE ROLE gate LOGIN PASSWORD 'secret'")
    try:
        await db.execute("GRANT SELECT, INSERT, UPDATE, DELETE ON t, e TO gate")
        arguments = ["migrate", "--gateway-role", "gate", "--database-url", database]
        made = await asyncio.to_thread(CliRunner().invoke, main, arguments)
        assert made.exit_code == 0, made.output
        assert (await doctor(login)).exit_code == 0
        await db.execute("REVOKE EXECUTE ON FUNCTION fencepost.issued_to(bigint) FROM gate")
        assert "fencepost migrate --gateway-role gate" in (await doctor(login)).output
        await db.execute("SELECT setval('fencepost.tokens', 49); REVOKE SELECT ON fencepost.tokens FROM PUBLIC")
        found = (await doctor(login)).output
        assert "the role gate may not read it" in found
        await db.execute("GRANT SELECT ON fencepost.tokens TO PUBLIC")
        assert "it has the mark 50" in (await doctor(login)).output
    finally:
        await db.execute("DROP OWNED BY gate; DROP ROLE gate")
