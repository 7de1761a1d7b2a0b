"""`fencepost doctor` on triggers that do not fire or are others, on partitions, and on tables that inherit."""

import asyncpg
import pytest
from tests.integration.doctor_protection.reporting import complaints, mended, stem
from tests.support.in_process import in_process
from tests.support.interleave import Connection

PARTITIONS = [
    ("ALTER TABLE part_1a DISABLE TRIGGER zzz_fencepost_upd", "parts", "part_1a", "(zzz_fencepost_upd)"),
    ("ALTER TABLE part_1 DISABLE TRIGGER zzz_fencepost_insmark", "parts", "part_1", "(zzz_fencepost_insmark)"),
    ("ALTER TABLE part_1a ENABLE REPLICA TRIGGER zzz_fencepost_del", "parts", "part_1a", "(zzz_fencepost_del)"),
    (
        "ALTER TABLE part_1a DISABLE TRIGGER ALL",
        "parts",
        "part_1a",
        "(zzz_fencepost_del, zzz_fencepost_ins, zzz_fencepost_insmark, zzz_fencepost_upd)",
    ),
    ("ALTER TABLE scoped_part_1 DISABLE TRIGGER zzz_fencepost_scope", "scoped_parts", "scoped_part_1", "_scope)"),
]


@pytest.mark.parametrize(("harm", "table", "partition", "triggers"), PARTITIONS)
async def test_a_trigger_that_does_not_fire_on_one_partition(
    owner: Connection, database: str, harm: str, table: str, partition: str, triggers: str
) -> None:
    assert await complaints(database) == []
    await owner.execute(harm)
    line = next(line for line in await complaints(database) if f" {partition} " in line)
    assert line.startswith(f"ERROR    {table}: on its partition {partition} triggers are missing, disabled or not")
    assert triggers in line
    path = f"/v1/data/{table}/3"
    async with in_process(database) as http:
        refused = await http.delete(path, headers={"X-Fence-Token": "5"})
        assert (refused.status_code, refused.json()["code"]) == (403, "FP005"), "no write goes where no mark would stay"
        await mended(owner, database, table)
        assert (await http.delete(path, headers={"X-Fence-Token": "5"})).json()["code"] != "FP005"


async def test_partitions_that_come_unseen_have_the_row_triggers_and_lack_that_of_truncate(
    owner: Connection, database: str
) -> None:
    await owner.execute("ALTER EVENT TRIGGER fencepost_partitions DISABLE")
    await owner.execute(
        "CREATE TABLE part_2 PARTITION OF parts FOR VALUES FROM (10) TO (20);"
        "CREATE TABLE part_3 (LIKE parts INCLUDING ALL);"
        "ALTER TABLE parts ATTACH PARTITION part_3 FOR VALUES FROM (20) TO (30);"
        "CREATE TABLE scoped_part_2 PARTITION OF scoped_parts FOR VALUES FROM (10) TO (20)"
    )
    lines = await complaints(database)
    assert [line for line in lines if line.startswith("ERROR")] == []
    assert any("parts: partitions that TRUNCATE could empty (part_2, part_3)" in line for line in lines), lines
    assert any("scoped_parts: partitions that TRUNCATE could empty (scoped_part_2)" in line for line in lines)
    for statement in ("INSERT INTO part_2 VALUES (11)", "INSERT INTO part_3 VALUES (21)"):
        with pytest.raises(asyncpg.PostgresError, match="needs a fence token"):
            await owner.execute(statement)
    await owner.execute("TRUNCATE part_2")
    await owner.execute("ALTER EVENT TRIGGER fencepost_partitions ENABLE")
    await mended(owner, database, "parts", "scoped_parts")
    with pytest.raises(asyncpg.PostgresError, match="TRUNCATE would forget its marks"):
        await owner.execute("TRUNCATE part_2")


async def test_a_disabled_truncate_trigger_of_a_partition(owner: Connection, database: str) -> None:
    await owner.execute("ALTER TABLE part_1a DISABLE TRIGGER zzz_fencepost_trunc")
    assert any("partitions that TRUNCATE could empty (part_1a)" in line for line in await complaints(database))
    await mended(owner, database, "parts")


LOOKALIKES = [
    ("BEFORE UPDATE ON t FOR EACH ROW EXECUTE FUNCTION nothing()", "t", "upd"),
    ("AFTER INSERT ON t FOR EACH ROW EXECUTE FUNCTION nothing()", "t", "insmark"),
    ("BEFORE TRUNCATE ON t FOR EACH STATEMENT EXECUTE FUNCTION nothing()", "t", "trunc"),
    ("AFTER UPDATE ON t FOR EACH ROW EXECUTE FUNCTION {own}()", "t", "upd"),
    ("BEFORE UPDATE ON t FOR EACH ROW EXECUTE FUNCTION {other}()", "t", "upd"),
    ("BEFORE UPDATE OF v ON t FOR EACH ROW EXECUTE FUNCTION {own}()", "t", "upd"),
    ("BEFORE UPDATE ON t FOR EACH ROW WHEN (NEW.id > 5) EXECUTE FUNCTION {own}()", "t", "upd"),
    ("BEFORE INSERT OR UPDATE OR DELETE ON scoped FOR EACH ROW EXECUTE FUNCTION nothing()", "scoped", "scope"),
]


@pytest.mark.parametrize(("clause", "table", "part"), LOOKALIKES)
async def test_a_trigger_that_only_has_the_fences_name(
    owner: Connection, database: str, clause: str, table: str, part: str
) -> None:
    await owner.execute(
        "CREATE FUNCTION nothing() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN coalesce(NEW, OLD); END'"
    )
    own = f'fencepost."{await stem(owner, table)}_{part}"'
    clause = clause.format(own=own, other=own.replace("_upd", "_ins"))
    await owner.execute(f"DROP TRIGGER zzz_fencepost_{part} ON {table}; CREATE TRIGGER zzz_fencepost_{part} {clause}")
    lines = await complaints(database)
    assert any(
        line.startswith(f"ERROR    {table}: triggers have the fence's names and are others (zzz_fencepost_{part})")
        for line in lines
    ), lines
    await owner.execute(f"DROP TRIGGER zzz_fencepost_{part} ON {table}")
    await mended(owner, database, table)


@pytest.mark.parametrize("table", ["t", "scoped"])
async def test_tables_that_inherit_have_no_fence(owner: Connection, database: str, table: str) -> None:
    await owner.execute(f"CREATE TABLE heir () INHERITS ({table})")
    assert any("tables inherit from it (heir)" in line for line in await complaints(database))
    await owner.execute("DROP TABLE heir")
    assert await complaints(database) == []
