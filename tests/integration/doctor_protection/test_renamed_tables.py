"""A table that was renamed, or got another scope: nothing of before is left behind, and its marks come along."""

import asyncpg
import pytest
from tests.integration.doctor_protection.reporting import complaints, stem
from tests.support.interleave import Connection

from fencepost.storage.protecting.protect import protect, unprotect


async def left_behind(connection: Connection) -> list[str]:
    rows = await connection.fetch(
        """SELECT 'function ' || f.proname FROM pg_proc f WHERE f.pronamespace = 'fencepost'::regnamespace
              AND f.proname ~ '_[0-9a-f]{10}_'
           UNION ALL SELECT 'trigger ' || t.tgname FROM pg_trigger t WHERE starts_with(t.tgname, 'zzz_fencepost_')
           UNION ALL SELECT 'protected ' || p.name FROM fencepost.protected p"""
    )
    return [row[0] for row in rows]


async def test_nothing_is_left_of_a_table_that_changed_sides_and_names(owner: Connection, database: str) -> None:
    """By rows, by a scope, by another, renamed, by rows: each time what stood for the side before is gone."""
    rows = {"upd", "ins", "insmark", "del", "delete", "name"}
    name = "t"
    await owner.execute("ALTER TABLE t ADD COLUMN account_id int NOT NULL DEFAULT 1")
    for number, (scope, parts) in enumerate(
        (
            ("account/{account_id}", {"scope", "of"}),
            ("", rows),
            ("account/{account_id}", {"scope", "of"}),
            ("id/{id}", {"scope", "of"}),
            ("id/{id}", {"scope", "of"}),
            ("", rows),
        )
    ):
        if number:
            await owner.execute(f"ALTER TABLE {name} RENAME TO t{number}")
            name = f"t{number}"
        await protect(owner, name, scope=scope)
        functions = {
            row[0] for row in await owner.fetch("SELECT proname FROM pg_proc WHERE proname ~ '^t[0-9]*_[0-9a-f]{10}_'")
        }
        start = await stem(owner, name)
        assert functions == {f"{start}_{part}" for part in parts}, (number, scope)
        assert await complaints(database) == []
    for table in (name, "moods", "parts", "scoped", "scoped_parts"):
        await unprotect(owner, table)
    assert await left_behind(owner) == []


@pytest.mark.parametrize("how", ["protect", "unprotect, protect"])
async def test_a_scoped_table_that_was_renamed_takes_its_marks_along(owner: Connection, how: str) -> None:
    await owner.execute(
        "BEGIN; SET LOCAL fencepost.token = '50'; INSERT INTO scoped VALUES (1, 7); COMMIT;"
        "ALTER TABLE scoped RENAME TO renamed"
    )
    if how == "protect":
        await protect(owner, "renamed", scope="")
    else:
        await unprotect(owner, "renamed")
        await protect(owner, "renamed")
    with pytest.raises(asyncpg.PostgresError, match="stale token 49"):
        await owner.execute("UPDATE renamed SET account_id = 8, last_fence_token = -49 WHERE id = 1")
    with pytest.raises(asyncpg.PostgresError, match="stale token 49"):
        await owner.execute("INSERT INTO renamed (id, account_id, last_fence_token) VALUES (2, 7, 49)")
    await owner.execute("UPDATE renamed SET account_id = 8, last_fence_token = -51 WHERE id = 1")


@pytest.mark.parametrize("how", ["protect", "unprotect, protect"])
async def test_a_table_that_was_renamed_takes_the_marks_of_deleted_rows_along(owner: Connection, how: str) -> None:
    await owner.execute(
        "INSERT INTO t (id, last_fence_token) VALUES (1, 40), (2, 40);"
        "BEGIN; SET LOCAL fencepost.token = '50'; DELETE FROM t WHERE id = 1; COMMIT;"
        "UPDATE fencepost.floors SET floor = 30 WHERE name = 't';"
        "ALTER TABLE t RENAME TO renamed"
    )
    if how != "protect":
        await unprotect(owner, "renamed")
    await protect(owner, "renamed")
    for statement, mark in (
        ("INSERT INTO renamed (id, last_fence_token) VALUES (1, 49)", 50),
        ("INSERT INTO renamed (id, last_fence_token) VALUES (9, 29)", 30),
        ("UPDATE renamed SET last_fence_token = -39 WHERE id = 2", 40),
    ):
        with pytest.raises(asyncpg.PostgresError, match=f"its mark is {mark}"):
            await owner.execute(statement)
