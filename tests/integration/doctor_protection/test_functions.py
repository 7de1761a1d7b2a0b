"""`fencepost doctor` on the functions behind a table's triggers: versions, owners, privileges, settings."""

import pytest
from tests.integration.doctor_protection.reporting import command, complaints, stem
from tests.support.interleave import Connection

from fencepost.storage.inspecting.functions import FOR_ALL, FOR_TRIGGERS_ONLY, NOT_FOR_ALL
from fencepost.storage.protecting.protect import protect


@pytest.mark.parametrize(
    ("table", "parts"),
    [
        ("t", ("upd", "ins", "insmark", "del", "delete")),
        ("moods", ("upd", "ins", "insmark", "del", "delete")),
        ("parts", ("upd", "ins", "insmark", "del", "delete")),
        ("scoped", ("scope",)),
    ],
)
async def test_functions_that_an_older_version_made(
    owner: Connection, database: str, table: str, parts: tuple[str, ...]
) -> None:
    for part in parts:
        name = f"{await stem(owner, table)}_{part}"
        made = await owner.fetchval(
            "SELECT pg_get_functiondef(f.oid) FROM pg_proc f WHERE f.proname = $1 AND f.prokind = 'f'", name
        )
        # What it does is the same; its text is not.
        await owner.execute(made.replace("BEGIN", "BEGIN\n  NULL;", 1))
        (line,) = await complaints(database)
        assert line == (
            f"WARNING  {table}: its functions ({part}) were made by an older version, or changed by hand: run"
            f" `fencepost protect {table}` again"
        )
        await protect(owner, table)
        assert await complaints(database) == []


async def test_functions_of_another_role(owner: Connection, database: str) -> None:
    await owner.execute("CREATE ROLE somebody")
    try:
        await owner.execute(
            f'ALTER FUNCTION fencepost."{await stem(owner, "t")}_insmark"() OWNER TO somebody;'
            "ALTER FUNCTION fencepost.raise_mark(text, bigint, text, boolean) OWNER TO somebody;"
            "ALTER TABLE fencepost.floors OWNER TO somebody"
        )
        (line,) = await complaints(database)
        assert line.startswith("ERROR    owner: the schema fencepost belongs to postgres, and not all that is in it")
        for each in ("floors of somebody", "fencepost.raise_mark(text,bigint,text,boolean) of somebody", "_insmark"):
            assert each in line
        assert (await command("migrate", database=database)).exit_code == 0
        assert await complaints(database) == []
    finally:
        await owner.execute("DROP OWNED BY somebody CASCADE; DROP ROLE somebody")


async def test_what_everybody_may_execute_and_must_not(owner: Connection, database: str) -> None:
    for called in (
        "fencepost.raise_mark(text, bigint, text, boolean)",
        "fencepost.raise_generation(text, bigint)",
        "fencepost.prune(text, bigint)",
        f'fencepost."{await stem(owner, "t")}_upd"()',
        f'fencepost."{await stem(owner, "t")}_insmark"()',
        f'fencepost."{await stem(owner, "scoped")}_scope"()',
    ):
        await owner.execute(f"GRANT EXECUTE ON FUNCTION {called} TO PUBLIC")
        (line,) = await complaints(database)
        assert line.startswith("ERROR    privileges: everybody may execute fencepost."), called
        await owner.execute(line.partition(": REVOKE ")[1][2:] + line.partition(": REVOKE ")[2])
        assert await complaints(database) == [], called


async def test_what_default_privileges_gave_to_a_role(owner: Connection, database: str) -> None:
    await owner.execute("CREATE ROLE default_app")
    try:
        await owner.execute("GRANT EXECUTE ON FUNCTION fencepost.may_break_glass() TO default_app")
        assert await complaints(database) == []
        glass = "ok       break-glass: besides the schema's owner and superusers these may break the glass: default_app"
        assert glass in (await command("doctor", database=database)).output.splitlines()
        # As ALTER DEFAULT PRIVILEGES … GRANT EXECUTE ON FUNCTIONS TO default_app does when they are made.
        await owner.execute("GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA fencepost TO default_app")
        lines = await complaints(database)
        assert len(lines) == 1
        assert lines[0].startswith("ERROR    privileges: default_app may execute what only triggers should: REVOKE")
        for name in FOR_TRIGGERS_ONLY:
            assert f"fencepost.{name}(" in lines[0]
        await owner.execute(lines[0].partition(": REVOKE")[1].removeprefix(": ") + lines[0].partition(": REVOKE")[2])
        assert await complaints(database) == []
    finally:
        await owner.execute("DROP OWNED BY default_app; DROP ROLE default_app")


async def test_a_function_that_lost_its_search_path(owner: Connection, database: str) -> None:
    await owner.execute("ALTER FUNCTION fencepost.raise_mark(text, bigint, text, boolean) RESET search_path")
    (line,) = await complaints(database)
    assert "in their owner's name and under the caller's search_path: fencepost.raise_mark(" in line


async def test_the_lists_of_who_may_execute_name_functions_that_there_are(owner: Connection) -> None:
    rows = await owner.fetch(
        "SELECT f.proname::text, f.prosecdef FROM pg_proc f WHERE f.pronamespace = 'fencepost'::regnamespace"
    )
    assert {row[0] for row in rows if row[1]} >= FOR_ALL | FOR_TRIGGERS_ONLY
    assert {row[0] for row in rows} >= NOT_FOR_ALL
